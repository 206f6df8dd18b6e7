"""What is said of a project's imports that its image lacks, and of files that were not read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from provision.build.base import BuildSettings
from provision.build.project import code as code_module
from provision.build.project.code import read_code
from provision.build.project.import_check import check_imports
from provision.lock.lockfile import Lock
from provision.model.plan import Base
from provision.output.console import Console
from provision.sources.errors import ProjectIncompleteError
from tests.kit.cases import cases
from tests.kit.projects import project
from tests.unit.provision.lock.test_lock import PLAN

OWN = PLAN._replace(base=Base(kind="bootstrap", reference="bootstrap", python="3.11", glibc="2.36"))
LOCK = Lock(text='lock-version = "1.0"\ncreated-by = "x"\npackages = []', plan=OWN, wheels=())


def said(root: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The notes on a project, in one line, then the refusal."""
    settings = BuildSettings(ca=None, offline=True, state=root.parent / "state", env={})
    refused = ""
    try:
        check_imports(read_code(root), [LOCK], (), settings, Console())
    except ProjectIncompleteError as error:
        refused = f"{error.message} {error.fix}"
    return " ".join(f"{capsys.readouterr().err} {refused}".split())


@cases(
    "files words",
    ("a module that git ignores",
     {"app.py": "import made\n", "made.py": "", ".gitignore": "made.py\n"},
     ("no wheel of the image has: made (app.py, line 1). .gitignore keeps made.py out of the "
      "image. Put it into the image: echo '!made.py' >> .dockerignore, or build the image "
      "without it: --without made")),
    ("a package that docker ignores",
     {"app.py": "import made\n", "made/a.py": "", ".dockerignore": "made\n"},
     (".dockerignore keeps made out of the image. Put it into the image: echo '!made' >> "
      ".dockerignore")),
    ("a folder without modules is not what is imported",
     {"app.py": "import wandb\n", "wandb/run-1/log.txt": "", ".gitignore": "wandb/\n"},
     "Add what provides it to the project's requirements"),
    ("one that may be imported",
     {"app.py": "try:\n import made\nexcept ImportError: pass\n", "made.py": "",
      ".gitignore": "made.py\n"},
     ("Not found among the wheels: made (app.py, line 2). The project may do without them. "
      ".gitignore keeps made.py out of the image.")),
    ("files that cannot be parsed",
     {"app.py": "", "a.py": "print 'two'\n", "b.py": "{{ name }} x\n", "c.py": "(", "d.py": "}"},
     "cannot parse 4 files (a.py, b.py, c.py, ...); what they import is not checked."),
)  # fmt: skip
def test_what_is_said(
    files: Mapping[str, str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in said(project(tmp_path / "app", files), capsys)


def test_the_command_that_is_named_puts_the_module_into_the_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"app.py": "import made\n", "made/a.py": "", ".gitignore": "/made\n"}
    root = project(tmp_path / "app", files)
    assert "echo '!made' >> .dockerignore" in said(root, capsys)
    (root / ".dockerignore").write_text("!made\n")
    assert read_code(root).tree.has("made/a.py")
    assert "made" not in said(root, capsys)


def test_of_too_many_files_those_of_the_program_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_module, "MOST_FILES", 2)
    files = {
        "examples/z.py": "",
        "pkg/__init__.py": "",
        "pkg/deep/b.py": "",
        "app.py": "import it\n",
    }
    heard = said(project(tmp_path / "app", files), capsys)
    assert "MiB: 2 files (examples/z.py, pkg/deep/b.py)." in heard
    assert "no wheel of the image has: it (app.py, line 1)." in heard
