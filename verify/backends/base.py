"""What a framework's devices can do, in one vocabulary: checks are written once over it.

An array of the host is float64: torch's on the CPU, NumPy's for the others. Both have `@`, `abs`,
`mean`, `max`, `shape`, `reshape` and `tolist`, which is all that references and judges need, and
PyTorch's checks do not depend on NumPy.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Callable, ContextManager, Dict, List, Optional, Sequence, Tuple

from verify.backends import sight
from verify.backends.sight import Sight
from verify.backends.trainer import Trainer
from verify.device import driver, nvml, same_gpu
from verify.device.telemetry import GpuState
from verify.model.check import IMAGE, Context, Outcome, Status, on_device
from verify.workloads.networks import Network

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")
BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
_TITLES = "float64 float32 float32 float16 bfloat16 float8_e4m3fn int8"
NAMES = dict(zip((*DTYPES, "int8"), _TITLES.split()))
SHORT = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
SINCE = {
    **dict.fromkeys(("tf32", "bf16"), (8, 0)),
    **dict.fromkeys(("fp8", "fp8 rowwise"), (8, 9)),
    **dict.fromkeys(("mxfp8", "nvfp4"), (10, 0)),
    "int8": (7, 5),
    "fp8 grouped": (9, 0),
}
"""The first compute capability that has units for a dtype."""
ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # 2^64 divided by the golden ratio, as a signed word
NO_DEVICE = "no CUDA-capable device is detected"


@dataclass(frozen=True)
class ConvolutionCase:
    """One convolution. Images are batch x height x width x channels."""

    name: str
    image: Tuple[int, int, int, int]
    filters: int
    window: int
    stride: int = 1
    padding: int = 0
    groups: int = 1

    @property
    def weight(self) -> Tuple[int, int, int, int]:
        """The shape of the weight: height x width x a group's channels x filters."""
        return self.window, self.window, self.image[3] // self.groups, self.filters

    @property
    def result(self) -> Tuple[int, int, int, int]:
        """The shape of the result."""
        reach = 2 * self.padding - self.window
        height, width = ((side + reach) // self.stride + 1 for side in self.image[1:3])
        return self.image[0], height, width, self.filters

    @property
    def terms(self) -> Tuple[int, int, int]:
        """Products per element of the result, the image's gradient and the weight's gradient."""
        cells = self.window * self.window
        forward = self.image[3] // self.groups * cells
        batch, height, width, _ = self.result
        return forward, self.filters // self.groups * cells, batch * height * width


@dataclass(frozen=True)
class Place:
    """A device that a framework computes on. `kind` is "cuda" or "cpu".

    All differences between the two are in its methods, so that a check's own code is the same on
    both, and code tested on a CPU is the code that runs on a GPU.
    """

    kind: str
    index: int = 0

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.kind == "cuda"

    @property
    def gpu(self) -> Optional[int]:
        """The GPU's number; None for the CPU."""
        return self.index if self.is_gpu else None

    @property
    def words(self) -> str:
        """For messages, after a comma."""
        return on_device(self.kind)

    def has(self, dtype: str) -> bool:
        """Whether it is a GPU with units for a dtype."""
        return self.is_gpu and (self.capability or (0, 0)) >= SINCE.get(dtype, (0, 0))

    @property
    def backend(self) -> Backend:
        """The framework."""
        raise NotImplementedError

    @property
    def device(self) -> Any:
        """The framework's own device, or its name."""
        raise NotImplementedError

    @property
    def capability(self) -> Optional[Tuple[int, int]]:
        """The compute capability; None on the CPU."""
        raise NotImplementedError

    @property
    def card(self) -> str:
        """The GPU's name; "CPU" on the CPU."""
        raise NotImplementedError

    def lacks(self, dtype: str) -> Optional[str]:
        """Why a dtype is not tried here; None if it is."""
        if self.is_gpu and not self.has(dtype):
            said = "GPU {} has compute capability {}.{}, and it comes with {}.{}"
            return said.format(self.index, *(self.capability or (0, 0)), *SINCE[dtype])
        return "CPUs have none" if dtype == "tf32" and not self.is_gpu else None

    def cannot_mix(self, dtype: str) -> Optional[str]:
        """Why mixed precision with a dtype is not tried here."""
        if dtype == "bf16" and self.is_gpu and not self.has("bf16"):
            return "bf16 units come with compute capability 8.0"
        return None

    def scope(self) -> ContextManager[Any]:
        """The context in which work that names no device runs here."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Return when all work given to the device is done."""
        raise NotImplementedError

    def seconds(
        self, work: Callable[[], object], *, repeats: int, warm_up: int = 3, calls: int = 1
    ) -> List[float]:
        """Seconds of each call, as the mean of `calls` that are waited for together."""
        raise NotImplementedError

    def held_bytes(self) -> Optional[int]:
        """What the framework has taken for arrays; None on the CPU, and where it does not count."""
        raise NotImplementedError

    def peak_bytes(self, work: Callable[[], object]) -> Optional[int]:
        """The most memory that was held during the work; None where that is not counted."""
        raise NotImplementedError

    def release(self) -> None:
        """Give cached memory back to the driver, where the framework can."""

    def cap(self, share: float) -> None:
        """Take no more than a share of the memory that is free, if the framework has a limit."""

    def count_up(self, count: int) -> int:
        """0 + 1 + ... + (count - 1), added up on the device."""
        raise NotImplementedError

    def limit_bytes(self) -> Optional[int]:
        """All that a GPU may give to arrays; None where the framework does not say."""
        return None

    def take(self, size: int) -> object:
        """Memory of so many bytes."""
        raise NotImplementedError

    def block(self, first: int, count: int, inverted: bool) -> Any:  # noqa: FBT001
        """A block of 64-bit words, made on the device: each is its index times `ODD`, or the
        complement.
        """
        raise NotImplementedError

    def receive(self, block: Any) -> Any:
        """A copy of another device's block."""
        raise NotImplementedError

    def differ(self, block: Any, right: Any) -> Tuple[int, int, int, int]:
        """How many words differ, the first of them, what it should be, and what it is."""
        raise NotImplementedError

    def free_bytes(self) -> Optional[int]:
        """What a GPU may still give to arrays; None where the framework does not say."""
        return None

    def cache_bytes(self) -> int:
        """The GPU's level 2 cache, as far as the framework says."""
        return 64 << 20  # more than those of most cards

    def state_in(self, gpus: Sequence[GpuState]) -> Optional[GpuState]:
        """This GPU among those that NVML lists; None where that cannot be known."""
        return same_gpu.match(self.index, None, self.backend.count(), gpus)

    def product(self, dtype: str, size: int) -> Callable[[], object]:
        """One product of two random matrices."""
        raise NotImplementedError

    def copier(self, size: int) -> Callable[[], object]:
        """A pass over `size` random bytes that writes as many."""
        raise NotImplementedError

    def cannot_pin(self) -> Optional[str]:
        """Why a program cannot have pinned memory of the host."""
        return None

    def transfer(self, way: str, size: int) -> Callable[[], object]:
        """A copy of so many bytes from or to the host's memory, pinned or as malloc gives it."""
        raise NotImplementedError

    def put(self, values: Any, dtype: str) -> Any:
        """An array of the host, rounded to a dtype, on the device."""
        raise NotImplementedError

    def get(self, values: Any) -> Any:
        """The inverse of `put`: float64 on the host."""
        raise NotImplementedError

    def multiply(self, left: Any, right: Any, dtype: str) -> Any:
        """The product of two matrices of `put`, with or without TF32 as the dtype says."""
        raise NotImplementedError

    def convolve(self, case: ConvolutionCase, given: Sequence[Any], dtype: str, layout: str) -> Any:
        """The result of a convolution and its gradients by image and weight, as arrays of the host.

        `given` are the image, the weight and the gradient of the result, of the host.
        """
        return self.backend.numbers.convolve(self, case, given, dtype, layout)

    def attend(self, given: Sequence[Any], dtype: str, way: str, *, causal: bool) -> Any:
        """What ran; and attention with its gradients by query, key and value, as arrays of the
        host. None if there is no kernel for this way; without a way as the framework chooses.

        `given` are query, key, value and the gradient of the result, of the host: batch x heads x
        length x width.
        """
        return self.backend.numbers.attend(self, given, dtype, way, causal=causal)


@dataclass(frozen=True)
class Terms:
    """A framework's name, and how its builds without CUDA come about."""

    title: str
    cpu_build: str  # why a build computes only on the CPU
    install: str


class Backend:
    """A framework. Each of the modules beside this one has one, as `BACKEND`."""

    terms: Terms
    numbers: Any  # its module of what computes with gradients
    dtypes: Tuple[str, ...] = DTYPES[:5]
    layouts: Tuple[str, ...] = ("",)  # of images
    says_what_is_free = True  # of a GPU's memory
    unordered = False  # whether a network in training may add up in no fixed order
    convolves_groups = True
    attentions: Tuple[str, ...] = ()  # ways of it that a program can ask for
    computes_references = False  # whether references in float64 are its own CPU's work

    def place(self, kind: str, index: int = 0) -> Any:
        """A device."""
        raise NotImplementedError

    @property
    def counts_as(self) -> str:
        """The framework's name beside counts of GPUs."""
        return self.terms.title

    def promised(self) -> Optional[int]:
        """How many GPUs the framework says that there are, where it may be wrong."""
        return None

    def architectures(self) -> List[str]:
        """The GPU code in the framework's binaries, as nvcc names it; none if it compiles for the
        GPU that it finds.
        """
        return []

    def split_cpu(self) -> None:
        """Have two devices of the CPU, before the first work there."""
        raise NotImplementedError

    def count(self) -> int:
        """How many GPUs the framework lists."""
        raise NotImplementedError

    def look(self, context: Context) -> Sight:
        """Start CUDA through the framework, in this child."""
        raise NotImplementedError

    def lacks_kernel(self, text: str, dtype: str, gpu: Optional[int]) -> bool:  # noqa: ARG002
        """Whether an error says that there is no kernel for a dtype, which is no fault."""
        return False

    def trainer(self, place: Any, network: Network, **options: Any) -> Trainer:
        """A network in training on a device: see `Trainer`."""
        raise NotImplementedError

    def use_one_thread(self, place: Any) -> None:
        """Compute with one thread, on a CPU whose framework can be asked for it at any time."""

    def takes(self) -> str:
        """How much of a GPU's memory the framework takes when it starts; "" if none."""
        return ""

    def allow_tf32(self, *, on: bool) -> None:
        """Whether products and convolutions of fp32 may use TF32."""

    def ask_for_determinism(self) -> Optional[str]:
        """Ask for runs that repeat, before a device is used; why the framework cannot be asked."""
        raise NotImplementedError

    def sum_in_fp32(self) -> None:
        """Forbid sums in fewer bits, where a framework allows them by default."""

    def host(self, numbers: Any) -> Any:
        """An array of the host from nested lists."""
        import numpy as np

        return np.asarray(numbers, np.float64)

    def draw(self, seed: int, *shapes: Sequence[int]) -> List[Any]:
        """Arrays of the host with normally distributed numbers, the same for the same seed."""
        import numpy as np

        source = np.random.default_rng(seed)
        return [source.standard_normal(tuple(shape)) for shape in shapes]

    def absent(self, seen: Sight) -> Optional[Outcome]:
        """None if GPUs can be used; else a skip if nothing hints at one, or a failure."""
        if seen.torch_cuda is None:
            return self.without_cuda(seen.measured(), {"gpus": seen.expected})
        return sight.judge_absent(seen)

    def without_cuda(
        self, measured: Dict[str, Any], expected: Optional[Dict[str, Any]] = None
    ) -> Outcome:
        """The failure if the image's framework has no CUDA."""
        terms, wanted = self.terms, expected or {}
        said = "CPU build of {}".format(terms.title)
        return Outcome(Status.FAIL, said, terms.cpu_build, terms.install, measured, wanted, IMAGE)

    def find(self, context: Context) -> Tuple[Optional[Outcome], Any]:
        """The first GPU, or the CPU; or a failure if there should be a GPU and there is none.

        A CPU build computes on the CPU if nothing hints at a GPU: `libraries.framework` and
        `libraries.cuda` report it.
        """
        seen = self.look(context)
        absent = self.absent(seen)
        bare = seen.torch_cuda is None and not seen.hinted()
        there = absent is not None and (absent.status is Status.FAIL or bool(seen.hinted()))
        if there and not bare:
            return absent, self.place("cpu")
        return None, self.place("cpu" if absent else "cuda")

    def find_gpus(self, context: Context) -> Tuple[Optional[Outcome], Tuple[Any, ...]]:
        """Every GPU; or the skip or failure of a check that needs one."""
        seen = self.look(context)
        absent = self.absent(seen)
        return absent, () if absent else tuple(self.place("cuda", i) for i in range(seen.usable))

    def every(self, context: Context) -> Tuple[Optional[Outcome], Tuple[Any, ...]]:
        """Every GPU, or the CPU if nothing hints at one."""
        broken, place = self.find(context)
        if broken or not place.is_gpu:
            return broken, (place,)
        return self.find_gpus(context)


def of(context: Context) -> Backend:
    """The backend of the framework that is tested."""
    found: Backend = importlib.import_module("verify.backends." + context.framework).BACKEND
    return found


def see(context: Context, cuda: Optional[str], usable: int, error: Optional[str] = None) -> Sight:
    """What is known of GPUs. If the framework shows none, query the driver itself for the cause."""
    asked = driver.CudaDriver(found=False)
    if cuda is not None and not usable:
        asked = driver.read(context.machine.load)
        error = asked.error or (NO_DEVICE if asked.count == 0 else error)
    return Sight(
        torch_cuda=cuda,
        usable=usable,
        error=None if usable else error,
        nodes=len(context.machine.nodes()),
        nvml=len(nvml.read(context.machine.load).gpus),
        expected=context.expect.gpu_count,
        driver=bool(asked.found and (asked.error or asked.count)),
    )
