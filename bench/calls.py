"""Calls every command with what nobody expects, and counts how they end.

    ./run python -m bench.calls [CALLS] [SEED]

Words, options and files are near misses: real ones, with a piece changed. No call may end as a bug
(exit 70), with a traceback, with a control character on the terminal, or after more than LIMIT_S.
Nothing is reached but this machine: the network is a closed port, there is no engine, and --yes is
never given. Each process has a folder, a home and a cache of its own.
"""

# argparse tells in no other way what a command takes:
# ruff: noqa: SLF001

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import string
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from provision.cli import main as cli
from provision.cli.parser import build_parser

ROOT = Path(__file__).resolve().parents[1]
CALLS = 20_000
CHUNK = 250
LIMIT_S = 60
NEVER = {"--yes", "--help", "--version"}
SLOW = {("catalog", "page")}  # takes minutes, and nothing but a directory
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
CLOSED = "http://127.0.0.1:9"

WORDS = (
    "11.7", "cu117", "12.8", "99.9", "pytorch", "tensorflow", "jax", "2.0.1", ">=2", "3.11",
    "torchvision", "numpy<2", "bootstrap", "python:3.11", "oci:layout", "oci-archive:a.tar",
    "A100", "RTX 5090", "8.6", "535.104.05", "x86_64", "aarch64", "runtime", "devel", "auto",
    "oci", "docker", "quick", "standard", "thorough", "devices.nvml", "cdi", "none", "30", "0",
    "-1", "1e9", "10GB", "127.0.0.1:9/a/b:1", "localhost/x", "sha256:" + "0" * 64, "", " ", "-",
    "--", "/", ".", "..", "/dev/null", "nosuch", CLOSED, "file:///etc",
    "https://u:s3cret@127.0.0.1:9/simple", "x" * 5000, "\x1b]0;owned\x07", "a\u202eb", "\u0663",
    "\udcff", "oci:" + "x" * 5000, "é", "a\nb", "%s", "{}", "$(id)", "*",
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    """How one call ended: `problem` is "" where it ended well."""

    words: tuple[str, ...]
    code: int
    problem: str


def near(chance: random.Random, text: str) -> str:
    """The text, or the text with a letter more, less or other."""
    if chance.random() < 0.7 or not text:
        return text
    at = chance.randrange(len(text))
    letter = chance.choice(string.printable + "é\u202e\uff18\udcff")
    return chance.choice((text[:at] + text[at + 1 :], text[:at] + letter + text[at:], letter))


def spoiled(chance: random.Random, data: bytes) -> bytes:
    """A file with a piece cut out, put in, or changed."""
    for _ in range(chance.choice((0, 1, 1, 2, 8))):
        at = chance.randrange(len(data) + 1)
        piece = chance.choice(
            (b"", b"\x00", b"{", b"[" * 3000, b"\xff\xfe", b"\x1b[2J", b"1e999", b"null", b'"')
        )
        data = data[:at] + piece + data[at + chance.choice((0, 1, 10, 1000)) :]
    return data


def files(chance: random.Random) -> dict[str, bytes]:
    """What lies in the folder: real files, spoiled in half of the calls."""
    told = ROOT / "tests/data"
    kept = {
        "host.json": sorted((told / "hosts").glob("*.json")),
        "report.json": sorted((told / "verify").rglob("*.json")),
        "train.log": sorted((told / "doctor").rglob("*.txt")) + sorted(told.rglob("*.log")),
        "Dockerfile": [ROOT / "Dockerfile.cuda"],
        "requirements.txt": [ROOT / "requirements.txt"],
        "compose.yaml": [ROOT / "compose.yaml"],
        "pylock.toml": [ROOT / "pyproject.toml"],
        "a.whl": [ROOT / "bench/calls.py"],
        "a.tar": [ROOT / "bench/calls.py"],
    }
    found: dict[str, bytes] = {}
    for name, places in kept.items():
        data = chance.choice(places).read_bytes()[:200_000] if places else b"{}"
        found[name] = spoiled(chance, data) if chance.random() < 0.5 else data
    return found


def commands() -> Iterator[tuple[tuple[str, ...], list[argparse.Action]]]:
    """Every command, and what it takes."""

    def below(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[Any]:
        inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        if not inner:
            yield words, [a for a in parser._actions if not NEVER & set(a.option_strings)]
        for action in inner:
            for name, one in action.choices.items():
                yield from below(one, (*words, name))

    yield from (one for one in below(build_parser(), ()) if one[0] not in SLOW)


def words_for(
    chance: random.Random, command: tuple[str, ...], actions: list[argparse.Action]
) -> tuple[str, ...]:
    """A call of a command: some of its options, with values that may fit."""
    names = ("host.json", "report.json", "train.log", "Dockerfile", "requirements.txt", "a.whl",
             "compose.yaml", "pylock.toml", "a.tar", "layout", "out.json", "out.html")  # fmt: skip

    def value(action: argparse.Action) -> str:
        if action.choices and chance.random() < 0.7:
            return str(chance.choice(list(action.choices)))
        return near(chance, chance.choice(WORDS if chance.random() < 0.5 else names))

    words = list(command)
    if "--offline" in {name for action in actions for name in action.option_strings}:
        words.append("--offline")
    for action in chance.sample(actions, min(len(actions), chance.choice((0, 1, 2, 3, 6)))):
        if not action.option_strings:
            continue
        name = chance.choice(action.option_strings)
        words.append(near(chance, name) if chance.random() < 0.05 else name)
        if action.nargs != 0:
            words.append(value(action))
    named = [action for action in actions if not action.option_strings]
    words += [value(action) for action in named if chance.random() < 0.85]
    if command == ("doctor",) and "--no-host" not in words and chance.random() < 0.9:
        words.append("--no-host")
    return tuple(word for word in words if word not in NEVER and not word.startswith("--yes"))


def run(words: tuple[str, ...]) -> Call:
    """One call, in this process."""

    def too_long(*_: object) -> None:
        raise TimeoutError("hang")

    out, err = io.StringIO(), io.StringIO()
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LIMIT_S)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(words)
    except TimeoutError:
        return Call(words, -1, f"more than {LIMIT_S} s")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:  # noqa: BLE001  it is what is looked for
        return Call(words, -1, f"{type(error).__name__}: {error}")
    finally:
        signal.alarm(0)
    said = out.getvalue() + err.getvalue()
    if code == 70 or "Traceback" in said:
        told = [file.read_text()[-600:] for file in Path(tempfile.gettempdir()).glob("*-bug-*")]
        return Call(words, code, f"a bug: {''.join(told)}{said[-300:]}")
    if found := CONTROL.search(said):
        at = found.start()
        return Call(words, code, f"a control character: {said[max(0, at - 80) : at + 20]!r}")
    return Call(words, code, "")


def chunk(seed: int, count: int, parent: str) -> list[Call]:
    """Some calls, in a folder of their own."""
    chance = random.Random(seed)
    place = Path(tempfile.mkdtemp(prefix="calls-", dir=parent))
    os.environ.clear()
    os.environ.update(
        {
            "PATH": str(place / "bin"), "HOME": str(place / "home"), "TMPDIR": str(place / "tmp"),
            "DOCKER_HOST": "unix:///nonexistent/docker.sock", "CONTAINER_HOST": "unix:///nonexistent",
            "http_proxy": CLOSED, "https_proxy": CLOSED, "PIP_CONFIG_FILE": os.devnull,
            "UV_DEFAULT_INDEX": CLOSED, "UV_NO_CONFIG": "1", "COLUMNS": "80",
        }
    )  # fmt: skip
    tempfile.tempdir = None
    for name in ("bin", "home", "tmp", "work"):
        (place / name).mkdir()
    os.chdir(place / "work")
    every = list(commands())
    found = []
    try:
        for _ in range(count):
            for name, data in files(chance).items() if chance.random() < 0.3 else ():
                with contextlib.suppress(OSError):
                    Path(name).write_bytes(data)
            found.append(run(words_for(chance, *chance.choice(every))))
    finally:
        os.chdir("/")
        shutil.rmtree(place, ignore_errors=True)
    return found


def new_seed() -> int:
    """Another one each time."""
    return random.SystemRandom().randrange(1 << 30)


def attack(calls: int, seed: int, processes: int | None = None) -> list[Call]:
    """That many calls, over all cores."""
    seeds = [seed * 1_000_003 + at for at in range(0, calls, CHUNK)]
    counts = [min(CHUNK, calls - at) for at in range(0, calls, CHUNK)]
    with (
        tempfile.TemporaryDirectory(prefix="calls-") as parent,
        ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool,
    ):
        parts = pool.map(chunk, seeds, counts, [parent] * len(seeds))
        return [call for part in parts for call in part]


def main() -> int:
    """Print the counts; 1 where a call ended as none may."""
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else CALLS
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    began = time.monotonic()
    found = attack(calls, seed)
    table: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for call in found:
        group = 2 if call.words[0] in {"catalog", "store"} else 1
        table[" ".join(call.words[:group])][call.code] += 1
    codes = sorted({call.code for call in found})
    print(f"| command | {' | '.join(f'exit {code}' for code in codes)} |")
    print(f"| --- |{' ---: |' * len(codes)}")
    for name, ends in sorted(table.items()):
        print(f"| {name} | {' | '.join(str(ends[code]) for code in codes)} |")
    bad = [call for call in found if call.problem]
    print(f"\n{len(found)} calls in {time.monotonic() - began:.0f} s, {len(bad)} ended as none may")
    for call in bad[:50]:
        words = [
            word if len(word) < 100 else f"{word[:20]}... ({len(word)})" for word in call.words
        ]
        print(json.dumps([words, call.code, call.problem]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
