"""Memory that a framework takes at its start, running out of it, and blocks that must be kept."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tests.kit.cases import cases
from tests.unit.verify.checks.test_judges import holds
from verify.backends.jax import takes as jax_takes
from verify.backends.tensorflow import takes as tensorflow_takes
from verify.checks.memory import patterns
from verify.checks.memory.free import HeldMemory, judge_before
from verify.checks.memory.patterns import BlockDifference, KeptBlocks, keep
from verify.checks.memory.recovery import KEPT, MemoryRequest, attempt, is_refusal, judge_recovery
from verify.device import cuda_memory
from verify.model.check import Status

PASS, FAIL, SKIP = Status.PASS, Status.FAIL, Status.SKIP
GB = 10**9
OOM = "RESOURCE_EXHAUSTED: Out of memory allocating 160000000000 bytes."


def asked(refused: str | None = OOM, wrong: int = 0, **more: Any) -> MemoryRequest:
    return MemoryRequest(160 * GB, refused, wrong, more.pop("total", 65536), **more)


@cases(
    "reading status word",
    ("refused passes", asked(), PASS, "a request for 160 GB is refused"),
    ("nothing stays held", asked(kept=0), PASS, ""),
    ("a library's workspace is no leak", asked(kept=32 << 20), PASS, ""),
    ("less is held than before", asked(kept=-5 * GB), PASS, ""),
    ("a part stays held", asked(kept=int(160 * GB * KEPT) + 1), FAIL, "are not freed"),
    ("no word of it", asked("RuntimeError: INTERNAL: x"), FAIL, "is not an out-of-memory error"),
    ("wrong afterwards", asked(wrong=3), FAIL, "3 of 65536 results"),
    ("no answer proves nothing", asked(total=0), FAIL, "0 of 0 results"),
    ("nothing computes afterwards", asked(raised="RuntimeError: illegal memory access"), FAIL,
     "a kernel accessed memory"),
    ("granted: oversubscribed memory is no fault", asked(None), SKIP, "WSL"),
    ("granted, and wrong afterwards", asked(None, wrong=1), FAIL, "1 of 65536"),
)  # fmt: skip
def test_recovery(reading: MemoryRequest, status: Status, word: str) -> None:
    holds(judge_recovery(reading, "cuda"), status, word)


@pytest.mark.parametrize(
    "text",
    [
        OOM,
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 158.00 GiB.",
        "OOM when allocating tensor with shape[9,9] and type uint8 on /device:GPU:0 by allocator",
        "ResourceExhaustedError: {{function_node __wrapped__Fill}} failed to allocate memory",
        "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to",
        "MemoryError: Unable to allocate 32.0 PiB for an array with shape (36028797018963968,)",
    ],
)
def test_how_frameworks_say_that_memory_is_short(text: str) -> None:
    assert is_refusal(text)


@pytest.mark.parametrize("text", ["ValueError: too large", "INTERNAL: launch failed", ""])
def test_other_errors_are_no_refusal(text: str) -> None:
    assert not is_refusal(text)


def test_an_attempt_is_made_between_two_products() -> None:
    done: list[str] = []

    def ask() -> object:
        done.append("asked")
        raise MemoryError("Unable to allocate")

    def multiply() -> tuple[int, int]:
        done.append("multiplied")
        return 0, 65536

    found = attempt(GB, ask, multiply, iter([5, 7]).__next__)
    assert done == ["multiplied", "asked", "multiplied"]
    assert found == MemoryRequest(GB, "MemoryError: Unable to allocate", 0, 65536, kept=2)


# What is free before


@cases(
    "held error status word",
    ("free", [HeldMemory(0, "A", 79 * GB, 80 * GB)], "", PASS, "; X takes all"),
    ("in use", [HeldMemory(0, "A", 9 * GB, 80 * GB)], "", SKIP, "is in use"),
    ("CUDA does not report", [], "cuInit: Error 999", SKIP, "cuInit: Error 999"),
    ("no GPU after all", [], "", SKIP, "shows no GPU"),
)
def test_free_before_the_start(
    held: list[HeldMemory], error: str, status: Status, word: str
) -> None:
    holds(judge_before(held, error, "X takes all"), status, word)


@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({}, "75 %"),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".90"}, ".90"),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, "on demand"),
        ({"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, "for each array"),
    ],
)
def test_what_jax_takes(environ: dict[str, str], word: str) -> None:
    assert word in jax_takes(environ)


def test_what_tensorflow_takes() -> None:
    assert "at most 4096 MB" in tensorflow_takes([8192.0, 4096.0], growing=True)
    assert "growth is on in this run" in tensorflow_takes([], growing=True)
    assert "nearly all" in tensorflow_takes([], growing=False)


class FakeCuda:
    """As much of libcuda as is read: two GPUs of 80 GB. `fails` is a call that returns 999."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.now, self.held = fails, -1, 0

    def __getattr__(self, name: str) -> Any:
        if name not in ("cuInit", "cuCtxSetCurrent"):
            raise AttributeError(name)
        return lambda *_: self.code(name)

    def code(self, name: str) -> int:
        return 999 if name == self.fails else 0

    def cuDeviceGetCount(self, number: Any) -> int:  # noqa: N802
        number._obj.value = 2
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        device._obj.value = index
        return 0

    def cuDeviceGetName(self, buffer: Any, _size: int, _device: Any) -> int:  # noqa: N802
        buffer.value = b"NVIDIA A100"
        return 0

    def cuDeviceGetUuid(self, raw: Any, device: Any) -> int:  # noqa: N802
        raw._obj[:] = bytes([device.value] * 16)
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:  # noqa: N802
        context._obj.value, self.now = 1, device.value
        self.held += 1
        return 0

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> int:  # noqa: N802
        free._obj.value, total._obj.value = (self.now + 1) * GB, 80 * GB
        return self.code("cuMemGetInfo_v2")

    def cuDevicePrimaryCtxRelease_v2(self, _device: Any) -> int:  # noqa: N802
        self.held -= 1
        return 0


def test_cuda_tells_what_is_free_of_each_gpu() -> None:
    library = FakeCuda()
    first, second = cuda_memory.read(lambda _: library)
    assert (first.free, second.free, first.total) == (GB, 2 * GB, 80 * GB)
    assert second.uuid == "GPU-01010101-0101-0101-0101-010101010101"
    assert second.name == "NVIDIA A100"
    assert library.held == 0


def test_a_cuda_that_does_not_tell_says_which_call_failed() -> None:
    with pytest.raises(cuda_memory.CudaMemoryError, match="cuMemGetInfo_v2: Error 999"):
        cuda_memory.read(lambda _: FakeCuda("cuMemGetInfo_v2"))
    with pytest.raises(cuda_memory.CudaMemoryError, match="cuInit: Error 999"):
        cuda_memory.read(lambda _: FakeCuda("cuInit"))
    with pytest.raises(cuda_memory.CudaMemoryError, match="libcuda has no cuInit"):
        cuda_memory.read(lambda _: object())
    with pytest.raises(cuda_memory.CudaMemoryError, match="libcuda"):
        cuda_memory.read(lambda _: ctypes.CDLL("libcuda-that-is-not-there.so.1"))


# Blocks


def blocks(count: int, *, most: int = 99, wrong: dict[int, int] | None = None) -> KeptBlocks:
    """Blocks that are their own numbers. `wrong` has those that come back with so many faults."""

    def write(first: int, inverted: bool) -> tuple[int, bool]:  # noqa: FBT001
        if first >= most * patterns.BLOCK:
            raise RuntimeError("out of memory")
        return first, inverted

    def read(block: tuple[int, bool], first: int, inverted: bool) -> BlockDifference:  # noqa: FBT001
        assert block == (first, inverted)
        return BlockDifference((wrong or {}).get(first // patterns.BLOCK, 0), 3, -1, 1)

    return keep(KeptBlocks(0, "A", count * patterns.BLOCK * patterns.WORD), write, read)


def test_every_block_is_written_and_read_twice() -> None:
    assert blocks(5).bytes == 5 * patterns.BLOCK * patterns.WORD
    assert blocks(5).wrong_words == 0


def test_the_first_wrong_word_is_named_and_all_are_counted() -> None:
    found = blocks(5, wrong={2: 4, 4: 1})
    assert found.wrong_words == 5
    assert found.offset == (2 * patterns.BLOCK + 3) * patterns.WORD
    assert (found.expected, found.found) == ("0xffffffffffffffff", "0x0000000000000001")


def test_where_memory_ends_one_block_is_given_up() -> None:
    assert blocks(9, most=6).bytes == 5 * patterns.BLOCK * patterns.WORD
    with pytest.raises(RuntimeError):
        blocks(9, most=1)
