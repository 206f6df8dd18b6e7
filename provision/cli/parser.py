"""`provision`: the commands and their options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from images.text.printable import printable
from provision.cli.arguments import (
    advanced_options,
    base_options,
    build_options,
    doctor_options,
    file_options,
    host_options,
    image_argument,
    lock_output,
    network_options,
    plan_options,
    project_argument,
    record_options,
    request_options,
    run_options,
    suite_options,
)
from provision.cli.commands import do_build, do_detect, do_lock, do_plan, do_verify
from provision.cli.examples import examples_of
from provision.cli.groups import GROUPS, Command, later
from provision.cli.help import FirstParser, HelpParser, described
from provision.errors import BadInputError
from provision.version import VERSION

do_suite = later("suite", "do_suite")
do_doctor = later("doctor", "do_doctor")
do_inspect, inspect_options = (later("inspect", name) for name in ("do_inspect", "inspect_options"))
do_wheel, wheel_options = (later("wheel", name) for name in ("do_wheel", "wheel_options"))
do_bundle, bundle_options = (later("bundle", name) for name in ("do_bundle", "bundle_options"))
do_gate, gate_options = (later("gate", name) for name in ("do_gate", "gate_options"))
do_completion, completion_options = (
    later("completion", name) for name in ("do_completion", "completion_options")
)
# The options that decide the plan, and how what it needs is fetched.
PLANNED = (request_options, host_options, network_options, base_options)


def build_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The command line. Given the first words typed, it defines only their command: the others
    would cost a plan ten milliseconds.
    """
    parser = FirstParser(
        prog="provision",
        description="Find a compatible combination of driver, CUDA, framework and base image,\n"
        "explain why, build the image, and test it on this machine.",
        epilog=examples_of(""),
    )
    parser.add_argument("--version", action="version", version=f"gpu-provision {VERSION}")
    # with `prog` argparse need not format a usage line here, for which it imports shutil
    verbs = parser.add_subparsers(
        metavar="COMMAND", required=True, prog=parser.prog, parser_class=HelpParser
    )
    known = {one.name for one in (*COMMANDS, *GROUPS)}
    typed = known.intersection((words or ())[:1])
    for command in COMMANDS:
        if not typed or command.name in typed:
            _add_verb(verbs, command, words)
    for group in GROUPS:
        if typed and group.name not in typed:
            continue
        verb = verbs.add_parser(group.name, help=group.help, **described(group.name, group.help))
        actions = verb.add_subparsers(metavar="ACTION", required=True, prog=verb.prog)
        for command in group.commands:
            _add_verb(actions, command, words, group.name)
    return parser


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options of a command line; for a command that runs another, `words` is what is after --.
    BadInputError: wrong usage.
    """
    own = next((one for one in COMMANDS if one.run is do_suite and one.name == words[0]), None)
    if own is not None:  # the suite reads its options
        return argparse.Namespace(command=own, words=list(words), json=False, verbose=False)
    parser = build_parser(words[:2])
    if not any(one.is_program and one.name == words[0] for one in COMMANDS):
        return parser.parse_args(words)
    end = words.index("--") if "--" in words else len(words)
    found, rest = parser.parse_known_args(words[:end])
    found.words = list(words[end + 1 :])
    if rest:
        import shlex

        typed = [word for word in words[:end] if word not in rest]
        raise BadInputError(
            f"{words[0]} does not know {printable(shlex.join(rest), limit=100)}.",
            fix=f"Put a command after --: provision {shlex.join([*typed, '--', *rest])}",
        )
    return found


def _add_verb(
    verbs: Any,  # noqa: ANN401  argparse names no such type
    command: Command,
    words: Sequence[str] | None,
    group: str = "",
) -> None:
    verb = verbs.add_parser(
        command.name,
        aliases=command.aliases,
        **({} if command.is_hidden else {"help": command.help}),
        **described(f"{group} {command.name}".strip(), command.help),
    )
    verb.set_defaults(command=command, json=False)
    if not command.is_program:
        verb.add_argument("--json", action="store_true", help="print the result as JSON")
    verb.add_argument(
        *(() if command.is_program else ("-v",)),
        "--verbose",
        action="store_true",
        help="show more detail, including the output of tools",
    )
    is_typed = words is None or not {command.name, *command.aliases}.isdisjoint(words)
    for add in command.options if is_typed else ():
        add(verb)


COMMANDS = (
    Command(
        name="detect",
        help="show the driver, GPUs, system and container engines of this machine",
        options=(),
        run=do_detect,
    ),
    Command(
        name="plan",
        help="find a compatible combination and explain why",
        options=(project_argument, plan_options, request_options, host_options, network_options),
        run=do_plan,
    ),
    Command(
        name="lock",
        help="write a lock (pylock.toml) with the exact wheels and the base image",
        options=(project_argument, *PLANNED, lock_output),
        run=do_lock,
    ),
    Command(
        name="build",
        help="plan, lock and build an image, then test it on this machine",
        options=(
            project_argument,
            *PLANNED,
            build_options,
            suite_options,
            advanced_options,
        ),
        run=do_build,
    ),
    Command(
        name="run",
        help="run a command in an image, with the GPUs of this machine",
        options=(later("run", "run_arguments"),),
        run=later("run", "do_run"),
        is_program=True,
    ),
    Command(
        name="bundle",
        help="pack what a build needs into a file, for a machine without network",
        options=(project_argument, *PLANNED, bundle_options),
        run=do_bundle,
    ),
    Command(
        name="wheel",
        help="build packages of which an index has only the source",
        options=(wheel_options, *PLANNED),
        run=do_wheel,
    ),
    Command(
        name="inspect",
        help="show what is in an image or a wheel, and where it would run",
        options=(inspect_options,),
        run=do_inspect,
    ),
    Command(
        name="verify",
        help="test an image on this machine",
        options=(image_argument, suite_options, run_options, file_options, record_options),
        run=do_verify,
    ),
    Command(
        name="ls",
        help="list the images on this machine that were built by gpu-provision",
        options=(),
        run=later("ls", "do_ls"),
    ),
    Command(
        name="rm",
        help="remove images on this machine that were built by gpu-provision",
        options=(later("rm", "rm_options"),),
        run=later("rm", "do_rm"),
    ),
    Command(
        name="clean",
        help="remove all that gpu-provision keeps on this machine, except itself",
        options=(later("clean", "clean_options"),),
        run=later("clean", "do_clean"),
    ),
    Command(
        name="gate",
        help="decide whether a job with this image may start on this node",
        options=(gate_options,),
        run=do_gate,
    ),
    Command(
        name="doctor",
        help="find problems in this machine, a log, an image or a file; fix them",
        options=(doctor_options,),
        run=do_doctor,
    ),
    Command(
        name="monitor",
        help="watch the GPUs while a command runs, and name the likely bottleneck",
        options=(),
        run=do_suite,
    ),
    Command(
        name="batch",
        help="find the largest and the fastest batch size of a model, in an image",
        options=(),
        run=do_suite,
    ),
    Command(
        name="compare",
        help="show what became worse between two reports of verify",
        options=(),
        run=do_suite,
    ),
    Command(
        name="completion",
        help="print what completes commands in bash, zsh or fish",
        options=(completion_options,),
        run=do_completion,
    ),
)
