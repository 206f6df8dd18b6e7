"""What an image says about itself, and what the suite in it is told to expect."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from provision.catalog.loading import load
from provision.errors import BadInputError, LockFileError
from provision.lock import lockfile as lock_module
from provision.lock.labels import LOCK_SHA256, PLAN, expectations, labels_for, plan_of
from provision.lock.lockfile import Lock, read_lock
from provision.lock.network import ca_bundle, make_secrets
from provision.model.plan import (
    Base,
    DebianPackage,
    Gpu,
    GpuVerdict,
    HostFacts,
    PlanError,
    Reason,
    Warned,
)
from provision.output.files import refuse_unwritable
from tests import ROOT
from tests.kit.cases import cases
from tests.unit.provision.lock.test_lock import PLAN as SMALL
from tests.unit.provision.lock.test_lock import finished

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MINE = SMALL._replace(
    cudnn="8.5.0.96",
    driver_have="515.65.01",
    driver_need="450.80.02",
    gpus=(GpuVerdict(name="MY-GPU", compute_capability="8.6", runs="sm_86", ok=True),),
    reasons=(Reason(code="a", message="MY-HOST has it", source=""),),
    warnings=(Warned(code="b", message="MY-HOST", fix="-"),),
)
LOCKED = Lock(text="the lock", plan=MINE, wheels=())


def test_the_labels_say_what_was_built_and_from_which_lock() -> None:
    labels = labels_for(LOCKED, "1.2.3")
    assert labels[LOCK_SHA256] == LOCKED.sha256
    assert labels["org.gpu-provision.version"] == "1.2.3"
    assert labels["org.opencontainers.image.base.name"] == "python:3.11-slim"
    assert labels["org.opencontainers.image.base.digest"] == ""


def test_nothing_of_the_host_is_in_the_labels() -> None:
    text = json.dumps(labels_for(LOCKED, "1"))
    assert [word for word in ("MY-", "515.65.01", "450.80.02") if word in text] == []


def test_the_labels_of_one_lock_are_the_same_every_time() -> None:
    assert labels_for(LOCKED, "1") == labels_for(replace(LOCKED), "1")


def test_the_plan_comes_back_from_the_labels_without_the_host() -> None:
    found = plan_of(labels_for(LOCKED, "1"), "image")
    hostless = MINE._replace(
        verdict="unverified", driver_have=None, driver_need=None, gpus=(), reasons=(), warnings=()
    )
    assert found == hostless


def test_the_labels_name_the_debian_packages_that_were_requested_alone() -> None:
    """What these brought is in the lock, which the image has."""
    added = DebianPackage(name="libx264-164", version="2:0.164", sha256="0" * 64)
    base = Base(kind="bootstrap", reference="b", python="3.11", glibc=None, apt=("ffmpeg",))
    lock = replace(LOCKED, plan=MINE._replace(base=base._replace(added=(added,))))
    labels = labels_for(lock, "1")
    assert "libx264" not in labels[PLAN]
    assert plan_of(labels, "image").base == base


@cases(
    "labels",
    ("an image of somebody else", {}),
    ("an empty label", {PLAN: ""}),
    ("broken JSON", {PLAN: "{"}),
    ("nested without end", {PLAN: "[" * 100_000}),
    ("a list", {PLAN: "[]"}),
    ("an empty object", {PLAN: "{}"}),
    ("a text where a table belongs", {PLAN: '{"framework": "pytorch"}'}),
    ("a number where a text belongs",
     {PLAN: '{"framework": {"name": "pytorch"}, "flavour": "runtime", "cuda": 11.7}'}),
)  # fmt: skip
def test_labels_that_are_not_ours_are_refused_by_the_image_s_name(labels: dict[str, str]) -> None:
    with pytest.raises(BadInputError) as caught:
        plan_of(labels, "some/image:1")
    assert caught.value.exit_code == 2
    assert "some/image:1" in caught.value.message
    assert "provision build" in caught.value.fix


def test_the_suite_is_told_the_plan_and_the_gpus() -> None:
    facts = HostFacts(gpus=(Gpu(name="A", compute_capability=(8, 6), uuid="GPU-1"), Gpu()))
    assert expectations(MINE, facts, "sha256:1") == {
        "schema": 1,
        "framework": {"name": "pytorch", "version": "2.0.1"},
        "wheel_tag": "cu117",
        "cuda": "11.7",
        "cudnn": "8.5.0.96",
        "nccl": None,
        "python": "3.11",
        "gpus": [
            {"uuid": "GPU-1", "name": "A", "compute_capability": "8.6"},
            {"uuid": None, "name": None, "compute_capability": None},
        ],
        "image": {"digest": "sha256:1"},
    }


@cases(
    "facts gpus",
    ("no facts are nothing known", None, None),
    ("GPUs not read are not known", HostFacts(), None),
    ("no GPU there is known", HostFacts(gpus=()), []),
)
def test_what_is_not_known_is_not_told_as_none(facts: HostFacts | None, gpus: object) -> None:
    assert expectations(MINE, facts, None, emulator="qemu")["emulator"] == "qemu"
    assert expectations(MINE, facts, None, machine="node-7")["machine"] == "node-7"
    found = expectations(MINE, facts, None)
    assert (found["gpus"], found["image"]) == (gpus, None)


@cases(
    "gpu bandwidth",
    ("the name that NVML prints", Gpu(name="NVIDIA GeForce RTX 3090"), 936),
    ("as older drivers print it", Gpu(name="GeForce RTX 3090"), 936),
    ("MIG is off", Gpu(name="NVIDIA GeForce RTX 3090", mig=False), 936),
    ("a part of a name", Gpu(name="RTX 3090"), None),
    ("a longer name", Gpu(name="NVIDIA GeForce RTX 3090 Max"), None),
    ("several cards by one name", Gpu(name="H100"), None),
    ("a card nobody knows", Gpu(name="Voodoo 2"), None),
    ("no name", Gpu(), None),
    ("a part of a card", Gpu(name="NVIDIA GeForce RTX 3090", mig=True), None),
)
def test_the_suite_is_told_the_figures_of_this_very_card(gpu: Gpu, bandwidth: float | None) -> None:
    (found,) = expectations(MINE, HostFacts(gpus=(gpu,)), None, load().gpus)["gpus"]
    assert found.get("spec", {}).get("memory_bandwidth_gbs") == bandwidth


def test_figures_are_sure_where_two_sources_agree_and_none_is_made_up() -> None:
    rows = load().gpus
    hosts = HostFacts(gpus=tuple(Gpu(name=row.name) for row in rows))
    told = expectations(MINE, hosts, None, rows)["gpus"]
    for row, gpu in zip(rows, told, strict=True):
        spec = gpu["spec"]
        assert spec["sure"] == (row.figures_confidence != "doubtful")
        assert None not in spec["tflops"].values()
        assert spec["nvlink"] == row.nvlink
    assert {gpu["spec"]["sure"] for gpu in told} == {True, False}


def test_the_suite_understands_every_card_s_figures(tmp_path: Path) -> None:
    import subprocess

    rows = load().gpus
    hosts = HostFacts(gpus=tuple(Gpu(name=row.name) for row in rows))
    told = {**expectations(MINE, hosts, None, rows)}
    (tmp_path / "expect.json").write_text(json.dumps(told))
    words = ["--list", "--framework", "pytorch", "--expect", str(tmp_path / "expect.json")]
    root = ROOT
    done = subprocess.run(
        [sys.executable, "-m", "verify", *words], cwd=root, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


# --- locks that were edited -------------------------------------------------------------------


@cases(
    "old new words",
    ("an unknown base", 'kind = "registry"', 'kind = "tape"', "base.kind"),
    ("a base unnamed", 'reference = "python:3.11-slim"', "", "base.reference"),
    ("no wheel tag", 'wheel_tag = "cu117"', "", "wheel_tag"),
    ("no CPU", 'arch = "x86_64"', "", "arch"),
    ("a CPU in figures", 'arch = "x86_64"', "arch = 64", "arch"),
    ("a figure for a line", 'requirement = "torch==2.0.1"', "requirement = 2",
     "indexes[0].requirement"),
    ("a list for a text", 'why = "its default"', "why = []", "indexes[0].why"),
)  # fmt: skip
def test_an_edited_lock_is_refused_by_the_key(old: str, new: str, words: str) -> None:
    text = finished()
    assert old in text
    with pytest.raises(LockFileError) as caught:
        read_lock(text.replace(old, new))
    assert words in caught.value.message
    assert "provision lock" in caught.value.fix


def test_a_lock_without_base_is_refused() -> None:
    data = tomllib.loads(finished())
    del data["tool"]["gpu-provision"]["plan"]["base"]
    with pytest.raises(LockFileError, match="lacks base"):
        read_lock(tomli_w.dumps(data))


def test_a_plan_that_says_why_it_is_none_is_read_back() -> None:
    from provision.model.planfile import plan_from_json, plan_to_json

    none = MINE._replace(verdict="none", error=PlanError(code="a", message="b", fix="c"))
    assert plan_from_json(plan_to_json(none)) == none


def test_an_endless_lock_is_not_read_to_its_end() -> None:
    with pytest.raises(LockFileError, match="larger than 64 MiB"):
        lock_module.read_lock_file(Path("/dev/zero"))


def test_a_lock_that_cannot_be_put_in_place_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "pylock.toml").mkdir()
    with pytest.raises(BadInputError, match="cannot be written"):
        lock_module.write_lock(read_lock(finished()), tmp_path / "pylock.toml")
    assert [path.name for path in tmp_path.iterdir()] == ["pylock.toml"]


@cases(
    "name words",
    ("a directory of that name", "pylock.toml", "it is a directory"),
    ("a named pipe", "fifo/pylock.toml", "not a file that can be replaced"),
    ("a directory that is not there", "no/pylock.toml", "there is no directory"),
    ("a file as directory", "file/pylock.toml", "there is no directory"),
    ("too long a name", f"{'x' * 300}/pylock.toml", "there is no directory"),
)
def test_where_a_lock_cannot_be_written_is_known_before_the_work(
    tmp_path: Path, name: str, words: str
) -> None:
    (tmp_path / "pylock.toml").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "fifo").mkdir()
    os.mkfifo(tmp_path / "fifo/pylock.toml")
    with pytest.raises(BadInputError, match=words):
        refuse_unwritable("--output", tmp_path / name)
    refuse_unwritable("--output", tmp_path / "pylock.new.toml")


# --- what stands between ----------------------------------------------------------------------


@cases(
    "env found",
    ("nothing is set: the system's", {}, "system"),
    ("the first that exists", {"SSL_CERT_FILE": "missing", "PIP_CERT": "b"}, "b"),
    ("in a known order", {"CURL_CA_BUNDLE": "a", "SSL_CERT_FILE": "b"}, "b"),
    ("too long a name", {"SSL_CERT_FILE": "x" * 5000, "PIP_CERT": "a"}, "a"),
    ("a directory is passed over", {"SSL_CERT_FILE": ".", "PIP_CERT": "a"}, "a"),
)
def test_the_ca_bundle_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], found: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "system", "other"):
        (tmp_path / name).write_text("-----BEGIN CERTIFICATE-----")
    assert ca_bundle(None, env, system=("missing", "system", "other")) == Path(found)


def test_a_machine_without_certificates_has_no_bundle() -> None:
    assert ca_bundle(None, {}, system=("missing",)) is None


@cases(
    "content",
    ("half a line", b"machine e.example login"),
    ("no text", b"\xff\xfe\x00"),
    ("an empty file", b""),
)
def test_a_netrc_that_cannot_be_read_holds_no_login(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "netrc").write_bytes(content)
    env = {"NETRC": str(tmp_path / "netrc"), "PATH": ""}
    secrets: Any = make_secrets(ca=None, index=None, hosts=iter(["e.example"]), env=env)
    assert (secrets.netrc, secrets.values) == ("", ())


def test_the_hosts_may_come_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text(
        "machine a.example login me password one\nmachine b.example login me password two\n"
    )
    env = {"NETRC": str(tmp_path / "netrc"), "PATH": ""}
    secrets = make_secrets(ca=None, index=None, hosts=iter(["b.example", "a.example"]), env=env)
    assert secrets.values == ("one", "two")
