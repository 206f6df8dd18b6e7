"""How fast a Debian base is made, beside mmdebstrap making the same one.

    ./run python bench/base.py [ROUNDS]      # needs root, mmdebstrap and a mirror of Debian

Both start in turn, in one run, and what they print is thrown away. `first`: an empty store;
`again`: another base when the store knows the packages, as a week later. mmdebstrap writes a plain
tar and no layer, and its downloads are not kept, so the comparison favours it a little.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from images.bootstrap.host import read_sources
from images.bootstrap.make import DEFAULT_PACKAGES, bootstrap
from images.bootstrap.mirrors import debian_sources

SUITE, PYTHON, EPOCH = "bookworm", "3.11", 1_700_000_000
ROUNDS = 3


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def by_mmdebstrap(work: Path) -> None:
    """The base as it was made before: dpkg unpacks, and the packages' scripts run."""
    lines = [f"deb {s.uri} {s.suite} main" for s in debian_sources(read_sources(), SUITE)]
    target = work / "theirs.tar"
    argv = ["mmdebstrap", "-q", "--variant=minbase", "--format=tar"]
    argv += [f"--include={','.join(DEFAULT_PACKAGES)}", SUITE, str(target), *lines]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    target.unlink()


def by_us(store: Path, day: int) -> None:
    """Our base; on another `day` it is made again, since a week has passed."""
    bundle = os.environ.get("SSL_CERT_FILE")
    now = time.time()
    bootstrap(
        SUITE,
        python=PYTHON,
        arch=os.uname().machine,
        store=store,
        epoch=EPOCH,
        ca_bundle=Path(bundle).read_text(encoding="utf-8") if bundle else "",
        clock=lambda: now,
        max_age_days=7 if day == 0 else 0,
    )


def main() -> int:
    """Print the medians and their ratios."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    theirs, first, again = [], [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="gp-bench-") as place:
            work = Path(place)
            theirs.append(seconds(lambda work=work: by_mmdebstrap(work)))  # type: ignore[misc]
            first.append(seconds(lambda work=work: by_us(work / "store", 0)))  # type: ignore[misc]
            again.append(seconds(lambda work=work: by_us(work / "store", 1)))  # type: ignore[misc]
    base = statistics.median(theirs)
    print(f"{rounds} rounds of Debian {SUITE} with {', '.join(DEFAULT_PACKAGES)}; medians")
    for name, found in (("mmdebstrap", theirs), ("ours, first", first), ("ours, again", again)):
        median = statistics.median(found)
        print(f"{name:<12} {median:6.2f} s   {median / base:5.1%} of mmdebstrap")
    return 0


if __name__ == "__main__":
    sys.exit(main())
