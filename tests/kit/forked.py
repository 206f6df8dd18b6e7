"""A command for scripts that start it often, without an interpreter's start for each call.

One process has the command's modules loaded and forks for each call. What the script starts is a
few lines of shell that name themselves by their process id: the fork takes the words, variables,
directory and open files of that process, and its exit code becomes that of the shell. Calls come
one at a time, and no signal is passed on.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from tests import ROOT

_CALLER = """#!/bin/sh
answer={calls}.$$
mkfifo "$answer" && exec 3<>"$answer" || exit 125
# In a shell of its own: this one's output must not be the pipe when the fork opens it.
(kill -0 {server} && echo $$ >{calls}) || exit 125
read -r code <&3
rm "$answer"
exit "$code"
"""


@contextlib.contextmanager
def forked(place: Path, command: str) -> Iterator[str]:
    """The text of a program that calls `command`, an entry point ("module:function"). `place` is a
    folder for what the processes exchange.
    """
    calls = place / "calls"
    os.mkfifo(calls)
    argv = [sys.executable, "-m", "tests.kit.forked", str(calls), command]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.DEVNULL) as server:
        try:
            yield _CALLER.format(calls=calls, server=server.pid)
            assert server.poll() is None, f"it has ended: {server.returncode}"
        finally:
            server.kill()


def _serve(calls: Path, command: Callable[[], object]) -> None:
    # Open for writing, too: without that, a moment without callers would be an end of the file.
    with os.fdopen(os.open(calls, os.O_RDWR), encoding="ascii") as asked:
        for line in asked:
            _answer(calls, int(line), command)


def _answer(calls: Path, caller: int, command: Callable[[], object]) -> None:
    loaded = calls.with_name("loaded")
    child = os.fork()
    if child == 0:
        _call(caller, command, loaded)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(OSError):  # the caller may have been killed
        fd = os.open(f"{calls}.{caller}", os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, b"%d\n" % (code if code >= 0 else 128 - code))
        os.close(fd)
    # What one call has loaded, the next ones find. In its order: in another one, modules that
    # import each other may fail; and some can never be imported by their names.
    for name in loaded.read_text().split():
        if name not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def _call(caller: int, command: Callable[[], object], loaded: Path) -> NoReturn:
    code: object = None
    try:
        process = Path(f"/proc/{caller}")
        _, *argv, _ = (process / "cmdline").read_bytes().split(b"\0")
        pairs = (process / "environ").read_bytes().split(b"\0")
        os.environb.clear()
        os.environb.update(pair.partition(b"=")[::2] for pair in pairs if pair)
        os.chdir(process / "cwd")
        for number, mode in enumerate((os.O_RDONLY, *[os.O_WRONLY | os.O_APPEND] * 2)):
            os.dup2(os.open(process / "fd" / str(number), mode), number)
        sys.argv = [os.fsdecode(word) for word in argv]
        code = command()
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001  the fork ends here, whatever has happened
        traceback.print_exc()
        code = 1
    try:  # as the interpreter's own end, but for freeing what the other process has made
        atexit._run_exitfuncs()
        loaded.write_text("\n".join(list(sys.modules)))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    _module, _, _name = sys.argv[2].partition(":")
    _serve(Path(sys.argv[1]), getattr(importlib.import_module(_module), _name))
