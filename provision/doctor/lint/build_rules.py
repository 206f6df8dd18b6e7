"""Rules for the steps of a build: what stops them, and what makes them build for the CPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from images.text.tokens import find_tokens
from provision.doctor.lint.findings import RuleHit, table
from provision.doctor.lint.images import python_of, system_of
from provision.doctor.lint.installs import Install, system_install
from provision.doctor.lint.shell import ShellCommand
from provision.doctor.lint.stage import StageView
from provision.model.plan import ComputeCapability
from provision.sources.packages import Position, RequestedPackage

StageRule = Callable[[StageView], Iterator[RuleHit]]

_ELSEWHERE = frozenset(["-t", "--target", "--prefix", "--root", "--dry-run", "--python"])
_LISTS = frozenset(
    [
        "TORCH_CUDA_ARCH_LIST",
        "TCNN_CUDA_ARCHITECTURES",
        "CMAKE_CUDA_ARCHITECTURES",
        "CUDAARCHS",
        "FLASH_ATTN_CUDA_ARCHS",
    ]
)
_CMAKE_LIST = re.compile(r"-DCMAKE_CUDA_ARCHITECTURES=[\"']?([\w.;+-]+)")
_NVCC_TARGET = re.compile(r"(?:arch=compute|-arch=sm|code=sm)_(\d{2,3})")
_DOTTED = re.compile(r"(\d{1,2})\.(\d)[af]?(?:\+PTX)?")
_FIGURES = re.compile(r"(\d{1,2})(\d)[af]?(?:-real|-virtual)?")
_OLD_SWITCH = re.compile(r"-D((?:LLAMA|GGML)_CUBLAS|LLAMA_CUDA)=(?:ON|on|1|TRUE|true)\b")
_SWITCH = re.compile(r"-DGGML_CUDA=(?:ON|on|1|TRUE|true)\b")


def externally_managed(view: StageView) -> Iterator[RuleHit]:
    """pip outside an environment on a system whose Python refuses that (PEP 668)."""
    known = table("packages.toml")["system"]
    image = view.stage.root_image
    system = system_of(image)
    if system not in known["externally_managed"] or python_of(image) or view.python_makers:
        return
    if any(
        step.instruction.keyword == "SHELL" or re.search(known["other_python"], text.text)
        for step in view.stage.all_steps()
        for text in (step.instruction.text, *step.instruction.scripts)
    ):
        return
    for command, install in view.own_installs():
        settings = view.settings_at(command)
        program = re.fullmatch(r"(pip|python)3?", command.words[0].text)
        if program is None or command.then == "||" or command.conditional:
            continue
        if install.options & _ELSEWHERE or not _default_path(settings.get("PATH", "$PATH")):
            continue
        yield RuleHit(
            rule="externally-managed",
            at=command.at,
            message=f"The Python of {system} is externally managed (PEP 668): pip installs nothing "
            "outside of a virtual environment, and this command stops.",
            fix="Make an environment (RUN python3 -m venv /venv, ENV PATH=/venv/bin:$PATH), or add "
            "--break-system-packages.",
        )
        return


def _default_path(path: str | None) -> bool:
    """Whether a PATH has, besides what the image has, only directories of CUDA."""
    return path is not None and all(
        "cuda" in part
        or part.lstrip("$").strip("{}") == "PATH"
        or part.startswith(("/usr/", "/bin"))
        for part in path.split(":")
    )


def architecture_unknown(view: StageView) -> Iterator[RuleHit]:
    """A compute capability that the image's nvcc has no target for."""
    base = view.base
    if base is None or base.cuda is None or base.flavour != "devel" or view.other_compiler:
        return
    toolkits = view.catalog.toolkits_of(base.cuda)
    targets = {target for row in toolkits for target in row.sm_targets}
    if not targets:
        return
    seen: set[ComputeCapability] = set()
    for at, name, asked in _architectures(view):
        if asked in targets or asked in seen:
            continue
        seen.add(asked)
        having = [
            cuda
            for cuda in view.catalog.cuda_versions()
            if any(asked in row.sm_targets for row in view.catalog.toolkits_of(cuda))
        ]
        if not having:
            continue
        text = f"{asked[0]}.{asked[1]}"
        newer = asked > max(targets)
        which = f"CUDA {having[0]} is the first" if newer else f"CUDA {having[-1]} is the last"
        yield RuleHit(
            rule="arch-not-of-nvcc",
            at=at,
            message=f"nvcc of CUDA {base.cuda} cannot compile for compute capability {text}: "
            f"{which} that can.",
            fix=f"Remove {text} from {name}, or build from a devel image of CUDA "
            f"{having[0] if newer else having[-1]}.",
        )


def _architectures(view: StageView) -> Iterator[tuple[Position, str, ComputeCapability]]:
    """Each compute capability that this stage compiles for: its place, the option."""
    for step in view.stage.steps:
        text = step.instruction.text
        for name, value in step.settings.items():
            if name in _LISTS and value:
                at = text.at(max(text.text.find(name), 0))
                yield from ((at, name, one) for one in _capabilities(value))
            elif name == "CMAKE_ARGS" and value and (said := _CMAKE_LIST.search(value)):
                at = text.at(max(text.text.find(name), 0))
                yield from ((at, "CMAKE_CUDA_ARCHITECTURES", one) for one in _capabilities(said[1]))
        for command in step.commands:
            yield from _of_command(command)


def _of_command(command: ShellCommand) -> Iterator[tuple[Position, str, ComputeCapability]]:
    settings = dict(command.settings)
    if command.name == "export":
        pairs = [word.text.partition("=") for word in command.words[1:]]
        settings |= {name: value for name, equals, value in pairs if equals}
    for name, value in settings.items():
        if name in _LISTS:
            yield from ((command.at, name, one) for one in _capabilities(value))
    for word in command.words[1:]:
        said = _CMAKE_LIST.fullmatch(word.text) if command.name == "cmake" else None
        if said:
            for one in _capabilities(said[1]):
                yield word.at, "CMAKE_CUDA_ARCHITECTURES", one
        elif command.name == "nvcc":
            for figures in _NVCC_TARGET.findall(word.text):
                yield word.at, "the command", (int(figures[:-1]), int(figures[-1]))


def _capabilities(text: str) -> Iterator[ComputeCapability]:
    """The capabilities of a list such as "8.0;9.0+PTX" or "80;90-real"; names are left out."""
    for part in re.split(r"[;,\s]+", text):
        match = _DOTTED.fullmatch(part) or _FIGURES.fullmatch(part)
        if match:
            yield int(match[1]), int(match[2])


def compiles_when_used(view: StageView) -> Iterator[RuleHit]:
    """A package that compiles CUDA code at its first use, in an image without nvcc."""
    image = view.stage.root_image or ""
    runtime = re.fullmatch(table("packages.toml")["image"]["runtime"], image)
    flavour = view.base.flavour if view.base else None
    if (flavour not in {"base", "runtime"} and not runtime) or view.other_compiler:
        return
    rows = {row["name"]: row for row in table("packages.toml")["compiles_when_used"]}
    for _, install in view.own_installs():
        for package in install.packages:
            row = rows.get(package.name)
            if row is not None:
                yield RuleHit(
                    rule="nvcc-at-first-use",
                    at=package.at,
                    message=f"{row['says']}, and this {flavour or 'runtime'} image has no nvcc.",
                    fix="Build from the devel image of the same CUDA.",
                )


def conda_without_gpu(view: StageView) -> Iterator[RuleHit]:
    """conda or pixi solve while an image is built: they see no GPU, so no CUDA either."""
    if view.for_cpus:
        return
    cuda = (view.base.cuda if view.base else None) or "12.8"
    for command in view.own_commands:
        if "CONDA_OVERRIDE_CUDA" in view.settings_at(command):
            continue
        if command.name == "pixi" and command.says("install"):
            says = "pixi sees no GPU while an image is built"
            sure = view.base is not None
        elif (package := _built_with_cuda(command)) is not None:
            says = f"conda sees no GPU while an image is built, and {package} needs one to be seen"
            sure = True
        else:
            continue
        yield RuleHit(
            rule="conda-without-gpu",
            at=command.at,
            level="warning" if sure else "note",
            message=f"{says}: packages with CUDA are refused, or those for the CPU are taken.",
            fix=f"Set it before: ENV CONDA_OVERRIDE_CUDA={cuda} (the CUDA that your driver "
            "supports).",
        )
        return


def _built_with_cuda(command: ShellCommand) -> str | None:
    """The package of conda-forge with CUDA that a command of conda or mamba installs."""
    packages = system_install(command)
    if packages is None or packages.tool != "conda":
        return None
    pattern = table("packages.toml")["conda"]["needs_virtual_cuda"]
    return next((word.text for word in command.words if re.fullmatch(pattern, word.text)), None)


def torch_at_build(view: StageView) -> Iterator[RuleHit]:
    """A package that imports torch while it is built, in an environment that pip isolates."""
    for command, install in view.own_installs():
        settings = view.settings_at(command)
        if any("NO_BUILD_ISOLATION" in name for name in settings) or command.name == "uv":
            continue
        if any(option.startswith("--no-build-isolation") for option in install.options):
            continue
        for package in imports_torch(install):
            yield RuleHit(
                rule="torch-at-build",
                at=package.at,
                message=f"{package.written} imports torch while it is built, and pip builds it in "
                "an environment without torch.",
                fix="Install torch first, in a command of its own, then this package with "
                "--no-build-isolation.",
            )


def imports_torch(install: Install) -> Iterator[RequestedPackage]:
    """The packages whose build imports torch, unless finished wheels may be found for them."""
    known = table("packages.toml")["imports_torch"]
    if install.options & {"--only-binary", "--find-links", "-f", "--no-index", "--no-deps"}:
        return
    if any(one.torch_tag is None for one in install.sources):
        return
    for package in install.packages:
        if package.address.endswith(".whl"):
            continue
        by_name = package.name in known["names"] and not package.address
        if by_name or re.search(known["repositories"], package.written):
            yield package


def llama_for_cpus(view: StageView) -> Iterator[RuleHit]:
    """llama-cpp-python built without the switch that llama.cpp has for CUDA today."""
    known = table("packages.toml")["llama"]
    for command, install in view.own_installs():
        package = install.named("llama-cpp-python")
        if package is None or package.address or install.sources or not install.complete:
            continue
        if install.options & {"-C", "--config-settings", "--config-setting", "--only-binary"}:
            continue
        if package.specifier and not package.specifier.contains(known["newest"]):
            continue  # its switch may be an older one
        arguments = view.settings_at(command).get("CMAKE_ARGS", "")
        if arguments is None or "$" in arguments or _SWITCH.search(arguments):
            continue
        old = _OLD_SWITCH.search(arguments)
        if old is None and (view.for_cpus or view.base is None or view.base.flavour != "devel"):
            continue
        yield RuleHit(
            rule="llama-cpp-cpu",
            at=package.at,
            message=f"llama.cpp has no switch {old[1]} any more; it is GGML_CUDA since June 2024."
            if old
            else "llama-cpp-python is built for the CPU here: CMAKE_ARGS has no -DGGML_CUDA=on "
            "when it is installed.",
            fix='Set it before: ENV CMAKE_ARGS="-DGGML_CUDA=on"',
        )


def torch_replaced(view: StageView) -> Iterator[RuleHit]:
    """A package that requires another torch than the one that the image brings."""
    known = table("packages.toml")
    image = view.stage.root_image or ""
    found = re.fullmatch(known["image"]["with_torch"], image)
    if found is None or view.python_makers - {"conda"}:
        return
    brought = found["torch"]
    for command, install in view.own_installs():
        if "/" in command.words[0].text or install.files:
            continue
        if install.options & {"--no-deps", *_ELSEWHERE}:
            continue
        for package in install.packages:
            wanted = _torch_of(package)
            torch = install.named("torch")
            if wanted is None or (brought and wanted == brought) or package.address:
                continue
            if package.name != "torch" and torch is not None:
                continue
            yield RuleHit(
                rule="torch-replaced",
                at=package.at,
                level="note" if package.name == "torch" else None,
                message=f"{package.written} requires torch {wanted}: pip replaces the torch "
                f"{brought or 'of NVIDIA'} that the image brings.",
                fix=f"Choose a release of {package.name} for the torch of the image, or build from "
                "an image without torch."
                if package.name != "torch"
                else "Build from the image of that release, or from one without torch.",
            )


def _torch_of(package: RequestedPackage) -> str | None:
    """The release of torch that a package requires: "2.5.1"; None: no one in particular."""
    if package.name == "torch":
        return package.release
    row = next((r for r in table("packages.toml")["pairs"] if r["name"] == package.name), None)
    if row is None:
        return None
    if package.pin is None:
        newest = None if package.specifier else row.get("newest")
        return str(newest) if newest else None
    found = row["torch"].get(package.release)
    return str(found) if found else None


def secret_in_image(view: StageView) -> Iterator[RuleHit]:
    """A token in the file: it is in the history of every image that is built from it."""
    known = table("packages.toml")["secrets"]
    for step in view.stage.steps:
        if step.instruction.keyword not in {"ENV", "ARG", "RUN", "LABEL"}:
            continue
        text = step.instruction.text.text
        kind = next((found.kind for found in find_tokens(text.encode())), None)
        for name, value in step.settings.items():
            named = re.search(known["names"], name) and re.fullmatch(known["values"], value or "")
            kind = kind or (f"the value of {name}" if named else None)
        if kind is not None:
            yield RuleHit(
                rule="secret-in-image",
                at=Position(step.instruction.line),
                message=f"{kind[:1].upper()}{kind[1:]} is written here, and stays readable in the "
                "history of the image.",
                fix="Revoke it. Give it to a build with RUN --mount=type=secret, to a container "
                "with docker run -e NAME.",
            )


RULES: tuple[StageRule, ...] = (
    externally_managed,
    architecture_unknown,
    compiles_when_used,
    conda_without_gpu,
    torch_at_build,
    llama_for_cpus,
    torch_replaced,
    secret_in_image,
)
