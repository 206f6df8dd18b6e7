"""Training steps of a model at a batch size, in a child process that may run out of memory.

On a GPU one child runs all trials: the framework's allocator refuses before anything breaks, and
memory that it frees afterwards can be used again, so a CUDA context per trial would only cost time.
Any other error ends the child and the search. On the CPU each trial has its own child: memory that
malloc keeps would count for the next trial, and if the estimate was wrong, the kernel's
out-of-memory killer ends only that child.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import multiprocessing
import os
import re
import sys
import threading
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from verify.backends.base import NAMES, Place
from verify.device import limits, state
from verify.model.measures import median, spread
from verify.running.children import Child, Ending
from verify.workloads import models, networks
from verify.workloads.batching import BatchTrial

TIMED_S = 1.0  # the least duration of the timed steps, so that utilisation can be read
SAMPLE_S = 0.2
DISTINCT = 64  # samples of a batch
_MEMORY = re.compile(
    r"[Oo]ut of memory|OOM when allocating|(can't|Cannot) allocate memory|ALLOC_FAILED"
    r"|Unable to find a valid cuDNN algorithm|CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION"
)
# Messages if cuDNN's workspace does not fit, and also if it has no kernel at all.
_NO_ENGINE = re.compile(r"(GET|FIND) was unable to find an engine|No algorithm worked")

NETWORKS = {"small": networks.small, "resnet50": networks.large}


class Refused(Exception):  # noqa: N818  # an answer: the model or machine is unusable
    """The model could not be built or trained; the message says why."""


class Late(Refused):
    """A trial did not end in time, which says nothing of the model: the machine may be busy."""


@dataclass(frozen=True)
class Job:
    """What to train, and which share of the initially free memory to use."""

    model: str  # a name in models.NAMED, or MODULE:CALLABLE
    amp: bool = False
    memory_share: float = 0.9
    by_trainer: bool = False  # by the framework's own trainer, as a network of NETWORKS

    @property
    def is_users(self) -> bool:
        """Whether the model is the user's own code."""
        return ":" in self.model


def out_of_memory(text: str) -> bool:
    """Whether an error's text says that memory ran out."""
    return _MEMORY.search(text) is not None


def load(name: str) -> models.Model:
    """The model with this name. Raises Refused."""
    if name in models.NAMED:
        return models.NAMED[name]()
    module, _, attribute = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        make = getattr(importlib.import_module(module), attribute)
        made = make()
    except Exception as error:
        raise Refused("{}: {}".format(name, _said(error))) from error
    return interpret(made, name)


def interpret(made: Any, name: str) -> models.Model:
    """The user's callable's return value as a Model. Raises Refused."""
    import torch

    if hasattr(made, "module") and hasattr(made, "make_batch"):
        parts = (made.module, made.make_batch, getattr(made, "loss", None))
    elif isinstance(made, (tuple, list)) and len(made) in (2, 3):
        parts = (made[0], made[1], made[2] if len(made) == 3 else None)
    else:
        said = "{} returned {}; it must return (module, make_batch) or (module, make_batch, loss)"
        raise Refused(said.format(name, type(made).__name__))
    module, make_batch, loss = parts
    if not isinstance(module, torch.nn.Module) or not callable(make_batch):
        said = "{} returned ({}, {}); it must be (torch.nn.Module, function)"
        raise Refused(said.format(name, type(module).__name__, type(make_batch).__name__))
    return models.Model(module, make_batch, loss or default_loss)


def default_loss(module: Any, batch: Tuple[Any, Any]) -> Any:
    """The module's output if it is a loss, else cross entropy (integer targets) or mean squares."""
    import torch

    inputs, target = batch
    if isinstance(inputs, dict):
        output = module(**inputs)
    else:
        output = module(*inputs) if isinstance(inputs, (tuple, list)) else module(inputs)
    found = getattr(output, "loss", None)  # as Hugging Face's models return it
    output = output if found is None else found
    if output.dim() == 0:
        return output
    whole = not target.is_floating_point()
    functions = torch.nn.functional
    return (functions.cross_entropy if whole else functions.mse_loss)(output, target)


def _said(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return "{}: {:.300}".format(type(error).__name__, text) if text else type(error).__name__


class TrainedNetwork:
    """A network with its framework's own trainer."""

    def __init__(self, job: Job, place: Place) -> None:
        mixed = mixed_on(place) if job.amp else None
        self.precision = "amp-" + mixed if mixed else "fp32"
        network = NETWORKS[job.model]()
        self._trainer = place.backend.trainer(place, network, mixed=mixed, optimiser="adam")

    def data(self, batch: int) -> Tuple[Any, Any]:
        """Samples of which few differ, so that drawing them takes little time."""
        return self._trainer.data(batch, learnable=False, distinct=DISTINCT)

    def step(self, data: Tuple[Any, Any]) -> object:
        """A training step."""
        return self._trainer.step(*data)

    def forget(self) -> None:
        """Nothing is kept."""


class TrainedModule:
    """A torch module with AdamW: a built-in model, or the user's."""

    def __init__(self, job: Job, place: Place) -> None:
        import torch

        self._place, self._model = place, load(job.model)
        try:
            self._module = self._model.module.to(place.device).train()
            self._optimiser = torch.optim.AdamW(self._module.parameters(), lr=1e-4)
        except Exception as error:
            raise Refused("{}: {}".format(job.model, _said(error))) from error
        mixed = mixed_on(place) if job.amp else None
        self.precision = "amp-" + mixed if mixed else "fp32"
        self._dtype = mixed and getattr(torch, NAMES[mixed])
        self._scaler = _scaler(torch) if mixed == "fp16" else None

    def data(self, batch: int) -> Tuple[Any, Any]:
        """As the model makes it."""
        return self._model.make_batch(batch, self._place.device)

    def step(self, data: Tuple[Any, Any]) -> None:
        """Forward, backward and the optimiser's step."""
        self._optimiser.zero_grad(set_to_none=True)
        with self._autocast():
            loss = self._model.loss(self._module, data)
        if self._scaler is None:
            loss.backward()
            self._optimiser.step()
        else:
            self._scaler.scale(loss).backward()
            self._scaler.step(self._optimiser)
            self._scaler.update()

    def _autocast(self) -> Any:
        import torch

        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._place.kind, dtype=self._dtype)

    def forget(self) -> None:
        """The gradients."""
        self._optimiser.zero_grad(set_to_none=True)


class Bench:
    """A network on a device with its optimiser, ready for trials. Lives in a child."""

    def __init__(self, job: Job, place: Place) -> None:
        self._job, self._place = job, place
        self._at_start = limits.resident_bytes("VmRSS")
        self._trained = (TrainedNetwork if job.by_trainer else TrainedModule)(job, place)
        self._fitted = False
        place.cap(job.memory_share)  # on the CPU memory is estimated before a trial

    def facts(self) -> Dict[str, Any]:
        """The settings chosen here, for the report."""
        gpu = self._place.card if self._place.is_gpu else None
        return {"gpu": gpu, "precision": self._trained.precision}

    def trial(self, batch: int) -> BatchTrial:
        """Run some whole training steps. Lack of memory is a result; other errors raise Refused."""
        try:
            found = self._measure(batch)
        except Exception as error:
            said = _said(error)
            full = isinstance(error, MemoryError) or out_of_memory(said)
            if not full and not (self._fitted and _NO_ENGINE.search(said)):
                said = "{} fails at batch {}: {}".format(self._job.model, batch, said)
                raise Refused(said) from error
            found = BatchTrial(batch, fits=False, reason=said)
        self._fitted = self._fitted or found.fits
        # Only once the error is gone: its traceback holds every tensor of the step.
        self._trained.forget()
        self._place.release()
        return found

    def _measure(self, batch: int) -> BatchTrial:
        data = self._trained.data(batch)

        def step() -> object:
            return self._trained.step(data)

        taken: List[float] = []
        peak = self._place.peak_bytes(lambda: taken.extend(self._seconds(step, 2)))
        repeats = max(2, min(50, math.ceil(TIMED_S / max(taken[-1], 1e-6))))
        with utilization(self._place) as samples:
            seconds = self._seconds(step, repeats)
        if peak is None:
            peak = max(0, limits.resident_bytes("VmHWM") - self._at_start)
        return BatchTrial(
            batch,
            fits=True,
            samples_per_s=batch / median(seconds),
            spread=spread(seconds),
            steps=repeats,
            peak_bytes=peak,
            utilization_percent=median(samples) if samples else None,
        )

    def _seconds(self, step: Callable[[], object], repeats: int) -> List[float]:
        return self._place.seconds(step, repeats=repeats, warm_up=0)


def mixed_on(place: Place) -> str:
    """The dtype of mixed precision: fp16 where the device has no units for bf16."""
    return next((one for one in ("bf16", "fp16") if place.cannot_mix(one) is None), "bf16")


def _scaler(torch: Any) -> Any:
    new = getattr(torch.amp, "GradScaler", None)  # since torch 2.3
    return new("cuda") if new is not None else torch.cuda.amp.GradScaler()


@contextlib.contextmanager
def utilization(place: Place) -> Iterator[List[float]]:
    """The GPU's utilisation in percent while the block runs; empty if NVML does not report it."""
    samples: List[float] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(SAMPLE_S):
            gpu = place.state_in(state.read().gpus)
            if gpu is None or gpu.utilization_percent is None:
                return
            samples.append(float(gpu.utilization_percent))

    thread = threading.Thread(target=watch, daemon=True)  # NVML may hang; nothing waits for it
    if place.is_gpu:
        thread.start()
    try:
        yield samples
    finally:
        done.set()
        if place.is_gpu:
            thread.join(1.0)


class Bencher:
    """The parent's end: requests trials from a child, and starts a new child when needed."""

    def __init__(self, job: Job, place: Place) -> None:
        self._job, self._place = job, place
        self._child: Optional[Child] = None
        self._pipe: Any = None
        self.facts: Dict[str, Any] = {}

    def measure(self, batch: int, limit_s: float) -> BatchTrial:
        """Run one trial. Raises Refused if the model cannot be built or trained."""
        if self._child is None:
            self._start()
            self.facts = self._ask(None, limit_s)
        said = self._ask(batch, limit_s)
        if not self._place.is_gpu:
            self.close()
        return BatchTrial(**said)

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._pipe.close()
        self._child = None

    def _start(self) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self._child = Child(lambda: _serve(self._job, self._place, theirs))
        theirs.close()

    def _ask(self, batch: Optional[int], limit_s: float) -> Dict[str, Any]:
        assert self._child is not None
        try:
            self._pipe.send(batch)
            said = self._pipe.recv() if self._pipe.poll(limit_s) else None
        except (EOFError, OSError):  # it died
            ending = self._child.wait(5.0)
            self.close()
            return _lost(self._job, batch, ending)
        if said is None:
            self.close()
            raise Late("{}: no answer in {:.0f} s".format(self._job.model, limit_s))
        if "refused" in said:
            self.close()
            raise Refused(said["refused"])
        return dict(said)


def _lost(job: Job, batch: Optional[int], ending: Ending) -> Dict[str, Any]:
    if ending.signal == "SIGKILL" and batch is not None:
        reason = "killed by the kernel: out of memory"
        return asdict(BatchTrial(batch, fits=False, reason=reason))
    raise Refused("{}: the process was lost: {}".format(job.model, ending.how()))


def _serve(job: Job, place: Place, pipe: Any) -> None:
    """The child: create a bench and answer requests until the pipe is closed."""
    if not place.is_gpu:
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # if memory runs out, the kernel kills this process first
    try:
        pipe.recv()
        bench = Bench(job, place)
        pipe.send(bench.facts())
        while True:
            pipe.send(asdict(bench.trial(pipe.recv())))
    except EOFError:
        return
    except Refused as error:
        pipe.send({"refused": str(error)})
