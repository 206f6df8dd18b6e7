"""The independent measurement: its calls against a simulated device, its comparison, its words."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import gpu_agree
from bench.cuda_by_hand import FORMATS, Cuda, CudaError, Times
from bench.gpu_agree import Case, add, document, in_turn, main, write
from tests import fake_cuda
from tests.kit.cases import cases

GEMM = {"fp64": 20e12, "fp32": 100e12, "tf32": 400e12, "fp16": 100e12, "bf16": 100e12}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_cuda.build(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def fake(library: Path) -> Any:
    loaded = ctypes.CDLL(str(library))
    loaded.fake_now.restype = ctypes.c_double
    return loaded


@pytest.fixture
def cuda(library: Path, fake: Any) -> Iterator[Cuda]:
    made = Cuda(str(library), str(library), clock=fake.fake_now)
    yield made
    made.close()
    assert fake.fake_alive() == 0, "memory, events, a stream or a handle were not given back"


@pytest.fixture
def matrices(fake: Any) -> Iterator[tuple[int, int]]:
    """Two matrices of 1024 x 1024 numbers of up to 8 bytes, as somebody else has made them."""
    pointers = [ctypes.c_void_p(), ctypes.c_void_p()]
    for pointer in pointers:
        assert fake.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(8 << 20)) == 0
    yield pointers[0].value or 0, pointers[1].value or 0
    for pointer in pointers:
        assert fake.cudaFree(pointer) == 0


def rates(times: Times, amount: float) -> set[int]:
    """Per mille of the right rate, by either clock."""
    return {round(1000 * amount / spent) for spent in (*times.events, *times.wall)}


@pytest.mark.parametrize("dtype", FORMATS)
def test_products_are_timed_rightly(cuda: Cuda, matrices: tuple[int, int], dtype: str) -> None:
    times = cuda.gemm(dtype, 1024, *matrices, repeats=5)
    assert len(times.events) == len(times.wall) == 5
    assert rates(times, 2.0 * 1024**3 / GEMM[dtype]) <= {999, 1000, 1001}


def test_copies_within_memory_are_timed_rightly(cuda: Cuda) -> None:
    times = cuda.copy_within(1 << 26, repeats=3)
    assert rates(times, 2 * (1 << 26) / 2000e9) <= {999, 1000, 1001}


@pytest.mark.parametrize(("way", "rate"), [("h2d_pinned", 25e9), ("d2h_pinned", 20e9)])
def test_copies_to_and_from_the_host_are_timed_rightly(cuda: Cuda, way: str, rate: float) -> None:
    assert rates(cuda.transfer(way, 1 << 24, repeats=3), (1 << 24) / rate) <= {999, 1000, 1001}


def test_versions_are_asked_for(cuda: Cuda) -> None:
    wanted = {"cuda_runtime": "12.8", "cuda_driver": "12.9", "cublas": "12.11.10"}
    assert cuda.versions() == wanted


@pytest.mark.parametrize("call", ["cudaMalloc", "cudaMemcpyAsync"])
def test_a_call_that_fails_is_told_and_all_is_given_back(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setenv("FAKE_CUDA_FAIL", call)
    with pytest.raises(CudaError, match=call):
        cuda.copy_within(1 << 20, repeats=1)


def test_matrices_that_are_not_there_are_refused(cuda: Cuda) -> None:
    with pytest.raises(CudaError, match="cublasGemmEx: cuBLAS status 7"):
        cuda.gemm("fp32", 1024, 16, 32, repeats=1)


def test_a_device_that_is_not_there_is_told(library: Path) -> None:
    with pytest.raises(CudaError, match="cudaSetDevice: error 1"):
        Cuda(str(library), str(library), 3)


# Comparing


def case(suite: float, events: float, wall: float) -> Case:
    return Case("gemm bf16", "TFLOP/s", 8192, [suite] * 3, [events] * 3, [wall] * 3)


@cases(
    "found agrees",
    ("as one", case(790, 788, 787), True),
    ("within three per cent", case(811, 788, 788), True),
    ("the suite measures more", case(812, 788, 788), False),
    ("the suite measures less", case(764, 788, 788), False),
    ("the clocks differ", case(788, 788, 760), False),
)
def test_what_agrees(found: Case, *, agrees: bool) -> None:
    assert found.agrees() is agrees
    assert document([found], {"gpu": "X"}, "2026-11-21T00:00:00Z")["agreed"] is agrees


def test_nothing_compared_is_no_agreement() -> None:
    assert document([], {}, "2026-11-21T00:00:00Z")["agreed"] is False


def test_one_odd_sample_does_not_decide() -> None:
    found = Case("x", "GB/s", 1, [100, 101, 500], [100, 100, 100], [100, 99, 1])
    assert found.agrees()


def test_seconds_become_rates() -> None:
    found = Case("memory_copy", "GB/s", 1000)
    add(found, Times((0.5, 0.25), (1.0,)), 2.0)
    assert (found.events, found.wall) == ([4.0, 8.0], [2.0])


def test_both_take_turns_in_beginning() -> None:
    order: list[str] = []
    in_turn(3, lambda: order.append("a"), lambda: order.append("b"))
    assert "".join(order) == "abbaab"


# The command

FACTS = {"gpu": "NVIDIA H200", "driver": "580.1"}


def pretend(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[tuple[int, int, int]]:
    asked = []

    def measure(*words: int) -> Any:
        asked.append(words)
        if isinstance(answer, Exception):
            raise answer
        return answer, FACTS

    monkeypatch.setattr(gpu_agree, "measure", measure)
    return asked  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("found", "code"), [(case(790, 788, 787), 0), (case(900, 788, 787), 1)], ids=["one", "differ"]
)
def test_results_are_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: Case, code: int
) -> None:
    asked = pretend(monkeypatch, [found])
    assert main(["--gpu", "1", "--rounds", "2", "--repeats", "3", "--out", str(tmp_path)]) == code
    assert asked == [(1, 2, 3)]
    [path] = tmp_path.iterdir()
    assert path.name.endswith("-nvidia-h200.json")
    written = json.loads(path.read_text())
    assert written["environment"] == FACTS
    assert written["agreed"] is (code == 0)
    assert written["cases"][0]["suite"] == found.suite


@cases(
    "problem",
    ("no GPU", gpu_agree.NothingToMeasureError("no GPU visible")),
    ("no torch", ImportError("No module named 'torch'")),
    ("a call fails", CudaError("cudaMalloc: error 2: out of memory")),
    ("torch fails", RuntimeError("CUDA error: x\nmore lines")),
)
def test_nothing_compared_is_said_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    problem: Exception,
) -> None:
    pretend(monkeypatch, problem)
    assert main(["--out", str(tmp_path)]) == 7
    said = capsys.readouterr().err
    assert said == f"gpu_agree: nothing was compared: {str(problem).splitlines()[0]}\n"
    assert not list(tmp_path.iterdir())


def test_a_second_run_of_a_day_takes_the_firsts_place(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    for hour in ("10", "11"):
        write(folder, document([case(1, 1, 1)], FACTS, f"2026-11-21T{hour}:00:00Z"))
    [path] = folder.iterdir()
    assert path.name == "2026-11-21-nvidia-h200.json"
    assert json.loads(path.read_text())["date"].startswith("2026-11-21T11")
