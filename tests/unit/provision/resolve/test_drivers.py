"""Which driver drives which GPU at all: by NVIDIA's documents, and by what a running driver lists.

The table of generations is written here a second time, by generation and not by chip, so that a
slip in the data shows.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provision.build.base import require_plan
from provision.catalog.loading import load
from provision.cli import main as cli
from provision.cli.render.plan import describe_plan
from provision.errors import NothingCompatibleError
from provision.model.facts import host_to_json, parse_host
from provision.model.plan import ComputeCapability, HostFacts, Plan, Request
from provision.resolve import resolve
from provision.resolve.fleet import read_fleet
from provision.resolve.rules.driven_gpus import driven_blocker
from provision.resolve.rules.driver import driver_blocker, fit_driver
from tests.kit.cases import cases
from tests.kit.hosts import host

CATALOG = load()
ENDLESS = 10_000

# Capability -> the first and the last branch that drive it; None: no first branch is documented, or
# all branches of the table are later.
SPAN: dict[ComputeCapability, tuple[int | None, int]] = {
    (3, 5): (None, 470), (3, 7): (None, 470), (5, 0): (None, 580), (5, 2): (None, 580),
    (5, 3): (None, 580), (6, 0): (None, 580), (6, 1): (None, 580), (6, 2): (None, 580),
    (7, 0): (None, 580), (7, 2): (None, 580), (7, 5): (410, ENDLESS), (8, 0): (450, ENDLESS),
    (8, 6): (455, ENDLESS), (8, 7): (None, ENDLESS), (8, 9): (520, ENDLESS), (9, 0): (520, ENDLESS),
    (10, 0): (570, ENDLESS), (10, 3): (580, ENDLESS), (10, 7): (615, ENDLESS),
    (11, 0): (None, ENDLESS), (12, 0): (570, ENDLESS), (12, 1): (580, ENDLESS),
}  # fmt: skip
# The small chips of a generation came later than its large ones.
LATER = {
    "NVIDIA GeForce GTX 1650": 418, "NVIDIA GeForce GTX 1660": 418,
    "NVIDIA GeForce GTX 1660 SUPER": 418, "NVIDIA GeForce GTX 1660 Ti": 418, "NVIDIA T1000": 418,
    "NVIDIA GeForce GTX 1650 Ti": 418, "NVIDIA T500": 418, "NVIDIA T550 Laptop GPU": 418,
    "NVIDIA T600 Laptop GPU": 418, "NVIDIA T1200 Laptop GPU": 418, "Quadro T2000": 418,
    "NVIDIA A16": 460, "NVIDIA A2": 460, "NVIDIA GeForce RTX 3050": 460,
    "NVIDIA GeForce RTX 3060": 460, "NVIDIA RTX A2000": 460, "NVIDIA RTX A2000 12GB": 460,
    "NVIDIA GeForce RTX 3050 Laptop GPU": 460, "NVIDIA GeForce RTX 3050 6GB Laptop GPU": 460,
    "NVIDIA RTX A1000 Laptop GPU": 460, "NVIDIA GeForce RTX 4060": 525,
    "NVIDIA GeForce RTX 4060 Ti": 525, "NVIDIA GeForce RTX 4070 Laptop GPU": 525,
    "NVIDIA RTX 2000 Ada Generation": 525,
}  # fmt: skip
# Seen running, in recorded outputs of nvidia-smi: the test data of netdata, telegraf,
# nvidia_gpu_exporter, NVIDIA's fleet-intelligence-agent and k8s-test-infra, the logs of
# AI-Hypercomputer/gpu-recipes and thamada/gls, issues of NVIDIA/open-gpu-kernel-modules and
# NVIDIA/k8s-device-plugin.
SEEN_RUNNING = [
    ("NVIDIA GeForce GTX 1660 Ti", "418.43"), ("Tesla V100S-PCIE-32GB", "450.51.05"),
    ("Tesla P100-PCIE-16GB", "510.47.03"), ("NVIDIA GeForce RTX 3060 Laptop GPU", "515.65.01"),
    ("Tesla T4", "515.105.01"), ("NVIDIA GeForce RTX 2080", "516.59"),
    ("NVIDIA GeForce RTX 4090", "535.86.05"), ("NVIDIA H100 80GB HBM3", "535.161.08"),
    ("NVIDIA GeForce RTX 3080", "536.40"), ("NVIDIA L4", "550.90.07"), ("NVIDIA A10", "550.90.12"),
    ("NVIDIA H200", "550.90.12"), ("NVIDIA RTX 2000 Ada Generation", "550.54.15"),
    ("NVIDIA A40", "550.127.05"), ("NVIDIA RTX A6000", "550.127.05"),
    ("Tesla V100-SXM2-16GB", "550.127.05"), ("NVIDIA A100-SXM4-80GB", "555.42.02"),
    ("NVIDIA TITAN V", "560.35.03"), ("NVIDIA H100 80GB HBM3", "565.57.01"),
    ("NVIDIA GeForce RTX 5090", "570.124.06"), ("NVIDIA B200", "570.133.20"),
    ("NVIDIA A100-SXM4-40GB", "570.148.08"), ("NVIDIA GeForce RTX 5090", "570.169"),
    ("NVIDIA GB200", "580.173.02"), ("NVIDIA GeForce RTX 2070", "590.44.01"),
    ("NVIDIA RTX A5000", "590.44.01"),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "590.44.01"),
    ("NVIDIA GeForce RTX 5080", "590.48.01"), ("NVIDIA GeForce RTX 2080 SUPER", "591.86"),
    ("NVIDIA GeForce RTX 3080", "595.58.03"),
]  # fmt: skip


def plan(*hosts: HostFacts, request: Request | None = None) -> Plan:
    return resolve(hosts, request or Request(), CATALOG)


def detected(driver: str, *gpus: str, by: str = "nvml") -> HostFacts:
    """A host as `provision detect` reads it."""
    sources = (("driver", "/sys/module/nvidia/version"), ("gpus", by))
    return host(driver, *gpus)._replace(sources=sources)


def is_driven(name: str, driver: str) -> bool:
    fleet = read_fleet([host(driver, name)], CATALOG)
    ((site, device),) = fleet.gpus
    return driven_blocker(site, device, CATALOG) is None


def test_every_gpu_is_refused_on_the_branches_that_do_not_drive_it_and_on_no_other() -> None:
    wrong = []
    for gpu in CATALOG.gpus:
        first, last = SPAN[gpu.compute_capability]
        first = LATER.get(gpu.name, first)
        for branch in CATALOG.branches:
            expected = (first or 0) <= branch.branch <= last
            if is_driven(gpu.name, f"{branch.branch}.99") != expected:
                wrong.append((gpu.name, branch.branch, expected))
    assert wrong == []


def test_a_refusal_names_a_driver_that_does_drive_the_gpu() -> None:
    """Whatever is refused as too old is not refused with the driver of the fix."""
    wrong = []
    for gpu in CATALOG.gpus:
        made = plan(host("410.48", gpu.name))
        if made.error is None or made.error.code != "gpu-not-driven":
            continue
        needed = made.driver_need or ""
        if f"{needed} or newer" not in made.error.fix or not is_driven(gpu.name, needed):
            wrong.append((gpu.name, made.error))
    assert wrong == []


@pytest.mark.parametrize(("gpu", "driver"), SEEN_RUNNING)
def test_what_was_seen_running_is_not_refused(gpu: str, driver: str) -> None:
    assert is_driven(gpu, driver)
    made = plan(host(driver, gpu))
    assert made.error is None or made.error.code != "gpu-not-driven"


@cases(
    "driver gpus words fix",
    ("a GeForce of the next generation", "535.104.05", ["NVIDIA GeForce RTX 5090"],
     ("does not support NVIDIA GeForce RTX 5090 (compute capability 12.0), which needs "
      "driver branch 570 or newer"), "Install NVIDIA driver 570.86.16 or newer."),
    ("a workstation card is listed later than its chip is driven", "535.104.05",
     ["NVIDIA RTX PRO 5000 Blackwell"], "needs driver branch 570", "570.153.02"),
    ("a driver older than any of the table", "390.157", ["NVIDIA GeForce RTX 5090"],
     "needs driver branch 570", "570.86.16"),
    ("a branch alone, a GPU by its number", "550", ["12.0"],
     "does not support a GPU of compute capability 12.0", "Install NVIDIA driver 570 or newer."),
    ("a data-centre GPU", "570.211.01", ["NVIDIA B300 SXM6 AC"], "needs driver branch 580",
     "580.82.07"),
    ("a laptop", "515.105.01", ["NVIDIA GeForce RTX 4090 Laptop GPU"], "needs driver branch 520",
     "525.89.02"),
    ("a small chip that came after the large ones", "520.61.05", ["NVIDIA GeForce RTX 4060"],
     "needs driver branch 525", "525.147.05"),
    ("a driver that dropped it", "595.45.04", ["Tesla P40"], "no longer supports Tesla P40",
     "driver branch 580"),
    ("no driver drives both", "470.82.01", ["Tesla K80", "NVIDIA L40S"],
     "does not support NVIDIA L40S", "NVIDIA L40S needs 520 or newer, Tesla K80 470 or older"),
)  # fmt: skip
def test_a_driver_that_cannot_drive_a_gpu_is_refused(
    driver: str, gpus: list[str], words: str, fix: str
) -> None:
    made = plan(host(driver, *gpus))
    assert (made.verdict, made.error and made.error.code) == ("none", "gpu-not-driven")
    assert made.error is not None
    assert words in made.error.message
    assert fix in made.error.fix


def test_of_several_gpus_the_one_is_named_and_only_it_is_marked() -> None:
    made = plan(host("550.54.14", "NVIDIA GeForce RTX 2080 Ti", "NVIDIA GeForce RTX 5080"))
    assert made.error is not None
    assert "RTX 5080" in made.error.message
    assert "2080" not in made.error.message
    assert [(gpu.runs, gpu.ok) for gpu in made.gpus] == [("sm_75", True), ("none", False)]
    assert [row.gpu for row in made.blocked if row.served_by is None] == ["NVIDIA GeForce RTX 5080"]


def test_of_several_hosts_the_one_is_named() -> None:
    new = host("580.95.05", "NVIDIA GeForce RTX 5090")._replace(label="new.json")
    old = host("535.104.05", "NVIDIA GeForce RTX 5090")._replace(label="old.json")
    made = plan(new, old)
    assert made.error is not None
    assert made.error.message.startswith("old.json: Driver 535.104.05 does not support")


def test_the_driver_comes_before_all_else_that_stands_against_a_build() -> None:
    """The second GPU's driver, not the first one's missing code, is what has to change first."""
    made = plan(host("470.82.01", "Tesla K40c", "NVIDIA H200"), request=Request(cuda="11.7"))
    assert made.error is not None
    assert made.error.code == "gpu-not-driven"
    assert "CUDA 11.7 needs driver" not in made.error.message


@pytest.mark.parametrize(
    "by", [pytest.param("nvml", id="NVML"), pytest.param("nvidia-smi", id="nvidia-smi")]
)
def test_a_gpu_that_the_running_driver_lists_is_believed(by: str) -> None:
    made = plan(detected("535.104.05", "NVIDIA GeForce RTX 5090", by=by))
    assert made.error is None
    assert "gpu-driver-differs" in {warning.code for warning in made.warnings}
    dropped = plan(detected("595.45.04", "Tesla V100-SXM2-16GB", by=by))
    assert dropped.error is None


def test_what_agrees_with_the_documents_is_no_warning() -> None:
    made = plan(detected("580.95.05", "NVIDIA GeForce RTX 5090"))
    assert {"gpu-driver-differs", "driver-older-than-gpu"}.isdisjoint(
        warning.code for warning in made.warnings
    )


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(
            detected("535.104.05", "NVIDIA GeForce RTX 5090", by="/proc/driver/nvidia/gpus"),
            id="the list of bound devices says nothing of whether they start",
        ),
        pytest.param(
            detected("535.104.05", "NVIDIA GeForce RTX 5090")._replace(
                sources=(("driver", "PROVISION_DRIVER"), ("gpus", "nvml"))
            ),
            id="a driver that the user states is not the one that listed them",
        ),
    ],
)
def test_a_reading_that_proves_nothing_does_not_excuse(facts: HostFacts) -> None:
    made = plan(facts)
    assert made.error is not None
    assert made.error.code == "gpu-not-driven"


def test_what_a_driver_lists_survives_the_host_file() -> None:
    facts = detected("535.104.05", "NVIDIA GeForce RTX 5090")
    again = parse_host(json.dumps(host_to_json(facts)), label="file")
    assert again.driver_reports_gpus


def test_where_no_first_branch_is_documented_there_is_a_warning_at_most() -> None:
    rows = [row._replace(adds_confidence="likely") for row in CATALOG.branches]
    said = CATALOG.with_tables(branches=tuple(rows))
    made = resolve([host("595.45.04", "NVIDIA Rubin (R100 class)")], Request(), said)
    assert made.error is None
    assert "driver-older-than-gpu" in {warning.code for warning in made.warnings}


def test_the_driver_of_jetpack_has_the_cuda_of_its_branch() -> None:
    """JetPack 7 numbers it 580.00, below the first one of that branch for other machines."""
    thor, other = (
        plan(host("580.00", gpu)._replace(arch="aarch64")) for gpu in ("NVIDIA Thor", "NVIDIA GB10")
    )
    assert (thor.cuda, thor.verdict) == ("13.0", "direct")
    assert other.verdict == "minor-version"


@cases(
    "words",
    ("plan", ["plan"]),
    ("plan --matrix", ["plan", "--matrix"]),
    ("plan --explain", ["plan", "--explain"]),
    ("plan --json", ["plan", "--json"]),
    ("lock", ["lock", "--output", "pylock.toml"]),
    ("build --dry-run", ["build", "--dry-run"]),
    ("build", ["build"]),
)
def test_every_command_ends_with_the_host_unfit(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    facts = HostFacts(arch="x86_64", python="3.11")
    monkeypatch.setattr("provision.host.detect", lambda: facts)
    assert cli.main([*words, "--gpu", "RTX 5090", "--driver", "535.104.05"]) == 4
    printed = capsys.readouterr()
    shown = " ".join((printed.out + printed.err).split())
    assert "Driver 535.104.05 does not support NVIDIA GeForce RTX 5090" in shown
    assert "Install NVIDIA driver 570.86.16 or newer." in shown
    assert list(tmp_path.iterdir()) == []


@cases(
    "facts request_ exit_code",
    ("the host has to change", host("595.45.04", "Tesla P40"), Request(), 4),
    ("the request may", host("515.65.01", "8.6"), Request(cuda="12.1"), 3),
)
def test_a_refusal_has_the_exit_code_of_what_has_to_change(
    facts: HostFacts, request_: Request, exit_code: int
) -> None:
    with pytest.raises(NothingCompatibleError) as caught:
        require_plan(plan(facts, request=request_))
    assert caught.value.exit_code == exit_code


@cases(
    "driver gpu cuda fix",
    ("the driver runs all of its major", "470.57.02", "NVIDIA GeForce GTX 1080 Ti", "12.1",
     "Upgrade the NVIDIA driver to 525.60.13 or newer (branch 580 at most)."),
    ("before CUDA 11 a driver runs its own CUDA", "440.33", "NVIDIA GeForce GTX 1080 Ti", "11.7",
     "Upgrade the NVIDIA driver to 450.80.02 or newer (branch 580 at most)."),
    ("every newer one drives it", "535.104.05", "NVIDIA GeForce RTX 3090", "13.0",
     "Upgrade the NVIDIA driver to 580 or newer."),
    ("no build for that CUDA has code for it", "535.104.05", "Quadro P6000", "13.0",
     "Use --cuda 12.6."),
)  # fmt: skip
def test_an_upgrade_is_advised_only_where_it_helps(
    driver: str, gpu: str, cuda: str, fix: str
) -> None:
    made = plan(host(driver, gpu), request=Request(cuda=cuda))
    assert made.error is not None
    assert made.error.fix.rpartition(" Else: ")[2] == fix


def test_no_upgrade_is_advised_to_a_driver_that_dropped_the_gpu() -> None:
    site = read_fleet([host("470.256.02", "Tesla K80")], CATALOG).sites[0]
    found = driver_blocker(site, fit_driver(site, "12.9", CATALOG), CATALOG)
    assert found is not None
    assert "Driver 525.60.13 no longer supports Tesla K80." in found.message


@cases(
    "facts request_ fix",
    ("the CUDA whose builds have code", host("535.104.05", "NVIDIA H100 PCIe"),
     Request(cuda="11.7"), "Use --cuda 11.8, or use --cuda 12.6."),
    ("also where the driver has to change first", host("535.104.05", "NVIDIA GeForce RTX 5090"),
     Request(cuda="11.7"), "Install NVIDIA driver 570.86.16 or newer, and use --cuda 12.8"),
    ("there is none at all", host("470.256.02", "Tesla K40c"), Request(),
     "The catalog has no build of PyTorch with code for Tesla K40c."),
    ("a Jetson has its own", host("540.4.0", "Orin", arch="aarch64"), Request(),
     "Use NVIDIA's own builds of PyTorch for Orin:"),
)  # fmt: skip
def test_a_gpu_without_code_is_told_which_builds_have_it(
    facts: HostFacts, request_: Request, fix: str
) -> None:
    made = plan(facts, request=request_)
    assert made.error is not None
    assert fix in made.error.fix


@cases(
    "gpu arch",
    ("Grace Hopper", "GH200", "aarch64"),
    ("Grace Blackwell", "NVIDIA GB200", "aarch64"),
    ("a desktop with Grace", "DGX Spark", "aarch64"),
    ("a Jetson", "Jetson AGX Thor", "aarch64"),
    ("a card for any machine", "H200", "x86_64"),
)
def test_a_gpu_that_is_part_of_a_machine_says_what_machine_it_is(
    gpu: str, arch: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked about on a laptop, it is not planned for the laptop's processor."""
    monkeypatch.setattr("provision.host.detect", lambda: HostFacts(arch="x86_64"))
    assert cli.main(["plan", "--json", "--gpu", gpu, "--driver", "580.95.05"]) == 0
    assert json.loads(capsys.readouterr().out)["arch"] == arch


def test_a_host_file_is_believed_about_its_processor_and_warned_of() -> None:
    made = plan(host("580.95.05", "NVIDIA GH200 480GB"))
    assert made.arch == "x86_64"
    assert "gpu-other-arch" in {warning.code for warning in made.warnings}
    assert plan(host("580.95.05", "NVIDIA GH200 480GB")._replace(arch=None)).arch == "aarch64"


def test_the_processor_is_shown_where_it_is_not_the_usual_one() -> None:
    shown = describe_plan(plan(host("580.95.05", "NVIDIA GH200 480GB", arch="aarch64")))
    assert "for aarch64" in " ".join(shown.split())
