"""A commit of a git repository as a source archive, cloned with the user's own git and login."""

from __future__ import annotations

import os
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from images.errors import Failure
from images.net.address import url_secrets
from images.system import process
from images.text.printable import printable
from provision.errors import BadInputError, Exit
from provision.host.indexes import netrc_logins
from provision.lock.source_builds import GitSource
from provision.model.environment import requirement_of, shown_place

_TIMEOUT_S = 900.0
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_REVISION = re.compile(r"[A-Za-z0-9_][\w./+-]{0,199}")
# No program of the repository, no protocol that starts one, no question at the terminal.
_SAFE = (
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "protocol.ext.allow=never",
    "-c",
    "core.fsmonitor=",
)
# What git says of access, what it means, and what to type ("": try it with git).
_REFUSALS = (
    (
        r"response 407|Proxy Authentication Required",
        "the proxy demands another login than its address has",
        "Put it into the proxy's address: HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT",
    ),
    (
        (
            r"certificate verification failed|verification failed: certificate signer"
            r"|SSL certificate problem: (?:unable to get|self.signed)"
        ),
        "its certificate is signed by an authority that is not trusted here",
        "Name the authority's certificate: --ca-bundle FILE; beside git's own: GIT_SSL_CAINFO=FILE",
    ),
    (
        r"could not read (Username|Password)|Authentication failed|returned error: 403",
        "it demands a login, and git has none that it accepts",
        "Put yours into ~/.netrc: machine {host} login USER password TOKEN",
    ),
    (r"Permission denied \(", "it accepts none of your SSH keys", ""),
    (r"Host key verification failed", "its SSH host key is not known here", ""),
)
_QUIET = {"GIT_TERMINAL_PROMPT": "0", "GIT_DIR": None, "GIT_WORK_TREE": None, "LC_ALL": "C"}


class GitError(Failure):
    """A repository cannot be cloned, or has no such commit."""

    code = "git-failed"
    exit_code = Exit.UNREACHABLE

    def __init__(self, package: str, message: str, *, fix: str, detail: str = "") -> None:
        super().__init__(message, fix=fix, detail=detail)
        self.package = package


class GitSourceError(GitError):
    """What a commit has cannot be built in the sandbox."""

    code = "source-only"
    exit_code = Exit.NOTHING_COMPATIBLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """What to clone: `url` may have a login; `revision` is a commit, a branch or a tag ("": the
    default branch).
    """

    name: str
    url: str
    revision: str
    subdirectory: str = ""

    @classmethod
    def of(cls, name: str, source: GitSource) -> Checkout:
        """The same commit again."""
        return cls(
            name=name, url=source.url, revision=source.commit, subdirectory=source.subdirectory
        )

    @property
    def commit(self) -> str | None:
        """The commit, if the revision is one."""
        return self.revision if _COMMIT.fullmatch(self.revision) else None

    @property
    def shown(self) -> str:
        """The address without a login; SSH needs its user name, which is no secret."""
        return shown_place(f"git+{self.url}").removeprefix("git+")


def read_git(line: str) -> Checkout:
    """A requirement `NAME @ git+URL[@REVISION][#subdirectory=DIR]`. BadInputError: malformed."""
    read = requirement_of(line)
    parts = urlsplit((read.url or "").removeprefix("git+"))
    path, at, revision = parts.path.rpartition("@")
    if not at:
        path, revision = parts.path, ""
    options = dict(pair.partition("=")[::2] for pair in parts.fragment.split("&"))
    directory = unquote(options.get("subdirectory", "")).strip("/")
    url = parts._replace(path=path, query="", fragment="").geturl()
    usable = parts.scheme in {"https", "http", "ssh", "git", "file"} and (
        parts.hostname or parts.scheme == "file"
    )
    if (
        not usable
        or (revision and not _REVISION.fullmatch(revision))
        or (directory and not re.fullmatch(r"[\w.-]+(/[\w.-]+)*", directory))
        or ".." in directory.split("/")
    ):
        raise BadInputError(
            f"{printable(read.name)} names a git repository in a form that cannot be used.",
            fix=f"Name a commit: '{printable(read.name)} @ git+https://HOST/OWNER/NAME@COMMIT'",
        )
    return Checkout(name=read.name, url=url, revision=revision, subdirectory=directory)


def check_out(wanted: Checkout, made: Path, ca: Path | None = None) -> tuple[Path, GitSource]:
    """Clone into the empty directory `made`; returns the files of the commit as a .tar.gz, and the
    commit with the hash of its tree. `ca`: a CA bundle, unless the user's git names one. GitError:
    it cannot be cloned.
    """
    tree = made / "tree"
    tree.mkdir()
    whole = _with_login(wanted.url)
    secrets = url_secrets(whole)
    own = _environment(wanted.shown, whole)

    def run(*words: str) -> process.Completed:
        try:
            return process.run(
                ["git", *_SAFE, *words],
                timeout_s=_TIMEOUT_S,
                env=own,
                cwd=tree,
                apart=True,
                redact=secrets,
            )
        except process.ToolMissing as error:
            raise GitError(
                wanted.name,
                f"{wanted.name} is in a git repository, {wanted.shown}, and there is no git here.",
                fix="Install git: apt-get install git",
            ) from error
        except process.CommandTimedOut as error:
            raise git_error(wanted, f"git was not done in {_TIMEOUT_S:.0f} s") from error

    def git(*words: str) -> str:
        done = run(*words)
        if not done.ok:
            raise git_error(wanted, done.output)
        return done.stdout.strip()

    if ca and not os.environ.get("GIT_SSL_CAINFO"):  # which would win over the user's own
        asked = run("config", "--get-urlmatch", "http.sslCAInfo", wanted.shown)
        own["GIT_SSL_CAINFO"] = None if asked.ok else str(ca)
    git("init", "--quiet")
    revision = wanted.revision or "HEAD"
    fetch = ("fetch", "--quiet", "--end-of-options", wanted.shown)
    done = run("fetch", "--quiet", "--depth=1", "--no-tags", *fetch[2:], revision)
    if done.ok:
        commit = git("rev-parse", "--verify", "FETCH_HEAD^{commit}")
    else:  # a server may give branches and tags only
        git(*fetch, "+refs/*:refs/all/*")
        names = (revision, f"refs/all/heads/{revision}", f"refs/all/tags/{revision}")
        found = (run("rev-parse", "--verify", f"{name}^{{commit}}") for name in names)
        commit = next((one.stdout.strip() for one in found if one.ok), "")
        if not commit:
            raise git_error(wanted, f"it has no {revision}")
    if wanted.commit not in {None, commit}:
        raise git_error(wanted, f"it gave {commit} for {wanted.commit}")
    git("checkout", "--quiet", "--detach", commit)
    if (tree / ".gitmodules").is_file():
        git("submodule", "--quiet", "update", "--init", "--recursive", "--depth", "1")
    source = GitSource(
        url=wanted.shown,
        commit=commit,
        tree=git("rev-parse", f"{commit}^{{tree}}"),
        subdirectory=wanted.subdirectory,
    )
    return _archive(tree, made / "source.tar.gz", wanted.name), source


def _with_login(url: str) -> str:
    """The address with the login of the netrc that NETRC names, as pip and uv take it: git reads
    ~/.netrc alone.
    """
    parts = urlsplit(url)
    known = netrc_logins(os.environ) if "NETRC" in os.environ else {}
    if parts.scheme != "https" or parts.username or parts.hostname not in known:
        return url
    login = ":".join(quote(word, safe="") for word in known[parts.hostname])
    return parts._replace(netloc=f"{login}@{parts.netloc}").geturl()


def _environment(shown: str, whole: str) -> dict[str, str | None]:
    """git's variables. A login goes there, as other users see the words of a command line."""
    own: dict[str, str | None] = dict(_QUIET)
    if whole != shown:
        said = os.environ.get("GIT_CONFIG_COUNT", "")
        number = int(said) if said.isdecimal() else 0
        own["GIT_CONFIG_COUNT"] = str(number + 1)
        own[f"GIT_CONFIG_KEY_{number}"] = f"url.{whole}.insteadOf"
        own[f"GIT_CONFIG_VALUE_{number}"] = shown
    return own


def _archive(tree: Path, to: Path, name: str) -> Path:
    with tarfile.open(to, "w:gz", compresslevel=1) as tar:
        for directory, names, files in os.walk(tree):
            names[:] = sorted(one for one in names if one != ".git")
            for file in sorted(files):
                path = Path(directory, file)
                if file != ".git":
                    tar.add(path, f"{name}/{path.relative_to(tree)}", recursive=False)
            for one in names:  # a link to a directory is a file of the commit
                path = Path(directory, one)
                if path.is_symlink():
                    tar.add(path, f"{name}/{path.relative_to(tree)}", recursive=False)
    return to


def git_error(wanted: Checkout, output: str) -> GitError:
    """The error for what git printed: what it means, if that is known, else its last line."""
    lines = [line for line in output.strip().splitlines() if line.strip()]
    why = printable(lines[-1], limit=200) if lines else "git failed"
    fix = f"Check that git has your login for it: git ls-remote {wanted.shown}"
    for pattern, meaning, typed in _REFUSALS:
        if re.search(pattern, output):
            why = meaning
            fix = typed.format(host=urlsplit(wanted.url).hostname) if typed else fix
            break
    at = f" at {wanted.revision}" if wanted.revision else ""
    return GitError(
        wanted.name,
        f"{wanted.name} cannot be taken from {wanted.shown}{at}: {why.rstrip('.')}.",
        fix=fix,
        detail=printable(output[-2000:], keep="\n"),
    )
