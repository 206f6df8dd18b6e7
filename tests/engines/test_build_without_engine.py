"""`provision build` without an engine: a layout, an archive, a registry, an index of two platforms.

Real tools read what it makes: a registry, skopeo, docker, and a sandbox that runs it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from docker.errors import APIError

from images.oci.layout import LayoutTarget
from images.oci.model import CONFIG, LAYER_GZIP, LAYER_ZSTD, MANIFEST, Platform, to_bytes
from images.oci.sources import Stream, Unpacked
from tests import need
from tests.engines.lab import Done, World, finish, new_world
from tests.engines.podman_place import podman_storage
from tests.engines.private_engine import PrivateEngine
from tests.engines.small_build import NUMPY, PASSWORD, PIP, TORCH, Source, left_over
from tests.kit.cases import cases
from tests.kit.elf_maker import elf
from tests.kit.oci_images import a_tar
from tests.kit.private_index import Index, make_wheel, serve
from tests.kit.programs import run_program
from tests.kit.projects import project

pytestmark = pytest.mark.docker

NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}
SIX = make_wheel("six-1.17.0-py3-none-any.whl", {"six.py": b"__version__ = '1.17.0'\n"})
ZSTD_SINCE = 23
"""The first Docker that pulls layers by zstd: https://github.com/moby/moby/releases/tag/v23.0.0"""
NEW = "2.9.1+cu128-cp312-cp312"


@contextmanager
def an_index(source: Source, *more: Any) -> Iterator[Index]:
    torch = make_wheel(TORCH, {"torch/__init__.py": b"__version__ = '2.0.1+cu117'\n"})
    with serve(source.authority, torch, NUMPY, PIP, SIX, *more, password=PASSWORD) as index:
        yield index


@pytest.fixture(scope="module")
def index(source: Source) -> Iterator[Index]:
    both = [
        make_wheel(f"torch-{NEW}-manylinux_2_28_{arch}.whl", {"torch/__init__.py": b""})
        for arch in ("x86_64", "aarch64")
    ]
    newer = make_wheel("numpy-2.3.0-py3-none-any.whl", {"numpy/__init__.py": b""})
    with an_index(source, *both, newer) as found:
        yield found


@pytest.fixture(scope="module")
def alone() -> Iterator[World]:
    """A world without an engine."""
    with new_world(**NO_ENGINE) as found:
        yield found


def build(world: World, source: Source, index: Index, *words: str, **env: str) -> Any:
    done = run(world, source, index, "build", "--json", *words, **env)
    assert done.code == 0, done.err
    return done.account


def run(world: World, source: Source, index: Index, verb: str, *words: str, **env: str) -> Done:
    network = ["--ca-bundle", str(source.authority.bundle)]
    return world.provision(verb, *words, *network, UV_DEFAULT_INDEX=index.url, **env)


ASKED = ("--cuda", "11.7", "--python", "3.11", "--base", "bootstrap")


@pytest.fixture(scope="module")
def lock(alone: World, source: Source, index: Index) -> Path:
    """What all are built from."""
    path = alone.place / "pylock.toml"
    words = (*ASKED, "--index", index.url, "--output", str(path))
    done = run(alone, source, index, "lock", *words)
    assert done.code == 0, done.err
    return path


def test_without_an_engine_it_lands_in_a_layout_and_is_run_in_a_sandbox(
    alone: World, source: Source, index: Index, lock: Path
) -> None:
    need.program("unshare", "util-linux")
    broken = alone.place / "bin"
    broken.mkdir()
    podman = broken / "podman"
    podman.write_text("#!/bin/sh\nexit 1\n")
    podman.chmod(0o755)
    path = f"{broken}:{alone.env['PATH']}"
    done = run(
        alone, source, index, "build", "--json", "--lock", str(lock), "--level", "quick", PATH=path
    )
    account = done.account
    # a torch that is only a name is no torch: the suite has run inside, and says so
    assert account["verify"]["verdict"] == "unfit"
    assert account["verify"]["environment"]["python"].startswith("3.11")
    assert (done.code, account["image"]["withheld"]["because"]) == (1, "libraries.framework failed")
    assert "using sandbox" in done.err
    assert account["builder"]["name"] == "oci"
    name = account["image"]["tag"]
    assert name == account["image"]["withheld"]["name"] + "-unfit"
    (image,) = alone.provision("ls", "--json", PATH=path).account["images"]
    assert (image["names"], image["verdict"]) == ([name], "unfit")
    shown = run(alone, source, index, "inspect", "--json", name)
    assert shown.code in {0, 1}, shown.err
    gone = run(alone, source, index, "inspect", name.removesuffix("-unfit"))
    assert gone.code == 5, gone.err


def test_an_image_in_a_layout_is_found_by_its_name(
    alone: World, source: Source, index: Index, lock: Path
) -> None:
    account = build(alone, source, index, "--lock", str(lock), "--no-verify", "--tag", "own:1")
    images = alone.place / "data" / "gpu-provision" / "images"
    assert account["image"]["place"] == str(images)
    skopeo = need.program("skopeo")
    told = run_program([skopeo, "inspect", f"oci:{images}:own:1"], check=True)
    assert json.loads(told.stdout)["Digest"] == account["image"]["digest"]
    asked = alone.provision("inspect", "own:1", "--json")
    assert asked.account["verdict"] in {"fit", "no-verdict"}, asked.out
    used = alone.provision("store", "du", "--json").account["usage"]
    assert {one["kind"] for one in used} >= {"wheels", "images"}


def test_a_changed_line_of_a_project_runs_on_what_is_unpacked(
    alone: World, source: Source, index: Index, lock: Path, tmp_path: Path
) -> None:
    need.program("bwrap", "bubblewrap")
    place = project(tmp_path / "project", {"main.py": "print('first')\n", "gone.py": ""})
    words = (str(place), "--lock", str(lock), "--no-verify", "--tag", "project:1")

    def shown(command: str) -> list[str]:
        build(alone, source, index, *words)
        ran = ("run", "--engine", "sandbox", "project:1", "--", "sh", "-c", command)
        done = alone.provision(*ran)
        assert done.code == 0, done.err
        return done.out.split()

    assert shown("python3 /app/main.py") == ["first"]
    (root,) = (alone.cache / "gpu-provision/roots").glob("*/root")
    (root / "usr/unpacked-once").touch()
    (root / "app/__pycache__").mkdir()
    (place / "main.py").write_text("print('second')\n")
    (place / "gone.py").unlink()
    seen = shown("python3 /app/main.py; ls /app /usr/unpacked-once")
    assert seen == ["second", "/usr/unpacked-once", "/app:", "main.py"]


def test_an_image_is_exported_by_its_labels_and_needs_no_root(
    alone: World, source: Source, index: Index, lock: Path, tmp_path: Path
) -> None:
    build(alone, source, index, "--lock", str(lock), "--no-verify", "--tag", "own:1")
    images = alone.place / "data" / "gpu-provision" / "images"
    asked = alone.provision("export", "apptainer", f"oci:{images}:own:1")
    assert asked.code == 0, asked.err
    assert f"Bootstrap: oci\nFrom: {images}:own:1\n" in asked.out
    assert "org.gpu-provision.framework pytorch 2.0.1" in asked.out
    skopeo, umoci = need.program("skopeo"), need.program("umoci")
    need.root()  # for chroot
    where = ["--image", f"{tmp_path}/oci:1", str(tmp_path / "root")]
    for argv in (
        [skopeo, "--insecure-policy", "copy", f"oci:{images}:own:1", f"oci:{tmp_path}/oci:1"],
        [umoci, "raw", "unpack", *where],
    ):
        subprocess.run(argv, capture_output=True, check=True, timeout=120)
    # as `provision export kubernetes` has it: no home, no name, no privileges
    path = "PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin"
    words = ["/usr/bin/env", "-i", "HOME=/tmp", "USER=job", path, "verify", "--list"]
    done = run_program(
        ["chroot", "--userspec=1000:1000", "--groups=", str(tmp_path / "root"), *words]
    )
    assert done.returncode == 0, done.stderr
    assert "devices.count" in done.stdout


def test_a_registry_gets_what_it_has_not_and_docker_runs_it(
    alone: World, source: Source, index: Index, lock: Path, registry: str, own_client: Any
) -> None:
    push = ("--push", f"{registry}/small:1", "--no-verify", "--lock", str(lock))
    first = build(alone, source, index, *push)
    again = build(alone, source, index, *push)
    assert again["image"]["digest"] == first["image"]["digest"]
    assert {layer["how"] for layer in again["image"]["layers"]} == {"there"}
    assert first["documents"]["attached"]
    own_client.images.pull(f"{registry}/small", tag="1")
    said = own_client.containers.run(
        f"{registry}/small:1",
        ["python3", "-c", "import sys, torch, numpy; print(sys.prefix, torch.__version__)"],
        network_mode="none",
        remove=True,
    )
    own_client.images.remove(f"{registry}/small:1", force=True)
    assert said.decode().split() == ["/opt/venv", "2.0.1+cu117"]


def test_layers_by_zstd_are_read_by_docker_podman_and_ourselves(
    alone: World, source: Source, index: Index, lock: Path, registry: str, own_client: Any
) -> None:
    reference = f"{registry}/zstd:1"
    words = ("--lock", str(lock), "--no-verify", "--compression", "zstd", "--push", reference)
    account = build(alone, source, index, *words)
    again = build(alone, source, index, *words)
    assert again["image"]["digest"] == account["image"]["digest"]
    assert {layer["how"] for layer in again["image"]["layers"]} == {"there"}
    skopeo = need.program("skopeo")
    raw = [skopeo, "inspect", "--raw", "--tls-verify=false", f"docker://{reference}"]
    told = run_program(raw, check=True)
    types = [layer["mediaType"] for layer in json.loads(told.stdout)["layers"]]
    assert set(types[1:]) == {LAYER_ZSTD}
    program = ["python3", "-c", "import torch; print(torch.__version__)"]
    if int(own_client.version()["Version"].split(".")[0]) >= ZSTD_SINCE:
        own_client.images.pull(f"{registry}/zstd", tag="1")
        said = own_client.containers.run(reference, program, network_mode="none", remove=True)
        own_client.images.remove(reference, force=True)
        assert said.decode().strip() == "2.0.1+cu117"
    else:
        with pytest.raises(APIError):
            own_client.images.pull(f"{registry}/zstd", tag="1")
    with TemporaryDirectory(prefix="p-") as place, podman_storage(Path(place)) as env:
        options = ("--rm", "--tls-verify=false", "--network=none")
        done = run_program(
            [need.program("podman"), "run", *options, reference, *program],
            env={**os.environ, **env},
            timeout=300,
        )
        assert done.stdout.strip() == "2.0.1+cu117", done.stderr
    asked = alone.provision("inspect", reference, "--json")
    assert asked.account["verdict"] in {"fit", "no-verdict"}, asked.out


@pytest.mark.parametrize("words", [(), ("--output", "x", "--builder", "docker")], ids=len)
def test_an_engine_is_not_given_zstd(
    alone: World, source: Source, index: Index, lock: Path, words: tuple[str, ...]
) -> None:
    asked = ("--lock", str(lock), "--compression", "zstd", *words)
    done = run(alone, source, index, "build", *asked)
    assert done.code == 2
    assert "without an engine" in done.err


def test_a_package_more_is_a_small_layer_more(
    alone: World, source: Source, index: Index, lock: Path, registry: str
) -> None:
    before = ("--push", f"{registry}/small:1", "--no-verify", "--lock", str(lock))
    build(alone, source, index, *before)
    path = alone.place / "pylock.more.toml"
    words = (*ASKED, "--index", index.url, "--with", "six", "--output", str(path))
    assert run(alone, source, index, "lock", *words).code == 0
    push = ("--push", f"{registry}/small:2", "--no-verify", "--lock", str(path))
    account = build(alone, source, index, *push)
    written = [layer for layer in account["image"]["layers"] if layer["how"] == "written"]
    assert sum(layer["size"] for layer in written) < 100_000, written
    assert len(written) == 2, "the group that six is in, and the lock"


def test_a_new_runner_builds_from_what_the_registry_has(
    alone: World, source: Source, index: Index, lock: Path, registry: str
) -> None:
    reference = f"{registry}/small:1"
    build(alone, source, index, "--lock", str(lock), "--no-verify", "--push", reference)
    with new_world(**NO_ENGINE) as fresh:
        words = ("--lock", str(lock), "--no-verify", "--push", reference, "--cache-from", reference)
        account = build(fresh, source, index, *words)
        assert {layer["how"] for layer in account["image"]["layers"]} == {"there"}
        assert not list(fresh.cache.rglob("*.whl"))


def test_the_same_lock_gives_the_same_digest_elsewhere(
    alone: World, source: Source, index: Index, lock: Path
) -> None:
    with new_world(**NO_ENGINE) as other:
        digests = {
            build(
                world, source, index,
                "--lock", str(lock), "--no-verify", "--output", str(world.place / name), **env,
            )["image"]["digest"]
            for world, name, env in (
                (alone, "here.tar", {"TZ": "UTC"}),
                (other, "there", {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "5"}),
            )
        }  # fmt: skip
    assert len(digests) == 1


def test_an_archive_loads_into_docker(
    alone: World, source: Source, index: Index, lock: Path, own_client: Any
) -> None:
    archive = alone.place / "image.tar"
    words = ("--lock", str(lock), "--no-verify", "--tag", "from-archive:1")
    account = build(alone, source, index, *words, "--output", str(archive))
    with archive.open("rb") as file:
        (image,) = own_client.images.load(file)
    own_client.images.remove(image.id, force=True)
    assert image.id == account["image"]["image_id"]
    assert image.tags == ["from-archive:1"]


def test_one_file_is_the_image_for_verify_and_inspect(
    alone: World, source: Source, index: Index, lock: Path
) -> None:
    need.program("tar2sqfs", "squashfs-tools-ng")
    need.program("squashfuse", "squashfuse")
    place = alone.place / "files"
    file, other = place / "image.sqfs", place / "other.sqsh"
    words = ("--lock", str(lock), "--output")
    account = build(alone, source, index, *words, str(file), "--no-verify")
    assert account["image"]["destination"] == "squashfs"
    assert account["image"]["size_bytes"] == file.stat().st_size
    assert account["next"] == f"provision run {file}"
    assert account["next_on_gpu_host"] == f"enroot start {file}"
    layout = build(alone, source, index, *words, str(place / "layout"), "--no-verify")
    assert account["image"]["digest"] == layout["image"]["digest"]
    # a torch that is only a name is no torch: the suite has run inside, and says so
    verified = alone.provision("verify", str(file), "--json", "--level", "quick")
    assert verified.account["verdict"] == "unfit", verified.err
    assert verified.account["environment"]["python"].startswith("3.11")
    assert "using sandbox" in verified.err or "sandbox" in str(verified.account)
    inspected = alone.provision("inspect", str(file), "--json")
    assert inspected.account["verdict"] in {"fit", "no-verdict"}, inspected.out
    before = sorted(path.name for path in place.iterdir())
    done = run(alone, source, index, "build", "--json", "--level", "quick", *words, str(other))
    assert (done.code, done.account["verify"]["verdict"]) == (1, "unfit"), done.err
    kept = "other-unfit.sqsh"  # an unfit image does not get the name that was asked for
    assert sorted(path.name for path in place.iterdir()) == sorted([*before, kept])
    assert str(alone.place) not in Path("/proc/self/mounts").read_text()


def test_an_engine_that_is_here_is_given_the_image(
    source: Source, index: Index, lock: Path, own_engine: PrivateEngine, own_client: Any
) -> None:
    with new_world(DOCKER_HOST=own_engine.url) as world:
        words = ("--lock", str(lock), "--no-verify", "--builder", "oci", "--tag", "given:1")
        account = build(world, source, index, *words)
    image = own_client.images.get("given:1")
    own_client.images.remove("given:1", force=True)
    assert image.id == account["image"]["image_id"]


def base_for(arch: str, place: Path) -> str:
    """A layout with a base for a processor that is not here: a Python that nobody runs."""
    files = {"usr/bin/python3.12": b"\x7fELF never run", "etc/os-release": b"ID=debian\n"}
    tar = a_tar(files)
    target = LayoutTarget.open(place)

    def stream() -> Stream:
        yield packed
        return Unpacked(diff_id=diff_id, size=len(tar))

    import gzip
    import hashlib

    packed = gzip.compress(tar, mtime=0)
    diff_id = f"sha256:{hashlib.sha256(tar).hexdigest()}"
    layer = target.write(stream, expected=None, on_bytes=lambda _: None)
    rootfs = {"type": "layers", "diff_ids": [diff_id]}
    platform = Platform(architecture=arch)
    config = target.write_bytes(to_bytes({**platform.to_json(), "rootfs": rootfs}), CONFIG)
    described = {"mediaType": LAYER_GZIP, "digest": layer.digest, "size": layer.size}
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config.to_json(),
        "layers": [described],
    }
    target.publish(to_bytes(manifest), MANIFEST, name=f"base-{arch}")
    target.close()
    return f"oci:{place}:base-{arch}"


def test_two_locks_are_one_index_and_no_processor_is_emulated(
    alone: World, source: Source, index: Index, registry: str, tmp_path: Path
) -> None:
    locks = []
    for machine, arch in (("x86_64", "amd64"), ("aarch64", "arm64")):
        host = tmp_path / f"{machine}.json"
        host.write_text(json.dumps({"schema": 1, "arch": machine}))
        path = tmp_path / f"pylock.{machine}.toml"
        words = ["--cuda", "12.8", "--framework-version", "2.9.1", "--python", "3.12"]
        words += ["--host", str(host), "--base", base_for(arch, tmp_path / "bases")]
        words += ["--index", index.url, "--output", str(path)]
        done = run(alone, source, index, "lock", *words)
        assert done.code == 0, done.err
        locks += ["--lock", str(path)]
    reference = f"{registry}/both:1"
    account = build(alone, source, index, *locks, "--no-verify", "--push", reference)
    assert [one["platform"] for one in account["image"]["platforms"]] == [
        "linux/amd64",
        "linux/arm64",
    ]
    skopeo = need.program("skopeo")
    raw = run_program(
        [skopeo, "inspect", "--raw", "--tls-verify=false", f"docker://{reference}"], check=True
    )
    found = json.loads(raw.stdout)["manifests"]
    assert {one["platform"]["architecture"] for one in found} == {"amd64", "arm64"}


@cases(
    "words code says",
    ("docker is not there", ("--builder", "docker"), 5, "No container engine"),
    ("two places", ("--push", "x/y:1", "--output", "z"), 2, "used together"),
    ("a file is no layout", ("--output", "/proc/version"), 2, "/proc/version"),
    ("no registry there", ("--push", "127.0.0.1:9/x:1"), 5, "127.0.0.1:9"),
)
def test_what_cannot_be_is_said(
    alone: World, source: Source, index: Index, lock: Path, words: tuple[str, ...], code: int,
    says: str,
) -> None:  # fmt: skip
    done = run(alone, source, index, "build", "--lock", str(lock), "--no-verify", *words)
    assert done.code == code, done.err
    assert says in done.err
    assert "fix:" in done.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupted_build_leaves_nothing_under_a_name(
    source: Source, number: signal.Signals
) -> None:
    with new_world(**NO_ENGINE) as world, source.index(held=TORCH) as index:
        process = world.start(*source.words(index, "own:1"), **source.env(index))
        assert index.reached.wait(120), process.communicate()[1]
        process.send_signal(number)
        done = finish(process)
        assert done.code == 128 + number, done.err
        assert not list((world.place / "data").rglob("index.json"))
        assert left_over(world) == []
        assert not world.processes()


def test_how_it_was_built_is_stated_and_can_be_checked(
    alone: World, source: Source, index: Index, lock: Path, registry: str, tmp_path: Path
) -> None:
    reference = f"{registry}/stated:1"
    words = ("--lock", str(lock), "--no-verify", "--push", reference)
    files = ("--sbom", str(tmp_path / "bom.json"), "--provenance", str(tmp_path / "built.json"))
    build(alone, source, index, *words, *files)
    bom = json.loads((tmp_path / "bom.json").read_text())
    assert {one["name"] for one in bom["components"]} >= {"torch", "numpy", "pip", "libc6"}

    def check(*more: str) -> Any:
        done = alone.provision("verify", reference, "--json", "--check-provenance", *more)
        return done.code, done.account["error"] and done.account["error"]["code"]

    assert check() == (0, None)
    assert check("--lock", str(lock)) == (0, None)
    assert check(str(tmp_path / "built.json")) == (0, None)
    other = tmp_path / "pylock.toml"
    other.write_text(lock.read_text() + "# another\n")
    assert check("--lock", str(other)) == (7, "provenance-other-lock")
    sealed = json.loads((tmp_path / "built.json").read_text())
    sealed["dsseEnvelope"]["payload"] = sealed["dsseEnvelope"]["payload"][::-1]
    (tmp_path / "changed.json").write_text(json.dumps(sealed))
    code, what = check(str(tmp_path / "changed.json"))
    assert (code, what[:11]) == (2, "provenance-")
    with new_world(**NO_ENGINE) as stranger:
        done = stranger.provision("verify", reference, "--json", "--check-provenance")
    assert (done.code, done.account["error"]["code"]) == (2, "provenance-unknown-key")


def test_a_wheel_that_was_changed_is_refused_before_anything_is_published(
    alone: World, source: Source, index: Index, lock: Path, registry: str
) -> None:
    changed = alone.place / "pylock.changed.toml"
    text = lock.read_text()
    at = text.index("sha256 = ") + len("sha256 = '") + 3
    changed.write_text(text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :])
    push = ("--push", f"{registry}/changed:1", "--no-verify")
    done = run(alone, source, index, "build", "--lock", str(changed), *push)
    assert done.code in {5, 6}, done.err
    assert "is not what was locked" in " ".join(done.err.split()), done.err
    skopeo = need.program("skopeo")
    there = subprocess.run(
        [skopeo, "inspect", "--tls-verify=false", f"docker://{registry}/changed:1"],
        capture_output=True, check=False,
    )  # fmt: skip
    assert there.returncode != 0


@cases(
    "module named",
    ("it fits", elf(wants=["PyErr_Occurred"]), ""),
    ("a symbol is missing", elf(needed=["libc.so.6"], wants=["gone"]), "extension 1.0: m"),
    ("a library is missing", elf(needed=["libgone.so.1"]), "libgone.so.1"),
)
def test_a_package_that_will_not_load_is_refused_before_the_image_has_a_name(
    alone: World, source: Source, tmp_path: Path, module: bytes, named: str
) -> None:
    """The base is Debian's, with a real Python and a real glibc."""
    name = "extension-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"
    wheel = make_wheel(name, {"extension/m.cpython-311-x86_64-linux-gnu.so": module})
    image = tmp_path / "image"
    with an_index(source, wheel) as index:
        words = (*ASKED, "--index", index.url, "--with", "extension", "--no-verify")
        done = run(alone, source, index, "build", "--json", *words, "--output", str(image))
    if not named:
        assert done.code == 0, done.err
        assert "libraries: 1 required symbol found" in done.err
        found = {"message": "libraries: 1 required symbol found", "warning": None}
        assert done.account["image"]["libraries"] == found
        return
    assert (done.code, done.account["error"]["code"]) == (3, "will-not-load")
    assert named in done.account["error"]["message"]
    assert not image.exists()
