"""Rules for the commands of a Dockerfile: what they install, compile and need of a GPU."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from provision.catalog.catalog import Catalog
from provision.doctor.lint.build_rules import RULES as BUILD_RULES
from provision.doctor.lint.dockerfile import Dockerfile
from provision.doctor.lint.findings import RuleHit, table
from provision.doctor.lint.images import python_of, system_of
from provision.doctor.lint.installs import system_install
from provision.doctor.lint.package_rules import judge_install
from provision.doctor.lint.shell import ExpandedWord
from provision.doctor.lint.stage import StageView
from provision.doctor.lint.torch_build import chosen_tag, installed_build
from provision.sources.packages import RequestedPackage

_SEPARATOR = re.compile(r"[-_.]+")
_REPOSITORY = re.compile(
    r"developer\.download\.nvidia\.com/compute/(?:cuda|machine-learning)/repos/"
    r"(?P<os>ubuntu|debian|rhel)(?P<release>\d+)/"
)
_BUILD_CUDA = re.compile(
    r"-D(GGML_CUDA|GGML_CUBLAS|LLAMA_CUBLAS|LLAMA_CUDA|USE_CUDA|WITH_CUDA)=(ON|on|1)"
)


def run_rules(file: Dockerfile, catalog: Catalog) -> Iterator[RuleHit]:
    shipped_stages = {stage.line for stage in file.shipped()}
    for stage in file.stages:
        view = StageView(stage, catalog, file.path)
        shipped = stage.line in shipped_stages
        for command, install in view.own_installs():
            yield from judge_install(install, view.setting(command, install), catalog)
        yield from _nvcc_missing(view)
        yield from _cuda_of_another_major(view)
        yield from _cuda_twice(view, shipped=shipped)
        yield from _cudnn_twice(view)
        yield from _driver_inside(view, shipped=shipped)
        yield from _gpu_at_build(view)
        yield from _conda_and_pip(view)
        yield from _retired_key(view)
        yield from _foreign_repository(view)
        yield from _architectures_missing(view)
        for rule in BUILD_RULES:
            yield from rule(view)


def extension_of(package: RequestedPackage) -> str | None:
    """The name of a package that compiles CUDA code at installation; None: it does not."""
    known = table("known.toml")["python"]
    if package.address.endswith(".whl"):
        return None
    for name in known["extensions"]:
        if package.name and package.name == _SEPARATOR.sub("-", name).lower():
            return str(name)
    match = re.search(known["repositories"], package.written)
    return match[1].rpartition("/")[2] if match else None


def _extensions(view: StageView) -> Iterator[tuple[RequestedPackage, str]]:
    for _, install in view.own_installs():
        wheels_only = bool(install.options & {"--only-binary", "--find-links", "-f"})
        for package in install.packages:
            name = extension_of(package)
            if name is not None and not wheels_only:
                yield package, name


def _nvcc_missing(view: StageView) -> Iterator[RuleHit]:
    if view.base is None or view.compiler():
        return
    fix = f"Build from {_devel(view)}, at least in the stage that compiles."
    for command in view.own_commands:
        asks = command.name == "nvcc" and command.then != "||" and not command.conditional
        builds = command.name == "cmake" and any(
            _BUILD_CUDA.fullmatch(word.text) for word in command.words
        )
        if asks or builds:
            yield RuleHit(
                rule="nvcc-missing",
                at=command.at,
                level="error",
                message=f"{command.name} needs the CUDA compiler, and the {view.base.flavour} "
                "image has none.",
                fix=fix,
            )
    for package, name in _extensions(view):
        yield RuleHit(
            rule="nvcc-missing",
            at=package.at,
            level="warning",
            message=f"{name} compiles CUDA code where it has no finished wheel, and the "
            f"{view.base.flavour} image has no compiler.",
            fix=fix,
        )


def _devel(view: StageView) -> str:
    """The devel image that corresponds to the base, if NVIDIA has it."""
    base = view.base
    tag = base.tag.replace(f"-{base.flavour}", "-devel") if base else ""
    return f"{base.name}:{tag}" if base and view.catalog.cuda_image(tag) else "a devel image"


def _cuda_of_another_major(view: StageView) -> Iterator[RuleHit]:
    """Wheels of torch for one CUDA major above an image of another."""
    if view.base is None or view.base.major is None or view.base.flavour == "base":
        return
    compiles = next((name for *_, name in _extensions(view)), None) or _cloned_extension(view)
    for command, install in view.own_installs():
        torch = install.named("torch")
        setting = view.setting(command, install)
        tag = chosen_tag(install, setting, view.catalog)
        cuda = _cuda_of(tag, view.catalog)
        which = ""
        if tag is None and compiles and (build := installed_build(install, setting, view.catalog)):
            cuda, which = build.cuda, f", {build.version} as the newest,"
        if torch is None or cuda is None or cuda.partition(".")[0] == view.base.major:
            continue
        if compiles is not None and view.base.flavour == "devel":
            yield RuleHit(
                rule="cuda-other",
                at=torch.at,
                level="error",
                message=f"torch here{which} is of CUDA {cuda}, the image of CUDA {view.base.cuda}: "
                f"compiling {compiles} stops, because torch refuses another major.",
                fix=f"Take the image of CUDA {cuda}, or a torch of CUDA {view.base.major}.",
            )
        else:
            yield RuleHit(
                rule="cuda-other",
                at=torch.at,
                message=f"torch here brings CUDA {cuda}; the CUDA {view.base.cuda} of the image "
                "is not used by it.",
                fix="Take both of one major, or build from an image without CUDA.",
            )


def _cloned_extension(view: StageView) -> str | None:
    """The repository of CUDA code that is cloned and then built here: "apex"."""
    pattern = table("known.toml")["python"]["repositories"]
    cloned: str | None = None
    for command in view.own_commands:
        texts = [word.text for word in command.words]
        if command.name == "git" and "clone" in texts:
            found = next((match for text in texts if (match := re.search(pattern, text))), None)
            cloned = found[1].rpartition("/")[2] if found else cloned
        elif cloned and ("setup.py" in texts or {"install", "."} <= set(texts)):
            return cloned
    return None


def _cuda_of(tag: str | None, catalog: Catalog) -> str | None:
    return next((row.cuda for row in catalog.torch if row.tag == tag), None)


def _cuda_twice(view: StageView, *, shipped: bool) -> Iterator[RuleHit]:
    """A runtime or devel image whose CUDA is used only by torch, which brings its own."""
    base = view.base
    if base is None or base.flavour not in {"runtime", "devel"} or not shipped:
        return
    if next(_extensions(view), None) is not None or _compiles(view):
        return
    torches = [
        (
            install.named("torch"),
            chosen_tag(install, view.setting(command, install), view.catalog),
        )
        for command, install in view.own_installs()
    ]
    for torch, tag in torches:
        if torch is not None and _cuda_of(tag, view.catalog):
            yield RuleHit(
                rule="cuda-twice",
                at=torch.at,
                message=f"CUDA is in this image twice: the {base.flavour} image has one, the "
                "wheels of torch bring another.",
                fix="Where nothing else needs it, build from a base image, or one without CUDA.",
            )
            return


def _compiles(view: StageView) -> bool:
    """Whether anything could be compiled here: then the image's CUDA is needed."""
    makers = {"nvcc", "cmake", "make", "ninja", "meson", "bazel", "cargo", "gcc", "g++"}
    return any(
        command.name in makers
        or any("setup.py" in word.text or "nvcc" in word.text for word in command.words)
        for command in view.stage.all_commands()
    ) or any(
        "--no-build-isolation" in install.options
        or install.files
        or any(package.address for package in install.packages)
        or len(install.packages) > 1
        for _, install in view.all_installs
    )


def _cudnn_twice(view: StageView) -> Iterator[RuleHit]:
    torch = any(
        _cuda_of(chosen_tag(install, view.setting(command, install), view.catalog), view.catalog)
        for command, install in view.all_installs
    )
    if not torch:
        return
    for name in _apt_packages(view, "cudnn"):
        yield RuleHit(
            rule="cudnn-twice",
            at=name.at,
            message="The wheels of torch bring their own cuDNN; a second one on the "
            "system can be found before it.",
            fix=f"Leave {name.text} out, unless something else needs it.",
        )


def _driver_inside(view: StageView, *, shipped: bool) -> Iterator[RuleHit]:
    if not shipped:
        return
    for name in _apt_packages(view, "driver"):
        yield RuleHit(
            rule="driver-in-image",
            at=name.at,
            message=f"{name.text} belongs to the driver of the host, which is mounted "
            "when the container starts; a copy in the image is of another version.",
            fix=f"Leave {name.text} out.",
        )


def _apt_packages(view: StageView, kind: str) -> Iterator[ExpandedWord]:
    """The first package of a kind of `known.toml` that each command of apt here installs."""
    pattern = table("known.toml")["system"][kind]
    for command in view.own_commands:
        packages = system_install(command)
        if packages is None or packages.tool != "apt":
            continue
        named = (name for name in packages.names if re.fullmatch(pattern, name.text))
        yield from itertools.islice(named, 1)


def _gpu_at_build(view: StageView) -> Iterator[RuleHit]:
    for command in view.own_commands:
        if command.then == "||" or command.conditional:
            continue
        asserted = any(
            re.search(r"assert\s+torch\.cuda\.is_available\(\)", word.text)
            for word in command.words
        )
        if command.name == "nvidia-smi" or asserted:
            yield RuleHit(
                rule="gpu-at-build",
                at=command.at,
                message="No GPU and no driver are there while an image is built, so this "
                "command fails.",
                fix="Do it when the container starts.",
            )


def _conda_and_pip(view: StageView) -> Iterator[RuleHit]:
    conda = any(
        name.text in {"pytorch", "pytorch-cuda"}
        for _, packages in view.all_system
        if packages.tool == "conda"
        for name in packages.names
    )
    if not conda:
        return
    for _, install in view.own_installs():
        torch = install.named("torch")
        if torch is not None:
            yield RuleHit(
                rule="torch-conda-and-pip",
                at=torch.at,
                message="conda has installed pytorch already; pip lays a second one over it.",
                fix="Install it with one of them.",
            )


def _retired_key(view: StageView) -> Iterator[RuleHit]:
    key = table("known.toml")["system"]["key_retired"]
    for command in view.own_commands:
        if command.then == "||" or command.conditional:
            continue
        fetched = next(
            (word for word in command.words if f"{key}.pub" in word.text and "://" in word.text),
            None,
        )
        if fetched is not None:
            yield RuleHit(
                rule="cuda-key-retired",
                at=fetched.at,
                message=f"NVIDIA has signed with another key than {key} since April 2022.",
                fix="Install the package cuda-keyring of the same repository instead.",
            )


def _foreign_repository(view: StageView) -> Iterator[RuleHit]:
    system = system_of(view.stage.root_image)
    if system is None or not system.startswith(("ubuntu", "debian")):
        return
    for command in view.own_commands:
        for word in command.words:
            match = _REPOSITORY.search(word.text)
            if match is None or match["os"] == "rhel":
                continue
            if match["os"] + match["release"] != system.replace(".", ""):
                yield RuleHit(
                    rule="cuda-repository-other",
                    at=word.at,
                    message=f"The repository is for {match['os']}{match['release']}, the image "
                    f"is {system}: packages can ask for libraries that are not there.",
                    fix=f"Take the one for {system.replace('.', '')}.",
                    swap=(match["os"] + match["release"], system.replace(".", "")),
                )
                return


def _architectures_missing(view: StageView) -> Iterator[RuleHit]:
    plain = view.base or system_of(view.stage.root_image) or python_of(view.stage.root_image)
    if not plain:
        return  # a framework's image may have set the list
    own = {
        _SEPARATOR.sub("-", n).lower() for n in table("known.toml")["python"]["own_architectures"]
    }
    variables = table("packages.toml")["architectures"]
    names = {name for step in view.stage.all_steps() for name in step.settings}
    names |= {name for one in view.stage.all_commands() for name in one.settings}
    exported = {
        word.text.partition("=")[0]
        for one in view.stage.all_commands()
        if one.name == "export"
        for word in one.words[1:]
    }
    for package, name in _extensions(view):
        variable = variables.get(name, "TORCH_CUDA_ARCH_LIST")
        if variable in names | exported:
            continue
        if _SEPARATOR.sub("-", name).lower() not in own and name != "flash-attention":
            yield RuleHit(
                rule="arch-list-missing",
                at=package.at,
                message=f"{name} is compiled for the GPU that torch sees, and none is there while "
                "an image is built.",
                fix=f'Set it before: ENV {variable}="'
                + ("8.0;9.0" if variable.startswith("TORCH") else "80;90")
                + '" (those of your GPUs).',
            )
            return
