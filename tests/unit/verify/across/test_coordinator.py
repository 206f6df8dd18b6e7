"""Who is there, who is not, and who disturbs: nodes that are only sockets."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import pytest

from verify.across import coordinator, wire
from verify.across.wire import Wire, interface_of, listen

ENDING = {"value": None, "returned": False, "raised": "ValueError: x"}


class Desk:
    """A coordinator in a thread, and lines to it."""

    def __init__(self, world: int, join_s: float = 5.0, limit_s: float = 5.0) -> None:
        self.listener = listen(0)
        self.port = self.listener.getsockname()[1]
        self.report: dict[str, Any] = {}
        self.thread = threading.Thread(target=self._serve, args=(world, join_s, limit_s))
        self.thread.start()

    def _serve(self, world: int, join_s: float, limit_s: float) -> None:
        self.report = coordinator.serve(self.listener, world, "run", join_s, limit_s)

    def line(self) -> Wire:
        return Wire(socket.create_connection(("127.0.0.1", self.port), timeout=5))

    def join(self, number: int, **more: Any) -> Wire:
        line, hello = (
            self.line(),
            {"number": number, "world": 2, "run": "run", "name": f"n{number}"},
        )
        line.send(
            {**hello, "ranks": 1, "backend": "gloo", "framework": "a", "broken": None, **more}
        )
        return line

    def end(self) -> dict[str, Any]:
        self.thread.join(timeout=30)
        assert not self.thread.is_alive()
        self.listener.close()
        return self.report


def hear(line: Wire, key: str) -> Any:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and line.closed is None:
        for message in line.receive():
            if key in message:
                return message[key]
        time.sleep(0.01)
    raise AssertionError(f"no {key}: {line.closed}")


def test_a_node_that_does_not_come_is_named_to_those_that_did() -> None:
    desk = Desk(2, join_s=0.3)
    line = desk.join(1)
    assert hear(line, "end")["blamed"] == [0]
    line.close("")
    assert desk.end()["code"] == "across-node-missing"


@pytest.mark.parametrize(
    ("more", "code", "word"),
    [
        ({"number": 0}, "across-mismatch", "two nodes have the number 0"),
        ({"world": 3}, "across-mismatch", "says that there are 3 nodes"),
        ({"backend": "nccl"}, "across-mismatch", "gloo: node 0 (n0); nccl: node 1 (n1)"),
        ({"framework": "b"}, "across-mismatch", "a: node 0 (n0); b: node 1 (n1)"),
        (
            {"broken": {"message": "no GPU usable", "cause": "c", "fix": "f"}},
            "across-gpu-unusable",
            "node 1 (n1): no GPU usable",
        ),
    ],
)
def test_nodes_that_do_not_fit_together_are_named(
    more: dict[str, Any], code: str, word: str
) -> None:
    desk = Desk(2)
    lines = [desk.join(0)]
    time.sleep(0.2)
    lines.append(desk.join(**{"number": 1, **more}))
    reports = [hear(line, "end") for line in lines]
    for line in lines:
        line.close("")
    assert desk.end() == reports[0] == reports[1]
    assert reports[0]["code"] == code
    assert word in reports[0]["message"]


def test_a_node_of_another_run_and_noise_disturb_nobody() -> None:
    desk = Desk(2)
    noise = socket.create_connection(("127.0.0.1", desk.port))
    noise.sendall(b"GET / HTTP/1.1\r\n\r\n")
    other = desk.join(1, run="yesterday")
    assert "another run" in hear(other, "refused")
    astray = desk.join(0, ranks="many")  # not a node
    lines = [desk.join(0), desk.join(1)]
    assert [hear(line, "go")["first"] for line in lines] == [0, 1]
    for line in lines:
        line.close("")
    assert desk.end()["code"] == "across-node-lost"
    noise.close()
    for line in (other, astray):
        line.close("")


def test_a_node_that_leaves_stops_the_others_and_is_named() -> None:
    desk = Desk(2)
    stays, leaves = desk.join(0), desk.join(1)
    hear(stays, "go")
    hear(leaves, "go")
    leaves.close("")
    assert hear(stays, "stop") is True
    stays.send({"done": {"endings": [ENDING], "traces": [{}], "transports": []}})
    report = hear(stays, "end")
    stays.close("")
    assert desk.end() == report
    assert (report["code"], report["blamed"]) == ("across-node-lost", [1])


def test_a_node_that_falls_silent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "SILENT_S", 1.0)
    desk = Desk(2, limit_s=60)
    stays, silent = desk.join(0), desk.join(1)
    hear(stays, "go")
    stays.send({"done": {"endings": [ENDING], "traces": [{}], "transports": []}})
    report = hear(stays, "end")
    assert (report["code"], report["blamed"]) == ("across-node-lost", [1])
    assert "nothing was heard of it" in report["message"]
    for line in (stays, silent):
        line.close("")
    desk.end()


@pytest.mark.parametrize(
    "sent",
    [b"[]\n", b"\xff\n", b"{\n", b"[" * 100_000 + b"\n"],
    ids=["list", "bytes", "half", "deep"],
)
def test_what_is_no_message_ends_the_connection(sent: bytes) -> None:
    here, there = socket.socketpair()
    line = Wire(here)
    there.sendall(sent)
    time.sleep(0.05)
    assert line.receive() == []
    assert line.closed == "it sent something else"
    there.close()


def test_a_peer_that_sends_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST_BYTES", 1000)
    here, there = socket.socketpair()
    line = Wire(here)
    there.sendall(b"x" * 2000)
    time.sleep(0.05)
    assert line.receive() == []
    assert line.closed == "it sent too much"
    there.close()


def test_messages_arrive_whole_and_in_order() -> None:
    here, there = socket.socketpair()
    line = Wire(here)
    text = b"".join(json.dumps({"n": n}).encode() + b"\n" for n in range(50))
    for start in range(0, len(text), 7):
        there.sendall(text[start : start + 7])
    time.sleep(0.05)
    assert [message["n"] for message in line.receive()] == list(range(50))
    there.close()
    assert line.receive() == []
    assert line.closed == "it closed the connection"


def test_what_follows_a_message_stays_unread() -> None:
    here, there = socket.socketpair()
    line = Wire(here)
    there.sendall(b'{"store": 1}\n{"stop": true}\n{"end": {}}\n')
    time.sleep(0.05)
    assert line.take(("store", "stop")) == {"store": 1}
    assert line.take(("stop",)) == {"stop": True}
    assert line.take(("end",)) == {"end": {}}
    assert line.take(("end",)) == {}
    there.close()
    line.close("")


def test_the_loopback_is_found_by_its_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("127.0.1.1") == "lo"
    assert interface_of("192.0.2.77") is None


def test_a_taken_port_is_an_error() -> None:
    first = listen(0)
    with pytest.raises(OSError, match="in use"):
        listen(first.getsockname()[1])
    first.close()
