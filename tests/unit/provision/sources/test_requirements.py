"""A requirements.txt and what it includes: what is taken, what is listed, what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.model.environment import with_addresses
from provision.model.plan import DeclaredIndex
from provision.sources.declaration import Declaration, Declared
from provision.sources.errors import ProjectError
from provision.sources.requirements import pip_lines, read_requirements
from tests.kit.cases import cases
from tests.kit.projects import project

HASH = "a" * 64
WHEEL = "h.example/w/a-1-py3-none-any.whl"


def read(root: Path, **files: str) -> Declaration:
    named = {name.replace("_", "."): text for name, text in files.items()}
    return read_requirements(project(root, named) / "requirements.txt", root)


@cases(
    "line packages",
    ("a pin", "torch==2.5.1", ["torch==2.5.1"]),
    ("blanks and a comment", "torch == 2.5.1  # why", ["torch==2.5.1"]),
    ("extras", "a[x,y]>=1", ["a[x,y]>=1"]),
    ("a hash on its own line", f"a==1 \\\n  --hash=sha256:{HASH}", ["a==1"]),
    ("a marker for another system", 'a; sys_platform == "win32"', []),
    ("a marker that a Python may meet", 'a; python_version < "3.9"', ['a; python_version < "3.9"']),
    ("a wheel by its address", "a @ https://h.example/a-1-py3-none-any.whl",
     ["a @ https://h.example/a-1-py3-none-any.whl"]),
    ("only its address", "https://h.example/a-1-py3-none-any.whl",
     ["a @ https://h.example/a-1-py3-none-any.whl"]),
    ("nothing", "", []),
    ("an option that holds anyway", "--only-binary :all:", []),
)  # fmt: skip
def test_what_a_line_declares(line: str, packages: list[str], tmp_path: Path) -> None:
    found = read(tmp_path, requirements_txt=line)
    assert [one.text for one in found.packages] == packages
    assert (found.left_out, found.missing) == ((), ())


@cases(
    "line text",
    ("a name behind it, as pip has it", "git+https://u:secret@h.example/a.git#egg=a",
     "a @ git+https://h.example/a.git"),
    ("no name: that of the repository", "git+https://u:secret@h.example/o/Some_Fork.git@feature/x",
     "Some_Fork @ git+https://h.example/o/Some_Fork.git@feature/x"),
    ("editable, with an extra and a directory",
     "-e git+ssh://git@h.example/o/a.git@1f2e#egg=a[b]&subdirectory=py/a",
     "a[b] @ git+ssh://git@h.example/o/a.git@1f2e#subdirectory=py/a"),
    ("a name and a marker", "a @ git+https://h.example/a.git@v1 ; python_version >= '3.8'",
     'a @ git+https://h.example/a.git@v1 ; python_version >= "3.8"'),
    ("a marker without a name", "git+https://h.example/a.git ; python_version >= '3.8'",
     'a @ git+https://h.example/a.git ; python_version >= "3.8"'),
)  # fmt: skip
def test_a_repository_is_a_package(line: str, text: str, tmp_path: Path) -> None:
    found = read(tmp_path, requirements_txt=line)
    [one] = found.packages
    assert (found.left_out, found.missing) == ((), ())
    assert one.text == text
    assert ("secret" in one.address) is ("secret" in line)


@cases(
    "line text address",
    ("a token", "a @ git+https://${TOKEN}@h.example/a.git@v1", "a @ git+https://h.example/a.git@v1",
     "git+https://s3cret@h.example/a.git@v1"),
    ("without a name", "git+https://oauth2:${TOKEN}@h.example/a.git@v1#egg=a",
     "a @ git+https://h.example/a.git@v1", "git+https://oauth2:s3cret@h.example/a.git@v1#egg=a"),
    ("a wheel", "a @ https://u:${TOKEN}@h.example/a-1-py3-none-any.whl",
     "a @ https://h.example/a-1-py3-none-any.whl",
     "https://u:s3cret@h.example/a-1-py3-none-any.whl"),
)  # fmt: skip
def test_a_variable_of_a_login_is_replaced_and_not_shown(
    line: str, text: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    [one] = read(tmp_path, requirements_txt=line).packages
    assert (one.text, one.address) == (text, address)


@cases(
    "line why",
    ("a variable that is not set", "a @ git+https://${UNSET_TOKEN}@h.example/a.git",
     "UNSET_TOKEN is not set"),
    ("a path, which would be shown", "a @ git+https://h.example/${TOKEN}.git",
     "replaced in a login only"),
    ("a name that pip does not replace", "a @ git+https://${token}@h.example/a.git",
     "replaced in a login only"),
)  # fmt: skip
def test_other_variables_are_named(
    line: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    [one] = read(tmp_path, requirements_txt=line).missing
    assert why in one.message
    assert "s3cret" not in one.message


def test_an_index_with_a_variable_in_its_login_is_asked_with_the_users_own(tmp_path: Path) -> None:
    line = "--extra-index-url https://${USER}:${TOKEN}@h.example/simple"
    [one] = read(tmp_path, requirements_txt=line).indexes
    assert one.url == "https://h.example/simple"


@cases(
    "line listed name",
    ("a framework's repository", "git+https://u:secret@h.example/o/pytorch@1f2e#egg=torch",
     "the plan chooses the build", "torch"),
    ("another kind of repository", "hg+https://u:secret@h.example/o/fork#egg=fork",
     "hg+https://h.example/o/fork", "fork"),
    ("a file of this machine", "./wheels/a-1-py3-none-any.whl", "./wheels", "a"),
    ("another project", "-e ../other", "../other", "other"),
    ("a source archive", "https://h.example/a.tar.gz", "a.tar.gz", "a-tar-gz"),
    ("an index with a variable", "--index-url https://h.example/${TOKEN}/simple",
     "--index-url https://h.example/", ""),
    ("a nightly index", "--extra-index-url https://download.pytorch.org/whl/nightly/cu126",
     "to use it: --index URL", ""),
    ("a folder of wheels", "--find-links=wheels", "wheels", ""),
    ("an option", "--pre", "--pre", ""),
    ("a file on a server", "-r https://h.example/more.txt", "more.txt", "include"),
    ("a variable", "a==${VERSION}", "a==${VERSION}", "a"),
)  # fmt: skip
def test_what_is_not_taken_is_listed(line: str, listed: str, name: str, tmp_path: Path) -> None:
    """What is required and cannot be installed is missing, by a name; the rest is a note."""
    found = read(tmp_path, requirements_txt=line)
    assert found.packages == ()
    assert [one.name for one in found.missing] == [name] * bool(name)
    (said,) = [*found.left_out, *(one.message for one in found.missing)]
    assert listed in said
    assert "line 1" in said
    assert "secret" not in said


def test_files_are_included_relative_to_the_one_that_names_them(tmp_path: Path) -> None:
    files = {
        "requirements.txt": "-r deps/base.txt\n-climits.txt\nc\n",
        "deps/base.txt": "a\n--requirement=more.txt\n",
        "deps/more.txt": "b\n-r ../requirements.txt\n",  # a circle
        "limits.txt": "b<2\n",
    }
    found = read_requirements(project(tmp_path, files) / "requirements.txt", tmp_path)
    assert [(one.text, one.where) for one in found.packages] == [
        ("a", "deps/base.txt, line 1"),
        ("b", "deps/more.txt, line 1"),
        ("c", "requirements.txt, line 3"),
    ]
    assert [one.text for one in found.constraints] == ["b<2"]


def test_a_pytorch_index_names_the_cuda(tmp_path: Path) -> None:
    text = "torch==2.5.1\n--extra-index-url https://download.pytorch.org/whl/cu121\n"
    found = read(tmp_path, requirements_txt=text)
    assert found.cuda is not None
    assert (found.cuda.text, found.cuda.line) == ("12.1", 2)
    assert found.left_out == ()


def test_hashes_are_kept_by_package(tmp_path: Path) -> None:
    lines = [f"A_b==1 --hash=sha256:{HASH} \\", f"  --hash=sha256:{'b' * 64}", "c==1"]
    found = read(tmp_path, requirements_txt="\n".join(lines))
    assert found.hashes == {"a-b": frozenset({HASH, "b" * 64})}


def test_the_project_itself_is_no_package(tmp_path: Path) -> None:
    for line in ("-e .", ".", "-e .[dev]", "--editable=.", "./"):
        found = pip_lines([(line, 1)], "requirements.txt", tmp_path)
        assert found.itself, line
        assert (found.packages, found.left_out) == ((), ())


@pytest.mark.parametrize(
    ("files", "words"),
    [
        pytest.param({"requirements.txt": "a\nb==\n"}, "line 2: 'b=='", id="a malformed line"),
        pytest.param({"requirements.txt": "a; os_name ~= 'posix'"}, "cannot be compared",
                     id="a marker"),
        pytest.param({"requirements.txt": "a; 'x' in extras"}, "line 1", id="a lock's marker"),
        pytest.param({"requirements.txt": "-r no.txt"}, "there is no file no.txt", id="no file"),
        pytest.param({"requirements.txt": "-r sub", "sub/x": ""}, "sub is not a regular file",
                     id="a directory"),
        pytest.param({"requirements.txt": f"-r {'x' * 5000}"}, "line 1: there is no file xxx",
                     id="a name that is too long"),
        pytest.param({"requirements.txt": b"\xff\xfe"}, "not UTF-8", id="not UTF-8"),
        pytest.param({"requirements.txt": b"a\n" * 600_000}, "larger than 1 MiB", id="huge"),
        pytest.param({"requirements.txt": "<<<<<<< HEAD"}, "line 1", id="a merge conflict"),
        pytest.param(
            {f"{i}.txt": f"-r {i + 1}.txt" for i in range(60)}
            | {"requirements.txt": "-r 0.txt", "60.txt": ""},
            "more than 50",
            id="too many files",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_its_place(
    files: dict[str, str | bytes], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ProjectError, match=r".") as caught:
        read_requirements(project(tmp_path, files) / "requirements.txt", tmp_path)
    assert words in caught.value.message
    assert caught.value.fix


@cases(
    "line target",
    ("above the project", "-r ../shadow", ""),
    ("as a constraint", "-c ../shadow", ""),
    ("whether it exists is not said", "-r ../gone", ""),
    ("by a link", "-r deps/link.txt", "../../shadow"),
    ("by its whole path", "--requirement={root}/../shadow", ""),
    ("the requirements themselves are a link", None, "../shadow"),
)
def test_no_file_outside_of_the_project_is_read(
    line: str | None, target: str, tmp_path: Path
) -> None:
    root = tmp_path / "p"
    project(tmp_path, {"shadow": "root:$5ecret:1:::\n", "p/deps/x": "", "p/main.py": ""})
    if target:
        (root / ("deps/link.txt" if line else "requirements.txt")).symlink_to(target)
    if line:
        project(root, {"requirements.txt": line.format(root=root)})
    with pytest.raises(
        ProjectError, match="leads outside of the project and is not read"
    ) as caught:
        read_requirements(root / "requirements.txt", root)
    assert "5ecret" not in f"{caught.value.message}{caught.value.fix}"
    assert ("line 1" in caught.value.message) == bool(line)


@pytest.mark.parametrize("git", ["directory", "file", "none", "of another user", "of a home"])
def test_a_checkout_of_git_is_one_project(
    git: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "top" / "train"
    project(tmp_path / "top", {"base.txt": "a==1\n", "train/requirements.txt": "-r ../base.txt"})
    if git == "file":  # a work tree or a submodule
        project(tmp_path / "top", {".git": "gitdir: elsewhere\n"})
    elif git != "none":
        project(tmp_path / "top", {".git/HEAD": ""})
    if git == "of another user":
        if os.geteuid() != 0:
            pytest.skip("only root can give files away")
        os.chown(tmp_path / "top" / ".git", 65534, 65534)
    if git == "of a home":
        monkeypatch.setenv("HOME", str(tmp_path / "top"))
    if git in {"directory", "file"}:
        (package,) = read_requirements(root / "requirements.txt", root).packages
        assert package == Declared("a==1", "../base.txt", 1)
    else:
        with pytest.raises(ProjectError, match="leads outside of the project"):
            read_requirements(root / "requirements.txt", root)


@cases(
    "line",
    ("a login", "a @@ https://u:5ecret@h.example/a.whl"),
    ("a password with a slash", "a @@ https://u:5ecret/x@h.example/a.whl"),
    ("a signature", "a @@ https://h.example/a.whl?X-Amz-Signature=5ecret"),
    ("where a version belongs", "a==https://u:5ecret@h.example"),
    ("in a marker", "a==1 ; os_name == 'https://u:5ecret@h.example"),
    ("in an extra", "a[https://u:5ecret@h.example]]==1"),
)
def test_a_malformed_line_is_quoted_without_its_secrets(line: str, tmp_path: Path) -> None:
    try:
        found = read(tmp_path, requirements_txt=line)
        (said,) = [*found.left_out, *(one.message for one in found.missing)]
    except ProjectError as error:
        said = error.message
    assert "line 1" in said
    assert "h.example" in said
    assert "5ecret" not in said


@cases(
    "whole",
    ("a login", f"https://u:5ecret@{WHEEL}"),
    ("a password with a slash", f"https://u:5ecret%2Fx@{WHEEL}"),
    ("a signature", f"https://{WHEEL}?X-Amz-Signature=5ecret&X-Amz-Date=1"),
    ("a query that is not secret", f"https://{WHEEL}?raw=true"),
)
@pytest.mark.parametrize("form", ["a @ {}", "a[x] @ {} ; python_version > '3'", "{}"])
def test_the_whole_address_of_a_wheel_is_kept_apart(whole: str, form: str, tmp_path: Path) -> None:
    (one,) = read(tmp_path, requirements_txt=form.format(whole.replace("%2F", "/"))).packages
    marker = "" if form != "a[x] @ {} ; python_version > '3'" else ' ; python_version > "3"'
    assert (
        one.text == f"{form.partition(' @ ')[0] if '@' in form else 'a'} @ https://{WHEEL}{marker}"
    )
    assert "5ecret" not in one.text
    assert one.address == whole
    (line,) = with_addresses([one.text], [one.address])
    assert one.text.replace(f"https://{WHEEL}", whole) == line
    assert with_addresses([one.text, "b==1"], []) == [one.text, "b==1"]


@given(st.text(max_size=60))
def test_no_line_is_a_bug(line: str) -> None:
    try:
        found = pip_lines([(line, 1)], "requirements.txt", Path("/nonexistent"))
    except ProjectError:
        return
    assert all(one.requirement for one in found.packages)


def test_the_indexes_are_in_the_order_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("-f https://c.example/page.html\n")
    found = read(
        tmp_path,
        requirements_txt="-r more.txt\n"
        "--extra-index-url https://user:secret@b.example/simple\n"
        "-i https://a.example/simple/\n"
        "--extra-index-url https://download.pytorch.org/whl/cu124\n"
        "--find-links wheels\n",
    )
    assert found.indexes == (
        DeclaredIndex("https://c.example/page.html", "links", "more.txt, line 1"),
        DeclaredIndex("https://b.example/simple", "index", "requirements.txt, line 2"),
        DeclaredIndex("https://a.example/simple/", "default", "requirements.txt, line 3"),
    )
    assert found.cuda is not None
    assert found.cuda.text == "12.4"


@pytest.mark.parametrize(
    "mirror", ["https://m.example/pytorch-wheels/cu121/", "https://m.example/pytorch/whl/cu121"]
)
def test_a_mirror_of_pytorch_names_the_cuda_and_is_asked(mirror: str, tmp_path: Path) -> None:
    found = read(tmp_path, requirements_txt=f"-f {mirror}\n")
    assert [one.url for one in found.indexes] == [mirror]
    assert found.cuda is not None
    assert found.cuda.text == "12.1"
