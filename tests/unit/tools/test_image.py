"""The image of gpu-provision itself: which wheels are in it, and what a container starts with."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from images.layers.own import PREFIX, FilesLayer
from images.oci.assemble import image_config
from images.oci.model import read_object
from images.wheels.remote_file import Wheel
from provision.catalog.rows.bases import DebianSuite
from tests.kit.cases import cases
from tests.kit.local_index import pure
from tests.unit.images.layers.test_base_facts import debian, image
from tools.image import NAME, LockedWheelsError, recipe_of, wheels_in

SUITE = DebianSuite(suite="s", release="1", python="3.11", glibc="2.31", source="")
HOST = "https://index.example/files"


def lock(*files: str) -> str:
    """What uv writes for one package with these wheels."""
    rows = "".join(
        f'  {{ url = "{HOST}/{name}", hashes = {{ sha256 = "{digest_of(name)}" }} }},\n'
        for name in files
    )
    return (
        'lock-version = "1.0"\ncreated-by = "uv"\n'
        f'[[packages]]\nname = "fast"\nversion = "2.0"\nwheels = [\n{rows}]\n'
    )


def digest_of(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


X86 = "fast-2.0-cp311-cp311-manylinux_2_28_x86_64.whl"
ARM = "fast-2.0-cp311-cp311-manylinux_2_28_aarch64.whl"
NEW = "fast-2.0-cp311-cp311-manylinux_2_34_x86_64.whl"
LOCKED = "".join(f"    --hash=sha256:{digest_of(name)} \\\n" for name in (X86, ARM, NEW))


@cases(
    "arch expected",
    ("the newest that the C library of the release has", "x86_64", X86),
    ("that of the other architecture, wherever it is built", "aarch64", ARM),
)
def test_each_architecture_gets_its_wheels(arch: str, expected: str) -> None:
    (found,) = wheels_in(lock(NEW, X86, ARM), SUITE, arch, LOCKED)
    assert (found.name, found.version) == ("fast", "2.0")
    assert (found.url, found.sha256) == (f"{HOST}/{expected}", digest_of(expected))


def test_a_file_that_is_not_locked_is_refused() -> None:
    with pytest.raises(LockedWheelsError, match=re.escape(f"{HOST}/{X86} is not among")):
        wheels_in(lock(X86), SUITE, "x86_64", LOCKED.replace(digest_of(X86), "0" * 64))


@dataclass
class Wheels:
    """Wheels of a name each, on the disk."""

    folder: Path

    def of(self, *names: str) -> list[Wheel]:
        found = []
        for name in names:
            file, data = pure(name.replace("-", "_"), "1.0")
            (self.folder / name).write_bytes(data)
            digest = hashlib.sha256(data).hexdigest()
            found.append(
                Wheel(name=name, version="1.0", url=f"{HOST}/{file}", size=None, sha256=digest)
            )
        return found

    def fetch(self, wheel: Wheel) -> Path:
        return self.folder / wheel.name


def test_the_image_starts_the_command_in_an_environment_of_its_own(tmp_path: Path) -> None:
    wheels, base = Wheels(tmp_path), image(debian())
    made = recipe_of(base, base, wheels.of(NAME, "rich"), "3.11", wheels.fetch)
    config = read_object(image_config(base, (), made.settings), "it")["config"]
    assert (config["Entrypoint"], config["Cmd"]) == (["provision"], ["--help"])
    (path,) = (line for line in config["Env"] if line.startswith("PATH="))
    assert path.startswith(f"PATH=/{PREFIX}/bin:/")
    environment, *layers = made.sources
    assert isinstance(environment, FilesLayer)
    assert not [one.path for one in environment.entries if one.path.startswith("usr/")]
    names = [[wheel.name for wheel in layer.wheels] for layer in layers]
    # what changes is above the rest, and byte code above both
    assert names == [["rich"], [NAME], [NAME, "rich"]]


def test_sizes_that_an_index_states_do_not_change_the_layers(tmp_path: Path) -> None:
    wheels, base = Wheels(tmp_path), image(debian())
    silent = wheels.of("a", "b", "c")
    stated = [replace(wheel, size=10_000_000) for wheel in silent]
    keys = [
        [layer.key for layer in recipe_of(base, base, given, "3.11", wheels.fetch).sources]
        for given in (silent, stated)
    ]
    assert keys[0] == keys[1]
