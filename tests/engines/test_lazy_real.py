"""Lazy images on real nodes: containerd starts them unpulled, and every engine pulls them whole."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import pytest

from images.layers.lazy.formats import FORMATS, FormatName
from images.oci.model import TABLE_DIGEST
from tests import need
from tests.engines.lab import World, new_world
from tests.engines.lazy_place import built, node
from tests.engines.podman_place import podman_storage
from tests.engines.real_registry import serving
from tests.engines.small_build import NUMPY, PASSWORD, PIP, TORCH, Source
from tests.engines.test_build_without_engine import ASKED, NO_ENGINE, build, run
from tests.kit.private_index import Index, make_wheel, serve
from tests.kit.programs import run_program

NAMES: tuple[FormatName, ...] = get_args(FormatName)
SITE = "/opt/venv/lib/python3.11/site-packages"
LARGE = random.Random(1).randbytes(6 << 20)
PROGRAM = ("/opt/venv/bin/python3", "-c", "import torch; print(torch.__version__)")


@pytest.fixture(scope="module")
def alone() -> Iterator[World]:
    with new_world(**NO_ENGINE) as found:
        yield found


@pytest.fixture(scope="module")
def index(source: Source) -> Iterator[Index]:
    code = {"torch/__init__.py": b"__version__ = '2.0.1+cu117'\n", "torch/large.bin": LARGE}
    wheels = (make_wheel(TORCH, code), NUMPY, PIP)
    with serve(source.authority, *wheels, password=PASSWORD) as found:
        yield found


@pytest.fixture(scope="module")
def lock(alone: World, source: Source, index: Index) -> Path:
    path = alone.place / "pylock.toml"
    done = run(alone, source, index, "lock", *ASKED, "--index", index.url, "--output", str(path))
    assert done.code == 0, done.err
    return path


@pytest.fixture(scope="module")
def snapshotter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("go"))


@pytest.fixture
def place() -> Iterator[Path]:
    """A short path: sockets have no long ones."""
    with TemporaryDirectory(prefix="l-") as found:
        yield Path(found)


@pytest.mark.parametrize("name", NAMES)
def test_another_user_with_nothing_here_gets_the_same_digest(
    name: FormatName, alone: World, source: Source, index: Index, lock: Path, tmp_path: Path
) -> None:
    words = ("--lock", str(lock), "--no-verify", f"--lazy={name}", "--output")
    one = build(alone, source, index, *words, str(tmp_path / "one"))
    with new_world(**NO_ENGINE) as fresh:
        place = fresh.place / "elsewhere"
        two = build(fresh, source, index, *words, str(place), TZ="Asia/Tokyo", LANG="C")
    assert one["image"]["digest"] == two["image"]["digest"]


def pushed(name: str, registry: str, alone: World, source: Source, index: Index, lock: Path) -> Any:
    words = ("--lock", str(lock), "--no-verify", f"--lazy={name}", "--push", registry)
    return build(alone, source, index, *words)


@pytest.mark.parametrize("name", NAMES)
def test_a_node_starts_it_before_it_is_pulled(
    name: FormatName, alone: World, source: Source, index: Index, lock: Path, snapshotter: Path,
    place: Path,
) -> None:  # fmt: skip
    with ExitStack() as stack:
        serves = stack.enter_context(ExitStack())
        registry = serves.enter_context(serving(place / "registry"))
        reference = f"{registry}/lazy:{name}"
        account = pushed(name, reference, alone, source, index, lock)
        again = pushed(name, reference, alone, source, index, lock)
        assert again["image"]["digest"] == account["image"]["digest"]
        assert {layer["how"] for layer in again["image"]["layers"]} == {"there"}
        here = stack.enter_context(node(snapshotter, place / "node", registry))
        here.pull_lazily(reference)
        assert here.mounted_lazily() == 2, "the base, and ours"
        done = here.run(reference, *PROGRAM, lazy=True)
        assert done.stdout.strip() == "2.0.1+cu117", done.stderr
        failed = [line for line in here.said() if line["level"] in {"warning", "error"}]
        assert failed == []
        serves.close()  # the registry goes away
        # what was read before still works
        words = (PROGRAM[0], "-c", f"print(len(open('{SITE}/torch/large.bin', 'rb').read()))")
        read = here.run(reference, *words, lazy=True)
        assert read.returncode != 0
        assert "OSError: [Errno 5] Input/output error" in read.stderr
        assert any("connection refused" in str(line.get("error")) for line in here.said())


@pytest.mark.parametrize("name", NAMES)
def test_every_engine_pulls_it_whole(
    name: FormatName, alone: World, source: Source, index: Index, lock: Path, snapshotter: Path,
    place: Path,
) -> None:  # fmt: skip
    with ExitStack() as stack:
        registry = stack.enter_context(serving(place / "registry"))
        reference = f"{registry}/lazy:{name}"
        pushed(name, reference, alone, source, index, lock)
        skopeo = need.program("skopeo")
        raw = [skopeo, "inspect", "--raw", "--tls-verify=false", f"docker://{reference}"]
        said = run_program(raw, check=True)
        layers = json.loads(said.stdout)["layers"]
        assert {layer["mediaType"] for layer in layers} == {FORMATS[name].media_type}
        assert all(TABLE_DIGEST in layer["annotations"] for layer in layers)
        copy = [skopeo, "copy", "--src-tls-verify=false", f"docker://{reference}"]
        target = f"oci:{place}/copied:1"
        subprocess.run([*copy, target], capture_output=True, check=True, timeout=120)
        here = stack.enter_context(node(snapshotter, place / "node", registry))
        pull = here.ctr("images", "pull", "--plain-http", reference)
        assert pull.returncode == 0, pull.stderr
        done = here.run(reference, *PROGRAM, lazy=False)
        assert done.stdout.strip() == "2.0.1+cu117", done.stderr
        # eStargz in parts is experimental in this Podman, and refused by later ones
        # https://github.com/podman-container-tools/podman/pull/24419
        for partial in ("false", "true") if name == "zstd" else ("false",):
            (place / partial).mkdir()
            env = stack.enter_context(podman_storage(place / partial))
            with (place / partial / "storage.conf").open("a") as file:
                file.write(
                    f'[storage.options]\npull_options = {{enable_partial_images = "{partial}"}}\n'
                )
            argv = [need.program("podman"), "run", "--rm", "--tls-verify=false", "--network=none"]
            ran = run_program([*argv, reference, *PROGRAM], env={**os.environ, **env}, timeout=300)
            assert ran.stdout.strip() == "2.0.1+cu117", f"partial: {partial}\n{ran.stderr}"
    asked = alone.provision("inspect", f"oci:{place}/copied:1", "--json")
    assert asked.account["verdict"] in {"fit", "no-verdict"}, asked.out
