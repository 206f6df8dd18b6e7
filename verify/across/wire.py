"""Messages between the nodes: a JSON object a line, over TCP. And which interface an address has.

A peer is not trusted: what is not such a line, or too long, ends its connection.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import socket
import struct
from typing import Any, Dict, List, Optional, Sequence

MOST_BYTES = 64 << 20  # of one line: what all ranks of a node measured
_MOST_UNREAD = 100
_SIOCGIFADDR = 0x8915  # linux/sockios.h


class Wire:
    """One connection. `closed` is why it ended, None while it is open."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.closed: Optional[str] = None
        self._got = b""
        self._unread: List[Dict[str, Any]] = []
        sock.settimeout(0)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Dict[str, Any], limit_s: float = 20.0) -> None:
        """Send it; a peer that does not take it within the limit is given up."""
        if self.closed is not None:
            return
        try:
            self.sock.settimeout(limit_s)
            self.sock.sendall(json.dumps(message, allow_nan=False).encode() + b"\n")
            self.sock.settimeout(0)
        except (OSError, ValueError) as error:
            self.close(str(error) or type(error).__name__)

    def receive(self) -> List[Dict[str, Any]]:
        """The messages that have come and were not read; returns at once."""
        while self.closed is None:
            try:
                part = self.sock.recv(1 << 16)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self.close(error.strerror or str(error))
                break
            if not part:
                self.close("it closed the connection")
            self._got += part
            if len(self._got) > MOST_BYTES:
                self.close("it sent too much")
        *lines, self._got = self._got.split(b"\n")
        unread, self._unread = self._unread, []
        return unread + [message for line in lines for message in self._parse(line)]

    def take(self, keys: Sequence[str]) -> Dict[str, Any]:
        """The first message with one of these keys, or {}; the others stay unread."""
        messages = self.receive()
        found = next((m for m in messages if any(key in m for key in keys)), {})
        self._unread = [message for message in messages if message is not found][-_MOST_UNREAD:]
        return found

    def _parse(self, line: bytes) -> List[Dict[str, Any]]:
        try:
            found = json.loads(line.decode())
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            return [found]
        self.close("it sent something else")
        return []

    def close(self, why: str) -> None:
        """End the connection."""
        if self.closed is None:
            self.closed = why
        with contextlib.suppress(OSError):
            self.sock.close()

    @property
    def own_address(self) -> str:
        """This machine's address on the connection."""
        try:
            found = str(self.sock.getsockname()[0])
        except OSError:
            return ""
        return found[7:] if found.startswith("::ffff:") else found


def listen(port: int) -> socket.socket:
    """A socket for all addresses of this machine. Raises OSError if the port is taken."""
    try:
        sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:  # no IPv6
        return _listen(socket.socket(socket.AF_INET, socket.SOCK_STREAM), ("", port))
    try:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        return _listen(sock, ("::", port))
    except OSError as error:
        sock.close()
        if error.errno == 98:  # EADDRINUSE
            raise
    return _listen(socket.socket(socket.AF_INET, socket.SOCK_STREAM), ("", port))


def _listen(sock: socket.socket, address: Any) -> socket.socket:
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(4096)
        sock.settimeout(0)
    except OSError:
        sock.close()
        raise
    return sock


def interface_of(address: str) -> Optional[str]:
    """The network interface with this address of this machine."""
    if ":" in address:
        return _interface_of_six(address)
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no IPv4 address
                asked = struct.pack("256s", name.encode()[:15])
                found = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, asked)
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return "lo" if address.startswith("127.") else None


def _interface_of_six(address: str) -> Optional[str]:
    wanted = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:
        return None
    return next((row[-1] for row in rows if row and row[0] == wanted), None)
