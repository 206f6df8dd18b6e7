"""PyTorch: its devices, and what they compute."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from typing import Any, Callable, ContextManager, List, Optional, Sequence, Tuple

from verify.backends import base, pytorch_formats, pytorch_numbers
from verify.backends.base import DTYPES, NAMES, ODD, Terms
from verify.backends.pytorch_formats import FORMATS
from verify.backends.pytorch_numbers import kind_of, operands, scaled, set_tf32, sums_in_bf16
from verify.backends.sight import Sight, judge_absent, look
from verify.backends.trainer import Trainer
from verify.device import same_gpu
from verify.device.telemetry import GpuState
from verify.model.check import Context, Outcome
from verify.model.measures import seconds_each
from verify.workloads.networks import Network

# torch's messages if a dtype has no kernel. Any other error is a failure.
NO_KERNEL = re.compile(
    r"not implemented for|not[ _]supported|only supported|unsupported|could not run .aten::"
    r"|could not create a primitive|requires compiling PyTorch with",
    re.IGNORECASE,
)


class Place(base.Place):
    """A device that torch computes on."""

    @property
    def backend(self) -> base.Backend:
        """PyTorch."""
        return BACKEND

    @property
    def device(self) -> Any:
        """The torch.device."""
        import torch

        return torch.device(self.kind, self.index) if self.is_gpu else torch.device("cpu")

    @property
    def capability(self) -> Optional[Tuple[int, int]]:
        """The compute capability; None on the CPU."""
        import torch

        return torch.cuda.get_device_capability(self.index) if self.is_gpu else None

    @property
    def card(self) -> str:
        """The GPU's name; "CPU" on the CPU."""
        import torch

        return str(torch.cuda.get_device_name(self.index)) if self.is_gpu else "CPU"

    def lacks(self, dtype: str) -> Optional[str]:
        """Why a dtype is not tried here."""
        import torch

        if dtype in FORMATS:
            return pytorch_formats.lacks(dtype, is_gpu=self.is_gpu) or super().lacks(dtype)
        if not hasattr(torch, NAMES[dtype]):
            return "torch {} has no {}".format(torch.__version__, NAMES[dtype])
        is_on_cpu = dtype == "bf16" and not self.is_gpu
        if is_on_cpu and sums_in_bf16(str(torch.__version__), torch.__config__.show()):
            return "torch {} sums it in bf16 on a CPU without AVX-512".format(torch.__version__)
        return super().lacks(dtype)

    def cannot_mix(self, dtype: str) -> Optional[str]:
        """Why mixed precision with a dtype is not tried here."""
        import torch

        if dtype == "fp16" and not self.is_gpu:
            with warnings.catch_warnings(record=True) as said_so:
                warnings.simplefilter("always")
                torch.autocast("cpu", dtype=torch.float16)
            if said_so or not hasattr(torch.amp, "GradScaler"):
                return "torch {} has no fp16 autocast on the CPU".format(torch.__version__)
        return super().cannot_mix(dtype)

    def scope(self) -> ContextManager[Any]:
        """Kernels and events are put here."""
        import torch

        return torch.cuda.device(self.index) if self.is_gpu else contextlib.nullcontext()

    def synchronize(self) -> None:
        """Return when all work given to the device is done."""
        import torch

        if self.is_gpu:
            torch.cuda.synchronize(self.index)

    def seconds(
        self, work: Callable[[], object], *, repeats: int, warm_up: int = 3, calls: int = 1
    ) -> List[float]:
        """Seconds of each call: from CUDA events on a GPU, from the clock on the CPU.

        Events are in the same stream as the work, so the time that Python needs to launch a kernel
        counts only if the device had to wait for it.
        """
        import torch

        if not self.is_gpu:
            several = work if calls == 1 else lambda: [work() for _ in range(calls)]
            found = seconds_each(several, repeats=repeats, warm_up=min(warm_up, 1))
            return [seconds / calls for seconds in found]
        with torch.cuda.device(self.index):
            for _ in range(warm_up * calls):
                work()
            pairs = []
            for _ in range(repeats):
                start = torch.cuda.Event(enable_timing=True)
                stop = torch.cuda.Event(enable_timing=True)
                start.record()
                for _ in range(calls):
                    work()
                stop.record()
                pairs.append((start, stop))
            torch.cuda.synchronize(self.index)
        return [start.elapsed_time(stop) / 1000 / calls for start, stop in pairs]

    def peak_bytes(self, work: Callable[[], object]) -> Optional[int]:
        """The peak memory that torch held during the work; None on the CPU, where it is unknown."""
        import torch

        if not self.is_gpu:
            work()
            return None
        torch.cuda.synchronize(self.index)
        torch.cuda.reset_peak_memory_stats(self.index)
        work()
        torch.cuda.synchronize(self.index)
        return int(torch.cuda.max_memory_allocated(self.index))

    def release(self) -> None:
        """Give cached memory back to the driver."""
        import torch

        if self.is_gpu:
            torch.cuda.empty_cache()

    def held_bytes(self) -> Optional[int]:
        """What torch has taken for tensors; None on the CPU."""
        import torch

        return int(torch.cuda.memory_allocated(self.index)) if self.is_gpu else None

    def cap(self, share: float) -> None:
        """Of the GPU's allocator."""
        import torch

        if self.is_gpu:
            free, total = torch.cuda.mem_get_info(self.index)
            torch.cuda.set_per_process_memory_fraction(min(1.0, share * free / total), self.index)

    def count_up(self, count: int) -> int:
        """In int64."""
        import torch

        return int(torch.arange(count, device=self.device).sum().item())

    def limit_bytes(self) -> Optional[int]:
        """All that the driver has."""
        import torch

        return int(torch.cuda.mem_get_info(self.index)[1]) if self.is_gpu else None

    def take(self, size: int) -> object:
        """Memory, of which nothing need be written."""
        import torch

        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def block(self, first: int, count: int, inverted: bool) -> Any:  # noqa: FBT001
        """In place, so that no second block is needed."""
        import torch

        last = first + count
        block = torch.arange(first, last, dtype=torch.int64, device=self.device).mul_(ODD)
        return block.bitwise_not_() if inverted else block

    def receive(self, block: Any) -> Any:
        """Into memory of its own, as a program moves a tensor to another GPU."""
        import torch

        return torch.empty_like(block, device=self.device).copy_(block)

    def differ(self, block: Any, right: Any) -> Tuple[int, int, int, int]:
        """How many words differ, the first of them, what it should be, and what it is."""
        import torch

        wrong = block != right
        count = int(wrong.sum().item())
        at = int(wrong.to(torch.uint8).argmax().item()) if count else 0
        return count, at, int(right[at].item()), int(block[at].item())

    def free_bytes(self) -> Optional[int]:
        """What the driver has free."""
        import torch

        return int(torch.cuda.mem_get_info(self.index)[0]) if self.is_gpu else None

    def cache_bytes(self) -> int:
        """As torch reads it."""
        import torch

        properties = torch.cuda.get_device_properties(self.index)
        return int(getattr(properties, "L2_cache_size", 0) or 0)

    def state_in(self, gpus: Sequence[GpuState]) -> Optional[GpuState]:
        """By UUID, where torch has it."""
        return same_gpu.find(self.index, gpus)

    def product(self, dtype: str, size: int) -> Callable[[], object]:
        """Into a third matrix that stays; fp8 gives bf16."""
        import torch

        left, right = operands(self, dtype, size)
        if dtype == "fp8":
            one = torch.ones((), device=self.device)
            multiply: Any = torch._scaled_mm  # noqa: SLF001  # there is no public name for it
            # The maker's figure is for sums kept in the tensor cores, as in a forward pass.
            schema = torch.ops.aten._scaled_mm.default._schema  # noqa: SLF001
            more = {"use_fast_accum": True} if "use_fast_accum" in str(schema) else {}
            kind = torch.bfloat16
            return lambda: multiply(left, right, scale_a=one, scale_b=one, out_dtype=kind, **more)
        out = torch.empty_like(left)
        return lambda: torch.mm(left, right, out=out)

    def copier(self, size: int) -> Callable[[], object]:
        """From one buffer to another."""
        import torch

        source = torch.randn(size // 4, device=self.device)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    def transfer(self, way: str, size: int) -> Callable[[], object]:
        """With pinned memory it is asynchronous. The content does not affect a link."""
        import torch

        pinned = way.endswith("pinned")
        host = torch.full((size,), 165, dtype=torch.uint8)
        host = host.pin_memory() if pinned else host
        there = torch.empty(size, dtype=torch.uint8, device=self.device)
        target, source = (there, host) if way.startswith("h2d") else (host, there)
        return lambda: target.copy_(source, non_blocking=pinned)

    def put(self, values: Any, dtype: str) -> Any:
        """A tensor of the host, rounded to a dtype, on the device."""
        rounded = pytorch_formats.put(values, dtype) if dtype in FORMATS else None
        return (values.to(kind_of(dtype)) if rounded is None else rounded).to(self.device)

    def get(self, values: Any) -> Any:
        """float64 on the host."""
        return values.detach().cpu().double()

    def multiply(self, left: Any, right: Any, dtype: str) -> Any:
        """The product, with sums in fp32 where torch can be asked for them."""
        set_tf32(on=dtype == "tf32")
        if dtype in FORMATS:
            return pytorch_formats.multiply(left, right, dtype)
        return scaled(left, right) if dtype == "fp8" else left @ right


class PyTorch(base.Backend):
    """PyTorch."""

    numbers = pytorch_numbers
    terms = Terms("PyTorch", "", "")
    dtypes = (*DTYPES, *FORMATS)
    layouts = ("contiguous", "channels_last")
    attentions = tuple(pytorch_numbers.ATTENTION)
    computes_references = True
    unordered = True

    def place(self, kind: str, index: int = 0) -> Place:
        """A device."""
        return Place(kind, index)

    @property
    def counts_as(self) -> str:
        """The module's name."""
        return "torch"

    def promised(self) -> Optional[int]:
        """It may have asked NVML alone."""
        return self.count()

    def architectures(self) -> List[str]:
        """In torch's binaries; the public function needs a GPU."""
        import torch

        listed = list(torch.cuda.get_arch_list())
        flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()  # noqa: SLF001
        return listed or (flags or "").split()

    def count(self) -> int:
        """How many GPUs torch lists."""
        import torch

        return int(torch.cuda.device_count())

    def look(self, context: Context) -> Sight:
        """Start CUDA through torch."""
        return look(context)

    def absent(self, seen: Sight) -> Optional[Outcome]:
        """As `sight` has it for torch."""
        return judge_absent(seen)

    def trainer(self, place: Any, network: Network, **options: Any) -> Trainer:
        """Torch's modules and optimisers."""
        from verify.backends.pytorch_training import TorchTrainer

        return TorchTrainer(place, network, **options)

    def use_one_thread(self, place: Any) -> None:
        """On the CPU."""
        import torch

        if not place.is_gpu:
            torch.set_num_threads(1)

    def allow_tf32(self, *, on: bool) -> None:
        """Of cuBLAS and cuDNN."""
        set_tf32(on=on)

    def ask_for_determinism(self) -> Optional[str]:
        """Also of cuBLAS, which reads its variable when it starts: the order of its sums may vary
        with several workspaces.
        """
        import torch

        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)  # noqa: FBT003
        torch.backends.cudnn.benchmark = False  # it would choose kernels by timing
        torch.backends.cudnn.deterministic = True
        return None

    def lacks_kernel(self, text: str, dtype: str, gpu: Optional[int]) -> bool:
        """A CPU may lack a dtype; of a GPU's fp8 depends on more than the capability, and so do the
        formats of their own functions.
        """
        if dtype in FORMATS:
            import torch

            capability = None if gpu is None else self.place("cuda", gpu).capability
            return pytorch_formats.is_absent(text, dtype, capability, torch.version.cuda)
        return NO_KERNEL.search(text) is not None and (gpu is None or dtype == "fp8")

    def sum_in_fp32(self) -> None:
        """Forbid sums in fp16 and bf16, which torch allows by default when it splits a product by
        its terms: with 64 parts their error exceeds what the rounding of one sum explains.
        """
        import torch

        for dtype in ("fp16", "bf16"):  # bf16's since torch 1.13
            name = "allow_{}_reduced_precision_reduction".format(dtype)
            if hasattr(torch.backends.cuda.matmul, name):
                setattr(torch.backends.cuda.matmul, name, False)

    def host(self, numbers: Any) -> Any:
        """A tensor, from nested lists."""
        import torch

        return torch.tensor(numbers, dtype=torch.float64)

    def draw(self, seed: int, *shapes: Sequence[int]) -> List[Any]:
        """Tensors, so that NumPy need not be there."""
        import torch

        source = torch.Generator().manual_seed(seed)
        return [torch.randn(*shape, generator=source, dtype=torch.float64) for shape in shapes]


BACKEND = PyTorch()


def find(context: Context) -> Tuple[Optional[Outcome], Place]:
    """As `Backend.find`."""
    return BACKEND.find(context)


def find_gpus(context: Context) -> Tuple[Optional[Outcome], Tuple[Place, ...]]:
    """As `Backend.find_gpus`."""
    return BACKEND.find_gpus(context)
