"""Whether the disks can hold a build, before anything is fetched."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images.errors import DiskFullError
from images.oci.model import host_platform
from images.store.fetch import Fetcher
from images.store.store import Store
from provision.build import disk_space
from provision.build.destination import Destination
from provision.build.disk_space import BuildSpace, Need, check_disk_space, needs_of
from provision.build.load_check import LoadCheck
from tests.kit.cases import cases

GB = 10**9
STORE, IMAGES, ROOT = Path("/cache"), Path("/data/images"), Path("/cache/roots")
WHEELS = Need(directory=STORE, size=2 * GB, what="wheels")
UNPACKING = Need(directory=ROOT, size=6 * GB, what="unpacking")


@cases(
    "destination root more",
    ("one's own layout, tested in a sandbox", Destination(kind="local"), ROOT,
     (Need(directory=IMAGES, size=GB, what="layers"), UNPACKING)),
    ("a directory, not tested", Destination(kind="layout", where="/out/d"), None,
     (Need(directory=Path("/out/d"), size=GB, what="layers"),)),
    ("an archive, which is written from its layers",
     Destination(kind="archive", where="/out/i.tar"), ROOT,
     (Need(directory=Path("/out"), size=2 * GB, what="the archive"), UNPACKING)),
    ("a squashfs, of all layers", Destination(kind="squashfs", where="/out/i.sqfs"), None,
     (Need(directory=Path("/out"), size=3 * GB, what="the squashfs"),)),
    ("a registry: only to test it", Destination(kind="registry", where="r.example/t:1"), ROOT,
     (UNPACKING,)),
    ("an engine's disk", Destination(kind="engine"), ROOT, (UNPACKING,)),
)  # fmt: skip
def test_what_a_build_writes(
    destination: Destination, root: Path | None, more: tuple[Need, ...]
) -> None:
    found = needs_of(
        fetched=2 * GB, written=GB, packed=3 * GB, store=STORE, destination=destination,
        images=IMAGES, root=root,
    )  # fmt: skip
    assert found == (WHEELS, *more)


@cases(
    "free freed said no_verify",
    ("just enough", 8, 0, "", None),
    ("enough once unused files are removed", 3, 5, "", None),
    ("too little without a test, too", 1, 0, "needs about 8.0 GB", False),
    ("too little in total", 3, 4,
     ("has 7.0 GB free; this build needs about 8.0 GB there: 2.0 GB for "
      "wheels, 6.0 GB for unpacking"), True),
    ("enough for each, not for both", 7, 0, "needs about 8.0 GB", True),
)  # fmt: skip
def test_a_disk_must_hold_all_of_a_build(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    free: int,
    freed: int,
    said: str,
    *,
    no_verify: bool | None,
) -> None:
    now = [free * GB]
    monkeypatch.setattr(disk_space, "_free", lambda _: now[0])

    def free_up(needed: int) -> None:
        assert needed == 8 * GB
        now[0] += freed * GB

    needs = [
        Need(directory=tmp_path / "cache", size=2 * GB, what="wheels"),
        Need(directory=tmp_path / "cache" / "roots", size=6 * GB, what="unpacking"),
        Need(directory=Path("/nonexistent"), size=0, what="layers"),
    ]
    if not said:
        check_disk_space(needs, free_up)
        return
    with pytest.raises(DiskFullError, match=said) as caught:
        check_disk_space(needs, free_up)
    assert str(tmp_path) in caught.value.message
    assert ("--no-verify" in caught.value.fix) == no_verify
    assert (caught.value.code, caught.value.exit_code) == ("disk-full", 4)


@cases(
    "missing verify architecture total",
    ("wheels, layers and the root", True, True, host_platform().architecture, 5 + 8 + 16),
    ("not tested", True, False, host_platform().architecture, 5 + 8),
    ("an image that this machine does not run", True, True, "another", 5 + 8),
    ("nothing new: the root may be there", False, True, host_platform().architecture, 5 + 1),
)
def test_an_image_is_refused_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, missing: bool, verify: bool,
    architecture: str, total: int,
) -> None:  # fmt: skip
    sandbox = SimpleNamespace(runner=SimpleNamespace(storage=lambda: tmp_path / "roots"))
    monkeypatch.setattr(disk_space, "choose_runner", lambda **_: sandbox)
    monkeypatch.setattr(disk_space, "_free", lambda _: 0)
    source = SimpleNamespace(key="k", about_bytes=7 * GB)
    base = SimpleNamespace(
        layers=[SimpleNamespace(blob=SimpleNamespace(size=GB))],
        platform=SimpleNamespace(architecture=architecture),
    )
    recipe: Any = SimpleNamespace(sources=[source], base=base)
    places = BuildSpace(
        destination=Destination(kind="local"), images=tmp_path, state=tmp_path, engine=None,
        verify=verify, has=lambda _: False,
    )  # fmt: skip
    layers: Any = [source] if missing else []
    with pytest.raises(DiskFullError, match=f"needs about {total}(.0)? GB"):
        places.check(recipe, layers, lambda _: None, fetched=5 * GB, make_room=lambda _: None)


def test_a_wheel_of_several_layers_is_fetched_and_counted_once(tmp_path: Path) -> None:
    wheel: Any = SimpleNamespace(
        name="six",
        version="1",
        sha256="sha256:" + "1" * 64,
        size=7,
        url="https://i.example/six-1-py3-none-any.whl",
    )
    layers: Any = [SimpleNamespace(wheels=(wheel,)), SimpleNamespace(wheels=(wheel,))]
    total: list[int] = []
    asked: list[object] = []
    progress: Any = SimpleNamespace(will_fetch=total.append)
    fetcher: Any = SimpleNamespace(prefetch=lambda wheels, _: asked.extend(wheels))
    subject: Any = SimpleNamespace(requested=frozenset())
    store: Any = None
    LoadCheck(subject, store, progress).prefetch(fetcher, layers)
    assert (total, asked) == ([7], [wheel])
    with Store.open(tmp_path) as opened, Fetcher(opened) as real:
        assert real.missing([wheel, wheel]) == [wheel]
