"""Host facts <-> JSON."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.errors import Exit, HostFileError
from provision.model.facts import SIZE_LIMIT_BYTES, host_to_json, parse_host, read_host_file
from provision.model.plan import Absent, Engine, Gpu, HostFacts
from tests import DATA
from tests.kit.cases import cases

HOSTS = DATA / "hosts"

texts = st.text(st.characters(codec="utf-8"), max_size=20).filter(str.isprintable)
maybe_texts = st.none() | texts
versions = st.lists(st.integers(0, 999), min_size=1, max_size=4).map(
    lambda parts: ".".join(map(str, parts))
)
pairs = st.tuples(st.integers(0, 99), st.integers(0, 99))
two_parts = pairs.map(lambda pair: f"{pair[0]}.{pair[1]}")
flags = st.none() | st.booleans()
gpus = st.builds(
    Gpu,
    name=maybe_texts,
    compute_capability=st.none() | pairs,
    memory_mib=st.none() | st.integers(0, 1 << 30),
    uuid=maybe_texts,
    mig=flags,
)
engines = st.builds(
    Engine,
    name=st.sampled_from(["docker", "podman"]),
    client=maybe_texts,
    server=maybe_texts,
    buildkit=maybe_texts,
    gpu_runtime=flags,
    cdi_devices=st.none() | st.lists(texts, max_size=3).map(tuple),
    problem=maybe_texts,
)
hosts = st.builds(
    HostFacts,
    driver=st.none() | versions,
    user_mode_driver=st.none() | versions,
    driver_cuda=st.none() | two_parts,
    arch=st.none() | st.sampled_from(["x86_64", "aarch64", "riscv64"]),
    glibc=st.none() | two_parts,
    os_id=maybe_texts,
    os_version=maybe_texts,
    python=st.none() | two_parts,
    wsl=flags,
    gpus=st.none() | st.lists(gpus, max_size=3).map(tuple),
    engines=st.none() | st.lists(engines, max_size=2).map(tuple),
    sources=st.dictionaries(texts, texts, max_size=3).map(lambda found: tuple(found.items())),
    absent=st.lists(st.builds(Absent, fact=texts, source=texts, reason=texts), max_size=3).map(
        tuple
    ),
    label=st.just("a file"),
)


@given(hosts)
def test_what_is_written_is_read_back_unchanged(facts: HostFacts) -> None:
    assert parse_host(json.dumps(host_to_json(facts)), label="a file") == facts


def refusal(text: str) -> HostFileError | None:
    try:
        parse_host(text, label="a file")
    except HostFileError as exc:
        return exc
    return None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*host_to_json(HostFacts()), "extra"]), json_values))
def test_whatever_the_fields_hold_the_answer_is_facts_or_a_named_problem(
    data: dict[str, object],
) -> None:
    refused = refusal(json.dumps(data))
    if refused is not None:
        assert refused.message.startswith("a file: ")
        assert refused.message.replace("\n", "").isprintable()
        assert refused.fix


@given(st.text())
def test_whatever_the_text_is_there_is_no_other_exception(text: str) -> None:
    refused = refusal(text)
    assert refused is None or refused.exit_code == Exit.USAGE


def test_the_documented_file_is_understood() -> None:
    assert read_host_file(str(HOSTS / "documented.json")) == HostFacts(
        driver="515.65.01",
        arch="x86_64",
        glibc="2.35",
        os_id="ubuntu",
        os_version="22.04",
        python="3.10",
        gpus=(Gpu(name="NVIDIA GeForce RTX 3090", compute_capability=(8, 6), memory_mib=24576),),
        label=str(HOSTS / "documented.json"),
    )


def test_keys_of_a_newer_version_are_ignored() -> None:
    facts = read_host_file(str(HOSTS / "newer.json"))
    assert facts.gpus == (Gpu(name="NVIDIA B200"),)
    assert facts.engines == (Engine(name="podman", client="5.4.0"),)
    assert (facts.os_id, facts.os_version) == ("debian", None)


@cases(
    "text expected",
    ("nothing stated is nothing known", "{}", HostFacts()),
    ("null GPUs are unknown", '{"gpus": null}', HostFacts()),
    ("no GPUs are none there", '{"gpus": []}', HostFacts(gpus=())),
    ("GPUs unnamed", '{"gpus": [{}, null]}', HostFacts(gpus=(Gpu(), Gpu()))),
    ("null OS is unknown", '{"os": null, "schema": 1}', HostFacts()),
    ("a branch is a driver", '{"driver": "470"}', HostFacts(driver="470")),
    ("last key wins", '{"driver": "1", "driver": "2"}', HostFacts(driver="2")),
    ("arm64 is aarch64", '{"arch": "arm64"}', HostFacts(arch="aarch64")),
    ("amd64 is x86_64", '{"arch": "amd64"}', HostFacts(arch="x86_64")),
    ("patch is dropped", '{"python": "3.10.12"}', HostFacts(python="3.10")),
    ("a row may lack its reason", '{"absent": [{"fact": "driver"}]}',
     HostFacts(absent=(Absent(fact="driver", source="", reason=""),))),
)  # fmt: skip
def test_what_is_missing_is_unknown_never_guessed(text: str, expected: HostFacts) -> None:
    assert parse_host(text, label="this host") == expected


MAJOR_MINOR = 'expected "major.minor", got'


@cases(
    "text problem",
    ("a capability without its dot", '{"gpus": [{"compute_capability": 86}]}',
     f"gpus[0].compute_capability: {MAJOR_MINOR} 86"),
    ("a capability as a number", '{"gpus": [{"compute_capability": 8.6}]}',
     f'gpus[0].compute_capability: {MAJOR_MINOR} 8.6; put it in quotes, as in "8.6"'),
    ("CUDA 12", '{"driver_cuda": "12"}', f'driver_cuda: {MAJOR_MINOR} "12"'),
    ("a driver in words", '{"driver": "latest"}',
     'driver: expected a driver version such as "515.65.01", got "latest"'),
    ("a driver and a newline", '{"driver": "515.65.01\\n"}', 'got "515.65.01\\n"'),
    ("digits of another script", '{"driver": "\\u0665\\u0661\\u0665.65"}', "driver: expected"),
    ("a driver without end", '{"driver": "%s"}' % ("1." * 99 + "1"), "1..."),
    ("a flag as 1", '{"wsl": 1}', "wsl: expected true, false or null, got 1"),
    ("an OS as text", '{"os": "ubuntu"}', 'os: expected an object, got "ubuntu"'),
    ("GPUs as an object", '{"gpus": {}}', "gpus: expected a list of at most"),
    ("a GPU as a number", '{"gpus": [7]}', "gpus[0]: expected an object, got 7"),
    ("terminal codes", '{"gpus": [{"name": "a\\u001b[2J"}]}', "gpus[0].name"),
    ("half a character", '{"gpus": [{"name": "\\ud800"}]}', "gpus[0].name"),
    ("less than nothing", '{"gpus": [{"memory_mib": -1}]}', "gpus[0].memory_mib"),
    ("memory as a flag", '{"gpus": [{"memory_mib": true}]}', "got true"),
    ("memory without end", '{"gpus": [{"memory_mib": 1e999}]}', "got Infinity"),
    ("an engine that we do not know", '{"engines": [{"name": "lxc"}]}',
     'engines[0].name: expected "docker" or "podman", got "lxc"'),
    ("a schema of the future", '{"schema": 2}', "schema: expected 1"),
    ("a schema as a flag", '{"schema": true}', "schema: expected 1"),
    ("a source as a number", '{"sources": {"driver": 3}}', "sources.driver"),
    ("NaN", '{"wsl": NaN}', "NaN is not a JSON number"),
    ("minus infinity", '{"wsl": -Infinity}', "-Infinity is not a JSON number"),
    ("a list", "[]", "expected a JSON object with host facts, got a list"),
    ("nothing", "", "is empty"),
    ("half a file", "{", "is not valid JSON"),
    ("brackets without end", "[" * 200_000, "nested too deeply"),
    ("an integer without end", '{"wsl": %s}' % ("9" * 9999), "a file: "),
    ("a file without end", " " * (SIZE_LIMIT_BYTES + 1), "larger than 1 MiB"),
)  # fmt: skip
def test_a_wrong_value_is_named_by_its_path(text: str, problem: str) -> None:
    with pytest.raises(HostFileError) as caught:
        parse_host(text, label="a file")
    assert problem in caught.value.message
    assert caught.value.exit_code == Exit.USAGE
    assert len(caught.value.message) < 400


def test_all_problems_of_one_file_come_together() -> None:
    with pytest.raises(HostFileError) as caught:
        read_host_file(str(HOSTS / "wrong.json"))
    first, *rest = caught.value.message.splitlines()
    assert first.endswith("wrong.json: 14 fields are wrong:")
    assert {line.split(":")[0].strip() for line in rest} == {
        "schema", "os", "arch", "driver", "driver_cuda", "wsl", "gpus[0].compute_capability",
        "gpus[1].compute_capability", "gpus[2]", "gpus[3].memory_mib", "gpus[3].mig",
        "engines[0].name", "sources", "absent",
    }  # fmt: skip


def test_a_thousand_problems_are_not_all_shown() -> None:
    text = json.dumps({"gpus": [7] * 1000})
    with pytest.raises(HostFileError, match="and 980 more") as caught:
        parse_host(text, label="a file")
    assert len(caught.value.message.splitlines()) == 22


def test_standard_input_is_read_for_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(b'{"driver": "535.104.05"}')

    monkeypatch.setattr("sys.stdin", Stdin())
    facts = read_host_file("-")
    assert facts == HostFacts(driver="535.104.05", label="standard input")


def test_a_pipe_is_as_good_as_a_file() -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b'{"wsl": true}')
    os.close(write_end)
    facts = read_host_file(f"/dev/fd/{read_end}")
    os.close(read_end)
    assert facts.wsl is True


def test_a_byte_order_mark_is_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("host.json").write_bytes(b'\xef\xbb\xbf{"driver": "470"}')
    assert read_host_file("host.json") == HostFacts()._replace(driver="470", label="host.json")


@cases(
    "name message fix",
    ("a missing file", "gone.json", "no host file", "provision detect --json"),
    ("a directory", ".", "is a directory", "inside it"),
    ("a binary", "binary", "is not UTF-8 text", "UTF-8"),
    ("a large file", "large", "larger than 1 MiB", "provision detect"),
    ("no directory", "binary/x", "cannot be read: Not a directory", "--host -"),
    ("a name that no file can have", "a\0b", "cannot be read", "--host -"),
)
def test_an_unreadable_file_says_what_to_do(
    tmp_path: Path, name: str, message: str, fix: str
) -> None:
    (tmp_path / "binary").write_bytes(b"\x7fELF\xff\xfe")
    (tmp_path / "large").write_bytes(b" " * (SIZE_LIMIT_BYTES + 1))
    with pytest.raises(HostFileError) as caught:
        read_host_file(str(tmp_path / name) if name != "." else str(tmp_path))
    assert message in caught.value.message
    assert fix in caught.value.fix


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_says_so(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    path.touch(mode=0o000)
    with pytest.raises(HostFileError, match="Permission denied"):
        read_host_file(str(path))
