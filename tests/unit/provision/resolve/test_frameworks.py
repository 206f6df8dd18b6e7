"""TensorFlow, JAX, aarch64, bases: the rules that only some builds meet."""

from __future__ import annotations

from provision.catalog.loading import load
from provision.model.plan import HostFacts, Plan, Request
from provision.model.request import parse_request
from provision.resolve import resolve
from tests.kit.cases import cases
from tests.kit.hosts import host

CATALOG = load()


def plan(request: Request, *hosts: HostFacts) -> Plan:
    return resolve(hosts, request, CATALOG)


def tensorflow(version: str | None = None, cuda: str | None = None) -> Request:
    return parse_request(framework="tensorflow", framework_version=version, cuda=cuda)


def jax(version: str | None = None, cuda: str | None = None) -> Request:
    return parse_request(framework="jax", framework_version=version, cuda=cuda)


@cases(
    "request_ facts verdict version cuda",
    ("the newest release, with the CUDA it was built on", tensorflow(), host("580.95.05", "8.6"),
     "direct", "2.21.0", "12.5"),
    ("by minor-version where the driver is older", tensorflow(), host("535.104.05", "8.6"),
     "minor-version", "2.21.0", "12.5"),
    ("driver 450 gets the last release on CUDA 11", tensorflow(), host("450.80.02", "7.0"),
     "minor-version", "2.14.1", "11.8"),
    ("but no PTX that it cannot compile, nor a base that it does not start", tensorflow(),
     host("450.80.02", "8.0"), "minor-version", "2.11.1", "11.2"),
    ("a driver that can compile that PTX takes it", tensorflow(), host("470.82.01", "8.6"),
     "minor-version", "2.14.1", "11.8"),
    ("an H100 on 535 gets the last release whose PTX it compiles", tensorflow(),
     host("535.104.05", "9.0"), "minor-version", "2.16.2", "12.3"),
    ("PTX for sm_90a suits no Blackwell GPU", tensorflow("2.20.0"), host("580.95.05", "10.0"),
     "none", "", ""),
    ("a release that takes CUDA from the system", tensorflow("2.11.0"), host("515.65.01", "8.6"),
     "direct", "2.11.0", "11.2"),
    ("the newest on the CUDA asked for", tensorflow(cuda="11.8"), host("535.104.05", "8.6"),
     "direct", "2.14.1", "11.8"),
    ("sm_60 code runs on a Pascal card", tensorflow(), host("580.95.05", "6.1"), "direct", "2.21.0",
     "12.5"),
    ("a Maxwell card gets the last release with its code", tensorflow(), host("580.95.05", "5.2"),
     "direct", "2.16.2", "12.3"),
    ("no release has code for 12.0, and PTX for sm_90a does not run there", tensorflow("<2.21"),
     host("580.95.05", "NVIDIA GeForce RTX 5090"), "none", "", ""),
    ("2.21 has PTX that every later GPU compiles", tensorflow(),
     host("580.95.05", "NVIDIA GeForce RTX 5090"), "direct", "2.21.0", "12.5"),
    ("the wheels for aarch64 are CPU builds", tensorflow(),
     host("580.95.05", "9.0", arch="aarch64"), "none", None, None),
    ("JAX with the highest CUDA that the driver supports", jax(), host("580.95.05", "12.0"),
     "direct", "0.12.0.1", "13.0"),
    ("and on an older driver with the plugin for CUDA 12", jax(), host("570.124.06", "12.0"),
     "direct", "0.12.0.1", "12.8"),
    ("no toolkit that it can stand beside is native to driver 535", jax(),
     host("535.104.05", "8.6"), "minor-version", "0.12.0.1", "12.6"),
    ("an older JAX with an older toolkit", jax("0.4.30"), host("535.104.05", "8.6"),
     "direct", "0.4.30", "12.2"),
    ("one that is not beside the newest of its major", jax("0.6.1"), host("580.95.05", "8.6"),
     "direct", "0.6.1", "12.8"),
    ("one whose parts do not belong together is not offered", jax("0.4.32"),
     host("580.95.05", "8.6"), "none", "", None),
    ("nor one whose extra cannot be installed", tensorflow("2.15.0"), host("580.95.05", "8.6"),
     "none", "", ""),
    ("CUDA 13 cannot compile for a V100, 12 can", jax(), host("580.95.05", "7.0"), "direct",
     "0.12.0.1", "12.9"),
    ("CUDA 12.6 cannot compile for 12.0", jax(cuda="12.6"), host("580.95.05", "12.0"), "none", "",
     "12.6"),
    ("no plugin runs on a driver for CUDA 11", jax(), host("515.65.01", "8.6"), "none", "", None),
)  # fmt: skip
def test_what_comes_out(
    request_: Request, facts: HostFacts, verdict: str, version: str | None, cuda: str | None
) -> None:
    made = plan(request_, facts)
    assert made.verdict == verdict
    assert (made.cuda or "") == (cuda or "")
    assert (made.framework_version or "") == (version or "")
    assert made.wheel_tag is None


def test_a_tensorflow_that_expects_cuda_of_the_system_gets_a_base_with_it() -> None:
    made = plan(tensorflow("2.13.1"), host("535.104.05", "8.6"))
    assert made.base is not None
    assert made.base.reference == "docker.io/nvidia/cuda:11.8.0-cudnn8-runtime-ubuntu22.04"
    assert made.indexes[0].requirement == "tensorflow==2.13.1"


def test_a_base_without_cuda_below_such_a_tensorflow_is_warned_of() -> None:
    request = parse_request(
        framework="tensorflow", framework_version="2.13.1", base="python:3.10-slim-bookworm"
    )
    made = plan(request, host("535.104.05", "8.6"))
    assert "base-must-bring-cuda" in {warning.code for warning in made.warnings}


def test_a_fleet_is_judged_by_the_drivers_that_run_by_minor_version() -> None:
    # No table is asked whether 470 drives the GPU: the driver lists it.
    listed = (("driver", "/proc/driver/nvidia/version"), ("gpus", "nvml"))
    new = host("535.104.05", "9.0", label="new")
    old = host("470.82.01", "9.0", label="old")._replace(sources=listed)
    request = tensorflow("2.16.2")
    assert plan(request, new).verdict == "minor-version"
    assert plan(request, old).verdict == "forward"
    assert plan(request, new, old).verdict == "forward"


def test_a_tensorflow_that_brings_cuda_gets_a_base_without() -> None:
    made = plan(tensorflow("2.18.1"), host("580.95.05", "8.6"))
    assert made.base is not None
    assert "nvidia/cuda" not in made.base.reference
    assert made.indexes[0].requirement == "tensorflow[and-cuda]==2.18.1"
    assert (made.cudnn, made.nccl) == ("9.3.0.75", "2.21.5")


@cases(
    "request_ facts pin",
    ("a V100 keeps the last cuDNN that lists it", tensorflow("2.20.0"), host("580.95.05", "7.0"),
     "9.10.2.21"),
    ("and so does Pascal", jax(), host("580.95.05", "6.1"), "9.10.2.21"),
    ("others get the newest", jax(), host("570.124.06", "8.6"), "9.28.0.42"),
)  # fmt: skip
def test_an_open_range_of_cudnn_is_closed_for_the_oldest_gpu(
    request_: Request, facts: HostFacts, pin: str
) -> None:
    made = plan(request_, facts)
    assert made.cudnn == pin
    assert f"nvidia-cudnn-cu12=={pin}" in made.requirements
    assert "cudnn-chosen" in {reason.code for reason in made.reasons}


@cases(
    "version requirement",
    ("up to 2.11 it is the same content", "2.11.0", "tensorflow==2.11.0"),
    ("2.12.0 is a stub", "2.12.0", "tensorflow==2.12.0"),
    ("nothing follows", None, "tensorflow[and-cuda]==2.21.0"),
)
def test_tensorflow_gpu_is_answered_with_its_replacement(
    version: str | None, requirement: str
) -> None:
    request = parse_request(framework="tensorflow-gpu", framework_version=version)
    made = plan(request, host("580.95.05", "8.6"))
    said = {warning.code: warning for warning in made.warnings}
    assert made.indexes[0].requirement == requirement
    assert requirement in said["framework-renamed"].fix
    assert "stub" in said["framework-renamed"].message


def test_an_extra_is_planned_for_a_python_that_it_can_be_installed_for() -> None:
    made = plan(tensorflow("2.14.1"), host("580.95.05", "8.6", python="3.11"))
    assert made.python == "3.10"


def test_jax_locks_the_toolkit_that_was_chosen() -> None:
    made = plan(jax(), host("570.124.06", "12.0"))
    assert made.indexes[0].requirement == "jax[cuda12]==0.12.0.1"
    assert any(line.endswith("==12.8.*") for line in made.requirements)


@cases(
    "driver gpu cuda package base",
    ("an A100 on 535", "535.104.05", "NVIDIA A100-SXM4-80GB", "13.0", "cuda-compat-13-0",
     "13.0.2-base-ubuntu24.04"),
    ("a V100 on 470", "470.82.01", "Tesla V100-SXM2-16GB", "12.4", "cuda-compat-12-4",
     "12.4.1-base-ubuntu22.04"),
    ("a capability that only data-centre GPUs have", "535.104.05", "9.0", "13.0",
     "cuda-compat-13-0", "13.0.2-base-ubuntu24.04"),
)  # fmt: skip
def test_forward_compatibility_brings_its_package(
    driver: str, gpu: str, cuda: str, package: str, base: str
) -> None:
    made = plan(Request(cuda=cuda), host(driver, gpu))
    assert (made.verdict, made.compat_package) == ("forward", package)
    assert made.base is not None
    assert made.base.reference == f"docker.io/nvidia/cuda:{base}"
    assert "needs-cuda-compat" in {warning.code for warning in made.warnings}


@cases(
    "driver gpu",
    ("never on a GeForce", "535.104.05", "NVIDIA GeForce RTX 4090"),
    ("nor where only some servers have it", "535.104.05", "NVIDIA RTX A6000"),
    ("nor on a capability that GeForce cards share", "535.104.05", "8.6"),
    ("nor on a branch not listed", "525.147.05", "NVIDIA A100-SXM4-80GB"),
)
def test_forward_compatibility_is_refused_elsewhere(driver: str, gpu: str) -> None:
    made = plan(Request(cuda="13.0"), host(driver, gpu))
    assert made.error is not None
    assert made.error.code == "driver-too-old"


def test_debian_has_no_cuda_compat() -> None:
    request = Request(cuda="13.0", base="bootstrap")
    made = plan(request, host("535.104.05", "NVIDIA A100-SXM4-80GB"))
    assert made.error is not None
    assert made.error.code == "no-compat-base"


@cases(
    "gpu runs code",
    ("8.9 runs sm_86", "NVIDIA L40S", "sm_86 binary", None),
    ("10.3 runs sm_100", "10.3", "sm_100 binary", None),
    ("12.1 runs sm_120", "12.1", "sm_120 binary", None),
    ("nobody has shown it on 10.7", "10.7", "sm_100 binary", "binary-unproven"),
    ("nor on what nobody knows", "12.9", "sm_120 binary", "binary-unproven"),
)
def test_code_of_a_lower_minor_runs_with_a_note(gpu: str, runs: str, code: str | None) -> None:
    """A note where it is known to run, a warning where nobody has shown it."""
    made = plan(Request(framework_version="==2.15.0"), host("615.10", gpu))
    assert made.gpus[0].runs == runs
    assert made.gpus[0].ok
    assert [note.code for note in made.notes] == ([] if code else ["older-binary-code"])
    warned = {warning.code for warning in made.warnings}
    assert code in warned if code else "binary-unproven" not in warned


@cases(
    "base facts code",
    ("a GeForce below the image's CUDA is refused", "nvidia/cuda:12.8.1-devel-ubuntu22.04",
     host("535.104.05", "NVIDIA GeForce RTX 4090"), "base-refuses-to-start"),
    ("one GPU that is refused is enough", "nvidia/cuda:12.8.1-devel-ubuntu22.04",
     host("535.104.05", "NVIDIA GeForce RTX 4090", "NVIDIA L40S"), "base-refuses-to-start"),
    ("from a mirror too", "m.example/nvidia/cuda:12.8.1-devel-ubuntu22.04",
     host("535.104.05", "NVIDIA GeForce RTX 4090"), "base-refuses-to-start"),
    ("a data-centre GPU is listed for its branch", "nvidia/cuda:12.8.1-devel-ubuntu22.04",
     host("535.104.05", "NVIDIA L40S"), None),
    ("older images list GeForce too", "nvidia/cuda:12.4.1-devel-ubuntu22.04",
     host("535.104.05", "NVIDIA GeForce RTX 4090"), None),
    ("a driver for that CUDA starts it on anything", "nvidia/cuda:12.8.1-devel-ubuntu22.04",
     host("570.124.06", "NVIDIA GeForce RTX 4090"), None),
)  # fmt: skip
def test_the_start_rule_of_a_base(base: str, facts: HostFacts, code: str | None) -> None:
    cuda = base.rpartition(":")[2][:4]
    made = plan(Request(cuda=cuda, base=base), facts)
    assert (made.error.code if made.error else None) == code


def test_a_devel_base_is_chosen_that_starts() -> None:
    made = plan(Request(flavour="devel"), host("535.104.05", "NVIDIA GeForce RTX 4090"))
    assert made.base is not None
    assert made.error is None
    again = plan(
        Request(cuda=made.cuda, base=made.base.reference),
        host("535.104.05", "NVIDIA GeForce RTX 4090"),
    )
    assert again.error is None


def test_an_unknown_brand_is_said_and_not_refused() -> None:
    base = "nvidia/cuda:12.8.1-devel-ubuntu22.04"
    made = plan(Request(cuda="12.8", base=base), host("535.104.05", "8.6"))
    assert made.error is None
    assert "base-start-not-known" in {warning.code for warning in made.warnings}


def test_what_is_only_likely_to_exist_is_an_alternative() -> None:
    made = plan(Request(), host("580.95.05", "NVIDIA GeForce RTX 5090"))
    assert (made.verdict, made.wheel_tag) == ("direct", "cu130")
    assert "build-likely" not in {warning.code for warning in made.warnings}
    assert any("likely" in row.why for row in made.alternatives)


def test_what_hardly_exists_is_unverified_and_only_on_demand() -> None:
    made = plan(Request(cuda="13.4"), host("615.10", "8.6"))
    assert made.verdict == "unverified"
    assert "build-doubtful" in {warning.code for warning in made.warnings}
    assert plan(Request(), host("615.10", "8.6")).cuda != "13.4"


def test_a_capability_against_the_catalog_s_is_believed_and_said() -> None:
    from provision.model.plan import Gpu

    facts = HostFacts(
        driver="580.95.05",
        arch="x86_64",
        gpus=(Gpu(name="NVIDIA GeForce RTX 3090", compute_capability=(9, 0)),),
    )
    made = plan(Request(), facts)
    assert made.gpus[0].runs == "sm_90"
    assert "gpu-capability-differs" in {warning.code for warning in made.warnings}


def test_a_fleet_of_strangers_hears_who_is_served_by_what() -> None:
    made = plan(
        Request(),
        host("580.95.05", "NVIDIA GeForce GTX 1080 Ti", label="old"),
        host("580.95.05", "NVIDIA GeForce RTX 5090", label="new"),
    )
    assert made.error is not None
    assert made.error.code == "no-common-build"
    assert [(row.host, row.compute_capability) for row in made.blocked] == [
        ("old", "6.1"),
        ("new", "12.0"),
    ]
    assert all(row.served_by for row in made.blocked)


def test_ten_thousand_equal_nodes_are_one_row() -> None:
    nodes = [host("580.95.05", "8.0", label=f"n{i}") for i in range(10_000)]
    nodes.append(host("515.65.01", "8.6", label="late"))
    made = plan(Request(cuda="13.0"), *nodes)
    assert made.error is not None
    assert "late: " in made.error.message
    assert len(plan(Request(), *nodes).gpus) == 2


@cases(
    "gpu warns",
    ("CUDA 12.5 does not know compute capability 12.0", "RTX 5080", True),
    ("it knows 9.0", "H100", False),
)
def test_xla_aborts_where_its_cuda_is_older_than_the_gpu(gpu: str, warns: bool) -> None:  # noqa: FBT001
    made = plan(tensorflow("2.21.0"), host("580.95.05", gpu))
    assert ("xla-older-than-gpu" in {warning.code for warning in made.warnings}) is warns
