"""Nodes that OpenSSH reaches: reads a list of hosts, and explains what ssh says.

https://man.openbsd.org/ssh and ssh_config; the messages are those of OpenSSH 9.2.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from images.system.process import Completed, describe_exit
from images.text.printable import printable
from provision.errors import BadInputError
from provision.fleet.nodes.calls import FailureSign, NodeCall, NodeFailure, last_line
from provision.fleet.nodes.program import PYTHON_FIX
from provision.model.request import quoted

CONNECT_S = 10
_SSH_FAILED = 255
_LINE = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9._-]{0,63})@)?"
    r"(?:(?P<host>[A-Za-z0-9][A-Za-z0-9._-]{0,253})|\[(?P<six>[0-9A-Fa-f:.]{2,45})\])"
    r"(?::(?P<port>[0-9]{1,5}))?",
    re.ASCII,
)


class SshHost(NamedTuple):
    """A line of the list. `port` None: the configuration's."""

    host: str
    user: str | None
    port: int | None

    @property
    def label(self) -> str:
        """The host and its port, as the name of a file."""
        host = self.host.replace(":", "_")
        return host if self.port is None else f"{host}-{self.port}"


# The first that matches counts: "Host key verification failed." follows a changed key, too.
_SIGNS = (
    FailureSign(
        pattern="REMOTE HOST IDENTIFICATION HAS CHANGED",
        code="host-key-changed",
        message="its host key has changed: it was reinstalled, or another machine answers",
        fix="If you know why, remove the old key (ssh-keygen -R HOST) and log in once with ssh.",
    ),
    FailureSign(
        pattern="Host key verification failed|No .* host key is known",
        code="host-key-unknown",
        message="its host key is not known",
        fix="Check the key and log in once with ssh, or add it to known_hosts.",
    ),
    FailureSign(
        pattern="Permission denied|Too many authentication failures",
        code="login-refused",
        message="it refuses the login without a password",
        fix="Allow your key there (ssh-copy-id), or name the right key in ssh's configuration.",
    ),
    FailureSign(
        pattern="Could not resolve hostname",
        code="host-name-unknown",
        message="its name has no address",
        fix="Correct the name in the list.",
    ),
    FailureSign(
        pattern="Connection refused",
        code="connection-refused",
        message="it refuses the connection: no SSH server listens there",
        fix="Start sshd on the node, or correct the port in the list.",
    ),
    FailureSign(
        pattern="timed out|No route to host|Network is unreachable|not responding",
        code="node-silent",
        message="it does not answer",
        fix="See whether it is up and reachable from here.",
    ),
)


def read_ssh_hosts(path: str) -> tuple[SshHost, ...]:
    """The hosts of a list: one [USER@]HOST[:PORT] a line, # for comments. BadInputError: it is
    unreadable, empty, or a line is something else.
    """
    shown = printable(path, limit=100)
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            lines = file.read(1 << 24).splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise BadInputError(
            f"--on ssh:{shown} cannot be read: {reason}.",
            fix="Name a file with one host a line: node1, user@node2, user@node3:2222",
        ) from error
    found: dict[SshHost, None] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if text:
            found[_host(text, f"{shown}, line {number}")] = None
    if not found:
        raise BadInputError(
            f"--on ssh:{shown} names no host.", fix="Write one host a line, for example: node1"
        )
    return tuple(found)


def _host(text: str, where: str) -> SshHost:
    match = _LINE.fullmatch(text)
    port = int(match["port"]) if match and match["port"] else None
    if match is None or (port is not None and not 0 < port < 65536):
        raise BadInputError(
            f"{where}: {quoted(text)} is not a host.",
            fix="Write [USER@]HOST[:PORT]; an IPv6 address in brackets. Other options belong in "
            "ssh's configuration (--ssh-config).",
        )
    return SshHost(match["host"] or match["six"], match["user"], port)


def ssh_calls(hosts: Sequence[SshHost], config: str | None) -> tuple[NodeCall, ...]:
    """The calls, which ask for nothing on a terminal. A node has the name of its host, and its port
    where several have that host. BadInputError: one host is listed with two users.
    """
    names = Counter(host.host for host in hosts)
    calls: dict[str, NodeCall] = {}
    for host in hosts:
        name = host.label if names[host.host] > 1 else host.host.replace(":", "_")
        if name in calls:
            raise BadInputError(
                f"{host.host} is listed twice, with different users.", fix="List it once."
            )
        calls[name] = NodeCall(name, _argv(host, config), partial(explain_ssh, name))
    return tuple(calls.values())


def _argv(host: SshHost, config: str | None) -> tuple[str, ...]:
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": str(CONNECT_S),
        "ConnectionAttempts": "1",
        "ControlMaster": "no",
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "3",
    }
    return (
        "ssh",
        *(("-F", config) if config is not None else ()),
        *(word for option, value in options.items() for word in ("-o", f"{option}={value}")),
        *("-T", "-a", "-x"),
        *(("-p", str(host.port)) if host.port is not None else ()),
        *(("-l", host.user) if host.user is not None else ()),
        *("--", host.host, "exec python3 -I -"),
    )


def explain_ssh(name: str, done: Completed) -> NodeFailure:
    """Why a call gave no answer, by what ssh or the node's shell printed."""
    if done.code == _SSH_FAILED:
        for sign in _SIGNS:
            if re.search(sign.pattern, done.output):
                return sign.of(name)
    if done.code == 127 or re.search(r"python3.*not found", done.output):
        return NodeFailure(code="no-python", message=f"{name}: it has no python3.", fix=PYTHON_FIX)
    said = printable(last_line(done.output), limit=200) or f"ssh {describe_exit(done.code)}"
    return NodeFailure(
        code="node-failed",
        message=f"{name}: {said}",
        fix="Run the same on the node by hand: ssh HOST python3 --version",
    )
