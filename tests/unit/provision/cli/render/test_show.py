"""Plans, builds and reports as people read them: eighty columns, nothing cut off."""

from __future__ import annotations

import re
from typing import Any

import pytest

from provision.catalog.loading import load
from provision.cli.render.build import describe_build
from provision.cli.render.plan import Installing, describe_matrix, describe_plan
from provision.model.plan import (
    RUNS,
    Alternative,
    Base,
    Blocked,
    Cell,
    Gpu,
    GpuVerdict,
    HostFacts,
    Plan,
    PlanError,
    Reason,
    Request,
    Warned,
)
from provision.model.planfile import plan_to_json
from provision.resolve import matrix, resolve
from tests.kit.cases import cases

PLAN = Plan(
    verdict="minor-version",
    framework="pytorch",
    framework_version="2.0.1",
    cuda="11.7",
    wheel_tag="cu117",
    index_url="https://index.example/cu117",
    python="3.10",
    cudnn="8.5.0.96",
    arch="x86_64",
    driver_have="470.82.01",
    driver_need="450.80.02",
    gpus=(
        GpuVerdict(name="NVIDIA A100", compute_capability="8.0", runs="sm_80", ok=True),
        GpuVerdict(name=None, compute_capability=None, runs="unknown", ok=False),
    ),
    base=Base(
        kind="bootstrap", reference="bootstrap", python="3.10", glibc="2.36", suite="bookworm"
    ),
    reasons=(
        Reason(
            code="a",
            message="Because it is the newest release that fits.",
            source="https://source.example",
        ),
    ),
    warnings=(Warned(code="b", message="Something is left out.", fix="Upgrade the driver."),),
    alternatives=(
        Alternative(cuda="11.8", wheel_tag="cu118", framework_version="2.7.1", why="newer"),
    ),
)
REPORT: dict[str, Any] = {
    "verdict": "unfit",
    "checks": [
        {"id": "gpu.devices", "status": "pass", "message": "2 devices", "measured": {}},
        {"id": "a.b", "status": "pass", "message": "right", "measured": {"device": "cpu"}},
        {"id": "nccl.ring", "status": "skip", "message": "one GPU", "measured": {}},
        {"id": "nccl.bus", "status": "skip", "message": "one GPU", "measured": {}},
        {
            "id": "compute.matmul",
            "status": "fail",
            "message": "is off by 3.0 where 0.001 is allowed, which no rounding explains at all",
            "cause": "a broken GPU",
            "fix": "run nvidia-smi -q -d ECC",
        },
        {"id": "x", "status": "error", "message": "", "measured": {}},
    ],
}


ON_AN_ENGINE: dict[str, Any] = {
    "destination": "engine",
    "place": "docker 26.1",
    "withheld": None,
    "layers": [],
    "platforms": [],
}
UNFIT = {"tag": "t:1-unfit", "digest": "sha256:1", "size_bytes": 1, **ON_AN_ENGINE}
PUSHED = {
    **UNFIT,
    "tag": "r.example/t@sha256:1",
    "destination": "registry",
    "place": "r.example/t@sha256:1",
    "withheld": {"name": "r.example/t:1", "because": "libraries.compiler failed"},
}
BY_WHEELS = {
    "builder": {"name": "oci", "why": "a directory needs no engine"},
    "documents": {
        "sbom": "/m/out.cdx.json",
        "provenance": "/m/out.sigstore.json",
        "attached": True,
    },
    "image": {
        "tag": "gpu-provision:pytorch2.0.1-cu117",
        "digest": "sha256:" + "0" * 64,
        "size_bytes": 2_371_246_115,
        "destination": "layout",
        "place": "/m/out",
        "withheld": None,
        "layers": [
            {"title": "base", "size": 42_000_000, "how": "there"},
            {"title": "six 1.17.0", "size": 12_345, "how": "written"},
        ],
        "platforms": [
            {"platform": "linux/amd64", "digest": "sha256:" + "1" * 64},
            {"platform": "linux/arm64", "digest": "sha256:" + "2" * 64},
        ],
    },
}


def account(**changes: object) -> dict[str, Any]:
    found: dict[str, Any] = {
        "image": {
            "tag": "gpu-provision:pytorch2.0.1-cu117",
            "digest": "sha256:" + "0" * 64,
            "size_bytes": 4_508_876_800,
            **ON_AN_ENGINE,
        },
        "builder": {"name": "docker", "why": "--builder docker"},
        "documents": {"sbom": None, "provenance": None, "attached": False},
        "plan": plan_to_json(PLAN),
        "lock": {"path": "/home/me/pylock.toml", "sha256": "1" * 64},
        "steps": [{"name": "plan", "seconds": 0.04}, {"name": "build", "seconds": 61.0}],
        "verify": {**REPORT, "verdict": "fit", "checks": REPORT["checks"][:4]},
        "proven": ["gpu.devices: 2 devices", "compute.matmul: exact"],
        "not_proven": ["nccl.ring: one GPU"],
        "verify_beside": [],
        "not_verified": None,
        "scope": None,
        "notes": ["ulimit memlock: not permitted on this machine, skipped"],
        "next": "provision run gpu-provision:pytorch2.0.1-cu117",
        "next_on_gpu_host": None,
        "next_on_arch": None,
        "command": None,
    }
    return {**found, **changes}


INSTALLING = Installing(
    build="provision build --cuda 11.7",
    host=("python3.10 -m venv .venv", ".venv/bin/python -m pip install torch==2.0.1+cu117"),
    toolkit=False,
)


def test_a_plan_reads_like_this() -> None:
    one = PLAN._replace(gpus=PLAN.gpus[:1])
    assert describe_plan(one, INSTALLING).splitlines() == [
        "Yes: PyTorch 2.0.1 for CUDA 11.7 runs on NVIDIA A100 with driver 470.82.01.", "",
        "in a container:", "  provision build --cuda 11.7",
        "or with pip, without a container (there are --format uv and conda, too):",
        "  python3.10 -m venv .venv", "  .venv/bin/python -m pip install torch==2.0.1+cu117", "",
        "driver      470.82.01 (minimum 450.80.02); it is older than this CUDA, but of",
        "            the same major version, which is enough (minor-version",
        "            compatibility)",
        "cuda        CUDA 11.7, cuDNN 8.5.0.96; no CUDA toolkit is needed: the wheels",
        "            have it", "image       Python 3.10 on bootstrap (bookworm)",
        "wheels      https://index.example/cu117", "  GPU          capability  runs   verdict",
        "  NVIDIA A100  8.0         sm_80  ok", "warning     Something is left out.",
        "            fix: Upgrade the driver.",
        "or          --cuda 11.8 --framework-version 2.7.1: newer",
        "why         add --explain, for every reason and its source",
    ]  # fmt: skip


@cases(
    "changes says",
    ("a newer driver", {"verdict": "direct"}, "it natively supports this CUDA"),
    ("the package that it needs is in the answer",
     {"verdict": "forward", "compat_package": "cuda-compat-11-7"},
     "runs with cuda-compat on NVIDIA A100"),
    ("nothing is promised for what is not known", {"verdict": "unverified", "driver_have": None},
     "Perhaps: PyTorch 2.0.1 for CUDA 11.7. Not everything is known"),
    ("equal GPUs are counted", {"gpus": PLAN.gpus[:1] * 2}, "runs on 2 x NVIDIA A100 with"),
    ("many kinds are a number", {"gpus": tuple(PLAN.gpus[0]._replace(name=name) for name in "abc")},
     "runs on all 3 GPUs with"),
)  # fmt: skip
def test_the_answer_of_a_plan(changes: dict[str, Any], says: str) -> None:
    shown = " ".join(describe_plan(PLAN._replace(**{"gpus": PLAN.gpus[:1], **changes})).split())
    assert says in shown


def test_no_code_of_a_verdict_is_shown() -> None:
    rows = tuple(PLAN.alternatives[0]._replace(why=f"newer ({code})") for code in RUNS)
    shown = describe_plan(PLAN._replace(alternatives=rows))
    assert "--framework-version 2.7.1: newer\n" in shown
    assert [code for code in ("direct", "forward", "unverified") if code in shown] == []


def test_a_plan_without_commands_reads_like_this() -> None:
    assert describe_plan(PLAN).splitlines() == [
        "Yes: PyTorch 2.0.1 for CUDA 11.7 runs on NVIDIA A100 and compute capability",
        "     unknown with driver 470.82.01.", "",
        "driver      470.82.01 (minimum 450.80.02); it is older than this CUDA, but of",
        "            the same major version, which is enough (minor-version",
        "            compatibility)", "cuda        CUDA 11.7, cuDNN 8.5.0.96",
        "image       Python 3.10 on bootstrap (bookworm)",
        "wheels      https://index.example/cu117", "  GPU          capability  runs     verdict",
        "  NVIDIA A100  8.0         sm_80    ok", "  ?            ?           unknown  not checked",
        "warning     Something is left out.", "            fix: Upgrade the driver.",
        "or          --cuda 11.8 --framework-version 2.7.1: newer",
        "why         add --explain, for every reason and its source",
    ]  # fmt: skip


def test_a_plan_explains_itself_when_asked() -> None:
    text = describe_plan(PLAN, explain=True).splitlines()
    assert "why         Because it is the newest release that fits. [a]" in text
    assert "            source: https://source.example" in text
    assert not any("add --explain" in line for line in text)


def test_equal_gpus_share_a_row() -> None:
    eight = PLAN._replace(gpus=(PLAN.gpus[0],) * 8)
    assert "  8 x NVIDIA A100  8.0         sm_80  ok" in describe_plan(eight).splitlines()


def test_who_blocks_what_is_a_table() -> None:
    rows = tuple(
        Blocked(host=None, gpu=gpu, compute_capability=cc, served_by=served, message="m")
        for gpu, cc, served in (("GTX 1080 Ti", "6.1", "CUDA 10.2 to 12.6"), ("B", "12.0", None))
    )
    none = PLAN._replace(blocked=rows, error=PlanError(code="a", message="It cannot.", fix="Do."))
    assert describe_plan(none).splitlines()[3:6] == [
        "  GPU          cap.  supported by",
        "  GTX 1080 Ti  6.1   CUDA 10.2 to 12.6",
        "  B            12.0  nothing",
    ]


def test_a_matrix_marks_the_choice_and_what_is_only_likely() -> None:
    cells = [
        Cell("2.1.0", "11.8", "cu118", "minor-version", "likely"),
        Cell("2.0.1", "11.8", "cu118", "none", "confirmed", "no-gpu-code", "m"),
        Cell("2.0.1", "11.7", "cu117", "minor-version", "confirmed"),
    ]
    assert describe_matrix(cells, PLAN).splitlines()[:3] == [
        "  PyTorch 11.7 11.8",
        "  2.1.0        m*",
        "  2.0.1   [m]  -",
    ]
    assert "No build of" in describe_matrix([], PLAN)


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "jax"])
def test_the_matrix_of_the_whole_catalog_fits_a_terminal(framework: Any) -> None:
    facts = HostFacts(driver="580.95.05", arch="x86_64", gpus=(Gpu(compute_capability=(8, 0)),))
    request = Request(framework=framework)
    cells = matrix((facts,), request, load())
    text = describe_matrix(cells, resolve((facts,), request, load()))
    assert max(len(line) for line in text.splitlines()) <= 80


def test_a_refusal_reads_like_this() -> None:
    none = PLAN._replace(
        verdict="none",
        gpus=(),
        reasons=(),
        warnings=(),
        error=PlanError(code="a", message="It cannot.", fix="Do so."),
    )
    assert describe_plan(none).splitlines() == [
        "No: It cannot.",
        "",
        "fix         Do so.",
        "alternative --cuda 11.8 --framework-version 2.7.1: newer",
    ]


def test_a_build_reads_like_this() -> None:
    assert describe_build(account()).splitlines() == [
        "Yes: PyTorch 2.0.1 for CUDA 11.7 works on this machine: 2 checks passed; 2 did",
        "     not run.",
        "",
        "next:",
        "  provision run gpu-provision:pytorch2.0.1-cu117",
        "",
        "image       gpu-provision:pytorch2.0.1-cu117",
        "digest   sha256:" + "0" * 64,
        "size        4.51 GB",
        "built by    docker (engine): --builder docker",
        "lock        /home/me/pylock.toml",
        "took        plan 0.0 s, build 61.0 s",
        "proven      gpu.devices",
        "on the CPU  a.b; not tested on a GPU",
        "not run     nccl.ring, nccl.bus: one GPU",
        "note        ulimit memlock: not permitted on this machine, skipped",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"verify": None, "not_verified": "--no-verify"},
                     "Not proven: the image has PyTorch 2.0.1 for CUDA 11.7, and was not tested\n"
                     "     (--no-verify).\n\nnext:\n", id="not verified is said"),
        pytest.param({"image": {**UNFIT, "withheld": {"name": "t:1", "because": "a.b failed"}}},
                     "image       t:1-unfit\n            not named t:1: a.b failed\n",
                     id="an unfit image has another name"),
        pytest.param({"image": PUSHED},
                     "image       r.example/t@sha256:1\n"
                     "            not pushed to r.example/t:1: libraries.compiler failed\n",
                     id="an unfit image is in the registry by its digest alone"),
        pytest.param({"image": {**PUSHED, "tag": None}, "next": None}, "image       not kept\n",
                     id="an unfit image that could not be kept has no command"),
        pytest.param(
            {
                "scope": {
                    "tested": "all but times and rates",
                    "because": "this machine has no NVIDIA GPU",
                    "prove": "provision verify t:1",
                }
            },
            "to test the rest, where it will run:\n  provision verify t:1\n\n",
            id="an image for another machine says what was not tested",
        ),
        pytest.param({"lock": {"path": None, "sha256": "1"}}, "not kept", id="no copy of the lock"),
        pytest.param({"next_on_gpu_host": "docker run --gpus all x"},
                     "on a machine with NVIDIA GPUs:\n  docker run --gpus all x",
                     id="built where no GPU is"),
        pytest.param({"next_on_arch": "aarch64"},
                     "\nnext, on a machine with NVIDIA GPUs (aarch64):\n  provision run",
                     id="built for another processor"),
        pytest.param(
            {"verify": {**REPORT, "verdict": "no-verdict", "checks": REPORT["checks"][:2]}},
            "Not proven: PyTorch 2.0.1 for CUDA 11.7 passed 2 checks, 1 of them on the CPU.\n\n",
            id="what proves too little"),
        pytest.param(
            {"verify": REPORT},
            "No: PyTorch 2.0.1 for CUDA 11.7 failed 2 of 4 checks on this machine; 2 did not\n"
            "     run.\n\nnext:", id="what fails"),
        pytest.param({"verify": REPORT}, "fix         run nvidia-smi",
                     id="failures with their fix"),
    ],
)  # fmt: skip
def test_a_build_says_what_was_not_done(changes: dict[str, object], words: str) -> None:
    assert words in describe_build(account(**changes))


def test_a_build_without_an_engine_reads_like_this() -> None:
    lines = describe_build(account(**BY_WHEELS)).splitlines()
    assert lines[lines.index("") + 4 :][:13] == [
        "image       gpu-provision:pytorch2.0.1-cu117 in /m/out",
        "digest   sha256:" + "0" * 64,
        "  linux/amd64",
        "         sha256:" + "1" * 64,
        "  linux/arm64",
        "         sha256:" + "2" * 64,
        "size        2.37 GB in 2 layers, 0.01 MB of them new",
        "built by    oci (no engine): a directory needs no engine",
        "lock        /home/me/pylock.toml",
        "sbom        /m/out.cdx.json",
        "provenance  /m/out.sigstore.json",
        "attached    both, to the image",
        "took        plan 0.0 s, build 61.0 s",
    ]
    assert max(map(len, lines)) <= 80


def test_a_dry_run_is_the_command_and_nothing_else() -> None:
    assert describe_build(account(command="docker buildx build .")) == "docker buildx build ."


def too_wide(text: str) -> list[str]:
    """Lines over 80 columns, but for commands to copy and single words that cannot be broken."""
    found, command = [], False
    for line in text.splitlines():
        alone = len(line.split()) <= 2 and re.search(r"\S{60,}", line)
        if len(line) > 80 and not command and not alone:
            found.append(line)
        command = line in {"next:", "on a machine with NVIDIA GPUs:"}
    return found


REQUESTS = {
    "nothing asked": Request(),
    "one CUDA": Request(cuda="11.7"),
    "companions": Request(cuda="11.7", companions=("torchvision", "transformers[torch]>=4.40")),
    "a devel image": Request(cuda="13.0", flavour="devel"),
    "a base made here": Request(cuda="12.1", base="bootstrap"),
    "another framework": Request(framework="tensorflow"),
    "no such version": Request(framework_version="==9.9"),
    "a long address": Request(cuda="11.7", index_url="https://mirror.example/" + "long/" * 30),
}
HOSTS = [
    HostFacts(),
    HostFacts(driver="470.82.01", gpus=(Gpu(name="NVIDIA A100-SXM4-80GB"),), arch="x86_64"),
    HostFacts(driver="535.104.05", gpus=(Gpu(name="NVIDIA H100 80GB HBM3"),), arch="x86_64"),
    HostFacts(driver="515.65.01", gpus=(Gpu(name="x" * 1000), Gpu(name="word " * 200)), label="f"),
    HostFacts(driver="304.1", gpus=(Gpu(compute_capability=(3, 5)),) * 3),
]


@pytest.mark.parametrize("asked", REQUESTS)
def test_a_plan_keeps_to_eighty_columns(asked: str) -> None:
    for host in HOSTS:
        assert too_wide(describe_plan(resolve([host], REQUESTS[asked], load()))) == []


def test_a_build_keeps_to_eighty_columns() -> None:
    long = {**REPORT, "checks": [{**c, "message": "many words " * 50} for c in REPORT["checks"]]}
    assert too_wide(describe_build(account(verify=long, notes=["a note " * 40]))) == []


def test_nothing_is_coloured() -> None:
    texts = [describe_plan(PLAN), describe_build(account(verify=REPORT))]
    assert [text for text in texts if "\x1b" in text] == []
