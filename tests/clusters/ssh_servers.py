"""Debian's sshd, several times on loopback: each with its own port, host key and manners."""

from __future__ import annotations

import contextlib
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests import need

START_LIMIT_S = 60.0


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class SshServers:
    """Servers and a client's configuration in one directory; nothing of the machine's is used."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.config = place / "ssh_config"
        self.known_hosts = place / "known_hosts"
        self._sshd = need.program("sshd", "openssh-server")
        self._running: list[subprocess.Popen[bytes]] = []
        for name in ("login", "other"):
            self._key(name)
        self.known_hosts.touch()
        self.config.write_text(
            "Host *\n  User root\n"
            f"  IdentityFile {place / 'login'}\n  IdentitiesOnly yes\n  IdentityAgent none\n"
            f"  UserKnownHostsFile {self.known_hosts}\n  GlobalKnownHostsFile /dev/null\n"
            "  StrictHostKeyChecking yes\n"
        )

    def _key(self, name: str) -> Path:
        path = self.place / name
        keygen = need.program("ssh-keygen", "openssh-client")
        argv = [keygen, "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
        subprocess.run(argv, check=True, timeout=60)
        return path

    def start(
        self, name: str, *, allows: str = "login", known: str | None = "", **more: str
    ) -> int:
        """A server, on the port that is returned. `allows`: the key that may log in. `known`: the
        name of the server whose key the client knows for it; "": its own; None: none. `more`:
        further options of sshd_config.
        """
        port, key = free_port(), self._key(f"host-{name}")
        options = {
            "Port": str(port),
            "ListenAddress": "127.0.0.1",
            "HostKey": str(key),
            "PidFile": "none",
            "AuthorizedKeysFile": str(self.place / f"{allows}.pub"),
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "PermitRootLogin": "prohibit-password",
            **more,
        }
        config = self.place / f"sshd-{name}"
        config.write_text("".join(f"{option} {value}\n" for option, value in options.items()))
        with (self.place / f"log-{name}").open("wb") as log:
            process = subprocess.Popen(
                [self._sshd, "-D", "-e", "-f", str(config)], stdout=log, stderr=log
            )
        self._running.append(process)
        if known is not None:
            public = (self.place / f"host-{known or name}.pub").read_text().split()[:2]
            with self.known_hosts.open("a") as file:
                file.write(f"[127.0.0.1]:{port} {' '.join(public)}\n")
        deadline = time.monotonic() + START_LIMIT_S
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                need.lacking(f"sshd does not start: {(self.place / f'log-{name}').read_text()}")
            time.sleep(0.05)
        return port

    def force(self, name: str, script: str) -> dict[str, str]:
        """The option with which a server runs this shell script instead of the command."""
        path = self.place / f"force-{name}.sh"
        path.write_text(script)
        return {"ForceCommand": f"/bin/sh {shlex.quote(str(path))}"}

    def stop(self) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.wait(timeout=30)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as one:
        return one.recv(4) == b"SSH-"
    return False


@contextlib.contextmanager
def ssh_servers(place: Path) -> Iterator[SshServers]:
    """Servers that end with the block."""
    need.root()
    need.program("ssh", "openssh-client")
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd drops its privileges
    servers = SshServers(place)
    try:
        yield servers
    finally:
        servers.stop()
