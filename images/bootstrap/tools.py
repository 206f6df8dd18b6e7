"""Runs mmdebstrap or debootstrap, and reads from its output why it failed."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from images import process
from images.bootstrap import host
from images.bootstrap.errors import BootstrapToolError, BootstrapUnfitError, MirrorError
from images.bootstrap.mirrors import Snapshot, debian_lines, passwords_in, snapshot_lines
from images.bootstrap.tree import tar_tree
from images.errors import Failure

# else /usr is merged by a package that brings 50 MB of Perl
_MERGED_USR = Path("/usr/share/mmdebstrap/hooks/maybe-merged-usr")


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be installed, and the directory and the time that there are for it."""

    suite: str
    packages: tuple[str, ...]
    epoch: int
    work: Path
    on_line: Callable[[str], None]
    deadline: float
    """By `time.monotonic`."""
    snapshot: Snapshot | None = None
    """Of which time the packages are; None: of now."""

    @property
    def tree(self) -> Path:
        """Where the tree lies once it is made, as a tar."""
        return self.work / "tree.tar"

    def run(
        self, argv: list[str], redact: tuple[str, ...] = (), *, unset: tuple[str, ...] = ()
    ) -> process.Completed:
        """Run a command such that the host's language, folder and clock do not show in its work."""
        environment = {
            **dict.fromkeys((*unset, "TZ")),
            "SOURCE_DATE_EPOCH": str(self.epoch),
            "LC_ALL": "C.UTF-8",
            "DEBIAN_FRONTEND": "noninteractive",
            "TMPDIR": str(host.scratch_directory(self.work)),
        }
        return process.run(
            argv,
            timeout_s=max(1.0, self.deadline - time.monotonic()),
            env=environment,
            cwd=Path("/"),
            on_line=self.on_line,
            redact=redact,
            grace_s=30.0,
        )


def mmdebstrap_argv(
    *, suite: str, packages: Iterable[str], target: Path, apt: Iterable[str], lines: Iterable[str]
) -> list[str]:
    """Write the command that makes the tree, as a tar. Without lines it has its own mirror."""
    return [
        "mmdebstrap",
        "--variant=minbase",
        "--mode=auto",
        "--format=tar",
        f"--keyring={host.KEYRING}",
        *(f"--hook-dir={hook}" for hook in [_MERGED_USR] if hook.is_dir()),
        f"--include={','.join(packages)}",
        '--aptopt=Acquire::Retries "3"',
        *(f"--aptopt={option}" for option in apt),
        suite,
        str(target),
        *lines,
    ]


def debootstrap_argv(
    *, suite: str, packages: Iterable[str], target: Path, lines: Iterable[str]
) -> list[str]:
    """Write the command that makes the tree, as a directory. It knows one mirror and no updates."""
    mirrors = [line.split()[-3] for line in lines if line.split()[-2] == suite]
    return [
        "debootstrap",
        "--variant=minbase",
        f"--keyring={host.KEYRING}",
        f"--include={','.join(packages)}",
        suite,
        str(target),
        *mirrors[:1],
    ]


def make_tree(job: Job) -> process.Completed:
    """Make the tree of a job, as the tar `job.tree`, with the tool that this host has."""
    if job.snapshot is None:
        lines = debian_lines(host.read_sources(), job.suite)
    else:
        lines = snapshot_lines(job.snapshot, job.suite)
    if shutil.which("mmdebstrap"):
        apt = host.read_apt_options(job.on_line)
        argv = mmdebstrap_argv(
            suite=job.suite, packages=job.packages, target=job.tree, apt=apt, lines=lines
        )
        return job.run(argv, redact=passwords_in((*apt, *lines)))
    job.on_line("mmdebstrap is not installed: debootstrap makes the base, without the updates")
    tree = job.work / "tree"
    argv = debootstrap_argv(suite=job.suite, packages=job.packages, target=tree, lines=lines)
    # in a namespace of its own its mounts end with it, even when it is killed
    unshare = ["unshare", "--mount"]
    if not shutil.which("unshare") or not job.run([*unshare, "true"]).ok:
        unshare = []
    completed = job.run([*unshare, *argv], redact=passwords_in(lines))
    if completed.ok:
        tar_tree(tree, job.tree)
    return completed


def explain(output: str, suite: str) -> Failure | None:
    """Say why a tool failed, where its output tells; the order matters, the first cause counts."""
    detail = "\n".join(output.splitlines()[-20:])
    if re.search(r"NO_PUBKEY|not signed|Release signed by unknown key|keyring .* not available|"
                 r"signatures couldn't be verified|Sub-process .* sqv", output):  # fmt: skip
        return MirrorError(
            f"The mirror's signature for {suite} does not fit this host's Debian keys "
            f"({host.KEYRING}).",
            fix=f"{host.INSTALL} debian-archive-keyring",
            detail=detail,
        )
    if re.search(r"(?i)certificate verif|certificate is not trusted|issuer certificate", output):
        return MirrorError(
            "The mirror shows a certificate that this host does not trust.",
            fix="Add your organisation's certificates to the host: copy them to "
            "/usr/local/share/ca-certificates/ and run sudo update-ca-certificates",
            detail=detail,
        )
    missing = re.search(r"Unable to locate package (\S+)|Couldn't find these debs: (.+)", output)
    if missing:
        names = missing[1] or missing[2]
        return BootstrapUnfitError(
            f"Debian {suite} has no package {names}.",
            fix="Leave it out, or name a suite that has it.",
            detail=detail,
        )
    if re.search(
        r"does not have a Release file|No such script|unknown suite|404 +Not Found", output
    ):
        return BootstrapUnfitError(
            f"The Debian mirror does not have the suite {suite}, or not all of it.",
            fix="Use a suite that it has (they are listed in its dists/ directory); "
            "after a change on the mirror, try again.",
            detail=detail,
        )
    if re.search(
        r"Could not resolve|Temporary failure resolving|Could not connect|Connection (refused|"
        r"timed out)|Unable to connect|Failed getting release file|Failed to fetch|"
        r"Network is unreachable|Proxy Authentication Required|Couldn't download",
        output,
    ):
        return MirrorError(
            f"The Debian mirror could not be read for {suite}.",
            fix="See that `apt-get update` works on this host (mirror, http_proxy), "
            "or give a base that is reachable: --base IMAGE",
            detail=detail,
        )
    if re.search(
        r"newuidmap|subuid|unable to pick chroot mode|cannot use unshare|unshare(\(| ).*failed|"
        r"Operation not permitted|needs to be run as root",
        output,
    ):
        return BootstrapToolError(
            "This user may not make a Debian tree here: user namespaces are closed or have no "
            "range of user ids, and the user is not root.",
            fix=f"{host.INSTALL} uidmap && sudo usermod --add-subuids 100000-165535 "
            '--add-subgids 100000-165535 "$USER"; or run the same command with sudo.',
            detail=detail,
        )
    return None
