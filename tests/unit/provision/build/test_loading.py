"""Libraries that will not load are refused before the image has a name."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import pytest

from images.inspect.contents import read_image
from images.inspect.facts import facts_from_json, facts_to_json, read_wheel_facts
from images.inspect.image import conclude
from images.layers.install import InstallLocation
from images.layers.transcode import WheelLayer
from images.oci.sources import Image
from images.store.errors import OfflineError
from images.store.local import local_path
from images.store.store import Store
from images.wheels.remote_file import Wheel
from provision.build import load_reader, loading
from provision.build.loading import LoadSubject, LoadVerdict, WillNotLoadError, check_loading
from provision.verification.inspection.report import make_report
from tests.kit.cases import cases
from tests.kit.elf_maker import elf
from tests.kit.fake_engine import PLAN
from tests.kit.image_maker import Files, image_of, installed
from tests.kit.layer_maker import PLACE, Piece, craft, pieces_of
from tests.unit.images.inspect.test_image_needs import MODULE, SITE, program

CHECK, SET_DEVICE = "_ZN3c105checkEv", "_ZN3c104cuda9SetDeviceEi"
ENV = {"PATH": "/opt/venv/bin:/usr/bin", "VIRTUAL_ENV": "/opt/venv"}
BASE: Files = {
    "usr/bin/python3.11": program(defines=["PyErr_Occurred"], needed=["libc.so.6"]),
    "usr/lib/libc.so.6": elf(
        soname="libc.so.6", provides=["libc.so.6", "GLIBC_2.34"], defines=["puts@@GLIBC_2.34"]
    ),
    "lib": "usr/lib",
}
LIBC10 = elf(soname="libc10.so", defines=[CHECK, SET_DEVICE])
TORCH = {
    "torch/lib/libc10.so": LIBC10,
    f"torch/{MODULE}": elf(needed=["libc10.so"], rpath="$ORIGIN/lib"),
}
VISION = elf(
    needed=["libc10.so", "libc.so.6"],
    versions={"libc.so.6": ["GLIBC_2.34"]},
    wants=[CHECK, SET_DEVICE, "PyErr_Occurred", "puts@GLIBC_2.34"],
)


def fetched(wheel: Wheel) -> Path:
    path = local_path(wheel.url)
    assert path is not None, "a wheel is not downloaded to be judged"
    return path


class Lab:
    """Wheels in a store, and an image of them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.packages: dict[str, tuple[str, Files, tuple[str, ...]]] = {}
        self.told: list[str] = []
        self.asked: tuple[str, ...] = ("torchvision",)
        self.base = BASE
        self.local: Path | None = None
        self.plan = PLAN

    def add(self, name: str, version: str, files: Mapping[str, bytes], *requires: str) -> None:
        self.packages[name] = (version, files, requires)

    def check(
        self,
        *,
        without: str = "",
        fetch: Callable[[Wheel], Path] | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> LoadVerdict | None:
        """Judge it; the wheel of `without` is not in the store. With `fetch` all are downloaded."""
        self.told.clear()
        wheels = [self._wheel(name, keep=name != without) for name in self.packages]
        layer = WheelLayer(
            wheels=tuple(wheels),
            place=InstallLocation(**PLACE),
            exclude_unneeded=False,
            fetch=fetch or fetched,
        )

        subject = LoadSubject(
            plan=self.plan._replace(requirements=self.asked),
            layers=[layer],
            base=self.image(),
            python="/usr/bin/python3.11",
            environment=ENV,
        )
        return check_loading(
            subject,
            self.store,
            tell=self.told.append,
            fetching=[wheel.sha256 for wheel in wheels] if fetch is not None else (),
            stopped=stopped,
        )

    def forget_verdicts(self) -> None:
        for path in self.store.directory.rglob("load-verdicts/*.json"):
            path.unlink()

    def image(self) -> Image:
        return image_of(self.base, env={"PATH": "/usr/bin"})

    def inspected(self) -> dict[str, str]:
        """What `inspect` says of the finished image: the status of each check."""
        files = dict(self.base) | {"opt/venv/bin/python3": "/usr/bin/python3.11"}
        for name, (version, own, requires) in self.packages.items():
            files |= installed(name, version, own, site=SITE, requires=requires)
        report = make_report(conclude(read_image(image_of(files, env=ENV))), (), seconds=1.0)
        return {one["id"]: one["status"] for one in report["checks"]}

    def _wheel(self, name: str, *, keep: bool) -> Wheel:
        version, files, requires = self.packages[name]
        said = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        said += "".join(f"Requires-Dist: {one}\n" for one in requires)
        pieces = [Piece(name=path, content=data) for path, data in files.items()]  # type: ignore[arg-type]
        data = craft(pieces_of(*pieces, name=name, version=version, metadata=said))
        sha256 = hashlib.sha256(data).hexdigest()
        file = f"{name}-{version}-cp311-cp311-linux_x86_64.whl"
        if self.local is not None:
            self.local.mkdir(exist_ok=True)
            path = self.local / file
            path.write_bytes(data)
            return Wheel(
                name=name, version=version, url=path.as_uri(), size=len(data), sha256=sha256
            )
        if keep:
            self.store.add("wheel", sha256, iter([data]), file_name=file)
        url = f"https://index.invalid/{file}"
        return Wheel(name=name, version=version, url=url, size=len(data), sha256=sha256)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """Every wheel is large, so that only what is asked for is read at first."""
    monkeypatch.setattr(load_reader, "_SMALL_BYTES", 0)
    with Store.open(tmp_path) as store:
        found = Lab(store)
        found.add("torch", "2.0.1", TORCH)
        found.add("torchvision", "0.15.2", {f"torchvision/{MODULE}": VISION}, "torch")
        yield found


def refused(lab: Lab) -> WillNotLoadError:
    with pytest.raises(WillNotLoadError) as raised:
        lab.check()
    assert raised.value.code == "will-not-load"
    assert "fail" in lab.inspected().values(), "inspect says the same of the finished image"
    return raised.value


def test_packages_that_fit_are_counted(lab: Lab) -> None:
    found = lab.check()
    assert found == LoadVerdict(words="libraries: 4 required symbols found")
    assert set(lab.inspected().values()) <= {"pass", "skip"}


def test_one_symbol_taken_from_a_library_is_named(lab: Lab) -> None:
    lab.add(
        "torch", "2.0.1", {**TORCH, "torch/lib/libc10.so": elf(soname="libc10.so", defines=[CHECK])}
    )
    error = refused(lab)
    assert (
        f"torchvision 0.15.2: {MODULE} needs c10::cuda::SetDevice ({SET_DEVICE})" in error.message
    )
    assert "which torch 2.0.1 does not define" in error.message
    assert "--with torchvision==VERSION" in error.fix


def test_one_soname_changed_is_named(lab: Lab) -> None:
    library = elf(soname="libc10.so.2", defines=[CHECK, SET_DEVICE])
    module = elf(needed=["libc10.so.2"], rpath="$ORIGIN/lib")
    lab.add("torch", "2.0.1", {"torch/lib/libc10.so.2": library, f"torch/{MODULE}": module})
    error = refused(lab)
    assert f"torchvision 0.15.2: {SITE}/torchvision/{MODULE} needs libc10.so," in error.message
    assert "--with torchvision==VERSION" in error.fix


@cases(
    "kind programs needed fix",
    ("a base of Debian packages takes more of them", "bootstrap", [],
     ["libXrender.so.1", "libSM.so.6", "libXrender.so.1"], "Add --apt libxrender1 --apt libsm6"),
    ("an image with apt-get takes those that are known", "registry", ["apt-get"],
     ["libXrender.so.1", "libodd.so.4"], "Add --apt libxrender1"),
    ("an image without apt-get takes none", "registry", ["microdnf"], ["libXrender.so.1"],
     "or a base that has libXrender.so.1"),
    ("nothing installs them in an image of this machine", "local", ["apt-get"], ["libXrender.so.1"],
     "or a base that has libXrender.so.1"),
    ("nobody knows which package has it", "bootstrap", [], ["libodd.so.4"],
     "or a base that has libodd.so.4"),
)  # fmt: skip
def test_the_debian_packages_with_missing_libraries_are_named(
    lab: Lab,
    kind: Literal["bootstrap", "registry", "local"],
    programs: list[str],
    needed: list[str],
    fix: str,
) -> None:
    assert PLAN.base is not None
    lab.plan = PLAN._replace(base=PLAN.base._replace(kind=kind))
    lab.base = {**BASE, **{f"usr/bin/{name}": program() for name in programs}}
    lab.add("torchvision", "0.15.2", {f"torchvision/{MODULE}": elf(needed=needed)})
    assert refused(lab).fix.endswith((fix, f"{fix}: --base IMAGE"))


def test_the_wheel_of_a_neighbour_release_is_named(lab: Lab) -> None:
    newer = elf(needed=["libc10.so"], wants=[CHECK, "_ZN3c104goneEv"])
    lab.add("torchvision", "0.16.0", {f"torchvision/{MODULE}": newer}, "torch==2.1.0")
    error = refused(lab)
    assert "torchvision 0.16.0: " in error.message
    assert "c10::gone" in error.message
    assert "requires torch==2.1.0, and 2.0.1 is installed" in error.message
    assert error.fix.startswith("Install torch==2.1.0, or ")


def test_a_glibc_that_the_base_does_not_have_is_named(lab: Lab) -> None:
    newer = elf(needed=["libc.so.6"], versions={"libc.so.6": ["GLIBC_2.38"]})
    lab.add("torchvision", "0.15.2", {f"torchvision/{MODULE}": newer})
    error = refused(lab)
    assert "needs GLIBC_2.38 of /usr/lib/libc.so.6" in error.message
    assert "--base IMAGE" in error.fix


def test_a_damaged_library_is_named(lab: Lab) -> None:
    lab.add("torchvision", "0.15.2", {f"torchvision/{MODULE}": VISION[:100]})
    error = refused(lab)
    assert "unreadable ELF file" in error.message
    assert error.fix == "Name another release: --with torchvision==VERSION"


def test_what_the_framework_needs_of_its_own_packages_is_not_judged(lab: Lab) -> None:
    library = elf(soname="libc10.so", defines=[CHECK, SET_DEVICE], needed=["libcublas.so.11"])
    lab.add("torch", "2.0.1", {**TORCH, "torch/lib/libc10.so": library}, "nvidia_cublas")
    cublas = elf(soname="libcublas.so.11", wants=["gone"])
    lab.add("nvidia_cublas", "11.0", {"nvidia/cublas/lib/libcublas.so.11": cublas})
    assert lab.check() == LoadVerdict(words="libraries: 4 required symbols found")
    assert not any("cublas" in told for told in lab.told), "nor read, as nothing names it"


def test_everything_is_read_before_a_symbol_counts_as_missing(lab: Lab) -> None:
    library = elf(soname="libc10.so", needed=["libmore.so"], rpath="$ORIGIN/../../more")
    lab.add("torch", "2.0.1", {**TORCH, "torch/lib/libc10.so": library}, "more")
    more = elf(soname="libmore.so", defines=[CHECK, SET_DEVICE])
    lab.add("more", "1.0", {"more/libmore.so": more})
    assert lab.check() == LoadVerdict(words="libraries: 4 required symbols found")
    assert lab.told[-1] == "reading the libraries of more"


def test_a_wheel_of_this_machine_is_judged_where_it_is(lab: Lab, tmp_path: Path) -> None:
    newer = elf(needed=["libc10.so"], wants=["_ZN3c104goneEv"])
    lab.add("torchvision", "0.16.0", {f"torchvision/{MODULE}": newer}, "torch")
    lab.local = tmp_path / "wheels"
    assert "c10::gone" in refused(lab).message


def test_the_framework_alone_is_not_read(lab: Lab) -> None:
    lab.asked = ()
    assert lab.check() is None
    assert lab.told == []


def test_a_package_that_needs_nothing_of_the_framework_leaves_it_unread(lab: Lab) -> None:
    lab.add("torchvision", "0.15.2", {f"torchvision/{MODULE}": elf(wants=["PyErr_Occurred"])})
    assert lab.check() is not None
    assert lab.told == ["reading the libraries of torchvision", "reading the libraries of the base"]


def test_a_wheel_is_read_once(lab: Lab) -> None:
    first = lab.check()
    assert "reading the libraries of torch" in lab.told
    lab.forget_verdicts()
    assert lab.check() == first
    assert lab.told == []


@pytest.mark.parametrize("warns", [pytest.param(False, id="sound"), pytest.param(True, id="warns")])
def test_the_same_image_is_judged_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, *, warns: bool
) -> None:
    if warns:
        lab.add("more", "1", {f"more/{MODULE}": elf(needed=["libgone.so"])}, "torch")
    first = lab.check()
    assert first is not None
    assert (first.warning is not None) == warns
    monkeypatch.setattr(loading, "LoadReader", None)
    assert lab.check() == first
    assert lab.check(without="torch") == first, "no wheel has to be here for it"


def test_another_image_is_judged_anew(lab: Lab) -> None:
    assert lab.check() is not None
    gone = elf(needed=["libc10.so"], wants=["_ZN3c104goneEv"])
    lab.add("torchvision", "0.16.0", {f"torchvision/{MODULE}": gone}, "torch")
    assert "c10::gone" in refused(lab).message
    assert "c10::gone" in refused(lab).message, "what is refused is not kept"


def test_a_damaged_verdict_is_made_anew(lab: Lab) -> None:
    first = lab.check()
    for path in lab.store.directory.rglob("load-verdicts/*.json"):
        path.write_bytes(path.read_bytes().replace(b"words", b"wards"))
    assert lab.check() == first


def test_damaged_facts_are_read_anew(lab: Lab, tmp_path: Path) -> None:
    first = lab.check()
    memos = [*tmp_path.rglob("load-facts/*.json")]
    assert len(memos) == 3
    for memo in memos:
        memo.write_bytes(memo.read_bytes().replace(b"GLIBC", b"GLIBD").replace(b"size", b"sizf"))
    lab.forget_verdicts()
    assert lab.check() == first
    assert len(lab.told) == 3


def test_an_optional_file_that_cannot_load_is_reported(lab: Lab) -> None:
    plugin = elf(soname="libplugin.so", wants=["gone"])
    files = {f"torchvision/{MODULE}": VISION, "torchvision/libplugin.so": plugin}
    lab.add("torchvision", "0.15.2", files, "torch")
    found = lab.check()
    assert found is not None
    assert "1 optional file cannot use all that they name" in found.words


def test_what_a_package_brings_is_a_warning(lab: Lab) -> None:
    broken = elf(needed=["libcudart.so.12"])
    lab.add("xformers", "0.0.22", {f"xformers/{MODULE}": broken}, "torch")
    found = lab.check()
    assert found is not None
    assert found.warning is not None
    assert "xformers 0.0.22: " in found.warning[0]
    assert "libcudart.so.12" in found.warning[0]
    message, fix = found.warning
    assert found.to_json()["warning"] == {"message": message, "fix": fix}
    lab.asked = ("torchvision", "xformers")
    assert "libcudart.so.12" in refused(lab).message


def test_what_the_driver_may_define_is_not_judged(lab: Lab) -> None:
    module = elf(needed=["libcuda.so.1"], wants=["cuInit"])
    lab.add("torchvision", "0.15.2", {f"torchvision/{MODULE}": module}, "torch")
    found = lab.check()
    assert found is not None
    assert "1 not judged" in found.words or "1 symbol must come" in found.words


def test_wheels_that_are_not_here_are_named(lab: Lab) -> None:
    found = lab.check(without="torch")
    assert found is not None
    assert found.words.startswith("libraries: not checked, torch is not downloaded")


def test_wheels_are_read_as_they_arrive(lab: Lab) -> None:
    torch_is_here = threading.Event()
    read: list[list[str]] = []

    def fetch(wheel: Wheel) -> Path:
        if wheel.name == "torch" and not torch_is_here.is_set():
            read.append([*lab.told])
            torch_is_here.set()
        path = lab.store.wheel(wheel.sha256)
        assert path is not None
        return path

    assert lab.check(fetch=fetch) == LoadVerdict(words="libraries: 4 required symbols found")
    before = ["reading the libraries of torchvision", "reading the libraries of the base"]
    assert read == [before], "before torch has arrived"


def test_a_download_that_fails_is_the_error(lab: Lab) -> None:
    def fetch(wheel: Wheel) -> Path:
        raise OfflineError(wheel.name, fix="")

    with pytest.raises(OfflineError):
        lab.check(fetch=fetch)


@pytest.mark.parametrize("least", [pytest.param(0, id="apart"), pytest.param(1 << 40, id="here")])
def test_nothing_more_is_read_once_the_build_has_failed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    monkeypatch.setattr(load_reader, "_LEAST_BYTES", least)
    monkeypatch.setattr(load_reader, "_PAUSE_S", 0.0)
    assert lab.check(stopped=lambda: True) is None
    assert [*lab.store.directory.rglob("load-facts/*.json")] == []


def test_small_wheels_and_what_was_asked_for_are_read_first() -> None:
    def of(name: str, size: int | None) -> Wheel:
        return Wheel(name=name, version="1", url="https://x.invalid", size=size, sha256=name)

    wheels = [of("torch", 1 << 30), of("Torch.Vision", 1 << 30), of("six", 9), of("numpy", None)]
    assert load_reader.read_first(wheels, {"torch-vision"}) == {"Torch.Vision", "six", "numpy"}


def test_several_processes_read_the_same(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    first = lab.check()
    kept = {path.name: path.read_bytes() for path in lab.store.directory.rglob("load-facts/*.json")}
    for path in lab.store.directory.rglob("load-facts/*.json"):
        path.unlink()
    lab.forget_verdicts()
    monkeypatch.setattr(load_reader, "_LEAST_BYTES", 0)
    assert lab.check() == first
    again = {
        path.name: path.read_bytes() for path in lab.store.directory.rglob("load-facts/*.json")
    }
    assert again == kept


def test_what_a_process_cannot_read_is_read_here(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_reader, "_LEAST_BYTES", 0)
    monkeypatch.setattr("sys.executable", "/bin/false")
    assert lab.check() == LoadVerdict(words="libraries: 4 required symbols found")


def test_kept_facts_are_those_that_were_read(tmp_path: Path) -> None:
    path = tmp_path / "it.whl"
    content = elf(
        needed=["liba.so"],
        runpath="$ORIGIN:/x",
        versions={"liba.so": ["A_1"]},
        provides=["libit.so", "IT_1"],
        wants=["a@A_1", "b"],
        calls=["c"],
        defines=["d@@IT_1", "e@IT_1", "f"],
    )
    files = [Piece(name="it/a.so", content=content), Piece(name="it/b.so", content=content[:90])]
    path.write_bytes(craft(pieces_of(*files)))
    found = read_wheel_facts(str(path))
    assert set(found.files) == {"it/a.so", "it/b.so"}
    assert facts_from_json(facts_to_json(found)) == found


@cases(
    "change",
    ("no files", {"files": 1}),
    ("a file without members", {"files": {"a": {}}}),
    ("no links", {"links": None}),
    ("no base64", {"cache": "!"}),
    ("not packed", {"cache": "AAAA"}),
)
def test_invalid_facts_are_none(change: dict[str, object]) -> None:
    assert facts_from_json({"files": {}, "links": {}, "cache": None, **change}) is None
