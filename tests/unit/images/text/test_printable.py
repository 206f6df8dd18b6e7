"""Names that others gave: in archives, registries, logs, locks, files. None reaches a terminal as
it is, whichever command meets it.
"""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.errors import Failure
from images.layers.errors import WheelRefusedError
from images.text.printable import printable, printable_json, printable_lines
from images.wheels.directory import ZipBrokenError
from provision.doctor import diagnose
from provision.host.machine import ProbedMachine
from provision.output import style
from provision.output.console import Console
from provision.output.stdout import print_json, print_result
from tests.kit.cases import cases
from tests.kit.fake_engine import FACTS, TAG, Engine, Runner, broken, claims, ended, report, says
from tests.kit.forged import forge_record
from tests.kit.layer_maker import Piece, collect, craft, pieces_of, stream_of
from tests.kit.oci_images import a_tar
from tests.unit.provision.cli.test_cli import RTX, main
from verify.commands import main as suite
from verify.reports.report import dump

# Clears the screen, sets the window's title, writes over the line, turns the direction of writing,
# ends a string of C.
EVIL = "a\x1b[2J\x1b]0;owned\x07\r\u202eb\x9b31m\x00c"
TYPED = EVIL.replace("\0", "")  # an argument of a program, or a name of a file, holds no zero byte


def assert_harmless(text: str) -> None:
    assert [c for c in text if not (c.isprintable() or c == "\n")] == []


# --- the one place ------------------------------------------------------------------------------


@given(st.text(max_size=200))
def test_whatever_the_text_the_result_is_printable_and_as_long(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown) == len(text)
    assert printable(shown) == shown


@given(st.text(max_size=200), st.integers(3, 50))
def test_a_limit_is_kept(text: str, limit: int) -> None:
    shown = printable(text, limit=limit)
    assert len(shown) <= limit
    assert len(text) > limit or not shown.endswith("...") or text.endswith("...")


@cases(
    "text expected",
    ("words", "the NVIDIA driver of the machine is old", "the NVIDIA driver of the..."),
    ("an end", "the NVIDIA driver of my hosts is old", "the NVIDIA driver of my hosts..."),
    ("in a long word", "a /usr/lib/x86_64-linux-gnu/libcuda.so.1",
     "a /usr/lib/x86_64-linux-gnu/l..."),
)  # fmt: skip
def test_text_is_cut_between_words(text: str, expected: str) -> None:
    assert printable(text, limit=32) == expected


@cases(
    "text expected",
    ("letters stay", "M\u00fcller/\u9a71\u52a8", "M\u00fcller/\u9a71\u52a8"),
    ("tabs, lines and no-break spaces stay", "a\tb\nc\xa0d", "a\tb\nc\xa0d"),
    ("no colours of others", "\x1b[31mred\x1b[0m", "?[31mred?[0m"),
    ("no return to the start of the line", "10%\r20%", "10%?20%"),
    ("half of a pair", "a\udc80b", "a?b"),
    ("line ends that only some programs know", "a\x85b\u2028c", "a?b?c"),
)
def test_lines_of_text_keep_what_is_text(text: str, expected: str) -> None:
    assert printable_lines(text) == expected


def test_no_failure_carries_a_control_character() -> None:
    failure = Failure(f"no {EVIL}\nand more", fix=f"type: x {EVIL}")
    for text in (failure.message, failure.fix, str(failure)):
        assert_harmless(text)
    assert failure.message.endswith("\nand more")


def test_a_result_for_people_keeps_its_own_colours_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(style._Look, "colour", True)
    print_result(f"error       \x1b[32m {EVIL}")
    out = capsys.readouterr().out
    assert out.startswith("\x1b[31;1merror\x1b[0m       ?[32m a?[2J?]0;owned???b?31m?c")


def test_a_result_of_others_keeps_no_colour(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(f"\x1b[8mconcealed {EVIL}")
    assert_harmless(capsys.readouterr().out)


def test_a_result_for_programs_keeps_every_character(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"name": EVIL, "half": "\ud800", "far": "\U000e0001", "letters": "M\u00fcller \u9a71"}
    print_json(value)
    out = capsys.readouterr().out
    assert json.loads(out) == value
    assert_harmless(out)
    assert "M\u00fcller \u9a71" in out


@given(
    st.recursive(
        st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_with_escapes_has_the_same_values(value: object) -> None:
    text = printable_json(json.dumps(value, indent=2, ensure_ascii=False))
    assert json.loads(text) == value
    assert_harmless(text)


@pytest.mark.parametrize("words", [[], ["-v"]], ids=["plain", "verbose"])
@pytest.mark.parametrize("say", ["say", "note", "result", "progress", "suite_line", "detail"])
def test_nothing_that_is_told_steers_the_terminal(
    say: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(verbose="-v" in words)
    with console.step("verify", EVIL, named=True):
        getattr(console, say)(f" 1/2  fail  {EVIL}")
        console.warn(EVIL, EVIL)
    console.fail(EVIL, EVIL, EVIL)
    assert_harmless(capsys.readouterr().err)


# --- wheels -------------------------------------------------------------------------------------

_LONG = b"x" * 500
WHEELS = [
    pytest.param(
        craft([Piece(name=EVIL, content=_LONG, said={"size": 4 << 20}, said_before={})]),
        "which cannot be",
        id="a name in the directory that lies about its size",
    ),
    pytest.param(
        craft(
            [
                Piece(name=EVIL, content=_LONG, method=0, said={"packed": 9000, "size": 9000}),
                Piece(name="b", content=b"b"),
            ]
        ),
        "overlaps what",
        id="a name in the directory of a member that reaches into the next",
    ),
    pytest.param(craft([Piece(name=EVIL)]), "cannot be shown", id="a name that is refused"),
]


@pytest.mark.parametrize(("data", "why"), WHEELS)
def test_a_wheel_is_refused_in_printable_words(data: bytes, why: str, tmp_path: Path) -> None:
    with pytest.raises(WheelRefusedError, match=why) as caught:
        collect(stream_of(data, tmp_path))
    assert caught.value.message.isprintable()


def test_the_directory_itself_says_no_raw_name() -> None:
    """`inspect` and `catalog measure` read it, too, here and far away."""
    from images.wheels.directory import TAIL_BYTES, read_directory

    for parameter in WHEELS[:2]:
        data = parameter.values[0]
        assert isinstance(data, bytes)
        at = max(0, len(data) - TAIL_BYTES)
        with pytest.raises(ZipBrokenError) as caught:
            read_directory(data[at:], at, lambda o, n, data=data: data[o : o + n])  # type: ignore[misc]
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["RECORD", "entry_points.txt", "WHEEL", "METADATA"])
def test_a_wheels_own_tables_are_refused_in_printable_words(name: str, tmp_path: Path) -> None:
    content = f"[console_scripts]\n{EVIL}=x:y\nRoot-Is-Purelib: {EVIL}\n{EVIL},sha256={EVIL},1\n"
    whole = pieces_of(Piece(name="example/it.py", content=b"it = 1\n"))
    pieces = [one for one in whole if not one.name.endswith(name)]  # type: ignore[arg-type]
    pieces.append(Piece(name=f"example-1.0.dist-info/{name}", content=content.encode()))
    try:
        collect(stream_of(craft(pieces), tmp_path))
    except Failure as failure:
        assert failure.message.isprintable()  # noqa: PT017  not every table is looked at


# --- every command ------------------------------------------------------------------------------


INDEX = {
    "schemaVersion": 2,
    "manifests": [
        {"mediaType": EVIL, "digest": EVIL, "size": 1,
         "annotations": {"org.opencontainers.image.ref.name": EVIL},
         "platform": {"architecture": EVIL, "os": EVIL}}
    ],
}  # fmt: skip
LAYERS = [{"Config": EVIL, "RepoTags": [EVIL], "Layers": [EVIL]}]
QUOTED = json.dumps(EVIL)  # TOML reads these escapes, too
LOCK = f"""lock-version = "1.0"
created-by = {QUOTED}
[[packages]]
name = {QUOTED}
version = {QUOTED}
[tool.gpu-provision]
schema = {QUOTED}
"""
LOG = f"""ModuleNotFoundError: No module named '{TYPED}'
docker: Error response from daemon: could not select device driver {TYPED!r}.
"""
SERVICE = {"image": "nvidia/cuda:12.8.1-runtime-ubuntu24.04", "version": EVIL}


def zipped(**members: str) -> bytes:
    """A wheel: its `METADATA`, its `WHEEL`, and a library whose name is the value of `other`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            path = f"x/{content}.so" if name == "other" else f"x-1.0.dist-info/{name}"
            archive.writestr(path, f"\x7fELF{EVIL}" if name == "other" else content)
    return buffer.getvalue()


EVIL_METADATA = zipped(
    METADATA=f"Name: {EVIL}\nVersion: {EVIL}\n", WHEEL=f"Tag: {EVIL}\n", other="a"
)
EVIL_MEMBER = zipped(METADATA="Name: x\nVersion: 1.0\n", other=TYPED)
EVIL_TAR = a_tar({f"../{TYPED}": b""})
WHEEL = "x-1.0-py3-none-any.whl"


@cases(
    "name content words",
    ("a tar with a member of that name", "i.tar", a_tar({TYPED: b"x", "manifest.json": b"[]"}),
     "inspect {}"),
    ("an archive that names such a layer", "image.tar",
     a_tar({"manifest.json": json.dumps(LAYERS).encode()}), "inspect docker-archive:{}"),
    ("a layout with such an index", "index.json", json.dumps(INDEX), "inspect oci:{}"),
    ("an image to verify", "index.json", json.dumps(INDEX), "verify oci:{}"),
    ("a wheel with such metadata", WHEEL, EVIL_METADATA, "inspect {}"),
    ("a wheel with such a member", WHEEL, EVIL_MEMBER, "inspect {}"),
    ("a wheel with such a member to measure", WHEEL, EVIL_MEMBER, "catalog measure {}"),
    ("a wheel to measure", WHEEL, EVIL_METADATA, "catalog measure {}"),
    ("a lock with such names", "pylock.toml", LOCK, "build --dry-run --lock {}"),
    ("a bundle with such a member", "bundle.tar.gz", gzip.compress(EVIL_TAR), "doctor --bundle {}"),
    ("a Dockerfile", "Dockerfile",
     f"FROM nvidia/cuda:{TYPED}\nRUN pip install {TYPED} torch=={TYPED}\n", "doctor {}"),
    ("a compose file", "compose.yaml", json.dumps({"services": {EVIL: SERVICE}}), "doctor {}"),
    ("a log", "run.log", LOG, "doctor --no-host --all --log {}"),
    ("a host file", "host.json",
     json.dumps({**json.loads(RTX), "arch": EVIL, "gpus": [{"name": EVIL}]}), "plan --host {}"),
    ("a journal", f"{TYPED}.json", json.dumps({"code": EVIL}), "doctor --undo {}"),
)  # fmt: skip
def test_what_a_command_reads_does_not_steer_the_terminal(
    name: str,
    content: str | bytes,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    (tmp_path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    place = str(tmp_path) if name == "index.json" else str(path)
    said = main(*(word.replace("{}", place) for word in words.split()))
    assert said.code not in {70, 130}, said.err
    assert_harmless(said.out)
    assert_harmless(said.err)


ARGUMENTS = [
    ["plan", "--cuda", TYPED],
    ["plan", "--host", TYPED],
    ["plan", "--gpu", TYPED],
    ["plan", f"--{TYPED}"],
    ["plan", "--ca-bundle", TYPED],
    ["lock", "--output", f"{TYPED}/pylock.toml"],
    ["build", "--lock", TYPED],
    ["build", "--tag", TYPED],
    ["build", "--dry-run", "--base", f"oci:{TYPED}"],
    ["inspect", f"./{TYPED}"],
    ["inspect", f"oci:./{TYPED}"],
    ["inspect", f"{TYPED}.whl"],
    ["inspect", TYPED],
    ["verify", TYPED],
    ["verify", f"oci-archive:{TYPED}"],
    ["verify", "x", "--check-record", TYPED, "--trust", TYPED],
    ["verify", "x", "--report", f"{TYPED}/report.json"],
    ["verify", "x", "--only", TYPED],
    ["doctor", TYPED],
    ["doctor", f"./{TYPED}"],
    ["doctor", "--log", TYPED],
    ["doctor", "--bundle", TYPED],
    ["doctor", "--undo", TYPED],
    ["doctor", "explain", TYPED],
    ["doctor", "collect", f"{TYPED}/x.tar.gz"],
    ["catalog", "show", TYPED, TYPED],
    ["catalog", "measure", f"{TYPED}.whl"],
    ["store", "gc", "--max-size", TYPED],
    [TYPED],
]


@pytest.mark.parametrize("words", ARGUMENTS, ids=lambda words: " ".join(map(ascii, words)))
def test_what_is_typed_does_not_steer_the_terminal(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    said = main(*words)
    assert said.code not in {0, 70, 130}, said.err
    assert_harmless(said.out)
    assert_harmless(said.err)


def test_names_in_a_cause_and_its_commands_are_printable() -> None:
    text = "ERROR: a\x07b\x9b31m\u202ec.whl is not a supported wheel on this platform."
    diagnosis = diagnose([("run.log", text)])
    assert diagnosis.causes
    for cause in diagnosis.causes:
        assert_harmless(cause.title + cause.cause + cause.confirm)
        assert_harmless("".join(fix.note + fix.run for fix in cause.fixes))


# --- what an image says of itself -----------------------------------------------------------------


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = Engine()
    monkeypatch.setattr("images.engines.docker.Docker.connect", lambda **_: found)
    monkeypatch.setattr("provision.host.detect", lambda: FACTS)
    # Reading the real one for the cause of a failure takes 0.6 s.
    machine = ProbedMachine(root=tmp_path / "machine", env={})
    monkeypatch.setattr("provision.doctor.this_machine.this_machine", lambda: machine)
    return found


def _evil_texts(verdict: str) -> Any:
    """A report whose every text is evil; its shape is right."""
    found = report(verdict)
    for row in found["checks"]:
        row.update(title=EVIL, message=f"{EVIL} libcudart.so: cannot open shared object file")
        if row["cause"] is not None:
            row.update(cause=EVIL, fix=EVIL)
        row["measured"]["output"] = EVIL
    for name in ("kernel", "arch", "glibc", "container", "driver"):
        found["environment"][name] = EVIL
    return found


SAID_BY_AN_IMAGE = [
    *(
        (f"a report that is {verdict}", says(_evil_texts(verdict)))
        for verdict in ("fit", "unfit", "no-verdict")
    ),
    ("a verdict", claims({**report(), "verdict": EVIL})),
    ("a level", claims({**report(), "level": EVIL})),
    ("a status", claims({**report(), "checks": [{**report()["checks"][0], "status": EVIL}]})),
    (
        "an id, and a member",
        claims({**report(), "checks": [{**report()["checks"][0], EVIL: EVIL, "id": EVIL}]}),
    ),
    ("no report at all", lambda _: ended(0, EVIL, EVIL)),
    ("an engine's error", broken(EVIL)),
]


@cases("said_by", *SAID_BY_AN_IMAGE)
@pytest.mark.parametrize("words", [[], ["-v"], ["--json"]], ids=["plain", "verbose", "as JSON"])
def test_what_an_image_says_does_not_steer_the_terminal(
    engine: Engine, said_by: Runner, words: list[str]
) -> None:
    engine.suite = said_by
    engine.lines = [f"1/2  fail  {EVIL}", EVIL]
    for command in (["verify", TAG], ["verify", TAG, "--check-record"]):
        said = main(*command, *words)
        assert said.code not in {70, 130}, said.err
        assert_harmless(said.out)
        assert_harmless(said.err)


@pytest.mark.parametrize("words", [[], ["--json"]], ids=["plain", "as JSON"])
def test_what_a_record_says_does_not_steer_the_terminal(
    engine: Engine, tmp_path: Path, words: list[str]
) -> None:
    def edit(predicate: Any) -> None:
        host = predicate["host"]
        host.update(driver=EVIL, kernel=EVIL, engine=EVIL, arch=EVIL)
        host["gpus"][0]["name"] = EVIL

    del engine
    record = tmp_path / "record.json"
    assert main("verify", TAG, "--record", str(record)).code == 0
    forge_record(record, edit, tmp_path / "state" / "gpu-provision")
    said = main("verify", TAG, "--check-record", str(record), *words)
    assert said.code == 2, "no text of a record is unprintable"
    assert_harmless(said.out)
    assert_harmless(said.err)


@pytest.mark.parametrize("command", [["render"], ["judge"], ["judge", "--json"]], ids=" ".join)
@pytest.mark.parametrize("verdict", ["fit", "unfit"])
def test_the_suite_s_own_commands_do_not_steer_the_terminal(
    command: list[str], verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(_evil_texts(verdict)))
    suite.main([*command, str(path)])
    suite.main(["compare", str(path), str(path)])
    path.write_text(json.dumps({**report(), "level": EVIL}))
    suite.main([*command, str(path)])
    said = capsys.readouterr()
    assert_harmless(said.out)
    assert_harmless(said.err)


def test_a_report_printed_by_the_suite_keeps_its_characters() -> None:
    found = _evil_texts("unfit")
    text = dump(found)
    assert json.loads(text) == found
    assert_harmless(text)
