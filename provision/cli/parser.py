"""`provision`: the commands and their options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from images.printable import printable
from provision.cli.commands import do_build, do_detect, do_lock, do_plan, do_verify
from provision.errors import BadInputError
from provision.output.console import Console
from provision.output.stdout import print_result
from provision.version import VERSION

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from provision.model.frozen import dataclass


def _later(module: str, name: str) -> Callable[..., Any]:
    """A function of a module that is imported when it is called: a plan can do without it."""

    def call(*given: object) -> Any:  # noqa: ANN401  whatever that function gives
        return getattr(import_module(f"provision.cli.{module}"), name)(*given)

    return call


do_show, do_refresh, do_measure = (
    _later("catalog", name) for name in ("do_show", "do_refresh", "do_measure")
)
do_doctor, doctor_options = (_later("doctor", n) for n in ("do_doctor", "doctor_options"))
do_inspect, inspect_options = (
    _later("inspect", name) for name in ("do_inspect", "inspect_options")
)
do_du, do_gc, gc_options, do_store_verify = (
    _later("store", name) for name in ("do_du", "do_gc", "gc_options", "do_verify")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One verb: what it does, which options it takes beside --json, and the function."""

    name: str
    help: str
    options: tuple[Callable[[argparse.ArgumentParser], None], ...]
    run: Callable[[argparse.Namespace, Console], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A verb that has actions of its own."""

    name: str
    help: str
    commands: tuple[Command, ...]


class _Parser(argparse.ArgumentParser):
    """argparse, with our way of saying what is wrong."""

    def error(self, message: str) -> NoReturn:
        raise BadInputError(
            f"{printable(message, limit=300)}.",
            fix=f"See {self.prog} --help",
        )

    def _print_message(self, message: str, file: object = None) -> None:
        # Only --help and --version come here: results, which a pipe may refuse as any other.
        del file
        print_result(message.rstrip("\n"))


def build_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The command line. Given the first words that were typed, only their command gets its options:
    those of the others cost a plan five milliseconds.
    """
    parser = _Parser(
        prog="provision",
        description="Finds a combination of CUDA, framework and base image that works on this GPU "
        "machine, explains why, builds the image, and tests it here.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gpu-provision {VERSION}")
    verbs = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        _add_verb(verbs, command, words)
    for group in GROUPS:
        verb = verbs.add_parser(group.name, help=group.help, allow_abbrev=False)
        actions = verb.add_subparsers(metavar="ACTION", required=True)
        for command in group.commands:
            _add_verb(actions, command, words)
    return parser


def _add_verb(
    verbs: Any,  # noqa: ANN401  argparse names no such type
    command: Command,
    words: Sequence[str] | None,
) -> None:
    verb = verbs.add_parser(
        command.name, help=command.help, description=command.help, allow_abbrev=False
    )
    verb.set_defaults(command=command)
    verb.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    verb.add_argument(
        "-v", "--verbose", action="store_true", help="show every check and the tools' output"
    )
    for add in command.options if words is None or command.name in words else ():
        add(verb)


def _request_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("request")
    group.add_argument("--cuda", metavar="X.Y", help="CUDA of the image, e.g. 11.7 (or cu117)")
    group.add_argument(
        "--framework",
        metavar="NAME",
        default="pytorch",
        help="pytorch (default), tensorflow or jax",
    )
    group.add_argument("--framework-version", metavar="SPEC", help="PEP 440, e.g. 2.0.1 or '>=2'")
    group.add_argument("--python", metavar="X.Y", help="Python of the image")
    group.add_argument(
        "--with",
        dest="companions",
        metavar="NAME",
        action="append",
        default=[],
        help="another package: torchvision, torchaudio, any requirement (repeatable)",
    )
    group.add_argument(
        "--base", metavar="IMAGE", help="base image, 'bootstrap', or oci:DIR on this machine"
    )
    group.add_argument("--flavour", metavar="KIND", default="runtime", help="runtime or devel")
    group.add_argument("--index", metavar="URL", help="package index to try first")


def _plan_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--explain", action="store_true", help="show every reason, with its source")
    verb.add_argument(
        "--matrix",
        action="store_true",
        help="list every build and whether it fits",
    )


def _host_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("host (default: this one)")
    group.add_argument(
        "--host",
        metavar="FILE",
        action="append",
        default=[],
        help="facts of another machine, as printed by `provision detect --json`; "
        "- for stdin (repeatable: one plan for all)",
    )
    group.add_argument("--driver", metavar="V", help="plan for this driver version instead")
    group.add_argument(
        "--gpu",
        dest="gpus",
        metavar="NAME|CC",
        action="append",
        default=[],
        help="plan for this GPU instead, by name or compute capability (repeatable)",
    )


def _network_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("network")
    group.add_argument("--ca-bundle", metavar="FILE", help="PEM certificates to trust")
    group.add_argument("--offline", action="store_true", help="use only what is on this machine")


def _base_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--snapshot",
        metavar="DATE",
        help="use Debian packages as of this date for a base made here (2026-03-01, or today)",
    )


def _lock_output(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--output", metavar="PATH", default="pylock.toml", help="the lock (default: pylock.toml)"
    )


def _build_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("build")
    group.add_argument("--tag", metavar="NAME:TAG", help="name of the image")
    group.add_argument(
        "--lock",
        metavar="FILE",
        action="append",
        default=[],
        help="build exactly what this lock says (repeatable: an index of several platforms)",
    )
    group.add_argument(
        "--output",
        metavar="PATH",
        help="write the image to an OCI layout (a directory) or an archive for engines (.tar)",
    )
    group.add_argument("--push", metavar="REF", help="push the image to a registry: HOST/PATH:TAG")
    group.add_argument(
        "--builder",
        metavar="KIND",
        default="auto",
        help="docker (an engine), oci (from wheels, without running anything), or auto",
    )
    group.add_argument(
        "--cache-from",
        metavar="IMAGE",
        help="oci: reuse the layers of this image instead of fetching their wheels",
    )
    group.add_argument(
        "--bytecode", action="store_true", help="oci: add compiled modules, for a faster start"
    )
    group.add_argument(
        "--exclude-unneeded",
        action="store_true",
        help="oci: leave out headers, static libraries and tests",
    )
    group.add_argument("--no-verify", action="store_true", help="do not run the suite afterwards")
    group.add_argument("--dry-run", action="store_true", help="print what would be done")


def _document_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("documents (default: next to the kept lock)")
    group.add_argument("--sbom", metavar="FILE", help="write the CycloneDX SBOM there")
    group.add_argument("--provenance", metavar="FILE", help="write the signed provenance there")
    group.add_argument("--no-provenance", action="store_true", help="write neither")
    group.add_argument("--key", metavar="FILE", help="sign with this Ed25519 key (PEM)")


def _suite_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("suite")
    group.add_argument("--level", metavar="LEVEL", help="quick, standard (default) or full")
    group.add_argument(
        "--require", metavar="NAMES", help="fail if these checks are skipped (gpu,nccl,...)"
    )


def _run_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("run")
    group.add_argument("--only", metavar="NAMES", help="run only these checks")
    group.add_argument(
        "--timeout", metavar="SECONDS", help="stop the run after so many seconds (default: 1800)"
    )


def _file_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("files, written whatever the verdict")
    group.add_argument("--report", metavar="FILE", help="the report as JSON")
    group.add_argument("--junit", metavar="FILE", help="JUnit XML, even without a report")
    group.add_argument("--html", metavar="FILE", help="a page for people, with plots")
    group.add_argument("--markdown", metavar="FILE", help="for a job's summary")
    group.add_argument(
        "--prometheus", metavar="FILE", help="for node_exporter's textfile collector"
    )
    group.add_argument(
        "--baseline",
        metavar="FILE",
        help="an earlier report: the run is unfit if anything got worse since",
    )


def _record_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("record")
    group.add_argument("--record", metavar="FILE", help="write the signed record there")
    group.add_argument("--no-record", action="store_true", help="write no record")
    group.add_argument(
        "--attach-record",
        action="store_true",
        help="attach the record to the image in its registry, for other machines",
    )
    group.add_argument("--key", metavar="FILE", help="sign with this Ed25519 key (PEM)")
    group.add_argument(
        "--check-record",
        metavar="FILE",
        nargs="?",
        const="",
        help="run nothing; check whether it has passed on this kind of machine (after IMAGE)",
    )
    group.add_argument(
        "--check-provenance",
        metavar="FILE",
        nargs="?",
        const="",
        help="run nothing; check who signed how the image was built (after IMAGE)",
    )
    group.add_argument("--lock", metavar="FILE", help="... and whether it was built from this lock")
    group.add_argument(
        "--trust",
        metavar="FILE",
        action="append",
        default=[],
        help="also trust this public key (repeatable)",
    )


def _image_argument(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("image", metavar="IMAGE", help="an image built by provision build")


def _show_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "kind",
        metavar="KIND",
        nargs="?",
        default="",
        help="torch, tensorflow, tensorflow-gpu, jax, cuda, driver, gpu, cudnn, nccl, image, "
        "conflicts",
    )
    verb.add_argument("name", metavar="NAME", nargs="*", help="a version, a tag, a GPU's name")


def _refresh_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--from",
        dest="sources",
        metavar="SOURCE",
        action="append",
        default=[],
        help="ask this source only: pypi, pytorch, registry or nvidia (repeatable)",
    )
    verb.add_argument("--index", metavar="URL", help="the default package index (default: pip's)")
    verb.add_argument("--pytorch-index", metavar="URL", help="a mirror of the PyTorch index")
    verb.add_argument("--registry", metavar="HOST", help="a mirror of the image registry")
    verb.add_argument("--nvidia", metavar="URL", help="a mirror of NVIDIA's manifests")
    verb.add_argument("--dry-run", action="store_true", help="show what is new without writing it")
    _network_options(verb)


def _measure_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("wheel", metavar="WHEEL|URL", help="a .whl file, or its address")
    verb.add_argument(
        "--deep", action="store_true", help="read the code itself, not the wheel's own metadata"
    )
    verb.add_argument("--write", action="store_true", help="save it in your copy of the catalog")
    verb.add_argument("--ca-bundle", metavar="FILE", help="PEM certificates to trust")


CATALOG_COMMANDS = (
    Command(
        name="show",
        help="show rows of the catalog: provision catalog show torch 2.0.1",
        options=(_show_arguments,),
        run=do_show,
    ),
    Command(
        name="refresh",
        help="update your copy of the catalog from the indexes and registries",
        options=(_refresh_options,),
        run=do_refresh,
    ),
    Command(
        name="measure",
        help="read the compiled GPU architectures from a wheel",
        options=(_measure_options,),
        run=do_measure,
    ),
)
STORE_COMMANDS = (
    Command(
        name="du",
        help="show what the store holds and how much disk it uses",
        options=(),
        run=do_du,
    ),
    Command(
        name="verify",
        help="check everything in the store and remove what is damaged",
        options=(),
        run=do_store_verify,
    ),
    Command(
        name="gc",
        help="free disk space, least recently used first",
        options=(gc_options,),
        run=do_gc,
    ),
)
GROUPS = (
    Group(
        name="catalog",
        help="look up, update and measure what is known about versions and GPUs",
        commands=CATALOG_COMMANDS,
    ),
    Group(
        name="store",
        help="what builds keep on this machine: wheels, bases, images",
        commands=STORE_COMMANDS,
    ),
)
COMMANDS = (
    Command(
        name="detect",
        help="read the driver, the GPUs, the system and the engines of this host",
        options=(),
        run=do_detect,
    ),
    Command(
        name="plan",
        help="find a compatible combination and explain why",
        options=(_plan_options, _request_options, _host_options, _network_options),
        run=do_plan,
    ),
    Command(
        name="lock",
        help="write a lock: every wheel with version, address, size, sha256 (pylock.toml)",
        options=(_request_options, _host_options, _network_options, _base_options, _lock_output),
        run=do_lock,
    ),
    Command(
        name="build",
        help="detect, plan, lock, build the image, and test it here",
        options=(
            _request_options,
            _host_options,
            _network_options,
            _base_options,
            _build_options,
            _document_options,
            _suite_options,
        ),
        run=do_build,
    ),
    Command(
        name="inspect",
        help="read an image or a wheel without running it: what is in it, where would it run?",
        options=(inspect_options,),
        run=do_inspect,
    ),
    Command(
        name="verify",
        help="run the verification suite inside an image, on this machine",
        options=(_image_argument, _suite_options, _run_options, _file_options, _record_options),
        run=do_verify,
    ),
    Command(
        name="doctor",
        help="find what is wrong with this machine, a log, an image or a file, and the fix",
        options=(doctor_options,),
        run=do_doctor,
    ),
)
