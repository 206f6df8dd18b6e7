"""Where a PyTorch check runs: on a GPU, or on the CPU if nothing hints at a GPU.

All differences between the two are here, so that a check's own code is the same on both, and code
tested on a CPU is the code that runs on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, List, Optional, Tuple

from verify.backends.sight import judge_absent, look
from verify.model.check import Context, Outcome, Status
from verify.model.measures import seconds_each


@dataclass(frozen=True)
class Place:
    """A device that torch computes on. `kind` is "cuda" or "cpu"."""

    kind: str
    index: int = 0

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.kind == "cuda"

    @property
    def device(self) -> Any:
        """The torch.device."""
        import torch

        return torch.device(self.kind, self.index) if self.is_gpu else torch.device("cpu")

    @property
    def words(self) -> str:
        """For messages, after a comma."""
        return "on the GPU" if self.is_gpu else "on the CPU: no GPU visible"

    @property
    def capability(self) -> Optional[Tuple[int, int]]:
        """The compute capability; None on the CPU."""
        import torch

        return torch.cuda.get_device_capability(self.index) if self.is_gpu else None

    def synchronize(self) -> None:
        """Return when all work given to the device is done."""
        import torch

        if self.is_gpu:
            torch.cuda.synchronize(self.index)

    def seconds(self, work: Callable[[], object], *, repeats: int, warm_up: int = 3) -> List[float]:
        """Seconds of each call: from CUDA events on a GPU, from the clock on the CPU.

        Events are in the same stream as the work, so the time that Python needs to launch a kernel
        counts only if the device had to wait for it.
        """
        import torch

        if not self.is_gpu:
            return seconds_each(work, repeats=repeats, warm_up=min(warm_up, 1))
        with torch.cuda.device(self.index):
            for _ in range(warm_up):
                work()
            pairs = []
            for _ in range(repeats):
                start = torch.cuda.Event(enable_timing=True)
                stop = torch.cuda.Event(enable_timing=True)
                start.record()
                work()
                stop.record()
                pairs.append((start, stop))
            torch.cuda.synchronize(self.index)
        return [start.elapsed_time(stop) / 1000 for start, stop in pairs]

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


def find(context: Context) -> Tuple[Optional[Outcome], Place]:
    """The first GPU, or the CPU; or a failure if there should be a GPU and there is none.

    A CPU build computes on the CPU if nothing hints at a GPU: `libraries.cuda` reports it.
    """
    sight = look(context)
    absent = judge_absent(sight)
    bare = sight.torch_cuda is None and not sight.hinted()
    if absent is not None and (absent.status is Status.FAIL or sight.hinted()) and not bare:
        return absent, Place("cpu")
    return None, Place("cpu" if absent else "cuda")


def find_gpus(context: Context) -> Tuple[Optional[Outcome], Tuple[Place, ...]]:
    """Every GPU; or the skip or failure of a check that needs one."""
    sight = look(context)
    absent = judge_absent(sight)
    return absent, () if absent else tuple(Place("cuda", i) for i in range(sight.usable))
