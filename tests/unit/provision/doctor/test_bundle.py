"""Bundles: the same facts as on the machine, no secret in them, and nothing that harms."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from provision.doctor import bundle
from provision.doctor.bundle import collect, open_bundle, without_gateways, without_serial
from provision.doctor.probes import kernel_log, read_facts, source_of
from provision.doctor.redact import Redactor
from provision.errors import BadInputError
from provision.host.machine import Answer, ProbedMachine, Question, Remembering
from provision.host.nvml import load_nvml
from provision.host.runner import local_runner
from tests.kit.cases import cases
from tests.kit.doctor_hosts import NAMES, build, config_with_acs, load_host

SECRETS = (
    "hunter2",
    "s3cr3tpw",
    "topsecret99",
    "abcdef123456",
    "pw123456",
    "proxy.corp.example",
    "pypi.corp.example",
    "mirror.example",
    "gpu-box-17",
    "dgx-lab-3",
    "alice",
    "carol",
    "frank",
    "3c:7c:3f:12:34:56",
    "10.20.30.40",
    "10.9.8.0",
    "fe80::3e7c",
    "0a1b2c3d-4e5f",
    "551720f0-caf0",
    "1654923001234",
    "W36L:DKYH",
)


def everything(path: Path) -> bytes:
    """All that a bundle holds: names and contents."""
    with tarfile.open(path) as tar:
        files = [(one.name, tar.extractfile(one)) for one in tar]
        return b"\n".join(
            name.encode() + b"\n" + (file.read() if file else b"") for name, file in files
        )


@pytest.mark.parametrize("name", NAMES)
def test_a_bundle_gives_the_facts_of_the_machine(name: str, tmp_path: Path) -> None:
    machine = build(load_host(name), tmp_path / "host")
    out = tmp_path / "bundle.tar.gz"
    collect(machine, out)
    with open_bundle(out) as again:
        facts = read_facts(again)
        assert (kernel_log(again) is None) == (name != "ubuntu-workstation")
    here = read_facts(machine)
    assert set(facts) == set(here)
    # they hold a user's or a host's name
    told = {"docker.root_dir", "network.index_configured", "machine.name"}
    differing = {one for one in here if here[one].value != facts[one].value}
    assert {one for one in differing if not one.endswith("free_mib")} <= told


def test_a_bundle_of_this_machine_gives_its_facts(tmp_path: Path) -> None:
    env = dict(os.environ)
    machine = ProbedMachine(env=env, run=local_runner(env))
    # Whoever works beside this test changes the machine (an engine's interfaces, free space), and
    # may slow it: it is asked once, without hurry, and both are told that.
    asked = ProbedMachine(env=env, source=Remembering(source_of(machine, load_nvml)))
    here = read_facts(asked, limit_s=300.0)
    out = tmp_path / "bundle.tar.gz"
    collect(asked, out)
    with open_bundle(out) as again:
        facts = read_facts(again)
    assert set(facts) == set(here)
    named = {"docker.root_dir", "network.index_configured", "library.path", "machine.name"}
    assert {one for one in here if here[one].value != facts[one].value} <= named


@pytest.mark.parametrize("name", NAMES)
def test_no_secret_survives(name: str, tmp_path: Path) -> None:
    machine = build(load_host(name), tmp_path / "host")
    out = tmp_path / "bundle.tar.gz"
    collect(machine, out)
    content = everything(out).lower()
    assert not [word for word in SECRETS if word.lower().encode() in content]


def test_the_secrets_are_there_before() -> None:
    seen = "".join(json.dumps(load_host(name)) for name in NAMES)
    assert not [word for word in SECRETS if word not in seen]


def test_the_same_word_gets_the_same_replacement() -> None:
    redactor = Redactor(users=["alice"], hosts=["gpu-box-17.corp.example"])
    text = "alice@gpu-box-17 /home/alice ALICE gpu-box-17.corp.example 10.1.2.3 10.1.2.3 10.1.2.4"
    assert redactor.text(text) == (
        "user-1@host-1 /home/user-1 user-1 host-1 192.0.2.1 192.0.2.1 192.0.2.2"
    )


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("http://bob:pw@x.corp.example/a", "http://redacted@host-1/a"),
        ("https://developer.download.nvidia.com/x", "https://developer.download.nvidia.com/x"),
        ("token=abcdefgh rest", "token=secret-1 rest"),
        ('"api_key": "abc123"', '"api_key": "secret-1"'),
        ("Authorization: Bearer abcdefghijkl", "Authorization: Bearer secret-1"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "secret-1"),
        ("write to jo.doe@mail.example now", "write to mail-1@example.org now"),
        ("GPU-551720f0-caf0-22b7-f525-2a51a6ab478d", "GPU-00000000-0000-0000-0000-000000000001"),
        ("Serial Number : 1654923001234", "Serial Number : serial-1"),
        ("<serial>1654923001234</serial>", "<serial>serial-1</serial>"),
        ("<pdi>0x639cf05a263dc856</pdi>", "<pdi>serial-1</pdi>"),
        ("    GPU PDI       : 0x639cf05a263dc856", "    GPU PDI       : serial-1"),
        ("link/ether 3c:7c:3f:12:34:56 up", "link/ether 02:00:00:00:00:01 up"),
        ("from 10.0.0.1-10.0.0.9 on", "from 192.0.2.1-192.0.2.2 on"),
        ("addr 2001:4860:4860::8888 up", "addr 2001:db8::1 up"),
        (
            "hook #1:: ends, abc::def, fe80:: fd12::",
            "hook #1:: ends, abc::def, 2001:db8::1 2001:db8::2",
        ),
        ("x@libfoo.so.12 npm@4.17.21", "x@libfoo.so.12 npm@4.17.21"),
        ("me@corp.so me@10.0.0.1", "mail-1@example.org mail-2@example.org"),
        ("127.0.0.1 ::1 0.0.0.0 localhost root", "127.0.0.1 ::1 0.0.0.0 localhost root"),
        ("libcudnn.so.8.9.7.29", "libcudnn.so.8.9.7.29"),
        ("nvidia_cudnn_cu12-9.1.0.70.dist-info", "nvidia_cudnn_cu12-9.1.0.70.dist-info"),
        ("0000:01:00.0 at 12:34:56", "0000:01:00.0 at 12:34:56"),
        ("SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c",) * 2,
        ("driver 550.54.15 std::vector c10::Error", "driver 550.54.15 std::vector c10::Error"),
    ],
)
def test_what_identifies_is_replaced_in_its_own_shape(text: str, redacted: str) -> None:
    assert Redactor().text(text) == redacted


LOGINS = {
    "the usual address": "http://bob:hunter2@proxy.corp.example:3128",
    "no scheme": "bob:hunter2@proxy.corp.example:3128",
    "no password": "http://hunter2@proxy.corp.example:3128",
    "a slash in the password": "http://bob:x/hunter2@proxy.corp.example:3128",
    "a port and a slash in the password": "http://bob:80/hunter2@proxy.corp.example:3128",
    "an @ in the password": "http://bob:x@hunter2@proxy.corp.example:3128",
    "a blank in the password": "http://bob:x hunter2@proxy.corp.example:3128",
    "a ? and a # in the password": "http://bob:?x#hunter2@proxy.corp.example:3128",
    "all of them and no scheme": "bob:@/ ?hunter2@proxy.corp.example:3128",
    "a token in the query": "http://proxy.corp.example:3128/?t=hunter2",
    "no host": "http://bob:hunter2",
    "no host and no scheme": "bob:hunter2",
    "a host that is none": "http://bob:hunter2@:x",
}
PLACES = {
    "a drop-in of systemd": 'Environment="HTTP_PROXY={}" "NO_PROXY=localhost"\n',
    "a drop-in without quotes": "Environment=HTTPS_PROXY={}\n",
    "docker info": '{{"HttpProxy":"{}","NoProxy":"localhost","Name":"x"}}',
    "daemon.json": '{{"proxies": {{\n "https-proxy": "{}"\n}}, "userland-proxy": false}}',
    "a container's environment": '{{"Env":["all_proxy={}","A=b"]}}',
    "pip.conf": "[global]\nextra-index-url = {}\nproxy = x\n",
    "apt.conf": 'Acquire::http::Proxy "{}";\n',
    "a shell's file": "export Https_Proxy='{}'\n",
    "a variable of uv": "UV_DEFAULT_INDEX={}\n",
    "a variable of pip": "PIP_EXTRA_INDEX_URL={}\n",
    "docker info as text": " HTTPS Proxy={}\n",
}


@pytest.mark.parametrize("value", LOGINS.values(), ids=LOGINS)
def test_no_login_of_a_variable_survives(value: str, tmp_path: Path) -> None:
    machine = build(load_host("dgx"), tmp_path / "host")
    out = tmp_path / "bundle.tar.gz"
    names = ("http_proxy", "HTTPS_PROXY", "all_proxy", "PIP_INDEX_URL", "UV_DEFAULT_INDEX")
    env = {**machine.env, **dict.fromkeys(names, value)}
    collect(ProbedMachine(env=env, source=machine.source), out)
    content = everything(out)
    assert b"hunter2" not in content
    assert b"proxy.corp.example" not in content
    with open_bundle(out) as again:
        assert all(again.env[name] for name in names)


@pytest.mark.parametrize("value", LOGINS.values(), ids=LOGINS)
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_no_login_of_a_file_or_a_programs_output_survives(place: str, value: str) -> None:
    text = Redactor().text(place.format(value))
    assert "hunter2" not in text
    assert "corp.example" not in text
    if place.startswith("{") and "proxies" in place:
        assert json.loads(text)["userland-proxy"] is False
    elif place.startswith("{"):
        assert json.loads(text)


@cases(
    "name value kept",
    ("an address", "http_proxy", "http://10.0.0.1:3128", "http://192.0.2.1:3128"),
    ("no scheme and no login", "http_proxy", "localhost:3128", "localhost:3128"),
    ("an IPv6 address", "http_proxy", "http://[::1]:3128", "http://[::1]:3128"),
    ("nothing", "http_proxy", "", ""),
    ("what needs no proxy", "no_proxy", "localhost,.svc", "localhost,.svc"),
    ("a file of pip's", "PIP_CERT", "/etc/ca.pem", "/etc/ca.pem"),
    ("a public index", "UV_INDEX_URL", "https://download.pytorch.org/whl/cu126",
     "https://download.pytorch.org/whl/cu126"),
    ("a socket", "DOCKER_HOST", "unix:///run/d.sock", "unix:///run/d.sock"),
    ("a word of NCCL's", "NCCL_DEBUG", "INFO", "INFO"),
    ("the version, of NVIDIA's images", "NCCL_VERSION", "2.28.3-1", "2.28.3-1"),
    ("a number of NCCL's", "NCCL_P2P_DISABLE", "1", "1"),
    ("interfaces", "NCCL_SOCKET_IFNAME", "^lo,docker0", "^lo,docker0"),
    ("adapters", "NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1", "=mlx5_0:1,mlx5_1:1"),
    ("algorithms", "NCCL_ALGO", "allreduce:tree,ring", "allreduce:tree,ring"),
    ("another word in a known setting", "NCCL_DEBUG", "hunter2", "secret-1"),
    ("no interface", "NCCL_SOCKET_IFNAME", "hunter2", "secret-1"),
    ("no number", "NCCL_P2P_DISABLE", "hunter2", "secret-1"),
    ("a setting that NCCL does not have", "NCCL_MINE", "1", "secret-1"),
    ("a file of NCCL's", "NCCL_TOPO_FILE", "/mnt/hunter2", "secret-1"),
)  # fmt: skip
def test_of_a_variable_only_what_is_harmless_is_kept(name: str, value: str, kept: str) -> None:
    redactor = Redactor()
    assert redactor.variable(name, value) == kept
    if name.startswith("NCCL_"):
        assert redactor.text(f"Environment={name}={value} A=b") == f"Environment={name}={kept} A=b"


@pytest.mark.parametrize(
    "text",
    [
        "NCCL INFO proxy: [1,2] -1 rank 3",
        "nvidia: the index: -1 is out of range",
        '{"userland-proxy": false, "http-proxy": null}',
        "docker://registry:5000/img@sha256:abcd",
        "git+https://developer.download.nvidia.com/x@v1",
        "/usr/bin/docker-proxy -proto tcp -host-port 80",
    ],
)
def test_a_text_without_a_login_stays_as_it_is(text: str) -> None:
    assert Redactor().text(text) == text


def test_routes_lose_their_addresses_and_keep_the_way_out() -> None:
    head = b"Iface\tDestination\tGateway\tFlags\tRef\tUse\tMetric\tMask\n"
    out = b"eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\n"
    routes = head + out + b"eth0\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\n"
    found = without_gateways(routes)
    assert b"A8C0" not in found
    assert b"eth0\t00000000\t00000000\t0003" in found


def test_a_configuration_space_loses_its_serial_number_and_keeps_acs() -> None:
    config = config_with_acs(0x0C)
    found = without_serial(config)
    assert b"\x88\x77\x66\x55" in config
    assert b"\x88\x77\x66\x55" not in found
    assert found[0x110:] == config[0x110:]


def test_bytes_that_are_no_text_stay_as_they_are() -> None:
    data = bytes(range(256))
    assert Redactor().data(data) == data


def test_a_bundle_is_readable_by_its_owner_only_and_says_what_it_is(tmp_path: Path) -> None:
    out = tmp_path / "bundle.tar.gz"
    collect(build(load_host("dgx"), tmp_path / "host"), out)
    assert out.stat().st_mode & 0o777 == 0o600
    with tarfile.open(out) as tar:
        file = tar.extractfile("manifest.json")
        assert file is not None
        manifest = json.load(file)
    assert manifest["format"] == 1
    assert manifest["redacted"]["uuid"] == 1
    assert manifest["redacted"]["host"] >= 1


def test_a_bundle_keeps_only_the_variables_that_probes_read(tmp_path: Path) -> None:
    machine = build(load_host("dgx"), tmp_path / "host")
    env = {**machine.env, "AWS_SECRET_ACCESS_KEY": "x" * 20, "NCCL_DEBUG": "INFO"}
    out = tmp_path / "bundle.tar.gz"
    collect(ProbedMachine(env=env, source=machine.source), out)
    with open_bundle(out) as again:
        assert set(again.env) == {*machine.env, "NCCL_DEBUG"} - {"no_proxy"}
    assert b"AWS_SECRET" not in everything(out)


def test_the_same_answers_give_the_same_members(tmp_path: Path) -> None:
    machine = build(load_host("dgx"), tmp_path / "host")
    frozen: dict[Question, Answer] = {}

    def ask(question: Question) -> Answer:
        assert machine.source is not None
        if question not in frozen:
            frozen[question] = machine.source(question)
        return frozen[question]

    contents = []
    for name in ("a", "b"):
        collect(ProbedMachine(env=machine.env, source=ask), tmp_path / name)
        with tarfile.open(tmp_path / name) as tar:
            contents.append([(one.name, one.mtime, one.size) for one in tar])
    assert contents[0] == contents[1]


# --- hostile bundles ----------------------------------------------------------------------------


def tar_gz(path: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for entry, data in entries:
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def member(name: str, data: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(entry, field, value)
    return entry, data


def whole(**changed: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    parts: Mapping[str, bytes] = {
        "manifest": b'{"format": 1}',
        "environment": b"{}",
        "answers": b"[]",
        **changed,
    }
    return [member(f"{name}.json", data) for name, data in parts.items()]


HOSTILE: dict[str, Callable[[Path], object]] = {
    "an absolute path": lambda p: tar_gz(p, member("/etc/evil", b"x")),
    "a path that leads out": lambda p: tar_gz(p, member("a/../../evil", b"x")),
    "a symbolic link": lambda p: tar_gz(p, member("a", type=tarfile.SYMTYPE, linkname="/etc")),
    "a hard link": lambda p: tar_gz(p, member("a", type=tarfile.LNKTYPE, linkname="/etc/passwd")),
    "a device": lambda p: tar_gz(p, member("a", type=tarfile.CHRTYPE, devmajor=1, devminor=3)),
    "a pipe": lambda p: tar_gz(p, member("a", type=tarfile.FIFOTYPE)),
    "a folder": lambda p: tar_gz(p, member("a", type=tarfile.DIRTYPE)),
    "a name twice": lambda p: tar_gz(p, member("a", b"1"), member("a", b"2")),
    "no gzip": lambda p: p.write_bytes(b"hello"),
    "nothing": lambda p: p.write_bytes(b""),
    "no tar": lambda p: p.write_bytes(gzip.compress(b"hello" * 1000)),
    "a broken end": lambda p: p.write_bytes(gzip.compress(os.urandom(5000))[:-900]),
    "no answers": lambda p: tar_gz(p, *whole()[:2]),
    "answers of another shape": lambda p: tar_gz(p, *whole(answers=b'[[["read"], {}]]')),
    "questions that are no words": lambda p: tar_gz(p, *whole(answers=b"[[[1], 2]]")),
    "answers without an operation": lambda p: tar_gz(p, *whole(answers=b"[[[], 2]]")),
    "a member that is not there": lambda p: tar_gz(
        p, *whole(answers=b'[[["read", "/a", "9"], {"member": "b"}]]')
    ),
    "a command of another shape": lambda p: tar_gz(p, *whole(answers=b'[[["run", "4", "a"], 5]]')),
    "json without an end": lambda p: tar_gz(p, *whole(answers=b"[" * 100_000)),
    "an environment of numbers": lambda p: tar_gz(p, *whole(environment=b'{"A": 1}')),
    "another version": lambda p: tar_gz(p, *whole(manifest=b'{"format": 99}')),
    "a manifest that is a list": lambda p: tar_gz(p, *whole(manifest=b"[]")),
    "text that is no text": lambda p: tar_gz(p, *whole(answers=b"\xff\xfe")),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_bundle_is_refused_with_a_sentence(name: str, tmp_path: Path) -> None:
    path = tmp_path / "in" / "bundle.tar.gz"
    path.parent.mkdir()
    HOSTILE[name](path)
    with (
        pytest.raises(BadInputError, match="cannot be read as a bundle") as caught,
        open_bundle(path),
    ):
        pass
    assert caught.value.fix
    assert sorted(tmp_path.rglob("*")) == [path.parent, path]


def test_a_bundle_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="There is no bundle"), open_bundle(tmp_path / "none"):
        pass


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "TOTAL_LIMIT_BYTES", 1 << 20)
    monkeypatch.setattr(bundle, "MEMBER_LIMIT_BYTES", 1 << 19)
    huge = tar_gz(tmp_path / "huge", member("a", bytes(1 << 20)))
    with pytest.raises(BadInputError, match="larger than"), open_bundle(huge):
        pass
    many = tar_gz(tmp_path / "many", *(member(f"a{i}", bytes(1 << 18)) for i in range(5)))
    with pytest.raises(BadInputError, match="unpacks to more than"), open_bundle(many):
        pass
    header = tar_gz(tmp_path / "header", member("a", pax_headers={"x": "y" * (2 << 20)}))
    with pytest.raises(BadInputError, match="unpacks to more than"), open_bundle(header):
        pass


def test_answers_of_any_shape_break_no_probe(tmp_path: Path) -> None:
    source = build(load_host("ubuntu-workstation"), tmp_path).source
    assert source is not None
    asked: list[Question] = []

    def ask(question: Question) -> Answer:
        asked.append(question)
        return source(question)

    read_facts(ProbedMachine(env=load_host("ubuntu-workstation")["env"], source=ask))
    shapes: tuple[Answer, ...] = (1, True, "x", [], {}, [1, {}], {"kind": 1, "gpus": [1, {}]}, b"x")
    for shape in shapes:
        shaped: Any = lambda _, shape=shape: shape  # noqa: E731
        machine = ProbedMachine(env={"PATH": "/usr/bin"}, source=shaped)
        facts = read_facts(machine)
        assert all(fact.where for fact in facts.values())
