"""Setting up an engine: what is typed, and how it is started where a machine forbids much."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from images.engines import setup as module
from images.engines import start
from images.engines.setup import Here, fix_text, likely_packages, plan_commands
from images.engines.start import (
    EngineAnswer,
    EngineSetupError,
    StartedEngine,
    StartIO,
    next_step,
    start_engine,
    telling_line,
)
from images.system import process
from images.system.os_release import parse_os_release
from tests.kit.cases import cases

UPDATE = "apt-get update"
INSTALL = "env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends"
START = "systemctl start docker"


def here(**changes: Any) -> Here:
    """A user's Debian 12, but for these facts."""
    return replace(
        Here(os_id="debian", version="12", is_root=False, has_init=True, user="ann"), **changes
    )


def planned(
    os_id: str,
    version: str,
    have: Callable[[str], bool] = lambda _: False,
    have_package: Callable[[str], bool] | None = None,
    **changes: Any,
) -> list[str]:
    facts = here(os_id=os_id, version=version, **{"is_root": True, "user": "", **changes})
    guess = likely_packages(os_id, version)
    commands = plan_commands(facts, have=have, have_package=have_package or guess)
    return [" ".join(command) for command in commands]


BARE = "iptables ca-certificates"


@cases(
    "os_id version programs packages",
    ("the client is in docker.io", "debian", "12", (), f"docker.io {BARE}"),
    ("split", "debian", "13", (), f"docker.io docker-cli docker-buildx {BARE}"),
    ("testing", "debian", "", (), f"docker.io docker-cli docker-buildx {BARE}"),
    ("Ubuntu 22.04", "ubuntu", "22.04", (), f"docker.io docker-buildx {BARE}"),
    ("Ubuntu 24.04", "ubuntu", "24.04", (), f"docker.io docker-buildx {BARE}"),
    ("a relative of Debian", "linuxmint", "22", (), f"docker.io docker-cli docker-buildx {BARE}"),
    ("only the builder", "debian", "13", ("dockerd",), "docker-buildx"),
    ("all is there", "debian", "13", ("dockerd", "docker-buildx"), ""),
)
def test_what_is_missing_is_installed_as_the_release_has_it(
    os_id: str, version: str, programs: tuple[str, ...], packages: str
) -> None:
    expected = [UPDATE, f"{INSTALL} {packages}"] if packages else []
    like = "ubuntu debian" if os_id == "linuxmint" else ""
    assert planned(os_id, version, programs.__contains__, os_like=like) == [*expected, START]


def test_dockers_own_repository_gives_its_own_builder() -> None:
    found = planned("ubuntu", "24.04", {"dockerd"}.__contains__, lambda _: True)
    assert found[1] == f"{INSTALL} docker-buildx-plugin"


@cases(
    "os_id os_like fix",
    ("Fedora", "fedora", "", "sudo dnf install -y moby-engine"),
    ("openSUSE", "opensuse-leap", "suse opensuse", "sudo zypper --non-inter"),
    ("Arch", "arch", "", "sudo pacman -S"),
    ("a relative of Arch", "manjaro", "arch", "sudo pacman -S"),
    ("Rocky is not Fedora", "rocky", "rhel centos fedora", "docs.docker.com"),
    ("Alpine", "alpine", "", "docs.docker.com"),
    ("nothing known", "", "", "docs.docker.com"),
)
def test_other_systems_are_told_what_to_type(os_id: str, os_like: str, fix: str) -> None:
    with pytest.raises(EngineSetupError) as caught:
        planned(os_id, "", os_like=os_like, is_root=False)
    assert fix in caught.value.fix
    assert caught.value.exit_code == 5


@cases(
    "policy expected",
    ("there", "docker.io:\n  Installed: (none)\n  Candidate: 20.10\n", True),
    ("virtual", "docker.io:\n  Installed: (none)\n  Candidate: (none)\n", False),
    ("unknown", "", False),
)
def test_apts_answer_is_read(policy: str, *, expected: bool) -> None:
    assert module.has_candidate(policy) is expected


def test_os_release_is_read() -> None:
    text = '# x\nID=ubuntu\nVERSION_ID="22.04"\nNAME=\'A "B\'\nBROKEN="a\n\nnoise\n'
    found = parse_os_release(text)
    assert (found["ID"], found["VERSION_ID"], found["NAME"]) == ("ubuntu", "22.04", 'A "B')
    assert found["BROKEN"] == '"a'


@cases(
    "facts expected",
    ("a user of Debian 12", here(),
     (f"sudo {UPDATE} && sudo {INSTALL} docker.io iptables ca-certificates"
     f" && sudo {START} && sudo usermod -aG docker ann")),
    ("root in a container", here(is_root=True, has_init=False),
     (f"{UPDATE} && {INSTALL} docker.io iptables ca-certificates && "
     f"sh -c 'setsid dockerd >>{module.LOG} 2>&1 </dev/null &'")),
    ("another system", here(os_id="rocky"),
     "Follow Docker's instructions: https://docs.docker.com/engine/install/"),
)  # fmt: skip
def test_the_fix_can_be_pasted(monkeypatch: pytest.MonkeyPatch, facts: Here, expected: str) -> None:
    monkeypatch.setattr(module, "_read_here", lambda: facts)
    monkeypatch.setattr(module, "_have", lambda _: False)
    assert fix_text() == expected


# --- starting ---------------------------------------------------------------------------------

IPTABLES = (
    'time="2026" level=info msg="Loading containers: start."\n'
    "failed to start daemon: Error initializing network controller: error obtaining controller"
    " instance: failed to create NAT chain DOCKER: iptables failed: Permission denied\n"
)
BRIDGE = 'failed to start daemon: Error creating default "bridge" network: operation not permitted'
STORAGE = "failed to start daemon: error initializing graphdriver: driver not supported"
PID_FILE = "failed to start daemon: pid file found, ensure docker is not running"
ROOT = "dockerd needs to be started with root privileges."


@cases(
    "log expected",
    ("the daemon's last word", IPTABLES, IPTABLES.splitlines()[1]),
    ("a fatal message", 'level=fatal msg="say \\"no\\""\nlevel=info msg="bye"', 'say "no"'),
    ("the last line where none is marked", "something\nelse\n\n", "else"),
    ("nothing", "", ""),
)
def test_the_telling_line_is_found(log: str, expected: str) -> None:
    assert telling_line(log) == expected


@cases(
    "line given expected",
    ("no firewall", IPTABLES, [], "--iptables=false"),
    ("first the smaller step", BRIDGE, [], "--iptables=false"),
    ("then no network", BRIDGE, start._NO_FIREWALL, "--bridge=none"),
    ("storage: its own step at once", STORAGE, [], "--storage-driver=vfs"),
    ("unknown: the ladder", "what?", [], "--iptables=false"),
    ("its end", "what?", (*start._NO_FIREWALL, *start._NO_BRIDGE), "--storage-driver=vfs"),
    ("nothing is left", "what?", (*start._NO_FIREWALL, *start._NO_BRIDGE, *start._PLAIN_STORAGE),
     None),
    ("another runs", PID_FILE, [], None),
    ("not root", ROOT, [], None),
)  # fmt: skip
def test_the_next_step_follows_from_the_line(
    line: str, given: Sequence[str], expected: str | None
) -> None:
    step = next_step(line, given)
    assert (step.arguments[0] if step else None) == expected


class Machine:
    """A machine on which dockerd starts only without what it forbids."""

    def __init__(self, *forbidden: tuple[str, str], hangs: bool = False) -> None:
        self.forbidden = forbidden
        self.hangs = hangs
        self.log = ""
        self.commands: list[list[str]] = []
        self.stopped: list[int] = []
        self.now = 0.0
        self.answer = EngineAnswer(problem="no such file")

    def detach(self, command: Sequence[str]) -> int:
        self.commands.append(list(command))
        left = [log for flag, log in self.forbidden if flag not in command]
        self.log += f"{left[0]}\n" if left else ""
        if not left and not self.hangs:
            self.answer = EngineAnswer(version="20.10.24")
        return 100 + len(self.commands)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def start(self, *arguments: str, said: list[str] | None = None) -> StartedEngine:
        io = StartIO(
            detach=self.detach,
            is_alive=lambda _: self.hangs,
            ask=lambda: self.answer,
            read_log=lambda: self.log,
            stop=self.stopped.append,
            sleep=self.sleep,
            clock=lambda: self.now,
        )
        say = (said if said is not None else []).append
        host, log = "unix:///x.sock", Path("/x.log")
        return start_engine(host=host, log=log, say=say, io=io, arguments=arguments)


def test_a_machine_that_allows_all_gets_all() -> None:
    machine = Machine()
    started = machine.start("--data-root", "/d")
    assert machine.commands == [["dockerd", "--host", "unix:///x.sock", "--data-root", "/d"]]
    assert (started.pid, started.version, started.left_out) == (101, "20.10.24", ())


def test_what_is_forbidden_is_left_out_step_by_step_and_said() -> None:
    machine = Machine(("--storage-driver=vfs", STORAGE), ("--iptables=false", IPTABLES),
                      ("--bridge=none", BRIDGE))  # fmt: skip
    said: list[str] = []
    started = machine.start(said=said)
    assert [step.arguments[0] for step in started.left_out] == [
        "--storage-driver=vfs", "--iptables=false", "--bridge=none",
    ]  # fmt: skip
    assert [line for line in said if "driver not supported" in line]
    assert [line for line in said if "without firewall rules" in line]
    assert len([line for line in said if line.startswith("+ dockerd")]) == 4


def test_what_cannot_be_helped_is_told_at_once() -> None:
    machine = Machine(("--never", PID_FILE))
    with pytest.raises(EngineSetupError, match="pid file found") as caught:
        machine.start()
    assert len(machine.commands) == 1
    assert "/x.log" in caught.value.fix


def test_an_engine_that_never_answers_is_stopped_each_time() -> None:
    machine = Machine(hangs=True)
    with pytest.raises(EngineSetupError, match="did not answer within 60 s"):
        machine.start()
    assert machine.stopped == [101, 102, 103, 104]


# --- main -------------------------------------------------------------------------------------


class World:
    """The host as `main` meets it."""

    def __init__(self) -> None:
        self.answers = [EngineAnswer(problem="absent")]
        self.facts = here(is_root=True, has_init=True)
        self.programs: set[str] = set()
        self.code = 0
        self.ran: list[str] = []

    def ask(self, _host: str | None = None) -> EngineAnswer:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def run(self, argv: Sequence[str], **_: Any) -> process.Completed:
        self.ran.append(" ".join(argv))
        output = "  Candidate: 1" if argv[0] == "apt-cache" else "the last words"
        return process.Completed(
            argv=tuple(argv), code=self.code, output=output, stdout=output, seconds=0
        )

    @property
    def changed(self) -> list[str]:
        return [line for line in self.ran if not line.startswith("apt-cache")]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(module, "ask_engine", made.ask)
    monkeypatch.setattr(start, "ask_engine", made.ask)
    monkeypatch.setattr(module, "_read_here", lambda: made.facts)
    monkeypatch.setattr(module, "_have", lambda name: name in made.programs)
    monkeypatch.setattr(process, "run", made.run)
    return made


def test_an_engine_that_answers_is_left_alone(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.answers = [EngineAnswer(version="20.10.24")]
    assert module.main([]) == 0
    assert (
        "docker engine 20.10.24 answers at unix:///var/run/docker.sock" in capsys.readouterr().err
    )
    assert world.ran == []


def test_each_command_is_said_before_it_runs(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.answers = [EngineAnswer(problem="absent"), EngineAnswer(version="20.10.24")]
    assert module.main([]) == 0
    errors = capsys.readouterr().err.splitlines()
    assert [line[2:] for line in errors if line.startswith("+ ")] == world.changed
    assert world.changed == [
        UPDATE,
        f"{INSTALL} docker.io docker-cli docker-buildx iptables ca-certificates",
        START,
    ]


def test_a_failing_command_ends_it_with_its_last_words(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.code = 100
    assert module.main([]) == 5
    errors = capsys.readouterr().err
    assert "`apt-get update` ended with exit code 100" in errors
    assert "the last words" in errors
    assert world.ran == [UPDATE]


def test_a_closed_door_is_opened_for_the_user(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.facts = here()
    world.answers = [EngineAnswer(problem="PermissionError(13, 'Permission denied')")]
    assert module.main([]) == 0
    assert world.ran == ["sudo usermod -aG docker ann"]
    assert "sg docker -c" in capsys.readouterr().err


def test_an_engine_named_elsewhere_is_not_replaced(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://elsewhere:2375")
    assert module.main([]) == 5
    assert "fix: unset DOCKER_HOST" in capsys.readouterr().err
    assert world.ran == []


def test_another_system_is_a_plain_failure(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.facts = here(os_id="alpine")
    assert module.main([]) == 5
    assert "docs.docker.com/engine/install" in capsys.readouterr().err
    assert world.ran == []


def test_nothing_is_done_where_only_words_are_wanted(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert module.main(["--print"]) == 0
    assert capsys.readouterr().out.startswith("apt-get update && ")
    assert world.ran == []


# --- stopping ---------------------------------------------------------------------------------


def test_a_stubborn_process_is_stopped(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap '' TERM; echo >{ready}; while :; do sleep 0.05; done"
    pid = start.detach(["bash", "-c", script], log=tmp_path / "log", missing_fix="-")
    try:
        while not ready.exists():
            assert process.is_alive(pid)
        start.stop_pid(pid, wait_s=0.2)
        assert not process.is_alive(pid)
    finally:
        if process.is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_a_detached_command_outlives_the_call_and_is_known_by_its_id(tmp_path: Path) -> None:
    log = tmp_path / "log"
    argv = ["sh", "-c", "echo 'started here'; exec sleep 600"]
    pid = start.detach(argv, log=log, missing_fix="-")
    try:
        while "started here" not in (log.read_text() if log.exists() else ""):
            assert process.is_alive(pid)
            time.sleep(0.01)
        assert os.getsid(pid) == pid
    finally:
        os.kill(pid, signal.SIGKILL)
