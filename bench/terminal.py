"""Draw what a terminal of 80 columns shows of commands, as an SVG: the picture in README.md.

    cd tests/data/docs
    ../../../run python ../../../bench/terminal.py ../../../docs/images/terminal.svg \
        "provision plan --cuda 11.7 --gpu H100 --driver 535.104.05" \
        "provision doctor train.log --no-host"
"""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import shlex
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 80


def run(command: str) -> str:
    """What it writes to a terminal, colours included."""
    words = shlex.split(command)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(WIDTH))
        os.execvp(words[0], words)
    written = b""
    with contextlib.suppress(OSError):  # EIO: the command has closed the terminal
        while part := os.read(terminal, 65536):
            written += part
    os.waitpid(pid, 0)
    os.close(terminal)
    return written.decode().replace("\r\n", "\n")


def main() -> None:
    picture, *commands = sys.argv[1:]
    console = Console(record=True, width=WIDTH, file=io.StringIO(), color_system="truecolor")
    for command in commands:
        console.print(Text.assemble(("$ ", "green"), (command, "bold")))
        console.print(Text.from_ansi(run(command).rstrip()))
        console.print()
    svg = console.export_svg(title="gpu-provision", unique_id="terminal")
    # No fonts from elsewhere: a picture in a page may not fetch any.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    Path(picture).write_text(svg.replace("Fira Code", "DejaVu Sans Mono"), encoding="utf-8")


if __name__ == "__main__":
    main()
