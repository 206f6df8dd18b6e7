"""What is exported in tests: a job of PyTorch, and words that are easy to quote wrong."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from provision.output.export.deployment import Deployment, ImageSource
from tests import need
from tests.kit.programs import run_program

IMAGE = "registry.example/team/torch:cu128"
HOSTILE = (
    *("", " ", "a b", "'", '"', "$(touch x)", "`id`", "$HOME", "${HOME}", "$(HOME)", "$$", "$"),
    *(
        "\\", "\\n", "a\nb", "\n%post\n", "no", "Yes", "1e3", "0x1f", "1_000", "12:30:45", "~",
        "null",
    ),
    *(
        "#x", " #x", "- a", "---", "-1", "--", "key: value", "{{x}}", "%post", "!tag", "&a", "*a",
        "=", "<<",
    ),
    *(
        "é", "🚀", "\t", "@a", "|", ">", "a,b", "[a]", "{a}", "2026-01-01", ".5", "-.inf", ".nan",
        "a:",
    ),
)  # fmt: skip
# What the command line accepts: printable characters, line ends and tabs.
_CHARACTERS = st.one_of(
    st.sampled_from(" '\"$(){}`\\\n\t#:-%&*!|>~@,[]=<"),
    st.characters(codec="utf-8").filter(str.isprintable),
)
WORDS = st.one_of(st.sampled_from(HOSTILE), st.text(_CHARACTERS, max_size=12))
COMMANDS = st.tuples(st.sampled_from(["python3", "sh", "no"]), WORDS, WORDS)
NAMES = st.text(
    _CHARACTERS.filter(lambda c: c.isprintable() and c != "/"), min_size=1, max_size=12
).filter(lambda name: name[0] not in "-.")


def deployment(**changes: Any) -> Deployment:
    """A job on one GPU."""
    given: dict[str, Any] = {
        "image": ImageSource(kind="reference", name=IMAGE),
        "name": "train",
        "command": ("python3", "train.py"),
        "framework": "pytorch",
        "framework_version": "2.9.1",
        "cuda": "12.8",
        "arch": "x86_64",
    }
    return Deployment(**{**given, **changes})


def stand_ins(place: Path, *names: str) -> None:
    """Programs that append their words to PLACE/NAME.words, each ended by a zero byte."""
    for name in names:
        program = place / name
        program.write_text(f"#!/bin/sh\nprintf '%s\\0' \"$@\" >>'{place}/{name}.words'\n")
        program.chmod(0o755)


def words_of(place: Path, name: str) -> list[str]:
    """The words that a stand-in was called with."""
    return (place / f"{name}.words").read_text(encoding="utf-8").split("\0")[:-1]


def shellcheck(text: str, shell: str) -> str:
    """What shellcheck has to say."""
    done = run_program(
        [need.program("shellcheck"), f"--shell={shell}", "-"], given=text, env={"LC_ALL": "C.UTF-8"}
    )
    return done.stdout + done.stderr


def run_script(
    text: str, place: Path, *, shell: str = "bash", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script with the stand-ins first in PATH."""
    return run_program(
        [shell, "-c", text],
        cwd=place,
        env={"PATH": f"{place}:/usr/bin:/bin", "LC_ALL": "C.UTF-8", **(env or {})},
    )
