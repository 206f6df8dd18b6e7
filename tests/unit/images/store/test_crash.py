"""The store under several processes, of which some are killed at any moment."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from images.store.store import Store
from images.store.upkeep import LEFTOVER_S
from tests import ROOT

_BODIES = "bodies = [bytes([i]) * (1 << 20) + bytes(i) for i in range(6)]\n"
_PRELUDE = (
    "import hashlib, pathlib, sys, time\n"
    "from images.store.store import Store\n"
    f"{_BODIES}"
    "digests = [hashlib.sha256(body).hexdigest() for body in bodies]\n"
    "def pieces(body):\n"
    "    for i in range(0, len(body), 1 << 14):\n"
    "        yield body[i:i + (1 << 14)]\n"
    "store = Store.open(pathlib.Path(sys.argv[1]))\n"
    "def say(text):\n"
    "    print(text, flush=True)\n"
)
BODIES = [bytes([i]) * (1 << 20) + bytes(i) for i in range(6)]
DIGESTS = [hashlib.sha256(body).hexdigest() for body in BODIES]


@contextmanager
def process(code: str, root: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Another Python that has a store open."""
    with subprocess.Popen(
        [sys.executable, "-c", _PRELUDE + code, str(root), *words],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def test_killed_at_any_moment_nothing_is_left_that_looks_whole(tmp_path: Path) -> None:
    """Each round kills a writer of all kinds of things somewhere in its work."""
    code = (
        "from images.oci.sources import KnownLayer, Unpacked\n"
        "import itertools, random\n"
        "random.seed(sys.argv[2])\n"
        "say('ready')\n"
        "for turn in itertools.count():\n"
        "    i = random.randrange(6)\n"
        "    kind = random.choice(['wheel', 'blob'])\n"
        "    store.add(kind, digests[i], pieces(bodies[i]), file_name=f'w{i}-1-py3-none-any.whl')\n"
        "    unpacked = Unpacked(diff_id='sha256:' + digests[i], size=turn + 1)\n"
        "    known = KnownLayer(digest='sha256:' + digests[i], size=1, unpacked=unpacked)\n"
        "    store.remember(digests[i], known)\n"
        "    if turn % 7 == 0:\n"
        "        store.close()\n"
        "        store.gc(everything=True)\n"
        "        store = Store.open(pathlib.Path(sys.argv[1]))\n"
    )
    seed = random.randrange(1 << 30)
    moments = random.Random(seed)
    rounds = kept = left = 0
    end = time.monotonic() + 4
    # Where others take the processor it may be killed ten times before it has written.
    while time.monotonic() < end or rounds < 10 or (rounds < 1000 and not (kept and left)):
        with process(code, tmp_path, str(seed + rounds)) as child:
            assert line(child) == "ready", seed
            time.sleep(moments.uniform(0, 0.06))
            os.kill(child.pid, signal.SIGKILL)
        rounds += 1
        with Store.open(tmp_path) as store:
            left += len(list((store.directory / "partial").iterdir()))
            for digest, body in zip(DIGESTS, BODIES, strict=True):
                for found in (store.wheel(digest), store.blob(digest)):
                    if found is not None:
                        assert found.read_bytes() == body, seed
                        kept += 1
                known = store.known(digest)
                assert known is None or known.digest == f"sha256:{digest}", seed
            report = store.verify()
            assert (report.damaged, report.unknown_files) == ((), ()), seed
    assert kept  # it did write
    assert left  # it was killed in the middle of writing
    with Store.open(tmp_path) as store:
        store.gc()
        left_over = [path.name for path in (store.directory / "partial").iterdir()]
        assert [name for name in left_over if not name.startswith("memo-")] == []
        assert len(list((store.directory / "leases").iterdir())) == 0


def test_of_two_processes_one_writes_and_the_other_waits(tmp_path: Path) -> None:
    slow = (
        "def slowly(body):\n"
        "    for piece in pieces(body):\n"
        "        say('writing')\n"
        "        time.sleep(0.01)\n"
        "        yield piece\n"
        "store.add('blob', digests[1], slowly(bodies[1]))\n"
        "say('done')\n"
    )
    with process(slow, tmp_path) as child:
        assert line(child) == "writing"
        notes: list[str] = []
        with Store.open(tmp_path, on_note=notes.append) as store:
            path = store.add("blob", DIGESTS[1], iter([b"never asked for"]))
        assert path.read_bytes() == BODIES[1]
        assert len(notes) == 1
        assert "waiting" in notes[0]


def test_a_writer_that_is_killed_frees_what_it_held(tmp_path: Path) -> None:
    stuck = (
        "def stuck(body):\n"
        "    yield body[:1000]\n"
        "    say('stuck')\n"
        "    time.sleep(60)\n"
        "store.add('blob', digests[1], stuck(bodies[1]))\n"
    )
    with process(stuck, tmp_path) as child, Store.open(tmp_path) as store:
        assert line(child) == "stuck"
        os.kill(child.pid, signal.SIGKILL)
        path = store.add("blob", DIGESTS[1], iter([BODIES[1]]))
        assert path.read_bytes() == BODIES[1]


def test_what_another_process_uses_is_not_cleared_away(tmp_path: Path) -> None:
    uses = (
        "store.add('wheel', digests[1], pieces(bodies[1]))\n"
        "say(store.wheel(digests[1]))\n"
        "time.sleep(60)\n"
    )
    with Store.open(tmp_path) as store:
        store.add("wheel", DIGESTS[2], iter([BODIES[2]]))
    with process(uses, tmp_path) as child, Store.open(tmp_path) as store:
        path = Path(line(child))
        cleared = store.gc(everything=True)
        assert path.exists()
        assert cleared.in_use == cleared.kept == len(BODIES[1])
        assert cleared.freed == len(BODIES[2])
        child.kill()
        child.wait()
        assert store.gc(everything=True).freed == len(BODIES[1])
        assert not path.exists()


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    stuck = (
        "def stuck(body):\n"
        "    yield body[:1000]\n"
        "    say('stuck')\n"
        "    time.sleep(60)\n"
        "store.add('blob', digests[int(sys.argv[2])], stuck(bodies[1]))\n"
    )
    with process(stuck, tmp_path, "1") as dead, process(stuck, tmp_path, "2") as alive:
        assert (line(dead), line(alive)) == ("stuck", "stuck")
        dead.kill()
        dead.wait()
        with Store.open(tmp_path) as store:
            partial = store.directory / "partial"
            assert len(list(partial.iterdir())) == 2  # somebody may go on with it
            old = time.time() - LEFTOVER_S - 60
            for path in partial.iterdir():
                os.utime(path, (old, old))
        Store.open(tmp_path).close()
        assert [path.name for path in partial.iterdir()] == [f"blob-{DIGESTS[2]}"]
        with Store.open(tmp_path) as store:
            store.gc(everything=True)
        assert [path.name for path in partial.iterdir()] == [f"blob-{DIGESTS[2]}"]


@pytest.mark.parametrize("count", [4])
def test_builds_and_gc_at_once_never_lose_what_a_build_was_given(
    tmp_path: Path, count: int
) -> None:
    """Builds that take, check and let go, beside one that clears everything all the time."""
    build = (
        "import random\n"
        "store.close()\n"
        "end = time.monotonic() + 1\n"
        "turns = 0\n"
        "while time.monotonic() < end:\n"
        "    with Store.open(pathlib.Path(sys.argv[1])) as store:\n"
        "        given = []\n"
        "        for i in random.sample(range(6), 3):\n"
        "            path = store.wheel(digests[i])\n"
        "            given.append((i, path or store.add('wheel', digests[i], pieces(bodies[i]))))\n"
        "        for i, path in given:\n"
        "            assert path.read_bytes() == bodies[i]\n"
        "        turns += 1\n"
        "say(turns)\n"
    )
    clear = (
        "end = time.monotonic() + 1\n"
        "freed = 0\n"
        "while time.monotonic() < end:\n"
        "    freed += store.gc(everything=True).freed\n"
        "say(freed)\n"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _PRELUDE + code, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for code in (*[build] * (count - 1), clear)
    ]
    said = [child.communicate(timeout=60)[0].strip() for child in children]
    assert [child.returncode for child in children] == [0] * count
    assert all(int(text) > 0 for text in said)
