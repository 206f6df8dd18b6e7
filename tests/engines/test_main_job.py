"""The main job, for real: `provision build --cuda 11.7`, and what it says of its image."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests import need
from tests.engines.lab import ROOT, TAG, Built, Done, World

pytestmark = pytest.mark.docker

VERSIONS = (
    "import torch; print(torch.__version__, torch.version.cuda, "
    "torch.backends.cudnn.version(), torch.cuda.nccl.version())"
)
PACKAGES = (
    "from importlib.metadata import distributions; "
    "print(*sorted(f'{d.name}=={d.version}' for d in distributions()))"
)
SCHEMA = json.loads((ROOT / "verify" / "report.schema.json").read_text())


def run(client: Any, *command: str, image: str = TAG) -> str:
    output: bytes = client.containers.run(image, command, network_mode="none", remove=True)
    return output.decode().strip()


def test_the_image_has_its_name(client: Any, built: Built) -> None:
    assert client.images.get(built.tag).id == built.account["image"]["digest"]


def test_the_account_says_what_was_made(built: Built) -> None:
    image = built.account["image"]
    assert image["tag"] == TAG
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", image["digest"])
    assert image["size_bytes"] > 4e9
    assert built.account["error"] is None


def test_the_account_names_each_step_in_order(built: Built) -> None:
    names = [step["name"] for step in built.account["steps"]]
    assert names == ["detect", "plan", "base", "lock", "build", "verify"]


def test_the_plan_follows_the_request(built: Built) -> None:
    plan = built.account["plan"]
    assert (plan["cuda"], plan["wheel_tag"]) == ("11.7", "cu117")
    assert plan["framework"] == {"name": "pytorch", "version": "2.0.1"}
    assert (plan["cudnn"], plan["nccl"]) == ("8.5.0.96", "2.14.3")


def test_nothing_is_claimed_of_a_driver_that_is_not_there(built: Built) -> None:
    need.no_gpu()
    assert built.account["plan"]["verdict"] == "unverified"
    assert built.account["verify"]["verdict"] == "no-verdict"
    missing = " ".join(built.account["not_proven"])
    assert {"devices.kernel", "collectives.nccl"} <= set(re.findall(r"[a-z]+\.[a-z]+", missing))


def test_what_runs_without_a_gpu_is_proven(built: Built) -> None:
    shown = {line.partition(":")[0] for line in built.account["proven"]}
    assert {f"libraries.{name}" for name in ("framework", "cuda", "cudnn", "nccl")} <= shown


def test_torch_is_the_one_asked_for(client: Any, built: Built) -> None:
    assert (
        run(client, "python", "-c", VERSIONS, image=built.tag) == "2.0.1+cu117 11.7 8500 (2, 14, 3)"
    )


def test_the_image_names_its_lock(client: Any, built: Built) -> None:
    label = client.images.get(built.tag).labels["org.gpu-provision.lock-sha256"]
    inside = run(client, "sha256sum", "/opt/gpu-provision/pylock.toml").split()[0]
    assert label == hashlib.sha256(built.lock).hexdigest() == inside
    assert label == built.account["lock"]["sha256"]


def test_the_report_follows_its_schema(built: Built) -> None:
    jsonschema.validate(built.account["verify"], SCHEMA)


def test_there_is_one_cuda_in_the_image(client: Any, built: Built) -> None:
    found = run(client, "find", "/", "-xdev", "-name", "libcudart*", image=built.tag).splitlines()
    assert len(found) == 1
    assert "/site-packages/" in found[0]


def test_the_base_brings_no_cuda(client: Any, built: Built) -> None:
    base = built.account["plan"]["base"]["reference"]
    look = "find / -xdev -name 'libcud*' -o -xdev -name 'libnccl*' -o -xdev -name cuda"
    assert run(client, "sh", "-c", look, image=base) == ""


def test_the_image_holds_no_installer_and_no_cache(client: Any, built: Built) -> None:
    look = "find /opt/uv /var/cache/uv -type f 2>/dev/null; command -v uv pip || true"
    assert run(client, "sh", "-c", look, image=built.tag) == ""


@pytest.fixture(scope="module")
def verified(world: World, built: Built) -> Done:
    # the build itself has run the level that is usual
    return world.provision("verify", built.tag, "--level", "quick", "--json")


def test_a_machine_without_a_gpu_gives_no_verdict(verified: Done) -> None:
    need.no_gpu()
    assert verified.code == 7
    assert verified.account["verdict"] == "no-verdict"


def test_the_report_names_the_image_that_it_speaks_of(verified: Done, built: Built) -> None:
    jsonschema.validate(verified.account, SCHEMA)
    assert verified.account["environment"]["image"] == built.account["image"]["digest"]


def test_a_gpu_that_is_required_and_not_there_is_a_failure(
    world: World, built: Built, tmp_path: Path
) -> None:
    need.no_gpu()
    report = tmp_path / "report.json"
    words = ("--require", "gpu", "--level", "quick", "--report", str(report))
    done = world.provision("verify", built.tag, *words)
    assert done.code == 1
    checks = json.loads(report.read_text())["checks"]
    assert {"devices.nvml", "devices.kernel"} <= {
        row["id"] for row in checks if row["status"] == "fail"
    }
    assert "devices.kernel" in done.out
    assert max(map(len, done.out.splitlines())) <= 80, "as a person reads it"


def test_the_next_command_runs_as_typed(world: World, built: Built) -> None:
    program, *words = shlex.split(built.account["next"])
    assert program == "provision"
    done = world.provision(*words, "--", "python3", "-c", "print('here')")
    assert (done.code, done.out) == (0, "here\n"), done.err


@pytest.fixture(scope="module")
def again(client: Any, world: World, built: Built, tmp_path_factory: Any) -> Iterator[Any]:
    """The image built from the kept lock, under another name."""
    lock: Path = tmp_path_factory.mktemp("lock") / "pylock.toml"
    lock.write_bytes(built.lock)
    tag = "gpu-provision-test:again"
    words = ("--lock", str(lock), "--tag", tag, "--no-verify", "--json")
    done = world.provision("build", *words)
    assert done.code == 0, done.err
    yield done.account
    client.images.remove(tag, force=True)


def test_a_lock_is_built_again_byte_for_byte(again: Any, built: Built) -> None:
    assert again["lock"]["sha256"] == built.account["lock"]["sha256"]
    assert Path(again["lock"]["path"]).read_bytes() == built.lock


def test_a_lock_gives_the_same_packages(client: Any, again: Any, built: Built) -> None:
    first = run(client, "python", "-c", PACKAGES, image=built.tag)
    assert run(client, "python", "-c", PACKAGES, image=again["image"]["tag"]) == first
    assert "torch==2.0.1" in first


def test_a_dry_run_with_this_engine_makes_nothing(client: Any, world: World, built: Built) -> None:
    before = {image.id for image in client.images.list(all=True)}
    done = world.provision("build", "--cuda", "11.7", "--tag", built.tag, "--dry-run", "--json")
    assert done.code == 0
    assert {image.id for image in client.images.list(all=True)} == before
