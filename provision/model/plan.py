"""The values passed between packages: host facts and request in, plan out. All immutable and plain.

Parsing happens once, at the edges (`facts` and `request` beside this, `provision.catalog`); later
code never sees a raw dict. A fact that could not be read is None here, and an `Absent` row says
which source was tried and why it did not answer: never a plausible default.

Versions are strings in the upstream spelling ("450.80.02"); decisions compare them through
`packaging.version.Version`, which would print that one as 450.80.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from typing import TypeAlias

Verdict: TypeAlias = Literal["direct", "minor-version", "forward", "unverified", "none"]
Framework: TypeAlias = Literal["pytorch", "tensorflow", "jax"]
Flavour: TypeAlias = Literal["runtime", "devel"]
IndexKind: TypeAlias = Literal["index", "default", "links", "silent"]
ComputeCapability: TypeAlias = "tuple[int, int]"  # (8, 6) for 8.6

TITLES: dict[Framework, str] = {"pytorch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX"}
"""How the frameworks write their own names."""
RUNS: dict[str, str] = {
    "direct": "runs",
    "minor-version": "runs by minor-version compatibility",
    "forward": "runs with cuda-compat",
    "unverified": "not checked",
    "none": "does not run",
}
"""The verdicts for people, by their codes."""
PACKAGES: dict[Framework, str] = {"pytorch": "torch", "tensorflow": "tensorflow", "jax": "jax"}
"""What their packages are called on an index."""


class Gpu(NamedTuple):
    """One GPU of the host. `memory_mib` in MiB; `mig` is whether MIG mode is on."""

    name: str | None = None
    compute_capability: ComputeCapability | None = None
    memory_mib: int | None = None
    uuid: str | None = None
    mig: bool | None = None


class Absent(NamedTuple):
    """A fact that could not be read: which, from which source, and why."""

    fact: str
    source: str
    reason: str


class Engine(NamedTuple):
    """A container engine seen on the host.

    `gpu_runtime` is whether the NVIDIA runtime is registered with it; `cdi_devices` are the
    CDI names it could inject ("nvidia.com/gpu=0"); None: the engine could not be queried.
    """

    name: Literal["docker", "podman"]
    client: str | None = None
    server: str | None = None
    buildkit: str | None = None  # "buildx 0.13.1", "integrated", None: none
    gpu_runtime: bool | None = None
    cdi_devices: tuple[str, ...] | None = None
    problem: str | None = None  # why `server` is None


class HostFacts(NamedTuple):
    """What is known of one machine. `gpus` None: not known; (): none there.

    Three facts, never one: `driver` is the kernel module's version, `user_mode_driver` that of
    libcuda / libnvidia-ml, `driver_cuda` the highest CUDA that the driver says it supports.
    `sources` names the source of each fact ("nvml", "/proc/driver/nvidia/version", ...).
    """

    driver: str | None = None
    user_mode_driver: str | None = None
    driver_cuda: str | None = None
    arch: str | None = None
    glibc: str | None = None
    os_id: str | None = None
    os_version: str | None = None
    python: str | None = None
    wsl: bool | None = None
    gpus: tuple[Gpu, ...] | None = None
    engines: tuple[Engine, ...] | None = None
    sources: tuple[tuple[str, str], ...] = ()
    absent: tuple[Absent, ...] = ()
    label: str = "this host"

    @property
    def driver_reports_gpus(self) -> bool:
        """Whether the running driver itself listed these GPUs: then it drives them, whatever a
        table says. A driver version given by the user (PROVISION_DRIVER, --driver) did not.
        """
        sources = dict(self.sources)
        stated = sources.get("driver") in {None, "PROVISION_DRIVER"}
        return not stated and sources.get("gpus") in {"nvml", "nvidia-smi"}

    def with_driver(self, driver: str) -> HostFacts:
        """The same machine, assumed to have another driver."""
        read = tuple(pair for pair in self.sources if pair[0] != "driver")
        return self._replace(driver=driver, driver_cuda=None, user_mode_driver=None, sources=read)


class DeclaredIndex(NamedTuple):
    """Where a project says that packages are: an `index`, one in place of the installer's `default`
    one, or a page of `links` to wheels, which is `silent` if it did not answer. `url` has no login;
    `where`: "requirements.txt, line 1"; `name`: that by which uv's variables give its login, or "".
    """

    url: str
    kind: IndexKind
    where: str = ""
    name: str = ""


class PackageIndexes(NamedTuple):
    """Where the packages of a request are: the index of --index, and the places of a project."""

    given: str | None = None
    declared: tuple[DeclaredIndex, ...] = ()

    @property
    def names(self) -> dict[str, str]:
        """The addresses of the indexes that have a name, by it."""
        return {one.name: one.url for one in self.declared if one.name}


class Request(NamedTuple):
    """What the user asked for, parsed. Everything None or empty is left to the resolver."""

    cuda: str | None = None
    framework: Framework = "pytorch"
    asked_as: str | None = None  # an old name of the framework ("tensorflow-gpu")
    framework_version: str | None = None  # a PEP 440 specifier set
    python: str | None = None
    companions: tuple[str, ...] = ()  # PEP 508 requirements
    flavour: Flavour | None = None
    base: str | None = None  # image reference, "bootstrap", or None: we choose
    index_url: str | None = None
    led_by: str | None = None  # the packages that chose `framework_version`: "vllm 0.33.0"
    declared_in: str | None = None  # the file of a project that says the rest: "uv.lock"
    pythons: tuple[str, ...] = ()  # the only ones that it may have ("3.11"); (): any
    constraints: tuple[str, ...] = ()  # PEP 508 requirements that limit versions, install nothing
    addresses: tuple[str, ...] = ()  # whole ones of wheels, with logins and queries: never shown
    indexes: tuple[DeclaredIndex, ...] = ()  # of the project, in its order
    settled: bool = False  # every version is pinned: packages have no release to choose
    notes: tuple[Note, ...] = ()  # remarks on the request, which its plan has, too
    apt: tuple[str, ...] = ()  # Debian packages that the base must have ("g++"), sorted

    @property
    def bootstraps(self) -> bool:
        """Whether the base is built from Debian packages: as requested, or for `apt`."""
        return self.base == "bootstrap" or (self.base is None and bool(self.apt))

    @property
    def places(self) -> PackageIndexes:
        """The indexes that it names."""
        return PackageIndexes(self.index_url, self.indexes)


class Reason(NamedTuple):
    """Why a choice was made, with the public source of the rule or the fact."""

    code: str
    message: str
    source: str


class Warned(NamedTuple):
    """A problem that does not stop the plan, with its fix."""

    code: str
    message: str
    fix: str


class Note(NamedTuple):
    """Something worth knowing about a plan that needs no action."""

    code: str
    message: str


class Alternative(NamedTuple):
    """A similar combination that was itself resolved and found to work."""

    cuda: str
    wheel_tag: str | None
    framework_version: str
    why: str


class Blocked(NamedTuple):
    """One row of which GPU blocks what: a GPU that shares no build with the others.

    `host` None: the only host. `served_by` is what would serve it alone, in words; None: nothing
    would.
    """

    host: str | None
    gpu: str | None
    compute_capability: str | None
    served_by: str | None
    message: str


class LimitedBy(NamedTuple):
    """The hosts that limit a plan, why, and the build that would be chosen without them."""

    hosts: tuple[str, ...]
    because: str
    cuda: str
    wheel_tag: str | None
    framework_version: str
    verdict: Verdict

    def words(self, framework: Framework, said: str = "") -> str:
        """One or two sentences. Leaves out what is in `said`."""
        more = len(self.hosts) - 3
        hosts = ", ".join(self.hosts[:3]) + (f" and {more} more" if more > 0 else "")
        why = "." if self.because in said else f": {self.because}"
        tag = f" ({self.wheel_tag})" if self.wheel_tag else f" (CUDA {self.cuda})"
        return (
            f"{hosts}{why} Without {'it' if len(self.hosts) == 1 else 'them'}: "
            f"{TITLES[framework]} {self.framework_version}{tag}, {RUNS[self.verdict]}."
        )


class PlanError(NamedTuple):
    """Why nothing fits: stable code, sentence, what to type."""

    code: str
    message: str
    fix: str


class GpuVerdict(NamedTuple):
    """What one GPU will run: `runs` is "sm_86", "sm_80 binary", "PTX", "none" or "unknown"."""

    name: str | None
    compute_capability: str | None
    runs: str
    ok: bool


class IndexCandidate(NamedTuple):
    """A place that may have the wheels: `url` None is the installer's own default index.

    `requirement` is the framework's requirement line as that place spells it
    ("torch==2.0.1+cu117" on the PyTorch index, "torch==2.0.1" on PyPI).
    """

    name: str
    url: str | None
    requirement: str
    why: str

    @property
    def address(self) -> str:
        """The index URL for display: without credentials; "pypi" for the default one."""
        if self.url is None:
            return "pypi"
        scheme, slashes, rest = self.url.partition("://")
        host, slash, path = rest.partition("/")
        return f"{scheme}{slashes}{host.rpartition('@')[2]}{slash}{path}"


class DebianPackage(NamedTuple):
    """A package of Debian in a base. `sha256` is that of its file, in hex digits."""

    name: str
    version: str
    sha256: str


class Base(NamedTuple):
    """The image below the wheels.

    `reference` is an image by tag, "bootstrap", or a place on this machine ("oci:DIR"); `suite` is
    the Debian suite that a bootstrap installs, `snapshot` the date of its packages
    ("20260301T000000Z"; None: today); `glibc` decides which manylinux wheels fit. `apt` are the
    packages that were requested beside a bootstrap's own, `added` these and what they need.
    """

    kind: Literal["registry", "bootstrap", "local"]
    reference: str
    python: str
    glibc: str | None
    suite: str | None = None
    digest: str | None = None
    snapshot: str | None = None
    apt: tuple[str, ...] = ()
    added: tuple[DebianPackage, ...] = ()


class Plan(NamedTuple):
    """All decisions that a lock needs; or, with verdict "none", why nothing fits."""

    verdict: Verdict
    framework: Framework
    framework_version: str | None = None
    cuda: str | None = None
    wheel_tag: str | None = None
    index_url: str | None = None
    python: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    arch: str | None = None
    flavour: Flavour = "runtime"
    driver_have: str | None = None
    driver_need: str | None = None
    gpus: tuple[GpuVerdict, ...] = ()
    base: Base | None = None
    compat_package: str | None = None  # cuda-compat, which the base brings
    requirements: tuple[str, ...] = ()  # beside the framework's own line
    indexes: tuple[IndexCandidate, ...] = ()
    reasons: tuple[Reason, ...] = ()
    warnings: tuple[Warned, ...] = ()
    notes: tuple[Note, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    limited_by: LimitedBy | None = None
    error: PlanError | None = None

    @property
    def title(self) -> str:
        """ "PyTorch 2.0.1 for CUDA 11.7, Python 3.11", of a plan without an error."""
        return (
            f"{TITLES[self.framework]} {self.framework_version} for CUDA {self.cuda}, "
            f"Python {self.python}"
        )


class Cell(NamedTuple):
    """One build on these hosts: its verdict, and the first problem if there is one."""

    framework_version: str
    cuda: str
    wheel_tag: str | None
    verdict: Verdict
    existence: str
    code: str | None = None
    message: str | None = None
