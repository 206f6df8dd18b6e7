"""The builder without an engine: which CLI, which command line, what its failures mean."""

from __future__ import annotations

import gc
import io
import os
import stat
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from docker.errors import APIError, ImageNotFound, NotFound
from requests.exceptions import ConnectionError as RequestsConnectionError

from images.engines import container, docker_errors
from images.engines.archive import files_archive
from images.engines.buildkit import (
    Builder,
    NoBuildKitError,
    ask,
    build_argv,
    find_builder,
    secret_files,
    staged_context,
)
from images.engines.docker import Docker
from images.engines.docker_errors import (
    BuildFailedError,
    EngineError,
    NoEngineError,
    NoGpuRuntimeError,
)
from images.engines.spec import ImageSpec, RunJob
from images.errors import DiskFullError, Failure
from images.layers.project import DiskFile, ProjectLayer, sha256_of
from images.net.secrets import Secrets
from tests.kit.cases import cases

RLIMIT = "OCI runtime create failed: error setting rlimit type 8: operation not permitted: unknown"
BUILDX = "github.com/docker/buildx v0.13.1 788433953af10f2a698f5c07611dddce2e08c7a0\n"


# --- which CLI --------------------------------------------------------------------------------


@dataclass
class Clis:
    """Directories with a `docker` each, and what those answer: (buildx version, version)."""

    root: Path
    answers: dict[str, tuple[str | None, str | None]]
    asked: list[list[str]] = field(default_factory=list)

    def path(self) -> str:
        for name in self.answers:
            cli = self.root / name / "docker"
            cli.parent.mkdir()
            cli.touch(mode=0o755)
        return os.pathsep.join(str(self.root / name) for name in self.answers)

    def ask(self, argv: list[str]) -> str | None:
        self.asked.append(argv)
        buildx, version = self.answers[Path(argv[0]).parent.name]
        return buildx if argv[1] == "buildx" else version


@cases(
    "answers found",
    ("a new client with the plugin", {"a": (BUILDX, "26.1.5")}, ("a", "buildx", "v0.13.1")),
    ("an old client drives BuildKit itself", {"a": (None, "20.10.24+dfsg1\n")},
     ("a", "integrated", "20.10.24+dfsg1")),
    ("a new client without the plugin is passed over",
     {"a": (None, "28.2.2"), "b": (None, "20.10.24")}, ("b", "integrated", "20.10.24")),
    ("the first on PATH that can", {"a": (BUILDX, "26.1.5"), "b": (None, "20.10.24")},
     ("a", "buildx", "v0.13.1")),
    ("a broken client is passed over", {"a": (None, None), "b": (BUILDX, "26.1.5")},
     ("b", "buildx", "v0.13.1")),
    ("podman that answers to the name of docker is passed over",
     {"a": ("buildah 1.28.2\n", "4.3.1"), "b": (BUILDX, "26.1.5")}, ("b", "buildx", "v0.13.1")),
    ("a plugin that does not say its version", {"a": ("github.com/docker/buildx\n", "26.1.5")},
     ("a", "buildx", "?")),
    ("an answer of white space", {"a": ("\n", "19.03.15")}, ("a", "integrated", "19.03.15")),
)  # fmt: skip
def test_the_cli_that_can_drive_buildkit_is_found(
    tmp_path: Path, answers: dict[str, tuple[str | None, str | None]], found: tuple[str, str, str]
) -> None:
    clis = Clis(tmp_path, answers)
    builder = find_builder(clis.path(), clis.ask)
    assert (Path(builder.cli).parent.name, builder.kind, builder.version) == found


def test_empty_and_doubled_entries_of_path_are_no_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clis = Clis(tmp_path, {"a": (None, None), "b": (BUILDX, "26.1.5")})
    path = clis.path().split(os.pathsep)
    monkeypatch.chdir(path[1])  # an empty entry means the working directory to a shell, not to us
    with pytest.raises(NoBuildKitError):
        find_builder(os.pathsep.join(["", path[0], "", path[0], str(tmp_path / "no")]), clis.ask)
    assert {argv[0] for argv in clis.asked} == {f"{path[0]}/docker"}
    assert len(clis.asked) == 2


@cases(
    "answers words fix",
    ("no docker at all", {}, "is not on PATH", "docker.io"),
    ("without the plugin", {"a": (None, "28.2.2")}, "28.2.2", "docker-buildx"),
    ("one that is broken", {"a": (None, None)}, "(no answer)", "docker-buildx"),
    ("before BuildKit", {"a": (None, "17.12.1")}, "17.12.1", "docker-buildx"),
)
def test_where_none_can_it_is_said_what_to_install(
    tmp_path: Path, answers: dict[str, tuple[str | None, str | None]], words: str, fix: str
) -> None:
    clis = Clis(tmp_path, answers)
    with pytest.raises(NoBuildKitError) as caught:
        find_builder(clis.path(), clis.ask)
    assert caught.value.exit_code == 5
    assert words in caught.value.message
    assert fix in caught.value.fix


def test_a_question_to_a_missing_or_failing_program_has_no_answer(tmp_path: Path) -> None:
    assert ask([str(tmp_path / "none")]) is None
    assert ask(["false"]) is None
    assert ask(["echo", "yes"]) == "yes\n"


# --- the command line and what it needs -------------------------------------------------------

SPEC = ImageSpec(base="python:3.11@sha256:aa", lock=Path("/x/pylock.toml"), labels={})


@cases(
    "builder spec secrets network argv",
    ("buildx loads what it built", Builder(cli="docker", kind="buildx", version="1"), SPEC, {},
     None, ("docker buildx build --load --progress plain --file /c/Dockerfile.cuda "
     "--build-arg BASE=python:3.11@sha256:aa --build-arg LOCK=pylock.toml --iidfile /o/iid /c")),
    ("everything there is, in one order",
     Builder(cli="/usr/bin/docker", kind="integrated", version="20.10"),
     ImageSpec(base="nvidia/cuda:11.7.1-devel", lock=Path("pylock.a.toml"),
     labels={"z": '{"b": "c; rm -rf /"}', "a": "1"}, apt_packages=("python3", "python3-venv")),
     {"netrc": Path("/s/netrc"), "ca": Path("/s/ca")}, "host",
     ("/usr/bin/docker build --progress plain --file /c/Dockerfile.cuda "
     "--build-arg BASE=nvidia/cuda:11.7.1-devel --build-arg LOCK=pylock.a.toml "
     "--build-arg|APT_PACKAGES=python3 python3-venv| --label a=1 "
     '--label|z={"b": "c; rm -rf /"}| '
     "--secret id=ca,src=/s/ca --secret id=netrc,src=/s/netrc --network host "
     "--iidfile /o/iid /c")),
)  # fmt: skip
def test_the_command_line_of_a_build(
    builder: Builder, spec: ImageSpec, secrets: Mapping[str, Path], network: str | None, argv: str
) -> None:
    found = build_argv(
        builder, context=Path("/c"), spec=spec, iid=Path("/o/iid"), secrets=secrets, network=network
    )
    golden = [
        word
        for i, part in enumerate(argv.split("|"))
        for word in ([part] if i % 2 else part.split())
    ]
    assert found == golden


def test_the_context_holds_exactly_what_the_dockerfile_copies(tmp_path: Path) -> None:
    suite = tmp_path / "verify"
    (suite / "__pycache__").mkdir(parents=True)
    (suite / "__pycache__" / "x.pyc").touch()
    (suite / "__main__.py").write_text("suite")
    lock = tmp_path / "pylock.small.toml"
    lock.write_text("lock")
    spec = ImageSpec(base="b", lock=lock, labels={})
    with staged_context(spec, suite) as context:
        files = {
            str(path.relative_to(context)): path.read_text()
            for path in context.rglob("*")
            if path.is_file()
        }
    copied = {
        line.split()[1].replace("${LOCK}", lock.name)
        for line in files["Dockerfile.cuda"].splitlines()
        if line.startswith("COPY ")
    }
    assert copied == {"images/recipe/uv.txt", "pylock.small.toml", "verify"}
    assert set(files) == {
        "Dockerfile.cuda",
        "images/recipe/uv.txt",
        "pylock.small.toml",
        "verify/__main__.py",
    }
    assert not context.exists()


def test_a_project_is_the_last_layer_that_the_dockerfile_adds(tmp_path: Path) -> None:
    source = tmp_path / "main.py"
    source.write_text("main")
    sha256, size = sha256_of(source)
    file = DiskFile(path="app/main.py", source=source, size=size, sha256=sha256)
    lock = tmp_path / "pylock.toml"
    lock.write_text("lock")
    spec = ImageSpec(
        base="b",
        lock=lock,
        labels={},
        project=ProjectLayer(title="project a", created_by="test", files=(file,)),
        working_dir="/app",
        command=("serve", "--quote='\"x\"'"),
    )
    (tmp_path / "suite").mkdir()
    with staged_context(spec, tmp_path / "suite") as context:
        lines = (context / "Dockerfile.cuda").read_text().splitlines()
        with tarfile.open(context / "project.tar.gz") as tar:
            names = tar.getnames()
    assert lines[-3:] == [
        "ADD project.tar.gz /",
        "WORKDIR /app",
        'CMD ["serve", "--quote=\'\\"x\\"\'"]',
    ]
    assert names == ["app", "app/main.py"]


def test_secrets_are_files_that_only_we_can_read_and_gone_afterwards() -> None:
    old = os.umask(0)
    try:
        with secret_files(Secrets(ca_bundle="PEM", netrc="machine", pip_index="")) as files:
            assert {name: path.read_text() for name, path in files.items()} == {
                "ca": "PEM",
                "netrc": "machine",
            }
            modes = {stat.S_IMODE(path.stat().st_mode) for path in files.values()}
            assert modes == {0o600}
            folder = files["ca"].parent
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        os.umask(old)
    assert not folder.exists()


def test_secrets_are_gone_after_a_failure_too() -> None:
    def fail() -> None:
        with secret_files(Secrets(netrc="machine")) as files:
            folders.append(files["netrc"].parent)
            raise KeyboardInterrupt

    folders: list[Path] = []
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [folder.exists() for folder in folders] == [False]


# --- what failures mean -----------------------------------------------------------------------


@cases(
    "output kind words",
    ("the disk is full", "#12 write /opt/venv/lib/x: no space left on device", DiskFullError,
     "disk is full"),
    ("the disk is full, as uv says it", "#9 error: No space left on device (os error 28)",
     DiskFullError, "disk is full"),
    ("another wheel, as uv says it",
     "#9 error: Hash mismatch for `torch==2.0.1`\n#9 Expected: sha256:00", BuildFailedError,
     "not have the hash"),
    ("another wheel, as pip says it",
     "#7 ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
     BuildFailedError, "not have the hash"),
    ("the engine cannot be connected to",
     "error during connect: Post http://docker/build: dial unix: no such file", EngineError,
     "stopped"),
    ("the engine ends in the middle",
     "#5 [base 1/2]\nrpc error: code = Unavailable desc = error reading: EOF", EngineError,
     "stopped"),
    ("a step fails", "#9 ERROR: process did not complete successfully: exit code: 1",
     BuildFailedError, "A step"),
    ("not a word", "", BuildFailedError, "A step"),
)  # fmt: skip
def test_a_failed_build_is_understood(output: str, kind: type[Failure], words: str) -> None:
    before = "".join(f"{number}\n" for number in range(100))
    failure = docker_errors.build_failure(before + output, engine_answers=True)
    assert type(failure) is kind
    assert words in failure.message
    assert failure.fix
    assert failure.detail.splitlines() == (before + output).splitlines()[-20:]


def test_an_engine_that_does_not_answer_afterwards_went_away_whatever_was_said() -> None:
    failure = docker_errors.build_failure("#9 some step failed", engine_answers=False)
    assert type(failure) is EngineError


@cases(
    "text kind words",
    ("no hook on the engine's PATH", 'could not select device driver "" with capabilities: [[gpu]]',
     NoGpuRuntimeError, "nvidia-ctk"),
    ("an engine without CDI", 'could not select device driver "cdi" with capabilities: []',
     NoGpuRuntimeError, "nvidia-ctk"),
    ("an unknown CDI name",
     "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=9", NoGpuRuntimeError,
     "nvidia-ctk"),
    ("the hook fails",
     ("OCI runtime create failed: error running hook #0: error running hook: exit "
     "status 1, stdout: , stderr: nvidia-container-cli: device error: 7: unknown"),
     NoGpuRuntimeError, "nvidia-smi"),
    ("something else", "OCI runtime create failed: unable to apply caps: operation not permitted",
     EngineError, "log"),
)  # fmt: skip
def test_a_container_that_does_not_start_is_understood(
    text: str, kind: type[Failure], words: str
) -> None:
    failure = docker_errors.start_failure(api_error(text))
    assert type(failure) is kind
    assert words in failure.fix
    assert text[:60] in f"{failure.message} {failure.detail}"


def test_files_for_a_container_travel_as_an_archive() -> None:
    data = files_archive({"/run/x/expect.json": b"{}", "/a": b""})
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = {m.name: (m.mode, archive.extractfile(m)) for m in archive.getmembers()}
    assert {name: mode for name, (mode, _) in found.items()} == {
        "run/x/expect.json": 0o644,
        "a": 0o644,
    }


@cases(
    "chunks lines",
    ("whole lines", [b"a\nb\n"], ["a", "b"]),
    ("a line in two chunks, the last without end", [b"a", b"b\nc"], ["ab", "c"]),
    ("a character in two chunks", [b"\xc3", b"\xa9\n"], ["\u00e9"]),
    ("a carriage return, a broken byte", [b"a\r\n\xff\n"], ["a", "\ufffd"]),
    ("nothing", [], []),
)
def test_chunks_become_lines(chunks: list[bytes], lines: list[str]) -> None:
    assert list(container._lines(iter(chunks))) == lines


# --- a run, on a client that answers as the SDK does ------------------------------------------


def api_error(text: str, status: int = 500) -> APIError:
    class Answer:
        status_code = status
        reason = "Internal Server Error"
        url = "http+docker://x"

    return APIError("refused", response=cast("Any", Answer()), explanation=text)


@dataclass
class FakeContainer:
    """Starts, prints and ends as configured."""

    start_error: Exception | None = None
    logs_error: Exception | None = None
    wait_error: Exception | None = None
    remove_error: Exception | None = None
    holds: bool = False
    code: int = 0
    said: tuple[bytes, ...] = (b'{"verdict": "fit"}',)
    told: tuple[bytes, ...] = (b"o\n",)
    removed: int = 0
    archives: list[bytes] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)

    def put_archive(self, path: str, data: bytes) -> None:
        assert path == "/"
        self.archives.append(data)

    def start(self) -> None:
        if self.start_error:
            raise self.start_error

    def logs(self, *, stream: bool, stdout: bool, stderr: bool, **how: object) -> Iterator[bytes]:
        assert stream
        assert stdout is not stderr
        if how.get("follow"):
            return self._stream()
        if self.holds:
            raise NotFound("No such container")
        return iter(self.said if stdout else (b"ta", b"il"))

    def _stream(self) -> Iterator[bytes]:
        yield b"one\ntw"
        if self.logs_error:
            raise self.logs_error
        if self.holds:
            assert self.gone.wait(timeout=60)
        yield from self.told

    def wait(self, timeout: int) -> dict[str, int]:
        assert timeout
        if self.wait_error:
            raise self.wait_error
        return {"StatusCode": self.code}

    def remove(self, *, force: bool, v: bool) -> None:
        assert force
        assert v
        self.removed += 1
        self.gone.set()
        if self.remove_error:
            raise self.remove_error


@dataclass
class FakeContainers:
    made: list[FakeContainer]
    error: Exception | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)

    def create(self, image: str, command: list[str], **settings: Any) -> FakeContainer:
        if self.error:
            raise self.error
        # the caller's lists change afterwards
        settings["ulimits"] = [limit.name for limit in settings["ulimits"]]
        self.asked.append({"image": image, "command": command, **settings})
        return self.made[len(self.asked) - 1]


@dataclass
class FakeImages:
    error: Exception | None = None

    def get(self, name: str) -> object:
        if self.error:
            raise self.error

        class Image:
            id = "sha256:1"
            labels = {"name": name}  # noqa: RUF012
            attrs = {"Size": 7, "RepoDigests": ["a/b@sha256:2"]}  # noqa: RUF012

        return Image()


@dataclass
class FakeClient:
    containers: FakeContainers = field(default_factory=lambda: FakeContainers([]))
    images: FakeImages = field(default_factory=FakeImages)
    info: Callable[[], dict[str, object]] = dict


def engine(*containers: FakeContainer, error: Exception | None = None) -> tuple[Docker, Any]:
    client = FakeClient(containers=FakeContainers(list(containers), error))
    return Docker(cast("Any", client)), client


JOB = RunJob(image="i", command=("python3", "-m", "verify"), files={"/e": b"{}"})


def test_a_run_gives_what_the_command_said() -> None:
    container = FakeContainer(code=3)
    docker, client = engine(container)
    lines: list[str] = []
    result = docker.run(JOB, lines.append)
    assert (result.exit_code, result.stdout, result.stderr_tail, result.notes) == (
        3,
        '{"verdict": "fit"}',
        "tail",
        (),
    )
    assert lines == ["one", "two"]
    assert (container.removed, len(container.archives)) == (1, 1)
    (asked,) = client.containers.asked
    assert (asked["network_mode"], asked["ulimits"]) == ("none", ["stack", "memlock"])


def test_what_a_run_writes_is_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("images.system.output.CAPTURE_BYTES", 1000)
    monkeypatch.setattr("images.system.process.KEEP_BYTES", 100)
    endless = (b"x" * 70,) * 50
    docker, _ = engine(FakeContainer(said=endless, told=(*endless, b"\nend\n")))
    lines: list[str] = []
    result = docker.run(JOB, lines.append)
    assert result.stdout == "x" * 1000
    assert "".join(lines) == "one" + "tw" + "x" * 3500 + "end"
    assert max(map(len, lines)) < 200


@cases(
    "gpus requests",
    ("no GPU", "none", []),
    ("by the NVIDIA runtime", "runtime", [("", [["gpu"]], [])]),
    ("by CDI", "cdi", [("cdi", [], ["nvidia.com/gpu=all"])]),
)
def test_gpus_are_asked_for(gpus: str, requests: list[object]) -> None:
    docker, client = engine(FakeContainer())
    docker.run(RunJob(image="i", command=("x",), gpus=gpus), print)
    found = [
        (r["Driver"], r["Capabilities"], r["DeviceIDs"])
        for r in client.containers.asked[0]["device_requests"]
    ]
    assert found == requests


def test_limits_that_the_engine_may_not_grant_are_left_out_one_by_one_and_said() -> None:
    refused = [FakeContainer(start_error=api_error(RLIMIT)) for _ in range(2)]
    docker, client = engine(*refused, FakeContainer())
    result = docker.run(JOB, print)
    assert [asked["ulimits"] for asked in client.containers.asked] == [
        ["stack", "memlock"],
        ["stack"],
        [],
    ]
    assert [note.split(":")[0] for note in result.notes] == ["ulimit memlock", "ulimit stack"]
    assert [container.removed for container in refused] == [1, 1]


def test_a_limit_that_is_refused_for_ever_ends_in_a_failure() -> None:
    refused = [FakeContainer(start_error=api_error(RLIMIT)) for _ in range(3)]
    docker, _ = engine(*refused)
    with pytest.raises(EngineError, match="rlimit"):
        docker.run(JOB, print)
    assert [container.removed for container in refused] == [1, 1, 1]


def stop(line: str) -> None:
    raise KeyboardInterrupt(line)


GONE = RequestsConnectionError("gone")


@pytest.mark.parametrize(
    ("container", "on_line", "error"),
    [
        pytest.param(FakeContainer(start_error=api_error("no such thing")), print, EngineError,
                     id="it does not start"),
        pytest.param(FakeContainer(start_error=GONE), print, EngineError,
                     id="the engine goes away at the start"),
        pytest.param(FakeContainer(start_error=KeyboardInterrupt()),  # type: ignore[arg-type]
                     print, KeyboardInterrupt, id="Ctrl-C at the start"),
        pytest.param(FakeContainer(logs_error=GONE), print, EngineError,
                     id="the engine goes away while it runs"),
        pytest.param(FakeContainer(wait_error=api_error("No such container", 404)), print,
                     EngineError, id="somebody removes it"),
        pytest.param(FakeContainer(), stop, KeyboardInterrupt, id="Ctrl-C while it runs"),
        pytest.param(FakeContainer(wait_error=api_error("x"), remove_error=api_error("y")), print,
                     EngineError, id="removing it fails too"),
    ],
)  # fmt: skip
def test_the_container_is_removed_however_it_ends(
    container: FakeContainer, on_line: Callable[[str], None], error: type[BaseException]
) -> None:
    docker, _ = engine(container)
    with pytest.raises(error):
        docker.run(JOB, on_line)
    assert container.removed == 1


def test_a_run_that_does_not_end_is_ended_and_said_to_be() -> None:
    container = FakeContainer(holds=True)
    docker, _ = engine(container)
    with pytest.raises(EngineError, match="timed out"):
        docker.run(RunJob(image="i", command=("x",), timeout_s=0.05), print)
    assert container.removed


@cases(
    "error",
    ("the image is not there", ImageNotFound("No such image: i")),
    ("the engine goes away", RequestsConnectionError("gone")),
    ("the socket breaks", OSError("broken pipe")),
)
def test_what_the_sdk_raises_never_leaves_the_room(error: Exception) -> None:
    docker, client = engine(error=error)
    with pytest.raises(EngineError):
        docker.run(JOB, print)
    client.images.error = error
    for look in (docker.labels, docker.image_id, docker.size_bytes):
        with pytest.raises(EngineError):
            look("i")
    with pytest.raises(EngineError):
        docker.tag("i", "a:b")


@cases(
    "root host known",
    ("a directory of this machine", "/", "", True),
    ("a directory that is not here", "/nonexistent", "", False),
    ("another machine's", "/", "tcp://elsewhere:2375", False),
    ("an engine that does not say", None, "", False),
)
def test_free_space_is_known_of_this_machine_only(
    monkeypatch: pytest.MonkeyPatch, root: str | None, host: str, *, known: bool
) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    docker, client = engine()
    client.info = lambda: {"DockerRootDir": root}
    free = docker.free_bytes()
    assert (free is not None) == known
    assert free is None or free > 0


def test_an_image_that_is_not_there_is_no_failure_where_that_is_the_question() -> None:
    docker, client = engine()
    assert docker.has("i")
    assert docker.repo_digest("i") == "sha256:2"
    client.images.error = ImageNotFound("No such image: i")
    assert not docker.has("i")
    assert docker.repo_digest("i") is None
    client.images.error = RequestsConnectionError("gone")
    with pytest.raises(EngineError):
        docker.has("i")


@cases(
    "host",
    ("a socket that is not there", "unix:///nonexistent"),
    ("a port where nobody listens", "tcp://127.0.0.1:1"),
    ("no address", "nonsense://"),
    ("no port", "tcp://x:y"),
)
def test_an_engine_that_does_not_answer_is_said_with_the_callers_fix(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(NoEngineError) as caught:
        Docker.connect(fix="start it")
    assert (caught.value.exit_code, caught.value.fix) == (5, "start it")
    assert host in caught.value.message
    del caught
    gc.collect()


# --- what a command has written ---------------------------------------------------------------


class HasFiles:
    """A container whose directory /out has these entries."""

    def __init__(self, *entries: tuple[tarfile.TarInfo, bytes]) -> None:
        self._entries = entries

    def get_archive(self, path: str) -> tuple[Iterator[bytes], dict[str, Any]]:
        assert path == "/run/out"
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for entry, data in self._entries:
                tar.addfile(entry, io.BytesIO(data))
        data = buffer.getvalue()
        return (data[start : start + 700] for start in range(0, len(data), 700)), {}


def in_tar(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE) -> Any:
    entry = tarfile.TarInfo(name)
    entry.type, entry.size, entry.linkname = kind, len(data), "/etc/shadow"
    return entry, data


def test_only_files_below_the_directory_are_copied_out(tmp_path: Path) -> None:
    found = HasFiles(
        in_tar("out", kind=tarfile.DIRTYPE),
        in_tar("out/wheel/x.whl", b"w" * 3000),
        in_tar("out/link.whl", kind=tarfile.SYMTYPE),
        in_tar("out/../../up", b"u"),
        in_tar("/abs", b"a"),
    )
    container.copy_out(cast("Any", found), "/run/out", tmp_path / "to")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {str(path.relative_to(tmp_path)) for path in files} == {"to/wheel/x.whl", "to/abs"}
    assert (tmp_path / "to/wheel/x.whl").read_bytes() == b"w" * 3000


def test_the_context_has_the_wheels_that_a_lock_names_by_path(tmp_path: Path) -> None:
    lock, wheel = tmp_path / "pylock.toml", tmp_path / "x-1+c-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    (tmp_path / "suite").mkdir()
    here, behind_login = wheel.as_uri(), "https://h.example/[a]/$x.*/x-1%2Bc-py3-none-any.whl"
    lines = [f'url = "{url}"' for url in (here, behind_login, f"{behind_login}.other")]
    lock.write_text("\n".join(lines))
    spec = ImageSpec(base="b", lock=lock, labels={}, wheels={here: wheel, behind_login: wheel})
    with staged_context(spec, tmp_path / "suite") as context:
        recipe = context / "images/recipe"
        assert (recipe / "wheels" / wheel.name).read_bytes() == b"wheel"
        said = (recipe / "pylock.toml").read_text()
    place = 'url = "file:///mnt/recipe/wheels/x-1%2Bc-py3-none-any.whl"'
    assert said.splitlines() == [place, place, lines[2]]
    wheel.unlink()
    with (
        pytest.raises(Failure, match="cannot be read: No such file"),
        staged_context(spec, tmp_path / "suite"),
    ):
        pass
