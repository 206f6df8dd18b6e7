"""Turns a plan into a command with bubblewrap, or with unshare(1) and our stage.

Both create the same sandbox: separate user, process, network, IPC and host name namespaces, no
capabilities, no new privileges, a filter of system calls, a read-only root and read-only device
nodes, and everything ends with the process that started it. The command is the first process in
it, as in an engine's container: there is no process of ours whose program or variables it could
reach. If user namespaces are forbidden, root runs without one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from images.engines.sandbox.errors import SandboxError
from images.engines.sandbox.filter import system_call_filter
from images.engines.sandbox.plan import HOST_NAME, Mount, SandboxPlan
from images.engines.sandbox.stage import COVERED, DEVICES
from images.errors import Failure
from images.system import process
from images.system.errors import NoRunnerError
from images.system.scratch import scratch_directory

INSTALL_FIX = "sudo apt-get install -y --no-install-recommends bubblewrap"
STAGE = Path(__file__).with_name("stage.py")

# bubblewrap's limit (MAX_ARGS in bubblewrap.c), minus the words that end the command.
_MOST_WORDS = 8900
_PROBE_TIMEOUT_S = 20.0
_BWRAP_KINDS = {
    "bind": "--ro-bind",
    "output": "--bind",
    "device": "--dev-bind",
    "link": "--symlink",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """A program that can start a sandbox here. `own_users`: with a user namespace; `sizes`: it can
    limit a tmpfs.
    """

    kind: Literal["bubblewrap", "unshare"]
    program: str
    version: str
    own_users: bool
    sizes: bool = True

    def command(self, plan: SandboxPlan, scratch: Path, *, terminal: bool = False) -> list[str]:
        """The command that runs a plan. `scratch` is our directory, which must outlive it.
        `terminal`: for interactive use; it ends before the plan's command, so that the user can
        append one. Words appended to it are added to the command that runs.
        SandboxError: the command line is too long for bubblewrap.
        """
        if self.kind == "bubblewrap":
            return self._bubblewrap(plan, scratch, terminal=terminal)
        return self._unshare(plan, scratch, terminal=terminal)

    def _bubblewrap(self, plan: SandboxPlan, scratch: Path, *, terminal: bool) -> list[str]:
        words = [self.program, "--unshare-pid", "--unshare-ipc"]
        words += [] if plan.network else ["--unshare-net"]
        words += ["--unshare-uts", "--as-pid-1"]
        words += ["--unshare-cgroup-try", "--hostname", HOST_NAME, "--die-with-parent"]
        words += ["--unshare-user", "--uid", "0", "--gid", "0"] if self.own_users else []
        words += [] if terminal else ["--new-session"]
        words += ["--cap-drop", "ALL", "--clearenv"]
        size = ["--size", str(plan.memory_bytes)] if self.sizes else []
        for mount in plan.mounts:
            words += _bubblewrap_words(mount, size)
        words += ["--proc", "/proc"]
        for name in COVERED:
            words += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
        words += ["--dev", "/dev", "--perms", "1777"]
        words += ["--size", str(plan.shm_bytes)] if self.sizes and plan.shm_bytes else []
        words += ["--tmpfs", "/dev/shm", "--ro-bind", "/sys", "/sys"]  # noqa: S108  the sandbox's
        for mount in plan.devices:
            words += _bubblewrap_words(mount, size)
        words += ["--remount-ro", "/dev"]
        for name, value in plan.env.items():
            words += ["--setenv", name, value]
        words += ["--chdir", plan.directory]
        if len(words) > _MOST_WORDS:
            raise SandboxError(
                f"The image cannot be run with bubblewrap: {len(plan.env)} variables and "
                f"{len(plan.mounts)} mounts take {len(words)} words, and it takes {_MOST_WORDS}.",
                fix="Build the image with fewer variables, or run it with an engine.",
            )
        root = os.geteuid() == 0
        steps = system_call_filter(os.uname().machine, times=root)
        if steps:
            filter_file = scratch / "filter"
            filter_file.write_bytes(steps)
            # bubblewrap reads the filter from an open file.
            shell = process.which("sh") or "/bin/sh"
            opened = [shell, "-c", 'exec "$@" 9<"$0"', str(filter_file)]
            words = [*opened, words[0], "--seccomp", "9", *words[1:]]
        if root:
            nodes = [f"/dev/{name}" for name in DEVICES]
            nodes += [mount.source for mount in plan.devices if mount.kind == "device"]
            words = [*_stage(), "--devices", *nodes, "--", *words]
        return [*words, "--", *([] if terminal else plan.argv)]

    def _unshare(self, plan: SandboxPlan, scratch: Path, *, terminal: bool) -> list[str]:
        root = scratch / "root"
        root.mkdir(mode=0o700, exist_ok=True)
        steps = system_call_filter(os.uname().machine).hex()
        told = replace(plan, argv=()) if terminal else plan
        written = {**asdict(told), "root": str(root), "host_name": HOST_NAME, "filter": steps}
        file = scratch / "plan.json"
        file.write_text(json.dumps(written), encoding="utf-8", errors="surrogateescape")
        words = [self.program, "--mount", "--pid", "--ipc", "--uts", "--cgroup"]
        words += [] if plan.network else ["--net"]
        words += ["--map-root-user"] if self.own_users else []
        words += ["--fork", "--kill-child"]
        if not terminal:  # bubblewrap does this by itself
            setpriv = process.which("setpriv")
            words = [*([setpriv, "--pdeathsig", "KILL"] if setpriv else []), *words]
        return [*words, "--", *_stage(), str(file)]


def _stage() -> list[str]:
    return [sys.executable, "-I", "-S", str(STAGE)]


def _bubblewrap_words(mount: Mount, size: Sequence[str]) -> list[str]:
    if mount.kind == "memory":
        return ["--perms", "1777", *size, "--tmpfs", mount.target]
    if mount.kind == "directory":
        return ["--dir", mount.target]
    return [_BWRAP_KINDS[mount.kind], mount.source, mount.target]


def environment() -> dict[str, str]:
    """The variables of ours that a launcher needs; an image gets no others."""
    found = process.environment()
    return {name: found[name] for name in ("LD_LIBRARY_PATH", "PATH") if name in found}


def find_launcher() -> Launcher:
    """Find a launcher that works here, by starting a sandbox. NoRunnerError: none does, and why."""
    problems: list[tuple[Launcher, str]] = []
    candidates = list(_candidates())
    for launcher in candidates:
        problem = probe(launcher)
        if not problem:
            return launcher
        problems.append((launcher, problem))
    if not problems:
        raise NoRunnerError(
            "A sandbox needs bubblewrap (bwrap) or unshare from util-linux; this host has neither.",
            fix=INSTALL_FIX,
        )
    launcher, problem = problems[0]
    why, fix = explain(problem)
    raise NoRunnerError(
        f"A sandbox cannot be started here: {why}",
        fix=fix,
        detail="\n".join(f"{one.program}: {text}" for one, text in problems),
    )


def _candidates() -> Iterator[Launcher]:
    users = (True, False) if os.geteuid() == 0 else (True,)
    bwrap, unshare = process.which("bwrap"), process.which("unshare")
    if bwrap:
        version, sizes = _version(bwrap), "--size" in _output([bwrap, "--help"])
        for own_users in users:
            yield Launcher(
                kind="bubblewrap",
                program=bwrap,
                version=version,
                own_users=own_users,
                sizes=sizes,
            )
    if unshare:
        version = _version(unshare)
        for own_users in users:
            yield Launcher(kind="unshare", program=unshare, version=version, own_users=own_users)


def _version(program: str) -> str:
    found = re.search(r"\d+(\.\d+)+", _output([program, "--version"]))
    return found[0] if found else ""


def _output(argv: Sequence[str]) -> str:
    with contextlib.suppress(Failure):
        return process.run(argv, timeout_s=_PROBE_TIMEOUT_S).output
    return ""


def probe(launcher: Launcher) -> str:
    """Start a minimal sandbox on this host's root. Returns what went wrong, "" if nothing."""
    true = process.which("true") or "/bin/true"
    plan = SandboxPlan(
        mounts=(Mount(kind="bind", target="/", source="/"),),
        devices=(),
        env={"PATH": "/usr/bin:/bin"},
        argv=(true,),
        directory="/",
        shm_bytes=1 << 20,
        memory_bytes=1 << 20,
    )
    with scratch_directory() as scratch:
        try:
            done = process.run(
                launcher.command(plan, scratch),
                timeout_s=_PROBE_TIMEOUT_S,
                grace_s=0.5,
                env=environment(),
                inherit_env=False,
            )
        except Failure as failure:
            return failure.message
    return "" if done.ok else done.output.strip() or process.describe_exit(done.code)


def explain(problem: str, root: Path = Path("/")) -> tuple[str, str]:
    """Why a sandbox does not start, and a fix: the kernel's message says too little."""
    unread = re.search(r"Can't find source path (\S+): (.+)", problem)
    if unread:
        return (
            f"{unread[1]} cannot be shown in the sandbox: {unread[2].strip()}.",
            f"Let this user read it, with the directories above it: namei -l {unread[1]}",
        )
    if re.search(r"(mount|open).* proc\b", problem) or re.search(
        r"proc on .*not permitted", problem
    ):
        return (
            "/proc cannot be mounted: this is a container that hides parts of its own.",
            _OUTER_PROC_FIX,
        )
    for file, value, why in _CLOSED:
        if _setting(root, file) == value:
            name = file.replace("/", ".")
            return why, f"sudo sysctl -w {name}={_OPENED[file]}; or run the same as root."
    if re.search(r"not permitted|permission denied|No permissions", problem, re.IGNORECASE):
        return (
            "this user may not make namespaces; inside a container its seccomp profile forbids it.",
            _OUTER_SECCOMP_FIX,
        )
    return (problem.splitlines()[-1] if problem else "no reason was given."), INSTALL_FIX


_OUTER_PROC_FIX = (
    "Start the outer container with --security-opt systempaths=unconfined, or run this on the host."
)
_OUTER_SECCOMP_FIX = (
    "Run the same as root, or start the outer container with "
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined"
)
_CLOSED = (
    (
        "kernel/unprivileged_userns_clone",
        "0",
        "the kernel lets only root make user namespaces.",
    ),
    ("user/max_user_namespaces", "0", "the kernel allows no user namespaces."),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor lets only programs that it knows make user namespaces.",
    ),
)
_OPENED = {
    "kernel/unprivileged_userns_clone": "1",
    "user/max_user_namespaces": "15000",
    "kernel/apparmor_restrict_unprivileged_userns": "0",
}


def _setting(root: Path, file: str) -> str:
    with contextlib.suppress(OSError, ValueError):
        return (root / "proc/sys" / file).read_text(encoding="ascii").strip()
    return ""
