"""A real Slurm cluster on this machine: munge, one controller, and a slurmd for each node.

The nodes share this machine's name and loopback address, each with a port of its own, as
`slurmd -N` allows: https://slurm.schedmd.com/programmer_guide.html#multiple_slurmd_support
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests import need
from tests.clusters.ssh_servers import free_port
from tests.kit.programs import run_program

LIMIT_S = 600.0
GPUS = 2


class SlurmCluster:
    """Nodes n0, n1, ... in partition "gpu", each with two pretended GPUs. `env` is what Slurm's
    commands need.
    """

    def __init__(self, place: Path, nodes: int, settings: Sequence[str] = ()) -> None:
        self.place = place
        self._settings = settings
        self.names = tuple(f"n{number}" for number in range(nodes))
        self.env = {**os.environ, "SLURM_CONF": str(place / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        for program in ("slurmctld", "slurmd", "sinfo", "srun"):
            need.program(program, "slurm-wlm")
        self._munge()
        self._configure()
        self._daemon("slurmctld", need.program("slurmctld", "slurm-wlm"), "-D", "-i")
        for name in self.names:
            self._daemon(name, need.program("slurmd", "slurm-wlm"), "-D", "-N", name)
        self.wait(lambda: set(self.states().values()) == {"idle"}, "the nodes are not idle")

    def _munge(self) -> None:
        munged = need.program("munged", "munge")
        for name in ("run", "log", "key"):
            folder = self.place / f"munge-{name}"
            folder.mkdir(mode=0o755)
            shutil.chown(folder, "munge", "munge")
        key = self.place / "munge-key" / "key"
        key.write_bytes(secrets.token_bytes(1024))
        shutil.chown(key, "munge", "munge")
        key.chmod(0o400)
        self._daemon(
            "munged",
            *(munged, "--foreground"),
            f"--key-file={key}",
            f"--socket={self.place / 'munge-run' / 's'}",
            f"--pid-file={self.place / 'munge-run' / 'pid'}",
            f"--seed-file={self.place / 'munge-key' / 'seed'}",
            f"--log-file={self.place / 'munge-log' / 'log'}",
            user="munge",
        )
        self.wait((self.place / "munge-run" / "s").is_socket, "munged has no socket")

    def _configure(self) -> None:
        here, place = socket.gethostname(), self.place
        for name in ("state", "spool", "dev"):
            (place / name).mkdir()
        for number in range(GPUS):  # plain files are refused; this one is /dev/null
            os.mknod(place / "dev" / f"nvidia{number}", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        lines = [
            "ClusterName=test",
            f"SlurmctldHost={here}(127.0.0.1)",
            f"SlurmctldPort={free_port()}",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={place / 'munge-run' / 's'}",
            f"StateSaveLocation={place / 'state'}",
            f"SlurmdSpoolDir={place / 'spool'}/%n",
            f"SlurmctldPidFile={place / 'slurmctld.pid'}",
            f"SlurmdPidFile={place}/%n.pid",
            f"SlurmctldLogFile={place / 'slurmctld.log'}",
            f"SlurmdLogFile={place}/%n.log",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            "MpiDefault=none",
            "ReturnToService=2",
            "SlurmdParameters=config_overrides",
            "GresTypes=gpu",
        ]
        lines += [
            f"NodeName={name} NodeHostname={here} NodeAddr=127.0.0.1 Port={free_port()} CPUs=4 "
            f"Gres=gpu:{GPUS}{' RealMemory=1000' if name != 'n2' else ''}"  # of n2 it is unknown
            for name in self.names
        ]
        lines.append(f"PartitionName=gpu Nodes={','.join(self.names)} Default=YES State=UP")
        lines += self._settings
        (place / "slurm.conf").write_text("".join(f"{line}\n" for line in lines))
        (place / "gres.conf").write_text(
            "AutoDetect=off\n"
            f"NodeName={','.join(self.names)} Name=gpu File={place}/dev/nvidia[0-{GPUS - 1}]\n"
        )

    def _daemon(self, name: str, *argv: str, user: str = "root") -> None:
        with (self.place / f"{name}.out").open("wb") as log:
            self._daemons[name] = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.env,
                user=user,
                group=user,
                extra_groups=(),
            )

    def command(self, *argv: str) -> str:
        """What one of Slurm's commands printed."""
        done = run_program(argv, env=self.env, timeout=LIMIT_S)
        return done.stdout

    def states(self) -> dict[str, str]:
        """Each node's state, by sinfo."""
        out = self.command("sinfo", "--noheader", "--Node", "--format", "%N %T")
        return dict(line.split() for line in out.splitlines() if len(line.split()) == 2)

    def wait(self, ready: Callable[[], bool], problem: str) -> None:
        """Until this is true; a skip, or in CI a failure, if it never is."""
        deadline = time.monotonic() + LIMIT_S
        while not ready():
            if time.monotonic() > deadline:
                files = self.place.glob("*.out")
                logs = "".join(one.read_text(errors="replace")[-500:] for one in files)
                need.lacking(f"Slurm: {problem}: {logs}")
            time.sleep(0.2)

    def kill(self, name: str) -> None:
        """A node dies, with all that runs on it."""
        self._daemons[name].kill()
        self._daemons[name].wait(timeout=30)

    def freeze(self, name: str) -> None:
        """A node's daemon hangs."""
        self._daemons[name].send_signal(signal.SIGSTOP)

    def stop(self) -> None:
        if "slurmctld" in self._daemons and self._daemons["slurmctld"].poll() is None:
            self.command("scancel", "--quiet", "--full", "--user=root")
        for name in reversed(self._daemons):
            process = self._daemons[name]
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=30)


@contextlib.contextmanager
def slurm_cluster(
    place: Path, nodes: int = 3, settings: Sequence[str] = ()
) -> Iterator[SlurmCluster]:
    """A cluster that ends with the block. `place` is open to the user munge; `settings` are more
    lines of slurm.conf.
    """
    need.root()
    cluster = SlurmCluster(place, nodes, settings)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
