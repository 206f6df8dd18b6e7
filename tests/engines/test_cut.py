"""`provision build --cut`: an image whose libraries have code for one GPU, and what reads it."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from images.layers.own import site_of
from tests import need
from tests.engines.lab import World, new_world
from tests.engines.small_build import Source
from tests.engines.test_build_without_engine import ASKED, NO_ENGINE, an_index, build, run
from tests.kit.fatbin_reader import digest_of_selection
from tests.kit.private_index import Index, make_wheel
from tests.unit.images.layers.test_cut import CODE, LIBRARY

pytestmark = pytest.mark.docker

WHEEL = make_wheel("gpucode-1.0-cp311-cp311-manylinux2014_x86_64.whl", {"gpucode/it.so": LIBRARY})
PATH = f"{site_of('3.11')}/gpucode/it.so"


def test_an_image_of_a_cut_library(source: Source, tmp_path: Path) -> None:
    umoci, skopeo = need.program("umoci"), need.program("skopeo")
    with an_index(source, WHEEL) as index, new_world(**NO_ENGINE) as world:
        account, bom = made(world, source, index, tmp_path / "image")
        zstd, _ = made(world, source, index, tmp_path / "zstd", "--compression", "zstd")
        seen = [
            world.provision("inspect", f"oci:{tmp_path}/image", "--gpu", gpu, "--json").account
            for gpu in ("8.6", "8.0")
        ]
        by_engine = run(
            world, source, index, "build", "--cut", "A40", "--builder", "docker", *ASKED
        )
    copied = f"oci:{tmp_path}/copy:1"
    for argv in (
        [skopeo, "--insecure-policy", "copy", f"oci:{tmp_path}/image", copied],
        [umoci, "raw", "unpack", "--rootless", "--image", f"{tmp_path}/copy:1",
         str(tmp_path / "root")],
    ):  # fmt: skip
        subprocess.run(argv, capture_output=True, check=True, timeout=120)
    now = (tmp_path / "root" / PATH).read_bytes()
    assert now != LIBRARY
    assert digest_of_selection(now, 86) == digest_of_selection(LIBRARY, 86)
    digest = base64.urlsafe_b64encode(hashlib.sha256(now).digest()).rstrip(b"=").decode()
    record = tmp_path / "root" / site_of("3.11") / "gpucode-1.0.dist-info" / "RECORD"
    assert f"gpucode/it.so,sha256={digest},{len(LIBRARY)}" in record.read_text().splitlines()
    (library,) = account["image"]["cut"]["libraries"]
    assert library["sha256"] == hashlib.sha256(now).hexdigest()
    assert library["after_bytes"] == len(CODE["sm_86"])
    assert zstd["image"]["cut"] == account["image"]["cut"]
    assert account["plan"]["gpus"][0]["compute_capability"] == "8.6"
    assert library["sha256"] in bom
    assert seen[0]["verdict"] != "unfit"
    assert (seen[1]["verdict"], "sm_86 alone" in json.dumps(seen[1])) == ("unfit", True)
    assert (by_engine.code, "--cut changes" in by_engine.err) == (2, True)


def made(world: World, source: Source, index: Index, place: Path, *words: str) -> tuple[Any, str]:
    """An image for an A40, in a directory; its account and its bill of materials."""
    account = build(
        world, source, index, *ASKED, "--index", index.url, "--with", "gpucode", "--driver",
        "535.104.05", "--cut", "A40", "--no-verify", "--output", str(place), *words,
    )  # fmt: skip
    return account, Path(account["documents"]["sbom"]).read_text()
