"""What `record.sh` measures beside the suite: `python3 -m tests.gpu.probes [--pretend] NAME`.

Prints a JSON line for each measurement: {"probe", "what", ...}; what cannot be done says why in
"error". Needs PyTorch only. With --pretend the GPU is the CPU, and the sizes are small.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
LOAD_S, READ_EVERY_S = 25.0, 0.1
CHILD_LIMIT_S = 20.0


class Probe:
    """One run: on a GPU, or pretended."""

    def __init__(self, name: str, *, pretended: bool) -> None:
        self.name = name
        self.pretended = pretended

    def say(self, what: str, **values: Any) -> None:
        sys.stdout.write(json.dumps({"probe": self.name, "what": what, **values}) + "\n")
        sys.stdout.flush()

    def size(self, real: int, small: int) -> int:
        return small if self.pretended else real

    @property
    def device(self) -> Any:
        import torch

        return torch.device("cpu" if self.pretended else "cuda")

    @contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """What fails in here is a line of its own, and the next is measured."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  any: it is what is recorded
            self.say(what, error=f"{type(error).__name__}: {error}"[:2000])

    def seconds(self, work: Callable[[], object], repeats: int = 5) -> float:
        """The median time of `work`, by the machine's clock around it, after one run."""
        import torch

        times = []
        for _ in range(1 + repeats):
            began = time.perf_counter()
            work()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        return statistics.median(times[1:])


def load(probe: Probe) -> None:
    """Products of bf16 at full power: the state ten times a second, counters before and after, and
    whether the same product has the same bits at the end.
    """
    import torch

    from verify.device import state

    side = probe.size(16384, 256)
    left, right = (torch.randn(side, side, device=probe.device).bfloat16() for _ in range(2))
    first = _bits(left @ right)
    before = state.read()
    rows: list[dict[str, Any]] = []
    over = threading.Event()

    def read() -> None:
        while not over.wait(READ_EVERY_S):
            rows.append(vars_of(state.read().gpus[0]))

    reader = threading.Thread(target=read)
    reader.start()
    products, began = 0, time.monotonic()
    try:
        while time.monotonic() - began < probe.size(int(LOAD_S), 1):
            for _ in range(10):
                left @ right
            torch.cuda.synchronize()
            products += 10
    finally:
        over.set()
        reader.join()
    took = time.monotonic() - began
    probe.say("rate", tflops=2 * side**3 * products / took / 1e12, seconds=took, side=side)
    probe.say("same bits", same=_bits(left @ right) == first)
    probe.say("before", **vars_of(before.gpus[0]))
    probe.say("after", **vars_of(state.read().gpus[0]))
    changing = {key for row in rows for key in row if row[key] != rows[0].get(key)}
    for row in rows:
        probe.say("during", **{key: row[key] for key in sorted(changing)})


def vars_of(gpu: Any) -> dict[str, Any]:
    """What is known of a GPU's state."""
    return {name: value for name, value in asdict(gpu).items() if value is not None}


def _bits(tensor: Any) -> str:
    import torch

    return hashlib.sha256(tensor.view(torch.int16).cpu().numpy().tobytes()).hexdigest()


def formats(probe: Probe) -> None:
    """The rate of each number format; the suite's numerics say whether the numbers are right."""
    import torch

    side = probe.size(8192, 64)
    make = {
        "fp64": torch.float64,
        "fp32": torch.float32,
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
    }

    def rate(what: str, work: Callable[[], object]) -> None:
        with probe.trying(what):
            took = probe.seconds(work)
            probe.say(what, tera_per_second=2 * side**3 / took / 1e12, side=side)

    for name, dtype in make.items():
        left = torch.randn(side, side, device=probe.device).to(dtype)
        rate(name, partial(torch.matmul, left, left))
    left = torch.randn(side, side, device=probe.device)
    torch.backends.cuda.matmul.allow_tf32 = True
    rate("tf32", lambda: left @ left)
    torch.backends.cuda.matmul.allow_tf32 = False
    with probe.trying("int8"):
        whole = torch.randint(-100, 100, (side, side), device=probe.device, dtype=torch.int8)
        rate("int8", lambda: torch._int_mm(whole, whole.t()))
    one = torch.ones((), device=probe.device)
    with probe.trying("fp8"):
        eight = left.to(torch.float8_e4m3fn)
        rows = torch.ones(side, 1, device=probe.device)
        scaled = torch._scaled_mm
        rate("fp8 scaled", lambda: scaled(eight, eight.t(), one, one, out_dtype=torch.bfloat16))
        rate(
            "fp8 rowwise",
            lambda: scaled(eight, eight.t(), rows, rows.t(), out_dtype=torch.bfloat16),
        )
    with probe.trying("grouped bf16"):
        many = torch.randn(4, side // 4, side // 4, device=probe.device).bfloat16()
        probe.say("grouped bf16", seconds=probe.seconds(lambda: torch._grouped_mm(many, many)))
    with probe.trying("nvfp4"):
        packed = torch.zeros(side, side // 2, device=probe.device, dtype=torch.uint8)
        four = packed.view(torch.float4_e2m1fn_x2)
        scales = torch.ones(side * side // 16, device=probe.device).to(torch.float8_e4m3fn)
        rate("nvfp4", lambda: torch._scaled_mm(four, four.t(), scales, scales))


def collective(probe: Probe) -> None:
    """One rank's all-reduce, 1 MiB to 8 GiB, of numbers whose sum is known; each is compared."""
    import torch
    import torch.distributed as dist

    store = dist.HashStore()
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    size = 1 << 20
    while size <= probe.size(8 * GIB, 4 << 20):
        with probe.trying(f"{size >> 20} MiB"):
            sent = torch.arange(size // 4, device=probe.device, dtype=torch.int32)
            data = sent.clone()
            took = probe.seconds(partial(dist.all_reduce, data), 3)
            began = time.perf_counter()
            same = bool((data == sent).all())
            compared = time.perf_counter() - began
            probe.say("all-reduce", bytes=size, seconds=took, same=same, compare_seconds=compared)
            del sent, data
        size *= 4 if size << 2 <= 8 * GIB else 2
    dist.destroy_process_group()


_FAULTS = {
    "illegal address": """
kernel = torch.cuda._compile_kernel(
    'extern "C" __global__ void wild(float* at) { at[1ull << 40] = 1; }', "wild")
kernel((1, 1, 1), (1, 1, 1), (torch.zeros(1, device="cuda"),))
torch.cuda.synchronize()
""",
    "assertion in a kernel": """
torch.zeros(4, device="cuda")[torch.tensor([9], device="cuda")]
torch.cuda.synchronize()
""",
    "endless kernel, killed": """
torch.cuda._sleep(1 << 50)
print("runs", flush=True)
time.sleep(3)
os.kill(os.getpid(), signal.SIGKILL)
""",
    "a limit of memory": """
torch.cuda.set_per_process_memory_fraction(0.01)
torch.zeros(1 << 34, dtype=torch.uint8, device="cuda")
""",
}


def faults(probe: Probe) -> None:
    """Programs that fail, each in a process of its own; what it said, what the kernel's log said,
    and whether the next program computes.
    """
    for what, code in _FAULTS.items():
        if probe.pretended:
            probe.say(what, error="a pretended GPU has no such fault")
            continue
        with probe.trying(what):
            known = _log()
            failed = _python("import os, signal, time, torch\n" + code)
            sound = _python("import torch; print(int(torch.ones(9, device='cuda').sum()))")
            probe.say(
                what,
                exit=failed.returncode,
                said=(failed.stdout + failed.stderr)[-3000:],
                log=_log()[len(known) :],
                next_computes=sound.stdout.strip() == "9",
            )


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=CHILD_LIMIT_S,
    )


def _log() -> list[str]:
    """The driver's lines of the kernel's log; none where it cannot be read."""
    done = subprocess.run(["dmesg"], capture_output=True, text=True, check=False, timeout=10)
    return [line for line in done.stdout.splitlines() if "NVRM" in line or "Xid" in line]


def convolutions(probe: Probe) -> None:
    """The error of fp32 convolutions by shape: in PyTorch with cuDNN's choice and its benchmark, in
    JAX at each level of XLA's autotuning.
    """
    import torch

    from verify.checks.numerics.convolution import _CASES

    torch.backends.cudnn.allow_tf32 = False
    for case in _CASES["full"]:
        torch.manual_seed(0)
        image = torch.randn(case.image).permute(0, 3, 1, 2).contiguous()
        weight = torch.randn(case.weight).permute(3, 2, 0, 1).contiguous()
        more = {"stride": case.stride, "padding": case.padding, "groups": case.groups}
        exact = torch.nn.functional.conv2d(image.double(), weight.double(), **more)
        for benchmark in (False, True):
            with probe.trying(case.name):
                torch.backends.cudnn.benchmark = benchmark
                moved = (image.to(probe.device), weight.to(probe.device))
                found = torch.nn.functional.conv2d(*moved, **more).cpu().double()
                error = float((found - exact).norm() / exact.norm())
                probe.say(case.name, by="cuDNN", benchmark=benchmark, relative_error=error)
    for level in range(5):
        with probe.trying(f"JAX, autotuning {level}"):
            flags = f"--xla_gpu_autotune_level={level}"
            done = subprocess.run(
                [sys.executable, "-c", _JAX_CONVOLUTION],
                env={**os.environ, "XLA_FLAGS": "" if probe.pretended else flags},
                capture_output=True,
                text=True,
                check=False,
                timeout=CHILD_LIMIT_S,
            )
            if done.returncode:
                probe.say(f"JAX, autotuning {level}", error=done.stderr[-1000:])
            else:
                probe.say(f"JAX, autotuning {level}", **json.loads(done.stdout))


_JAX_CONVOLUTION = """
import json
import jax, numpy
rng = numpy.random.default_rng(0)
errors = {}
with jax.default_matmul_precision("highest"):
    for side, channels in ((14, 16), (28, 32), (56, 64), (28, 256)):
        image = rng.standard_normal((4, channels, side, side)).astype("float32")
        weight = rng.standard_normal((64, channels, 3, 3)).astype("float32")
        found = numpy.asarray(jax.jit(
            lambda a, b: jax.lax.conv(a, b, (1, 1), "SAME"))(image, weight), "float64")
        padded = numpy.pad(image.astype("float64"), ((0, 0), (0, 0), (1, 1), (1, 1)))
        exact = sum(
            numpy.einsum("bchw,fc->bfhw", padded[:, :, y:y + side, x:x + side],
                         weight[:, :, y, x].astype("float64"))
            for y in range(3) for x in range(3))
        norm = numpy.linalg.norm
        errors[f"{channels}x{side}x{side}"] = float(norm(found - exact) / norm(exact))
print(json.dumps({"device": str(jax.devices()[0]), "relative_errors": errors}))
"""


def soak(probe: Probe) -> None:
    """How long the pattern test takes on half and on nearly all of the free memory."""
    import torch

    from verify.backends.pytorch import Place
    from verify.checks.memory.patterns import test

    place = Place("cpu" if probe.pretended else "cuda", 0)
    for share in (0.5, 0.9):
        with probe.trying(f"{share} of the free memory"):
            free = int(torch.cuda.mem_get_info()[0] * share)
            size = probe.size(free, 1 << 26)
            began = time.perf_counter()
            kept = test(place, size)
            took = time.perf_counter() - began
            probe.say("pattern", bytes=kept.bytes, wrong_words=kept.wrong_words, seconds=took)
            torch.cuda.empty_cache()


def hold(probe: Probe) -> None:
    """Hold memory and compute until killed."""
    import torch

    held = torch.ones(probe.size(60 * GIB, 1 << 20), dtype=torch.uint8, device=probe.device)
    side = probe.size(8192, 128)
    left = torch.randn(side, side, device=probe.device)
    while True:
        left @ left
        torch.cuda.synchronize()
        held[:1] += 1


PROBES = {
    one.__name__: one for one in (load, formats, collective, faults, convolutions, soak, hold)
}


def main(words: list[str]) -> int:
    """Run a probe, or with "verify" the suite."""
    pretended = "--pretend" in words
    name, *more = [word for word in words if word != "--pretend"]
    if pretended:
        from tests.mutations.pretended import pretend

        pretend("jax" if "jax" in more else "pytorch", 1)
    if name == "verify":
        from verify.commands.main import main as verify

        return verify(more)
    PROBES[name](Probe(name, pretended=pretended))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
