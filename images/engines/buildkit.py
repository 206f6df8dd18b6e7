"""Finds a CLI that can drive BuildKit, and makes its input: command line, context, secrets.

The docker SDK's build supports only the legacy builder, which has no `RUN --mount` and so neither
secrets nor caches. We test which CLI can drive BuildKit: Docker's clients before 23 do it by
themselves (DOCKER_BUILDKIT=1), later ones only with buildx, and a machine may have several.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from images.engines.spec import ImageSpec
from images.errors import Failure
from images.net.secrets import Secrets
from images.oci.sources import LayerSource
from images.system import process
from images.system.scratch import scratch_directory
from images.wheels.errors import WheelUnreachableError

RECIPE = Path(__file__).parents[1] / "recipe"
_PROJECT = "project.tar.gz"
_INTEGRATED = range(18, 23)  # BuildKit came in 18.09; since 23.0 it needs buildx


class NoBuildKitError(Failure):
    """An engine runs, but no CLI here can drive BuildKit."""

    code = "no-buildkit"
    exit_code = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """A CLI that can drive BuildKit, and whether through buildx or by itself."""

    cli: str
    kind: Literal["buildx", "integrated"]
    version: str

    def argv(self) -> list[str]:
        """The command line before the options of a build."""
        return (
            [self.cli, "buildx", "build", "--load"]
            if self.kind == "buildx"
            else [
                self.cli,
                "build",
            ]
        )

    def environment(self) -> dict[str, str]:
        """Variables that the CLI needs in addition to the caller's."""
        return {"DOCKER_BUILDKIT": "1", "BUILDKIT_PROGRESS": "plain"}


def find_builder(path: str, ask: Callable[[list[str]], str | None]) -> Builder:
    """The first `docker` on `path` that can drive BuildKit; `ask` runs a command and returns its
    output, or None if it failed. NoBuildKitError: none can.
    """
    seen: list[str] = []
    for directory in dict.fromkeys(path.split(os.pathsep)):
        cli = shutil.which("docker", path=directory) if directory.startswith("/") else None
        if cli is None:
            continue
        # "github.com/docker/buildx v0.13.1 ..."; podman as docker prints "buildah 1.28.2"
        plugin, *numbers = (ask([cli, "buildx", "version"]) or "").split() or [""]
        if plugin.endswith("/buildx"):
            return Builder(cli=cli, kind="buildx", version=numbers[0] if numbers else "?")
        # not `docker version`, which fails if no engine runs
        said = re.search(r"(?:^|Docker version )(\d[^,\s]*)", ask([cli, "--version"]) or "")
        version = said[1] if said else ""
        major = re.match(r"\d+", version)
        if major and int(major[0]) in _INTEGRATED:
            return Builder(cli=cli, kind="integrated", version=version)
        seen.append(f"{cli} {version or '(no answer)'}")
    if not seen:
        raise NoBuildKitError(
            "The docker command is not on PATH; it drives the build.",
            fix="Install it: apt-get install docker.io (or docker-cli), then try again.",
        )
    raise NoBuildKitError(
        f"No docker command here can drive BuildKit: {', '.join(seen)} came without buildx.",
        fix="Install the plugin: apt-get install docker-buildx "
        "(docker-buildx-plugin from Docker's own packages).",
    )


def ask(argv: list[str]) -> str | None:
    """Query a client about itself; None if it failed. It gets no engine, because one may hang."""
    nobody = {"DOCKER_HOST": f"unix://{os.devnull}"}
    try:
        done = process.run(argv, timeout_s=20.0, env=nobody, apart=True)
    except (process.ToolMissing, process.CommandTimedOut):
        return None
    return done.stdout if done.ok else None


def build_argv(
    builder: Builder,
    *,
    context: Path,
    spec: ImageSpec,
    iid: Path,
    secrets: Mapping[str, Path],
    network: str | None,
) -> list[str]:
    """The whole command line of one build."""
    argv = [*builder.argv(), "--progress", "plain", "--file", str(context / "Dockerfile.cuda")]
    argv += ["--build-arg", f"BASE={spec.base}", "--build-arg", f"LOCK={spec.lock.name}"]
    if spec.apt_packages:
        argv += ["--build-arg", f"APT_PACKAGES={' '.join(spec.apt_packages)}"]
    if spec.nvcc_flags:
        argv += ["--build-arg", f"NVCC_FLAGS={spec.nvcc_flags}"]
    for name, value in sorted(spec.labels.items()):
        argv += ["--label", f"{name}={value}"]
    for name, file in sorted(secrets.items()):
        argv += ["--secret", f"id={name},src={file}"]
    if network:
        argv += ["--network", network]
    return [*argv, "--iidfile", str(iid), str(context)]


def recipe_file(name: str) -> Path:
    """A file of the recipe: in `images/recipe` if it is there, else in the checkout's root."""
    packed = RECIPE / name
    return packed if packed.exists() else RECIPE.parent.parent / name


@contextlib.contextmanager
def staged_context(spec: ImageSpec, suite: Path) -> Iterator[Path]:
    """A temporary directory with exactly the files that the Dockerfile copies."""
    with scratch_directory() as context:
        shutil.copy(recipe_file("Dockerfile.cuda"), context / "Dockerfile.cuda")
        (context / "images" / "recipe").mkdir(parents=True)
        shutil.copy(RECIPE / "uv.txt", context / "images" / "recipe" / "uv.txt")
        if spec.wheels:
            _add_wheels(spec, context / "images" / "recipe")
        shutil.copy(spec.lock, context / spec.lock.name)
        shutil.copytree(suite, context / "verify", ignore=shutil.ignore_patterns("__pycache__"))
        if spec.project is not None:
            _add_project(spec, spec.project, context)
        yield context


def _add_wheels(spec: ImageSpec, recipe: Path) -> None:
    """The wheels, and a lock with their places for uv."""
    (recipe / "wheels").mkdir()
    text = spec.lock.read_text("utf-8") if spec.installed is None else spec.installed
    for url, path in spec.wheels.items():
        _copy_wheel(path, recipe / "wheels")
        text = text.replace(f'"{url}"', f'"file:///mnt/recipe/wheels/{quote(path.name)}"')
    (recipe / "pylock.toml").write_text(text, encoding="utf-8")


def _copy_wheel(wheel: Path, to: Path) -> None:
    try:
        shutil.copy(wheel, to / wheel.name)
    except OSError as error:
        raise WheelUnreachableError(
            f"The wheel {wheel} of the lock cannot be read: {error.strerror}.",
            fix="Put it there, or lock again: provision lock",
        ) from error


def _add_project(spec: ImageSpec, project: LayerSource, context: Path) -> None:
    """The user's files as an archive, which ADD unpacks, and the lines for it: the last layer."""
    with (context / _PROJECT).open("wb") as file:
        file.writelines(project.stream(None))
    with (context / "Dockerfile.cuda").open("a", encoding="utf-8") as file:
        file.write(
            f"# The user's project, which changes most often.\nADD {_PROJECT} /\n"
            f"WORKDIR {spec.working_dir}\nCMD {json.dumps(spec.command)}\n"
        )


@contextlib.contextmanager
def secret_files(secrets: Secrets) -> Iterator[dict[str, Path]]:
    """The secrets as temporary files that only this user can read, outside the context."""
    contents = {"ca": secrets.ca_bundle, "netrc": secrets.netrc, "pip_index": secrets.pip_index}
    with scratch_directory() as made:
        files = {}
        for key, text in contents.items():
            if text:
                files[key] = made / key
                files[key].touch(mode=0o600)
                files[key].write_text(text, encoding="utf-8")
        yield files
