"""What the commands of `provision export` share: the image, the job, and how a file is written."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.cli.hosts import what_if_gpu
from provision.cli.option import option
from provision.cli.settings import (
    image_argument,
    network_options,
    read_catalog,
    read_image,
    read_places,
    read_whole,
)
from provision.cli.sizes import parse_size
from provision.errors import BadInputError, Exit
from provision.model.plan import ComputeCapability, Plan
from provision.model.request import quoted
from provision.output.console import Console
from provision.output.stdout import print_document, print_json

if TYPE_CHECKING:
    from provision.output.export.deployment import Deployment, ImageSource

_MOST_GPUS, _MOST_NODES = 1024, 100_000
_LONGEST_NAME = 200
DEFAULT_USER, _MOST_USER = 1000, (1 << 31) - 1
_DEFAULT_COMMAND = "python3 train.py"
_ALL_GPUS = frozenset({"compose", "devcontainer"})


def job_options(verb: argparse.ArgumentParser) -> None:
    """What every consumer takes."""
    image_argument(verb, "image built by provision build")
    verb.add_argument(
        "--lock", metavar="FILE", help="lock of the image, which is then not looked up"
    )
    verb.add_argument(
        "--name", metavar="NAME", help="name of the job or container (default: train)"
    )
    option(
        verb, "--env", "NAME=VALUE", "set a variable in the container (repeatable)", several=True
    )
    verb.add_argument("--output", metavar="FILE", help="write a file instead of to stdout")
    network_options(verb)


def container_options(verb: argparse.ArgumentParser) -> None:
    """What a job takes on nodes with GPUs."""
    job_options(verb)
    command_option(verb)
    verb.add_argument("--gpus", metavar="N", help="GPUs of each node (default: 1)")


def command_option(verb: argparse.ArgumentParser) -> None:
    """--command."""
    verb.add_argument(
        "--command",
        dest="words",
        metavar="COMMAND",
        default=_DEFAULT_COMMAND,
        help=f'what runs in the container, quoted as for a shell (default: "{_DEFAULT_COMMAND}")',
    )


def nodes_options(verb: argparse.ArgumentParser) -> None:
    """A job of several nodes."""
    verb.add_argument("--nodes", metavar="N", help="number of nodes (default: 1)")
    verb.add_argument(
        "--gate", action="store_true", help="run the suite on each node before the command"
    )


def shm_option(verb: argparse.ArgumentParser) -> None:
    """--shm."""
    verb.add_argument(
        "--shm", metavar="SIZE", help="size of /dev/shm (default: 1 GiB for each GPU)"
    )


def mount_option(verb: argparse.ArgumentParser) -> None:
    """--no-mount."""
    verb.add_argument(
        "--no-mount",
        action="store_true",
        help="do not mount the current directory at /workspace",
    )


def export(args: argparse.Namespace, console: Console, write: Callable[[Deployment], str]) -> int:
    """Read the image's labels or its lock, and write the file."""
    from provision.output.files import refuse_unwritable, write_named

    output = None if args.output is None else Path(args.output)
    if output is not None:
        refuse_unwritable("--output", output)
    consumer = args.command.name
    one = read_deployment(args, consumer, console)
    text = write(one)
    if one.image.kind == "reference" and not _has_registry(one.image.name):
        console.note(
            f"{one.image.name} names no registry: other machines look for it on Docker Hub. "
            "Push it, and name it as REGISTRY/PATH:TAG."
        )
    if one.nodes > 1:
        console.note(
            "Between nodes this job uses TCP: it requests neither RDMA or EFA devices nor the "
            "right to lock memory. A comment in the file says how to add them."
        )
    if consumer == "kubernetes":
        console.note(
            "The pod has neither tolerations, which nodes with a taint need, nor imagePullSecrets, "
            "which a registry with a login needs. A comment in the file says how to add them."
        )
    if output is not None:
        mode = 0o755 if text.startswith("#!") else 0o644
        write_named("--output", output, text.encode())
        output.chmod(mode)
    if args.json:
        print_json(
            {
                "schema": 1,
                "consumer": consumer,
                "image": args.image,
                "output": None if output is None else str(output),
                "text": text,
                "error": None,
            }
        )
    else:
        print_document(text.removesuffix("\n") if output is None else str(output))
    return Exit.DONE


def _has_registry(name: str) -> bool:
    from provision.verification.subject import names_a_registry

    return names_a_registry(name)


def read_deployment(args: argparse.Namespace, consumer: str, console: Console) -> Deployment:
    """The options, checked, and what the image's labels or its lock say."""
    from provision.cli.commands.export.placement import placement
    from provision.output.export.deployment import Deployment

    given = vars(args)
    name = _text("--name", "train" if args.name is None else args.name, keep="")
    if not name or len(name) > _LONGEST_NAME or "/" in name or name.startswith(("-", ".")):
        raise BadInputError(
            f"--name {quoted(name)} cannot be the name of a job.",
            fix="Begin with a letter or a digit, and use no slash: --name train",
        )
    command = _words(given.get("words") or _DEFAULT_COMMAND)
    environment = tuple(_pair(text) for text in args.env)
    every = consumer in _ALL_GPUS
    gpus, nodes, user = (given.get(name) for name in ("gpus", "nodes", "user"))
    all_gpus = every and gpus is None
    shm = given.get("shm")
    shm_bytes = None if shm is None else _positive("--shm", parse_size("--shm", shm))
    catalog = read_catalog(console)
    named = tuple(what_if_gpu(text, catalog) for text in given.get("gpu") or ())
    image = _source(args.image)
    plan, cut = _plan(args, console)
    place = placement(plan, named, cut, catalog)
    return Deployment(
        image=image,
        name=name,
        command=command,
        framework=plan.framework,
        framework_version=_known(plan.framework_version, "the framework's version", args),
        cuda=_known(plan.cuda, "CUDA's version", args),
        arch=plan.arch,
        gpus=None if all_gpus else read_whole("--gpus", gpus or "1", _MOST_GPUS),
        nodes=read_whole("--nodes", nodes or "1", _MOST_NODES),
        shm_bytes=shm_bytes,
        environment=environment,
        products=place.products,
        capabilities=place.capabilities,
        driver=place.driver,
        user=read_whole("--user", user or str(DEFAULT_USER), _MOST_USER, least=0),
        gate=bool(given.get("gate")),
    )


def _known(version: str | None, what: str, args: argparse.Namespace) -> str:
    if version is None:
        raise BadInputError(
            f"The plan of {args.image} does not have {what}.", fix="Build it again: provision build"
        )
    return version


def _plan(args: argparse.Namespace, console: Console) -> tuple[Plan, tuple[ComputeCapability, ...]]:
    """The plan of the image, and the only GPUs that it has code for, if others' was removed."""
    if args.lock is not None:
        from provision.lock.lockfile import read_lock_file

        return read_lock_file(Path(args.lock)).plan, ()
    from provision.lock.labels import cut_of, plan_of
    from provision.verification.subject import find_subject

    name = read_image(args.image)
    labels = find_subject(name, read_places(args, console)).labels
    return plan_of(labels, name), tuple(cut_of(labels, name))


def _source(text: str) -> ImageSource:
    from images.assembly.opening import parse_place
    from provision.output.export.deployment import ImageSource

    _text("The image", text, keep="")
    place = parse_place(read_image(text))
    if place.path is not None:
        prefix = text.partition(":")[0]
        kind: Any = "oci" if place.kind == "layout" else "oci-archive"
        if place.kind == "archive" and prefix == "docker-archive":
            kind = "docker-archive"
        where = str(place.path.absolute())
        return ImageSource(kind=kind, name=f"{where}:{place.name}" if place.name else where)
    return ImageSource(
        kind="engine" if place.kind == "engine" else "reference", name=place.name or text
    )


def _words(text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(_text("--command", text)))
    except ValueError as error:
        raise BadInputError(
            f"--command {quoted(text)}: {str(error).lower()}.", fix="Close the quotes."
        ) from None
    if not words or not words[0]:
        raise BadInputError("--command is empty.", fix='For example: --command "python3 train.py"')
    return words


def _pair(text: str) -> tuple[str, str]:
    from provision.output.export.deployment import VARIABLE

    name, equals, value = _text("--env", text).partition("=")
    if not equals or not VARIABLE.fullmatch(name):
        raise BadInputError(
            f"--env {quoted(text)} does not set a variable.", fix="Write it as --env NAME=VALUE"
        )
    return name, value


def _text(option: str, text: str, *, keep: str = "\n\t\xa0") -> str:
    """The text itself. BadInputError: it has characters that not every file can hold."""
    if any(not c.isprintable() and c not in keep for c in text):
        raise BadInputError(
            f"{option} {quoted(text)} contains unprintable characters.",
            fix="Put them into a script, and run that.",
        )
    return text


def _positive(option: str, value: int) -> int:
    if value <= 0:
        raise BadInputError(f"{option} must be more than 0.", fix=f"For example: {option} 8GiB")
    return value
