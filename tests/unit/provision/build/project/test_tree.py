"""The files of a project that go into its image: no link leads out, no secret is in."""

from __future__ import annotations

import codecs
import contextlib
import os
import random
import re
import socket
import string
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.layers.own_errors import ProjectFilesError
from provision.build.project.ignore import tracked_by_git
from provision.build.project.secrets import ProjectSecretError
from provision.build.project.tree import in_words, notes_of, read_tree
from provision.sources.errors import ProjectError
from tests.kit.cases import cases
from tests.kit.projects import project


def paths(root: Path) -> list[str]:
    return [one.path for one in read_tree(root).files]


@contextlib.contextmanager
def as_another_user() -> Iterator[None]:
    """Root reads everything; nobody else does."""
    # What is read at the first use, the other user may not be able to read: the checkout of root.
    codecs.lookup("utf-8-sig")
    with tempfile.TemporaryDirectory() as other:
        read_tree(project(Path(other), {"main.py": "", ".dockerignore": "x\n"}))
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_directory_that_cannot_be_entered_is_named_or_stays_out() -> None:
    with tempfile.TemporaryDirectory() as made:
        root = project(Path(made), {"main.py": "", "locked/a.py": "", "other/.keep": ""})
        root.chmod(0o755)
        (root / "locked").chmod(0)
        try:
            with (
                as_another_user(),
                pytest.raises(ProjectFilesError, match=r"locked cannot be read"),
            ):
                read_tree(root)
            project(root, {".dockerignore": "locked\n"})
            with as_another_user():
                assert "app/main.py" in paths(root)
        finally:
            (root / "locked").chmod(0o755)


def test_code_is_taken_and_what_no_image_needs_is_not(tmp_path: Path) -> None:
    files = dict.fromkeys(
        [
            "main.py", "pkg/a.py", "pkg/__pycache__/a.pyc", ".git/config", ".venv/x",
            "env/pyvenv.cfg", "env/lib/x.py", "conda/conda-meta/history", "a.egg-info/PKG-INFO",
            "data/big.bin", ".env", "sub/.gitignore", "sub/x.log", ".dockerignore",
        ],
        "",
    )  # fmt: skip
    files |= {".gitignore": "data/\n", "sub/.gitignore": "*.log\n"}
    found = read_tree(project(tmp_path, files))
    assert [one.path for one in found.files] == [
        "app/.dockerignore",
        "app/.gitignore",
        "app/main.py",
        "app/pkg/a.py",
        "app/sub/.gitignore",
    ]
    assert found.secrets == (".env",)
    assert any("likely secrets: .env" in note for note in notes_of(found))


@pytest.mark.parametrize("name", [".gitignore", ".dockerignore"])
def test_patterns_may_be_in_any_encoding(tmp_path: Path, name: str) -> None:
    """Like the names of files they are bytes; git and Docker do not ask for UTF-8."""
    root = project(tmp_path, {"main.py": "", "logs/a": ""})
    (root / name).write_bytes(b"# caf\xe9\ncaf\xe9.txt\nlogs\n")
    Path(os.fsdecode(os.fsencode(root) + b"/caf\xe9.txt")).touch()
    assert [path for path in paths(root) if not path.endswith(name)] == ["app/main.py"]


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_what_git_tracks_is_taken_whatever_a_gitignore_says(tmp_path: Path, version: str) -> None:
    files = {
        ".gitignore": "nodes/\n*.log\n", ".dockerignore": "nodes/deep/b.py\nkeys\n", "main.py": "",
        "nodes/a.py": "", "nodes/deep/b.py": "", "nodes/deep/c.log": "", "keys/k.log": "",
        "n\u00f6ten.log": "", "nodes/.env": "",
    }  # fmt: skip
    root = project(tmp_path, files)

    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True)

    git("init", "-q")
    git("add", "--all", "--force")
    if version == "3":  # a mark of an entry needs this version
        project(root, {"later.log": ""})
        git("add", "--force", "--intent-to-add", "later.log")
    git("update-index", "--index-version", version)
    project(root, {"nodes/own.py": "", "nodes/own.log": "", "own.log": ""})
    found = read_tree(root)
    later = ["app/later.log"] if version == "3" else []
    assert [one.path for one in found.files] == [
        "app/.dockerignore", "app/.gitignore", *later, "app/main.py", "app/nodes/a.py",
        "app/nodes/deep/c.log", "app/n\u00f6ten.log",
    ]  # fmt: skip
    assert found.secrets == ("nodes/.env",)
    assert found.kept_out == (("nodes/deep/b.py", ".dockerignore"), ("nodes/own.py", ".gitignore"))
    assert (root / ".git/index").read_bytes()[7] == int(version)


def test_a_damaged_index_tracks_nothing_or_less(tmp_path: Path) -> None:
    root = project(tmp_path, {".gitignore": "a.log\n", "a.log": "", "main.py": ""})
    for words in (["init", "-q"], ["add", "--all", "--force"]):
        subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True)
    index = (root / ".git/index").read_bytes()
    numbers = random.Random(7)
    for _ in range(300):
        data = bytearray(index[: numbers.randrange(len(index) + 1)])
        for _ in range(numbers.randrange(3) if data else 0):
            data[numbers.randrange(len(data))] = numbers.randrange(256)
        tracked_by_git(bytes(data))
    (root / ".git/index").write_bytes(index[:40])
    assert paths(root) == ["app/.gitignore", "app/main.py"]


def test_links_stay_links_and_none_leads_out(tmp_path: Path) -> None:
    root = project(tmp_path / "p", {"a/b.py": "", "c.py": ""})
    project(tmp_path, {"outside": "secret"})
    for name, target in {
        "in": "c.py", "a/up": "../c.py", "dir": "a", "loop": "loop", "gone": "nothing",
        "out": "../outside", "a/out": "../../outside", "far": "a/../../outside",
        "absolute": "/etc/passwd", "own": str(root / "c.py"), "odd": "c\n.py",
    }.items():  # fmt: skip
        (root / name).symlink_to(target)
    found = read_tree(root)
    assert {one.path: one.target for one in found.links} == {
        "app/in": "c.py",
        "app/a/up": "../c.py",
        "app/dir": "a",
        "app/loop": "loop",
        "app/gone": "nothing",
    }
    assert found.unusable == ("a/out", "absolute", "far", "odd", "out", "own")
    assert [one.path for one in found.files] == ["app/a/b.py", "app/c.py"]


def test_what_is_no_file_stays_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / os.fsdecode(b"\xff.py")).touch()
    with socket.socket(socket.AF_UNIX) as found:
        monkeypatch.chdir(tmp_path)
        found.bind("socket")
        tree = read_tree(tmp_path)
    assert tree.files == ()
    assert len(tree.unusable) == 3


@cases(
    "name",
    ("one file", ".wh.passwd"),
    ("all of a directory", "pkg/.wh..wh..opq"),
    ("a directory of this name", ".wh.pkg/a.py"),
)
def test_a_name_that_deletes_files_of_the_image_is_refused(tmp_path: Path, name: str) -> None:
    root = project(tmp_path, {"main.py": "", name: ""})
    with pytest.raises(ProjectFilesError, match="would delete files of the image") as caught:
        read_tree(root)
    assert name in caught.value.message
    project(tmp_path, {".dockerignore": f"{name.partition('/')[0]}\n"})
    assert "app/main.py" in paths(root)


def test_patterns_are_read_in_the_project_alone(tmp_path: Path) -> None:
    root = project(tmp_path / "p", {"main.py": ""})
    project(tmp_path, {"other": "main.py\n"})
    (root / ".dockerignore").symlink_to("../other")
    with pytest.raises(ProjectError, match=r"\.dockerignore leads outside of the project"):
        read_tree(root)


def test_modes_tell_programs_from_other_files_and_nothing_else(tmp_path: Path) -> None:
    project(tmp_path, {"a": "", "b": "", "c": ""})
    (tmp_path / "a").chmod(0o700)
    (tmp_path / "b").chmod(0o666)
    assert {one.path: one.runs for one in read_tree(tmp_path).files} == {
        "app/a": True,
        "app/b": False,
        "app/c": False,
    }


def test_what_a_build_writes_is_not_part_of_it(tmp_path: Path) -> None:
    project(tmp_path, {"main.py": "", "image.tar": "", "layout/index.json": ""})
    found = read_tree(tmp_path, leave_out=[tmp_path / "image.tar", tmp_path / "layout"])
    assert [one.path for one in found.files] == ["app/main.py"]


def test_a_project_that_is_too_large_is_refused_with_what_is_large(tmp_path: Path) -> None:
    project(tmp_path, {"main.py": "", "data/a": "x" * 900, "data/b": "x" * 900})
    with pytest.raises(ProjectFilesError, match=r"The largest: data") as caught:
        read_tree(tmp_path, most_bytes=1000)
    assert "echo data >> .dockerignore" in caught.value.fix


def test_deep_directories_are_no_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(1050):
        os.mkdir("d")  # noqa: PTH102  relative: the whole path may be too long
        os.chdir("d")
    try:
        assert read_tree(tmp_path).files == ()
    finally:  # what removes a test's directory works recursively
        for _ in range(1050):
            os.chdir("..")
            os.rmdir("d")  # noqa: PTH106


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    project(tmp_path, {"a": ""})
    (tmp_path / "a").chmod(0)
    with pytest.raises(ProjectFilesError, match="cannot be read"):
        read_tree(tmp_path)


SECRET_NAMES = [
    ".docker/config.json", ".config/gcloud/application_default_credentials.json", ".vault-token",
    ".pgpass", ".env~", ".ENV", "prod.env", "credentials.json", "secrets.yaml", "terraform.tfstate",
    "pip.conf", "a/.Netrc", "ID_RSA", "id_ed25519.bak", "deep/.aws/credentials", ".kube/config",
    "client_secret_1.apps.json", "store.JKS", "x.p12", "server.key", "key.pem", ".env.production",
    "kaggle.json", ".bash_history", "infra/prod.tfvars", ".npmrc", "sub/.ssh/known_hosts",
]  # fmt: skip
PUBLIC = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
NO_SECRETS = {
    "secrets.py": "import secrets\n", "credentials.py": "", "tokenizer.json": "{}",
    "tokens.json": "{}", ".env.example": "TOKEN=\n", "example.env": "", "environment.yml": "",
    "certs/cacert.pem": PUBLIC * 3, "signing.key": "-----BEGIN PUBLIC KEY-----\nMIIB\n",
    "docs/secrets.md": "", "config.json": "{}", "app/docker/config.json": "{}", "src/env.py": "",
    "monkey.py": "", "id_rsa.pub": "ssh-rsa AAAA", "keys.txt": "", "data.key.csv": "",
}  # fmt: skip


def test_files_that_are_secrets_by_name_stay_out(tmp_path: Path) -> None:
    root = project(tmp_path, {**dict.fromkeys(SECRET_NAMES, "C4N4RY"), **NO_SECRETS})
    tree = read_tree(root)
    assert {one.path for one in tree.files} == {f"app/{name}" for name in NO_SECRETS}
    whole = {"deep/.aws", ".kube", "sub/.ssh", ".config/gcloud"}
    assert set(tree.secrets) == whole | {
        name for name in SECRET_NAMES if not any(name.startswith(f"{one}/") for one in whole)
    }
    assert ".ENV" in " ".join(notes_of(tree))


@cases(
    "docker git kept",
    ("all below a directory", "*\n!src/**", "", set()),
    ("the directory", "*\n!src", "", set()),
    ("wildcards for a name", "!**/.env\n!**/*.pem\n!*", "", set()),
    ("wildcards for a letter", "!src/.en[v]\n!src/.en?", "", set()),
    ("the name of another file", "!.env", "", set()),
    ("git's file", "", "!.env\n!src/.env", set()),
    ("its own name", "!src/.env", "", {"src/.env"}),
    ("its own name, among others", "*\n!src/**\n!src/.env", "", {"src/.env"}),
    ("a later line excludes it", "!src/.env\n**/.env", "", set()),
    ("in a directory of secrets", "!.ssh/id_rsa", "", {".ssh/id_rsa"}),
    ("a directory, and what is none by itself", "!.ssh", "", {".ssh/config"}),
)
def test_a_secret_comes_in_by_its_own_name_alone(
    docker: str, git: str, kept: set[str], tmp_path: Path
) -> None:
    files = dict.fromkeys(["src/.env", "src/a.pem", ".ssh/id_rsa", ".ssh/config"], "C4N4RY")
    root = project(tmp_path, {**files, ".dockerignore": docker, ".gitignore": git})
    tree = read_tree(root)
    assert {one.path.removeprefix("app/") for one in tree.files} & set(files) == kept
    said = " ".join(notes_of(tree))
    assert ("although they look like secrets" in said) == bool(kept)
    if kept and kept <= {"src/.env", ".ssh/id_rsa"}:
        assert tree.admitted == tuple(kept)


TOKEN = "hf_" + "".join(random.Random(3).choices(string.ascii_letters, k=34))
HUGGING, LOGIN = "a token of Hugging Face", "an address with a login"
SIGNED = "https://h.example/a-1-py3-none-any.whl?X-Amz-Date=1&X-Amz-Signature=" + "0a1b2c3d" * 8


@cases(
    "name line kind",
    ("a token", "src/config.py", f"TOKEN = '{TOKEN}'", HUGGING),
    ("a notebook", "train.ipynb", f'["login({TOKEN})"]', HUGGING),
    ("a password", "a.py", "x = 'https://ci:q7Xw2pLm9d@git.corp.com/x'", LOGIN),
    ("an index", "requirements.txt", "--index-url https://ci:hunter@h/simple", LOGIN),
    ("presigned", "requirements.txt", f"a @ {SIGNED}", "a signed address"),
    ("a token in a query", "requirements.in", "a @ https://h/a-1-py3-none-any.whl?token=abcdefgh1",
     "a signed address"),
    ("a slash", "pyproject.toml", "url = 'https://x:y/z@h/simple'", LOGIN),
    ("two lines", "id.txt", f"{TOKEN}\n{TOKEN}", HUGGING),
)  # fmt: skip
def test_a_build_stops_at_a_secret_in_a_file(
    name: str, line: str, kind: str, tmp_path: Path
) -> None:
    root = project(tmp_path, {"main.py": "", name: f"# first\n{line}\n"})
    with pytest.raises(ProjectSecretError, match=kind) as caught:
        read_tree(root)
    said = f"{caught.value.message} {caught.value.fix}"
    assert f"{name}, line 2, has {kind}" in said
    assert not any(one in said for one in (TOKEN, "q7Xw2pLm9d", "hunter", "0a1b2c3d", "abcdefgh1"))
    for fix in re.findall(r"echo '([^']+)'", caught.value.fix):
        project(root, {".dockerignore": f"{fix}\n"})
        assert (f"app/{name}" in paths(root)) == fix.startswith("!")
    project(root, {".dockerignore": "*\n!**\n"})
    with pytest.raises(ProjectSecretError):
        read_tree(root)


@cases(
    "name text",
    ("README", "README.md", "git clone https://user:password@git.corp.com/x"),
    ("a service", "compose.yml", "postgres://app:S3cr3tPw0rd@db:5432/x"),
    ("an example", "a.py", "https://user:aB3dE5gH@proxy.example.com"),
    ("this machine", "a.py", "https://u:aB3dE5gH@127.0.0.1/"),
    ("a template", "a.py", 'f"https://{user}:{password}@{host}/"'),
    ("a variable", "requirements.txt", "--index-url https://ci:${TOKEN}@h.corp.com/s"),
    ("git's user", "requirements.txt", "a @ git+ssh://git@github.com/o/r.git"),
    ("a harmless query", "requirements.txt", "a @ https://h/a-1-py3-none-any.whl?raw=true"),
    ("a digest", "uv.lock", 'url = "https://h/a-1.whl#sha256=0123456789abcdef"'),
    ("no text", "a.bin", f"\0 {TOKEN}"),
    ("a large file", "big.txt", "x" * (1 << 20) + f" {TOKEN}"),
)
def test_what_is_no_secret_stops_no_build(name: str, text: str, tmp_path: Path) -> None:
    assert f"app/{name}" in paths(project(tmp_path, {name: text}))


def test_many_secrets_are_counted(tmp_path: Path) -> None:
    root = project(tmp_path, {f"{i}.txt": TOKEN for i in range(10)})
    with pytest.raises(ProjectSecretError, match="and 2 more"):
        read_tree(root)


def test_long_lists_are_cut() -> None:
    assert in_words([str(i) for i in range(10)]) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


def test_an_empty_directory_is_an_empty_tree(tmp_path: Path) -> None:
    assert paths(tmp_path) == []
