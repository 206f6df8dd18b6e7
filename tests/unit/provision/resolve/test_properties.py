"""What holds of every plan, over the whole catalog: every GPU, driver branch, CUDA, framework."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from provision.catalog.loading import load
from provision.model.plan import ComputeCapability, Gpu, HostFacts, Plan, Request
from provision.resolve import fitting_builds, matrix, resolve
from provision.resolve.specifiers import version

CATALOG = load()
RANK = ("direct", "minor-version", "forward", "unverified", "none")
CUDNN = "cudnn-dropped-gpu"  # the warning that a GPU is too old for the cuDNN of a build
DRIVERS = tuple(row.first_version or f"{row.branch}.10" for row in CATALOG.branches)
CUDAS = st.sampled_from([None, None, *CATALOG.cuda_versions()])
FRAMEWORKS = st.sampled_from(["pytorch", "pytorch", "tensorflow", "jax"])
ARCHS = st.sampled_from(["x86_64", "x86_64", "x86_64", "aarch64"])
PYTHONS = st.sampled_from([None, None, None, "3.9", "3.11", "3.13"])
GPUS = st.one_of(
    st.sampled_from(CATALOG.gpus).map(lambda row: Gpu(name=row.name)),
    st.sampled_from(sorted({row.compute_capability for row in CATALOG.gpus})).map(
        lambda capability: Gpu(compute_capability=capability)
    ),
)
REQUESTS = st.builds(
    lambda cuda, framework, python: Request(cuda=cuda, framework=framework, python=python),
    CUDAS,
    FRAMEWORKS,
    PYTHONS,
)
HOSTS = st.builds(
    lambda driver, gpus, arch: HostFacts(driver=driver, gpus=tuple(gpus), arch=arch),
    st.sampled_from(DRIVERS),
    st.lists(GPUS, min_size=1, max_size=3),
    ARCHS,
)


def plan(request: Request, *hosts: HostFacts) -> Plan:
    return resolve(hosts, request, CATALOG)


def plans(request: Request, *hosts: HostFacts) -> bool:
    """Whether there is a plan, without a refusal's texts, which need many other plans."""
    return bool(fitting_builds(hosts, request, CATALOG))


def capability(gpu: Gpu) -> ComputeCapability | None:
    return gpu.compute_capability or CATALOG.find_gpu(gpu.name or "").compute_capability


@settings(max_examples=150)
@given(REQUESTS, HOSTS)
def test_a_plan_serves_every_gpu_and_a_refusal_has_a_fix(
    request_: Request, host: HostFacts
) -> None:
    made = plan(request_, host)
    if made.error is not None:
        assert made.error.fix
        assert made.error.message
        return
    assert made.base is not None
    assert made.verdict == "unverified" or all(gpu.ok for gpu in made.gpus)
    assert all(reason.source for reason in made.reasons)


@settings(max_examples=150)
@given(REQUESTS, HOSTS)
def test_every_alternative_resolves(request_: Request, host: HostFacts) -> None:
    for row in plan(request_, host).alternatives:
        named = request_._replace(
            cuda=row.cuda,
            framework_version=f"=={row.framework_version}",
            python=None if "without --python" in row.why else request_.python,
        )
        assert plan(named, host).error is None


@settings(max_examples=100)
@given(REQUESTS, HOSTS)
def test_a_newer_driver_never_takes_a_plan_away(request_: Request, host: HostFacts) -> None:
    """Two exceptions, both by rule: a branch that dropped the GPU, and cuda-compat, which NVIDIA
    lists branch by branch.
    """
    oldest = min(capability(gpu) or (99, 0) for gpu in host.gpus or ())
    served_by = None
    for branch, driver in zip(CATALOG.branches, DRIVERS, strict=True):
        if branch.dropped_below > oldest:
            break
        driven = host._replace(driver=driver)
        served = plans(request_, driven)
        assert served_by is None or served, f"{served_by} served, {driver} does not"
        if served and served_by is None and plan(request_, driven).compat_package is None:
            served_by = driver


@settings(max_examples=150)
@given(REQUESTS, HOSTS, GPUS)
def test_another_gpu_never_helps(request_: Request, host: HostFacts, other: Gpu) -> None:
    more = host._replace(gpus=(*(host.gpus or ()), other))
    before, after = plan(request_, host), plan(request_, more)
    assert before.error is None or after.error is not None
    if after.error is None:
        assert version(after.framework_version or "0") <= version(before.framework_version or "0")


@settings(max_examples=100)
@given(REQUESTS, HOSTS, HOSTS)
def test_a_second_host_never_helps(request_: Request, one: HostFacts, other: HostFacts) -> None:
    other = other._replace(arch=one.arch, label="other")
    assume(not plans(request_, one))
    assert not plans(request_, one, other)


@settings(max_examples=100)
@given(REQUESTS, st.lists(HOSTS, min_size=2, max_size=4))
def test_the_order_of_hosts_does_not_matter(request_: Request, hosts: list[HostFacts]) -> None:
    named = [host._replace(arch="x86_64", label=f"h{i}") for i, host in enumerate(hosts)]
    first = plan(request_, *named)
    second = plan(request_, *named[::-1])
    assert plans(request_, *named) == (first.error is None)
    assert (first.verdict, first.framework_version, first.cuda) == (
        second.verdict,
        second.framework_version,
        second.cuda,
    )


@settings(max_examples=100)
@given(FRAMEWORKS, HOSTS)
def test_nothing_known_to_exist_is_newer_and_fits_as_well(framework: str, host: HostFacts) -> None:
    """A build does not fit as well if its cuDNN does not support a GPU that the plan's does."""
    request = Request(framework=framework)  # type: ignore[arg-type]
    made = plan(request, host)
    assume(made.error is None)
    for cell in matrix((host,), request, CATALOG):
        fits_as_well = RANK.index(cell.verdict) <= RANK.index(made.verdict)
        newer = version(cell.framework_version) > version(made.framework_version or "0")
        if cell.existence == "confirmed" and fits_as_well and newer:
            asked = f"=={cell.framework_version}"
            other = plan(request._replace(framework_version=asked, cuda=cell.cuda), host)
            assert CUDNN in {one.code for one in other.warnings}
            assert CUDNN not in {one.code for one in made.warnings}


@settings(max_examples=100)
@given(REQUESTS, HOSTS)
def test_the_matrix_and_the_plan_agree(request_: Request, host: HostFacts) -> None:
    """Builds that hardly exist are shown in the matrix, and planned by their CUDA only."""
    made = plan(request_, host)
    cells = matrix((host,), request_, CATALOG)
    counted = [c for c in cells if c.existence != "doubtful" or request_.cuda is not None]
    assert (made.error is None) == any(cell.verdict != "none" for cell in counted)
    assert (made.error is None) == plans(request_, host)
    assert all((cell.code is None) == (cell.verdict != "none") for cell in cells)


@settings(max_examples=100)
@given(HOSTS)
def test_a_gpu_that_nobody_knows_makes_every_plan_unverified(host: HostFacts) -> None:
    unknown = host._replace(gpus=(Gpu(name="NVIDIA Something 9000"),))
    made = plan(Request(), unknown)
    assert made.verdict in {"unverified", "none"}


def test_every_gpu_of_the_catalog_has_a_plan_on_some_driver() -> None:
    """Kepler and Tegra are served by old builds, or by none of PyTorch's: then it says so."""
    unserved = []
    for row in CATALOG.gpus:
        if row.compute_capability in CATALOG.tegra_capabilities or row.compute_capability < (3, 7):
            continue
        arch = "aarch64" if row.kind in {"jetson", "dgx-spark"} else "x86_64"
        hosts = (HostFacts(driver=d, arch=arch, gpus=(Gpu(name=row.name),)) for d in DRIVERS)
        if not any(plans(Request(), host) for host in hosts):
            unserved.append(row.name)
    assert unserved == []
