"""Sets up a container engine at a user's request: `python -m images.engines.setup`.

It installs the distribution's packages and starts the engine, prints each command before running
it, and does nothing if an engine already answers. On machines without a running init (containers,
some clouds) it starts the engine directly; if the machine forbids something that the engine needs,
it starts the engine without that, and reports it.
"""

from __future__ import annotations

import argparse
import getpass
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from images.engines.docker import DEFAULT_HOST
from images.engines.start import (
    DOCS,
    WAIT_S,
    EngineSetupError,
    StartedEngine,
    ask_engine,
    local_io,
    start_engine,
)
from images.errors import Failure
from images.system import process
from images.system.os_release import FILES as OS_RELEASE_FILES
from images.system.os_release import parse_os_release

LOG = Path("/var/log/gpu-provision-dockerd.log")

_NO_QUESTIONS = ("env", "DEBIAN_FRONTEND=noninteractive")
_INSTALL_TIMEOUT_S = 1800.0

# The commands for other distributions. Only printed, not run: they are untested.
_ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "fedora": ("dnf", "install", "-y", "moby-engine", "docker-buildx"),
    "amzn": ("dnf", "install", "-y", "docker"),
    "opensuse": ("zypper", "--non-interactive", "install", "docker", "docker-buildx"),
    "opensuse-leap": ("zypper", "--non-interactive", "install", "docker", "docker-buildx"),
    "opensuse-tumbleweed": ("zypper", "--non-interactive", "install", "docker", "docker-buildx"),
    "suse": ("zypper", "--non-interactive", "install", "docker", "docker-buildx"),
    "arch": ("pacman", "-S", "--noconfirm", "docker", "docker-buildx"),
}


# --- what to run ------------------------------------------------------------------------------


def _apt_packages(
    have: Callable[[str], bool], have_package: Callable[[str], bool]
) -> tuple[str, ...]:
    """The packages to install, of those that the distribution has.

    An installed engine stays: Docker's packages and the distribution's conflict.
    """
    found: list[str] = []
    if not have("dockerd"):
        found.append("docker.io")
        found += filter(have_package, ("docker-cli", "docker-buildx"))
        found += [package for package in ("iptables", "ca-certificates") if have_package(package)]
    elif not have("docker-buildx"):
        # Docker's name first: if its repository is configured, its engine is installed
        found += list(filter(have_package, ("docker-buildx-plugin", "docker-buildx")))[:1]
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """The facts about a host that determine the commands. `os_id`, `os_like` and `version` are ID,
    ID_LIKE and VERSION_ID from os-release; `user` is "" for a user ID without a name.
    """

    os_id: str
    os_like: str = ""
    version: str = ""
    is_root: bool
    has_init: bool
    user: str = ""

    @property
    def is_debian_like(self) -> bool:
        return bool({self.os_id, *self.os_like.split()} & {"debian", "ubuntu"})

    @property
    def sudo(self) -> tuple[str, ...]:
        return () if self.is_root else ("sudo",)


def plan_commands(
    here: Here, *, have: Callable[[str], bool], have_package: Callable[[str], bool]
) -> tuple[tuple[str, ...], ...]:
    """The commands that install the engine and start it through the init, in order.

    `have` checks for programs (and "docker-buildx", the plugin); `have_package` checks for packages
    of the distribution. Without a running init no command starts the engine: `start_engine` does.
    """
    sudo = here.sudo
    if not here.is_debian_like:
        raise _other_system(here)
    commands: list[tuple[str, ...]] = []
    packages = _apt_packages(have, have_package)
    if packages:
        install = ("apt-get", "install", "-y", "--no-install-recommends", *packages)
        commands += [(*sudo, "apt-get", "update"), (*sudo, *_NO_QUESTIONS, *install)]
    if here.has_init:
        commands.append((*sudo, "systemctl", "start", "docker"))
    if here.user and not here.is_root:
        commands.append((*sudo, "usermod", "-aG", "docker", here.user))
    return tuple(commands)


def _other_system(here: Here) -> EngineSetupError:
    names = (here.os_id, *here.os_like.split())
    known = next((name for name in names if name in _ELSEWHERE), None)
    problem = (
        "Docker can be installed for you on Debian and Ubuntu only; this is "
        f"{here.os_id or 'an unknown system'}"
    )
    # distributions that are like Fedora (RHEL, Rocky, Alma) do not have Fedora's engine
    if known is None or (known == "fedora" and here.os_id != "fedora"):
        return EngineSetupError(f"{problem}.", fix=f"Follow Docker's instructions: {DOCS}")
    commands = [(*here.sudo, *_ELSEWHERE[known])]
    if here.has_init:
        commands.append((*here.sudo, "systemctl", "start", "docker"))
    return EngineSetupError(f"{problem}, which has a package of it.", fix=_pasteable(commands))


def _pasteable(commands: Sequence[Sequence[str]]) -> str:
    return " && ".join(shlex.join(command) for command in commands)


def likely_packages(os_id: str, version: str) -> Callable[[str], bool]:
    """Guess the packages of a release, for a message that must not wait for apt."""
    try:
        number = float(version)
    except ValueError:
        number = float("inf")  # testing, unstable, derivatives: like the newest
    is_ubuntu = os_id == "ubuntu"
    absent = {"docker-buildx-plugin"}
    if is_ubuntu or number < 13:
        absent.add("docker-cli")  # part of docker.io
    if number < (22.04 if is_ubuntu else 13):
        absent.add("docker-buildx")  # not packaged yet; an older client builds without it
    return lambda package: package not in absent


# --- this host --------------------------------------------------------------------------------


def _read_here() -> Here:
    release: dict[str, str] = {}
    for path in map(Path, OS_RELEASE_FILES):
        if path.is_file():
            release = parse_os_release(path.read_text(encoding="utf-8", errors="replace"))
            break
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user ID without a name
        user = ""
    return Here(
        os_id=release.get("ID", ""),
        os_like=release.get("ID_LIKE", ""),
        version=release.get("VERSION_ID", ""),
        is_root=os.geteuid() == 0,
        has_init=Path("/run/systemd/system").is_dir(),  # sd_booted(3)
        user=user,
    )


def _have(program: str) -> bool:
    if program == "docker-buildx":
        places = [
            Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "cli-plugins",
            *(Path(f"{root}/docker/cli-plugins") for root in (
                "/usr/local/lib", "/usr/local/libexec", "/usr/lib", "/usr/libexec",
            )),
        ]  # fmt: skip
        return any(os.access(place / program, os.X_OK) for place in places)
    # sbin is not on every user's PATH
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
    return process.which(program, path=path) is not None


def has_candidate(policy: str) -> bool:
    """Whether the output of `apt-cache policy NAME` shows an installable package."""
    match = re.search(r"^\s+Candidate: (.+)$", policy, re.MULTILINE)
    return match is not None and match[1] != "(none)"


def _have_package(package: str) -> bool:
    policy = process.run(
        ["apt-cache", "policy", package], timeout_s=60, env={"LC_ALL": "C"}, apart=True
    )
    return has_candidate(policy.stdout)


def fix_text() -> str:
    """What to type if no engine answers: the commands that this module would run."""
    here = _read_here()
    try:
        commands = plan_commands(
            here, have=_have, have_package=likely_packages(here.os_id, here.version)
        )
    except EngineSetupError as failure:
        return failure.fix
    text = _pasteable(commands)
    if here.has_init:
        return text
    start = f"setsid dockerd >>{LOG} 2>&1 </dev/null &"
    quoted = f"sudo sh -c {shlex.quote(start)}" if here.sudo else f"sh -c {shlex.quote(start)}"
    return f"{text} && {quoted}" if text else quoted


# --- the whole setup --------------------------------------------------------------------------


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _run_each(commands: Sequence[Sequence[str]]) -> None:
    """Print each command, then run it; prints its output only if it fails."""
    for command in commands:
        _say(f"+ {shlex.join(command)}")
        completed = process.run(
            command,
            timeout_s=_INSTALL_TIMEOUT_S,
            terminal=command[0] == "sudo",  # it may ask for a password
            missing_fix="Become root (su -) and run the same command again.",
        )
        if not completed.ok:
            raise EngineSetupError(
                f"`{completed.command}` {process.describe_exit(completed.code)}.",
                fix=f"Its last lines say why. To install Docker by hand: {DOCS}",
                detail=completed.last_lines(),
            )


def _install(here: Here) -> None:
    update = (*here.sudo, "apt-get", "update")
    if here.is_debian_like and not _have("dockerd"):
        _run_each([update])  # apt needs this to know the available packages
    commands = plan_commands(here, have=_have, have_package=_have_package)
    _run_each([command for command in commands if command != update])


def _start(here: Here) -> StartedEngine | None:
    """Start the engine if no init did. None: it answers already."""
    io = local_io(DEFAULT_HOST, LOG, sudo=here.sudo)
    # an init needs a moment, and so does a package's start script
    deadline = time.monotonic() + (WAIT_S if here.has_init else 3.0)
    while time.monotonic() < deadline:
        if io.ask().is_up:
            return None
        time.sleep(0.25)
    if here.has_init:
        raise EngineSetupError(
            f"systemd started Docker, but it does not answer at {DEFAULT_HOST} after {WAIT_S:g} s.",
            fix="Its log says why: journalctl -u docker --no-pager | tail -n 30",
        )
    return start_engine(host=DEFAULT_HOST, log=LOG, say=_say, io=io)


def _set_up() -> None:
    answer = ask_engine()
    where = os.environ.get("DOCKER_HOST") or DEFAULT_HOST
    if answer.version:
        _say(f"docker engine {answer.version} answers at {where}")
        return
    if where not in {DEFAULT_HOST, "unix:///run/docker.sock"}:
        raise EngineSetupError(
            f"DOCKER_HOST is set to {where}, where no engine answers; an engine installed here "
            "would not be used.",
            fix="unset DOCKER_HOST",
            detail=answer.problem,
        )
    here = _read_here()
    started = None
    if answer.is_closed and here.user:
        _run_each([(*here.sudo, "usermod", "-aG", "docker", here.user)])
    else:
        _install(here)
        started = _start(here)
    if started is not None:
        stop = shlex.join([*here.sudo, "kill", str(started.pid)])
        _say(f"dockerd runs as process {started.pid}; its log: {started.log}; to stop it: {stop}")
        for step in started.left_out:
            _say(f"it was started {step.why}")
    answer = ask_engine()
    if answer.version:
        _say(f"docker engine {answer.version} answers at {where}")
    elif answer.is_closed:
        _say(
            f"The engine runs, and {here.user or 'this user'} is now in the group docker (whose"
            " members can become root). This takes effect at the next login; until then: "
            "sg docker -c 'COMMAND'"
        )
    else:
        raise EngineSetupError(
            f"The engine does not answer at {where}.", fix=fix_text(), detail=answer.problem
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Set up an engine on this host; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m images.engines.setup",
        description="Install and start Docker from the distribution's packages (Debian, Ubuntu).",
    )
    parser.add_argument("--print", action="store_true", help="only print the commands")
    arguments = parser.parse_args(argv)
    if arguments.print:
        sys.stdout.write(f"{fix_text()}\n")
        return 0
    try:
        _set_up()
    except Failure as failure:
        detail = f"\n{failure.detail}" if failure.detail else ""
        _say(f"error: {failure.message}{detail}\nfix: {failure.fix}")
        return failure.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
