"""templates/slurm/gate.sh, run as slurmd runs it: with almost no environment.

`provision` and scontrol are stand-ins here; tests/clusters has Slurm itself.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import ROOT, need
from tests.kit.cases import cases
from tests.kit.programs import run_program

SCRIPT = ROOT / "templates" / "slurm" / "gate.sh"
JOB = {"SLURMD_NODENAME": "n7", "SLURM_JOB_ID": "12", "SLURM_JOB_GPUS": "0,1"}
CHECK = {"SLURMD_NODENAME": "n7"}


def ran(
    place: Path, env: dict[str, str], code: int, said: str = "", conf: str | None = None
) -> tuple[int, list[str], list[str]]:
    """The exit code, the words that the gate was called with, and those of scontrol."""
    for name, ends, prints in (("provision", code, said), ("scontrol", 0, "")):
        program = place / name
        program.write_text(
            f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {place}/{name}.called\n"
            f"cat {place}/{name}.said\nexit {ends}\n"
        )
        program.chmod(0o755)
        (place / f"{name}.said").write_text(prints)
    given = f'IMAGE=team/torch:1\nPROVISION="{place}/provision -x"\n' if conf is None else conf
    (place / "gate.conf").write_text(f"PATH={place}:$PATH\n{given}")
    done = run_program(
        ["/bin/sh", str(SCRIPT)], cwd="/", env={"GATE_CONF": str(place / "gate.conf"), **env}
    )

    def words(name: str) -> list[str]:
        called = place / f"{name}.called"
        return called.read_text().splitlines() if called.exists() else []

    return done.returncode, words("provision"), words("scontrol")


@cases(
    "env code conf ends drains",
    ("a job, open", JOB, 0, "", 0, False),
    ("a job, closed", JOB, 1, "", 1, True),
    ("a job, undecided", JOB, 7, "", 0, False),
    ("a job, and no engine", JOB, 5, "", 0, False),
    ("a job, undecided, and that drains", JOB, 5, "UNDECIDED=drain\n", 1, True),
    ("the health check, open", CHECK, 0, "", 0, False),
    ("the health check, closed", CHECK, 1, "", 0, True),
    ("the health check, undecided", CHECK, 7, "UNDECIDED=drain\n", 0, False),
)
def test_what_the_gate_says_is_what_slurm_gets(
    tmp_path: Path, env: dict[str, str], code: int, conf: str, ends: int, drains: object
) -> None:
    given = f'IMAGE=team/torch:1\nPROVISION="{tmp_path}/provision -x"\n{conf}'
    found, called, drained = ran(tmp_path, env, code, 'closed: gemm is "wrong"\n', given)
    assert found == ends
    assert called == ["-x", "gate", *(["--no-test"] if env is CHECK else []), "team/torch:1"]
    reason = "Reason=gpu-provision: closed: gemm is wrong"
    assert drained == (["update", "NodeName=n7", "State=DRAIN", reason] if drains else [])


@cases(
    "said ends",
    ("the image", "undecided: image at fault: unfit at level quick", 0),
    ("the configuration", "undecided: configuration at fault: unfit", 0),
    ("not known", "undecided: fault unknown: unfit: image at fault:", 1),
    ("no record", "undecided: There is no record", 1),
)
def test_a_broken_image_drains_no_node_even_if_the_undecided_does(
    tmp_path: Path, said: str, ends: int
) -> None:
    conf = f"IMAGE=a:1\nPROVISION={tmp_path}/provision\nUNDECIDED=drain\n"
    found, _, drained = ran(tmp_path, JOB, 7, said, conf)
    assert (found, bool(drained)) == (ends, bool(ends))


@pytest.mark.parametrize("env", [JOB, CHECK], ids=["a job", "the health check"])
def test_a_command_that_does_not_start_is_no_sick_node(tmp_path: Path, env: dict[str, str]) -> None:
    """Python, for one, ends with 1 if its installation is broken."""
    conf = f"IMAGE=a:1\nPROVISION={tmp_path}/provision\n"
    found, called, drained = ran(tmp_path, env, 1, "", conf)
    assert (found, drained) == (0, [])
    assert called


def test_the_options_are_words(tmp_path: Path) -> None:
    conf = f"IMAGE=a:1\nPROVISION={tmp_path}/provision\nOPTIONS='--max-age 7d'\n"
    assert ran(tmp_path, JOB, 0, conf=conf)[1] == ["gate", "--max-age", "7d", "a:1"]


@cases(
    "env conf",
    ("a job without a GPU", {**CHECK, "SLURM_JOB_ID": "1"}, None),
    ("an empty gate.conf", JOB, ""),
    ("no command", JOB, "IMAGE=a:1\n"),
)
def test_nothing_is_tested_and_nothing_drained(
    tmp_path: Path, env: dict[str, str], conf: str | None
) -> None:
    assert ran(tmp_path, env, 1, conf=conf) == (0, [], [])


def test_without_its_file_it_lets_jobs_start(tmp_path: Path) -> None:
    done = run_program(["/bin/sh", str(SCRIPT)], env={"GATE_CONF": str(tmp_path / "none"), **JOB})
    assert done.returncode == 0
    assert "has to set IMAGE and PROVISION" in done.stderr


def test_a_long_reason_is_cut(tmp_path: Path) -> None:
    _, _, drained = ran(tmp_path, JOB, 1, "closed: " + "x" * 5000)
    assert len(drained[3]) == len("Reason=") + 200


def test_shellcheck_finds_nothing() -> None:
    program = need.program("shellcheck", "shellcheck")
    assert shutil.which(program)
    done = run_program([program, str(SCRIPT)])
    assert done.returncode == 0, done.stdout
