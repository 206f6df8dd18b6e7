"""`provision bundle`, and a build from its file where there is no network at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import docker
import pytest

from provision.build.offline.bundlefile import BundledFile, BundleReader, PackedPart, write_bundle
from tests import ROOT, need
from tests.engines.lab import Done, World, finish, new_world
from tests.engines.real_registry import serving
from tests.engines.small_build import Source, left_over
from tests.engines.test_build_without_engine import ASKED, NO_ENGINE, an_index, run
from tests.kit.private_index import Index, make_wheel
from tests.kit.programs import run_program

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def index(source: Source) -> Iterator[Index]:
    with an_index(source) as found:
        yield found


@pytest.fixture(scope="module")
def here() -> Iterator[World]:
    """The side with a network."""
    with new_world(**NO_ENGINE) as found:
        yield found


@pytest.fixture
def there() -> Iterator[World]:
    """The other side: nothing in its store, not even a base."""
    with new_world(**NO_ENGINE) as found:
        (found.cache / "gpu-provision" / "bases").unlink()
        yield found


@pytest.fixture(scope="module")
def packed(here: World, source: Source, index: Index) -> Any:
    """The account of a bundle, and the image that was built from its lock with the network."""
    lock, path = here.place / "pylock.toml", here.place / "small.bundle"
    words = (*ASKED, "--index", index.url, "--output", str(lock))
    assert run(here, source, index, "lock", *words).code == 0
    done = run(here, source, index, "bundle", "--lock", str(lock), "--output", str(path), "--json")
    assert done.code == 0, done.err
    out = str(here.place / "image")
    built = run(here, source, index, "build", "--lock", str(lock), "--no-verify", "--json",
                "--output", out)  # fmt: skip
    assert built.code == 0, built.err
    return {**done.account, "digest": built.account["image"]["digest"], "lock": str(lock)}


def without_network(world: World, *words: str) -> Done:
    """Run the product in a network namespace of its own, which has no route, not even a loopback
    that is up.
    """
    unshare = [need.program("unshare", "util-linux"), "--user", "--map-current-user", "--net"]
    probe = run_program([*unshare, "cat", "/proc/net/route"])
    if probe.returncode:
        need.lacking(f"no network namespace can be made here: {probe.stderr.strip()}")
    assert probe.stdout.splitlines()[1:] == [], "a route, below the table's head"
    return finish(
        subprocess.Popen(
            [*unshare, sys.executable, "-m", "provision", *words],
            cwd=ROOT,
            env={**world.env, "HOME": str(world.place)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    )


def test_it_lists_everything_by_its_digest(packed: Any) -> None:
    content = Path(packed["path"]).read_bytes()
    assert packed["sha256"] == hashlib.sha256(content).hexdigest()
    assert packed["size"] == len(content)
    tops = {row["path"].partition("/")[0] for row in packed["files"]}
    assert tops == {"pylock.toml", "base", "catalog", "suite", "wheels"}
    by_path = {row["path"]: row["sha256"] for row in packed["files"]}
    assert by_path["pylock.toml"] == packed["lock_sha256"]
    assert len([path for path in by_path if path.startswith("wheels/")]) == 3
    assert packed["start"] == ["  provision build --bundle small.bundle"]


def test_the_same_lock_gives_the_same_bytes(
    here: World, source: Source, index: Index, packed: Any
) -> None:
    again = str(here.place / "again.bundle")
    done = run(here, source, index, "bundle", "--lock", packed["lock"], "--output", again,
               "--offline", "--json")  # fmt: skip
    assert done.code == 0, done.err
    assert done.account["sha256"] == packed["sha256"]


def test_a_bundle_is_built_without_any_route(there: World, packed: Any) -> None:
    """From a file that cannot be written, into the same image as with the network; the suite runs
    in it (a torch that is only a name is unfit).
    """
    given = there.place / "given"
    given.mkdir()
    shutil.copy(packed["path"], given / "x.bundle")
    (given / "x.bundle").chmod(0o444)
    given.chmod(0o555)
    out = there.place / "image"
    words = ("build", "--bundle", str(given / "x.bundle"), "--output", str(out), "--json")
    done = without_network(there, *words, "--level", "quick")
    assert (done.code, done.account["verify"]["verdict"]) == (1, "unfit"), done.err
    assert done.account["verify"]["environment"]["python"].startswith("3.11")
    done = without_network(there, *words, "--no-verify")
    assert done.code == 0, done.err
    assert done.account["image"]["digest"] == packed["digest"]
    assert json.loads((out / "index.json").read_text())["manifests"]
    assert left_over(there) == []


def test_a_base_of_a_registry_is_in_the_bundle(
    here: World, there: World, source: Source, index: Index, packed: Any, tmp_path: Path
) -> None:
    """The base that another test made from packages, in a registry that is gone afterwards."""
    skopeo = need.program("skopeo")
    made = packed["plan"]["base"]["digest"].removeprefix("sha256:")
    archive = here.cache / "gpu-provision" / "bases" / f"{made}.tar"
    path, out = str(here.place / "registry.bundle"), str(here.place / "registry-image")
    with serving(tmp_path) as address:
        base = f"{address}/base:python3.11"
        to = ["--dest-tls-verify=false", f"docker-archive:{archive}", f"docker://{base}"]
        subprocess.run([skopeo, "--insecure-policy", "copy", *to], check=True, timeout=120)
        lock = str(here.place / "pylock.registry.toml")
        words = (*ASKED[:-1], base, "--index", index.url, "--output", lock)
        locked = run(here, source, index, "lock", *words)
        assert locked.code == 0, locked.err
        done = run(here, source, index, "bundle", "--lock", lock, "--output", path, "--json")
        assert done.code == 0, done.err
        built = run(here, source, index, "build", "--lock", lock, "--no-verify", "--json",
                    "--output", out)  # fmt: skip
        assert built.code == 0, built.err
    paths = [row["path"] for row in done.account["files"] if row["path"].startswith("base/")]
    assert len(paths) == 3, "manifest, configuration and layer"
    there_out = str(there.place / "image")
    asked = ("build", "--bundle", path, "--no-verify", "--output", there_out, "--json")
    done = without_network(there, *asked)
    assert done.code == 0, done.err
    assert done.account["image"]["digest"] == built.account["image"]["digest"]


def test_an_engine_that_is_there_gets_the_image(own_world: World, packed: Any) -> None:
    tag = "gpu-provision-test:bundle"
    words = ("build", "--bundle", packed["path"], "--tag", tag, "--no-verify", "--json")
    done = without_network(own_world, *words)
    assert done.code == 0, done.err
    assert done.account["builder"]["name"] == "oci"
    client = docker.DockerClient(base_url=own_world.env["DOCKER_HOST"], timeout=60)
    with contextlib.closing(client):
        found = client.images.get(tag)
        assert found.labels["org.gpu-provision.lock-sha256"] == packed["lock_sha256"]
        client.images.remove(tag, force=True)


def test_it_is_checked_without_a_build(there: World, packed: Any) -> None:
    done = there.provision("bundle", "--check", packed["path"], "--json")
    assert done.code == 0, done.err
    assert done.account["files"] == packed["files"]
    shown = there.provision("bundle", "--check", packed["path"])
    assert "undamaged" in shown.out


def rewritten(packed: Any, path: Path, change: Mapping[str, bytes | None]) -> Path:
    """The bundle with other content or without a file, and with a list that says so."""
    parts = []
    with BundleReader(Path(packed["path"])) as bundle:
        for file in bundle.files:
            content = change.get(file.path, bundle.content(file))
            if content is None:
                continue
            digest = hashlib.sha256(content).hexdigest()
            entry = BundledFile(path=file.path, size=len(content), sha256=digest)
            parts.append(PackedPart(file=entry, content=content))
    write_bundle(path, parts, lambda *_: None)
    return path


def lock_with(packed: Any, old: str, new: str) -> bytes:
    text = Path(packed["lock"]).read_text()
    assert old in text
    return text.replace(old, new).encode()


NUMPY = "wheels/numpy-1.26.4-py3-none-any.whl"
OTHER = make_wheel("numpy-1.26.4-py3-none-any.whl", {"numpy/__init__.py": b"evil"}).data


def test_what_is_not_the_lock_s_is_refused_and_nothing_is_kept(there: World, packed: Any) -> None:
    """Bundles whose own list is in order."""
    cases: dict[str, tuple[dict[str, bytes | None], str]] = {
        "a missing wheel": ({NUMPY: None}, f"it has no {NUMPY}"),
        "another wheel": ({NUMPY: OTHER}, "is not the wheel of its lock"),
        "no base": ({"base/image.tar": None}, "it has no base/image.tar"),
        "a base that is none": ({"base/image.tar": b"x" * 2048}, "its base is unreadable"),
        "no lock": ({"pylock.toml": None}, "it has no pylock.toml"),
        "a lock that is none": ({"pylock.toml": b"\xff"}, "is not a text"),
        "a lock for another base": (
            {"pylock.toml": lock_with(packed, 'kind = "bootstrap"', 'kind = "local"')},
            "is a path on this machine",
        ),
        "no suite": ({"suite/verify/__main__.py": None}, "it has no suite"),
        "no catalog": ({"catalog/gpus.json": None}, "its catalog is not one"),
        "a damaged catalog": ({"catalog/gpus.json": b"{"}, "its catalog is not one"),
    }
    for name, (change, said) in cases.items():
        path = rewritten(packed, there.place / "bad.bundle", change)
        done = there.provision("build", "--bundle", str(path), "--output", str(there.place / "no"))
        assert done.code == 2, f"{name}: {done.err}"
        assert said in " ".join(done.err.split()), name
        assert "fix" in done.err, name
    content = bytearray(Path(packed["path"]).read_bytes())
    content[len(content) // 2] ^= 1
    (there.place / "bad.bundle").write_bytes(content)
    done = there.provision("build", "--bundle", str(there.place / "bad.bundle"), "--json")
    assert (done.code, done.account["error"]["code"]) == (2, "bad-bundle")
    assert not (there.place / "no").exists()
    assert left_over(there) == []
    assert [p for p in (there.cache / "gpu-provision").rglob("*") if p.is_file()] == []


def test_a_bundle_that_does_not_go_with_this_machine_or_the_options(
    there: World, packed: Any
) -> None:
    path = packed["path"]
    for words, code, said in (
        (("--python", "3.12"), 2, "--bundle already determines what --python would choose"),
        (("--lock", packed["lock"]), 2, "--bundle and --lock cannot be used together"),
        (("--builder", "docker"), 2, "--bundle and --builder docker cannot be used together"),
    ):
        done = there.provision("build", "--bundle", path, *words)
        assert (done.code, said in " ".join(done.err.split())) == (code, True), done.err
    other = {"pylock.toml": lock_with(packed, 'arch = "x86_64"', 'arch = "aarch64"')}
    bad = rewritten(packed, there.place / "bad.bundle", other)
    done = there.provision("build", "--bundle", str(bad), "--json")
    assert done.code in {2, 3}, done.err
