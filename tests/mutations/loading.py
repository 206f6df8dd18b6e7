"""Faults of data loading. Workers are forked, so what is patched here is so in them."""

from __future__ import annotations

import errno
import os
import time
from typing import Any, Iterator
from unittest.mock import patch

from tests.mutations import rows

NEVER = 600.0


class SmallShm:
    """What os.statvfs says of Docker's default."""

    f_frsize = 4096
    f_blocks = f_bavail = (64 << 20) // 4096


class FullShm(SmallShm):
    """Large, but filled by others."""

    f_blocks = (8 << 30) // 4096
    f_bavail = 100


def put(where: Any, name: str, value: Any) -> None:
    """Replace something, in this child."""
    patch.object(where, name, value).start()


def shrink_shm() -> None:
    _replace_shm(SmallShm())


def fill_shm() -> None:
    _replace_shm(FullShm())


def _replace_shm(size: Any) -> None:
    real = os.statvfs
    put(os, "statvfs", lambda path: size if path == "/dev/shm" else real(path))


def remove_shm() -> None:
    from verify.checks.loading import room

    put(room, "SHM", "/dev/no-such-folder")


def refuse_room() -> None:
    def fallocate(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    put(os, "posix_fallocate", fallocate)


def mount_read_only() -> None:
    real = os.open

    def only_reading(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if str(path).startswith("/dev/shm/"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *more, **named)

    put(os, "open", only_reading)


def garble_shm() -> None:
    real = os.pread
    put(os, "pread", lambda *where: real(*where)[:-1] + b"?")


def limit_files() -> None:
    """For real."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))


def limit_threads() -> None:
    """As under a small pids.max: the kernel refuses clone(), and Python says this."""
    import threading

    real, started = threading.Thread.start, []

    def start(thread: Any) -> None:
        started.append(thread)
        if len(started) > 10:
            raise RuntimeError("can't start new thread")
        real(thread)

    put(threading.Thread, "start", start)


def limit_group() -> None:
    """A control group with room for twenty: what the report says of it."""
    from verify.device import limits

    put(limits, "read", lambda *_: limits.Limits(processes=20, processes_now=12))
    limit_threads()


def kill_worker_by_bus_error() -> None:
    """What the kernel does where a mapping of /dev/shm cannot grow."""
    import signal

    from verify.workloads import samples

    put(samples.Batches, "__getitem__", lambda *_: os.kill(os.getpid(), signal.SIGBUS))


def refuse_shared_memory() -> None:
    """What newer torch says in a worker where /dev/shm is full; the parent hears nothing."""
    import torch

    from verify.checks.loading import workers as loading

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(
            "unable to allocate shared memory(shm) for file </torch_1_2_0>:"
            " No space left on device (28)"
        )

    put(loading, "HANG_S", 3.0)
    put(torch.UntypedStorage, "_share_fd_cpu_", refuse)


def deliver_stale_batches() -> None:
    from verify.workloads import samples

    real = samples.Batches.__getitem__
    put(samples.Batches, "__getitem__", lambda self, i: real(self, max(0, i - 1)))


def drop_last_batch() -> None:
    _sample(lambda numbers: numbers[:-1])


def drop_a_sample() -> None:
    _sample(lambda numbers: [n for n in numbers if n != 11])


def repeat_a_sample() -> None:
    _sample(lambda numbers: [*numbers, 11])


def lose_the_order() -> None:
    _sample(lambda numbers: numbers[::-1])


def _sample(change: Any) -> None:
    from torch.utils.data import SequentialSampler

    def changed(sampler: Any) -> "Iterator[int]":
        return iter(change(list(range(len(sampler.data_source)))))

    put(SequentialSampler, "__iter__", changed)


def garble_a_batch() -> None:
    """One value of one image, on its way through the queue."""
    from torch.utils.data import _utils

    real = _utils.collate.default_collate

    def collate(rows: Any) -> Any:
        images, numbers = real(rows)
        images[0, 0, 0, 0] += 1
        return images, numbers

    put(_utils.collate, "default_collate", collate)


def _in_worker(act: Any) -> None:
    """Do something in a worker's fifth sample."""
    from torch.utils.data import get_worker_info

    from verify.workloads import samples

    real = samples.Images.__getitem__

    def changed(images: Any, index: int) -> Any:
        if index == 5 and get_worker_info() is not None:
            act()
        return real(images, index)

    put(samples.Images, "__getitem__", changed)


def hang_in_worker() -> None:
    from verify.checks.loading import workers as loading

    put(loading, "HANG_S", 3.0)
    _in_worker(lambda: time.sleep(NEVER))


def crash_in_worker() -> None:
    _in_worker(lambda: os._exit(3))


def kill_in_worker() -> None:
    """As the out-of-memory killer does."""
    import signal

    _in_worker(lambda: os.kill(os.getpid(), signal.SIGKILL))


def break_spawn() -> None:
    """For real: an interpreter that is told a wrong home does not come up."""
    os.environ["PYTHONHOME"] = "/nonexistent"


def hang_in_forked_worker() -> None:
    from verify.checks.loading import forks
    from verify.workloads import samples

    put(forks, "FORK_S", 4.0)
    put(samples.Sums, "__getitem__", lambda *_: time.sleep(NEVER))


def miscount_in_forked_worker() -> None:
    from verify.workloads import samples

    put(samples.Sums, "__getitem__", lambda *_: 7)


def fake_gpu() -> None:
    """Workers as they behave on a GPU: torch refuses CUDA in a forked one."""
    from verify.backends.pytorch import Place
    from verify.checks.loading import forks
    from verify.workloads.samples import Sums

    def start(method: str, device: str, _: Any) -> Any:
        if (method, device) == ("fork", "cuda"):
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
        return [Sums.answer(i) for i in range(forks.SAMPLES)]

    put(forks, "find", lambda _: (None, Place("cuda")))
    put(forks, "_start", start)


def hang_where_cuda_is_forked() -> None:
    from verify.checks.loading import forks

    put(forks, "FORK_S", 3.0)
    real = forks._start

    def start(method: str, device: str, place: Any) -> Any:
        if (method, device) == ("fork", "cuda"):
            time.sleep(NEVER)
        return real(method, device, place)

    put(forks, "_start", start)


ROWS = {
    "pytorch": (
        *rows(
            "loading.shm",
            ("/dev/shm has Docker's default of 64 MB", shrink_shm, "--shm-size"),
            ("/dev/shm is full of other files", fill_shm, "leftover"),
            ("there is no /dev/shm", remove_shm, "cannot be used"),
            ("/dev/shm has room but refuses it", refuse_room, "no room for"),
            ("/dev/shm is read-only", mount_read_only, "cannot be written"),
            ("a byte of a file changes", garble_shm, "does not contain"),
            level="quick",
        ),
        *rows(
            "loading.files",
            ("256 files may be open", limit_files, "--ulimit nofile"),
            ("ten threads may run", limit_threads, "--pids-limit"),
            ("pids.max is 20", limit_group, "limit 20, 12 in use"),
            level="quick",
        ),
        *rows(
            "loading.batch",
            ("a worker dies of a bus error", kill_worker_by_bus_error, "--shm-size"),
            ("a worker has no room", refuse_shared_memory, "--shm-size"),
            ("workers deliver stale batches", deliver_stale_batches, "wrong content"),
            ("the last batch never comes", drop_last_batch, " came"),
        ),
        *rows(
            "loading.workers",
            ("the sampler drops a sample", drop_a_sample, "1 of"),
            ("the sampler repeats a sample", repeat_a_sample, "were repeated"),
            ("the order is lost", lose_the_order, "the order was lost"),
            ("a value of a batch changes", garble_a_batch, "wrong content"),
            ("a worker hangs", hang_in_worker, "a worker hangs"),
            ("a worker exits", crash_in_worker, "worker or the loader crashed"),
            ("a worker is killed", kill_in_worker, "more memory"),
        ),
        *rows(
            "loading.fork",
            ("a forked worker hangs", hang_in_forked_worker, "that was not forked"),
            ("a forked worker miscounts", miscount_in_forked_worker, "0 of 8"),
            ("spawned interpreters do not start", break_spawn, "spawn"),
        ),
        *rows(
            "loading.fork",
            (
                "CUDA in a forked worker hangs",
                hang_where_cuda_is_forked,
                "workers started with fork that compute on the GPU",
            ),
            sound=fake_gpu,
        ),
    )
}
