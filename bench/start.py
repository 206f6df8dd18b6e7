"""From an image that a node can reach to the end of a first job, and what it costs to write it.

    sudo -E ./run python bench/start.py DIR                       # both tables
    sudo -E ./run python bench/start.py DIR --only start --ways 'squashfs|containerd'

DIR/wheels has the wheels of images/recipe/cu117.txt (pip download fills it); the images are made
there and kept. One is made as a Dockerfile makes it: `pip install` on the same base, one layer by
gzip. The others are ours, in each format. All lie in a registry (Debian's docker-registry) behind a
link of 1 Gbit/s, and the squashfs on this disk.

The job imports torch, and runs a linear layer and a convolution forward and backward on the CPU. A
way takes from an empty storage to the end of the job, with the page cache dropped. Bytes are those
that the registry's log says it sent. Writing is compared with the usual tool on the unpacked tree.
All ways take turns in one run, so that a busy machine slows all; medians are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import start_nodes as nodes
from start_nodes import ADDRESS, call, timed

from images.engines.sandbox.unpack import unpack
from images.oci.layout_reader import open_layout
from tests.engines.lazy_place import built

ROOT = Path(__file__).resolve().parents[1]
INSIDE = "START_IN_NAMESPACE"
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
from images.engines.squashfs.reader import open_squashfs

place, roots, job = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
sandbox = Sandbox.connect(roots)
handle = sandbox.prepare(open_squashfs(place), lambda _: None)
done = sandbox.run(RunJob(image=handle, command=("python3", "-c", job), gpus="none"), print)
sandbox.remove(handle)
print(done.stdout)
sys.exit(done.exit_code)
"""
REQUEST = ("--cuda", "11.7", "--gpu", "A100", "--driver", "535.104.05", "--python", "3.11")
PIP = "pip"
"""The image that pip makes, with which all are compared."""
GZIP_TAG = "gpu-provision:pytorch2.0.1-cu117"
FORMATS: dict[str, tuple[str, ...]] = {
    "gzip": (),
    "zstd": ("--compression", "zstd"),
    "lazy": ("--lazy",),
    "lazy gzip": ("--lazy=gzip",),
    "cut": ("--cut", "sm_86"),
    "cut zstd": ("--cut", "sm_86", "--compression", "zstd"),
    "cut lazy": ("--cut", "sm_86", "--lazy"),
}
LAZY = ("lazy", "lazy gzip", "cut lazy")


def provision(*words: str) -> dict[str, object]:
    out = call(sys.executable, "-m", "provision", *words, "--json")
    found: dict[str, object] = json.loads(out)
    return found


class Images:
    """The images in a directory, made if they are not there."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.lock = place / "pylock.toml"
        self.squashfs = place / "torch.sqfs"

    def layout(self, name: str) -> Path:
        return self.place / f"layout-{name.replace(' ', '-')}"

    def archive(self, name: str) -> Path:
        return self.place / f"{name}.tar"

    def make(self) -> None:
        if not self.lock.exists():
            provision("lock", *REQUEST, "--base", "bootstrap", "--output", str(self.lock))
        for name, words in FORMATS.items():
            if not self.layout(name).exists():
                self.build(self.layout(name), *words)
        if not self.squashfs.exists():
            self.build(self.squashfs)
        if not self.archive("gzip").exists():
            self.build(self.archive("gzip"))
        if not self.layout(PIP).exists():
            self._make_as_pip()
        if not self.archive(PIP).exists():  # as `docker save` writes it
            words = (f"oci:{self.layout(PIP)}:1", f"docker-archive:{self.archive(PIP)}:{PIP}:1")
            call("skopeo", "copy", "-q", *words)

    def build(self, out: Path, *words: str) -> float:
        """Seconds of the step `build`: what precedes it is the same for all."""
        argv = ("build", "--lock", str(self.lock), "--no-verify", "--output", str(out), *words)
        steps = provision(*argv)["steps"]
        assert isinstance(steps, list)
        return float(next(step["seconds"] for step in steps if step["name"] == "build"))

    def _make_as_pip(self) -> None:
        """The first layers of ours, which are the base, and one of pip's on them."""
        bases = Path.home() / ".cache/gpu-provision/bases"
        (base,) = bases.glob("*.tar")
        made = self.place / "partial"
        shutil.rmtree(made, ignore_errors=True)
        call("skopeo", "copy", "-q", f"docker-archive:{base}", f"oci:{made}:1")
        with tempfile.TemporaryDirectory(dir=self.place) as name:
            bundle = Path(name) / "bundle"
            call("umoci", "unpack", "--image", f"{made}:1", str(bundle))
            tree = bundle / "rootfs"
            (tree / "wheels").mkdir()
            call("mount", "--bind", str(self.place / "wheels"), str(tree / "wheels"))
            try:
                call("chroot", str(tree), "python3", "-m", "venv", "/opt/venv")
                names = [path.name for path in (tree / "wheels").glob("*.whl")]
                install = ("--no-index", "--no-deps", "--no-cache-dir", "--quiet")
                files = [f"/wheels/{one}" for one in names]
                call("chroot", str(tree), "/opt/venv/bin/pip", "install", *install, *files)
            finally:
                call("umount", str(tree / "wheels"))
            (tree / "wheels").rmdir()
            call("umoci", "repack", "--image", f"{made}:1", str(bundle))
        path = "/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        call("umoci", "config", "--image", f"{made}:1", "--config.env", f"PATH={path}")
        made.rename(self.layout(PIP))


def in_sandbox(file: Path, work: Path, **env: str) -> float:
    """Run the job in the sandbox, with nothing kept from before."""
    roots = work / "roots"
    words = (sys.executable, "-c", SANDBOX, str(file), str(roots), JOB)
    spent = timed(lambda: call(*words, **env))
    shutil.rmtree(roots)
    return spent


def path_without(work: Path, *names: str) -> str:
    """A PATH that lacks some programs."""
    shown = work / "programs"
    shown.mkdir()
    for directory in os.environ["PATH"].split(":"):
        for program in Path(directory).glob("*"):
            if program.name not in names and not (shown / program.name).is_symlink():
                (shown / program.name).symlink_to(program)
    return str(shown)


def push(layout: Path, name: str) -> None:
    index = json.loads((layout / "index.json").read_text())
    tag = index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"]
    words = ("skopeo", "copy", "-q", "--dest-tls-verify=false", f"oci:{layout}:{tag}")
    call(*words, f"docker://{name}")


def image_name(name: str) -> str:
    return f"{ADDRESS}/{name.replace(' ', '-')}:1"


def start_ways(images: Images, work: Path) -> dict[str, Callable[[], float]]:
    ways: dict[str, Callable[[], float]] = {}
    containerd = partial(nodes.by_containerd, snapshotter=built(work))
    for name in (PIP, *FORMATS):
        ways[f"containerd, {name}"] = partial(containerd, image_name(name), JOB, work)
    for name in LAZY:
        start = partial(containerd, image_name(name), JOB, work, lazily=True)
        ways[f"containerd lazily, {name}"] = start
    for name in (PIP, *FORMATS):
        ways[f"podman, {name}"] = partial(nodes.by_podman, image_name(name), JOB, work)
    for name in (PIP, "gzip"):  # the engines of Debian 12 do not read zstd
        ways[f"docker, {name}"] = partial(nodes.by_docker, image_name(name), JOB, work)
    for name, tag in ((PIP, f"{PIP}:1"), ("gzip", GZIP_TAG)):
        load = partial(nodes.by_docker, tag, JOB, work, images.archive(name))
        ways[f"docker load, {name}"] = load
    ways["squashfs, squashfuse"] = partial(in_sandbox, images.squashfs, work)
    no_fuse = path_without(work, "squashfuse", "squashfuse_ll")
    ways["squashfs, loop device"] = partial(in_sandbox, images.squashfs, work, PATH=no_fuse)
    return ways


def measure_starts(images: Images, rounds: int, wanted: re.Pattern[str], mbit_s: int) -> None:
    with tempfile.TemporaryDirectory(dir=images.place) as name:
        work = Path(name)
        registry = nodes.Registry(work / "registry")
        call("ip", "link", "set", "lo", "up")
        with registry.running():
            for one in (PIP, *FORMATS):
                push(images.layout(one), image_name(one))
            nodes.shape(mbit_s)
            registry.sent()
            ways = {k: v for k, v in start_ways(images, work).items() if wanted.search(k)}
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            sent: dict[str, list[int]] = {way: [] for way in ways}
            for _ in range(rounds):
                for way, start in ways.items():
                    seconds[way].append(start())
                    sent[way].append(registry.sent())
                    print(f"{way}: {seconds[way][-1]:.1f} s", file=sys.stderr, flush=True)
    show(f"From the registry at {mbit_s} Mbit/s, or the file, to the job's end", seconds, sent)


def by_mksquashfs(tree: Path, work: Path) -> float:
    """The usual tool, on files that are on this disk already."""
    out = work / "by-mksquashfs.sqfs"
    words = ("mksquashfs", str(tree), str(out), "-comp", "zstd", "-Xcompression-level", "3")
    began = time.perf_counter()
    call(*words, "-b", "128K", "-no-progress", "-quiet")
    spent = time.perf_counter() - began
    out.unlink()
    return spent


def by_provision(images: Images, work: Path) -> float:
    out = work / "built.sqfs"
    spent = images.build(out)
    out.unlink()
    return spent


def measure_writing(images: Images, rounds: int) -> None:
    with tempfile.TemporaryDirectory(dir=images.place) as name:
        work = Path(name)
        tree = work / "tree"
        tree.mkdir()
        unpack(open_layout(images.layout("gzip"), None, None).layers, tree, lambda _: None)
        ways: dict[str, Callable[[], float]] = {
            "mksquashfs, of files": partial(by_mksquashfs, tree, work),
            "provision build --output FILE.sqfs": partial(by_provision, images, work),
        }
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, write in ways.items():
                nodes.drop_page_cache()
                found[way].append(write())
    show("Writing, everything downloaded", found, {})


def show(title: str, found: dict[str, list[float]], sent: dict[str, list[int]]) -> None:
    """The medians, and how many times faster each is than the first."""
    first = statistics.median(next(iter(found.values())))
    first_way = next(iter(found))
    print(f"\n{title}\n\n| way | median s | all s | MB sent | {first_way} / this |")
    print("| --- | --- | --- | --- | --- |")
    for way, all_s in found.items():
        middle = statistics.median(all_s)
        each = ", ".join(f"{one:.1f}" for one in all_s)
        megabytes = f"{statistics.median(sent[way]) / 1e6:.0f}" if way in sent else ""
        print(f"| {way} | {middle:.2f} | {each} | {megabytes} | {first / middle:.2f} |")


def main() -> int:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("place", metavar="DIR", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("start", "writing"), help="one of the two tables")
    parser.add_argument("--ways", default="", help="those with this in their name (a pattern)")
    parser.add_argument("--mbit", type=int, default=1000, help="the link's rate")
    args = parser.parse_args()
    images = Images(args.place.absolute())
    if INSIDE in os.environ:
        measure_starts(images, args.rounds, re.compile(args.ways), args.mbit)
        return 0
    images.make()
    cpus, load = os.cpu_count(), os.getloadavg()[0]
    now = time.strftime("%Y-%m-%d %H:%M")
    print(f"{now}, {platform.machine()}, {cpus} CPUs, load {load:.1f}", flush=True)
    if args.only != "start":
        measure_writing(images, args.rounds)
    if args.only != "writing":
        again = ("unshare", "--net", sys.executable, *sys.argv)
        return subprocess.run(again, env={**os.environ, INSIDE: "1"}, check=False).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
