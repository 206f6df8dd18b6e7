"""A stage of a Dockerfile, with the properties that rules need."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from provision.catalog.catalog import Catalog
from provision.catalog.rows import Arch
from provision.doctor.lint.dockerfile import Stage, StageStep
from provision.doctor.lint.findings import table
from provision.doctor.lint.images import CudaBase, cuda_base, python_of, system_of, system_python_of
from provision.doctor.lint.installs import (
    Install,
    SystemPackages,
    pip_install,
    system_install,
)
from provision.doctor.lint.setting import NO_GPUS, Setting, needs_gpu, setting_by_name
from provision.doctor.lint.shell import ShellCommand
from provision.doctor.lint.torch_build import installed_build

_PYTHON_PIP = re.compile(r"(?:python|pip)(3\.\d+)")


@dataclass(frozen=True)
class StageView:
    """A stage with the properties that rules need, each computed once."""

    stage: Stage
    catalog: Catalog
    path: str = ""

    @cached_property
    def _named(self) -> Setting:
        return setting_by_name(self.path, self.stage.name)

    @property
    def for_cpus(self) -> bool:
        return self._named.for_cpus

    @cached_property
    def for_gpus(self) -> bool:
        """Whether anything but a framework needs a GPU: the image, a package, a variable."""
        known = table("packages.toml")["system"]["cuda"]
        if self.base is not None or self._named.for_gpus:
            return True
        if any(re.match(known, name.text) for _, some in self.all_system for name in some.names):
            return True
        if any(needs_gpu(install) for _, install in self.all_installs):
            return True
        value, _ = self.stage.environment().get("NVIDIA_VISIBLE_DEVICES", (None, None))
        return value is not None and value not in NO_GPUS

    @property
    def compat(self) -> str | None:
        """The CUDA of the cuda-compat that the image brings; "": none, None: not known."""
        names = [name for _, some in self.all_system for name in some.names]
        if any(name.text.startswith("cuda-compat") or not name.known for name in names):
            return None
        if self.base is not None:
            return self.base.cuda
        image = self.stage.root_image
        return "" if python_of(image) or system_of(image) else None

    @cached_property
    def base(self) -> CudaBase | None:
        return cuda_base(self.stage.root_image)

    @cached_property
    def arch(self) -> Arch:
        platform = self.stage.lineage[0].platform or ""
        return "aarch64" if platform.startswith("linux/arm64") else "x86_64"

    @cached_property
    def all_installs(self) -> list[tuple[ShellCommand, Install]]:
        """What pip installs here and in the stages below."""
        names = [name for step in self.stage.all_steps() for name in step.settings]
        found = [(one, pip_install(one, names)) for one in self.stage.all_commands()]
        return [(command, install) for command, install in found if install is not None]

    @cached_property
    def all_system(self) -> list[tuple[ShellCommand, SystemPackages]]:
        """What apt and conda install here and in the stages below."""
        found = [(one, system_install(one)) for one in self.stage.all_commands()]
        return [(command, packages) for command, packages in found if packages is not None]

    @cached_property
    def own_commands(self) -> list[ShellCommand]:
        return [command for step in self.stage.steps for command in step.commands]

    def own_installs(self) -> Iterator[tuple[ShellCommand, Install]]:
        own = {id(command) for command in self.own_commands}
        return ((command, one) for command, one in self.all_installs if id(command) in own)

    def setting(self, command: ShellCommand, install: Install) -> Setting:
        """What the package rules need to know about this command."""
        return replace(
            self._setting(command, install),
            cudas=self.cudas,
            torch=self._torch,
        )

    def _setting(self, command: ShellCommand, install: Install) -> Setting:
        said = _PYTHON_PIP.fullmatch(command.name)
        python = said[1] if said else self._python
        if not said and (self.python_makers or "/" in command.words[0].text):
            python = None
        return Setting(
            for_gpus=self.for_gpus,
            for_cpus=self.for_cpus,
            for_tests=self._named.for_tests or command.conditional,
            whole=not install.files and not self.pip_configured,
            pythons=(python,) if python else (),
            arch=self.arch,
            is_pip=command.name != "uv",
            is_command=True,
        )

    @cached_property
    def _torch(self) -> str | None:
        """The last release of torch that is installed with its number."""
        found = [install.named("torch") for _, install in self.all_installs]
        return next((one.release for one in reversed(found) if one and one.release), None)

    @cached_property
    def cudas(self) -> tuple[str, ...] | None:
        """The CUDA of the image and of each torch in it ("12.4"); None: more may be there."""
        known = table("packages.toml")["system"]["cuda"]
        packages = [name.text for _, some in self.all_system for name in some.names]
        if any(re.match(known, name) for name in packages) or self.other_compiler:
            return None
        if any(install.files for _, install in self.all_installs):
            return None
        image = re.fullmatch(
            table("packages.toml")["image"]["with_torch"], self.stage.root_image or ""
        )
        found = [self.base.cuda if self.base else image["cuda"] if image else None]
        for command, install in self.all_installs:
            if install.named("torch") is None:
                continue
            build = installed_build(install, self._setting(command, install), self.catalog)
            if build is None:
                return None
            found.append(build.cuda)
        return tuple(dict.fromkeys(cuda for cuda in found if cuda))

    @cached_property
    def _python(self) -> str | None:
        """The Python of the image, or of its distribution if nothing here names another."""
        image = self.stage.root_image
        system = system_python_of(image)
        told = " ".join(word.text for one in self.stage.all_commands() for word in one.words)
        others = set(re.findall(r"\bpython(3\.\d+)", told)) - {system}
        others |= {"a source of others"} if re.search(r"deadsnakes|alternatives", told) else set()
        return python_of(image) or (None if others else system)

    @cached_property
    def pip_configured(self) -> bool:
        """Whether `pip config` may have named an index."""
        return any(
            one.name.startswith("pip") and one.says("config") for one in self.stage.all_commands()
        )

    @cached_property
    def python_makers(self) -> frozenset[str]:
        """Programs here that install another Python."""
        makers = frozenset(["conda", "mamba", "micromamba", "pyenv", "uv", "virtualenv"])
        return makers & {one.name for one in self.stage.all_commands()}

    def settings_at(self, command: ShellCommand) -> Mapping[str, str | None]:
        """The variables that are set when a command runs (None: to an unknown value)."""
        step, before = self._begun[id(command)]
        found = dict(before)
        for earlier in step.commands:
            if earlier is command:
                break
            if earlier.name == "export":
                pairs = [word.text.partition("=") for word in earlier.words[1:]]
                found |= {name: value for name, equals, value in pairs if equals}
        return {**found, **command.settings}

    @cached_property
    def _begun(self) -> dict[int, tuple[StageStep, dict[str, str | None]]]:
        """Of each command its step, and the variables set before; steps may share a mapping."""
        found: dict[int, tuple[StageStep, dict[str, str | None]]] = {}
        known: dict[str, str | None] = {}
        for step in self.stage.all_steps():
            found |= {id(command): (step, known) for command in step.commands}
            known = {**known, **step.settings} if step.settings else known
        return found

    def compiler(self) -> bool:
        """Whether nvcc is available: in the base, or installed."""
        if self.other_compiler:
            return True
        return self.base is None or self.base.flavour not in {"base", "runtime"}

    @cached_property
    def other_compiler(self) -> bool:
        """Whether an nvcc is installed here that is not the base's."""
        known = table("known.toml")["system"]
        for _, packages in self.all_system:
            pattern = known["compiler" if packages.tool == "apt" else "conda_compiler"]
            if any(re.fullmatch(pattern, name.text) or not name.known for name in packages.names):
                return True
        if any(
            re.match(r"nvidia-cuda-nvcc|cuda-toolkit|nvidia-cuda-nvcc-cu\d\d", package.name)
            for _, install in self.all_installs
            for package in install.packages
        ):
            return True
        words = (word.text for one in self.stage.all_commands() for word in one.words)
        if any(re.search(r"cuda_\d[\w.]*_linux\S*\.run", word) for word in words):
            return True
        steps = (step.instruction for step in self.stage.all_steps())
        return any(one.keyword == "COPY" and "cuda" in one.text.text for one in steps)
