"""Ranks: forked processes that form one torch.distributed world, and reports of lost ranks.

Each rank runs in a child with a time limit, notes its current step, and lets NCCL log to a file, so
that a hang is reported with its step and NCCL's own messages. JAX and TensorFlow have all devices
in one process: there one child works for all ranks.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from verify.backends.pytorch import Place, find, find_gpus
from verify.checks.collectives import nccl_log
from verify.model.check import Context, Outcome, Status, gpus
from verify.running.children import TAIL_BYTES, Child, Ending, scratch, wait_all
from verify.running.runner import judge_ending
from verify.running.symptoms import explain, last_words

LOOK_LIMIT_S = 60.0
CPU_RANKS = 2
LEAVING = "the end of the process group"
ONE_GPU = "one GPU: nothing to transfer between GPUs"
P2P_FIX = (
    "try NCCL_P2P_DISABLE=1: if that fixes it, switch PCIe ACS and the IOMMU off in the host's BIOS"
    " (or boot with iommu=pt)"
)
# A rank with this message lost another one: it did not fail itself.
_ECHO = re.compile(
    r"[Cc]onnection closed by|Connection reset|Broken pipe|remote process exited|"
    r"Socket [Tt]imeout|ncclRemoteError"
)


@dataclass(frozen=True)
class Team:
    """The ranks of a world. NCCL connects GPUs, and gloo processes on the CPU; JAX and TensorFlow
    connect CPU devices themselves, and then their names are used here.
    """

    backend: str
    size: int

    @property
    def kind(self) -> str:
        """The device's kind, for `measured`: "cuda" or "cpu"."""
        return "cuda" if self.backend == "nccl" else "cpu"

    @property
    def words(self) -> str:
        """Who took part, for messages."""
        if self.backend == "nccl":
            return gpus(self.size) + " over NCCL"
        if self.backend == "gloo":
            return "{} processes on the CPU over gloo".format(self.size)
        return "{} devices of the CPU by {}".format(self.size, self.backend)

    @property
    def note(self) -> str:
        """What the team could not test, as the end of a message."""
        if self.kind == "cpu":
            return "; NCCL not tested"
        return "; " + ONE_GPU if self.size == 1 else ""


@dataclass(frozen=True)
class Rank:
    """One process of a world."""

    index: int
    team: Team
    folder: str  # shared by all ranks of this world, or of this node
    gpu: Optional[int] = None  # of this node, if that is not the index

    @property
    def place(self) -> Place:
        """The device it computes on."""
        gpu = self.index if self.gpu is None else self.gpu
        return Place(self.team.kind, gpu if self.team.kind == "cuda" else 0)

    def at(self, step: str) -> None:
        """Note the next step, in case the rank does not return."""
        path = _step_path(self.folder, self.index)
        count = _step(_read(path))[0] + 1
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write("{} {}".format(count, step))
        os.replace(path + ".new", path)  # if the rank is killed, one of the two is complete


@dataclass(frozen=True)
class Trace:
    """A rank's traces: how many steps it began, the last of them, and NCCL's log."""

    count: int = 0
    step: str = ""
    log: str = ""


@dataclass(frozen=True)
class World:
    """How every rank ended."""

    team: Team
    endings: Tuple[Ending, ...]
    traces: Tuple[Trace, ...] = ()
    together: bool = False  # one process has all the devices

    @property
    def lost(self) -> bool:
        """Whether a rank did not return a value."""
        return not self.endings or any(not ending.returned for ending in self.endings)

    @property
    def values(self) -> List[Any]:
        """The ranks' return values, in order."""
        if self.together:
            return list(self.endings[0].value)
        return [ending.value for ending in self.endings]

    @property
    def seconds(self) -> float:
        """How long the slowest rank ran."""
        return round(max((e.seconds for e in self.endings), default=0.0), 3)


Look = Callable[[Context], Dict[str, Any]]


def find_team(
    context: Context, look: Optional[Look] = None, on_cpu: str = "gloo"
) -> Tuple[Optional[Outcome], Team]:
    """Every GPU, or CPU ranks if nothing hints at a GPU; or the outcome that says what is wrong.

    A child counts GPUs: this process forks ranks afterwards, so it must not start CUDA itself.
    `look` is another framework's way to count, and `on_cpu` names what connects CPU devices there.
    """
    looked = Child(lambda: (look or _look)(context)).wait(LOOK_LIMIT_S)
    if not looked.returned:
        world = World(Team("nccl", 1), (looked,))
        return judge_lost(world, "starting CUDA"), world.team
    broken, count = looked.value["broken"], looked.value["gpus"]
    team = Team("nccl", count) if count else Team(on_cpu, CPU_RANKS)
    return broken and Outcome.from_dict(broken), team


def _look(context: Context) -> Dict[str, Any]:
    broken, place = find(context)
    return looked(broken, len(find_gpus(context)[1]) if place.is_gpu else 0)


def looked(broken: Optional[Outcome], count: int) -> Dict[str, Any]:
    """A `Look`'s return value: what is wrong, or how many GPUs there are."""
    return {"broken": broken and broken.as_dict(), "gpus": count}


def run(team: Team, work: Callable[[Rank], object], limit_s: float) -> World:
    """Start the ranks, have each do the work within one process group, and wait for all."""
    folder = scratch()
    try:
        ranks = [Rank(index, team, folder) for index in range(team.size)]
        children = [Child(life(rank, work)) for rank in ranks]
        endings = wait_all(children, limit_s)
        traces = [trace(folder, rank.index) for rank in ranks]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return World(team, tuple(endings), tuple(traces))


def run_together(team: Team, work: Callable[[Rank], List[Any]], limit_s: float) -> World:
    """Start one process with all devices; `work` returns each device's value."""
    folder = scratch()
    try:
        rank = Rank(0, team, folder)

        def live() -> object:
            _set_environment(rank)
            return work(rank)

        ending = Child(live).wait(limit_s)
        said = trace(folder, 0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return World(team, (ending,), (said,), together=True)


def life(
    rank: Rank,
    work: Callable[[Rank], object],
    join: Optional[Callable[[Rank], None]] = None,
    leave: Optional[Callable[[Rank], None]] = None,
) -> Callable[[], object]:
    """What a rank's process does. `join` and `leave` are those of a world on this machine, unless
    others are given.
    """

    def live() -> object:
        if join is None:
            _set_environment(rank)
        (join or _join)(rank)
        value = work(rank)
        rank.at(LEAVING)
        (leave or _leave)(rank)
        return value

    return live


def _set_environment(rank: Rank) -> None:
    """Set the variables of a world on the loopback. What the user has set is kept."""
    os.environ.setdefault("NCCL_DEBUG", "INFO")
    os.environ.setdefault("NCCL_DEBUG_FILE", log_path(rank.folder, rank.index))
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def take_device(rank: Rank) -> None:
    """Let this process compute on the rank's device."""
    import torch

    if rank.place.is_gpu:
        torch.cuda.set_device(rank.place.index)
    else:
        torch.set_num_threads(1)  # the ranks share the CPUs


def _join(rank: Rank) -> None:
    import torch.distributed as dist

    take_device(rank)
    rank.at("the start of the process group")
    store = "file://{}/store".format(rank.folder)
    size = rank.team.size
    dist.init_process_group(rank.team.backend, init_method=store, rank=rank.index, world_size=size)


def _leave(rank: Rank) -> None:
    """Leave when no rank needs this one any more.

    NCCL is shut down normally. Gloo is not: on a busy machine its ranks may wait for each other
    forever, and the process is about to end anyway.
    """
    if rank.team.backend == "gloo":
        while any(_step(_read(path))[1] != LEAVING for path in _step_paths(rank)):
            time.sleep(0.01)
        return
    import torch.distributed as dist

    dist.destroy_process_group()


def _step_paths(rank: Rank) -> List[str]:
    return [_step_path(rank.folder, index) for index in range(rank.team.size)]


def _step_path(folder: str, index: int) -> str:
    return os.path.join(folder, "step-{}".format(index))


def log_path(folder: str, index: int) -> str:
    """Where NCCL logs for a rank."""
    return os.path.join(folder, "nccl-{}.log".format(index))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _step(text: str) -> Tuple[int, str]:
    count, _, step = text.partition(" ")
    return (int(count) if count.isdigit() else 0), step


def trace(folder: str, index: int) -> Trace:
    """What a rank left in the folder."""
    count, step = _step(_read(_step_path(folder, index)))
    return Trace(count, step, _read(log_path(folder, index)))


# A lost rank


def judge_lost(
    world: World,
    what: str,
    measured: Optional[Mapping[str, Any]] = None,
    expected: Optional[Mapping[str, Any]] = None,
    fix_else: Optional[str] = None,
) -> Outcome:
    """The failure if a rank was lost: which one failed first, where, and why. `fix_else` is the fix
    if the cause is not known.
    """
    lost = [(i, ending) for i, ending in enumerate(world.endings) if not ending.returned]
    traces = world.traces or (Trace(),) * len(world.endings)
    rank = _first(lost, traces)
    cause, fix = _explain(rank, lost, traces)
    said = _together(*lost[0][1:], traces[0]) if world.together else _who(rank, lost, traces)
    message = "{}: {}".format(what, said)
    log = "\n".join([*_outputs(rank, lost)[:1], traces[rank].log]).strip()[-TAIL_BYTES:]
    return Outcome(
        Status.FAIL,
        message.replace("\n", " "),
        cause,
        fix or fix_else or _default_fix(world.team, traces[rank].log),
        {**(measured or {}), "output": log},
        expected or {},
    )


def _together(ending: Ending, trace: Trace) -> str:
    """How the one process ended, and where."""
    return ending.how() + (", at " + trace.step if trace.step else "")


def _who(rank: int, lost: Sequence[Tuple[int, Ending]], traces: Sequence[Trace]) -> str:
    """Which rank failed, how and where; or that all of them hang at the same step."""
    ending, step = dict(lost)[rank], traces[rank].step
    where = ", at " + step if step else ""
    if len(traces) == len(lost) > 1 and all(e.timed_out for _, e in lost):
        if len({traces[i].count for i, _ in lost}) == 1:
            said = "none of {} ranks finished in {:.0f} s{}"
            return said.format(len(traces), ending.seconds, where)
        furthest = max((traces[i] for i, _ in lost), key=lambda trace: trace.count)
        where += ", while another was at " + furthest.step
    return "rank {} of {} {}{}".format(rank, len(traces), ending.how(), where)


def blamed(world: World) -> Tuple[int, bool]:
    """The rank that `judge_lost` names, and whether it is the one at fault: it failed by itself, or
    the others were further. It is not if all hang at the same step, or if it lost another one.
    """
    lost = [(i, ending) for i, ending in enumerate(world.endings) if not ending.returned]
    traces = world.traces or (Trace(),) * len(world.endings)
    rank = _first(lost, traces)
    ending = world.endings[rank]
    if ending.timed_out:
        behind = [i for i, _ in lost if traces[i].count == traces[rank].count]
        return rank, behind == [rank] and len(world.endings) > 1
    return rank, not _ECHO.search(ending.raised or "")


def _first(lost: Sequence[Tuple[int, Ending]], traces: Sequence[Trace]) -> int:
    """The rank to blame: one that failed by itself, else the hanging one that is furthest behind.

    A rank that only reports that it lost another is blamed last.
    """

    def order(row: Tuple[int, Ending]) -> Tuple[int, int, float]:
        index, ending = row
        if ending.timed_out:
            return 1, traces[index].count, ending.seconds
        return (2 if _ECHO.search(ending.raised or "") else 0), 0, ending.seconds

    return min(lost, key=order)[0]


def _explain(
    rank: int, lost: Sequence[Tuple[int, Ending]], traces: Sequence[Trace]
) -> Tuple[str, Optional[str]]:
    ending, log = dict(lost)[rank], traces[rank].log
    if ending.signal and not ending.timed_out:
        killed = judge_ending(ending)
        return str(killed.cause), killed.fix
    texts = [text for i, _ in lost for text in [nccl_log.telling(traces[i].log)] if text]
    outputs = _outputs(rank, lost)
    cause, fix = explain("\n".join([ending.raised or "", *texts, *outputs]))
    if ending.timed_out:
        hang = " ".join(filter(None, ("hang", nccl_log.phase(log))))
        cause = hang + (": " + cause if cause else "")
    words = next(iter(texts), "") or last_words("\n".join(outputs))
    if words:
        cause = "{}; the last words: {}".format(cause or "unknown", words)
    return cause or ending.how(), fix


def _outputs(rank: int, lost: Sequence[Tuple[int, Ending]]) -> List[str]:
    """The blamed rank's output, or else that of others that do not merely echo its end."""
    own = [ending.output for i, ending in lost if i == rank and ending.output]
    others = [e.output for _, e in lost if e.output and not _ECHO.search(e.raised or "")]
    return own or others


def _default_fix(team: Team, log: str) -> str:
    if team.backend == "gloo":
        return "see that the loopback interface is up and GLOO_SOCKET_IFNAME names it"
    if team.backend != "nccl":
        return "build the image again from its lock"
    if nccl_log.has(nccl_log.transports(log), "P2P"):
        return P2P_FIX
    return "run again with NCCL_DEBUG=INFO; try --ipc host and NCCL_P2P_DISABLE=1"
