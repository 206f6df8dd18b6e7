"""The same content as an image in a registry: pip in a Dockerfile, uv in a Dockerfile, and ours.

    ./run --install-engine python bench/build_and_push.py WHEELS [ROUNDS] [--no-rebuild]

WHEELS is a directory with the wheels of images/recipe/cu117.txt (pip download fills it). A real
registry (Debian's docker-registry) runs on loopback and is emptied before each first build. All are
built in turn, round after round, so that a busy machine slows all; medians are compared.

Each tool has its wheels on the local disk, and the base is there for all. What is measured is wall
time of the whole command, from an empty registry ("first") and after one small package was added to
the lock ("rebuild"); what was sent is measured at the registry's own storage. Of pip and uv the
rebuild is the same work again: it is measured in the first round, and left out with --no-rebuild.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BASE = "gpu-provision-bench/base:1"
DOCKERFILE = """\
FROM {base}
RUN python3 -m venv /opt/venv
{uv}
RUN --mount=type=bind,source=.,target=/wheels {command}
"""
PIP = "/opt/venv/bin/pip install --no-index --find-links /wheels --no-deps --no-cache-dir {names}"
UV = (
    "/opt/venv/bin/uv pip install --python /opt/venv --no-index --find-links /wheels --no-deps "
    "--no-cache --compile-bytecode {names}"
)
GET_UV = "RUN --mount=type=bind,source=.,target=/wheels /opt/venv/bin/pip install {options} uv"


@dataclass(frozen=True)
class Lab:
    """Where everything is."""

    work: Path
    wheels: Path
    small: Path
    registry: Path
    address: str

    def stored_bytes(self) -> int:
        """What lies in the registry, by its own files."""
        return sum(p.stat().st_size for p in self.registry.rglob("data") if p.is_file())

    def empty_registry(self) -> None:
        shutil.rmtree(self.registry, ignore_errors=True)
        self.registry.mkdir()


def main(words: list[str]) -> int:
    if not words:
        print(__doc__, file=sys.stderr)
        return 2
    theirs_again = "--no-rebuild" not in words
    numbers = [word for word in words[1:] if word.isdigit()]
    rounds = int(numbers[0]) if numbers else 3
    with laboratory(Path(words[0]).absolute()) as lab:
        ours = Ours(lab)
        ours.prepare()
        load_base(ours.base_archive())
        tools: dict[str, Callable[..., None]] = {
            "pip + docker build + push": partial(with_docker, lab, "pip"),
            "uv + docker build + push": partial(with_docker, lab, "uv"),
            "ours, nothing known": partial(ours.build, table=False),
            "ours": ours.build,
        }
        first: dict[str, list[float]] = {name: [] for name in tools}
        again: dict[str, list[float]] = {name: [] for name in tools}
        sent: dict[str, list[int]] = {name: [] for name in tools}
        for n in range(rounds):
            for name, build in tools.items():
                lab.empty_registry()
                ours.forget()
                if "docker" in name:
                    warm_context(lab)
                first[name].append(seconds(partial(build, more=False, n=n)))
                if "docker" not in name or (n == 0 and theirs_again):
                    before = lab.stored_bytes()
                    again[name].append(seconds(partial(build, more=True, n=n)))
                    sent[name].append(lab.stored_bytes() - before)
                took = [f"{times[name][-1]:9.2f} s" for times in (first, again) if times[name]]
                print(f"{name:28} {' '.join(took)}", flush=True)
                if "docker" in name:
                    docker("builder", "prune", "--all", "--force")
        show(first, again, sent)
        ours.show_size()
        show_digests(ours)
    return 0


def show(
    first: dict[str, list[float]], again: dict[str, list[float]], sent: dict[str, list[int]]
) -> None:
    """Medians, and how many times faster ours is."""
    ours_first, ours_again = (statistics.median(times["ours"]) for times in (first, again))
    print(f"\n{'medians':28} {'first':>8} {'':>6} {'rebuild':>8} {'':>7} {'sent':>10}")
    for name, times in first.items():
        one, two = statistics.median(times), statistics.median(again[name] or times)
        bytes_sent = f"{statistics.median(sent[name]) / 1e6:7.2f} MB" if sent[name] else "as first"
        print(
            f"{name:28} {one:7.1f} s {one / ours_first:5.1f}x {two:7.2f} s "
            f"{two / ours_again:6.1f}x {bytes_sent}"
        )


def seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def with_docker(lab: Lab, tool: str, *, more: bool, n: int) -> None:
    """Build without the cache of an earlier round, and push."""
    names = sorted(path.name.split("-")[0] for path in lab.wheels.glob("*.whl"))
    added = lab.small.name.split("-")[0]
    names = [name for name in names if name not in {"uv", "pip"} and (more or name != added)]
    options = "--no-index --find-links /wheels --no-cache-dir --quiet"
    text = DOCKERFILE.format(
        base=BASE,
        uv=GET_UV.format(options=options) if tool == "uv" else "",
        command=(PIP if tool == "pip" else UV).format(names=" ".join(names)),
    )
    dockerfile = lab.work / f"Dockerfile.{tool}"
    dockerfile.write_text(text)
    tag = f"{lab.address}/{tool}:{n}"
    docker("build", "--quiet", "--network", "none", "--no-cache", "--file", str(dockerfile),
           "--tag", tag, str(lab.wheels))  # fmt: skip
    docker("push", "--quiet", tag)
    docker("rmi", "--force", tag)


def warm_context(lab: Lab) -> None:
    """Have the wheels in the builder already: on the disk is on the disk for all."""
    dockerfile = lab.work / "Dockerfile.warm"
    dockerfile.write_text(f"FROM {BASE}\nRUN --mount=type=bind,target=/wheels ls /wheels\n")
    docker("build", "--quiet", "--network", "none", "--file", str(dockerfile), str(lab.wheels))


def docker(*words: str) -> None:
    env = {**os.environ, "DOCKER_BUILDKIT": "1", "BUILDKIT_PROGRESS": "plain"}
    client = "/usr/bin/docker" if Path("/usr/bin/docker").exists() else "docker"
    done = subprocess.run([client, *words], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"docker {words[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def load_base(archive: Path) -> None:
    """The base of ours is the base of all."""
    docker("load", "--quiet", "--input", str(archive))
    with tarfile.open(archive) as opened:
        member = opened.extractfile("manifest.json")
        assert member is not None
        (image,) = json.load(member)
    docker("tag", image["RepoTags"][0], BASE)


class Ours:
    """`provision build --push`, from a lock of the same wheels."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._cache = lab.work / "cache"
        self._env = {**os.environ, "XDG_CACHE_HOME": str(self._cache)}
        self._env |= {"XDG_STATE_HOME": str(lab.work / "state")}
        self._env |= {"XDG_DATA_HOME": str(lab.work / "data")}
        self.account: dict[str, Any] = {}
        self._lock = lab.work / "pylock.toml"
        self._more = lab.work / "pylock.more.toml"

    def prepare(self) -> None:
        """Lock once, with and without the small package; fill the store; put the base there."""
        self._provision("lock", "--cuda", "11.7", "--base", "bootstrap", "--python", "3.11",
                        "--output", str(self._lock))  # fmt: skip
        self._provision("lock", "--cuda", "11.7", "--base", "bootstrap", "--python", "3.11",
                        "--with", self.lab.small.name.split("-")[0],
                        "--output", str(self._more))  # fmt: skip
        self._provision("build", "--lock", str(self._more), "--builder", "oci", "--no-verify",
                        "--output", str(self.lab.work / "primed"))  # fmt: skip
        shutil.rmtree(self.lab.work / "primed")

    def build(self, *, more: bool, n: int, table: bool = True) -> None:
        """Without the `table` of layers that are known to all, each has to be found out."""
        lock = self._more if more else self._lock
        words = ["build", "--lock", str(lock), "--no-verify"]
        words += ["--push", f"{self.lab.address}/ours:{n}"]
        self.account = self._provision(*words, program=None if table else self._without_table())

    def _without_table(self) -> list[str]:
        """`provision`, with an empty table."""
        empty = self.lab.work / "empty.json"
        empty.write_text('{"format": 0, "layers": []}')
        code = (
            "import pathlib, sys; from images.layers import shared; "
            f"shared.TABLE = pathlib.Path({str(empty)!r}); "
            "sys.argv[0] = 'provision'; from provision.cli.main import run; run()"
        )
        return [sys.executable, "-c", code]

    def forget(self) -> None:
        """Every layer's digest has to be found out again."""
        for memo in self._cache.glob("gpu-provision/store-*/memo/known"):
            shutil.rmtree(memo)

    def base_archive(self) -> Path:
        return next((self._cache / "gpu-provision" / "bases").glob("*.tar"))

    def show_size(self) -> None:
        """Compressed bytes over base and wheels; memory; which part was known."""
        layers = self.account["image"]["layers"]
        base = sum(layer["size"] for layer in layers if layer["title"] == "base")
        total = sum(layer["size"] for layer in layers)
        wheels = self.account["lock"]["download_bytes"]
        print(f"\nlayers {total / 1e6:.1f} MB, base + wheels {(base + wheels) / 1e6:.1f} MB: "
              f"{(total / (base + wheels) - 1) * 100:+.2f} %")  # fmt: skip
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"largest resident size of any command of this run: {peak:.0f} MiB")

    def elsewhere(self, home: Path, ref: str, *, prefix: list[str], env: dict[str, str]) -> str:
        """Build once more, in another home, as somebody else; the digest of the manifest."""
        shutil.copytree(self._cache / "gpu-provision", home / "cache" / "gpu-provision")
        for memo in (home / "cache").glob("gpu-provision/store-*/memo/known"):
            shutil.rmtree(memo)
        shutil.copy(self._lock, home / "pylock.toml")
        # an installation of its own: this one may lie where nobody may look
        (packages,) = (Path(one) for one in sys.path if one.endswith("site-packages"))
        shutil.copytree(packages, home / "site")
        for room in ("provision", "images", "verify"):
            shutil.copytree(ROOT / room, home / "source" / room)
        shutil.copy(ROOT / "Dockerfile.cuda", home / "source")
        subprocess.run(["chown", "-R", "nobody", str(home)], check=True)
        home.chmod(0o755)
        python = f"/usr/bin/python3.{sys.version_info.minor}"
        argv = [*prefix, python, "-m", "provision", "build", "--no-verify", "--json"]
        argv += ["--lock", str(home / "pylock.toml"), "--push", ref]
        mine = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "TMPDIR": str(home)}
        mine |= {"XDG_STATE_HOME": str(home / "state"), "XDG_DATA_HOME": str(home / "data")}
        kept = {k: v for k, v in os.environ.items() if k in {"PATH", "SSL_CERT_FILE"}}
        done = subprocess.run(
            argv, env={**kept, **mine, **env, "PYTHONPATH": f"{home}/source:{home}/site"}, cwd=home,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{' '.join(argv)} failed:\n{done.stderr[-3000:]}")
        return str(json.loads(done.stdout)["image"]["digest"])

    def _provision(self, *words: str, program: list[str] | None = None) -> dict[str, Any]:
        argv = [*(program or [sys.executable, "-m", "provision"]), *words, "--json"]
        done = subprocess.run(
            argv, env=self._env, cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{' '.join(argv)} failed:\n{done.stderr[-3000:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def show_digests(ours: Ours) -> None:
    """Two builds from one lock: other directories, users, clocks, time zones, umasks, locales."""
    lab = ours.lab
    ours.forget()
    ours.build(more=False, n=99)
    here = ours.account["image"]["digest"]
    prefix = ["setpriv", "--reuid", "nobody", "--clear-groups"] if os.geteuid() == 0 else []
    if shutil.which("faketime"):
        prefix += ["faketime", "2031-02-03 04:05:06"]
    prefix = ["sh", "-c", 'umask 077; exec "$@"', "sh", *prefix]
    with tempfile.TemporaryDirectory(prefix="elsewhere-", dir="/var/tmp") as name:
        env = {"TZ": "Asia/Tokyo", "LC_ALL": "tr_TR.UTF-8", "PYTHONHASHSEED": "7"}
        there = ours.elsewhere(Path(name), f"{lab.address}/there:1", prefix=prefix, env=env)
    print(f"\ndigest here      {here}\ndigest elsewhere {there}\n"
          f"{'equal' if here == there else 'DIFFERENT'} ({' '.join(prefix)}, {env})")  # fmt: skip


@contextlib.contextmanager
def laboratory(wheels: Path) -> Iterator[Lab]:
    """A registry of our own, and a directory that goes with it."""
    with tempfile.TemporaryDirectory(prefix="bench-images-") as name:
        work = Path(name)
        storage = work / "registry"
        storage.mkdir()
        address = "127.0.0.1:5077"
        config = work / "registry.yml"
        config.write_text(
            "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\n"
            f"storage: {{filesystem: {{rootdirectory: {storage}}}, delete: {{enabled: true}}}}\n"
            f"http: {{addr: '{address}'}}\n"
        )
        server = subprocess.Popen(
            ["docker-registry", "serve", str(config)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for(f"http://{address}/v2/")
            yield Lab(work, wheels, small_package(wheels), storage, address)
        finally:
            server.terminate()
            server.wait(20)


def small_package(wheels: Path) -> Path:
    """The package that is added, and uv, beside the others."""
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
    subprocess.run([*argv, str(wheels), "six", "uv"], check=True)
    return next(wheels.glob("six-*.whl"))


def wait_for(url: str) -> None:
    for _ in range(100):
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1):
            return
        time.sleep(0.1)
    sys.exit(f"{url} does not answer")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
