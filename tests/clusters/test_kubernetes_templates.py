"""templates/kubernetes, read strictly by the schemas of Kubernetes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT
from tests.clusters.packages import from_pypi
from verify.commands import main as cli

TEMPLATES = sorted((ROOT / "templates" / "kubernetes").glob("*.yaml"))
JOBS = [path for path in TEMPLATES if path.name != "node-condition.yaml"]
VALIDATOR = "kubernetes-validate==1.37.0"


def validated(release: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    options = ("--strict", "--no-warn", "--kubernetes-version", release)
    return from_pypi(VALIDATOR, "kubernetes-validate", *options, *map(str, paths))


def test_every_file_is_valid_for_old_and_new_releases_and_a_wrong_one_is_not(
    tmp_path: Path,
) -> None:
    assert len(TEMPLATES) == 3
    for release in ("1.25.0", "1.37.0"):
        done = validated(release, *TEMPLATES)
        assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(TEMPLATES[0].read_text().replace("backoffLimit", "backofLimit"))
    assert validated("1.37.0", wrong).returncode == 1


def jobs(path: Path) -> list[dict[str, Any]]:
    found = [one for one in yaml.safe_load_all(path.read_text()) if one["kind"] == "Job"]
    assert found
    return [one["spec"]["template"]["spec"] for one in found]


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_the_gate_is_the_jobs_image_with_its_gpus_and_words_that_the_suite_knows(
    path: Path,
) -> None:
    for pod in jobs(path):
        (gate,), (job,) = pod["initContainers"], pod["containers"]
        for name in ("image", "resources", "volumeMounts"):
            assert gate[name] == job[name]
        program, *words = gate["command"]
        assert program == "verify"
        options = cli._parser().parse_args(words)
        assert (options.level, options.require) == ("quick", "gpu")
        assert pod["restartPolicy"] == "Never"
