"""A project of packages that only the user's logins reach, from its lock to an image.

One is on a company's index as a source archive, one in a git repository. The servers' names have no
address but that of a proxy, which demands a login.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from provision.build.source.checkout import GitError, check_out, read_git
from provision.lock.lockfile import read_lock
from tests import need
from tests.clusters.ssh_servers import ssh_servers
from tests.engines.lab import Done, World, new_world
from tests.engines.test_build_without_engine import NO_ENGINE
from tests.engines.test_secrets import holding
from tests.engines.test_wheel_from_source import PLAIN, archive_of
from tests.kit.company import (
    CODE,
    MIRROR,
    PACKAGES,
    USER,
    LoginProxy,
    git_over_https,
    make_repository,
)
from tests.kit.private_index import Wheel, make_authority, make_wheel, serve
from tests.kit.projects import project

pytestmark = pytest.mark.docker

OF_INDEX, OF_CODE, OF_PROXY = "canary/index@51", "canary/code@52", "canary/proxy@53"
WHEELS = {
    "torch": "torch-2.0.1+cu117-cp311-cp311-linux_x86_64.whl",
    "numpy": "numpy-1.26.4-py3-none-any.whl",
    "setuptools": "setuptools-84.0-py3-none-any.whl",
    "wheel": "wheel-1.0-py3-none-any.whl",
    "packaging": "packaging-26.0-py3-none-any.whl",
}
NETRC = f"""machine {PACKAGES} login {USER} password "{OF_INDEX}"
machine {CODE} login {USER} password "{OF_CODE}"
"""


def source(name: str) -> dict[str, str]:
    """A package without compiled parts, and a backend of its own."""
    return {path: text.replace("slowwords", name) for path, text in PLAIN.items()}


@dataclass(frozen=True)
class Company:
    """The network, and a project for it."""

    bundle: Path
    proxy: LoginProxy
    app: Path

    def run(self, world: World, home: Path, *words: str) -> Done:
        return world.provision(
            *words,
            HOME=str(home),
            HTTPS_PROXY=self.proxy.url,
            HTTP_PROXY=self.proxy.url,
            NO_PROXY="",
            SSL_CERT_FILE=str(self.bundle),
            GIT_SSL_CAINFO="",  # of the machine that the tests run on
            UV_DEFAULT_INDEX=f"https://{MIRROR}/simple/",
        )


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory, pip_wheel: Wheel) -> Iterator[Company]:
    place = tmp_path_factory.mktemp("company")
    authority = make_authority(place, "the company's", MIRROR, PACKAGES, CODE)
    public = [make_wheel(name, {f"{module}/__init__.py": b""}) for module, name in WHEELS.items()]
    code = place / "code"
    https = make_repository(code / "team" / "gitwords.git", source("gitwords"))
    with ExitStack() as stack:
        mirror = stack.enter_context(serve(authority, *public, pip_wheel, password=""))
        own = archive_of("slowwords-0.4", source("slowwords"))
        private = stack.enter_context(serve(authority, own, password=OF_INDEX))
        port = stack.enter_context(git_over_https(code, authority.chain, OF_CODE))
        hosts = {MIRROR: mirror.port, PACKAGES: private.port, CODE: port}
        proxy = stack.enter_context(LoginProxy(hosts, OF_PROXY).serving())
        lines = [
            "torch==2.0.1",
            "numpy<2",
            f"--extra-index-url https://{PACKAGES}/simple/",
            "slowwords",
            f"gitwords @ git+https://{CODE}/team/gitwords.git@{https}",
        ]
        files = {"requirements.txt": "\n".join(lines), ".python-version": "3.11\n"}
        files["main.py"] = "import gitwords, slowwords\n"
        yield Company(authority.bundle, proxy, project(place / "app", files))


ASKED = ("--cuda", "11.7", "--driver", "535.104.05", "--gpu", "A100", "--base", "bootstrap")


def test_it_is_locked_and_built_elsewhere_and_no_password_is_left(
    company: Company, tmp_path: Path
) -> None:
    home = project(tmp_path / "home", {".netrc": NETRC})
    lock, image = tmp_path / "pylock.toml", tmp_path / "image"
    words = (str(company.app), *ASKED, "--output", str(lock), "-v")
    said = ""
    with new_world(**NO_ENGINE) as first:
        done = company.run(first, home, "lock", *words)
        assert done.code == 0, done.err
        said += done.out + done.err
        assert not holding("canary", first.place)
    assert {one.name for one in read_lock(lock.read_text()).builds} == {
        "gitwords", "slowwords"
    }  # fmt: skip
    built = ("--lock", str(lock), "--no-verify", "--builder", "oci", "--output", str(image), "-v")
    with new_world(**NO_ENGINE) as second:
        provenance = ("--provenance", str(tmp_path / "provenance.json"))
        done = company.run(second, home, "build", str(company.app), *built, *provenance)
        assert done.code == 0, done.err
        said += done.out + done.err
        assert not holding("canary", second.place)
        third = company.run(second, tmp_path / "nobody", "lock", str(company.app), *ASKED)
    for secret in (OF_INDEX, OF_CODE, OF_PROXY):
        assert secret not in said
        assert quote(secret, safe="") not in said
    assert not holding("canary", lock, image, tmp_path / "provenance.json")
    assert company.proxy.reached >= {MIRROR, PACKAGES, CODE}
    assert third.code == 5
    assert f"{PACKAGES} demands a login" in third.err
    assert f"machine {PACKAGES} login USER" in third.err


def test_without_a_login_the_repository_is_named_with_what_to_type(
    company: Company, tmp_path: Path
) -> None:
    home = project(tmp_path / "home", {".netrc": NETRC.partition("\n")[0]})
    with new_world(**NO_ENGINE) as world:
        done = company.run(world, home, "lock", str(company.app), *ASKED)
    assert done.code == 5
    assert "it demands a login, and git has none that it accepts" in done.err
    assert f"Put yours into ~/.netrc: machine {CODE} login USER password TOKEN" in done.err


def test_a_repository_is_cloned_over_ssh_with_the_users_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = make_repository(tmp_path / "words.git", source("words"))
    with an_ssh_server(tmp_path) as (config, port):
        line = f"words @ git+ssh://root@127.0.0.1:{port}{tmp_path}/words.git@{commit}"
        monkeypatch.setenv("GIT_SSH_COMMAND", f"ssh -F {config}")
        wanted, made = read_git(line), tmp_path / "made"
        made.mkdir()
        assert check_out(wanted, made)[1].commit == commit
        monkeypatch.setenv("GIT_SSH_COMMAND", f"ssh -F {config} -o IdentityAgent=none")
        (tmp_path / "again").mkdir()
        with pytest.raises(GitError, match="it accepts none of your SSH keys") as caught:
            check_out(wanted, tmp_path / "again")
    assert f"git ls-remote ssh://root@127.0.0.1:{port}" in caught.value.fix


@contextmanager
def an_ssh_server(place: Path) -> Iterator[tuple[Path, int]]:
    """A client's configuration that has no key but an agent's, and the port of the server."""
    servers = place / "ssh"
    servers.mkdir()
    with ssh_servers(servers) as running:
        port = running.start("code")
        agent = [need.program("ssh-agent", "openssh-client"), "-D", "-a", str(place / "agent")]
        with subprocess.Popen(agent, stdout=subprocess.DEVNULL) as process:
            try:
                while not (place / "agent").exists():
                    assert process.poll() is None
                add = [need.program("ssh-add", "openssh-client"), "-q", str(servers / "login")]
                variables = {**os.environ, "SSH_AUTH_SOCK": str(place / "agent")}
                subprocess.run(add, env=variables, check=True, timeout=60)
                config = place / "ssh_config"
                config.write_text(
                    f"Host *\n  IdentityFile none\n  IdentityAgent {place / 'agent'}\n"
                    f"  UserKnownHostsFile {running.known_hosts}\n"
                    "  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n"
                )
                yield config, port
            finally:
                process.terminate()
