"""The process on the first node where all nodes report: who is there, how it ended, the report.

It uses the standard library alone, so that a library that hangs or crashes does not take it along.
Every wait has a limit, and every node gets the report, or learns that this process is gone.
"""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional

from verify.across import diagnosis
from verify.across.diagnosis import AcrossEnd, AcrossNode, NodeEnd
from verify.across.wire import Wire
from verify.checks.collectives.ranks import Trace
from verify.running.children import Ending

SILENT_S = 30.0  # nodes report every two seconds
_END_S = 20.0  # after the limit, for nodes to say how it ended
_LOST_S = 30.0  # after a node was lost, for the others to say how it ended there
_POLL_S = 0.02
_MOST_GUESTS = 256  # connections at a time that have not said which node they are


@dataclass
class _Seat:
    """A node that came."""

    node: AcrossNode
    line: Wire
    heard: float
    end: Optional[NodeEnd] = None
    lost: Optional[str] = None


@dataclass
class _Room:
    """What is known of the run so far."""

    world: int
    run: str
    seats: Dict[int, _Seat] = field(default_factory=dict)
    guests: List[Wire] = field(default_factory=list)  # have not said who they are
    report: Optional[Dict[str, Any]] = None

    @property
    def nodes(self) -> List[AcrossNode]:
        return [self.seats[number].node for number in sorted(self.seats)]

    def tell(self, message: Dict[str, Any]) -> None:
        for seat in self.seats.values():
            seat.line.send(message)


def serve(
    listener: socket.socket, world: int, run: str, join_s: float, limit_s: float
) -> Dict[str, Any]:
    """Hold one run and return its report, which each node that is still there gets."""
    room = _Room(world, run)
    _gather(room, listener, time.monotonic() + join_s, join_s)
    if room.report is None:
        _follow(room, limit_s)
    report = room.report or {}
    room.tell({"end": report})
    _linger(room)
    for line in room.guests:
        line.close("the run has ended")
    return report


def _gather(room: _Room, listener: socket.socket, deadline: float, join_s: float) -> None:
    """Until all nodes are there. Sets the report if that fails."""
    while len(room.seats) < room.world and room.report is None:
        if time.monotonic() > deadline:
            absent = [number for number in range(room.world) if number not in room.seats]
            room.report = diagnosis.missing(absent, room.nodes, join_s)
            return
        with contextlib.suppress(OSError):  # nobody is there
            if len(room.guests) < _MOST_GUESTS:
                room.guests.append(Wire(listener.accept()[0]))
        for line in list(room.guests):
            messages = line.receive()
            if messages:
                room.guests.remove(line)
                _seat(room, line, messages[0])
            elif line.closed:
                room.guests.remove(line)
        for seat in room.seats.values():
            seat.line.receive()
            if seat.line.closed and room.report is None:
                room.report = diagnosis.judge(
                    AcrossEnd(tuple(room.nodes), lost={seat.node.number: seat.line.closed})
                )
        time.sleep(_POLL_S)
    room.report = room.report or diagnosis.mismatch(room.nodes)


def _seat(room: _Room, line: Wire, hello: Mapping[str, Any]) -> None:
    try:
        node = AcrossNode(
            number=int(hello["number"]),
            name=str(hello["name"])[:255],
            ranks=int(hello["ranks"]),
            backend=str(hello["backend"]),
            framework=str(hello["framework"]),
            broken=hello["broken"],
        )
        run, world = str(hello["run"]), int(hello["world"])
    except (KeyError, TypeError, ValueError):
        line.close("it sent something else")
        return
    if run != room.run:
        line.send({"refused": "the first node is in another run"})
        line.close("of another run")
        return
    if world != room.world or not 0 <= node.number < room.world:
        said = "{} says that there are {} nodes, the first that there are {}"
        message = said.format(diagnosis.names([node]), world, room.world)
        _refuse(room, line, node, message, "the nodes were started with different numbers")
    elif node.number in room.seats:
        message = "two nodes have the number {}: {} and {}".format(
            node.number, room.seats[node.number].node.name, node.name
        )
        _refuse(room, line, node, message, "two nodes were started with one number")
    else:
        room.seats[node.number] = _Seat(node, line, time.monotonic())


def _refuse(room: _Room, line: Wire, node: AcrossNode, message: str, cause: str) -> None:
    fix = "give each node a --rank of its own, and all the same --world"
    room.report = diagnosis.failure(
        "across-mismatch", message, cause, fix, nodes=[*room.nodes, node]
    )
    line.send({"end": room.report})
    room.guests.append(line)


def _follow(room: _Room, limit_s: float) -> None:
    """From the start of the ranks to the report."""
    began = time.monotonic()
    deadline = began + limit_s + _END_S
    for seat in room.seats.values():
        seat.heard = began
        seat.line.send({"go": _instructions(room, seat)})
    stopped = False
    while any(seat.end is None and seat.lost is None for seat in room.seats.values()):
        now = time.monotonic()
        for seat in room.seats.values():
            _hear(room, seat, now)
        failed = any(_is_bad(seat) for seat in room.seats.values())
        if failed and not stopped:
            stopped = True
            deadline = min(deadline, now + _LOST_S)
            room.tell({"stop": True})
        if now > deadline:
            break
        time.sleep(_POLL_S)
    for seat in room.seats.values():
        if seat.end is None and seat.lost is None:
            seat.lost = "it did not say how its ranks ended"
    lost = {number: seat.lost for number, seat in room.seats.items() if seat.lost is not None}
    ends = {number: seat.end for number, seat in room.seats.items() if seat.end is not None}
    seconds = round(time.monotonic() - began, 3)
    room.report = diagnosis.judge(AcrossEnd(tuple(room.nodes), ends, lost, seconds))


def _instructions(room: _Room, seat: _Seat) -> Dict[str, Any]:
    nodes = room.nodes
    before = sum(node.ranks for node in nodes if node.number < seat.node.number)
    other = [s.line.own_address for s in room.seats.values() if s is not seat]
    # the first node may know itself by an address that only it can use
    address = next((a for a in other if a and not a.startswith("127.")), None)
    return {
        "first": before,
        "world": sum(node.ranks for node in nodes),
        "address": address if seat.node.number == 0 else None,
    }


def _is_bad(seat: _Seat) -> bool:
    ended = seat.end is not None and any(not ending.returned for ending in seat.end.endings)
    return seat.lost is not None or ended


def _hear(room: _Room, seat: _Seat, now: float) -> None:
    for message in seat.line.receive():
        seat.heard = now
        if "store" in message:
            room.tell({"store": message["store"]})
        if message.get("failing"):
            room.tell({"stop": True})
        if "done" in message:
            seat.end = _end(message["done"], seat)
    if seat.end is not None or seat.lost is not None:
        return
    if seat.line.closed:
        seat.lost = seat.line.closed
    elif now - seat.heard > SILENT_S:
        seat.lost = "nothing was heard of it for {:.0f} s".format(SILENT_S)


def _end(done: Any, seat: _Seat) -> Optional[NodeEnd]:
    try:
        found = NodeEnd(
            tuple(Ending(**row) for row in done["endings"]),
            tuple(Trace(**row) for row in done["traces"]),
            tuple(map(str, done["transports"])),
        )
    except (KeyError, TypeError):
        found = NodeEnd()
    if len(found.endings) == len(found.traces) == seat.node.ranks:
        return found
    seat.lost = "it sent something else"
    return None


def _linger(room: _Room, limit_s: float = 5.0) -> None:
    """Until the nodes have the report and close their connections."""
    deadline = time.monotonic() + limit_s
    lines = [seat.line for seat in room.seats.values()]
    while any(line.closed is None for line in lines) and time.monotonic() < deadline:
        for line in lines:
            line.receive()
        time.sleep(_POLL_S)
    for line in lines:
        line.close("the run has ended")
