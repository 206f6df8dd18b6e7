"""`provision run`: a command in an image, in the foreground, with this machine's GPUs.

Standard output is the command's alone, and so is the exit code once it has started.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from images.engines.docker_errors import NoEngineError
from images.engines.spec import Bind, Foreground, Port, RunJob
from images.system.errors import NoProgramError
from images.system.foreground import is_terminal
from images.text.suggestions import no_such
from provision.cli.hosts import this_host
from provision.cli.option import option
from provision.cli.parser import parse
from provision.cli.settings import image_argument, read_catalog, read_image, read_places
from provision.cli.sizes import parse_size
from provision.errors import BadInputError, Exit
from provision.host.gpu_request import gpus_to_request
from provision.model.request import quoted
from provision.output.console import Console
from provision.output.export.deployment import SHM_BYTES_PER_GPU

if TYPE_CHECKING:
    from images.engines.runner import DockerRunner, RunnerName
    from provision.verification.subject import ImagePlaces

_ENGINES = ("docker", "podman", "sandbox")
_ORDER = ("sandbox", "docker", "podman")  # an engine loads all of an image each time
_NOT_FOUND = 127  # as in a shell
_PORT = re.compile(
    r"(?:(?:(?P<address>[0-9.]+|\[[0-9a-fA-F:]+\]):)?(?P<here>\d{1,5}):)?(?P<inside>\d{1,5})"
    r"(?:/(?P<protocol>tcp|udp))?"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


EXAMPLES = (
    "provision run gpu-provision:pytorch2.0.1-cu117 -- python3 train.py",
    "provision run . -- python3 train.py",
    "provision run team/app:1 -v ./data:/data -e HF_TOKEN -p 8000",
)


def options(verb: argparse.ArgumentParser) -> None:
    """What is run, and what it gets of this machine."""
    verb.usage = "%(prog)s [OPTION ...] IMAGE|DIR [-- COMMAND ...]"
    image_argument(
        verb,
        "image to run, or a project, whose image is built if anything changed; without "
        "COMMAND it runs the image's own",
        "IMAGE|DIR",
    )
    group = verb.add_argument_group("run")
    option(
        group,
        ("-v", "--volume"),
        "HOST:PATH[:ro]",
        "mount a directory or file of this machine in the image (repeatable)",
        dest="volumes",
        several=True,
    )
    option(
        group,
        ("-e", "--env"),
        "NAME[=VALUE]",
        "set a variable; without VALUE it has the value that it has here (repeatable)",
        several=True,
    )
    option(
        group,
        ("-p", "--publish"),
        "[HOST:]PORT",
        "make a port of the command one of this machine (repeatable)",
        dest="ports",
        several=True,
    )
    group.add_argument("-w", "--workdir", metavar="PATH", help="directory of the image to start in")
    group.add_argument(
        "--shm", metavar="SIZE", help="size of /dev/shm (default: 1 GiB for each GPU)"
    )
    option(
        group,
        "--engine",
        "NAME",
        "docker, podman or sandbox (default: the engine that has the image, else the sandbox)",
        choices=_ENGINES,
    )
    group.add_argument(
        "--no-verify", action="store_true", help="do not test the image that is built of a project"
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Find the image, and run the command in it to its end."""
    from provision.lock.labels import cut_of
    from provision.verification.cut import refuse_other_gpus
    from provision.verification.subject import find_subject, ready

    order = read_engine(args.engine)
    front = Foreground(
        terminal=is_terminal(),
        binds=tuple(map(read_bind, args.volumes)),
        ports=tuple(map(read_port, args.ports)),
        directory=read_directory(args.workdir),
    )
    environment = read_environment(args.env, os.environ, console.note)
    shm = None if args.shm is None else parse_size("--shm", args.shm)
    name = args.image
    if is_project(name):
        name, code = build_project(args, console)
        if code != Exit.DONE:
            return code
    elif args.no_verify:
        raise BadInputError(
            f"--no-verify is about building a project, and {name} is an image.",
            fix="Remove --no-verify.",
        )
    places = _only(read_places(args, console), order)
    subject = find_subject(read_image(name), places)
    here = this_host()
    if cut_of(subject.labels, name):
        refuse_other_gpus(subject.labels, name, here, read_catalog(console))
    job = RunJob(
        image="",
        command=tuple(args.words),
        gpus="none" if subject.emulator else gpus_to_request(here),
        shm_bytes=shm or max(1, len(here.gpus or ())) * SHM_BYTES_PER_GPU,
        environment={**({"TERM": "xterm"} if front.terminal else {}), **environment},
    )
    try:
        with ready(subject, places, console, order) as (runner, handle):
            return runner.attend(replace(job, image=handle), front, console.detail)
    except NoProgramError as failure:
        console.fail(failure.message, failure.fix)
        return _NOT_FOUND


def is_project(text: str) -> bool:
    """Whether a word names a directory that holds no image."""
    place = Path(text).expanduser()
    return place.is_dir() and not (place / "oci-layout").is_file()


def build_project(args: argparse.Namespace, console: Console) -> tuple[str, int]:
    """Build the image of a project as `provision build DIR` does; returns its name, and the exit
    code. It is tested if no image with these packages was tested here.
    """
    from provision.cli.commands.build import build_image
    from provision.cli.render.build import describe_build

    if args.engine is not None:
        raise BadInputError(
            "--engine is about an image that exists; that of a project runs where build puts it.",
            fix="Remove --engine.",
        )
    words = ["build", args.image, *(["--no-verify"] if args.no_verify else [])]
    given = parse(words)
    result, code = build_image(given, console, again=False)
    if code != Exit.DONE:
        console.say(describe_build(result))
    return str(result["image"]["tag"]), code


def _only(places: ImagePlaces, order: Sequence[RunnerName]) -> ImagePlaces:
    """The places that images of these engines are in."""

    def refuse() -> DockerRunner:
        raise NoEngineError("Docker was not asked.", fix="Remove --engine.")

    connect = places.connect if "docker" in order else refuse
    return replace(places, connect=connect, podman="podman" in order)


def read_engine(text: str | None) -> Sequence[RunnerName]:
    """The engines that may run the image, in the order in which they are tried."""
    if text is None:
        return cast("Sequence[RunnerName]", _ORDER)
    return (cast("RunnerName", text),)


def read_bind(text: str) -> Bind:
    """The value of --volume. BadInputError: it is malformed, or there is no such file here."""
    here, _, rest = text.partition(":")
    target, colon, mode = rest.partition(":")
    if not here or not target.startswith("/") or (mode if colon else "rw") not in {"ro", "rw"}:
        raise BadInputError(
            f"--volume {quoted(text)} is not HOST:PATH with an absolute PATH of the image.",
            fix="For example: -v ./data:/data or -v /datasets:/data:ro",
        )
    source = Path(os.path.abspath(Path(here).expanduser()))  # noqa: PTH100  links are not resolved
    if not source.exists():
        raise BadInputError(
            no_such("file or directory", here, option="--volume"),
            fix=f"Make it, or name another: mkdir -p {here}",
        )
    return Bind(source=source, target=target, writable=mode != "ro")


def read_port(text: str) -> Port:
    """The value of --publish. BadInputError: it is malformed."""
    found = _PORT.fullmatch(text)
    numbers = [int(found[name] or found["inside"]) for name in ("inside", "here")] if found else []
    if found is None or not all(0 < number < 1 << 16 for number in numbers):
        raise BadInputError(
            f"--publish {quoted(text)} is not a port, or HOST:PORT.",
            fix="For example: -p 8000, -p 8080:8000 or -p 127.0.0.1:8080:8000",
        )
    inside, here = numbers
    address = (found["address"] or "").strip("[]")
    return Port(inside=inside, here=here, protocol=found["protocol"] or "tcp", address=address)


def read_environment(
    texts: Sequence[str], ours: Mapping[str, str], note: Callable[[str], None]
) -> dict[str, str]:
    """The variables of --env. BadInputError: a name is not one of a variable."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not _NAME.fullmatch(name):
            raise BadInputError(
                f"--env {quoted(text)} does not begin with the name of a variable.",
                fix="For example: -e HF_HOME=/data/hf, or -e HF_TOKEN for its value here",
            )
        if equals or name in ours:
            found[name] = value if equals else ours[name]
        else:
            note(f"--env {name}: it is not set here, so the command does not get it")
    return found


def read_directory(text: str | None) -> str:
    """The value of --workdir; "" without it. BadInputError: it is not absolute."""
    if text is not None and not text.startswith("/"):
        raise BadInputError(
            f"--workdir {quoted(text)} is not an absolute path of the image.",
            fix=f"For example: -w /workspace/{text}",
        )
    return text or ""
