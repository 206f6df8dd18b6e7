"""A definition file for Apptainer: https://apptainer.org/docs/user/latest/definition_files.html

Sections and headers: https://github.com/apptainer/apptainer/blob/v1.5.3/pkg/build/types/parser/deffile.go
Options: .../cmd/internal/cli/action_flags.go; `--pwd` has the synonym `--cwd` from 1.3 on.
"""

from __future__ import annotations

import re
import shlex

from provision.errors import BadInputError
from provision.model.request import quoted
from provision.output.export.deployment import WORKSPACE, Deployment, remark
from provision.output.export.launch import on_one_node
from provision.output.export.names import apptainer_bootstrap, apptainer_from

_NOT_LITERAL = re.compile(r"\n|\{\{")


def to_definition(one: Deployment) -> str:
    """The file. BadInputError: a word has a line end, after which a section could begin, or two
    opening braces, which Apptainer expands.
    """
    words = on_one_node(one)
    for text in (*words, *(value for _, value in one.environment), one.name, one.image.name):
        if _NOT_LITERAL.search(text):
            raise BadInputError(
                f"A definition file cannot hold {quoted(text)}: it has a line end or two opening "
                "braces.",
                fix="Put the command into a script, and name that: --command 'sh run.sh'",
            )
    if "#" in one.image.name:  # begins a comment in a header
        raise BadInputError(
            f"A definition file cannot name {quoted(one.image.name)}: it has a #.",
            fix="Rename the directory or the file.",
        )
    sif = shlex.quote(f"{one.name}.sif")
    exports = [f"    export {name}={shlex.quote(value)}" for name, value in one.environment]
    environment = ["", "%environment", *exports] if exports else []
    return "\n".join(
        [
            remark(f"{one.title}."),
            "#",
            remark(f"  apptainer build {sif} {shlex.quote(one.name)}.def"),
            remark(f"  apptainer run --nv --no-home --bind .:{WORKSPACE} --pwd {WORKSPACE} {sif}"),
            "#",
            "# --nv brings the driver's libraries; /dev/shm is the host's. Without the home",
            "# directory: Python packages in ~/.local would come before the image's.",
            f"Bootstrap: {apptainer_bootstrap(one.image)}",
            f"From: {apptainer_from(one.image)}",
            "",
            "%labels",
            f"    org.gpu-provision.framework {one.framework} {one.framework_version}",
            f"    org.gpu-provision.cuda {one.cuda}",
            *environment,
            "",
            "%runscript",
            f'    exec {shlex.join(words)} "$@"',
            "",
            "%test",
            "    # on the machine that builds the image, so without a GPU",
            "    verify --list > /dev/null",
            "",
        ]
    )
