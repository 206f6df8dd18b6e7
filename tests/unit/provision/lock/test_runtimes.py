"""For which CUDA a wheel is, from the names in it: nothing but the needed parts is downloaded."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import pytest

from images.inspect.archive import WheelArchive
from provision.lock import runtimes
from provision.lock.runtimes import NeededCuda, needed_in
from tests.kit.cases import cases
from tests.kit.elf_maker import elf
from tests.kit.local_index import wheel
from tests.kit.wheel_maker import InMemory, targets

CUDA = "Classifier: Environment :: GPU :: NVIDIA CUDA :: 12\n"
CODE = bytes(8) + targets("sm_90")


def names(*found: str) -> bytes:
    """Constants of a library, beyond the part that every library is read for."""
    return bytes(runtimes.READ_BYTES) + b"".join(b"\0" + one.encode() + b"\0" for one in found)


def needed(
    libraries: Mapping[str, bytes], *, name: str = "speech", version: str = "1.0", text: str = CUDA
) -> NeededCuda | None:
    """What a wheel with these libraries needs."""
    tags = "cp311-cp311-manylinux_2_17_x86_64"
    source = InMemory(wheel(name, version, tags, text, libraries))
    return needed_in(WheelArchive(source), 16, lambda: source.bytes_read)


def test_a_library_that_is_opened_by_name_is_a_need() -> None:
    library = elf(wants=["dlopen"], extra=names("libcublas.so.12", "libcuda.so.1") + CODE)
    found = needed({"speech.libs/libspeech-0123abcd.so.4.1": library})
    assert found is not None
    assert found.cudas == ("12",)
    assert found.shown_by == "speech.libs/libspeech-0123abcd.so.4.1 opens libcublas.so.12 by name"


@cases(
    "path library text",
    ("only the driver's", "speech/_core.so",
     elf(wants=["dlopen"], extra=names("libcuda.so.1", "libnvidia-ml.so.1", "libc.so.6")), CUDA),
    ("it calls no dlopen", "speech/_core.so", elf(wants=["open"], extra=names("libcublas.so.12")),
     CUDA),
    ("a library of others", "speech.libs/libnvblas-0123abcd.so.12",
     elf(wants=["dlopen"], extra=names("libcublas.so.12")), CUDA),
    ("the device code's own texts", "speech/_core.so",
     elf(wants=["dlopen"], extra=names() + CODE + b"\0libcublas.so.12\0"), CUDA),
    ("the package names CUDA in an extra and its description alone", "speech/_core.so",
     elf(wants=["dlopen"], extra=names("libcublas.so.12")),
     'Requires-Dist: cupy-cuda12x; extra == "cuda12x"\n\nRuns on CUDA with an extra.'),
    ("no library for Linux", "speech/_core.so", b"MZ" + names("libcublas.so.12"), CUDA),
)  # fmt: skip
def test_what_a_library_does_not_open_is_no_need(path: str, library: bytes, text: str) -> None:
    assert needed({path: library}, text=text) is None


@cases(
    "libraries",
    ("one library tries both",
     {"a.so": elf(wants=["dlopen"], extra=names("libcublas.so.11", "libcublas.so.12"))}),
    ("a library for each",
     {"a.so": elf(needed=["libcudart.so.12"]), "b.so": elf(needed=["libcudart.so.13"])}),
)  # fmt: skip
def test_candidates_fit_every_cuda(libraries: dict[str, bytes]) -> None:
    found = needed(libraries)
    assert found is not None
    assert all(map(found.fits, ("11.8", "12.6", "13.0")))


def test_a_library_that_is_needed_says_so_however_many_are_opened() -> None:
    library = elf(needed=["libnvrtc.so.13"], wants=["dlopen"], extra=names("libcublas.so.12"))
    found = needed({"speech/_core.so": library})
    assert found == NeededCuda(("13",), "speech/_core.so needs libnvrtc.so.13")


FAMILY = ("118", "121", "124", "130")


@cases(
    "name version fit unfit",
    ("the nearest", "quants", "0.40", "11.8 11.7 12.6 13.2", "10.2 14.0"),
    ("exactly one", "bitsandbytes", "0.44.1", "11.8 12.1 13.0", "12.6 12.0"),
    ("the nearest from 0.50 on", "bitsandbytes", "0.50.0", "12.6 12.9", "10.2"),
)
def test_a_library_for_each_cuda_fits_these_alone(
    name: str, version: str, fit: str, unfit: str
) -> None:
    libraries = {f"{name}/lib{name}_cuda{one}.so": elf() for one in FAMILY}
    libraries[f"{name}/lib{name}_cpu.so"] = elf()
    found = needed(libraries, name=name, version=version)
    assert found is not None
    assert [cuda for cuda in f"{fit} {unfit}".split() if found.fits(cuda)] == fit.split()
    assert found.shown_by == f"its newest library is {name}/lib{name}_cuda130.so"


def test_major_versions_in_names_are_a_family() -> None:
    found = needed({f"hook_cu{one}.abi3.so": elf() for one in (12, 13)} | {"hook.abi3.so": elf()})
    assert found is not None
    assert found.cudas == ("12", "13")


@pytest.mark.parametrize("path", ["speech/_sm90_cuda118.so", "speech/libmath_cu12.so"])
def test_one_name_with_a_cuda_is_no_family(path: str) -> None:
    assert needed({path: elf()}) is None


def test_no_more_is_read_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "_MOST_OPENED_BYTES", 1 << 20)
    random_bytes = random.Random(5).randbytes(6 << 20)
    library = elf(wants=["dlopen"], extra=random_bytes + names("libcublas.so.12"))
    tags = "cp311-cp311-manylinux_2_17_x86_64"
    source = InMemory(wheel("speech", "1.0", tags, CUDA, {"speech/_core.so": library}))
    assert needed_in(WheelArchive(source), 16, lambda: source.bytes_read) is None
    assert source.bytes_read < 4 << 20


def damaged() -> Iterator[bytes]:
    """A library with bytes changed at random: no reader may fail on it."""
    whole = elf(wants=["dlopen"], extra=names("libcublas.so.12")[-4096:] + CODE)
    draw = random.Random(37)
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(draw.randrange(1, 6)):
            data[draw.randrange(4, 700)] = draw.randrange(256)
        yield bytes(data)


def test_a_damaged_library_says_nothing_or_what_it_names() -> None:
    for data in damaged():
        found = needed({"speech/_core.so": data})
        assert found is None or found.cudas in {(), ("12",)}
