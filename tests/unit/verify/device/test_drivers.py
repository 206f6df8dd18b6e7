"""The ctypes readers, against libraries that are plain Python objects."""

from __future__ import annotations

from typing import Any

from tests.kit.cases import cases
from verify.device import driver, nvml

MISSING = "{}: cannot open shared object file: No such file or directory"


class FakeNvml:
    """As much of NVML as is read. `lost` is a GPU that has fallen off the bus."""

    def __init__(self, *, count: int = 1, init: int = 0, lost: int | None = None) -> None:
        self.count, self.init, self.lost = count, init, lost
        self.open = 0

    def nvmlInit_v2(self) -> int:  # noqa: N802
        self.open += not self.init
        return self.init

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.open -= 1
        return 0

    def nvmlSystemGetDriverVersion(self, buffer: Any, _size: Any) -> int:  # noqa: N802
        buffer.value = b"515.65.01"
        return 0

    def nvmlSystemGetCudaDriverVersion_v2(self, number: Any) -> int:  # noqa: N802
        number._obj.value = 11070
        return 0

    def nvmlDeviceGetCount_v2(self, number: Any) -> int:  # noqa: N802
        number._obj.value = self.count
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        handle._obj.value = index.value + 1
        return 15 if index.value == self.lost else 0

    def nvmlDeviceGetName(self, _handle: Any, buffer: Any, _size: Any) -> int:  # noqa: N802
        buffer.value = b"NVIDIA A100"
        return 0

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, _size: Any) -> int:  # noqa: N802
        buffer.value = b"GPU-%d" % handle.value
        return 0

    def nvmlDeviceGetCudaComputeCapability(  # noqa: N802
        self, _handle: Any, major: Any, minor: Any
    ) -> int:
        major._obj.value, minor._obj.value = 8, 6
        return 0

    def nvmlDeviceGetMigMode(self, _handle: Any, _now: Any, _next: Any) -> int:  # noqa: N802
        return 3  # not supported


def test_nvml_is_read_and_shut() -> None:
    library = FakeNvml(count=2)
    seen = nvml.read(lambda _: library)
    assert (seen.driver, seen.cuda, seen.error) == ("515.65.01", "11.7", None)
    assert [gpu.uuid for gpu in seen.gpus] == ["GPU-1", "GPU-2"]
    assert seen.gpus[0] == nvml.NvmlGpu("NVIDIA A100", "GPU-1", "8.6", mig=None)
    assert library.open == 0


def test_a_lost_gpu_is_counted_and_nameless() -> None:
    seen = nvml.read(lambda _: FakeNvml(count=2, lost=1))
    assert seen.gpus[1].name is None
    assert seen.gpus[1].failure
    assert seen.error is None


def test_an_nvml_that_does_not_start_is_data() -> None:
    seen = nvml.read(lambda _: FakeNvml(init=18))
    assert seen == nvml.Nvml(found=True, error="nvmlInit_v2: NVML error (18)")


def _refuse(name: str) -> Any:
    raise OSError(MISSING.format(name))


def test_missing_libraries_are_data() -> None:
    assert not nvml.read(_refuse).found
    assert not driver.read(_refuse).found


class FakeCuda:
    """As much of libcuda as is read."""

    def __init__(self, init: int = 0, count: int = 2) -> None:
        self.init, self.count = init, count

    def cuDriverGetVersion(self, number: Any) -> int:  # noqa: N802
        number._obj.value = 12040
        return 0

    def cuInit(self, _flags: int) -> int:  # noqa: N802
        return self.init

    def cuDeviceGetCount(self, number: Any) -> int:  # noqa: N802
        number._obj.value = self.count
        return 0

    def cuGetErrorString(self, _code: int, text: Any) -> int:  # noqa: N802
        text._obj.value = b"system not yet initialized"
        return 0


@cases(
    "library count error",
    ("two devices", FakeCuda(), 2, None),
    ("no device is an answer", FakeCuda(init=100), 0, None),
    ("a fault is named", FakeCuda(init=802), None, "Error 802: system not yet"),
)
def test_the_cuda_driver(library: FakeCuda, count: int | None, error: str | None) -> None:
    seen = driver.read(lambda _: library)
    assert (seen.version, seen.count) == ("12.4", count)
    assert (seen.error or "").startswith(error or "")
    assert bool(seen.error) == bool(error)


class FakePeers(FakeCuda):
    """GPU 0 reads GPU 1's memory, and not the other way."""

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        device._obj.value = index + 10
        return 0 if index < self.count else 101

    def cuDeviceCanAccessPeer(self, answer: Any, source: Any, target: Any) -> int:  # noqa: N802
        answer._obj.value = (source.value, target.value) == (10, 11)
        return 0


@cases(
    "library pair reached",
    ("it does", FakePeers(), (0, 1), True),
    ("it does not", FakePeers(), (1, 0), False),
    ("there is no such GPU", FakePeers(), (0, 2), None),
    ("CUDA does not start", FakePeers(init=802), (0, 1), None),
    ("libcuda has no such function", FakeCuda(), (0, 1), None),
)
def test_peer_access(
    library: FakeCuda,
    pair: tuple[int, int],
    reached: bool | None,  # noqa: FBT001
) -> None:
    assert driver.reaches(*pair, lambda _: library) is reached


def test_peer_access_is_unknown_without_libcuda() -> None:
    assert driver.reaches(0, 1, _refuse) is None
