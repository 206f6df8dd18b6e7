"""Writes a squashfs with tar2sqfs (squashfs-tools-ng), which reads a tar from a pipe.

It writes the same bytes for any user, time and number of processors. mksquashfs -tar and sqfstar
(squashfs-tools 4.5) do not: they give the top directory the user and the time of the build,
whatever their options say. A file is made in a directory of its own beside its final name, and gets
that name only when it is complete.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, cast

from images.engines.sandbox.read_ahead import read_ahead
from images.engines.sandbox.sif import ENDING, sif_header
from images.engines.squashfs.archive import archive
from images.engines.squashfs.files import add_files
from images.engines.squashfs.merge import merge
from images.oci.blobfiles import current_umask, sync_directory, told_as_failure
from images.oci.errors import ImagePlaceError, TargetError
from images.oci.sources import Image
from images.system.hashed_file import hash_file
from images.system.interruption import uninterrupted
from images.system.process import ToolMissing, describe_exit, environment, which
from images.system.scratch import scratch_directory

TOOL = "tar2sqfs"
INSTALL_FIX = (
    "sudo apt-get install squashfs-tools-ng (or dnf, zypper, pacman), or name a .tar file or a "
    "directory: --output image.tar"
)
BLOCK_BYTES = 1 << 17
LEVEL = 3
"""zstd's; see bench/results for other sizes and levels."""

_BACKLOG = 100  # blocks that wait for each processor, so that no one waits for the tar
_PIPE_BYTES = 1 << 20
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ, which Python 3.10 names in fcntl
_FULL_BYTES = 1 << 20  # tar2sqfs says "I/O error" if the disk is full


def find_tool(env: Mapping[str, str] = os.environ) -> str:
    """The program that writes a squashfs. ToolMissing: this host does not have it."""
    program = which(TOOL, path=env.get("PATH"))
    if program is None:
        raise ToolMissing(
            f"A squashfs is written by {TOOL}, which is not installed.", fix=INSTALL_FIX
        )
    return program


class SquashfsFile:
    """A squashfs that is being made. Always close it."""

    def __init__(self, path: Path, program: str, held: contextlib.ExitStack) -> None:
        self.path = path
        self._program = program
        self._held = held
        self._work = held.enter_context(scratch_directory(path.parent))
        self._made: Path | None = None

    @classmethod
    def open(cls, path: Path) -> SquashfsFile:
        """Begin a file; an older one of its name stays until the new one is complete.
        ToolMissing: nothing can write it; ImagePlaceError: it cannot be there.
        """
        program = find_tool()
        if path.exists() and not path.is_file():
            raise ImagePlaceError(
                f"{path} is not a regular file; a squashfs is one.",
                fix="Name a file such as image.sqfs.",
            )
        path = path.absolute()
        with told_as_failure(path, f"The file {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            return cls(path, program, contextlib.ExitStack())

    def close(self) -> None:
        """Remove what did not get its name."""
        self._held.close()

    def write(
        self,
        image: Image,
        on_bytes: Callable[[int], None] = lambda _: None,
        *,
        processors: int | None = None,
    ) -> Image:
        """Write an image, and return it as it is in the file, which has no name yet and identifies
        it: by its digest. `on_bytes` is called with how many more bytes of it were passed on.
        TargetError: it cannot be written.
        """
        merged = merge(image.layers)
        add_files(merged.tree, image)
        out = self._work / "image.sqfs"
        jobs = processors or os.cpu_count() or 1
        command = [
            *(self._program, "--quiet", "--no-skip", "--compressor", "zstd"),
            *("--comp-extra", f"level={LEVEL}", "--block-size", str(BLOCK_BYTES)),
            *("--num-jobs", str(jobs), "--queue-backlog", str(jobs * _BACKLOG), str(out)),
        ]
        with told_as_failure(self.path, f"The file {self.path}"):
            self._run(command, out, archive(merged, image.layers), on_bytes)
            out.with_suffix(".kept").unlink(missing_ok=True)
            is_sif = self.path.suffix.lower() == ENDING
            if is_sif:
                out = _with_header(out, image)
            out.chmod((0o777 if is_sif else 0o666) & ~current_umask())
            with out.open("rb") as file:
                os.fsync(file.fileno())
            hashed = hash_file(out)
        self._made = out
        return replace(
            image,
            digest=hashed.digest,
            image_id=hashed.digest,
            squashfs=hashed,
            claims=(image.image_id, image.digest),
        )

    def publish(self) -> Path:
        """Give the file its name."""
        assert self._made is not None
        with told_as_failure(self.path, f"The file {self.path}"):
            self._made.replace(self.path)
            sync_directory(self.path.parent)
        self._made = None
        return self.path

    def _run(
        self,
        command: list[str],
        out: Path,
        pieces: Generator[bytes, None, None],
        on_bytes: Callable[[int], None],
    ) -> None:
        with contextlib.closing(read_ahead(pieces)) as tar, tempfile.TemporaryFile() as said:
            with uninterrupted():
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=said,
                    stderr=said,
                    start_new_session=True,
                    env=environment({"SOURCE_DATE_EPOCH": "0"}),
                )
            pipe = cast("IO[bytes]", process.stdin)
            has_name = False
            try:
                with contextlib.suppress(BrokenPipeError), pipe:  # its exit code says why
                    with contextlib.suppress(OSError):
                        fcntl.fcntl(pipe.fileno(), _SET_PIPE_SIZE, _PIPE_BYTES)
                    for piece in tar:
                        pipe.write(piece)
                        has_name = has_name or _named_again(out)
                        on_bytes(len(piece))
                code = process.wait()
            finally:
                process.kill()
                process.wait()
            if code:
                said.seek(0)
                self._fail(code, said.read(1 << 16).decode("utf-8", "replace"))

    def _fail(self, code: int, text: str) -> None:
        if code == -signal.SIGXFSZ:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        if shutil.disk_usage(self._work).free < _FULL_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        error = TargetError(
            f"The file {self.path} cannot be written: {TOOL} {describe_exit(code)}. "
            "Nothing of it was kept.",
            fix="Read its output above, and run the same again.",
        )
        error.detail = text.strip()
        raise error


def _with_header(squashfs: Path, image: Image) -> Path:
    """A SIF of it, in its place."""
    out = squashfs.with_suffix(ENDING)
    size = squashfs.stat().st_size
    with squashfs.open("rb") as source, out.open("wb") as target:
        target.write(sif_header(image.digest, image.platform.architecture, size))
        shutil.copyfileobj(source, target, _PIPE_BYTES)
    squashfs.unlink()
    return out


def _named_again(out: Path) -> bool:
    """Give a file a second name, if it is there: tar2sqfs removes it when it fails, and the disk
    would not be seen to be full.
    """
    with contextlib.suppress(OSError):
        os.link(out, out.with_suffix(".kept"))
        return True
    return False
