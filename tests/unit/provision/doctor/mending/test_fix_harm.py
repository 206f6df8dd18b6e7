"""No fix does harm: what changes something comes after a check that only reads, and what ends the
work of others says whose, and names one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from provision.doctor.causes import explained
from provision.doctor.commands.text import describe_known, describe_step
from provision.doctor.knowledge import load
from provision.doctor.mending.choice import Refusal
from provision.doctor.mending.effects import changes_anything, effects, stops
from provision.doctor.mending.messages import by_hand_text
from provision.doctor.mending.shell import commands
from provision.doctor.model import Cause
from tests.kit.cases import cases

# They fill a cache: package lists, an image. A check may do that.
FETCHES = re.compile(r"\bapt-get update\b|\b(?:docker|podman) pull ")
# What would hit more than the failure: every GPU, every process or container of that name.
TOO_WIDE = (
    re.compile(r"nvidia-smi\S* +-(?:-gpu-reset|r|mig|pl|lgc|ac|c|e)\b(?!.* -i )"),
    re.compile(r"\b(?:pkill +-f|killall|ray +stop|scancel +(?:-u|--user))\b"),
    re.compile(r"\b(?:docker|podman)\b.* (?:stop|kill|rm|restart)\b.*\$\(\w+ ps -a?q"),
    re.compile(r"kubectl\b.*\bdelete\b.* --all\b|\brm -rf? /(?:\s|$)"),
)


@cases(
    "run does whose",
    ("an unknown program changes", "some-new-tool --list", ("changes",), ()),
    ("containers are listed", "docker ps -a | head", ("reads",), ()),
    ("after an option with a value", "docker -H x volume ls", ("reads",), ()),
    ("a volume is made", "docker volume create x", ("changes",), ()),
    ("a value", "python3 -c 'import torch; print(torch.version.cuda)'", ("reads",), ()),
    ("Python writes a file", "python3 -c 'open(\"x\", \"w\")'", ("changes",), ()),
    ("pip only tries it", "pip install --dry-run x", ("reads",), ()),
    ("the next one only reads", "pip install x && pip --version", ("installs",), ()),
    ("without a variable", "env -u X nvidia-smi -L", ("reads",), ()),
    ("errors of links are counted", "nvidia-smi nvlink -e", ("reads",), ()),
    ("a GPU is reset", 'sudo nvidia-smi --gpu-reset -i "$GPU"', ("restarts",),
     ("every program on that GPU",)),
    ("the engine restarts",
     "if command -v dockerd >/dev/null; then sudo systemctl restart docker; fi", ("restarts",),
     ("running containers",)),
    ("the engine starts", "sudo systemctl start docker", ("restarts",), ()),
    ("a reboot", "sudo systemctl reboot", ("reboots",), ("every program on this machine",)),
    ("MPS ends", "echo quit | nvidia-cuda-mps-control", ("restarts",), ("programs that use MPS",)),
)  # fmt: skip
def test_what_a_command_does_and_whose_work_it_ends(
    run: str, does: tuple[str, ...], whose: tuple[str, ...]
) -> None:
    assert effects(run) == does
    assert stops(run) == whose


CAUSES = [explained(failure) for failure in load().failures]
HARMFUL = [cause for cause in CAUSES if any(changes_anything(fix.run) for fix in cause.fixes)]


def test_a_check_only_reads() -> None:
    checks = {(one.code, text) for one in load().failures for text in (one.confirm, one.check)}
    changing = {
        (code, command)
        for code, text in checks
        for command in commands(text or "")
        if changes_anything(FETCHES.sub("true ", command))
    }
    assert changing == set()


def test_what_changes_something_has_a_check() -> None:
    assert len(HARMFUL) > 300
    assert [cause.code for cause in HARMFUL if not cause.confirm] == []


def test_the_check_is_shown_before_what_changes_something() -> None:
    late = {
        cause.code
        for cause in HARMFUL
        for shown in (
            describe_known([cause]),
            by_hand_text(cause, Refusal("", "")),
            *([describe_step(cause)] if changes_anything(cause.fixes[0].run) else ()),
        )
        if _first(shown, cause.confirm) > min(_first(shown, one) for one in _changing(cause, shown))
    }
    assert late == set()


def test_what_ends_the_work_of_others_says_whose_before_the_command() -> None:
    silent = {
        cause.code
        for cause in HARMFUL
        for fix in cause.fixes
        for whose in stops(fix.run)
        for shown in (describe_known([cause]), by_hand_text(cause, Refusal("", "")))
        if f"stops {whose}" not in " ".join(shown.split())
    }
    assert silent == set()


def test_what_ends_the_work_of_others_hits_only_what_failed() -> None:
    wide = {
        (cause.code, command)
        for cause in CAUSES
        for text in (cause.confirm, *(fix.run for fix in cause.fixes))
        for command in commands(text)
        if any(rule.search(command) for rule in TOO_WIDE)
    }
    assert wide == set()


def test_what_was_seen_to_work_names_a_release() -> None:
    seen = [(one.code, fix.seen) for one in load().failures for fix in one.fixes if fix.seen]
    assert len(seen) >= 27
    assert [one for one in seen if not re.search(r"\w \d+\.?\d*", one[1])] == []


def _changing(cause: Cause, shown: str) -> Iterator[str]:
    for fix in cause.fixes:
        for line in fix.run.splitlines():
            if changes_anything(line) and line in shown:
                yield line


def _first(shown: str, text: str) -> int:
    """Where the first line of a command stands as a line of its own."""
    line = text.strip().splitlines()[0].strip()
    return next((i for i, one in enumerate(shown.splitlines()) if one.strip() == line), len(shown))
