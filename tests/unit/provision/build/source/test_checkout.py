"""A requirement of a git repository: read, cloned at its commit, and packed without its .git."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from images.system import process
from provision.build.source.checkout import Checkout, GitError, check_out, git_error, read_git
from provision.errors import BadInputError
from tests.kit.cases import cases
from tests.kit.company import CODE, USER, LoginProxy, git_over_https, make_repository
from tests.kit.private_index import make_authority
from tests.kit.programs import run_program
from tests.kit.projects import project

WHO = ("-c", "user.name=a", "-c", "user.email=a@h.example", "-c", "commit.gpgsign=false")


def git(place: Path, *words: str) -> str:
    done = run_program(["git", *WHO, *words], cwd=place, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, str]:
    """A repository whose first commit no branch ends at."""
    place = tmp_path / "origin"
    (place / "inner").mkdir(parents=True)
    git(place, "init", "-q", "-b", "main")
    (place / "setup.py").write_text("first")
    (place / "inner" / "pyproject.toml").write_text("")
    (place / "link").symlink_to("inner")
    git(place, "add", "-A")
    git(place, "commit", "-q", "-m", "first")
    first = git(place, "rev-parse", "HEAD")
    (place / "setup.py").write_text("second")
    git(place, "commit", "-q", "-am", "second")
    return place, first


def cloned(line: str, tmp_path: Path) -> tuple[dict[str, str], Checkout, str, str]:
    wanted = read_git(line)
    made = tmp_path / "made"
    made.mkdir()
    archive, source = check_out(wanted, made)
    with tarfile.open(archive) as tar:
        files = {
            one.name: tar.extractfile(one).read().decode()  # type: ignore[union-attr]
            for one in tar
            if one.isreg()
        }
    return files, wanted, source.commit, source.tree


@pytest.mark.parametrize("revision", ["", "@main", "@FIRST"])
def test_a_commit_is_cloned(revision: str, repository: tuple[Path, str], tmp_path: Path) -> None:
    place, first = repository
    line = f"quiet @ git+file://{place}{revision.replace('FIRST', first)}"
    files, _, commit, tree = cloned(line, tmp_path)
    wanted = first if revision == "@FIRST" else git(place, "rev-parse", "main")
    assert commit == wanted
    assert tree == git(place, "rev-parse", f"{wanted}^{{tree}}")
    assert files["quiet/setup.py"] == ("first" if revision == "@FIRST" else "second")
    assert not any(".git/" in name for name in files)


def test_a_missing_commit_is_named(repository: tuple[Path, str], tmp_path: Path) -> None:
    with pytest.raises(GitError, match=f"at {'0' * 40}") as caught:
        cloned(f"quiet @ git+file://{repository[0]}@{'0' * 40}", tmp_path)
    assert "git ls-remote file://" in caught.value.fix


def test_no_program_of_a_repository_runs(
    repository: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Templates of the user's git may have hooks; they are not for a build."""
    template = tmp_path / "template" / "hooks"
    template.mkdir(parents=True)
    hook = template / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(template.parent))
    cloned(f"quiet @ git+file://{repository[0]}", tmp_path)
    assert not (tmp_path / "ran").exists()


@cases(
    "text expected",
    ("a tag and a directory", "git+https://h.example/o/quiet.git@v1.0#subdirectory=py",
     Checkout(name="quiet", url="https://h.example/o/quiet.git", revision="v1.0",
              subdirectory="py")),
    ("SSH, whose user name is no revision", "git+ssh://git@h.example/o/quiet.git",
     Checkout(name="quiet", url="ssh://git@h.example/o/quiet.git", revision="")),
)  # fmt: skip
def test_a_line_is_read(text: str, expected: Checkout) -> None:
    assert read_git(f"quiet @ {text}") == expected


def test_a_login_is_not_on_a_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Other users of a machine see the words of its processes."""
    asked: list[tuple[str, str]] = []
    real = process.run

    def run(argv: list[str], *, env: dict[str, str | None], **_: object) -> process.Completed:
        asked.append((str(argv), str(env)))
        return real(["true"], timeout_s=5)

    monkeypatch.setattr("provision.build.source.checkout.process.run", run)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "2")
    check_out(read_git("x @ git+https://me:canary@h.example/x"), tmp_path)
    assert any("'fetch'" in argv for argv, _ in asked)
    for argv, variables in asked:
        assert "canary" not in argv
        assert "'GIT_CONFIG_COUNT': '3'" in variables
        assert "'url.https://me:canary@h.example/x.insteadOf'" in variables


def test_without_git_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitError, match="there is no git here") as caught:
        check_out(read_git("x @ git+https://h.example/x"), tmp_path)
    assert caught.value.fix.startswith("Install git")


def test_a_login_is_not_shown() -> None:
    assert read_git("x @ git+https://me:canary@h.example/x").shown == "https://h.example/x"
    assert read_git("x @ git+ssh://git@h.example/x").shown == "ssh://git@h.example/x"
    assert read_git("x @ git+ssh://git:canary@h.example/x").shown == "ssh://h.example/x"


@cases(
    "text",
    ("a program", "git+ext::sh -c x"),
    ("no host", "git+https:///x"),
    ("an option", "git+https://h.example/x@--upload-pack=y"),
    ("a way out", "git+https://h.example/x#subdirectory=../y"),
)
def test_a_malformed_line_is_refused(text: str) -> None:
    with pytest.raises((BadInputError, ValueError)):
        read_git(f"quiet @ {text}")


PASSWORD = "canary/of the:code@88f1"
TRUST = "authority that is not trusted here"


@cases(
    "words says",
    ("GnuTLS of libcurl 7", "server certificate verification failed. CAfile: none CRLfile: none",
     TRUST),
    ("GnuTLS of libcurl 8",
     "server verification failed: certificate signer not trusted. (CAfile: /c)", TRUST),
    ("OpenSSL", "SSL certificate problem: unable to get local issuer certificate", TRUST),
    ("OpenSSL, an authority of a company",
     "SSL certificate problem: self-signed certificate in certificate chain", TRUST),
    ("an expired one is git's own sentence", "SSL certificate problem: certificate has expired",
     "certificate has expired"),
    ("an expired one by GnuTLS",
     "server verification failed: certificate has expired. (CAfile: /c)",
     "certificate has expired"),
)  # fmt: skip
def test_what_git_says_of_a_certificate(words: str, says: str) -> None:
    wanted = read_git(f"words @ git+https://{CODE}/team/words.git")
    error = git_error(wanted, f"fatal: unable to access 'https://{CODE}/': {words}\n")
    assert says in error.message
    assert ("--ca-bundle FILE" in error.fix) == (says == TRUST)


NETRC = f'machine {CODE} login {USER} password "{PASSWORD}"\n'
HELPER = f"""[credential "https://{CODE}"]
\thelper = "!f() {{ echo username={USER}; echo 'password={PASSWORD}'; }}; f"
"""


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, LoginProxy]]:
    """A line for a repository with a login, its authority, and the proxy before it."""
    place = tmp_path_factory.mktemp("code")
    authority = make_authority(place, "the company's", CODE)
    commit = make_repository(place / "team" / "words.git", {"setup.py": "private"})
    with (
        git_over_https(place, authority.chain, PASSWORD) as port,
        LoginProxy({CODE: port}, "canary-of-the-proxy").serving() as proxy,
    ):
        yield f"words @ git+https://{CODE}/team/words.git@{commit}", authority.bundle, proxy


@cases(
    "home env says",
    ("a login in netrc", {".netrc": NETRC}, {}, ""),
    ("a login in the netrc that a variable names", {"my-netrc": NETRC}, {"NETRC": "HOME/my-netrc"},
     ""),
    ("a credential helper", {".gitconfig": HELPER}, {}, ""),
    ("the authority in git's configuration",
     {".netrc": NETRC, ".gitconfig": "[http]\n\tsslCAInfo = BUNDLE\n"}, {"CA": ""}, ""),
    ("a login in the address", {}, {"LOGIN": f"{USER}:{quote(PASSWORD, safe='')}@"}, ""),
    ("no login", {}, {}, "it demands a login, and git has none that it accepts"),
    ("an old login", {".netrc": NETRC.replace("canary", "old")}, {},
     "it demands a login, and git has none that it accepts"),
    ("no authority", {".netrc": NETRC}, {"CA": ""}, TRUST),
    ("an old login for the proxy", {".netrc": NETRC}, {"HTTPS_PROXY": "http://ann:old@PROXY"},
     "the proxy demands another login than its address has"),
)  # fmt: skip
def test_a_private_repository_is_cloned_with_the_users_login(
    home: dict[str, str],
    env: dict[str, str],
    says: str,
    company: tuple[str, Path, LoginProxy],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line, bundle, proxy = company
    texts = {name: text.replace("BUNDLE", str(bundle)) for name, text in home.items()}
    project(tmp_path, texts)
    given = {"HTTPS_PROXY": proxy.url, "CA": str(bundle), "LOGIN": "", **env}
    given = {
        name: value.replace("HOME", str(tmp_path)).replace("PROXY", f"127.0.0.1:{proxy.port}")
        for name, value in given.items()
    }
    trusted, login = given.pop("CA"), given.pop("LOGIN")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    wanted = read_git(line.replace(CODE, f"{login}{CODE}"))
    made = tmp_path / "made"
    made.mkdir()
    system = Path("/etc/ssl/certs/ca-certificates.crt")  # what the product names by itself
    ca = Path(trusted) if trusted else system
    if says:
        with pytest.raises(GitError) as caught:
            check_out(wanted, made, ca)
        error = caught.value
        assert says in error.message, error.detail
        assert "canary" not in f"{error.message} {error.fix} {error.detail}"
        return
    archive, source = check_out(wanted, made, ca)
    assert (source.url, source.commit) == (f"https://{CODE}/team/words.git", wanted.commit)
    with tarfile.open(archive) as tar:
        member = tar.extractfile("words/setup.py")
        assert member is not None
        assert member.read() == b"private"
    assert CODE in proxy.reached
