"""Rewrites what the documents show of commands, and the picture of a terminal, from real runs;
what they list of the code, from the code (`tools.reference`).

    ./run transcripts

The commands run on a machine of which nothing is known, in `tests/data/docs`, where the logs are
that they read. A page in `IN_FULL` shows all that a command prints; one in `EXCERPTS` some lines.
What needs an engine or a GPU (`text` blocks, photographs of the HTML pages) stays as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import pty
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

from rich.console import Console
from rich.text import Text

from provision.cli import main as cli
from provision.model.plan import HostFacts
from provision.output import style
from tools import reference

ROOT = Path(__file__).parents[1]
IN_FULL = ("docs/examples.md",)
EXCERPTS = ("README.md", "README.zh-CN.md", "docs/new-machine.md", "docs/gpu-not-seen.md")
PICTURE = ROOT / "docs" / "images" / "terminal.svg"
PICTURED = (
    "provision plan --cuda 11.7 --gpu H100 --driver 535.104.05",
    "provision doctor train.log --no-host",
)
WIDTH = 80
_BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```)", re.DOTALL | re.MULTILINE)


class ExcerptError(Exception):
    """A page shows lines of a command that it no longer prints, and none that begin as they do."""


@contextlib.contextmanager
def unknown_machine() -> Iterator[None]:
    """In `tests/data/docs`, on x86_64 with Python 3.11, without a catalog of the user's."""
    facts = HostFacts(arch="x86_64", python="3.11")
    before = Path.cwd()
    with (
        mock.patch("provision.host.detect", return_value=facts),
        mock.patch.dict(os.environ, {"XDG_DATA_HOME": "/nowhere"}),
    ):
        os.chdir(ROOT / "tests" / "data" / "docs")
        try:
            yield
        finally:
            os.chdir(before)


def printed(command: str) -> str:
    """What a command prints on an unknown machine, without a terminal."""
    said, warned = io.StringIO(), io.StringIO()
    streams = (contextlib.redirect_stdout(said), contextlib.redirect_stderr(warned))
    with unknown_machine(), mock.patch.dict(os.environ), streams[0], streams[1]:
        os.environ.pop("COLUMNS", None)
        cli.main(shlex.split(command)[1:])
    return said.getvalue()


def rewritten(text: str, *, whole: bool) -> str:
    """A page with what its console blocks' commands print now: all of it, or the same lines."""

    def block(found: re.Match[str]) -> str:
        commands = re.split(r"^\$ ", found[0], flags=re.MULTILINE)[1:]
        return "\n".join(shown(one, whole=whole) for one in commands) + "\n"

    return _BLOCK.sub(block, text)


def shown(part: str, *, whole: bool) -> str:
    """A command, and what it printed once -> the command, and what it prints."""
    command, _, before = part.strip().partition("\n")
    now = printed(command).rstrip("\n")
    lines = now if whole else "\n".join(excerpt(before.split("\n"), now.split("\n"), command))
    gap = "\n" if part.endswith("\n\n") else ""
    return f"$ {command}\n{lines}{gap}"


def excerpt(before: Sequence[str], now: Sequence[str], command: str) -> Sequence[str]:
    """The lines from the first to the last one that a page shows, as they are printed now."""
    if "\n".join(before) in "\n".join(now):
        return before
    first, last = (_label(line) for line in (before[0], before[-1]))
    starts = [at for at, line in enumerate(now) if _label(line) == first]
    ends = [
        at for at, line in enumerate(now) if _label(line) == last and starts and at >= starts[0]
    ]
    if not ends:
        raise ExcerptError(f"`{command}` prints no line that begins as: {before[0]}")
    end = next((at for at in ends if at - starts[0] >= len(before) - 1), ends[-1])
    return now[starts[0] : end + 1]


def _label(line: str) -> str:
    """What a line begins with: its indent and its first word."""
    found = re.match(r"\s*\S*", line)
    return found[0] if found else ""


def picture() -> str:
    """An SVG of a terminal in which the commands were typed."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), color_system="truecolor")
    for command in PICTURED:
        console.print(Text.assemble(("$ ", "green"), (command, "bold")))
        console.print(Text.from_ansi(_in_a_terminal(command).rstrip()))
        console.print()
    svg = console.export_svg(title="gpu-provision", unique_id="terminal")
    # No fonts from elsewhere: a picture in a page may not fetch any.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code", "DejaVu Sans Mono")


def _in_a_terminal(command: str) -> str:
    """What a command writes to a terminal, colours included."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(WIDTH))
        argv = [sys.executable, "-m", "tools.transcripts", "--run", command]
        os.execv(sys.executable, argv)  # noqa: S606  in the terminal that was opened for it
    written = b""
    with contextlib.suppress(OSError):  # EIO: the command has closed the terminal
        while part := os.read(terminal, 65536):
            written += part
    os.waitpid(pid, 0)
    os.close(terminal)
    return written.decode().replace("\r\n", "\n")


def main() -> int:
    """Rewrite the pages and the picture; say which ones have changed."""
    parser = argparse.ArgumentParser(prog="./run transcripts", description=__doc__)
    parser.add_argument("--run", metavar="COMMAND", help=argparse.SUPPRESS)
    asked = parser.parse_args().run
    if asked:
        style.begin()
        with unknown_machine():
            return int(cli.main(shlex.split(asked)[1:]))
    made = {
        ROOT / name: rewritten((ROOT / name).read_text("utf-8"), whole=name in IN_FULL)
        for name in (*IN_FULL, *EXCERPTS)
    }
    for path, text in {**made, **reference.pages(), PICTURE: picture()}.items():
        if path.read_text("utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"rewritten  {path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
