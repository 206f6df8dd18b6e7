"""Pretended GPUs: the GPU branches of every framework's checks, on the CPU.

`python -m tests.mutations.pretended FRAMEWORK COUNT[:FAULT[:WORD,...]] ...` runs each check, or
those whose id has a WORD, in each of these worlds: so many GPUs whose device is the CPU, with a
FAULT of `FAULTS`. It prints a JSON line for each check: {"count", "fault", "check", "status",
"message", "cause", "fix", "seconds"}. What runs is the checks' own code with its GPU branches; what
would ask a driver is replaced.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterator

ROWS: Dict[str, Any] = {}  # this module is no table of mutations
DEVICES_UNAVAILABLE = 46  # of CUDA's errors
GIB = 1 << 30
SPEEDUP = 1000
LARGE = 1000  # numbers
NAME = "NVIDIA A100-SXM4-40GB"
LIMIT_S = 240.0
BURN_MIN = 0.05
_EVERYWHERE = {
    "libraries.compat": "it is about the file of libcuda",
    "speed.gemm": "how fast a CPU is proves nothing; the rows of speed.py hold its clock",
    "speed.memory": "likewise",
    "speed.training": "likewise",
    "speed.copies": "likewise",
    "memory.batch": "it takes the time that it is given",
}
_PYTORCH = {
    **_EVERYWHERE,
    "loading.fork": "spawned workers import torch anew, without what is pretended here",
}
LEFT_OUT = {  # what cannot be pretended
    "pytorch": _PYTORCH,
    "jax": {
        **_EVERYWHERE,
        "libraries.cuda": "it is about the plugin's libraries, as are the next two",
        "libraries.cudnn": "likewise",
        "libraries.files": "likewise",
        "numerics.attention": "compiled, XLA has no attention in fp16 for a CPU",
    },
    "tensorflow": {
        **_EVERYWHERE,
        "libraries.dlopen": "it is about the libraries of a CUDA build, as are the next three",
        "libraries.cuda": "likewise",
        "libraries.cudnn": "likewise",
        "libraries.files": "likewise",
        "numerics.convolution": "a CPU sums convolutions of fp16 in fp16",
        "devices.placement": "what it asks for is the device's name",
        "parallel.mirrored": "TensorFlow lists its own devices there",
    },
}


class Event:
    """A CUDA event by a clock of this GPU: what was launched before it has been done."""

    def __init__(self, **_: Any) -> None:
        self.at = 0.0

    def record(self, *_: Any) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing is under way."""

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds, if this CPU had SPEEDUP times its cores: no floor asks how busy it is."""
        return max(end.at - self.at, 1e-7) * 1000 / SPEEDUP


class Live:
    """NVML kept open: each look is a reading of its own."""

    def __init__(self, *_: Any) -> None:
        self.failed = None

    def gpus(self, _: Any = None) -> Any:
        from verify.device import state

        return state.read().gpus


def pretend(framework: str, count: int) -> None:
    """So many GPUs, seen by the framework, NVML and the driver."""
    from verify.checks.memory import patterns, recovery
    from verify.checks.training import amp
    from verify.device import cuda_memory, driver, nvml, same_gpu, state

    cards = tuple(gpu(i) for i in range(count))
    seen = _state(cards)
    state.read = lambda *_: seen
    vars(state).update(Live=Live)
    rows = tuple(nvml.NvmlGpu(card.name, card.uuid, "8.0", mig=False) for card in cards)
    nvml.read = lambda *_: nvml.Nvml(found=True, driver="570.133.20", cuda="12.8", gpus=rows)
    driver.read = lambda *_: driver.CudaDriver(found=True, version="12.8", count=count)
    vars(driver).update(reaches=lambda *_: True)
    rooms = [
        cuda_memory.GpuMemory(i, name_of(i), cards[i].uuid, 2 * GIB, 2 * GIB) for i in range(count)
    ]
    vars(cuda_memory).update(read=lambda _: rooms)
    vars(amp).update(WIDE={"cuda": amp.WIDE["cpu"]})
    vars(patterns).update(NO_COUNT=2 * GIB)
    vars(recovery).update(TIMES=recovery.NO_ADDRESS // (2 * GIB))  # a CPU may lend twice as much
    vars(same_gpu).update(
        find=lambda index, gpus: gpus[index] if index < len(gpus) else None,
        match=lambda index, _, __, gpus: gpus[index] if index < len(gpus) else None,
    )
    {"pytorch": _torch, "jax": _jax, "tensorflow": _tensorflow}[framework](count)


def _jax(count: int) -> None:
    """XLA is asked for so many devices of the CPU.

    They are listed when a check asks: a child that it forks could not use an XLA started before.
    """
    import jax

    from tests.mutations.jax_ import a_plugin, round_like_tf32
    from verify.backends.jax import Place

    a_plugin()
    round_like_tf32(always=False)
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count={}".format(count)
    real = jax.devices
    vars(jax).update(devices=lambda _=None: real("cpu")[:count])
    setattr(Place, "capability", property(lambda _: (8, 0)))  # noqa: B010
    setattr(Place, "card", property(lambda one: name_of(one.index)))  # noqa: B010


def _tensorflow(count: int) -> None:
    import tensorflow as tf

    from tests.mutations.tensorflow_ import a_cuda_build
    from verify.backends.tensorflow import Place

    a_cuda_build()
    cpu = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
    tf.config.set_logical_device_configuration(cpu[0], logical)
    real = tf.config.list_physical_devices
    fakes = ["GPU {}".format(i) for i in range(count)]
    tf.config.list_physical_devices = lambda kind=None: fakes if kind == "GPU" else real(kind)
    vars(tf.config).update(get_logical_device_configuration=lambda _: None)
    tf.config.experimental.get_device_details = lambda one: {
        "device_name": name_of(int(one[3:])),
        "compute_capability": (7, 5),  # without TF32, which a CPU does not have
    }
    # of a CPU TensorFlow counts no memory
    tf.config.experimental.get_memory_info = lambda _: {"current": 0, "peak": 0}
    setattr(Place, "device", property(lambda one: "/CPU:{}".format(one.index)))  # noqa: B010


def _torch(count: int) -> None:
    import torch

    from verify.backends import pytorch as place
    from verify.backends import sight

    @contextlib.contextmanager
    def on(_: Any) -> Iterator[None]:
        yield

    properties = SimpleNamespace(
        name=NAME,
        total_memory=40 * GIB,
        L2_cache_size=0,
        multi_processor_count=108,
        major=8,
        minor=0,
    )
    pretended = {
        "init": _nothing(),
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: count,
        "current_device": lambda: 0,
        "set_device": _nothing(),
        "device": on,
        "get_device_name": lambda index=0, *_: name_of(int(getattr(index, "index", index) or 0)),
        "get_device_capability": lambda *_: (8, 0),
        "get_device_properties": lambda *_: properties,
        "get_arch_list": lambda: ["sm_80"],
        "synchronize": _nothing(),
        "empty_cache": _nothing(),
        "mem_get_info": lambda *_: (2 * GIB, 2 * GIB),
        "memory_allocated": lambda *_: 0,
        "memory_reserved": lambda *_: 0,
        "max_memory_allocated": lambda *_: 0,
        "reset_peak_memory_stats": _nothing(),
        "set_per_process_memory_fraction": _nothing(),
        "manual_seed_all": _nothing(),
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda rng, *_: torch.set_rng_state(rng),
        "get_rng_state_all": lambda: [torch.get_rng_state()] * count,
        "set_rng_state_all": _nothing(),
        "Event": Event,
        "make_graphed_callables": lambda work, _: work,
    }
    vars(torch.cuda).update(pretended)
    vars(torch._C).update(
        _cuda_getDeviceCount=lambda: count, _cuda_getCurrentRawStream=lambda *_: 0
    )
    torch.version.cuda = "12.8"
    torch.backends.cudnn.version = lambda: 90701
    torch.cuda.nccl.version = lambda: (2, 26, 2)
    _with_gloo_for_nccl()
    _with_tf32()
    cast, scaler = torch.autocast, torch.amp.GradScaler
    vars(torch).update(autocast=lambda _, **more: cast("cpu", **more))
    vars(torch.amp).update(GradScaler=lambda _, **more: scaler("cpu", **more))
    torch.Tensor.pin_memory = lambda self, *_: self
    setattr(place.Place, "device", property(lambda _: torch.device("cpu")))  # noqa: B010
    vars(sight).update(look=lambda context: sight_of(context, count))
    vars(place).update(look=sight.look)


def _nothing() -> Callable[..., None]:
    """A function that does nothing; one of its own for each name, since torch tells them apart."""

    def work(*_: Any, **__: Any) -> None:
        return None

    return work


def name_of(index: int) -> str:
    """Each card has a name of its own: how fast this CPU is for one and for another is noise."""
    return "{} {}".format(NAME, index)


def _with_gloo_for_nccl() -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed import device_mesh

    from tests.mutations.parallel import replicas

    real = dist.init_process_group

    def start(backend: Any = None, *words: Any, **more: Any) -> Any:
        return real("gloo" if backend == "nccl" else backend, *words, **more)

    vars(dist).update(init_process_group=start, is_nccl_available=lambda: True)
    # what asks for CUDA devices by itself gets the CPU
    together, mesh = torch.nn.parallel.DistributedDataParallel, device_mesh.init_device_mesh
    vars(torch.nn.parallel).update(DistributedDataParallel=lambda model, **_: together(model))
    vars(torch.nn).update(DataParallel=replicas(lambda outputs: outputs))
    vars(device_mesh).update(init_device_mesh=lambda _, shape: mesh("cpu", shape))


def _with_tf32() -> None:
    """Products of fp32 whose factors lose the bits that TF32 does not have, where it is allowed."""
    import torch

    real = torch.Tensor.__matmul__

    def product(left: Any, right: Any) -> Any:
        if left.dtype is torch.float32 and torch.backends.cuda.matmul.allow_tf32:
            left, right = (
                (x.view(torch.int32) & ~0x1FFF).view(torch.float32) for x in (left, right)
            )
        return real(left, right)

    torch.Tensor.__matmul__ = product


def sight_of(context: Any, count: int) -> Any:
    from verify.backends.sight import Sight

    return Sight("12.8", count, nodes=count, nvml=count, expected=context.expect.gpu_count)


def gpu(index: int) -> Any:
    """A calm card."""
    from verify.device.telemetry import GpuState, NvLink

    return GpuState(
        index,
        name_of(index),
        "GPU-00000000-0000-0000-0000-{:012d}".format(index),
        "8.0",
        "00000000:{:02X}:00.0".format(index + 1),
        mig=False,
        memory_total_bytes=40 * GIB,
        memory_used_bytes=0,
        processes=(),
        utilization_percent=0,
        temperature_c=40,
        slowdown_c=92,
        clock_sm_mhz=210,
        clock_sm_max_mhz=1410,
        throttle_reasons=("gpu_idle",),
        compute_mode="default",
        virtualization="none",
        recovery="none",
        ecc_enabled=True,
        ecc_uncorrected=0,
        remap_pending=False,
        remap_failed=False,
        pcie_generation=1,  # a link that this CPU's copies are faster than
        pcie_generation_max=1,
        pcie_width=4,
        pcie_width_max=4,
        nvlinks=tuple(NvLink(i, active=True, errors=0, gbs=25.0) for i in range(12)),
        fabric_state="not-supported",
    )


def _state(cards: Any) -> Any:
    from verify.device.telemetry import Pair, State

    pairs = tuple(
        Pair(i, j, "PHB", "ok", "ok") for i in range(len(cards)) for j in range(i + 1, len(cards))
    )
    return State("570.133.20", cards, pairs, found=True, confidential=False)


def main(framework: str, worlds: "list[str]") -> int:
    """Run the checks, each in a child, as the suite does."""
    from tests.mutations.runner import Work, in_children, load
    from verify.checks import CHECKS
    from verify.running.runner import judge_ending

    load(framework)
    works = []
    for world in worlds:
        count, fault, words = [*world.split(":"), "", ""][:3]
        works += [
            Work((count, fault, check.id), _work(check, framework, int(count), fault), LIMIT_S)
            for check in CHECKS[framework]
            if check.id not in LEFT_OUT[framework]
            and any(word in check.id for word in words.split(","))
        ]
    for (count, fault, name), ending in in_children(works):
        said = judge_ending(ending).as_dict()
        kept = {key: said[key] for key in ("status", "message", "cause", "fix")}
        row = {"count": int(count), "fault": fault, "check": name, **kept}
        sys.stdout.write(json.dumps({**row, "seconds": ending.seconds}) + "\n")
        sys.stdout.flush()
    return 0


def _work(check: Any, framework: str, count: int, fault: str) -> Callable[[], object]:
    from verify.device import baseline
    from verify.model.check import Context
    from verify.running.runner import outcome_of

    def work() -> Any:
        pretend(framework, count)
        burn_min = BURN_MIN if check.burns else None
        context = Context(level="quick", framework=framework, gpus=count, burn_min=burn_min)
        if check.closes:
            context = replace(context, before=baseline.take(context.machine))
        if fault:
            FAULTS[fault]()
        return outcome_of(check, context)

    return work


def _start_fails(code: int, text: str) -> Callable[[], None]:
    """CUDA does not start: the driver has this error, and the framework its own words for it."""

    def seed() -> None:
        from verify.device import driver, state

        if code == DEVICES_UNAVAILABLE:  # as NVML shows it: each GPU admits one process
            seen = state.read()
            held = tuple(replace(gpu, compute_mode="exclusive-process") for gpu in seen.gpus)
            vars(state).update(read=lambda *_: replace(seen, gpus=held))
        said = "Error {}: {}".format(code, text)
        driver.read = lambda *_: driver.CudaDriver(found=True, version="12.8", error=said)
        if "torch" in sys.modules:
            _torch_sees_none(said)
        elif "jax" in sys.modules:
            vars(sys.modules["jax"]).update(devices=_no_backend)
        else:
            tf = sys.modules["tensorflow"]
            real = tf.config.list_physical_devices
            tf.config.list_physical_devices = lambda kind=None: [] if kind == "GPU" else real(kind)

    return seed


def _no_backend(kind: Any = None) -> Any:
    raise RuntimeError("Unknown backend: '{}' requested, but no platforms are present".format(kind))


def _torch_sees_none(said: str) -> None:
    from verify.backends import pytorch as place
    from verify.backends import sight
    from verify.checks.devices import inventory as devices

    long = "RuntimeError: Unexpected error from cudaGetDeviceCount(). {}".format(said)
    broken = sight.Sight("12.8", 0, error=long, nodes=2, nvml=2, driver=True)
    vars(sight).update(look=lambda _: broken)
    for module in (place, devices):
        vars(module).update(look=sight.look)


def _memory_ends_at(call: int) -> Callable[[], None]:
    """The card is full from this move of numbers to it on."""

    def seed() -> None:
        if "torch" in sys.modules:
            import torch

            owner, name, full = torch.Tensor, "to", torch.OutOfMemoryError(_TORCH_FULL)
        elif "jax" in sys.modules:
            import jax
            import jax.numpy

            owner, name = jax.numpy, "asarray"
            full = jax.errors.JaxRuntimeError(_XLA_FULL)
        else:
            import tensorflow as tf

            owner, name = tf, "constant"
            full = tf.errors.ResourceExhaustedError(None, None, _TENSORFLOW_FULL)
        real, calls = getattr(owner, name), [0]

        def move(*words: Any, **more: Any) -> Any:
            if "torch" not in sys.modules or any(isinstance(w, torch.device) for w in words):
                calls[0] += 1
                if calls[0] >= call:
                    raise full
            return real(*words, **more)

        setattr(owner, name, move)

    return seed


_TORCH_FULL = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 GiB of"
    " which 120.25 MiB is free."
)
_XLA_FULL = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 bytes."
_TENSORFLOW_FULL = "failed to allocate memory [Op:Fill] OOM when allocating tensor with shape[9,9]"


def _links_count_errors() -> None:
    """At each look the NVLinks of the second card have counted four hundred errors more."""
    from verify.device import state

    seen = state.read()
    looks = [0]

    def read(*_: Any) -> Any:
        looks[0] += 1
        worn = seen.gpus[1]
        links = tuple(replace(link, errors=400 * looks[0]) for link in worn.nvlinks)
        return replace(seen, gpus=(seen.gpus[0], replace(worn, nvlinks=links), *seen.gpus[2:]))

    vars(state).update(read=read)


def _copies_to_the_second_are_wrong() -> None:
    """What is moved to the second card arrives with noise, another one each time."""
    from verify.backends import base
    from verify.model.check import Context
    from verify.model.frameworks import FRAMEWORKS

    framework = next(name for name, one in FRAMEWORKS.items() if one.module in sys.modules)
    backend = base.of(Context(framework=framework))
    kind = type(backend.place("cpu"))
    if framework == "pytorch":
        _without_triton(kind)
    real, seeds = kind.put, itertools.count()

    def put(place: Any, values: Any, dtype: str) -> Any:
        if place.index == 1:
            values = values + 1000 * backend.draw(next(seeds), values.shape)[0]
        return real(place, values, dtype)

    setattr(kind, "put", put)  # noqa: B010


def _without_triton(place: Any) -> None:
    """inductor compiles C++ for the CPU, which takes it some 10 s."""
    from verify.checks.numerics import compiled

    real = compiled.why_not
    vars(compiled).update(
        why_not=lambda _, folder: real(place("cpu"), folder),
        _triton=lambda *_: compiled.CompiledRun("Triton", ()),
    )


def _second_predicts_wrongly() -> None:
    """Keras's predictions on the second card are too large by one."""
    import tensorflow as tf

    real = tf.keras.Model.predict

    def predict(*words: Any, **more: Any) -> Any:
        return real(*words, **more) + tf.constant(0.0).device.endswith("CPU:1")

    setattr(tf.keras.Model, "predict", predict)  # noqa: B010


def _second_computes_wrongly() -> None:
    """One cell of each large product of the second card is wrong."""
    if "torch" in sys.modules:
        _torch_is_wrong()
    elif "jax" in sys.modules:
        _jax_is_wrong()
    else:
        _tensorflow_is_wrong()


def _torch_is_wrong() -> None:
    """The second card is where numbers were moved to last."""
    import torch

    from verify.backends.pytorch import Place

    last = [0]

    def device(place: Any) -> Any:
        last[0] = place.index
        return torch.device("cpu")

    def spoiled(real: Callable[..., Any]) -> Callable[..., Any]:
        def product(*words: Any, **more: Any) -> Any:
            found = real(*words, **more)
            if last[0] == 1 and found.is_floating_point() and found.numel() > LARGE:
                found.reshape(-1)[7] += 1000
            return found

        return product

    setattr(Place, "device", property(device))  # noqa: B010
    torch.Tensor.__matmul__ = spoiled(torch.Tensor.__matmul__)
    torch.matmul, torch.mm = spoiled(torch.matmul), spoiled(torch.mm)


def _jax_is_wrong() -> None:
    """The second card is the device that work has by default, while it is traced, too."""
    import jax

    real = jax.numpy.matmul

    def product(*words: Any, **more: Any) -> Any:
        found = real(*words, **more)
        second = getattr(jax.config.jax_default_device, "id", 0) == 1
        floating = jax.numpy.issubdtype(found.dtype, jax.numpy.floating)
        return found.at[0, 7].add(1000) if second and floating and found.size > LARGE else found

    vars(jax.numpy).update(matmul=product)


def _tensorflow_is_wrong() -> None:
    import tensorflow as tf

    real = tf.linalg.matmul

    def product(*words: Any, **more: Any) -> Any:
        found = real(*words, **more)
        if found.device.endswith("CPU:1") and found.dtype.is_floating and tf.size(found) > LARGE:
            more_of_one = tf.cast([1000], found.dtype)
            return tf.tensor_scatter_nd_add(found, [[0, 7]], more_of_one)
        return found

    tf.linalg.matmul = product


FAULTS: Dict[str, Callable[[], None]] = {
    "links count errors": _links_count_errors,
    "copies to the second are wrong": _copies_to_the_second_are_wrong,
    "the second predicts wrongly": _second_predicts_wrongly,
    "the second computes wrongly": _second_computes_wrongly,
    "error 2": _start_fails(2, "out of memory"),
    "error 46": _start_fails(
        DEVICES_UNAVAILABLE, "all CUDA-capable devices are busy or unavailable"
    ),
    "error 100": _start_fails(100, "no CUDA-capable device is detected"),
    "error 802": _start_fails(802, "system not yet initialized"),
    "error 803": _start_fails(803, "unsupported display driver / cuda driver combination"),
    "error 999": _start_fails(999, "unknown error"),
    "full at once": _memory_ends_at(1),
    "full at the third move": _memory_ends_at(3),
}

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1], sys.argv[2:]))
