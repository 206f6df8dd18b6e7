"""Python and its installed frameworks, from files: nothing is imported."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provision.catalog.loading import load
from provision.doctor.probes import commands
from provision.doctor.probes.fact import Found, fact
from provision.host.machine import ProbedMachine

_VERSION_PY = re.compile(
    r"^(__version__|cuda|hip)\b[^=\n]{0,40}= *(?:'([^'\n]*)'|None)", re.MULTILINE
)
_PARENTS = ("/usr/local/lib", "/usr/lib", "/opt/conda/lib")
_PYTHON = r"python3(?:\.\d+)?"


def probe_python(machine: ProbedMachine) -> Iterator[Found]:
    path = machine.which("python3")
    if path is not None:
        done = commands.ask(machine, commands.PYTHON)
        said = re.search(r"Python (\d+\.\d+\.\d+)", done.out) if done is not None else None
        by_name = re.search(r"python(3\.\d+)$", machine.real(path) or "")
        version = said[1] if said else by_name[1] if by_name else None
        yield from fact("python.version", version, path)
    active = bool(machine.env.get("VIRTUAL_ENV"))
    yield from fact("python.venv", active, "VIRTUAL_ENV")
    folders = [f for parent in ("/usr/lib", "/usr/lib64") for f in machine.paths(parent, _PYTHON)]
    marks = [f"{folder}/EXTERNALLY-MANAGED" for folder in folders]
    mark = next(filter(machine.exists, marks), None)
    if folders:
        yield from fact("python.externally_managed", mark is not None, mark or folders[0])


def site_folders(machine: ProbedMachine) -> tuple[str, ...]:
    """Where packages are installed, the active environment first."""
    prefixes = [machine.env.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    parents = [f"{prefix}/lib" for prefix in prefixes if prefix.startswith("/")]
    python = machine.which("python3")
    if python is not None:
        parents.append(f"{python.rpartition('/')[0].rpartition('/')[0]}/lib")
    home = machine.home()
    parents += [f"{home}/.local/lib"] if home else []
    found: list[str] = []
    for parent in dict.fromkeys((*parents, *_PARENTS)):
        for folder in machine.paths(parent, _PYTHON):
            found += [f"{folder}/site-packages", f"{folder}/dist-packages"]
    return tuple(folder for folder in dict.fromkeys(found) if machine.names(folder) is not None)


def installed(machine: ProbedMachine, *names: str) -> tuple[str, str] | None:
    """(version, path) of the first of these distributions, by its .dist-info folder."""
    words = "|".join(re.escape(name) for name in names)
    for folder in site_folders(machine):
        for path in machine.paths(folder, rf"(?i)(?:{words})-[^-/]+\.dist-info"):
            version = path.removesuffix(".dist-info").rpartition("-")[2]
            return version, path
    return None


def probe_frameworks(machine: ProbedMachine) -> Iterator[Found]:
    yield from _torch(machine)
    for name, distributions in (
        ("tensorflow.version", ("tensorflow", "tensorflow_cpu", "tf_nightly")),
        ("jax.version", ("jaxlib",)),
        ("numpy.version", ("numpy",)),
    ):
        found = installed(machine, *distributions)
        if found is not None:
            yield from fact(name, *found)
    if installed(machine, "jaxlib") is not None:
        plugin = installed(machine, "jax_cuda12_plugin", "jax_cuda13_plugin", "jax_cuda11_plugin")
        where = plugin[1] if plugin else site_folders(machine)[0]
        yield from fact("jax.plugin", plugin is not None, where)


def parse_version_py(text: str) -> dict[str, str]:
    """torch/version.py: its version, and the CUDA it was built for ("" where it has none)."""
    return dict(_VERSION_PY.findall(text))


def is_mismatch(torch: str, vision: str, wanted: str | None) -> bool | None:
    """Whether a torchvision was made for another torch: according to the catalogue's pairs, and to
    the local versions ("+cu118"), which must match. None: the pair is not known.
    """
    torch_public, _, torch_local = torch.partition("+")
    vision_public, _, vision_local = vision.partition("+")
    if torch_local and vision_local and torch_local != vision_local and torch_public:
        return True
    return None if wanted is None else vision_public != wanted


def _torch(machine: ProbedMachine) -> Iterator[Found]:
    found = installed(machine, "torch")
    if found is None:
        return
    version, where = found
    path = f"{where.rpartition('/')[0]}/torch/version.py"
    told = parse_version_py(machine.text(path) or "")
    version = told.get("__version__") or version
    yield from fact("torch.version", version, path if told else where)
    cuda = told.get("cuda")
    if cuda is None:
        cuda = cuda_of_tag(version.partition("+")[2])
    yield from fact("torch.cuda", cuda, path if told else where)
    if cuda is not None:
        yield from fact("torch.cpu", not cuda and not told.get("hip"), path if told else where)
    vision = installed(machine, "torchvision")
    if vision is not None:
        release = load().torch_release(version.partition("+")[0])
        wanted = release.torchvision if release is not None else None
        yield from fact("torchvision.mismatch", is_mismatch(version, vision[0], wanted), vision[1])


def cuda_of_tag(tag: str) -> str | None:
    """ "cu117" -> "11.7", "cpu" -> ""; None: the tag does not say."""
    if tag == "cpu":
        return ""
    found = re.fullmatch(r"cu(\d+)(\d)", tag)
    return f"{found[1]}.{found[2]}" if found else None
