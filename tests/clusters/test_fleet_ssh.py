"""`provision fleet detect --on ssh:FILE` against Debian's own sshd, as it is typed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provision.model.facts import parse_host
from tests import ROOT, need
from tests.clusters.ssh_servers import SshServers, free_port, ssh_servers
from tests.kit.programs import run_program

LIMIT_S = 240

# A node whose python3 is old: the real interpreter under another version.
OLD_PYTHON = (
    'exec python3 -c \'import sys; sys.version_info = (3, 6, 9, "final", 0); '
    'exec(compile(sys.stdin.read(), "-", "exec"), {"__name__": "__main__"})\'\n'
)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[SshServers]:
    with ssh_servers(tmp_path) as found:
        yield found


def argv(servers: SshServers, *lines: str, more: tuple[str, ...] = ()) -> list[str]:
    (servers.place / "hosts").write_text("".join(f"{line}\n" for line in lines))
    words = ["fleet", "detect", "--on", f"ssh:{servers.place / 'hosts'}", "--output"]
    words += [str(servers.place / "out"), "--ssh-config", str(servers.config), *more]
    return [sys.executable, "-m", "provision", *words]


def detect(
    servers: SshServers, *lines: str, more: tuple[str, ...] = ()
) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and each node by its name."""
    words = [*argv(servers, *lines, more=more), "--json"]
    done = run_program(words, cwd=ROOT, timeout=LIMIT_S)
    assert "Traceback" not in done.stderr
    return done.returncode, {one["name"]: one for one in json.loads(done.stdout)["nodes"]}


def test_every_kind_of_trouble_is_named_and_the_good_node_is_read(servers: SshServers) -> None:
    other = servers.start("other")
    ports = {
        "good": servers.start("good"),
        "refused": servers.start("refused", allows="other"),
        "changed": servers.start("changed", known="other"),
        "unknown": servers.start("unknown", known=None),
        "no-python": servers.start("no-python", SetEnv="PATH=/nowhere"),
        "old": servers.start("old", **servers.force("old", OLD_PYTHON)),
        "noisy": servers.start(
            "noisy", **servers.force("noisy", 'echo "Welcome to {host}"; exec python3 -\n')
        ),
        "breaks": servers.start(
            "breaks", **servers.force("breaks", "echo disk full >&2; exit 9\n")
        ),
        "closed": free_port(),
        "second": other,
    }
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never says a word
        ports["silent"] = silent.getsockname()[1]
        lines = [f"127.0.0.1:{port}" for port in ports.values()]
        code, nodes = detect(servers, "# a comment", *lines, more=("--timeout", "240"))
    names = {f"127.0.0.1-{port}": name for name, port in ports.items()}
    assert {names[name]: one["code"] for name, one in nodes.items()} == {
        "good": None, "second": None, "noisy": None, "refused": "login-refused",
        "changed": "host-key-changed", "unknown": "host-key-unknown", "no-python": "no-python",
        "old": "python-too-old", "breaks": "node-failed", "closed": "connection-refused",
        "silent": "node-silent",
    }  # fmt: skip
    assert code == 5
    for name, one in nodes.items():
        path = servers.place / "out" / f"{name}.json"
        assert (one["status"] == "read") == path.exists()
        assert one["code"] is None or (name in one["message"] and one["fix"])
        if path.exists():
            facts = parse_host(path.read_text(), label=name)
            assert facts.arch == os.uname().machine
            assert facts.glibc is not None
    broken = nodes[f"127.0.0.1-{ports['breaks']}"]
    assert "disk full" in broken["message"]
    hangs = servers.start("hangs", **servers.force("hangs", "exec sleep 600\n"))
    code, nodes = detect(servers, f"127.0.0.1:{hangs}", more=("--timeout", "1"))
    assert (code, nodes["127.0.0.1"]["code"]) == (5, "node-timeout")
    assert "--timeout" in nodes["127.0.0.1"]["fix"]
    assert not list((servers.place / "out").glob(".partial-*"))


def test_nodes_with_a_host_file_are_not_asked_again(servers: SshServers) -> None:
    script = f"echo x >> {servers.place / 'asked'}; exec python3 -\n"
    first = servers.start("first", **servers.force("first", script))
    second = free_port()
    lines = (f"127.0.0.1:{first}", f"127.0.0.1:{second}")
    one, two = f"127.0.0.1-{first}", f"127.0.0.1-{second}"
    code, nodes = detect(servers, *lines)
    assert (code, nodes[one]["status"], nodes[two]["status"]) == (5, "read", "failed")
    code, nodes = detect(servers, *lines)
    assert (code, nodes[one]["status"], nodes[two]["status"]) == (5, "kept", "failed")
    assert (servers.place / "asked").read_text() == "x\n"
    (servers.place / "out" / f"{one}.json").write_text("{")  # damaged: asked again
    code, nodes = detect(servers, lines[0])
    assert (code, nodes["127.0.0.1"]["status"]) == (0, "read")
    shutil.rmtree(servers.place / "out")
    detect(servers, *lines)
    code, nodes = detect(servers, *lines, more=("--again",))
    assert (code, nodes[one]["status"]) == (5, "read")
    assert (servers.place / "asked").read_text() == "x\n" * 4


def test_an_interrupted_run_ends_soon_and_leaves_whole_files(servers: SshServers) -> None:
    good = servers.start("good")
    hangs = servers.start("hangs", **servers.force("hangs", "exec sleep 600\n"))
    lines = (f"127.0.0.1:{good}", f"127.0.0.1:{hangs}")
    path = servers.place / "out" / f"127.0.0.1-{good}.json"
    words = argv(servers, *lines, more=("--timeout", "600"))
    process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + LIMIT_S
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert parse_host(path.read_text(), label="good").arch
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_the_page_groups_what_has_the_same_fix(servers: SshServers) -> None:
    good = servers.start("good")
    closed = [free_port(), free_port()]
    lines = [f"127.0.0.1:{port}" for port in (good, *closed)]
    done = run_program(argv(servers, *lines), cwd=ROOT, timeout=LIMIT_S)
    assert done.returncode == 5
    assert "read        1 of 3 nodes" in done.stdout
    assert done.stdout.count("refuses the connection") == 2
    assert done.stdout.count("\nfix ") == 1
    assert f"next: provision fleet plan {servers.place / 'out'}" in done.stdout


def smi(servers: SshServers, name: str, driver: str, gpu: str, capability: str) -> dict[str, str]:
    """The option of a server on whose PATH nvidia-smi shows two GPUs, as the real one prints."""
    folder = servers.place / f"bin-{name}"
    folder.mkdir()
    rows = "".join(f"{gpu}, GPU-{n}, {capability}, 81920, [N/A]\\n" for n in range(2))
    program = folder / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\ncase \"$*\" in\n*query-gpu*) printf '{rows}' ;;\n"
        f"*) echo '| NVIDIA-SMI {driver}  Driver Version: {driver}  CUDA Version: 12.2 |';;\nesac\n"
    )
    program.chmod(0o755)
    return {"SetEnv": f"PATH={folder}:/usr/bin:/bin"}


def test_what_was_read_is_planned(servers: SshServers) -> None:
    """From four nodes of three kinds to two images, each with its command."""
    need.no_gpu()
    ports = {
        "a": servers.start("a", **smi(servers, "a", "535.104.05", "NVIDIA A100-PCIE-40GB", "8.0")),
        "b": servers.start("b", **smi(servers, "b", "535.104.05", "NVIDIA A100-PCIE-40GB", "8.0")),
        "c": servers.start("c", **smi(servers, "c", "580.95.05", "NVIDIA B200", "10.0")),
        "d": servers.start("d", **smi(servers, "d", "470.82.01", "Tesla K80", "3.7")),
    }
    with servers.config.open("a") as config:
        for name, port in ports.items():
            config.write(f"Host node-{name}\n  HostName 127.0.0.1\n  Port {port}\n")
    code, nodes = detect(servers, *(f"node-{name}" for name in ports))
    assert code == 0, nodes
    words = [sys.executable, "-m", "provision", "fleet", "plan", str(servers.place / "out")]
    done = run_program([*words, "--json"], cwd=ROOT, timeout=LIMIT_S)
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert [one["nodes"] for one in found["images"]] == [["node-a", "node-b", "node-c"], ["node-d"]]
    assert found["fewest"]["proven"]
    assert [found["classes"][number]["nodes"][0] for number in found["fewest"]["apart"]] == [
        "node-c",
        "node-d",
    ]
