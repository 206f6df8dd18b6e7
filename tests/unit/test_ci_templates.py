"""The GitHub Action and the GitLab template: valid, clean, and run as their runners would run them.

Each script is taken out of its file and run by bash in a scratch workspace, with the files and
variables of the runner. `provision` is the real command, forked for each call; the engine it meets
is a stand-in.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from images.engines import docker
from provision.cli import main as cli
from tests import ROOT, need
from tests.kit.cases import cases
from tests.kit.fake_engine import FACTS, TAG, Engine, broken, report, says
from tests.kit.forked import forked
from tests.kit.programs import run_program

ACTION_FILE, GITLAB_FILE = ROOT / "action.yml", ROOT / "templates" / "verify.yml"
ACTION = yaml.safe_load(ACTION_FILE.read_text())
SPEC, JOBS = yaml.safe_load_all(GITLAB_FILE.read_text())
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
RUN_STEPS = {name: step for name, step in STEPS.items() if "run" in step}
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
INPUT = re.compile(r"\$\[\[\s*inputs\.([\w-]+)\s*\]\]")
BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail")


def provision() -> int:
    """The command, on a machine whose engine says what the variable SAYS has."""
    words = sys.argv[1:]
    if words[:1] == ["provision"]:  # as ./run is called
        words = words[1:]
    Path(os.environ["ASKED"]).write_text(json.dumps(words))
    said = os.environ["SAYS"]
    engine = Engine(broken("::error::gone") if said == "broken" else says(report(said)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(docker.Docker, "connect", lambda **_: engine)
        patch.setattr("provision.host.detect", lambda: FACTS)
        return cli.main(words)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The text of a program that is `provision`."""
    with forked(tmp_path_factory.mktemp("forked"), f"{__name__}:provision") as text:
        yield text


# --- what the files are -----------------------------------------------------------------------


def lint(schema: str, path: Path) -> str:
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)]
    done = run_program(argv)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_the_action_follows_its_schema() -> None:
    assert lint("vendor.github-actions", ACTION_FILE) == ""


def test_the_schema_would_say_so(tmp_path: Path) -> None:
    (tmp_path / "action.yml").write_text(ACTION_FILE.read_text().replace("using:", "uses:"))
    assert "using" in lint("vendor.github-actions", tmp_path / "action.yml")


def interpolated(inputs: Mapping[str, Any]) -> Any:
    """The job as GitLab makes it: a value that is one input has that input's type."""
    given = {
        name: inputs.get(name, rule.get("default")) for name, rule in SPEC["spec"]["inputs"].items()
    }

    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            return {fill(key): fill(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [fill(inner) for inner in value]
        if isinstance(value, str) and (match := INPUT.fullmatch(value)):
            return given[match[1]]
        return INPUT.sub(lambda m: str(given[m[1]]), value) if isinstance(value, str) else value

    return fill(JOBS)


def test_the_gitlab_template_follows_its_schema(tmp_path: Path) -> None:
    (tmp_path / "spec.yml").write_text(yaml.safe_dump(SPEC))
    (tmp_path / "job.yml").write_text(yaml.safe_dump(interpolated({"image": TAG})))
    assert lint("vendor.gitlab-ci", tmp_path / "spec.yml") == ""
    assert lint("vendor.gitlab-ci", tmp_path / "job.yml") == ""


def test_variables_of_the_gitlab_job_are_texts() -> None:
    """GitLab refuses a variable that is true or a list."""
    (job,) = interpolated({"image": TAG}).values()
    assert {
        name: kind for name, kind in job["variables"].items() if not isinstance(kind, str)
    } == {}


@pytest.mark.parametrize("name", RUN_STEPS)
def test_the_action_s_scripts_are_clean_by_shellcheck(name: str) -> None:
    assert shellcheck(RUN_STEPS[name]["run"], "bash") == ""


def test_the_gitlab_script_is_clean_by_shellcheck() -> None:
    assert shellcheck(script_of(JOBS), "sh") == ""


def shellcheck(script: str, shell: str) -> str:
    program = need.program("shellcheck")
    done = run_program([program, f"--shell={shell}", "-"], given=script)
    return done.stdout


def script_of(jobs: Any) -> str:
    (job,) = jobs.values()
    (script,) = job["script"]
    return str(script)


def test_no_script_holds_what_somebody_typed() -> None:
    assert [name for name, step in RUN_STEPS.items() if "${{" in step["run"]] == []
    assert "$[[" not in script_of(JOBS)


def test_every_input_is_used_and_every_used_one_is_declared() -> None:
    text = ACTION_FILE.read_text()
    assert set(re.findall(r"\binputs\.([\w-]+)", text)) == set(ACTION["inputs"])
    assert set(INPUT.findall(yaml.safe_dump(JOBS))) == set(SPEC["spec"]["inputs"])


def test_every_variable_of_the_scripts_is_given() -> None:
    for step in RUN_STEPS.values():
        used = set(re.findall(r"\bVERIFY_\w+", step["run"]))
        assert used == {name for name in step["env"] if name.startswith("VERIFY_")}
    (job,) = JOBS.values()
    assert set(re.findall(r"\bVERIFY_\w+", script_of(JOBS))) <= set(job["variables"])


def test_every_output_of_the_action_is_written_somewhere() -> None:
    wanted = {name: row["value"] for name, row in ACTION["outputs"].items()}
    assert wanted == {name: f"${{{{ steps.verify.outputs.{name} }}}}" for name in wanted}
    assert [name for name in wanted if name not in STEPS["Verify"]["run"]] == []


def test_both_know_the_same_inputs() -> None:
    theirs = {"source", "ref", "job", "stage", "tags"}
    ours = {"html", "upload", "artifact-name", "cache"}
    assert set(SPEC["spec"]["inputs"]) - theirs == set(ACTION["inputs"]) - ours


DOCS = (ROOT / "docs" / "ci.md").read_text()


def blocks(kind: str) -> list[Any]:
    """The YAML of the document, as far as it speaks of one of the two."""
    found = re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL)
    return [block for text in found if kind in str(block := yaml.safe_load(text))]


def test_the_document_gives_inputs_that_there_are() -> None:
    (job,) = blocks("runs-on")
    (step,) = (one for one in job["jobs"]["verify"]["steps"] if "with" in one)
    assert set(step["with"]) <= set(ACTION["inputs"])
    (second,) = blocks("'with': {'image': 'ghcr.io/team/torch:1', 'require'")
    assert set(second["with"]) <= set(ACTION["inputs"])
    (include,) = blocks("include")
    (row,) = include["include"]
    assert set(row["inputs"]) <= set(SPEC["spec"]["inputs"])
    assert row["file"] == f"/{GITLAB_FILE.relative_to(ROOT)}"
    interpolated(row["inputs"])


def test_the_document_names_every_input_and_output() -> None:
    names = {*ACTION["inputs"], *ACTION["outputs"]}
    assert [name for name in names if f"`{name}`" not in DOCS] == []


# --- the action, run --------------------------------------------------------------------------


@dataclass
class Ran:
    """What a runner would have after the action's steps."""

    code: int
    log: str
    summary: str
    outputs: dict[str, str]
    asked: list[str]
    skipped: list[str]


class Runner:
    """A GitHub runner, as far as a composite action knows it."""

    def __init__(self, place: Path, program: str) -> None:
        self.place = place
        self.words: tuple[str, ...] = ()
        """Before each of its commands."""
        for name in ("action", "temp", "work"):
            (place / name).mkdir()
        (place / "action" / "run").write_text(program)
        (place / "action" / "run").chmod(0o755)

    def run(self, says: str, **inputs: str) -> Ran:
        given = {name: row.get("default", "") for name, row in ACTION["inputs"].items()}
        given.update({name.replace("_", "-"): value for name, value in inputs.items()})
        outputs: dict[str, str] = {}
        code, log, skipped = 0, "", []
        for name, step in STEPS.items():
            needed = self.evaluate(step.get("if", "${{ success() }}"), given, outputs, failed=code)
            if "run" not in step or needed != "true":
                skipped += [name] * (needed != "true")
                continue
            env = {k: self.evaluate(v, given, outputs, failed=code) for k, v in step["env"].items()}
            done = self.bash(step["run"], {**env, "SAYS": says})
            log += done.stdout
            code = code or done.returncode
            if name == "Verify":
                outputs.update(self.outputs())
        asked = self.place / "asked"
        return Ran(
            code=code,
            log=log,
            summary=self.file("summary"),
            outputs=outputs,
            asked=json.loads(asked.read_text()) if asked.exists() else [],
            skipped=skipped,
        )

    def bash(self, script: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """As `shell: bash` is defined."""
        (self.place / "step.sh").write_text(script)
        own = {
            "GITHUB_ACTION_PATH": self.place / "action",
            "GITHUB_OUTPUT": self.place / "output",
            "GITHUB_STEP_SUMMARY": self.place / "summary",
            "RUNNER_TEMP": self.place / "temp",
            "RUNNER_TOOL_CACHE": self.place / "tools",
            "XDG_STATE_HOME": self.place / "state",
            "ASKED": self.place / "asked",
        }
        return subprocess.run(
            [*self.words, *BASH, str(self.place / "step.sh")],
            env={**os.environ, **{name: str(path) for name, path in own.items()}, **env},
            cwd=self.place / "work",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # one log, as the runner reads it
            text=True,
            check=False,
            timeout=120,
        )

    def file(self, name: str) -> str:
        path = self.place / name
        return path.read_text() if path.exists() else ""

    def outputs(self) -> dict[str, str]:
        lines = self.file("output").splitlines()
        return {
            f"steps.verify.outputs.{line.split('=', 1)[0]}": line.split("=", 1)[1] for line in lines
        }

    @staticmethod
    def evaluate(
        text: str, inputs: Mapping[str, str], outputs: Mapping[str, str], *, failed: int
    ) -> str:
        """The few expressions that the action uses."""

        def term(word: str) -> str:
            if word in {"always()", "success()"}:
                return str(word == "always()" or not failed).lower()
            if match := re.fullmatch(r"(\S+) (==|!=) '(.*)'", word):
                return str((term(match[1]) == match[3]) == (match[2] == "==")).lower()
            if word.startswith("inputs."):
                return inputs[word.removeprefix("inputs.")]
            assert word.startswith("steps.verify.outputs.")
            return outputs.get(word, "")

        def value(match: re.Match[str]) -> str:
            terms = [term(word) for word in match[1].split(" && ")]
            return terms[0] if len(terms) == 1 else str(set(terms) == {"true"}).lower()

        return EXPRESSION.sub(value, text)


@pytest.fixture
def runner(tmp_path: Path, program: str) -> Runner:
    return Runner(tmp_path, program)


@cases(
    "says inputs code verdict",
    ("fit passes", "fit", {}, 0, "fit"),
    ("unfit fails the job", "unfit", {}, 1, "unfit"),
    ("whatever is allowed", "unfit", {"allow_no_verdict": "true"}, 1, "unfit"),
    ("no verdict fails the job", "no-verdict", {}, 7, "no-verdict"),
    ("but where allowed", "no-verdict", {"allow_no_verdict": "true"}, 0, "no-verdict"),
    ("no report fails the job", "broken", {}, 5, "none"),
    ("and is not allowed", "broken", {"allow_no_verdict": "true"}, 5, "none"),
    ("an unknown check", "fit", {"require": "no-such"}, 2, "none"),
    ("an unknown level", "fit", {"level": "extreme"}, 2, "none"),
)
def test_the_action_ends_as_the_verdict_says(
    runner: Runner, says: str, inputs: dict[str, str], code: int, verdict: str
) -> None:
    ran = runner.run(says, image=TAG, **inputs)
    assert ran.code == code, ran.log
    assert ran.outputs["steps.verify.outputs.verdict"] == verdict
    assert ran.summary.startswith("## ")
    assert ("::error" in ran.log.replace("::error::gone", "")) == (code != 0)


def test_the_action_gives_the_paths_of_its_reports(runner: Runner) -> None:
    ran = runner.run("fit", image=TAG)
    names = ("report", "junit", "html", "record")
    paths = {name: Path(ran.outputs[f"steps.verify.outputs.{name}"]) for name in names}
    assert all(path.stat().st_size for path in paths.values())
    assert json.loads(paths["report"].read_text()) == report()
    assert {path.parent for path in paths.values()} == {
        Path(ran.outputs["steps.verify.outputs.reports"])
    }
    assert "Upload the reports" not in ran.skipped


def test_without_a_report_junit_is_there_and_the_rest_is_not_named(runner: Runner) -> None:
    ran = runner.run("broken", image=TAG)
    assert "steps.verify.outputs.junit" in ran.outputs
    assert "steps.verify.outputs.report" not in ran.outputs
    assert "engine-failed" in ran.summary


def test_a_command_that_never_ran_still_gives_a_summary(runner: Runner) -> None:
    shutil.rmtree(runner.place / "action")
    ran = runner.run("fit", image="odd\nimage")
    assert ran.code == 127
    assert "ended with exit code 127" in ran.summary
    assert "odd?image" in ran.summary


def test_what_is_given_reaches_the_command(runner: Runner) -> None:
    (runner.place / "work" / "base.json").write_text(json.dumps(report()))
    ran = runner.run("fit", image=TAG, level="quick", timeout="60", baseline="base.json", html="")
    assert ran.code == 0, ran.log
    words = set(ran.asked)
    assert {"--level=quick", "--timeout=60", "--baseline=base.json", "--require=gpu"} <= words
    assert [word for word in words if word.startswith("--html")] == []
    assert ran.asked[-2:] == ["--", TAG]


def test_the_action_is_kept_for_later_jobs_until_it_changes(runner: Runner) -> None:
    script, kept = runner.place / "action" / "run", runner.place / "tools" / "gpu-provision"
    (runner.place / "action" / ".venv").mkdir()  # has the path of the other place in it
    for said, copies in (("", 1), ("", 1), ("# changed\n", 2)):
        script.write_text(script.read_text() + said)
        ran = runner.run("fit", image=TAG, cache="true")
        assert ran.code == 0, ran.log
        assert len(list(kept.iterdir())) == copies
    assert list(kept.rglob(".venv")) == []


def test_an_action_that_this_user_may_not_write_to_is_copied(runner: Runner) -> None:
    if os.geteuid() == 0:  # who may write everywhere by this capability
        runner.words = (need.program("setpriv"), "--bounding-set=-dac_override")
    (runner.place / "action").chmod(0o555)
    ran = runner.run("fit", image=TAG)
    assert ran.code == 0, ran.log
    assert os.access(runner.place / "temp" / "gpu-provision" / "run", os.X_OK)


def test_a_part_of_the_suite_leaves_no_record(runner: Runner) -> None:
    ran = runner.run("fit", image=TAG, only="devices", require="", upload="false")
    assert ran.code == 0, ran.log
    assert "steps.verify.outputs.record" not in ran.outputs
    assert ran.skipped == ["Upload the reports"]


def test_a_slower_image_fails_the_job_with_its_verdict_kept(runner: Runner) -> None:
    faster = report(gemm=2000.0)
    (runner.place / "work" / "base.json").write_text(json.dumps(faster))
    ran = runner.run("fit", image=TAG, baseline="base.json")
    assert (ran.code, ran.outputs["steps.verify.outputs.verdict"]) == (1, "fit")


EVIL = ["$(touch hacked)", "`touch hacked`", "'; touch hacked; '", '"; touch hacked; "', "--json"]


@pytest.mark.parametrize("text", EVIL)
def test_nothing_that_was_typed_is_run(runner: Runner, text: str) -> None:
    """The script expands all of them, whichever the command refuses."""
    names = ("image", "level", "require", "only", "baseline", "timeout")
    ran = runner.run("fit", **dict.fromkeys(names, text))
    assert ran.code == 2, ran.log
    assert len([word for word in ran.asked if text in word]) == len(names)
    assert list((runner.place / "work").iterdir()) == []


def test_what_an_image_prints_does_not_command_the_runner(runner: Runner) -> None:
    """The runner reads ::commands:: from the log, but between stop-commands and its token."""
    stopped = r"^::stop-commands::([0-9a-f]{32})\n(.*)^::\1::\n"
    tokens = set()
    for _ in range(2):
        ran = runner.run("broken", image=TAG)
        match = re.search(stopped, ran.log, re.MULTILINE | re.DOTALL)
        assert match is not None
        assert "::error::gone" in match[2]
        assert "::error::gone" not in ran.log.replace(match[0], "")
        tokens.add(match[1])
    assert len(tokens) == 2


# --- the GitLab job, run ----------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, program: str) -> Path:
    """A GitLab runner's folder, with the command on its PATH."""
    for name in ("bin", "project", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin" / "provision").write_text(program)
    (tmp_path / "bin" / "provision").chmod(0o755)
    return tmp_path


def gitlab(place: Path, says: str, **inputs: Any) -> tuple[subprocess.CompletedProcess[str], Any]:
    given = {name.replace("_", "-"): value for name, value in inputs.items()}
    jobs = interpolated({"image": TAG, **given})
    (job,) = jobs.values()
    own = {
        "CI_PROJECT_DIR": place / "project",
        "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
        "XDG_STATE_HOME": place / "state",
        "TMPDIR": place / "tmp",
        "ASKED": place / "asked",
        "SAYS": says,
    }
    env = {**os.environ, **job["variables"], **{name: str(value) for name, value in own.items()}}
    done = run_program(["sh"], given=script_of(jobs), cwd=place / "project", env=env)
    return done, job


@cases(
    "says inputs code",
    ("fit passes", "fit", {}, 0),
    ("unfit fails the job", "unfit", {"allow_no_verdict": "true"}, 1),
    ("no verdict fails the job", "no-verdict", {}, 7),
    ("but where allowed", "no-verdict", {"allow_no_verdict": "true"}, 0),
    ("no report fails the job", "broken", {}, 5),
)
def test_the_gitlab_job_ends_as_the_verdict_says(
    place: Path, says: str, inputs: dict[str, str], code: int
) -> None:
    done, job = gitlab(place, says, **inputs)
    assert done.returncode == code, done.stderr
    junit = place / "project" / job["artifacts"]["reports"]["junit"]
    assert junit.stat().st_size
    assert job["artifacts"]["when"] == "always"
    assert list((place / "tmp").iterdir()) == []


def test_the_gitlab_job_takes_an_earlier_job_s_report(place: Path) -> None:
    (place / "project" / "gpu-verification").mkdir()
    earlier = place / "project" / "gpu-verification" / "report.json"
    earlier.write_text(json.dumps(report(gemm=2000.0)))
    done, _ = gitlab(place, "fit", baseline="gpu-verification/report.json")
    assert done.returncode == 1, done.stderr
    assert json.loads(earlier.read_text())["comparison"]["worse"] is True


def test_the_gitlab_job_can_bring_the_command_along(place: Path) -> None:
    source = place / "source"
    source.mkdir()
    (place / "bin" / "provision").rename(source / "run")
    for words in ("init -q -b main", "add run", "commit -q -m x", "tag v1"):
        who = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
        subprocess.run(["git", *who, *words.split()], cwd=source, check=True, capture_output=True)
    argv = ["git", "rev-parse", "HEAD"]
    commit = run_program(argv, cwd=source, check=True).stdout
    for ref in (commit.strip(), "v1"):
        done, _ = gitlab(place, "fit", source=f"file://{source}", ref=ref, level="quick")
        assert done.returncode == 0, done.stderr
        assert "--level=quick" in json.loads((place / "asked").read_text())
        (place / "asked").unlink()


def test_the_gitlab_job_runs_no_branch_by_default(place: Path) -> None:
    done, _ = gitlab(place, "fit", source="https://user:token@git.example/x.git")
    assert done.returncode == 2
    assert "fix: set ref to a full commit, or a tag" in done.stdout
    assert "token" not in done.stdout + done.stderr
    assert not (place / "asked").exists()


def named_by_others(found: Any) -> Iterator[str]:
    """Each action and image of somebody else in a YAML document."""
    if isinstance(found, dict):
        for key, value in found.items():
            if key in {"uses", "image"} and isinstance(value, str):
                yield value
            else:
                yield from named_by_others(value)
    elif isinstance(found, list):
        for value in found:
            yield from named_by_others(value)


PODS = [
    pytest.param(document, id=f"{path.name}: {document['kind']}")
    for path in sorted((ROOT / "templates").rglob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
    if "template" in document.get("spec", {})
]


@pytest.mark.parametrize("document", PODS)
def test_no_pod_of_a_template_has_rights_on_the_node(document: Any) -> None:
    pod = document["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert not {"hostPID", "hostNetwork", "hostIPC"} & set(pod)
    of_the_node = {one["name"] for one in pod["volumes"] if "hostPath" in one}
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        rights = container["securityContext"]
        assert not rights.get("privileged")
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["capabilities"] == {"drop": ["ALL"]}
        for mount in container["volumeMounts"]:
            assert mount["name"] not in of_the_node or mount["readOnly"]


def test_what_others_publish_is_named_by_a_digest() -> None:
    files = [ACTION_FILE, *(ROOT / "templates").rglob("*.y*ml"), ROOT / "compose.yaml"]
    named = [
        name
        for path in files
        for document in yaml.safe_load_all(path.read_text())
        for name in named_by_others(document)
        # the user's own
        if not name.startswith(("registry.example/", "${IMAGE:-gpu-provision:"))
    ]
    assert len(named) >= 2
    for name in named:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}|.+@sha256:[0-9a-f]{64}", name), name


@pytest.mark.parametrize("text", EVIL)
def test_nothing_that_was_given_to_gitlab_is_run(place: Path, text: str) -> None:
    names = ("image", "level", "require", "only")
    done, _ = gitlab(place, "fit", **dict.fromkeys(names, text))
    assert done.returncode == 2, done.stderr
    asked = json.loads((place / "asked").read_text())
    assert len([word for word in asked if text in word]) == len(names)
    assert [path.name for path in (place / "project").iterdir()] == ["gpu-verification"]
