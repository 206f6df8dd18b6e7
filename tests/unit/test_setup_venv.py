"""setup_venv: how pip's settings are read, and how its wheel is fetched, on real servers."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from setup_venv import client as client_module
from setup_venv.client import Client, shown
from setup_venv.errors import PipFailedError, SetupError
from setup_venv.pip import explain, fetch, pinned_pip
from setup_venv.settings import is_on, pages_of, pip_environment, pip_settings, public_index
from tests import ROOT, need
from tests.kit.cases import cases
from tests.kit.package_server import JSON, Proxy, Reply, Server, html_page, json_page
from tests.kit.private_index import Authority, make_authority
from tests.kit.programs import run_program
from tests.kit.web_server import basic

NAME = "pip-99.1-py3-none-any.whl"
WHEEL = bytes(range(256)) * 999
DIGEST = hashlib.sha256(WHEEL).hexdigest()
PAGE, FILE = "/simple/pip/", f"/files/{NAME}"
REDIRECTS = "more than 10 redirects"
NOWHERE = ssl.DefaultVerifyPaths("", "", "", "", "", "")
NAMES = ("PIP_", "http_", "https_", "no_", "all_", "ssl_", "requests_", "curl_", "netrc", "xdg_")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user with an empty home and no settings; retries follow each other at once."""
    for name in os.environ:
        if name.lower().startswith(tuple(name.lower() for name in NAMES)):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(client_module, "FIRST_DELAY_S", 0.0)
    monkeypatch.setattr("setup_venv.settings.GLOBAL_FILE", tmp_path / "etc/pip.conf")
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "etc/xdg"))
    return home


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_only_the_standard_library_is_imported() -> None:
    allowed = sys.stdlib_module_names | {"setup_venv"}
    for path in (ROOT / "setup_venv").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert [name for name in names if name.partition(".")[0] not in allowed] == [], path


# ---- settings ----


def conf(section: str, **values: str) -> str:
    return "\n".join([f"[{section}]", *(f"{k.replace('_', '-')} = {v}" for k, v in values.items())])


PLACES = [
    ("etc/xdg/pip/pip.conf", "the system's, in XDG_CONFIG_DIRS"),
    ("etc/pip.conf", "the system's, in /etc"),
    ("home/.pip/pip.conf", "the user's, in ~/.pip"),
    ("home/.config/pip/pip.conf", "the user's, in ~/.config"),
]


@pytest.mark.parametrize(("place", "_why"), [pytest.param(*row, id=row[1]) for row in PLACES])
def test_a_file_is_read(tmp_path: Path, place: str, _why: str) -> None:
    write(tmp_path / place, conf("global", index_url="https://one/simple"))
    assert pip_settings(os.environ) == {"index-url": "https://one/simple"}


@pytest.mark.parametrize("number", range(1, len(PLACES)))
def test_a_later_file_overrides_an_earlier(tmp_path: Path, number: int) -> None:
    for place, why in PLACES[: number + 1]:
        write(tmp_path / place, conf("global", index_url=why))
    assert pip_settings(os.environ)["index-url"] == PLACES[number][1]


def test_the_user_s_files_are_where_xdg_config_home_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "elsewhere"))
    write(tmp_path / "elsewhere/pip/pip.conf", conf("global", timeout="7"))
    assert pip_settings(os.environ) == {"timeout": "7"}


@cases(
    "text environ settings",
    ("install overrides global", "[global]\nindex-url = a\n[install]\nindex-url = b\n", {},
     {"index-url": "b"}),
    ("a variable overrides a file", "[install]\nindex-url = b\n", {"PIP_INDEX_URL": "c"},
     {"index-url": "c"}),
    ("an empty variable is none", "[global]\nindex-url = a\n", {"PIP_INDEX_URL": ""},
     {"index-url": "a"}),
    ("names are normalized", "[global]\nIndex_URL = a\n--timeout = 3\n", {},
     {"index-url": "a", "timeout": "3"}),
    ("a value may have lines", "[global]\nfind-links =\n    a\n    b\n", {},
     {"find-links": "\na\nb"}),
    ("other commands do not matter", "[download]\nindex-url = a\n", {}, {}),
    ("a percent sign is itself", "[global]\nproxy = http://u:50%@p:1\n", {},
     {"proxy": "http://u:50%@p:1"}),
)  # fmt: skip
def test_settings_are_merged_as_pip_does(
    bare: Path, text: str, environ: dict[str, str], settings: dict[str, str]
) -> None:
    write(bare / ".config/pip/pip.conf", text)
    assert pip_settings({**os.environ, **environ}) == settings


def test_a_named_file_replaces_the_user_s_and_not_the_system_s(tmp_path: Path, bare: Path) -> None:
    write(tmp_path / "etc/pip.conf", conf("global", timeout="1"))
    write(bare / ".config/pip/pip.conf", conf("global", proxy="p"))
    named = write(tmp_path / "mine.conf", conf("global", cert="c"))
    found = pip_settings({**os.environ, "PIP_CONFIG_FILE": str(named)})
    assert found == {"timeout": "1", "cert": "c"}


def test_dev_null_as_the_named_file_means_none(tmp_path: Path, bare: Path) -> None:
    write(tmp_path / "etc/pip.conf", conf("global", timeout="1"))
    write(bare / ".config/pip/pip.conf", conf("global", proxy="p"))
    assert pip_settings({**os.environ, "PIP_CONFIG_FILE": os.devnull}) == {}


@pytest.mark.parametrize("text", ["no section = 1\n", "[global]\na = 1\na = 2\n", "[global\n"])
def test_a_malformed_file_is_named(bare: Path, text: str) -> None:
    path = write(bare / ".config/pip/pip.conf", text)
    with pytest.raises(SetupError, match="is malformed") as caught:
        pip_settings(os.environ)
    assert str(path) in str(caught.value)
    assert "PIP_CONFIG_FILE=/dev/null" in caught.value.fix


# What pip itself makes of its files and variables.
PIP_S_OWN = """
import json
from pip._internal.commands import create_command
options, _ = create_command("install").parser.parse_args(["x"])
print(json.dumps({
    "index-url": options.index_url, "extra-index-url": options.extra_index_urls,
    "find-links": options.find_links, "timeout": options.timeout, "retries": options.retries,
    "proxy": options.proxy, "cert": options.cert, "no-index": options.no_index,
    "trusted-host": options.trusted_hosts,
}))
"""


@pytest.mark.parametrize("named", ["a named file", "no named file", "a named file that is missing"])
def test_settings_agree_with_pip_s_own_reading(tmp_path: Path, bare: Path, named: str) -> None:
    own = ["proxy = http://p:{}", "extra-index-url =\n    https://x{}/a\n    https://x{}/b"]
    places = [place for place, _ in PLACES[2:]]
    for number, place in enumerate([*places, *(["mine.conf"] if named == "a named file" else [])]):
        lines = ["[global]", "index-url = https://g{}", own[number % 2], "no_index = yes"]
        lines += ["[install]", "retries = {}", "find-links = /f{} /g{}", "[list]", "cert = c{}"]
        write(tmp_path / place, "\n".join(lines).replace("{}", str(number)))
    variables = {"PIP_CERT": "/x", "PIP_DEFAULT_TIMEOUT": "77", "PIP_TRUSTED_HOST": "a b:8"}
    if named != "no named file":
        variables["PIP_CONFIG_FILE"] = str(tmp_path / "mine.conf")
    environ = {**os.environ, **variables, "HOME": str(bare)}
    argv = [sys.executable, "-c", PIP_S_OWN]
    done = run_program(argv, env=environ, check=True)
    theirs, ours = json.loads(done.stdout), pip_settings(environ)
    assert theirs["timeout"] == float(ours["default-timeout"]) == 77
    assert theirs["retries"] == int(ours["retries"])
    assert bool(theirs["no-index"]) is is_on(ours["no-index"])
    for name in ("index-url", "proxy", "cert"):
        assert theirs[name] == ours.get(name), name
    for name in ("extra-index-url", "find-links", "trusted-host"):
        assert theirs[name] == ours.get(name, "").split(), name


def test_pip_is_given_what_reaches_packages_and_nothing_else() -> None:
    environ = {
        "PATH": "/bin", "https_proxy": "http://p:1", "SSL_CERT_FILE": "/c", "PIP_TARGET": "/t",
        "PIP_USER": "1", "PIP_REQUIRE_VIRTUALENV": "1", "PIP_PREFIX": "/p", "PIP_TIMEOUT": "9",
        "PIP_CONFIG_FILE": "/f", "PYTHONPATH": "/x", "PYTHONHOME": "/x", "PYTHONNOUSERSITE": "1",
    }  # fmt: skip
    settings = pip_settings(environ) | {"trusted-host": "a b", "constraint": "/c.txt"}
    assert pip_environment(settings, environ) == {
        "PATH": "/bin", "https_proxy": "http://p:1", "SSL_CERT_FILE": "/c", "PIP_TIMEOUT": "9",
        "PIP_TRUSTED_HOST": "a b", "PIP_CONFIG_FILE": "/dev/null",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "NO_COLOR": "1",
    }  # fmt: skip


@cases(
    "settings pages",
    ("an index", {"index-url": "https://a/simple"}, ["https://a/simple/pip/"]),
    ("a slash", {"index-url": "https://a/simple/"}, ["https://a/simple/pip/"]),
    ("more indexes", {"index-url": "https://a", "extra-index-url": "https://b\nhttps://c"},
     ["https://a/pip/", "https://b/pip/", "https://c/pip/"]),
    ("find-links come first", {"index-url": "https://a", "find-links": "/wheels https://b/list"},
     ["file:///wheels", "https://b/list", "https://a/pip/"]),
    ("no index", {"no-index": "true", "index-url": "https://a", "find-links": "/wheels"},
     ["file:///wheels"]),
    ("an index on the disk", {"index-url": "/mirror"}, ["file:///mirror/pip/"]),
)  # fmt: skip
def test_pages_are_those_that_pip_asks(settings: dict[str, str], pages: list[str]) -> None:
    assert pages_of("pip", settings) == pages


def test_without_configuration_python_names_the_public_index() -> None:
    index = public_index()
    assert index is not None
    parts = urlsplit(index)
    assert (parts.scheme, parts.path) == ("https", "/simple")
    assert pages_of("pip", {}) == [f"{index}/pip/"]


def test_the_public_index_is_the_one_that_pip_asks() -> None:
    from pip._internal.models.index import PyPI

    assert public_index() == PyPI.simple_url


def test_where_python_does_not_name_it_the_user_has_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("setup_venv.settings.public_index", lambda: None)
    with pytest.raises(SetupError) as caught:
        pages_of("pip", {})
    assert caught.value.fix == "Name one: PIP_INDEX_URL=https://HOST/simple ./run ..."


@pytest.mark.parametrize("url", ["https://ann:canary@host:port/simple", "https://[::1/canary"])
def test_a_malformed_url_is_not_repeated(url: str) -> None:
    with pytest.raises(SetupError, match="index-url is not a valid URL") as caught:
        pages_of("pip", {"index-url": url})
    assert "canary" not in f"{caught.value} {caught.value.fix}"


@pytest.mark.parametrize("name", ["timeout", "retries", "default-timeout"])
def test_a_number_that_is_none_is_named(name: str) -> None:
    with pytest.raises(SetupError, match=f"pip's setting {name} is not a number: 'soon'"):
        Client({name: "soon"}, os.environ)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param("pip==1.0\n", True, id="no hash"),
        pytest.param("pip-tools==1.0 \\\n    --hash=sha256:" + "a" * 64, True, id="another name"),
        pytest.param("", True, id="nothing"),
        pytest.param(
            "pip==99.1 \\\n    --hash=sha256:" + "a" * 64 + " \\\n    --hash=sha256:" + "b" * 64
            + "\npluggy==1 \\\n    --hash=sha256:" + "c" * 64, False, id="two hashes",
        ),
    ],
)  # fmt: skip
def test_the_pin_of_pip_is_read(text: str, error: bool) -> None:  # noqa: FBT001
    if error:
        with pytest.raises(SetupError, match="do not pin pip by hash"):
            pinned_pip(text)
    else:
        assert pinned_pip(text) == (NAME, frozenset({"a" * 64, "b" * 64}))


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_both_locks_pin_pip(name: str) -> None:
    wheel, digests = pinned_pip((ROOT / name).read_text(encoding="utf-8"))
    assert wheel.startswith("pip-")
    assert len(digests) == 2  # the wheel's and the archive's


# ---- fetching ----


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        running.replies = {PAGE: [html_page(f"../..{FILE}")], FILE: [Reply(body=WHEEL)]}
        yield running


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("tls"), "An organization", "index.example")


@pytest.fixture(scope="module")
def chain(authority: Authority) -> Path:
    """The server's certificate with its key, and its authority's."""
    both = authority.chain.read_text() + authority.bundle.read_text()
    return write(authority.chain.with_name("both.pem"), both)


@pytest.fixture
def secure(chain: Path) -> Iterator[Server]:
    with Server(chain=chain) as running:
        running.replies = {PAGE: [html_page(f"../..{FILE}")], FILE: [Reply(body=WHEEL)]}
        yield running


def fetched(server: Server, **settings: str) -> bytes:
    """What is fetched from a server by these settings."""
    given = {"index-url": f"{server.url}/simple"}
    given |= {name.replace("_", "-"): value for name, value in settings.items()}
    return fetch(Client(given, os.environ), pages_of("pip", given), NAME, frozenset({DIGEST}))


def problem(server: Server, **settings: str) -> SetupError:
    with pytest.raises(SetupError) as caught:
        fetched(server, **settings)
    return caught.value


OTHER = [f"pip-98-{tag}.whl" for tag in ("py3-none-any",)]
PAGES = {
    "relative links": html_page("../../files/other.whl", f"../..{FILE}"),
    "links from the root": html_page(f"{FILE}#sha256={DIGEST}"),
    "a base": html_page(NAME, base="/files/"),
    "JSON": json_page(f"../../files/{OTHER[0]}", f"../..{FILE}"),
    "a yanked file": Reply(
        body=f'<a data-yanked="" href="{FILE}">{NAME}</a>'.encode(), kind="text/html"
    ),
    "quoted names": html_page(f"/files/{NAME.replace('-', '%2D')}"),
}


@pytest.mark.parametrize("page", [pytest.param(page, id=name) for name, page in PAGES.items()])
def test_the_wheel_is_found_on_a_page(server: Server, page: Reply) -> None:
    server.replies[PAGE] = [page]
    server.replies[f"/files/{NAME.replace('-', '%2D')}"] = [Reply(body=WHEEL)]
    assert fetched(server) == WHEEL


def test_full_addresses_are_followed_to_another_host(server: Server) -> None:
    with Server() as files:
        files.replies[FILE] = [Reply(body=WHEEL)]
        server.replies[PAGE] = [html_page(f"{files.url}{FILE}")]
        assert fetched(server) == WHEEL
        assert files.paths() == [FILE]


def test_both_formats_of_pages_are_asked_for(server: Server) -> None:
    fetched(server)
    accept = server.seen[0][1]["accept"]
    assert "vnd.pypi.simple.v1+json" in accept
    assert "text/html" in accept


@cases("place", ("a directory of wheels", "wheels"), ("a page of links", "list.html"))
def test_the_wheel_is_found_on_the_disk(server: Server, tmp_path: Path, place: str) -> None:
    write(tmp_path / "wheels/other.whl", "")
    (tmp_path / "wheels" / NAME).write_bytes(WHEEL)
    write(tmp_path / "list.html", f'<a href="wheels/{NAME}">{NAME}</a>')
    assert fetched(server, find_links=str(tmp_path / place), no_index="1") == WHEEL
    assert server.seen == []


def test_the_wheel_is_found_in_an_index_on_the_disk(server: Server, tmp_path: Path) -> None:
    write(tmp_path / "my index/pip/index.html", f'<a href="{NAME}">{NAME}</a>')
    (tmp_path / "my index/pip" / NAME).write_bytes(WHEEL)
    assert fetched(server, index_url=str(tmp_path / "my index")) == WHEEL


def test_another_index_is_asked_where_the_first_has_none(server: Server) -> None:
    extra = f"{server.url}/simple"
    assert fetched(server, index_url=f"{server.url}/empty", extra_index_url=extra) == WHEEL
    assert server.paths() == ["/empty/pip/", PAGE, FILE]


def test_another_index_is_asked_where_the_first_has_other_bytes(server: Server) -> None:
    server.replies["/bad/pip/"] = [html_page(f"/bad/{NAME}")]
    server.replies[f"/bad/{NAME}"] = [Reply(body=b"other")]
    extra = f"{server.url}/simple"
    assert fetched(server, index_url=f"{server.url}/bad", extra_index_url=extra) == WHEEL


def moved(location: str, status: int = 302) -> Reply:
    return Reply(status=status, headers={"Location": location})


GOOD = {PAGE: html_page(FILE), FILE: Reply(body=WHEEL)}
PASSING = [
    *((f"HTTP {code} for {path}", path, [Reply(status=code)] * 2)
      for path in (PAGE, FILE) for code in (429, 500, 502, 503, 504)),
    ("a page that is cut", PAGE, [Reply(body=b"<a" * 99, cut=True)]),
    ("a file that is cut", FILE, [Reply(body=WHEEL, cut=True)] * 2),
    ("an answer that is not HTTP", FILE, [Reply(garbage=True)]),
]  # fmt: skip


@cases("path first", *PASSING)
def test_a_passing_fault_is_overcome(server: Server, path: str, first: list[Reply]) -> None:
    server.replies[path] = [*first, GOOD[path]]
    assert fetched(server) == WHEEL
    assert server.paths().count(path) == len(first) + 1


LASTING = [
    ("a page that is missing", PAGE, Reply(status=404), "HTTP 404", 1),
    ("a server that is busy", PAGE, Reply(status=503), "HTTP 503", 4),
    ("a file that is missing", FILE, Reply(status=404), "HTTP 404", 1),
    ("a file that is cut", FILE, Reply(body=WHEEL, cut=True), "closed before the end", 4),
    ("answers that are not HTTP", FILE, Reply(garbage=True), "the answer is not HTTP", 4),
    ("JSON that is cut", PAGE, Reply(body=b"{", kind=JSON), "not an index page", 1),
    ("JSON of another kind", PAGE, Reply(body=b"[]", kind=JSON), "not an index page", 1),
    ("a page without the file", PAGE, html_page("pip-1.0.whl"), "does not list it", 1),
    ("a loop of redirects", PAGE, moved(PAGE), REDIRECTS, 11),
    ("a redirect to another protocol", FILE, moved("ftp://x/", 308), "not an http", 1),
    ("a redirect to a file", FILE, moved("file:///x"), "not an http", 1),
    ("a redirect to nowhere", FILE, Reply(status=302), "HTTP 302", 1),
    ("a corrupt file", FILE, Reply(body=b"other"), "which is not the pinned one", 1),
]


@cases("path reply said times", *LASTING)
def test_a_lasting_fault_is_named(
    server: Server, path: str, reply: Reply, said: str, times: int
) -> None:
    server.replies[path] = [reply]
    error = problem(server)
    assert said in str(error)
    assert f"{server.url}{path}" in str(error)
    assert NAME in str(error)
    assert error.fix
    assert error.code == 5
    assert server.paths().count(path) == times


def test_a_server_that_says_nothing_is_given_up(server: Server) -> None:
    server.replies[PAGE] = [Reply(hang=True)]
    assert "no answer within 0.2 s" in str(problem(server, timeout="0.2", retries="1"))
    assert server.paths() == [PAGE, PAGE]


def test_a_server_that_is_not_there_is_given_up(server: Server) -> None:
    server.close()
    error = problem(server)
    assert "Connection refused" in str(error)
    assert "Check the network, the proxy" in error.fix


def test_no_index_and_no_links_is_said(server: Server) -> None:
    assert "no-index is set, and no find-links" in str(problem(server, no_index="yes"))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed(server: Server, status: int) -> None:
    server.replies[PAGE] = [moved("/moved/pip/", status)]
    server.replies["/moved/pip/"] = [html_page(f"../..{FILE}")]
    assert fetched(server) == WHEEL


def test_an_unencrypted_index_elsewhere_is_not_asked(server: Server) -> None:
    error = problem(server, index_url="http://index.example/simple")
    assert "it is not encrypted" in str(error)
    assert "PIP_TRUSTED_HOST=index.example" in error.fix


def test_a_redirect_to_an_unencrypted_page_is_not_followed(
    secure: Server, server: Server, chain: Path
) -> None:
    secure.replies[PAGE] = [moved(f"{server.url}{PAGE}")]
    error = problem(secure, cert=str(chain))
    assert f"redirects to unencrypted {server.url}{PAGE}; refusing to follow" in str(error)
    assert server.seen == []


# ---- logins ----

CANARY = "ca%3Anary"  # "ca:nary" as it is written in a URL


def with_login(url: str, login: str = f"ann:{CANARY}") -> str:
    return url.replace("://", f"://{login}@")


def test_a_login_in_the_url_is_sent_for_page_and_file(server: Server) -> None:
    server.login = "ann:ca:nary"
    assert fetched(server, index_url=with_login(f"{server.url}/simple")) == WHEEL


@pytest.mark.parametrize("name", [".netrc", "_netrc", "named"])
def test_a_login_of_netrc_is_sent(
    server: Server, bare: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    server.login = "ann:canary"
    path = write(bare / name, "machine 127.0.0.1 login ann password canary\n")
    path.chmod(0o600)
    if name == "named":
        monkeypatch.setenv("NETRC", str(path))
    assert fetched(server) == WHEEL


def test_a_malformed_netrc_is_no_login(server: Server, bare: Path) -> None:
    write(bare / ".netrc", "machine\n").chmod(0o600)
    assert fetched(server) == WHEEL


def test_a_login_is_not_sent_to_another_host(server: Server) -> None:
    with Server() as other:
        other.replies = {"/p/": [html_page(FILE)], FILE: [Reply(body=WHEEL)]}
        server.replies[PAGE] = [moved(f"{other.url}/p/")]
        assert fetched(server, index_url=with_login(f"{server.url}/simple")) == WHEEL
        assert server.seen[0][1]["authorization"] == basic("ann:ca:nary")
        assert [headers.get("authorization") for _, headers in other.seen] == [None, None]


@pytest.mark.parametrize("login", ["", f"ann:{CANARY}", "canary", ":canary"])
def test_a_wrong_or_missing_login_is_said_and_not_shown(server: Server, login: str) -> None:
    server.login = "bob:secret"
    url = f"{server.url}/simple"
    error = problem(server, index_url=with_login(url, login) if login else url)
    assert "HTTP 401" in str(error)
    assert "PIP_INDEX_URL=https://USER:PASSWORD@HOST/simple" in error.fix
    assert "nary" not in f"{error} {error.fix}"


def test_what_is_shown_of_a_url_is_no_secret() -> None:
    url = "https://ann:canary@host:8443/simple/pip/?token=canary#canary"
    assert shown(url) == "https://host:8443/simple/pip/"


# ---- certificates ----


def test_an_unknown_authority_is_not_trusted(secure: Server) -> None:
    error = problem(secure)
    assert "its certificate is not trusted" in str(error)
    assert "PIP_CERT=/path/to/ca.pem" in error.fix
    assert secure.seen == []


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_a_bundle_of_the_environment_is_trusted(
    secure: Server, chain: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, str(chain))
    assert fetched(secure) == WHEEL


def test_a_directory_of_certificates_is_trusted(
    secure: Server, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    openssl = need.program("openssl")
    # OpenSSL looks for a certificate by a hash of its name.
    argv = [openssl, "x509", "-noout", "-hash", "-in", str(authority.bundle)]
    name = run_program(argv, check=True).stdout.strip()
    (tmp_path / f"{name}.0").write_bytes(authority.bundle.read_bytes())
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    assert fetched(secure) == WHEEL


def test_pip_s_own_setting_is_trusted_first(
    secure: Server, chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(write(tmp_path / "other.pem", "no certificate")))
    assert fetched(secure, cert=str(chain)) == WHEEL


def test_a_trusted_host_is_not_verified(secure: Server) -> None:
    assert fetched(secure, trusted_host="127.0.0.1") == WHEEL
    assert fetched(secure, trusted_host=f"a.example {secure.host}") == WHEEL
    assert "not trusted" in str(problem(secure, trusted_host="127.0.0.1:1"))


def test_a_client_certificate_is_shown(chain: Path) -> None:
    with Server(chain=chain, mutual=True) as server:
        server.replies = {PAGE: [html_page(FILE)], FILE: [Reply(body=WHEEL)]}
        problem(server, cert=str(chain), retries="0")
        assert server.seen == []
        assert fetched(server, cert=str(chain), client_cert=str(chain)) == WHEEL
        assert fetched(server, trusted_host="127.0.0.1", client_cert=str(chain)) == WHEEL


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), ("nothing", "cannot be used")],
    ids=["it is missing", "it holds no certificate"],
)
def test_a_bundle_that_cannot_be_used_is_named(
    secure: Server, tmp_path: Path, content: str | None, said: str
) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    error = problem(secure, cert=str(path))
    assert f"The CA bundle {path} (pip's setting cert)" in str(error)
    assert said in str(error)


def test_a_machine_without_authorities_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: NOWHERE)
    monkeypatch.setattr(client_module, "SYSTEM_BUNDLES", (str(tmp_path / "none"),))
    with pytest.raises(SetupError, match="no CA certificates") as caught:
        Client({}, os.environ)
    assert "ca-certificates" in caught.value.fix


def test_a_python_that_looks_elsewhere_finds_the_system_s_bundle(
    secure: Server, chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: NOWHERE)
    monkeypatch.setattr(client_module, "SYSTEM_BUNDLES", (str(tmp_path / "none"), str(chain)))
    assert fetched(secure) == WHEEL


# ---- proxies ----


@pytest.fixture
def proxy(secure: Server) -> Iterator[Proxy]:
    with Proxy(secure) as running:
        yield running


BEHIND = "https://index.example/simple"


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"])
def test_a_proxy_of_the_environment_is_used(
    secure: Server, proxy: Proxy, chain: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, f"http://{proxy.host}")
    assert fetched(secure, index_url=BEHIND, cert=str(chain)) == WHEEL
    assert proxy.seen == ["index.example:443"] * 2


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_a_proxy_of_pip_s_settings_is_used(
    secure: Server, proxy: Proxy, chain: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    given = {"proxy": f"{scheme}{proxy.host}", "cert": str(chain)}
    assert fetched(secure, index_url=BEHIND, **given) == WHEEL
    assert proxy.seen == ["index.example:443"] * 2


def test_a_proxy_for_http_is_used_for_http(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with Proxy(server) as proxy:
        monkeypatch.setenv("http_proxy", f"http://{proxy.host}")
        url = "http://index.example/simple"
        assert fetched(server, index_url=url, trusted_host="index.example") == WHEEL
        assert proxy.seen == [f"http://index.example{PAGE}", f"http://index.example{FILE}"]


@pytest.mark.parametrize("exempt", ["127.0.0.1", "*", "a.example, 127.0.0.1", "127.0.0.0/8"])
def test_no_proxy_is_honored(server: Server, monkeypatch: pytest.MonkeyPatch, exempt: str) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", exempt)
    assert fetched(server) == WHEEL


def test_pip_may_be_told_to_ignore_the_proxies_of_the_environment(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert "Connection refused" in str(problem(server, retries="0"))
    assert fetched(server, no_proxy_env="1") == WHEEL


def test_the_login_of_a_proxy_is_sent_and_asked_for(
    secure: Server, chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(secure, login="ann:canary") as proxy:
        monkeypatch.setenv("https_proxy", f"http://{proxy.host}")
        error = problem(secure, index_url=BEHIND, cert=str(chain))
        assert "407" in str(error)
        assert "https_proxy=http://USER:PASSWORD@HOST:PORT" in error.fix
        monkeypatch.setenv("https_proxy", f"http://ann:canary@{proxy.host}")
        assert fetched(secure, index_url=BEHIND, cert=str(chain)) == WHEEL


@pytest.mark.parametrize("name", ["all_proxy", "https_proxy"])
def test_a_socks_proxy_is_refused_without_its_login(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "socks5h://ann:canary@127.0.0.1:1080")
    with pytest.raises(SetupError, match=r"socks5h://127\.0\.0\.1:1080 is a SOCKS proxy") as caught:
        Client({}, os.environ)
    assert "canary" not in f"{caught.value} {caught.value.fix}"


# ---- why pip failed ----

TAGS = ["cp310-cp310", "cp311-cp311", "cp312-cp312"]
FAILURES: list[tuple[str, str, Callable[[str], list[str]], tuple[str, ...], int]] = [
    ("no wheel for this machine",
     "ERROR: Could not find a version\nERROR: No matching distribution found for a-b==1.0",
     lambda machine: [f"A_b-1.0-cp39-cp39-manylinux_2_28_{machine}.whl", "a_b-1.0-1-py3-x.whl"],
     ("a-b 1.0 has no wheel for this machine", "CPython", "cp39-cp39-manylinux_2_28_"), 4),
    ("no wheel for this kind of machine", "ERROR: No matching distribution found for a-b==1.0",
     lambda _: ["a_b-1.0-cp311-cp311-manylinux_2_28_other.whl"],
     ("a-b 1.0 has no wheel for this machine", "none"), 4),
    ("not in the index at all", "ERROR: No matching distribution found for a-b==1.0",
     lambda _: ["a_b-0.9-cp311-cp311-manylinux_2_28_x86_64.whl", "a_b-1.0.tar.gz"],
     ("pip could not install the packages in r.txt", "No matching distribution"), 5),
    ("a changed package", "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM x.\n    a==1 from x:",
     lambda _: [], ("A package is not the one that r.txt pins", "DO NOT MATCH", "a==1 from x:"), 5),
    ("a full disk",
     "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
     lambda _: [], ("No space left on the disk", "MB free in"), 5),
    ("no network",
     "Collecting a==1\nWARNING: Retrying (Retry(total=0)) after connection broken\nERROR: other",
     lambda _: [],
     ("pip could not install the packages in r.txt", "connection broken", "ERROR: other"), 5),
]  # fmt: skip


@cases("text files said code", *FAILURES)
def test_a_failure_of_pip_is_explained(
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    files: Callable[[str], list[str]],
    said: tuple[str, ...],
    code: int,
) -> None:
    server.replies["/simple/a-b/"] = [html_page(*files(platform.machine()))]
    settings: Mapping[str, str] = {"index-url": f"{server.url}/simple"}
    failed = PipFailedError(text.splitlines())
    error = explain(failed, tmp_path / "r.txt", Client(settings, os.environ), settings)
    shown_text = f"{error}\n{capsys.readouterr().err}"
    assert [word for word in said if word not in shown_text] == []
    assert "Collecting" not in shown_text
    assert error.code == code
    assert error.fix
