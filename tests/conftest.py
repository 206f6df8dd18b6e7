"""For every lane: a home of its own for each test, a time limit, the same inputs every time.

The environment is cleaned here, before a test module is read: what a developer has configured for
pip, uv, git, Docker or Python is not what is tested. The lanes that talk to the package index get
this machine's index back; no other test knows one.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import json
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import ROOT, need

# Seconds for one test with its fixtures, by lane (a directory here): for what hangs, not for what
# is slow. A fixture of a session counts for the first test that needs it: an image of gigabytes, a
# framework's installation, a machine on which all tests run.
LIMIT_S = 300
LIMITS_S = {
    "bare": 4800,
    "clusters": 1200,
    "engines": 2400,
    "frameworks": 2400,
    "gpu": 2400,
    "wheels": 2400,
}
# The lanes that take minutes, the longest first. Those of one word run one after the other in one
# process: they share an engine, or daemons and downloads, or load all cores by themselves.
LONG = {
    "frameworks": "cores",
    "gpu": "cores",
    "bare": "cores",
    "engines": "engine",
    "clusters": "clusters",
    "wheels": "wheels",
}
# Files that ask this machine's engine, one after the other. For the others of their lane none
# answers, and each runs where there is room.
WITH_ENGINE = {
    f"tests/engines/test_{name}.py"
    for name in ("by_hand", "doctor_inside", "faults", "main_job", "record", "run_real")
}
NO_ENGINE = "unix:///nonexistent/docker.sock"
# The programs of engines.
ENGINES = {"docker", "podman"}
# Which lanes ask the package index.
ONLINE = ("bare", "clusters", "engines", "frameworks", "wheels")
# Which lanes find no engine.
ALONE = ("browser", "unit")

# Started in the background of a script, or by nohup, we inherit ignored signals, and so would every
# program that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Variables by which a developer, a runner or a scheduler configures what we start.
_CONFIGURED = re.compile(
    r"(BUILDKIT|COMPOSE|CONDA|CUDA|DEBIAN|DOCKER|GIT|GITHUB|GITLAB|GPU_PROVISION|HF|JAX|KUBE|LANG|LC|MKL|NCCL"
    r"|NVIDIA|OMP|PIP|PODMAN|PROVISION|PYTHON|RAY|REGISTRY|SLURM|TF|TORCH|UV|VIRTUAL|XDG|XLA)_?[A-Z0-9_]*"
)
# ... and by which they say where packages come from, and whom to trust for it.
_OF_THE_INDEX = re.compile(
    r"(PIP|UV)_.*|(https?|all|no)_proxy|.*_CA_BUNDLE|(NIX_)?SSL_CERT_.*|GIT_SSL_.*|NETRC",
    re.IGNORECASE,
)
_KEPT = {
    "DOCKER_HOST",
    "GPU_PROVISION_CUDA_EXTENSION",
    "GPU_PROVISION_WHEELS",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONUNBUFFERED",
}
# What this machine says of its index; a process of pytest's own workers finds it here.
_INDEX = "TESTS_INDEX"


def _clean(env: MutableMapping[str, str]) -> dict[str, str]:
    """Take the configuration out of `env`; what was said of the index."""
    if _INDEX in env:
        index: dict[str, str] = json.loads(env[_INDEX])
    else:
        index = {name: value for name, value in env.items() if _OF_THE_INDEX.fullmatch(name)}
        home = Path(env.get("HOME") or "/nonexistent")
        config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
        for name, file in (
            ("PIP_CONFIG_FILE", config / "pip" / "pip.conf"),
            ("PIP_CONFIG_FILE", home / ".pip" / "pip.conf"),
            ("UV_CONFIG_FILE", config / "uv" / "uv.toml"),
            ("NETRC", home / ".netrc"),
        ):
            if file.is_file():
                index.setdefault(name, str(file))
    for name in list(env):
        if name not in _KEPT and (_CONFIGURED.fullmatch(name) or _OF_THE_INDEX.fullmatch(name)):
            del env[name]
    env[_INDEX] = json.dumps(index)
    return index


def _home(place: Path) -> dict[str, str]:
    """An empty home, and variables that keep every program in it."""
    home = place / "home"
    home.mkdir(parents=True)
    return {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local" / "share"),
        "XDG_STATE_HOME": str(home / ".local" / "state"),
    }


def _without_engines(path: str, place: Path) -> str:
    """PATH without container engines: instead of a folder with one, links to its other programs."""
    found: list[str] = []
    for folder in dict.fromkeys(os.path.realpath(name) for name in path.split(os.pathsep)):
        names = set(os.listdir(folder)) if os.path.isdir(folder) else set()  # noqa: PTH112, PTH208
        links = place / "programs" / str(len(found))
        found.append(str(links) if names & ENGINES else folder)
        if names & ENGINES:
            links.mkdir(parents=True)
            for name in names - ENGINES:
                (links / name).symlink_to(f"{folder}/{name}")
    return os.pathsep.join(found)


_OWN = Path(tempfile.mkdtemp(prefix="gpu-provision-tests-"))
_INDEX_OF_THIS_MACHINE = _clean(os.environ)
# Configuration of the whole machine (/etc) is left out, too.
_NO_INDEX = {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1"}
os.environ.update(_home(_OWN), **_NO_INDEX, GIT_CONFIG_NOSYSTEM="1")
# Of a test that talks to none. Each command that reads the machine would ask them, which takes
# 0.4 s of processor time.
_PATH = os.environ["PATH"]
_PATH_WITHOUT_ENGINES = _without_engines(_PATH, _OWN)
_OWN.chmod(0o711)  # other users, as which some tests run, find programs there
# What is made or fetched once: in a process of pytest's own workers, once for all of them.
os.environ.setdefault("TESTS_SHARED", str(_OWN))


def pytest_addoption(parser: pytest.Parser) -> None:
    """How much chance there is."""
    parser.addoption(
        "--fuzz",
        type=int,
        metavar="N",
        help="try N random inputs where tests try inputs, others each time",
    )


def pytest_configure(config: pytest.Config) -> None:
    """The same inputs in every run, unless chance is asked for."""
    fuzz = config.getoption("--fuzz")
    hypothesis.settings.register_profile(
        "same", derandomize=True, database=None, deadline=None, print_blob=True
    )
    hypothesis.settings.register_profile(
        "chance", max_examples=fuzz or 100, database=None, deadline=None, print_blob=True
    )
    hypothesis.settings.load_profile("chance" if fuzz else "same")


def pytest_sessionstart() -> None:
    """A row of the catalog that cannot be read is said once, not by every test that needs it."""
    from provision.catalog.loading import load
    from provision.errors import CatalogError

    try:
        load()
    except CatalogError as error:
        pytest.exit(f"The catalog cannot be read. {error}", returncode=1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Each of pytest's processes imports the files beginning with another one: of a new checkout,
    each compiles its share for all, which takes more time than all else before the tests.
    """
    number = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if not number:
        return
    asked = [Path(arg.partition("::")[0]).resolve() for arg in session.config.args]
    found = sorted({file for path in asked for file in (path, *path.rglob("test_*.py"))})
    files = [file.relative_to(ROOT) for file in found if file.is_file()]
    names = [".".join(file.with_suffix("").parts) for file in files if "data" not in file.parts]
    first = len(names) * int(number) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for name in names[first:] + names[:first]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # said when it is collected
            importlib.import_module(name)


def pytest_unconfigure() -> None:
    """Take away what this process has made."""
    shutil.rmtree(_OWN, ignore_errors=True)


def _lane(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT / "tests").parts[0]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Every test has a time limit."""
    lane = _lane(item)
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(LIMITS_S.get(lane, LIMIT_S)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: a quarter of the time tests wait for something."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With --dist loadgroup a long lane stays together in one process, and other tests go where
    there is room. By directory: pytest-xdist's own marks do nothing with pytest 9.2.
    """
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # by the number of tests: a long file has few

    class Lanes(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            lane = file.split("/")[1]
            if lane == "engines" and file not in WITH_ENGINE:
                return file
            return LONG.get(lane, nodeid)

    return Lanes(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest is begun first: of a lane, what asks this machine's engine."""
    lanes = list(LONG)

    def place(item: pytest.Item) -> tuple[int, bool]:
        lane = _lane(item)
        file = item.path.relative_to(ROOT).as_posix()
        return lanes.index(lane) if lane in LONG else len(lanes), file not in WITH_ENGINE

    items.sort(key=place)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """This machine's package index and engines for tests, and their fixtures, that talk to them."""
    here, gone = _INDEX_OF_THIS_MACHINE, _NO_INDEX
    if _lane(item) not in ONLINE:
        here, gone = gone, here
    for name in gone.keys() - here.keys():
        os.environ.pop(name, None)
    os.environ.update(here)
    os.environ["PATH"] = _PATH_WITHOUT_ENGINES if _lane(item) in ALONE else _PATH
    if _lane(item) != "engines" or str(item.path.relative_to(ROOT)) in WITH_ENGINE:
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", NO_ENGINE)
        return (yield)


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A home of the test's own; fixtures of a session have the session's."""
    place = Path(tempfile.mkdtemp(dir=_OWN))
    for name, value in _home(place).items():
        monkeypatch.setenv(name, value)
    yield
    shutil.rmtree(place, ignore_errors=True)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """What was typed on bare machines; what was not tested here, and what to install for it."""
    reports = [report for some in terminalreporter.stats.values() for report in some]
    for report in reports:
        for name, value in getattr(report, "user_properties", ()):
            if name == "transcript" and report.when == "call":
                terminalreporter.section(report.nodeid.partition("[")[2].partition("]")[0])
                terminalreporter.line(value)
    left = _left_out(config) + _skipped(reports)
    if left:
        terminalreporter.section("not tested here")
    for what, fix in left:
        terminalreporter.line(what)
        if fix:
            terminalreporter.line(f"    to test it: {fix}")


def _left_out(config: pytest.Config) -> list[tuple[str, str]]:
    """The lanes of which nothing was asked for, where more than single files were."""
    asked = [Path(arg.partition("::")[0]).resolve() for arg in config.args]
    if not any(path.is_dir() for path in asked):
        return []
    lanes = [
        lane for lane in LONG if not any((ROOT / "tests" / lane).is_relative_to(p) for p in asked)
    ]
    return [("tests/" + ", tests/".join(lanes), "./run test --all")] if lanes else []


def _skipped(reports: Iterable[object]) -> list[tuple[str, str]]:
    found: collections.Counter[str] = collections.Counter()
    for report in reports:
        if isinstance(report, pytest.TestReport) and isinstance(report.longrepr, tuple):
            found[report.longrepr[2].removeprefix("Skipped: ")] += 1
    return [
        (
            f"{count} test{'s' * (count > 1)}: {reason.partition(need.FIX)[0]}",
            reason.partition(need.FIX)[2],
        )
        for reason, count in sorted(found.items())
    ]
