"""One node's part: it joins the others, starts its ranks, and returns the report of all.

This process imports no framework: what may hang or crash runs in children with a time limit.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Dict, List, Optional, Sequence

from verify.across import coordinator, diagnosis, work
from verify.across.wire import Wire, interface_of, listen
from verify.checks.collectives import bandwidth, nccl_log, ranks, room
from verify.checks.collectives.ranks import Rank, Team, Trace
from verify.model import frameworks
from verify.model.check import Context, Status
from verify.running.children import Child, Ending, scratch

_GRACE_S = 5.0  # for the other ranks' own errors, once one is lost
_ALIVE_S = 2.0
_POLL_S = 0.02
_TRY_S = 5.0
_LOG_BYTES = 8192
_NO_STORE = "connection closed by the first rank: it opened no store"  # as of a rank lost to it


@dataclass(frozen=True)
class AcrossOptions:
    """What the command line says. `sizes` in bytes; times in seconds; `run` is any text that is the
    same on all nodes of one run.
    """

    rank: int
    world: int
    host: str
    port: int
    run: str = ""
    sizes: Sequence[int] = ()
    join_s: float = 120.0
    limit_s: float = 300.0


def run(options: AcrossOptions) -> Dict[str, Any]:
    """Take part in one run. Returns the report, within the two limits and less than a minute."""
    hello = _hello(options)
    if "status" in hello:
        return hello
    desk: Optional[Child] = None
    try:
        if options.rank == 0:
            try:
                listener = listen(options.port)
            except OSError as error:
                return _not_listening(options, error)
            desk = Child(
                lambda: coordinator.serve(
                    listener, options.world, options.run, options.join_s, options.limit_s
                )
            )
            listener.close()
        line = _connect(options)
        if isinstance(line, dict):
            return line
        return _take_part(options, line, hello)
    finally:
        if desk is not None:
            desk.wait(10.0)


def _hello(options: AcrossOptions) -> Dict[str, Any]:
    """What this node says of itself; or the report if it cannot take part."""
    name = frameworks.choose(None, None)
    framework = frameworks.FRAMEWORKS[name]
    if name != "pytorch":
        message = "collectives across nodes are tested with PyTorch only; this image has {}".format(
            framework.title
        )
        fix = "run an image with PyTorch on these nodes"
        return diagnosis.failure(
            "across-framework", message, "not supported", fix, status=Status.SKIP
        )
    broken, team = ranks.find_team(Context())
    gpus = team.backend == "nccl"
    return {
        "number": options.rank,
        "world": options.world,
        "run": options.run,
        "name": socket.gethostname(),
        "ranks": team.size if gpus else 1,
        "backend": team.backend,
        "framework": "{} {}".format(framework.title, framework.version()),
        "broken": broken and broken.as_dict(),
    }


def _not_listening(options: AcrossOptions, error: OSError) -> Dict[str, Any]:
    message = "the first node cannot listen on port {}: {}".format(options.port, error.strerror)
    cause, fix = "another program uses the port", "choose another port: --master HOST:PORT"
    return diagnosis.failure("across-port-taken", message, cause, fix, blamed=[0])


def _connect(options: AcrossOptions) -> Any:
    """A line to the first node; or the report if it cannot be reached within the limit."""
    deadline = time.monotonic() + options.join_s
    host = "localhost" if options.rank == 0 and not _resolves(options.host) else options.host
    while True:
        try:
            left = max(0.1, min(_TRY_S, deadline - time.monotonic()))
            sock = socket.create_connection((host, options.port), timeout=left)
            return Wire(sock)
        except OSError as error:  # the first node may not have started yet
            said = error
        if time.monotonic() > deadline:
            return _unreachable(options, said)
        time.sleep(0.2)


def _resolves(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return False
    return True


def _unreachable(options: AcrossOptions, error: OSError) -> Dict[str, Any]:
    where = "{}:{}".format(options.host, options.port)
    said = "{} after {:.0f} s".format(error.strerror or error, options.join_s)
    if isinstance(error, socket.gaierror):
        message = "the first node's name {} has no address here: {}".format(options.host, said)
        cause = "this node cannot look the name up"
        fix = "give its address: --master ADDRESS:PORT"
        return diagnosis.failure("across-master-unknown", message, cause, fix)
    message = "the first node does not answer at {}: {}".format(where, said)
    cause = "the command does not run there, or a firewall or the wrong network is in between"
    fix = "see that it was started with --rank 0 there, and that the port can be reached from here"
    return diagnosis.failure("across-master-unreachable", message, cause, fix)


# Once connected


def _take_part(options: AcrossOptions, line: Wire, hello: Dict[str, Any]) -> Dict[str, Any]:
    line.send(hello)
    # Node 0 waits for the others as long as it was told, and they may have come before it.
    told = _await(line, ("go", "end", "refused"), 2 * options.join_s + 30.0)
    if "go" not in told:
        return _ended(told, line)
    go = told["go"]
    team = Team(hello["backend"], int(go["world"]))
    folder = scratch()
    try:
        members = [Rank(int(go["first"]) + gpu, team, folder, gpu) for gpu in range(hello["ranks"])]
        _set_environment(go["address"] or line.own_address)
        end = _work(options, line, members)
        if isinstance(end, dict):
            return end
        line.send({"done": end_message(end, members)})
        limit_s = options.limit_s + 60.0  # the slowest node's; the first node has the exact limit
        return _ended(_await(line, ("end",), limit_s), line)
    finally:
        line.close("done")
        shutil.rmtree(folder, ignore_errors=True)


def _await(line: Wire, keys: Sequence[str], limit_s: float) -> Dict[str, Any]:
    """The first message with one of these keys; {} if the line ends or the limit passes."""
    deadline, alive = time.monotonic() + limit_s, _Alive(line)
    while time.monotonic() < deadline:
        message = line.take(keys)
        if message or line.closed is not None:
            return message
        alive.tell()
        time.sleep(_POLL_S)
    return {}


class _Alive:
    """Tells the first node now and then that this one is there."""

    def __init__(self, line: Wire) -> None:
        self._line = line
        self._told = time.monotonic()

    def tell(self) -> None:
        if time.monotonic() - self._told > _ALIVE_S:
            self._told = time.monotonic()
            self._line.send({"alive": True})


def _ended(message: Dict[str, Any], line: Wire) -> Dict[str, Any]:
    if isinstance(message.get("end"), dict):
        return dict(message["end"])
    if "refused" in message:
        said = str(message["refused"])
        fix = "end the other run, or choose another port"
        return diagnosis.failure("across-mismatch", said, "two runs use one port", fix)
    why = line.closed or "it does not answer"
    cause = "the first node or its job ended, or the network to it"
    fix = "see whether the node is up, and whether its job was ended"
    message_ = "the first node was lost: {}".format(why)
    return diagnosis.failure("across-node-lost", message_, cause, fix, blamed=[0])


def _set_environment(address: str) -> None:
    """Without a setting gloo takes the address of the machine's own name, which is often 127.0.1.1;
    NCCL looks for an interface itself, as it does in training.
    """
    name = interface_of(address)
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        if name == "lo":
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
    os.environ.setdefault("NCCL_DEBUG", "INFO")


def _work(options: AcrossOptions, line: Wire, members: Sequence[Rank]) -> Any:
    """Start the ranks and wait for them: their endings, or the report if the first node is lost."""
    deadline = time.monotonic() + options.limit_s
    host, port = ("127.0.0.1" if options.rank == 0 else options.host), 0
    children: List[Child] = []
    try:
        if members[0].index == 0:  # it has the store, and the others need its port
            children.append(_start(options, members[0], host, 0))
            port = _store_port(line, members[0].folder, children[0], deadline)
            line.send({"store": port})
        else:
            told = _await(line, ("store", "stop", "end"), options.limit_s)
            if not told or "end" in told:
                return _ended(told, line)
            port = int(told.get("store", 0))
        if port:
            children += [_start(options, rank, host, port) for rank in members[len(children) :]]
        ends = _watch(line, children, deadline)
        return ends + [Ending(raised=_NO_STORE) for _ in members[len(ends) :]]
    finally:
        for child in children:
            child.kill()


def _start(options: AcrossOptions, rank: Rank, host: str, port: int) -> Child:
    meeting = work.Meeting(host, port, options.limit_s)
    wanted = options.sizes or room.sizes(bandwidth.LARGEST[rank.team.backend]["standard"])

    def live() -> object:
        keep: List[Any] = []
        os.environ.setdefault("NCCL_DEBUG_FILE", ranks.log_path(rank.folder, rank.index))
        job = ranks.life(
            rank, lambda r: work.exercise(r, wanted), work.join(meeting, keep), work.leave(keep)
        )
        return job()

    return Child(live)


def _store_port(line: Wire, folder: str, child: Child, deadline: float) -> int:
    """The port of the first rank's store; 0 if it ended before it had one, or the run did."""
    path, alive = work.port_path(folder), _Alive(line)
    while time.monotonic() < deadline and not line.take(("stop",)) and line.closed is None:
        alive.tell()
        if os.path.exists(path):
            with open(path, encoding="ascii") as file:
                return int(file.read())
        if child.poll() is not None:
            break
        time.sleep(_POLL_S)
    return 0


def _watch(line: Wire, children: Sequence[Child], deadline: float) -> List[Ending]:
    alive, failing = _Alive(line), False
    while time.monotonic() < deadline:
        endings = [child.poll() for child in children]
        if all(ending is not None for ending in endings):
            break
        lost = any(ending is not None and not ending.returned for ending in endings)
        stop = bool(line.take(("stop",))) or line.closed is not None
        if (lost or stop) and not failing:
            failing = True
            line.send({"failing": True})
            deadline = min(deadline, time.monotonic() + _GRACE_S)
        alive.tell()
        time.sleep(_POLL_S)
    return [child.kill() for child in children]


def end_message(endings: Sequence[Ending], members: Sequence[Rank]) -> Dict[str, Any]:
    """How the ranks ended, for the first node; of NCCL's logs the ends of lost ranks' alone."""
    traces = [ranks.trace(rank.folder, rank.index) for rank in members]
    ways = nccl_log.transports("\n".join(trace.log for trace in traces))
    shown = [_cut(trace, ending) for trace, ending in zip(traces, endings)]
    return {
        "endings": [asdict(ending) for ending in endings],
        "traces": [asdict(trace) for trace in shown],
        "transports": list(ways),
    }


def _cut(trace: Trace, ending: Ending) -> Trace:
    return replace(trace, log="" if ending.returned else trace.log[-_LOG_BYTES:])
