"""Fetches index pages and files as pip does: with its settings, logins, proxies and CA bundles."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import ipaddress
import json
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

from setup_venv.errors import FetchError, SetupError
from setup_venv.settings import Login, is_on, login_in, logins, netrc_logins, number, origin_of

# pip's times in seconds; fewer retries than its 5, so that a machine without a network fails in two
# seconds.
TIMEOUT_S, RETRIES, FIRST_DELAY_S = 15.0, 3, 0.25
BUSY = frozenset({429, 500, 502, 503, 504, 520, 527})
REDIRECTED, MOST_REDIRECTS = frozenset({301, 302, 303, 307, 308}), 10
# pip's index page has 0.4 MB, its wheel 2 MB.
MOST_BYTES = 64 << 20
ACCEPT = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html; q=0.1, "
    "text/html; q=0.01"
)
# Where distributions keep the CA bundle, for a Python that was built to look elsewhere.
SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Arch, Alpine, Gentoo, NixOS
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL, Amazon Linux
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # Alpine, macOS
)
LOGIN_FIX = (
    "Give a login: PIP_INDEX_URL=https://USER:PASSWORD@HOST/simple ./run ..., or a line in ~/.netrc"
)
PROXY_FIX = "Give the proxy's login: https_proxy=http://USER:PASSWORD@HOST:PORT ./run ..."
URL_FIX = "Correct PIP_INDEX_URL or pip.conf."


def shown(url: str) -> str:
    """The URL without what may be secret: its login and its query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def file_name(url: str) -> str:
    """The last part of the path."""
    return unquote(urlsplit(url).path.rpartition("/")[2])


@dataclass(frozen=True, slots=True)
class Answer:
    """The content of a URL, and the URL after redirects. `kind` is the content type."""

    url: str
    kind: str
    body: bytes


class Client:
    """Fetches URLs according to pip's settings."""

    def __init__(self, settings: Mapping[str, str], environ: Mapping[str, str]) -> None:
        self._timeout_s = number(settings, ("timeout", "default-timeout"), TIMEOUT_S)
        self._retries = int(number(settings, ("retries",), RETRIES))
        self._trusted = set(settings.get("trusted-host", "").lower().split())
        self._logins = logins(settings)
        self._netrc = netrc_logins(environ)
        self._proxies = _Proxies(settings)
        self._strict, self._lax = _tls(settings, environ)

    def links(self, page: str) -> list[str]:
        """URLs that a page (PEP 503, PEP 691) or a directory lists. Raises FetchError."""
        if urlsplit(page).scheme != "file":
            answer = self.get(page)
            return _links(answer.body, answer.kind, answer.url)
        path = _path_of(page)
        try:
            if not path.is_dir():
                return _links(path.read_bytes(), "text/html", path.as_uri())
            index = path / "index.html"
            linked = self.links(index.as_uri()) if index.exists() else []
            return linked + [child.as_uri() for child in path.iterdir()]
        except OSError as error:
            raise FetchError(error.strerror or str(error)) from error

    def get(self, url: str) -> Answer:
        """The URL's content, after redirects and retries. Raises FetchError."""
        if urlsplit(url).scheme == "file":
            try:
                return Answer(url, "", _path_of(url).read_bytes())
            except OSError as error:
                raise FetchError(error.strerror or str(error)) from error
        attempt = 0
        while True:
            try:
                return self._follow(url)
            except (OSError, http.client.HTTPException, ValueError) as error:
                if attempt >= self._retries or not _may_pass(error):
                    raise self._problem(url, error) from error
            time.sleep(FIRST_DELAY_S * 2**attempt)
            attempt += 1

    def _follow(self, url: str) -> Answer:
        for _ in range(MOST_REDIRECTS + 1):
            self._check(url)
            try:
                with self._open(url) as response:
                    kind = response.headers.get_content_type()
                    return Answer(_bare(url), kind, _whole(response))
            except urllib.error.HTTPError as error:
                error.close()
                target = error.headers.get("Location")
                if error.code not in REDIRECTED or not target:
                    raise
                url = _next(url, urljoin(_bare(url), target))
        raise FetchError(f"more than {MOST_REDIRECTS} redirects")

    def _open(self, url: str) -> http.client.HTTPResponse:
        headers = {"Accept": ACCEPT, "User-Agent": "gpu-provision"}
        if login := self._login(url):
            word = base64.b64encode(":".join(login).encode()).decode()
            headers["Authorization"] = f"Basic {word}"
        request = urllib.request.Request(_bare(url), headers=headers)  # noqa: S310  see _check
        secure = urllib.request.HTTPSHandler(
            context=self._lax if self._is_trusted(url) else self._strict
        )
        opener = urllib.request.build_opener(self._proxies, _Stay, secure)
        response: http.client.HTTPResponse = opener.open(request, timeout=self._timeout_s)
        return response

    def _check(self, url: str) -> None:
        scheme, host, _ = origin_of(url)
        if scheme not in {"http", "https"} or not host:
            raise FetchError("not an http or https URL", URL_FIX)
        local = host == "localhost" or _is_in(host, ("127.0.0.0/8", "::1"))
        if scheme == "http" and not local and not self._is_trusted(url):
            raise FetchError(
                "it is not encrypted, so pip ignores it",
                f"Use https, or trust the host: PIP_TRUSTED_HOST={host} ./run ...",
            )

    def _is_trusted(self, url: str) -> bool:
        _, host, port = origin_of(url)
        return bool(self._trusted & {host, f"{host}:{port}"})

    def _login(self, url: str) -> Login | None:
        origin = origin_of(url)
        return login_in(url) or self._logins.get(origin) or self._netrc.get(origin[1])

    def _problem(self, url: str, error: Exception) -> FetchError:
        reason = _reason(error)
        if isinstance(reason, urllib.error.HTTPError):
            fixes = {401: LOGIN_FIX, 403: LOGIN_FIX, 407: PROXY_FIX}
            return FetchError(f"HTTP {reason.code}", fixes.get(reason.code, ""))
        if isinstance(reason, ssl.SSLCertVerificationError):
            return FetchError(
                f"its certificate is not trusted ({reason.verify_message})",
                "Name your organization's CA bundle: PIP_CERT=/path/to/ca.pem ./run ...",
            )
        if isinstance(reason, TimeoutError):
            return FetchError(f"no answer within {self._timeout_s:g} s")
        if isinstance(reason, socket.gaierror):
            return FetchError(f"cannot look up a host ({reason.strerror})")
        if isinstance(reason, (ValueError, http.client.InvalidURL)):
            return FetchError("not a valid URL", URL_FIX)
        if isinstance(reason, OSError):
            text = reason.strerror or str(reason)
            return FetchError(text, PROXY_FIX if "407" in text else "")
        if isinstance(reason, http.client.IncompleteRead):
            return FetchError("the connection closed before the end of the file")
        return FetchError(f"the answer is not HTTP ({type(reason).__name__}) from {shown(url)}")


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: Client does, which knows about logins and encryption."""

    def redirect_request(self, *_: object) -> None:
        return None


class _Proxies(urllib.request.ProxyHandler):
    """The configured proxies; no_proxy may have networks (10.0.0.0/8), as for pip."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        own = settings.get("proxy")
        environ = urllib.request.getproxies_environment()
        if own or is_on(settings.get("no-proxy-env")):
            environ = {}
        self._exempt = environ.get("no", "").split(",")
        found = {
            scheme: own or environ.get(scheme) or environ.get("all") for scheme in ("http", "https")
        }
        for url in filter(None, found.values()):
            if url.lower().startswith("socks"):
                raise SetupError(
                    f"{shown(url)} is a SOCKS proxy, which pip cannot use by itself.",
                    "Name an HTTP proxy: https_proxy=http://HOST:PORT ./run ...",
                )
        super().__init__({scheme: url for scheme, url in found.items() if url})

    def proxy_open(self, req: urllib.request.Request, proxy: str, type: str) -> object:  # noqa: A002
        if _is_in(urlsplit(f"//{req.host}").hostname or "", self._exempt):
            return None
        return super().proxy_open(req, proxy, type)


def _is_in(host: str, networks: Iterable[str]) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for network in networks:
        with contextlib.suppress(ValueError):
            if address in ipaddress.ip_network(network.strip()):
                return True
    return False


def _next(url: str, target: str) -> str:
    if urlsplit(url).scheme == "https" and urlsplit(target).scheme != "https":
        raise FetchError(f"redirects to unencrypted {shown(target)}; refusing to follow")
    return target


def _reason(error: Exception) -> Exception:
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    # HTTPError's reason is a string.
    return inner if isinstance(inner, Exception) else error


def _may_pass(error: Exception) -> bool:
    """Whether another attempt may succeed."""
    reason = _reason(error)
    if isinstance(reason, urllib.error.HTTPError):
        return reason.code in BUSY
    if isinstance(reason, socket.gaierror):
        return reason.errno == socket.EAI_AGAIN
    if isinstance(reason, (ssl.SSLCertVerificationError, http.client.InvalidURL)):
        return False
    return isinstance(reason, (OSError, http.client.HTTPException))


def _whole(response: http.client.HTTPResponse) -> bytes:
    """The body. Raises IncompleteRead if it ends early, which read(n) does not."""
    length = response.headers.get("Content-Length") or ""
    body = io.BytesIO()
    while piece := response.read(1 << 16):
        body.write(piece)
        if body.tell() > MOST_BYTES:
            raise FetchError(f"larger than {MOST_BYTES >> 20} MB")
    if length.isdigit() and body.tell() < int(length):
        raise http.client.IncompleteRead(b"", int(length) - body.tell())
    return body.getvalue()


def _bare(url: str) -> str:
    """The URL as it is sent: without login and fragment, and with its path quoted."""
    parts = urlsplit(url)
    path = re.sub(r"[^!-~]+", lambda found: quote(found[0]), parts.path)
    netloc = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, netloc, path, parts.query, ""))


def _path_of(url: str) -> Path:
    return Path(urllib.request.url2pathname(urlsplit(url).path))


def _tls(
    settings: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """One context that verifies servers as pip does, and one for the servers in trusted-host.

    Not ssl.create_default_context(): since Python 3.13 it refuses the certificates of many
    organizations' proxies (VERIFY_X509_STRICT), which pip accepts.
    """
    strict, lax = (ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) for _ in range(2))
    lax.check_hostname = False
    lax.verify_mode = ssl.CERT_NONE
    for name, path in _bundles(settings, environ):
        with _usable(f"The CA bundle {path} ({name})"):
            strict.load_verify_locations(**{"capath" if Path(path).is_dir() else "cafile": path})
    if client := settings.get("client-cert"):
        with _usable(f"The client certificate {client} (pip's setting client-cert)"):
            strict.load_cert_chain(client)
            lax.load_cert_chain(client)
    return strict, lax


@contextlib.contextmanager
def _usable(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SetupError(
            f"{what} cannot be used: {error.strerror or error}", "Correct the path, or unset it."
        ) from error


def _bundles(settings: Mapping[str, str], environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """The CA bundles to use, each with the setting that names it. Raises SetupError for none."""
    if cert := settings.get("cert"):
        return [("pip's setting cert", cert)]
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        if path := environ.get(name):
            return [(name, path)]
    default = ssl.get_default_verify_paths()  # with SSL_CERT_FILE and SSL_CERT_DIR
    found = [path for path in (default.cafile, default.capath) if path and _has_files(path)]
    found = found or [path for path in SYSTEM_BUNDLES if Path(path).exists()][:1]
    if not found:
        raise SetupError(
            "This system has no CA certificates, so no package index can be trusted.",
            "Install the package ca-certificates, or name a bundle: PIP_CERT=/path/to/ca.pem "
            "./run ...",
        )
    return [("the system's", path) for path in found]


def _has_files(path: str) -> bool:
    try:
        return Path(path).is_file() or any(Path(path).iterdir())
    except OSError:
        return False


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        target = dict(attrs).get("href")
        if target and tag == "a":
            self.found.append(target)
        elif target and tag == "base" and not self.base:
            self.base = target


def _links(body: bytes, kind: str, url: str) -> list[str]:
    try:
        if kind.endswith("json"):
            return [urljoin(url, file["url"]) for file in json.loads(body)["files"]]
        anchors = _Anchors()
        anchors.feed(body.decode("utf-8", "replace"))
        base = urljoin(url, anchors.base)
        return [urljoin(base, target) for target in anchors.found]
    except (ValueError, KeyError, TypeError) as error:
        raise FetchError("not an index page") from error
