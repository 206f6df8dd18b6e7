"""Projects with packages of a company's index: the user's login, a proxy, the company's authority.

The servers are on this machine, and hand nothing over without their logins; their names have no
address but the proxy's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from tests import ROOT
from tests.kit.cases import cases
from tests.kit.company import MIRROR, PACKAGES, USER, LoginProxy
from tests.kit.private_index import Authority, make_authority, make_wheel, serve
from tests.kit.programs import run_program
from tests.kit.projects import base_layout, project

HOST = '{"driver": "535.104.05", "arch": "x86_64", "gpus": [{"name": "NVIDIA A100-SXM4-80GB"}]}'
PASSWORD = "canary/of the:index@4d1e"
OF_PROXY = "canary-of-the-proxy-77ab"
PUBLIC = {
    "torch": "torch-2.0.1+cu117-cp311-cp311-linux_x86_64.whl",
    "numpy": "numpy-1.26.4-py3-none-any.whl",
    "pip": "pip-26.1-py3-none-any.whl",
}
LOGIN = f"{USER}:{quote(PASSWORD, safe='')}@"
URL = f"https://{PACKAGES}/simple/"
WITH_LOGIN = f"https://{LOGIN}{PACKAGES}/simple/"
NETRC = f'machine {PACKAGES} login {USER} password "{PASSWORD}"\n'
PYPROJECT = f"""
[project]
name = "chat"
version = "1"
requires-python = "==3.11.*"
dependencies = ["torch==2.0.1", "numpy<2", "own-words"]
[[tool.uv.index]]
name = "corp"
url = "{URL}"
"""
REQUIREMENTS = "torch==2.0.1\nnumpy<2\nown-words\n"


@dataclass(frozen=True)
class Company:
    """The company's network, and a base for images."""

    authority: Authority
    proxy: LoginProxy
    base: str

    def run(self, place: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """The product in a directory, with a home, stores and variables of its own."""
        return run_program(
            [sys.executable, "-m", "provision", *words],
            cwd=place,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT),
                "HOME": str(place / "home"),
                "UV_DEFAULT_INDEX": f"https://{MIRROR}/simple/",
                "HTTPS_PROXY": self.proxy.url,
                "DOCKER_HOST": "unix:///nonexistent",
                **env,
            },
        )


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Company]:
    place = tmp_path_factory.mktemp("company")
    authority = make_authority(place, "the company's", MIRROR, PACKAGES)
    public = [make_wheel(name, {f"{module}/__init__.py": b""}) for module, name in PUBLIC.items()]
    own = make_wheel("own_words-1.0-py3-none-any.whl", {"own_words.py": b"WORDS = 3\n"})
    with ExitStack() as stack:
        mirror = stack.enter_context(serve(authority, *public, password=""))
        private = stack.enter_context(serve(authority, own, *public, password=PASSWORD))
        hosts = {MIRROR: mirror.port, PACKAGES: private.port}
        proxy = stack.enter_context(LoginProxy(hosts, OF_PROXY).serving())
        yield Company(authority, proxy, base_layout(place / "base"))


@cases(
    "declares home env trust",
    ("an index of the project with a login in netrc", {"pyproject.toml": PYPROJECT},
     {".netrc": NETRC}, {}, "SSL_CERT_FILE"),
    ("an index of the project with a login in uv's variables of its name",
     {"pyproject.toml": PYPROJECT}, {},
     {"UV_INDEX_CORP_USERNAME": USER, "UV_INDEX_CORP_PASSWORD": PASSWORD}, "REQUESTS_CA_BUNDLE"),
    ("an index in uv's older variable", {"requirements.txt": REQUIREMENTS}, {},
     {"UV_EXTRA_INDEX_URL": WITH_LOGIN}, "CURL_CA_BUNDLE"),
    ("the default index in pip's configuration", {"requirements.txt": REQUIREMENTS},
     {".config/pip/pip.conf": f"[global]\nindex-url = {WITH_LOGIN}\n"}, {"UV_DEFAULT_INDEX": ""},
     "SSL_CERT_FILE"),
)  # fmt: skip
def test_a_private_package_is_locked_and_built(
    declares: Mapping[str, str],
    home: Mapping[str, str],
    env: Mapping[str, str],
    trust: str,
    company: Company,
    tmp_path: Path,
) -> None:
    code = {"main.py": "import own_words\n", ".python-version": "3.11\n"}
    project(tmp_path / "app", {**code, **declares})
    project(tmp_path, {"host.json": HOST, **{f"home/{name}": text for name, text in home.items()}})
    variables = {trust: str(company.authority.bundle), **env}
    words = ("--host", "host.json", "--base", company.base, "--output", "pylock.toml", "-v")
    locked = company.run(tmp_path, "lock", "app", *words, **variables)
    assert locked.returncode == 0, locked.stderr
    words = ("--lock", "pylock.toml", "--no-verify", "--builder", "oci", "--output", "image")
    built = company.run(tmp_path, "build", "app", *words, "-v", **variables)
    assert built.returncode == 0, built.stderr
    said = locked.stdout + locked.stderr + built.stdout + built.stderr
    left = [path for path in tmp_path.rglob("*") if path.is_file() and "home/." not in str(path)]
    left += [path for path in (tmp_path / "home").rglob(".cache/**/*") if path.is_file()]
    for secret in (PASSWORD, quote(PASSWORD, safe=""), OF_PROXY):
        assert secret not in said
        assert [str(path) for path in left if secret.encode() in path.read_bytes()] == []
