"""`provision PASTE`, `FILE` or `-` without a command: what it was given decides the command.

What nvidia-smi printed, or a host file, is planned for; a project's file is planned; a Dockerfile
or a compose file is checked; a wheel or an image is inspected; any other text is a log.
"""

from __future__ import annotations

import io
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from provision.doctor.commands.inputs import is_error_text
from provision.doctor.commands.stdin import begun
from provision.doctor.lint import is_of_a_kind, kind_of, kind_of_text
from provision.errors import HostFileError

_MOST = 1 << 20  # bytes of a text that are looked at
_PROJECTS = frozenset({"requirements", "pyproject", "environment", "pixi"})


def is_given(word: str) -> bool:
    """Whether a first word is no command but something to look at: a file, -, or a text."""
    if word == "-" or "\n" in word:
        return True
    if word.startswith("-"):
        return False
    return os.path.exists(word) or is_error_text(word)  # noqa: PTH110  a name may be too long


@contextmanager
def command_for(words: Sequence[str], say: Callable[[str], None]) -> Iterator[list[str]]:
    """The words of the command that answers, which is said; the first word of `words` is what was
    given. A text takes the place of standard input.
    """
    given, rest = words[0], list(words[1:])
    if os.path.isfile(given) or os.path.isdir(given):  # noqa: PTH112, PTH113  as above
        chosen = [*of_path(given), *rest]
        say(f"provision {shlex.join(chosen)}")
        yield chosen
        return
    with ExitStack() as stack:
        source = _opened(given, stack)
        head, whole = begun(source, _MOST)
        stack.callback(setattr, sys, "stdin", sys.stdin)
        sys.stdin = whole
        chosen = [*of_text(head.decode("utf-8", "replace")), "-", *rest]
        say(f"provision {shlex.join(chosen)}")
        yield chosen


def _opened(given: str, stack: ExitStack) -> BinaryIO:
    """What - , a pipe or a text holds."""
    if given == "-":
        return sys.stdin.buffer
    if os.path.exists(given):  # noqa: PTH110  as above
        return stack.enter_context(Path(given).open("rb"))
    return io.BytesIO(given.encode("utf-8", "surrogateescape"))


def of_path(path: str) -> tuple[str, ...]:
    """The command for a file or a directory of this machine."""
    place = Path(path)
    if place.is_dir():
        if (place / "oci-layout").is_file():
            return ("inspect", path)
        return ("plan", "--host", path) if _has_hosts(place) else ("plan", path)
    if path.endswith((".whl", ".tar", ".sqfs", ".sqsh", ".sif")):
        return ("inspect", path)
    try:
        with place.open("rb") as file:
            text = file.read(_MOST).decode("utf-8", "replace")
    except OSError:
        return ("doctor", path)  # which says why it cannot be read
    if _is_host(text):
        return ("plan", "--host", path)
    kind = (kind_of(place) or kind_of_text(text)) if is_of_a_kind(place) else None
    is_project = kind in _PROJECTS or place.name in {"uv.lock", "pylock.toml", "pixi.lock"}
    return ("plan", path) if is_project else ("doctor", path)


def of_text(text: str) -> tuple[str, ...]:
    """The command for a text."""
    return ("plan", "--host") if _is_host(text) else ("doctor",)


def _is_host(text: str) -> bool:
    """Whether a text has facts of a machine."""
    from provision.host.pasted import parse_host_text

    if not text.lstrip().startswith("{") and "NVIDIA" not in text and "GPU 0: " not in text:
        return False
    try:
        facts = parse_host_text(text, label="")
    except HostFileError:
        return '"compute_capability"' in text and text.lstrip().startswith("{")
    return facts.driver is not None or facts.gpus is not None


def _has_hosts(directory: Path) -> bool:
    """Whether the first JSON file of a directory is a host file."""
    found = next(iter(sorted(directory.glob("*.json"))), None)
    try:
        return found is not None and _is_host(found.read_text("utf-8", "replace")[:_MOST])
    except OSError:
        return False
