"""--fix: what it shows, asks, keeps, runs, proves, and how it goes back. The shell is the real one;
the files are in a directory of the test's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from provision.doctor import diagnose
from provision.doctor.causes import explained, find_causes
from provision.doctor.fixes import narrowed
from provision.doctor.knowledge import Knowledge, load, parse
from provision.doctor.mending import FixIO, mend, read_journal, undo
from provision.doctor.mending.effects import effects
from provision.doctor.mending.fix_io import run_in_shell
from provision.doctor.mending.shell import needs_sudo, without_sudo
from provision.doctor.model import Cause, Fact, Fix, KnownFailure
from provision.errors import BadInputError, Exit
from tests import need
from tests.kit.cases import cases

CODE = "the-file-is-broken"
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


@dataclass
class Scene:
    """A broken file, the knowledge that fixes it, and a person who answers."""

    folder: Path
    answers: list[bool] | None = field(default_factory=lambda: [True])
    is_root: bool = True
    has_sudo: bool = True
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    fixes: tuple[dict[str, Any], ...] = ()
    run: Callable[[str, float, Callable[[str], None]], int | None] = run_in_shell

    def __post_init__(self) -> None:
        self.file = self.folder / "settings"
        self.file.write_text("broken\n")
        self.file.chmod(0o640)

    @property
    def journals(self) -> Path:
        return self.folder / "state" / "mended"

    @property
    def copies(self) -> list[Path]:
        return sorted(self.folder.glob("*.before-*"))

    def io(self) -> FixIO:
        def ask(question: str) -> bool:
            assert self.answers is not None
            self.asked.append(question)
            return self.answers.pop(0)

        def run(command: str, limit_s: float, on_line: Callable[[str], None]) -> int | None:
            self.ran.append(command)
            return self.run(command, limit_s, on_line)

        return FixIO(
            say=self.said.append,
            ask=None if self.answers is None else ask,
            run=run,
            is_root=self.is_root,
            has_sudo=self.has_sudo,
            home=self.folder / "home",
            now=lambda: START,
            sleep=self.slept.append,
        )

    def knowledge(self, *fixes: dict[str, Any], **changes: Any) -> Knowledge:
        self.fixes = fixes
        one = {"run": f"echo whole > {self.file}", "automatic": True, "backup": [str(self.file)]}
        row = {
            "code": CODE,
            "layer": "disk",
            "title": "The settings are broken",
            "cause": "Somebody broke them.",
            "symptoms": [r"cannot read (?P<what>\S+)"],
            "confirm": f"grep -qx whole {self.file}",
            "sources": ["https://example.org/"],
            "fix": list(fixes) or [one],
            **changes,
        }
        return parse({"own.toml": {"failure": [row]}})

    def causes(self, knowledge: Knowledge, text: str = "cannot read it") -> tuple[Cause, ...]:
        return diagnose([("log", text)], knowledge=knowledge).causes

    def mend(
        self, knowledge: Knowledge, *, assume_yes: bool = False, text: str = "cannot read it"
    ) -> Exit:
        return mend(
            self.causes(knowledge, text),
            knowledge=knowledge,
            io=self.io(),
            journals=self.journals,
            assume_yes=assume_yes,
        )

    def undo(self, path: Path | None = None, *, assume_yes: bool = True, **changes: Any) -> Exit:
        """By the knowledge of the last fix; `changes` are to it."""
        knowledge = self.knowledge(*self.fixes, **changes)
        path = path or self.journal()
        return undo(path, knowledge=knowledge, io=self.io(), assume_yes=assume_yes)

    @property
    def text(self) -> str:
        return "\n".join(self.said)

    def journal(self) -> Path:
        (path,) = self.journals.iterdir()
        return path


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_broken_file_is_mended_proven_and_taken_back(scene: Scene) -> None:
    assert scene.mend(scene.knowledge()) is Exit.DONE
    assert scene.file.read_text() == "whole\n"
    assert "Mended." in scene.text
    assert read_journal(scene.journal()).result == "mended"

    assert scene.undo() is Exit.DONE
    assert scene.file.read_text() == "broken\n"
    assert stat.S_IMODE(scene.file.stat().st_mode) == 0o640
    assert read_journal(scene.journal()).result == "undone"
    assert "is not taken back" in scene.text

    scene.file.write_text("changed since\n")
    assert scene.undo() is Exit.DONE
    assert scene.file.read_text() == "changed since\n"


def test_everything_is_shown_before_it_is_asked_and_asked_before_it_is_run(scene: Scene) -> None:
    knowledge = scene.knowledge()
    shown: list[str] = []
    scene.answers = [False]
    io = scene.io()

    def ask(_: str) -> bool:
        shown.extend(scene.said)
        return False

    end = mend(
        scene.causes(knowledge),
        knowledge=knowledge,
        io=replace(io, ask=ask),
        journals=scene.journals,
    )
    assert end is Exit.HOST_UNFIT
    text = "\n".join(shown)
    for words in ("The settings are broken", "Somebody broke them", f"echo whole > {scene.file}"):
        assert words in text
    assert "kept before:" in text
    assert scene.ran == [f"grep -qx whole {scene.file}"]  # whether it is broken at all
    assert scene.file.read_text() == "broken\n"
    assert not scene.journals.exists()


def test_without_a_terminal_and_without_yes_nothing_is_run(scene: Scene) -> None:
    scene.answers = None
    assert scene.mend(scene.knowledge()) is Exit.USAGE
    assert "no terminal to ask at" in " ".join(scene.text.split())
    assert "--yes" in scene.text
    assert not scene.ran


def test_with_yes_nobody_is_asked(scene: Scene) -> None:
    scene.answers = None
    assert scene.mend(scene.knowledge(), assume_yes=True) is Exit.DONE


def test_without_a_cause_there_is_nothing_to_mend(scene: Scene) -> None:
    assert scene.mend(scene.knowledge(), text="all is well") is Exit.DONE
    assert "Nothing to fix" in scene.text


# --- whether it is here -------------------------------------------------------------------------


@pytest.mark.parametrize("assume_yes", [True, False], ids=["with --yes", "at a terminal"])
def test_what_the_confirming_command_finds_healthy_is_left_alone(
    scene: Scene, *, assume_yes: bool
) -> None:
    scene.file.write_text("whole\n")
    assert scene.mend(scene.knowledge(), assume_yes=assume_yes) is Exit.DONE
    assert "this machine does not have it" in scene.text
    assert scene.ran == [f"grep -qx whole {scene.file}"]
    assert not scene.asked
    assert not scene.copies
    assert not scene.journals.exists()


def test_a_cause_that_is_not_here_makes_no_other_one_look_mended(scene: Scene) -> None:
    """A person's own work is not called done because a command showed something."""
    scene.file.write_text("whole\n")
    automatic = scene.knowledge()
    by_hand = {**OTHER, "confirm": "true", "symptoms": ["cannot read"]}
    knowledge = replace(
        automatic, failures=(*automatic.failures, *parse({"x": {"failure": [by_hand]}}).failures)
    )
    causes = sorted(scene.causes(knowledge), key=lambda one: one.code != CODE)
    end = mend(causes, knowledge=knowledge, io=scene.io(), journals=scene.journals, assume_yes=True)
    assert end is Exit.HOST_UNFIT
    assert "gone too" not in scene.text
    assert "true" not in scene.ran


HOST = [{"fact": "os.id", "is": "debian"}]
CLUE = [{"fact": "os.id", "is": "debian", "says": "it is Debian"}]
FACTS = {"os.id": Fact(value="debian", where="test")}
OTHER = {
    "code": "another",
    "layer": "network",
    "title": "The network is down",
    "cause": "c",
    "symptoms": ["no such host"],
    "sources": ["https://example.org/"],
    "fix": [{"note": "Ask your administrator."}],
}


@cases(
    "changes end said",
    ("the command fails here without a word", {}, Exit.DONE, "Mended."),
    ("the command fails here and says what the text says",
     {"confirm": "{confirm} || {{ echo cannot read it; exit 1; }}"}, Exit.DONE, "Mended."),
    ("the command fails here with an unknown error",
     {"confirm": "{confirm} || {{ echo something new; exit 1; }}"}, Exit.DONE, "Mended."),
    ("the command fails here and shows another cause",
     {"confirm": "{confirm} || {{ echo no such host; exit 1; }}"}, Exit.NO_VERDICT,
     "for another reason: The network is down (another)."),
    ("the command fails here and shows what follows from the cause",
     {"confirm": "{confirm} || {{ echo no such host; exit 1; }}", "beats": ["another"]}, Exit.DONE,
     "Mended."),
    ("the command shows another cause but a fact of the machine agrees",
     {"confirm": "{confirm} || {{ echo no such host; exit 1; }}", "clues": CLUE}, Exit.DONE,
     "Mended."),
    ("the command decides nothing and no fact agrees", {"confirm": "cat {file}", "check": ""},
     Exit.NO_VERDICT, "nothing on this machine could confirm it"),
    ("the command decides nothing and a fact of the machine agrees",
     {"confirm": "cat {file}", "check": "", "clues": CLUE}, Exit.NO_VERDICT, "look yourself"),
    ("the command needs sudo and there is none", {"confirm": "sudo {confirm}"}, Exit.NO_VERDICT,
     "nothing on this machine could confirm it"),
)  # fmt: skip
def test_with_yes_a_fact_of_this_machine_must_agree_with_the_text(
    scene: Scene, changes: dict[str, Any], end: Exit, said: str
) -> None:
    scene.is_root, scene.has_sudo = False, False
    places = {"confirm": f"grep -qx whole {scene.file}", "file": scene.file}
    row = {
        "code": CODE,
        "layer": "disk",
        "title": "t",
        "cause": "c",
        "symptoms": ["cannot read"],
        "confirm": "{confirm}",
        "sources": ["https://example.org/"],
        "fix": [
            {"run": f"echo whole > {scene.file}", "automatic": True, "backup": [str(scene.file)]}
        ],
        **changes,
    }
    row["confirm"] = str(row["confirm"]).format(**places)
    knowledge = parse({"own.toml": {"failure": [row, OTHER]}})
    scene.run = without_sudo_here
    causes = diagnose([("log", "cannot read it")], FACTS, knowledge=knowledge).causes
    result = mend(
        causes,
        knowledge=knowledge,
        io=scene.io(),
        journals=scene.journals,
        assume_yes=True,
    )
    assert result is end
    assert said in " ".join(scene.text.split())
    changed = said in {"Mended.", "look yourself"}
    assert scene.file.read_text() == ("whole\n" if changed else "broken\n")
    assert changed or "without --yes" in " ".join(scene.text.split())


def without_sudo_here(command: str, limit_s: float, on_line: Callable[[str], None]) -> int | None:
    """What keeps files of others runs through sudo, which this machine may lack."""
    is_ours = "cp -pL" in command or "test -e" in command
    return run_in_shell(command.replace("sudo ", "") if is_ours else command, limit_s, on_line)


def test_what_the_machine_itself_proves_is_mended_though_a_command_is_content(
    scene: Scene,
) -> None:
    knowledge = scene.knowledge(host=HOST, confirm="true")
    (cause,) = find_causes(knowledge, {}, FACTS).causes
    end = mend(
        [cause], knowledge=knowledge, io=scene.io(), journals=scene.journals, assume_yes=True
    )
    assert end is Exit.DONE
    assert scene.file.read_text() == "whole\n"


SHIPPED = [
    failure
    for failure in load().failures
    if any(fix.automatic and not fix.reboot for fix in failure.fixes)
]


@pytest.mark.parametrize("failure", SHIPPED, ids=[one.code for one in SHIPPED])
def test_a_shipped_fix_runs_on_a_sick_machine_and_never_on_a_healthy_one(
    failure: KnownFailure, tmp_path: Path
) -> None:
    cause = replace(explained(failure), in_text=True)
    check = without_sudo(cause.confirm if failure.check is None else failure.check)
    ends, ran = [], []
    for code in (0, 1):
        commands: list[str] = []

        def answer(
            command: str,
            _: float,
            on_line: Callable[[str], None],
            *,
            code: int = code,
            commands: list[str] = commands,
        ) -> int:
            commands.append(command)
            if "test -e" in command:
                on_line("absent")
            return code if command == check else 0

        io = FixIO(
            say=lambda _: None,
            ask=None,
            run=answer,
            is_root=True,
            has_sudo=True,
            home=tmp_path,
            sleep=lambda _: None,
        )
        end = mend([cause], knowledge=load(), io=io, journals=tmp_path, assume_yes=True)
        ends.append(end)
        ran.append([one for one in commands if one != check])
    if not check:
        assert ends == [Exit.NO_VERDICT] * 2
        assert ran == [[], []]
        return
    assert ends[0] is Exit.DONE
    assert ran[0] == []
    is_rootless = all(set(f.on) == {"rootless"} for f in failure.fixes if f.automatic)
    takes_away = all(
        "deletes" in effects(f.run) and not f.backup for f in failure.fixes if f.automatic
    )
    assert bool(ran[1]) is not takes_away or is_rootless


# --- what is kept -------------------------------------------------------------------------------


def test_the_copy_has_the_mode_and_the_owner_of_the_file(scene: Scene) -> None:
    if os.geteuid() == 0:
        os.chown(scene.file, 12345, 54321)
    before = scene.file.stat()
    assert scene.mend(scene.knowledge()) is Exit.DONE
    (copy,) = scene.copies
    after = copy.stat()
    assert copy.read_text() == "broken\n"
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode,
        before.st_uid,
        before.st_gid,
    )
    assert copy.name == "settings.before-20260102T030405Z"


def test_a_file_that_was_not_there_is_taken_away_again(scene: Scene) -> None:
    scene.file.unlink()
    assert scene.mend(scene.knowledge()) is Exit.DONE
    assert not scene.copies
    assert scene.undo() is Exit.DONE
    assert not scene.file.exists()


def test_a_link_stays_a_link(scene: Scene) -> None:
    real = scene.folder / "elsewhere" / "real"
    real.parent.mkdir()
    scene.file.rename(real)
    scene.file.symlink_to(real)
    assert scene.mend(scene.knowledge()) is Exit.DONE
    assert real.read_text() == "whole\n"
    assert scene.undo() is Exit.DONE
    assert scene.file.is_symlink()
    assert real.read_text() == "broken\n"


def test_two_fixes_in_one_second_do_not_share_a_copy(scene: Scene) -> None:
    never = scene.knowledge(confirm="false")
    assert scene.mend(never) is Exit.HOST_UNFIT
    scene.answers = [True]
    assert scene.mend(never) is Exit.HOST_UNFIT
    assert [copy.read_text() for copy in scene.copies] == ["broken\n", "whole\n"]


def test_an_odd_name_is_one_word_to_the_shell(scene: Scene) -> None:
    odd = scene.folder / "a b; touch 'x' $(id)"
    odd.write_text("odd")
    fix = {"run": f"echo whole > {scene.file}", "automatic": True, "backup": [str(odd)]}
    assert scene.mend(scene.knowledge(fix)) is Exit.DONE
    odd.write_text("changed")
    assert scene.undo() is Exit.DONE
    assert odd.read_text() == "odd"


def test_a_file_that_cannot_be_kept_stops_the_fix_before_its_first_command(scene: Scene) -> None:
    folder = scene.folder / "folder"
    folder.mkdir()
    fix = {"run": f"echo whole > {scene.file}", "automatic": True, "backup": [str(folder)]}
    assert scene.mend(scene.knowledge(fix)) is Exit.HOST_UNFIT
    assert "No command was run" in scene.text
    assert scene.file.read_text() == "broken\n"
    assert not list(scene.folder.glob("*.partial"))


def test_a_look_that_failed_is_not_taken_for_an_absent_file(scene: Scene) -> None:
    def refuse(command: str, limit_s: float, on_line: Callable[[str], None]) -> int | None:
        if "test -e" in command:
            on_line("sudo: a password is required")
            return 1
        return run_in_shell(command, limit_s, on_line)

    scene.run = refuse
    assert scene.mend(scene.knowledge()) is Exit.HOST_UNFIT
    assert "could not be looked at" in scene.text
    assert scene.file.read_text() == "broken\n"
    assert read_journal(scene.journal()).kept == ()


def test_a_directory_that_takes_no_journal_stops_the_fix_before_its_first_command(
    scene: Scene,
) -> None:
    scene.journals.parent.write_text("a file where a directory should be")
    with pytest.raises(BadInputError) as caught:
        scene.mend(scene.knowledge())
    assert "XDG_STATE_HOME" in caught.value.fix
    assert scene.file.read_text() == "broken\n"


@cases(
    "run backup",
    ("two files are removed", "rm -f {a} {b}", ["{a}", "{b}"]),
    ("a pattern is removed", "rm -f {folder}/*.list", ["{folder}/*.list"]),
    ("one file is moved over another", "mv {a} {b}", ["{a}", "{b}"]),
    ("one file is copied over another", "cp {a} {b}", ["{b}"]),
    ("two files are written by tee", "echo x | tee {a} {b}", ["{a}", "{b}"]),
    ("a file is emptied", "truncate -s 0 {a}", ["{a}"]),
    ("a file becomes a link", "ln -sf {b} {a}", ["{a}"]),
    ("two redirections", "echo x > {a}; echo y >> {b}", ["{a}", "{b}"]),
)
@pytest.mark.parametrize("is_named", [True, False], ids=["kept", "not kept"])
def test_with_yes_only_files_that_are_kept_are_written_or_removed(
    scene: Scene, run: str, backup: list[str], *, is_named: bool
) -> None:
    folder = scene.folder / "lists"
    folder.mkdir()
    a, b = folder / "a b.list", folder / "b.list"
    a.write_text("a")
    b.write_text("b")
    names = {"a": f"'{a}'", "b": str(b), "folder": str(folder)}
    paths = {"a": str(a), "b": str(b), "folder": str(folder)}
    fix = {
        "run": run.format(**names),
        "automatic": True,
        "backup": [one.format(**paths) for one in backup] if is_named else [],
    }
    knowledge = scene.knowledge(fix, confirm="false")
    assert scene.mend(knowledge, assume_yes=True) is Exit.HOST_UNFIT
    if not is_named:
        assert "not restored by --undo" in " ".join(scene.text.split())
        assert scene.ran == ["false"]
    else:
        assert "the commands ran" in scene.text
        assert scene.undo(confirm="false") is Exit.DONE
    assert (a.read_text(), b.read_text()) == ("a", "b")


def test_a_file_whose_name_has_two_lines_is_not_removed(scene: Scene) -> None:
    (scene.folder / "two\nlines.list").write_text("x")
    fix = {
        "run": f"rm -f {scene.folder}/*.list",
        "automatic": True,
        "backup": [f"{scene.folder}/*.list"],
    }
    assert scene.mend(scene.knowledge(fix), assume_yes=True) is Exit.HOST_UNFIT
    assert "could not be listed" in " ".join(scene.text.split())
    assert (scene.folder / "two\nlines.list").exists()


def test_a_link_that_leads_nowhere_is_not_taken_for_an_absent_file(scene: Scene) -> None:
    scene.file.unlink()
    scene.file.symlink_to("nowhere")
    assert scene.mend(scene.knowledge(), assume_yes=True) is Exit.HOST_UNFIT
    assert "No command was run" in scene.text


# --- how it ends --------------------------------------------------------------------------------


def test_the_first_command_that_fails_is_the_last(scene: Scene) -> None:
    fix = {
        "run": f"echo half > {scene.file}\necho no; exit 3\necho whole > {scene.file}",
        "automatic": True,
        "backup": [str(scene.file)],
    }
    assert scene.mend(scene.knowledge(fix)) is Exit.HOST_UNFIT
    assert "ended with exit code 3" in scene.text
    assert "    | no" in scene.text
    assert f"cp -p {scene.copies[0]}" in scene.text
    assert scene.file.read_text() == "half\n"
    journal = read_journal(scene.journal())
    assert [one.code for one in journal.done] == [0, 3]
    assert journal.result == "failed"
    assert scene.undo() is Exit.DONE
    assert scene.file.read_text() == "broken\n"


def test_a_command_whose_first_half_fails_has_failed(scene: Scene) -> None:
    fix = {"run": "false; true", "automatic": True}
    assert scene.mend(scene.knowledge(fix)) is Exit.HOST_UNFIT
    assert "ended with exit code 1" in scene.text


def test_a_command_that_never_ends_is_ended(scene: Scene) -> None:
    def short(command: str, limit_s: float, on_line: Callable[[str], None]) -> int | None:
        del limit_s
        return run_in_shell(command, 0.05 if "sleep" in command else 60, on_line)

    scene.run = short
    assert scene.mend(scene.knowledge({"run": "sleep 600", "automatic": True})) is Exit.HOST_UNFIT
    assert "its time was up" in scene.text
    assert read_journal(scene.journal()).done[-1].code is None


def test_what_ran_and_mended_nothing_is_not_called_mended(scene: Scene) -> None:
    assert scene.mend(scene.knowledge(confirm="false")) is Exit.HOST_UNFIT
    assert "Not fixed" in scene.text
    assert "Mended." not in scene.text
    assert "To put the kept files back" in scene.text


def test_the_next_fix_has_its_turn_where_the_first_did_not_mend(scene: Scene) -> None:
    scene.answers = [True, True, True]
    end = scene.mend(
        scene.knowledge(
            {"run": "true", "automatic": True},
            {"run": "echo by hand", "note": "not run"},
            {"run": f"echo whole > {scene.file}", "automatic": True},
            {"run": f"rm {scene.file}", "automatic": True},
        )
    )
    assert end is Exit.DONE
    assert len(scene.asked) == 2
    assert not any("by hand" in command for command in scene.ran)


def test_without_a_confirming_command_there_is_no_verdict(scene: Scene) -> None:
    assert scene.mend(scene.knowledge(confirm="")) is Exit.NO_VERDICT
    assert "look yourself" in scene.text


def test_a_service_that_was_started_is_given_time(scene: Scene) -> None:
    fix = {"run": "true restart service", "automatic": True}
    count = scene.folder / "count"
    confirm = f"echo x >> {count}; test $(wc -l < {count}) -ge 4"  # the first is before the fix
    assert scene.mend(scene.knowledge(fix, confirm=confirm)) is Exit.DONE
    assert len(scene.slept) == 2


@pytest.mark.parametrize("where", ["a command", "the copy", "the confirmation", "the question"])
def test_ctrl_c_says_what_was_done_and_how_to_go_back(scene: Scene, where: str) -> None:
    def interrupted(command: str, limit_s: float, on_line: Callable[[str], None]) -> int | None:
        parts = {"a command": "second", "the copy": "cp -pL", "the confirmation": "grep -qx"}
        is_first_look = not scene.journals.exists()
        if where in parts and parts[where] in command and not is_first_look:
            raise KeyboardInterrupt
        return run_in_shell(command, limit_s, on_line)

    def never(_: str) -> bool:
        raise KeyboardInterrupt

    scene.run = interrupted
    fix = {
        "run": f"echo half > {scene.file}\ntrue second",
        "automatic": True,
        "backup": [str(scene.file)],
    }
    knowledge = scene.knowledge(fix)
    io = scene.io()
    end = mend(
        scene.causes(knowledge),
        knowledge=knowledge,
        io=replace(io, ask=never) if where == "the question" else io,
        journals=scene.journals,
    )
    assert end is Exit.INTERRUPTED
    assert "Interrupted." in scene.text
    if where in {"a command", "the confirmation"}:
        last = scene.said[scene.said.index("Interrupted.") :]
        assert any("To put the kept files back" in line for line in last)
        assert read_journal(scene.journal()).result == "interrupted"
        assert scene.undo() is Exit.DONE
    assert scene.file.read_text() == "broken\n"


def test_a_real_interrupt_ends_the_command_with_all_that_it_started(tmp_path: Path) -> None:
    import signal
    import subprocess

    ready, survived = tmp_path / "ready", tmp_path / "survived"
    code = (
        "import sys\n"
        "from provision.doctor.mending.fix_io import run_in_shell\n"
        "try:\n"
        f"    run_in_shell('echo $$ > {ready}.part; mv {ready}.part {ready}; sleep 600 & wait;"
        f" touch {survived}', 600, print)\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, start_new_session=True
    ) as process:
        while not ready.exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    shell = int(ready.read_text())
    assert not Path(f"/proc/{shell}").exists()
    assert not survived.exists()


# --- what is not run ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fix", "why"),
    [
        ({"run": "echo x"}, "your choice"),
        ({"note": "Ask your administrator."}, "work by hand"),
        ({"run": "echo x", "reboot": True}, "restarted"),
        ({"run": "echo x", "reboot": True, "automatic": True}, "restarted"),
    ],
)
def test_what_is_not_automatic_is_shown_and_not_run(
    scene: Scene, fix: dict[str, Any], why: str
) -> None:
    assert scene.mend(scene.knowledge(fix), assume_yes=True) is Exit.HOST_UNFIT
    assert why in " ".join(scene.text.split())
    assert (fix.get("run") or fix["note"]) in scene.text
    assert not scene.ran


def test_a_word_of_a_log_never_reaches_a_shell(scene: Scene) -> None:
    fix = {"run": "echo {what}", "automatic": True}
    text = "cannot read $(touch${IFS}owned)"
    assert scene.mend(scene.knowledge(fix), assume_yes=True, text=text) is Exit.HOST_UNFIT
    assert "read from the text" in " ".join(scene.text.split())
    assert not scene.ran


def test_a_confirmation_with_a_word_of_a_log_is_shown_and_not_run(scene: Scene) -> None:
    knowledge = scene.knowledge(confirm="grep whole {what}")
    assert scene.mend(knowledge, text="cannot read `id`") is Exit.NO_VERDICT
    assert "grep whole '`id`'" in scene.text
    assert not any("grep" in command for command in scene.ran)


def test_a_cause_from_elsewhere_brings_no_commands(scene: Scene) -> None:
    knowledge = scene.knowledge()
    (cause,) = scene.causes(knowledge)
    forged = replace(cause, fixes=(Fix(run="touch owned", automatic=True),))
    end = mend(
        [forged, replace(forged, code="unknown")],
        knowledge=knowledge,
        io=scene.io(),
        journals=scene.journals,
        assume_yes=True,
    )
    assert end is Exit.HOST_UNFIT
    assert not scene.ran


def test_control_characters_of_a_log_do_not_reach_the_terminal(scene: Scene) -> None:
    scene.mend(scene.knowledge(), text="cannot read \x1b[2Jx\x07")
    assert "\x1b" not in scene.text
    assert "\x07" not in scene.text


def test_with_yes_an_unlikely_cause_is_left_alone(scene: Scene) -> None:
    knowledge = scene.knowledge(symptoms=[{"text": "cannot read", "is": "hint"}])
    assert scene.mend(knowledge, assume_yes=True) is Exit.HOST_UNFIT
    assert not scene.ran
    assert scene.mend(knowledge) is Exit.DONE  # a person was asked


def test_what_follows_from_another_cause_is_not_mended_by_itself(scene: Scene) -> None:
    knowledge = scene.knowledge()
    (cause,) = scene.causes(knowledge)
    end = mend(
        [replace(cause, follows_from="another")],
        knowledge=knowledge,
        io=scene.io(),
        journals=scene.journals,
    )
    assert end is Exit.DONE
    assert not scene.ran


def test_a_cause_that_went_with_another_is_not_mended_again(scene: Scene) -> None:
    knowledge = scene.knowledge()
    (cause,) = scene.causes(knowledge)
    scene.answers = [True]
    end = mend([cause, cause], knowledge=knowledge, io=scene.io(), journals=scene.journals)
    assert end is Exit.DONE
    assert "gone too" in scene.text
    assert len(scene.asked) == 1


# --- rights -------------------------------------------------------------------------------------


def test_root_needs_no_sudo(scene: Scene) -> None:
    fix = {
        "run": f"echo whole | sudo tee {scene.file}",
        "automatic": True,
        "backup": [str(scene.file)],
    }
    assert scene.mend(scene.knowledge(fix, confirm=f"sudo grep whole {scene.file}")) is Exit.DONE
    assert not any(needs_sudo(command) for command in scene.ran)
    assert "sudo tee" not in scene.text


def test_without_root_and_without_sudo_the_way_is_said(scene: Scene) -> None:
    scene.is_root, scene.has_sudo = False, False
    fix = {"run": f"echo whole | sudo tee {scene.file}", "automatic": True}
    assert scene.mend(scene.knowledge(fix)) is Exit.USAGE
    assert "no sudo here" in scene.text
    assert "su -" in scene.text
    assert scene.ran == [f"grep -qx whole {scene.file}"]


def test_files_of_others_are_kept_through_sudo_and_ones_own_are_not(scene: Scene) -> None:
    own = scene.folder / "home" / "own"
    own.parent.mkdir()
    own.write_text("own")
    scene.is_root = False

    def record(command: str, limit_s: float, on_line: Callable[[str], None]) -> int | None:
        return run_in_shell(command.replace("sudo ", ""), limit_s, on_line)

    scene.run = record
    fix = {
        "run": f"echo whole > {scene.file}",
        "automatic": True,
        "backup": [str(scene.file), "~/own"],
    }
    assert scene.mend(scene.knowledge(fix)) is Exit.DONE
    copies = [command for command in scene.ran if command.count("cp -pL")]
    assert copies[0].startswith(f"sudo cp -pL {scene.file} ")
    assert copies[1].startswith(f"cp -pL {own} ")
    assert scene.undo() is Exit.DONE
    assert f"sudo cp -p {scene.copies[0]}" in scene.text


def test_a_users_own_engine_is_not_mended_as_root(scene: Scene) -> None:
    fix = {"run": "true", "automatic": True, "on": ["rootless"]}
    assert scene.mend(scene.knowledge(fix)) is Exit.HOST_UNFIT
    assert "without sudo" in " ".join(scene.text.split())
    assert not scene.ran


# --- running containers -------------------------------------------------------------------------


def containers(ids: Sequence[str]) -> Callable[..., int | None]:
    restarted: list[str] = []

    def run(command: str, limit_s: float, on_line: Callable[[str], None]) -> int | None:
        if command == "docker ps -q":
            for one in ids:
                on_line(one)
            return 0
        if "restart docker" in command:
            restarted.append(command)
            return 0
        if command == RESTARTED:
            return 0 if restarted else 1
        return run_in_shell(command, limit_s, on_line)

    return run


RESTARTED = "docker version"
RESTART = "systemctl restart docker || service docker restart"


def test_with_yes_a_restart_does_not_stop_running_containers(scene: Scene) -> None:
    scene.run = containers(["one", "two"])
    knowledge = scene.knowledge({"run": RESTART, "automatic": True}, confirm=RESTARTED)
    assert scene.mend(knowledge, assume_yes=True) is Exit.HOST_UNFIT
    assert "stops 2 running container(s)" in " ".join(scene.text.split())
    assert RESTART not in scene.ran
    assert scene.mend(knowledge) is Exit.DONE  # a person was told


def test_a_restart_without_containers_is_run(scene: Scene) -> None:
    scene.run = containers([])
    knowledge = scene.knowledge({"run": RESTART, "automatic": True}, confirm=RESTARTED)
    assert scene.mend(knowledge, assume_yes=True) is Exit.DONE


# --- which fix ----------------------------------------------------------------------------------


ALL = tuple(
    Fix(on=on, run=name)
    for name, on in (
        ("wsl", ("wsl",)),
        ("snap", ("snap-docker",)),
        ("ubuntu", ("ubuntu",)),
        ("debian", ("debian",)),
        ("docker", ("docker",)),
        ("all", ()),
    )
)
KNOWN = {
    "plain ubuntu": (["os.id=ubuntu", "os.family=debian"], ["ubuntu", "all"]),
    "debian with docker": (
        ["os.id=debian", "os.family=debian", "docker.installed"],
        ["debian", "docker", "all"],
    ),
    "wsl": (["os.id=ubuntu", "os.family=debian", "docker.installed", "wsl"], ["wsl"]),
    "docker of the snap": (
        ["os.id=ubuntu", "os.family=debian", "docker.installed", "docker.snap"],
        ["snap"],
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_the_fix_that_fits_closest_is_taken(name: str) -> None:
    words, expected = KNOWN[name]
    facts = {
        word.partition("=")[0]: Fact(value=word.partition("=")[2] or True, where="test")
        for word in words
    }
    knowledge = parse(
        {
            "own.toml": {
                "failure": [
                    {
                        "code": CODE,
                        "layer": "disk",
                        "title": "t",
                        "cause": "c",
                        "host": [{"fact": "os.family", "is": "debian"}],
                        "fix": [{"on": list(fix.on), "run": fix.run} for fix in ALL],
                    }
                ]
            }
        }
    )
    (cause,) = find_causes(knowledge, {}, facts).causes
    assert [fix.run for fix in narrowed(cause.fixes)] == expected


# --- the journal --------------------------------------------------------------------------------


def test_only_the_user_reads_the_journal(scene: Scene) -> None:
    assert scene.mend(scene.knowledge()) is Exit.DONE
    assert stat.S_IMODE(scene.journal().stat().st_mode) == 0o600


def test_the_journal_is_on_disk_before_a_command_changes_anything(scene: Scene) -> None:
    seen: list[str] = []

    def look(command: str, limit_s: float, on_line: Callable[[str], None]) -> int | None:
        if command.startswith("echo whole"):
            seen.append(scene.journal().read_text())
        return run_in_shell(command, limit_s, on_line)

    scene.run = look
    assert scene.mend(scene.knowledge()) is Exit.DONE
    (content,) = [json.loads(text) for text in seen]
    assert content["result"] == "running"
    kept = {"path": str(scene.file), "copy": str(scene.copies[0]), "real": None}
    assert content["kept"] == [kept]


def journal_text(**changes: Any) -> bytes:
    content = {"schema": 1, "code": "x", "started": "", "kept": [], "done": [], "result": "mended"}
    return json.dumps({**content, **changes}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"schema": 2}',
        b"\xff",
        b"[" * 100_000,
        b" " * (2 << 20),
        journal_text(kept=[{"path": "/etc/passwd", "copy": "/tmp/evil"}]),
        journal_text(kept=[{"path": "relative", "copy": None}]),
        journal_text(kept=[{"path": "/a", "copy": "/a/../etc/shadow"}]),
        journal_text(result="other"),
        journal_text(code=7),
    ],
)
def test_what_is_no_journal_takes_nothing_back(scene: Scene, content: bytes) -> None:
    path = scene.folder / "journal.json"
    path.write_bytes(content)
    with pytest.raises(BadInputError) as caught:
        scene.undo(path)
    assert "cannot be read" in caught.value.message
    assert not scene.ran


def test_a_journal_that_is_not_there_is_said(scene: Scene) -> None:
    with pytest.raises(BadInputError, match="No such file"):
        read_journal(scene.folder / "nothing.json")


def test_a_copy_that_is_gone_is_said_and_the_file_stays(scene: Scene) -> None:
    assert scene.mend(scene.knowledge()) is Exit.DONE
    for copy in scene.copies:
        copy.unlink()
    assert scene.undo() is Exit.HOST_UNFIT
    assert "could not be put back" in scene.text
    assert scene.file.read_text() == "whole\n"
    assert read_journal(scene.journal()).result == "mended"


def test_without_sudo_the_files_of_root_are_not_put_back(scene: Scene) -> None:
    assert scene.mend(scene.knowledge()) is Exit.DONE
    scene.is_root, scene.has_sudo = False, False
    scene.ran.clear()
    assert scene.undo() is Exit.USAGE
    assert not scene.ran


def foreign_owner(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives a file to somebody else")
    os.chown(path, 12345, 12345)


def moved_behind_a_link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def renamed(**changes: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


@cases(
    "spoil why",
    ("its group may write to it", lambda path: path.chmod(0o620), "may write"),
    ("everybody may write to it", lambda path: path.chmod(0o602), "may write"),
    ("it belongs to somebody else", foreign_owner, "another user"),
    ("its name is a symbolic link", moved_behind_a_link, "symbolic link"),
    ("it is a pipe", piped, "not a regular file"),
    ("it is of an unknown cause", renamed(code="other"), "does not know"),
    ("it restores a file that the fix does not keep",
     renamed(kept=[{"path": "/etc/passwd", "copy": "/etc/passwd.before-20260102T030405Z"}]),
     "no fix of"),
    ("it removes a file that the fix does not keep",
     renamed(kept=[{"path": "/etc/passwd", "copy": None}]), "no fix of"),
    ("an exit code is text", renamed(done=[{"command": "x", "code": "\x1b[2J"}]), "no journal"),
)  # fmt: skip
def test_what_others_may_have_written_is_not_undone(
    scene: Scene, spoil: Callable[[Path], object], why: str
) -> None:
    assert scene.mend(scene.knowledge()) is Exit.DONE
    path = scene.journal()
    spoil(path)
    scene.ran.clear()
    with pytest.raises(BadInputError) as caught:
        scene.undo(path)
    assert why in caught.value.message
    assert not scene.ran
    assert scene.file.read_text() == "whole\n"


@pytest.mark.parametrize(
    "copy", ["{file}.before-x", "{file}.before-20260102T030405Z/../evil", "{folder}/evil"]
)
def test_a_copy_with_another_name_is_not_restored(scene: Scene, copy: str) -> None:
    assert scene.mend(scene.knowledge()) is Exit.DONE
    name = copy.format(file=scene.file, folder=scene.folder)
    renamed(kept=[{"path": str(scene.file), "copy": name}])(scene.journal())
    with pytest.raises(BadInputError, match="no journal of --fix"):
        scene.undo()
    assert scene.file.read_text() == "whole\n"


def test_a_journal_that_was_moved_elsewhere_by_its_owner_is_undone(scene: Scene) -> None:
    assert scene.mend(scene.knowledge()) is Exit.DONE
    moved = scene.journal().rename(scene.folder / "kept.json")
    assert scene.undo(moved) is Exit.DONE
    assert scene.file.read_text() == "broken\n"


@cases(
    "answers end text",
    ("yes restores the files", [True], Exit.DONE, "broken\n"),
    ("no leaves them", [False], Exit.HOST_UNFIT, "whole\n"),
    ("without a terminal nothing is restored", None, Exit.USAGE, "whole\n"),
)
def test_undo_shows_the_files_and_asks(
    scene: Scene, answers: list[bool] | None, end: Exit, text: str
) -> None:
    assert scene.mend(scene.knowledge()) is Exit.DONE
    scene.said.clear()
    scene.answers = answers
    assert scene.undo(assume_yes=False) is end
    assert scene.file.read_text() == text
    assert f"{scene.file}  (from {scene.copies[0] if scene.copies else ''}" in scene.text


def test_control_characters_of_a_journal_do_not_reach_the_terminal(scene: Scene) -> None:
    assert scene.mend(scene.knowledge()) is Exit.DONE
    command = "echo \x1b]0;owned\x07 \x00 \u202e gpj.exe"
    renamed(done=[{"command": command, "code": 0}])(scene.journal())
    assert scene.undo() is Exit.DONE
    assert "gpj.exe" in scene.text
    assert not set("\x1b\x07\x00\u202e") & set(scene.text)


# --- a real terminal ----------------------------------------------------------------------------

AT_TERMINAL = """
import sys
from pathlib import Path
from provision.doctor import diagnose
from provision.doctor.knowledge import parse
from provision.doctor.mending import local_io, mend
fix = {"run": "echo first\\nsleep 600", "automatic": True}
row = {"code": "one", "layer": "disk", "title": "t", "cause": "c", "symptoms": ["x"], "fix": [fix]}
known = parse({"own": {"failure": [row]}})
causes = diagnose([("log", "x")], knowledge=known).causes
sys.exit(mend(causes, knowledge=known, io=local_io(print), journals=Path(sys.argv[1])))
"""


@cases(
    "keys code said",
    ("no", [b"n\n"], Exit.HOST_UNFIT, "Left as it is."),
    ("return", [b"\n"], Exit.HOST_UNFIT, "Left as it is."),
    ("end of input", [b"\x04"], Exit.HOST_UNFIT, "Left as it is."),
    ("ctrl-c at the question", [b"\x03"], Exit.INTERRUPTED, "Nothing more was changed."),
    ("ctrl-c in a command", [b"y\n", b"\x03"], Exit.INTERRUPTED, "Run so far:"),
)
def test_a_person_at_a_terminal_is_understood(
    keys: list[bytes], code: Exit, said: str, tmp_path: Path
) -> None:
    ended, seen = at_a_terminal(AT_TERMINAL, keys, [b"[y/N]", b"+ sleep"], tmp_path)
    assert ended == code, seen
    assert said in seen


# Another thread takes the signal, so that the read() of this one is not interrupted: what happens
# where Ctrl-C comes between Python's last look for a signal and that call.
NOT_INTERRUPTED = """
import signal, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
"""


def test_one_ctrl_c_is_enough_though_it_interrupts_no_call(tmp_path: Path) -> None:
    code = NOT_INTERRUPTED + AT_TERMINAL
    ended, seen = at_a_terminal(code, [b"\x03"], [b"[y/N]"], tmp_path)
    assert ended == Exit.INTERRUPTED, seen
    assert "Nothing more was changed." in seen


@pytest.mark.parametrize(
    ("typed", "more"), [(b"ye", b"s\n"), (b"yes", b"\x04")], ids=["the rest", "the end of input"]
)
def test_an_answer_may_come_in_parts(typed: bytes, more: bytes, tmp_path: Path) -> None:
    """Ctrl-D within a line hands on what was typed so far."""
    keys = [typed + b"\x04", more, b"\x03"]
    waits = [b"[y/N]", b"[y/N] " + typed, b"+ sleep"]
    ended, seen = at_a_terminal(AT_TERMINAL, keys, waits, tmp_path)
    assert ended == Exit.INTERRUPTED, seen
    assert "Run so far:" in seen


def at_a_terminal(
    code: str, keys: list[bytes], waits: list[bytes], folder: Path
) -> tuple[int, str]:
    """Run this Python at a terminal, and type each key when its text is seen. A program that says
    nothing for a minute hangs.
    """
    setsid = [need.program("setsid", "util-linux"), "--ctty", "--wait"]
    terminal, theirs = need.terminal()
    with subprocess.Popen(
        [*setsid, sys.executable, "-c", code, str(folder)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        seen = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while True:
                if not select.select([terminal], [], [], 60)[0]:
                    os.killpg(os.tcgetpgrp(terminal), signal.SIGKILL)
                    pytest.fail(f"it hangs; it said: {seen.decode()}")
                seen += os.read(terminal, 4096)
                if keys and waits[0] in seen:
                    waits.pop(0)
                    os.write(terminal, keys.pop(0))
        os.close(terminal)
    return process.returncode, seen.decode()
