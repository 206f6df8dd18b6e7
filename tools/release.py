"""Makes the files of a release in dist/: the wheel, and the suite as one file, `verify.pyz`.

    ./run release [FOLDER]

`verify.pyz` is a zip file that Python runs: `verify/` and, at the top, its `__main__.py`. Two runs
give the same bytes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from uv import find_uv_bin

ROOT = Path(__file__).parents[1]
SUITE = "verify.pyz"
_SHEBANG = b"#!/usr/bin/env python3\n"
_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file can have
_KINDS = {".py", ".json"}


def suite_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """The files of verify.pyz: names inside it, and contents."""
    yield "__main__.py", (folder / "__main__.py").read_bytes()
    for path in sorted(folder.rglob("*")):
        if path.suffix in _KINDS:
            yield str(path.relative_to(folder.parent)), path.read_bytes()


def write_suite(out: Path, folder: Path = ROOT / "verify") -> Path:
    """Write the suite as one executable file to `out`."""
    fresh = out.with_suffix(".new")
    with fresh.open("wb") as file:
        file.write(_SHEBANG)
        with zipfile.ZipFile(file, "w") as archive:
            for name, data in suite_files(folder):
                entry = zipfile.ZipInfo(name, _TIME)
                entry.external_attr = 0o100644 << 16
                archive.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
    fresh.chmod(0o755)
    return fresh.replace(out)


def build_wheel(folder: Path) -> None:
    """Build the wheel, with the build backend that is locked for `./run`."""
    here = ("--python", sys.executable, "--no-build-isolation", "--out-dir", str(folder))
    subprocess.run([find_uv_bin(), "build", "--wheel", "--quiet", *here], cwd=ROOT, check=True)


def main() -> None:
    """Make both files, and print their names and sizes."""
    parser = argparse.ArgumentParser(description="Makes the files of a release.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    folder = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    build_wheel(folder)
    write_suite(folder / SUITE)
    for path in sorted(folder.iterdir()):
        sys.stdout.write(f"{path.stat().st_size / 1000:>8.0f} kB  {path}\n")


if __name__ == "__main__":
    main()
