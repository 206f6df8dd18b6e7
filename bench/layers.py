"""How fast wheels become layers, beside reading the same files: seconds, and bytes per second.

    python -m bench.layers DIRECTORY [--threads 2] [--rounds 3]

DIRECTORY holds the wheels of one image. Each way is run in turn, `--rounds` times, and the median
is told, so that a busy machine is busy for all of them; the seconds of CPU tell how busy it was.
Files are read before, so that no disk is in it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import statistics
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename

from images.layers import wheel_file
from images.layers.transcode import wheel_layer
from images.oci.sources import Unpacked
from images.wheels.directory import DEFLATED, Member
from images.wheels.remote_file import Wheel

PIECE_BYTES = 1 << 20
Way = Callable[[Path], int]
ISAL_INFLATER = wheel_file.inflater
learned: dict[Path, Unpacked] = {}


def read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def layer(path: Path, *, known: bool) -> Iterator[bytes]:
    name, version, _, _ = parse_wheel_filename(path.name)
    wheel = Wheel(
        name=name,
        version=str(version),
        url=f"https://index.invalid/{path.name}",
        size=path.stat().st_size,
        sha256="",
    )
    source = wheel_layer(
        [wheel],
        site="opt/venv/lib/python3.11/site-packages",
        prefix="opt/venv",
        interpreter="/opt/venv/bin/python",
        exclude_unneeded=False,
        fetch=lambda _: path,
    )
    learned[path] = yield from source.stream(learned.get(path) if known else None)


def sized(pieces: Iterator[bytes]) -> int:
    return sum(map(len, pieces))


def digested(pieces: Iterator[bytes]) -> int:
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
    return size


def zlib_inflater(member: Member) -> Any:  # noqa: ANN401
    """Make what inflates a member: the standard library's zlib in isal's place."""
    return zlib.decompressobj(-15) if member.method == DEFLATED else None


BY_ZLIB = "the same by zlib"
WAYS: dict[str, Way] = {
    "read the wheels": lambda path: sized(read(path)),
    "read and digest the wheels": lambda path: digested(read(path)),
    "layers, digest unpacked known": lambda path: sized(layer(path, known=True)),
    "the same, and their own digest": lambda path: digested(layer(path, known=True)),
    "layers, digest unpacked learned": lambda path: digested(layer(path, known=False)),
    BY_ZLIB: lambda path: digested(layer(path, known=False)),
}


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    paths = sorted(given.directory.glob("*.whl"), key=lambda path: -path.stat().st_size)
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    of_cpu: dict[str, list[float]] = {name: [] for name in WAYS}
    bytes_of: dict[str, int] = {}
    with ThreadPoolExecutor(given.threads) as pool:
        bytes_of["layers"] = sum(pool.map(lambda path: sized(layer(path, known=False)), paths))
        for _ in range(given.rounds):
            for name, way in WAYS.items():
                wheel_file.inflater = zlib_inflater if name == BY_ZLIB else ISAL_INFLATER
                begun, spent = time.perf_counter(), time.process_time()
                sum(pool.map(way, paths))
                seconds[name].append(time.perf_counter() - begun)
                of_cpu[name].append(time.process_time() - spent)
    bytes_of["wheels"] = sum(path.stat().st_size for path in paths)
    bytes_of["unpacked"] = sum(found.size for found in learned.values())
    for name, values in seconds.items():
        median = statistics.median(values)
        rate = bytes_of["wheels"] / median / 1e6
        cpu = statistics.median(of_cpu[name])
        print(f"{name:34} {median:7.2f} s {cpu:7.2f} s of CPU {rate:8.0f} MB of wheels a second")
    more = 100 * (bytes_of["layers"] / bytes_of["wheels"] - 1)
    print(f"layers have {more:+.4f} % of the wheels' bytes more, in {len(paths)} wheels")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"most memory: {peak / 1024:.0f} MiB")
    medians = {name: round(statistics.median(values), 3) for name, values in seconds.items()}
    print(json.dumps({**bytes_of, "threads": given.threads, "medians": medians, "rss_kib": peak}))


if __name__ == "__main__":
    main()
