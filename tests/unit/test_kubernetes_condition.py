"""The node condition: templates/systemd/gpu-gate.sh asks the gate on the node, and the plugin of
templates/kubernetes/node-condition.yaml, run as Node Problem Detector runs it, reads the answer.

`provision` is a stand-in where its end is what matters; with the real gate a stand-in for the
engine says what the suite finds. The exit codes are those of
https://github.com/kubernetes/node-problem-detector/blob/master/pkg/custompluginmonitor/plugin/plugin.go
"""

from __future__ import annotations

import configparser
import json
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import yaml

from tests import ROOT
from tests.clusters.test_slurm_gate import PROVISION
from tests.kit.cases import cases
from tests.kit.exports import shellcheck
from tests.kit.fake_engine import TAG

DOCUMENTS = list(
    yaml.safe_load_all((ROOT / "templates/kubernetes/node-condition.yaml").read_text())
)
FILES: dict[str, str] = next(one for one in DOCUMENTS if one["kind"] == "ConfigMap")["data"]
POD: dict[str, Any] = DOCUMENTS[-1]["spec"]["template"]["spec"]
SYSTEMD = ROOT / "templates" / "systemd"
OK, UNFIT, UNKNOWN = 0, 1, 2


def variables() -> dict[str, str]:
    (container,) = POD["containers"]
    return {one["name"]: one["value"] for one in container["env"] if "value" in one}


def plugin(place: Path) -> tuple[int, str]:
    """The plugin's exit code, and its message; the answer is `place / "gate"`."""
    script = place / "gate.sh"
    script.write_text(FILES["gate.sh"])
    script.chmod(0o755)
    return run(script, **{**variables(), "ANSWER": str(place / "gate")})


def ask(place: Path, **env: str) -> None:
    """What the node's timer runs."""
    given = {"OPTIONS": "--no-test --max-age 12h", "IMAGE": TAG, "PROVISION": "", **env}
    names = ("OPTIONS", "IMAGE", "PROVISION")
    conf = place / "gate.conf"
    conf.write_text("".join(f"{name}={shlex.quote(given.pop(name))}\n" for name in names))
    env = {**given, "GATE_CONF": str(conf), "ANSWER": str(place / "gate")}
    assert run(SYSTEMD / "gpu-gate.sh", **env) == (0, "")


def run(script: Path, **env: str) -> tuple[int, str]:
    done = subprocess.run(
        [script],
        env={"PATH": "/usr/bin:/bin", **env},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
    )
    return done.returncode, done.stdout


@cases(
    "said code ends",
    ("open", "open: fit at level quick", 0, OK),
    ("closed", "closed: compute.gemm failed", 1, UNFIT),
    ("no record", "undecided: there is no record", 7, UNKNOWN),
    ("a broken image", "undecided: image at fault: unfit at level quick", 7, UNKNOWN),
    ("no such image", "undecided: no such image", 5, UNKNOWN),
    ("a program that does not start is no sick node", "", 1, UNKNOWN),
    ("an answer that says nothing", "", 0, UNKNOWN),
    ("a bug", "", 70, UNKNOWN),
)
def test_the_exit_code_is_one_that_node_problem_detector_knows(
    said: str, code: int, ends: int, tmp_path: Path
) -> None:
    program = tmp_path / "provision"
    program.write_text(
        f"#!/bin/sh\nprintf '%s\\n' \"$@\" >{tmp_path}/words\nprintf '%s' '{said}'\nexit {code}\n"
    )
    program.chmod(0o755)
    ask(tmp_path, PROVISION=f"{program} -x")
    found, message = plugin(tmp_path)
    assert found == ends
    assert message.strip()
    assert said in message
    words = (tmp_path / "words").read_text().split()
    assert words == ["-x", "gate", "--no-test", "--max-age", "12h", TAG]
    assert not (tmp_path / "gate.new").exists()


def test_the_timer_without_its_file_asks_nothing(tmp_path: Path) -> None:
    (tmp_path / "gate.conf").write_text("IMAGE=x\n")
    env = {"GATE_CONF": str(tmp_path / "gate.conf"), "ANSWER": str(tmp_path / "gate")}
    assert run(SYSTEMD / "gpu-gate.sh", **env) == (2, "")
    assert not (tmp_path / "gate").exists()


def test_a_node_without_provision_is_not_known(tmp_path: Path) -> None:
    ask(tmp_path, PROVISION="/nowhere/provision")
    found, message = plugin(tmp_path)
    assert found == UNKNOWN
    assert "exit code 127" in message


CLOSED = "closed: compute.gemm failed"


@cases(
    "answer ends says",
    ("an answer of now", "{now} 1 " + CLOSED, UNFIT, CLOSED),
    ("its first line counts", "{now} 1 " + CLOSED + "\nmore\n", UNFIT, CLOSED),
    ("one of the timer's last life", "{old} 1 " + CLOSED, UNKNOWN, "s old"),
    ("a clock was put back", "{future} 1 " + CLOSED, UNKNOWN, "of the future"),
    ("a code that contradicts", "{now} 1 open: fit", UNKNOWN, "open: fit"),
    ("no exit code", "{now} x closed: ", UNKNOWN, "closed"),
    ("half an answer", "{now} 1", UNKNOWN, "malformed"),
    ("a time alone", "{now}", UNKNOWN, "malformed"),
    ("nothing", "", UNKNOWN, "malformed"),
    ("no time", "closed: x y", UNKNOWN, "malformed"),
    ("a shell's words", "$(id) 1 closed: x", UNKNOWN, "malformed"),
    ("an arithmetic's words", "a[$(id)] 1 closed: x", UNKNOWN, "malformed"),
    ("a zero", "0 1 closed: x", UNKNOWN, "malformed"),
    ("a huge time", "99999999999999999999 1 closed: x", UNKNOWN, "malformed"),
    ("long", "{now} 1 closed: \x1b[2J" + "y" * 5000, UNFIT, "closed: [2Jy"),
    ("no file", None, UNKNOWN, "gpu-gate.timer"),
)
def test_what_the_plugin_makes_of_an_answer(
    answer: str | None, ends: int, says: str, tmp_path: Path
) -> None:
    if answer is not None:
        now = int(time.time())
        old = now - int(variables()["MAX_AGE_S"]) - 5
        (tmp_path / "gate").write_text(
            answer.replace("{now}", str(now))
            .replace("{old}", str(old))
            .replace("{future}", str(now + 3600))
        )
    found, message = plugin(tmp_path)
    assert found == ends, message
    assert says in message
    assert message.count("\n") == 1
    assert len(message) < 500
    assert message.strip().isprintable()


def test_the_condition_follows_the_real_gate(tmp_path: Path) -> None:
    program = tmp_path / "provision"
    program.write_text(PROVISION)
    program.chmod(0o755)
    says = tmp_path / "says"
    says.mkdir()
    env = {"SLURMD_NODENAME": "n0", "PROVISION": str(program), "HOME": str(tmp_path)}

    def tested(found: str) -> None:
        (says / "n0").write_text(found)
        ask(tmp_path, OPTIONS="--again", **env)
        ask(tmp_path, **env)

    ask(tmp_path, **env)
    assert plugin(tmp_path)[0] == UNKNOWN
    tested("fit")
    assert plugin(tmp_path)[0] == OK
    tested("unfit")
    found, message = plugin(tmp_path)
    assert found == UNFIT
    assert message.startswith("closed: ")
    tested("fit")
    assert plugin(tmp_path)[0] == OK


def seconds(text: str) -> int:
    number, unit = re.fullmatch(r"([0-9]+)(s|m)", text).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1, "m": 60}[unit]


def test_the_configuration_is_one_that_node_problem_detector_accepts() -> None:
    """Its own rules: pkg/custompluginmonitor/types/config.go, Validate."""
    found = json.loads(FILES["gate.json"])
    settings = found["pluginConfig"]
    assert found["plugin"] == "custom"
    assert found["source"]
    assert set(settings) <= {
        *("invoke_interval", "timeout", "max_output_length", "concurrency"),
        *("enable_message_change_based_condition_update", "skip_initial_status"),
    }
    conditions = {one["type"]: one for one in found["conditions"]}
    for rule in found["rules"]:
        assert set(rule) <= {"type", "condition", "reason", "path", "args", "timeout"}
        assert seconds(rule["timeout"]) <= seconds(settings["timeout"])
        assert rule["condition"] in conditions
        assert rule["reason"] != conditions[rule["condition"]]["reason"]
        assert rule["path"].startswith("/config/")
        assert rule["path"].removeprefix("/config/") in FILES
    assert seconds(settings["timeout"]) < seconds(settings["invoke_interval"])


def test_the_pod_has_what_the_script_reads_and_no_rights_on_the_node() -> None:
    (container,) = POD["containers"]
    assert set(re.findall(r"\$\{?#?([A-Z_]+)", FILES["gate.sh"])) <= set(variables())
    assert {one["name"]: one["mountPath"] for one in container["volumeMounts"]} == {
        "config": "/config",
        "gate": "/gate",
    }
    assert all(one["readOnly"] for one in container["volumeMounts"])
    volumes = {one["name"]: one for one in POD["volumes"]}
    assert volumes["config"]["configMap"]["defaultMode"] == 0o755
    assert [one["hostPath"]["path"] for one in POD["volumes"] if "hostPath" in one] == [
        "/run/gpu-provision"
    ]
    assert not {"hostPID", "hostNetwork", "hostIPC", "initContainers"} & set(POD)
    assert POD["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert any("custom-plugin-monitor=/config/gate.json" in one for one in container["command"])
    assert shellcheck(FILES["gate.sh"], "sh") == ""


def test_the_timer_writes_where_the_pod_reads() -> None:
    units = {}
    for name in ("gpu-gate.service", "gpu-gate.timer"):
        units[name] = configparser.ConfigParser(interpolation=None)
        units[name].optionxform = str  # type: ignore[assignment,method-assign]
        units[name].read(SYSTEMD / name)
    service = units["gpu-gate.service"]["Service"]
    assert service["RuntimeDirectory"] == "gpu-provision"
    assert ROOT / Path(service["ExecStart"]).relative_to("/opt/gpu-provision") == (
        SYSTEMD / "gpu-gate.sh"
    )
    script = (SYSTEMD / "gpu-gate.sh").read_text()
    assert "/run/gpu-provision/gate" in script
    assert variables()["ANSWER"] == "/gate/gate"
    assert shellcheck(script, "sh") == ""
    every = units["gpu-gate.timer"]["Timer"]["OnUnitInactiveSec"]
    assert int(variables()["MAX_AGE_S"]) >= 3 * 60 * int(every.removesuffix("min"))
