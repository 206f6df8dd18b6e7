"""From an image that a node can reach to the end of a first job, and what it costs to write it.

    sudo -E ./run python bench/start.py LAYOUT FILE.sqfs     # both by `provision build --output`

The job imports torch, and runs a linear layer and a convolution forward and backward on the CPU.
Ways: the squashfs where it is, mounted by squashfuse and by a loop device; the layout's layers
unpacked for a sandbox; the same image pulled by podman from a registry on this machine (where
docker-registry and skopeo are installed). Then the squashfs is built again, in turn with mksquashfs
on the unpacked tree, with the same compression. The page cache is dropped before each run. All ways
take turns in one run, so that a busy machine slows all; medians are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from images.engines.sandbox.unpack import unpack
from images.oci.layout_reading import open_layout

ROOT = Path(__file__).parents[1]
ROUNDS = 3
JOB = """
import torch
torch.nn.Linear(64, 64)(torch.randn(8, 64)).sum().backward()
torch.nn.Conv2d(3, 8, 3)(torch.randn(2, 3, 32, 32)).sum().backward()
print("job done", torch.__version__)
"""
SANDBOX = """
import sys
from pathlib import Path
from images.engines.sandbox.run import Sandbox
from images.engines.spec import RunJob
from images.engines.squashfs.reading import is_squashfs, open_squashfs
from images.oci.layout_reading import open_layout

place, roots, job = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
image = open_squashfs(place) if is_squashfs(place) else open_layout(place, None, None)
sandbox = Sandbox.connect(roots)
handle = sandbox.prepare(image, lambda _: None)
done = sandbox.run(RunJob(image=handle, command=("python3", "-c", job), gpus="none"), print)
sandbox.remove(handle)
sys.exit(done.exit_code or "job done" not in done.stdout)
"""
BUILD = ("--cuda", "11.7", "--gpu", "A100", "--driver", "535.104.05", "--python", "3.11")


def timed(argv: list[str], **env: str) -> float:
    """Wall seconds of a command, after the page cache was dropped. It must succeed."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
    began = time.perf_counter()
    done = subprocess.run(
        argv, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    spent = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{argv[:3]}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return spent


def in_sandbox(place: Path, work: Path, **env: str) -> float:
    """Run the job in the sandbox, with nothing kept from before."""
    roots = work / "roots"
    spent = timed([sys.executable, "-c", SANDBOX, str(place), str(roots), JOB], **env)
    shutil.rmtree(roots)
    return spent


def without(work: Path, *names: str) -> str:
    """A PATH that lacks some programs."""
    shown = work / "programs"
    if not shown.exists():
        shown.mkdir()
        for directory in os.environ["PATH"].split(":"):
            for program in Path(directory).glob("*"):
                if program.name not in names and not (shown / program.name).is_symlink():
                    (shown / program.name).symlink_to(program)
    return str(shown)


@contextlib.contextmanager
def registry(layout: Path, work: Path) -> Iterator[str | None]:
    """A registry on this machine that has the image; None where a program is missing."""
    if not all(map(shutil.which, ("docker-registry", "skopeo", "podman"))):
        yield None
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = work / "registry.yml"
    settings.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {work / 'registry'}}}}}\n"
        f"http: {{addr: 127.0.0.1:{port}}}\nlog: {{level: error}}\n"
    )
    server = subprocess.Popen(
        ["docker-registry", "serve", str(settings)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        time.sleep(1)
        name = f"127.0.0.1:{port}/torch:1"
        index = json.loads((layout / "index.json").read_text())
        tag = index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"]
        subprocess.run(
            ["skopeo", "copy", "-q", "--dest-tls-verify=false", f"oci:{layout}:{tag}",
             f"docker://{name}"], check=True,
        )  # fmt: skip
        yield name
    finally:
        server.terminate()
        server.wait()


def by_podman(name: str, work: Path) -> float:
    """Pull and run it, with an empty storage."""
    storage = [f"--root={work}/podman", f"--runroot={work}/podman-run"]
    words = ["podman", *storage, "run", "--rm", "--tls-verify=false", "--network=none"]
    words += ["--ulimit", "nofile=1024:1024", "--pull=always"]
    spent = timed([*words, name, "python3", "-c", JOB])
    subprocess.run(["podman", *storage, "rmi", "-af"], capture_output=True, check=False)
    subprocess.run(["umount", "-l", f"{work}/podman/overlay"], capture_output=True, check=False)
    for left in ("podman", "podman-run"):
        shutil.rmtree(work / left, ignore_errors=True)
    return spent


def by_provision(work: Path) -> float:
    """The build's own step, with everything downloaded: planning and locking are not counted."""
    out = work / "built.sqfs"
    words = [sys.executable, "-m", "provision", "build", *BUILD, "--base", "bootstrap"]
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
    done = subprocess.run(
        [*words, "--no-verify", "--json", "--output", str(out)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    out.unlink()
    steps = {step["name"]: step["seconds"] for step in json.loads(done.stdout)["steps"]}
    return float(steps["build"])


def by_mksquashfs(tree: Path, work: Path) -> float:
    """The usual tool, on files that are on this disk already."""
    out = work / "by-mksquashfs.sqfs"
    words = ["mksquashfs", str(tree), str(out), "-comp", "zstd", "-Xcompression-level", "3"]
    spent = timed([*words, "-b", "128K", "-no-progress", "-quiet"])
    out.unlink()
    return spent


def show(title: str, found: dict[str, list[float]], other: str) -> None:
    """The medians, and how many times faster each is than one of them."""
    print(f"\n{title}\n\n| way | median s | all s | {other} / this |\n| --- | --- | --- | --- |")
    against = statistics.median(found[other])
    for way, all_s in found.items():
        middle = statistics.median(all_s)
        each = ", ".join(f"{one:.1f}" for one in all_s)
        print(f"| {way} | {middle:.2f} | {each} | {against / middle:.1f} |")


def main() -> int:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("layout", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", choices=("start", "build"), help="one of the two tables")
    parser.add_argument("--no-podman", action="store_true", help="leave podman out")
    args = parser.parse_args()
    layout, file = args.layout.absolute(), args.file.absolute()
    cpus, load = os.cpu_count(), os.getloadavg()[0]
    print(f"{time.strftime('%Y-%m-%d %H:%M')}, {platform.machine()}, {cpus} CPUs, load {load:.1f}")
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=file.parent)))
        name = None
        if not args.no_podman and args.only != "build":
            name = stack.enter_context(registry(layout, work))
        no_fuse = without(work, "squashfuse", "squashfuse_ll")
        ways: dict[str, Callable[[], float]] = {
            "squashfs by squashfuse": lambda: in_sandbox(file, work),
            "squashfs by a loop device": lambda: in_sandbox(file, work, PATH=no_fuse),
            "layers unpacked": lambda: in_sandbox(layout, work),
        }
        if name is not None:
            ways["podman pull"] = lambda: by_podman(name, work)
        if args.only != "build":
            measure("From the file or the registry to the end of the job", ways, args.rounds)
        if args.only != "start":
            tree = work / "tree"
            unpack_to(layout, tree)
            writers: dict[str, Callable[[], float]] = {
                "provision build": lambda: by_provision(work),
                "mksquashfs": lambda: by_mksquashfs(tree, work),
            }
            measure("Writing the squashfs", writers, args.rounds, "mksquashfs")
    return 0


def measure(
    title: str, ways: dict[str, Callable[[], float]], rounds: int, other: str = "layers unpacked"
) -> None:
    """All ways in turn, some rounds."""
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, run in ways.items():
            found[way].append(run())
            print(f"{way}: {found[way][-1]:.1f} s", file=sys.stderr, flush=True)
    show(title, found, other)


def unpack_to(layout: Path, tree: Path) -> None:
    """The image's files in a directory."""
    tree.mkdir()
    unpack(open_layout(layout, None, None).layers, tree, lambda _: None)


if __name__ == "__main__":
    sys.exit(main())
