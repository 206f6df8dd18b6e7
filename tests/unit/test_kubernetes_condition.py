"""templates/kubernetes/node-condition.yaml: its plugin, run as Node Problem Detector runs it.

`chroot` is a stand-in, and so is `provision` where its end is what matters; with the real gate a
stand-in for the engine says what the suite finds. The exit codes are those of
https://github.com/kubernetes/node-problem-detector/blob/master/pkg/custompluginmonitor/plugin/plugin.go
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT
from tests.clusters.test_slurm_gate import PROVISION
from tests.kit.exports import shellcheck
from tests.kit.fake_engine import TAG

DOCUMENTS = list(
    yaml.safe_load_all((ROOT / "templates/kubernetes/node-condition.yaml").read_text())
)
FILES: dict[str, str] = next(one for one in DOCUMENTS if one["kind"] == "ConfigMap")["data"]
POD: dict[str, Any] = DOCUMENTS[-1]["spec"]["template"]["spec"]
OK, UNFIT, UNKNOWN = 0, 1, 2


def plugin(place: Path, **env: str) -> tuple[int, str]:
    """The script's exit code, and its message."""
    script = place / "gate.sh"
    script.write_text(FILES["gate.sh"])
    script.chmod(0o755)
    chroot = place / "chroot"
    chroot.write_text('#!/bin/sh\n[ "$1" = /host ] || exit 125\nshift\nexec "$@"\n')
    chroot.chmod(0o755)
    given = {"HOST": "/host", "OPTIONS": "--max-age 12h", "IMAGE": TAG, **env}
    done = subprocess.run(
        [script],
        env={"PATH": f"{place}:/usr/bin:/bin", **given},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("said", "code", "ends"),
    [
        pytest.param("open: fit at level quick", 0, OK, id="open"),
        pytest.param("closed: compute.gemm failed", 1, UNFIT, id="closed"),
        pytest.param("undecided: there is no record", 7, UNKNOWN, id="no record"),
        pytest.param("undecided: no such image", 5, UNKNOWN, id="no such image"),
        pytest.param("", 1, UNKNOWN, id="a program that does not start is no sick node"),
        pytest.param("", 0, UNKNOWN, id="an answer that says nothing"),
        pytest.param("", 70, UNKNOWN, id="a bug"),
    ],
)
def test_the_exit_code_is_one_that_node_problem_detector_knows(
    said: str, code: int, ends: int, tmp_path: Path
) -> None:
    program = tmp_path / "provision"
    program.write_text(
        f"#!/bin/sh\nprintf '%s\\n' \"$@\" >{tmp_path}/words\nprintf '%s' '{said}'\nexit {code}\n"
    )
    program.chmod(0o755)
    found, message = plugin(tmp_path, PROVISION=f"{program} -x")
    assert found == ends
    assert message.strip()
    assert said in message
    words = (tmp_path / "words").read_text().split()
    assert words == ["-x", "gate", "--no-test", "--max-age", "12h", TAG]


def test_a_node_without_provision_is_not_known(tmp_path: Path) -> None:
    found, message = plugin(tmp_path, PROVISION="/nowhere/provision")
    assert found == UNKNOWN
    assert "exit code" in message


def test_the_condition_follows_the_real_gate(tmp_path: Path) -> None:
    program = tmp_path / "provision"
    program.write_text(PROVISION)
    program.chmod(0o755)
    says = tmp_path / "says"
    says.mkdir()
    env = {"SLURMD_NODENAME": "n0", "PROVISION": str(program)}

    def tested(found: str) -> None:
        (says / "n0").write_text(found)
        subprocess.run(
            [program, "gate", "--again", TAG],
            env={"SLURMD_NODENAME": "n0", "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            timeout=60,
            check=False,
        )

    assert plugin(tmp_path, **env)[0] == UNKNOWN
    tested("fit")
    assert plugin(tmp_path, **env)[0] == OK
    tested("unfit")
    found, message = plugin(tmp_path, **env)
    assert found == UNFIT
    assert message.startswith("closed: ")
    tested("fit")
    assert plugin(tmp_path, **env)[0] == OK


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


def test_the_pod_has_what_the_script_reads() -> None:
    (container,) = POD["containers"]
    names = {one["name"] for one in container["env"]}
    assert set(re.findall(r"\$([A-Z]+)", FILES["gate.sh"])) <= names
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert mounts == {"config": "/config", "host": "/host"}
    volumes = {one["name"]: one for one in POD["volumes"]}
    assert volumes["config"]["configMap"]["defaultMode"] == 0o755
    assert any("custom-plugin-monitor=/config/gate.json" in one for one in container["command"])
    assert shellcheck(FILES["gate.sh"], "sh") == ""
