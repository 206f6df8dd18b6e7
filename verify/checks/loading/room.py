"""Room for workers: /dev/shm, open files, processes. Low limits make training fail hours later."""

from __future__ import annotations

import errno
import os
import resource
import threading
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional

from verify.device import limits
from verify.device.machine import device_nodes
from verify.model.check import NODE, Context, Outcome, Status
from verify.workloads.samples import Batches

SHM = "/dev/shm"  # noqa: S108
PREFETCH = 2  # DataLoader's default: batches that each worker keeps ready
TENSORS = 2  # of a batch: inputs and target
# What NCCL takes for a connection between two GPUs without peer access (its own messages name the
# size: "Error while creating shared memory segment ... (size 9637888)"); two channels, each with a
# ring and a tree.
NCCL_SEGMENT, NCCL_CONNECTIONS = 9637888, 4
OWN_FILES = 256  # kept for the interpreter, libraries, CUDA's device files, sockets, logs
WORKER_FILES = 6  # pipes and semaphores of one worker, as the parent holds them
OWN_THREADS = 32  # kept for autograd, CUDA, NCCL and pinning, besides one thread for each CPU
WORKER_THREADS = 2  # itself, and the thread that feeds its queue
SHM_FIX = (
    "start the container with --shm-size {}g or --ipc host; in Kubernetes mount an emptyDir with"
    " medium: Memory at /dev/shm"
)
MIB = 1 << 20
_PATTERN = bytes(range(256)) * 4096  # 1 MiB


@dataclass(frozen=True)
class MemoryNeed:
    """The needs of a usual training job: up to four workers, batches of 32 images of 224 x 224."""

    workers: int
    gpus: int = 0
    cpus: int = 1

    @property
    def loader_bytes(self) -> int:
        """Each worker's batches, and the one that the training step holds."""
        return (self.workers * PREFETCH + 1) * Batches.BYTES

    @property
    def nccl_bytes(self) -> int:
        """NCCL's need if there are several GPUs and they must communicate through the host."""
        return self.gpus * NCCL_CONNECTIONS * NCCL_SEGMENT if self.gpus > 1 else 0

    @property
    def shm_bytes(self) -> int:
        """All that is used in /dev/shm at the same time."""
        return self.loader_bytes + self.nccl_bytes

    @property
    def files(self) -> int:
        """Open files: torch passes each tensor as a file descriptor."""
        in_flight = (self.workers * PREFETCH + 1) * TENSORS
        return OWN_FILES + self.workers * WORKER_FILES + in_flight

    @property
    def processes(self) -> int:
        """Processes and threads, which the kernel counts alike."""
        return OWN_THREADS + self.cpus + self.workers * WORKER_THREADS

    def shm_words(self) -> str:
        """What the need consists of, in words."""
        said = "{} workers with {} batches of {:.1f} MiB each and the one in use need {:.0f} MiB"
        batches = PREFETCH, Batches.BYTES / MIB, self.loader_bytes / MIB
        nccl = ", and NCCL {:.0f} MiB".format(self.nccl_bytes / MIB) if self.nccl_bytes else ""
        return said.format(self.workers, *batches) + nccl


def usual_need() -> MemoryNeed:
    """For this container's CPUs and GPUs."""
    count = limits.cpus(limits.read())
    return MemoryNeed(min(4, max(2, count)), len(device_nodes()), count)


@dataclass(frozen=True)
class Shm:
    """The folder's state. `size` is None if it does not exist; `wrote` if writing was not tried."""

    size: Optional[int]
    free: int = 0
    error: Optional[str] = None  # why it cannot be used
    full: bool = False  # the error was a lack of space
    wrote: Optional[int] = None
    damaged: bool = False
    own: bool = True  # a file system of its own, and not a folder of another one


def check_shm(context: Context) -> Outcome:  # noqa: ARG001
    """Check its size, and if that is enough, write as much as will be needed."""
    need = usual_need()
    found = _look()
    if found.size is not None and min(found.size, found.free) >= need.shm_bytes:
        found = _try(found, _affordable(need.shm_bytes))
    return judge_shm(found, need)


def _look() -> Shm:
    try:
        size = os.statvfs(SHM)
    except OSError as error:
        return Shm(None, error=error.strerror)
    block = size.f_frsize
    return Shm(block * size.f_blocks, block * size.f_bavail, own=os.path.ismount(SHM))


def _affordable(size: int) -> int:
    """Half of the memory left: files there are memory and count for the container's limit."""
    available = limits.memory_available(limits.read())
    return size if available is None else min(size, available // 2)


def _try(found: Shm, size: int) -> Shm:
    """Reserve (which fails cleanly; a mapped write would raise SIGBUS), write, read, remove."""
    path = os.path.join(SHM, "verify-{}".format(os.getpid()))
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        return Shm(**{**asdict(found), "error": error.strerror})
    try:
        os.unlink(path)
        os.posix_fallocate(file, 0, size)
        return Shm(**{**asdict(found), "wrote": size, "damaged": not _keeps(file, size)})
    except OSError as error:
        full = error.errno == errno.ENOSPC
        return Shm(**{**asdict(found), "error": error.strerror, "full": full})
    finally:
        os.close(file)


def _keeps(file: int, size: int) -> bool:
    for start in range(0, size, len(_PATTERN)):
        os.pwrite(file, _PATTERN[: size - start], start)
    return all(
        os.pread(file, len(_PATTERN), start) == _PATTERN[: size - start]
        for start in range(0, size, len(_PATTERN))
    )


def judge_shm(found: Shm, need: MemoryNeed) -> Outcome:
    """Whether the workers' batches fit, and can be written."""
    measured: Dict[str, Any] = {"size": found.size, "free": found.free, "wrote": found.wrote}
    expected = {"free": need.shm_bytes, "workers": need.workers, "batch_bytes": Batches.BYTES}

    def fail(message: str, cause: str, fix: str, whose: Optional[str] = None) -> Outcome:
        return Outcome(Status.FAIL, message, cause, fix, measured, expected, whose)

    fix = SHM_FIX.format(max(1, -(-3 * need.shm_bytes // (2 << 30))))
    if found.size is None:
        message = "{} cannot be used: {}".format(SHM, found.error)
        return fail(message, "workers pass their batches through it, and NCCL its data", fix)
    if found.size < need.shm_bytes:
        message = "{} has {:.0f} MiB; {}".format(SHM, found.size / MIB, need.shm_words())
        default = "64 MB is Docker's default; " if found.size == 64 << 20 else ""
        cause = default + "a worker that finds no room hangs or is killed by SIGBUS"
        return fail(message, cause, fix)
    if found.free < need.shm_bytes or found.full:
        message = "{} has {:.0f} of {:.0f} MiB free{}; {}"
        full = " but no room for a file" if found.full else ""
        message = message.format(SHM, found.free / MIB, found.size / MIB, full, need.shm_words())
        cause = "files of other or crashed jobs fill it, or the container is out of memory"
        return fail(message, cause, "list it with ls -l {} and remove leftover files".format(SHM))
    if found.error is not None:
        message = "{} cannot be written: {}".format(SHM, found.error)
        cause = "it is mounted read-only, or this user has no permission"
        return fail(message, cause, "mount it as a tmpfs with mode 1777: --tmpfs /dev/shm:size=1g")
    if found.damaged:
        message = "a file in {} does not contain what was written to it".format(SHM)
        fix = "test the host's memory with memtest86+"
        return fail(message, "the host's memory is faulty", fix, NODE)
    message = "{} has {:.0f} of {:.0f} MiB free; {}".format(
        SHM, found.free / MIB, found.size / MIB, need.shm_words()
    )
    if found.wrote is not None and found.wrote < need.shm_bytes:
        message += "; only {:.0f} MiB tested, because little memory is free".format(
            found.wrote / MIB
        )
    message += "" if found.own else "; it is on another file system, so it may be slow"
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


@dataclass(frozen=True)
class MemoryRoom:
    """The current limits (None: no limit), and how many could actually be used at a time."""

    files_soft: Optional[int]
    files_hard: Optional[int]
    files_had: int
    processes_limit: Optional[int]  # the tightest of RLIMIT_NPROC and the group's
    processes_now: Optional[int]
    processes_had: int
    files_error: Optional[str] = None
    processes_error: Optional[str] = None


def check_files(context: Context) -> Outcome:  # noqa: ARG001
    """Open as many files and start as many threads as a usual job has."""
    need = usual_need()
    found = limits.read()
    soft, hard = (_finite(value) for value in resource.getrlimit(resource.RLIMIT_NOFILE))
    user = _finite(resource.getrlimit(resource.RLIMIT_NPROC)[0])
    group = found.processes
    known = [limit for limit in (user, group) if limit is not None]
    files_had, files_error = _open(need.files)
    threads_had, threads_error = _start(need.processes)
    room = MemoryRoom(
        files_soft=soft,
        files_hard=hard,
        files_had=files_had,
        processes_limit=min(known, default=None),
        processes_now=found.processes_now if group is not None else None,
        processes_had=threads_had,
        files_error=files_error,
        processes_error=threads_error,
    )
    return judge_room(room, need)


def _finite(value: int) -> Optional[int]:
    return None if value == resource.RLIM_INFINITY or value < 0 else value


def _open(count: int) -> "tuple[int, Optional[str]]":
    """How many more files can be open at a time, up to `count`."""
    files: List[int] = []
    try:
        while len(files) < count:
            files.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return len(files), error.strerror
    finally:
        for file in files:
            os.close(file)
    return len(files), None


def _start(count: int) -> "tuple[int, Optional[str]]":
    """How many threads can run at a time, up to `count`."""
    done = threading.Event()
    threads: List[threading.Thread] = []
    try:
        while len(threads) < count:
            thread = threading.Thread(target=done.wait, daemon=True)
            thread.start()
            threads.append(thread)
    except (RuntimeError, OSError) as error:
        return len(threads), str(error)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    return len(threads), None


def judge_room(room: MemoryRoom, need: MemoryNeed) -> Outcome:
    """Whether a usual job has enough files and processes; a low limit above that is reported."""
    measured = asdict(room)
    expected = {"files": need.files, "processes": need.processes, "workers": need.workers}

    def fail(message: str, cause: str, fix: str) -> Outcome:
        return Outcome(Status.FAIL, message, cause, fix, measured, expected)

    if room.files_had < need.files or (room.files_soft or need.files) < need.files:
        message = "{} files can be opened (limit {}); {} workers need {}".format(
            room.files_had, _limit(room.files_soft), need.workers, need.files
        )
        cause = "the limit of open files is low: {}".format(room.files_error or "ulimit -n")
        return fail(message, cause, _files_fix(room))
    if room.processes_had < need.processes:
        message = "{} threads can be started (limit {}, {} in use); {} workers on {} CPUs need {}"
        used = "unknown" if room.processes_now is None else str(room.processes_now)
        message = message.format(
            room.processes_had,
            _limit(room.processes_limit),
            used,
            need.workers,
            need.cpus,
            need.processes,
        )
        cause = "the limit of processes is low (threads count too): {}".format(
            room.processes_error or "pids.max"
        )
        fix = "start the container with --pids-limit 4096 and --ulimit nproc=65536; in Kubernetes"
        return fail(message, cause, fix + " raise podPidsLimit")
    message = "{} open files, {} processes: enough for {} workers".format(
        _limit(room.files_soft), _limit(room.processes_limit), need.workers
    )
    if room.files_soft is not None and room.files_soft <= 1024:
        spare = room.files_soft - need.files
        message += "; {} files leave room for {} more tensors or shards; a job with many".format(
            room.files_soft, spare
        )
        message += " wants --ulimit nofile=65536"
    return Outcome(Status.PASS, message, measured=measured, expected=expected)


def _limit(value: Optional[int]) -> str:
    return "no limit" if value is None else str(value)


def _files_fix(room: MemoryRoom) -> str:
    fix = "start the container with --ulimit nofile=65536"
    hard, soft = room.files_hard, room.files_soft
    if soft is not None and (hard is None or hard > soft):
        fix += ", or raise it inside by ulimit -n {}".format(65536 if hard is None else hard)
    return fix
