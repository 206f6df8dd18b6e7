"""Asks a container registry which digest a tag stands for today.

The protocol is small (OCI distribution): one GET of the manifest, a token fetched when the registry
asks for one, the login read from docker's own configuration. No question waits for longer than its
time limit, whatever the network does: the work is done by a thread that is left behind if need be,
because neither a name look-up nor a credential helper can be told to hurry.
"""

from __future__ import annotations

import hashlib
import json
import re
import ssl
import threading
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from images.errors import Failure

if TYPE_CHECKING:
    import urllib3

_T = TypeVar("_T")

INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)

_ACCEPT = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))
_MAX_BYTES = 4 * 1024 * 1024  # what the specification tells registries to accept at most
_MAX_REDIRECTS = 4
_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}
_DOCKER_HUB = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})
_CONNECT_FIX = (
    "See that this host may reach it (HTTPS_PROXY, NO_PROXY, --ca-bundle FILE), "
    "or need no registry: --base bootstrap"
)


class BadReference(Failure):
    """A text that does not name an image."""

    code = "bad-reference"
    exit_code = 2


class BadCaBundle(Failure):
    """A file of certificates that cannot be used."""

    code = "bad-ca-bundle"
    exit_code = 2


class RegistryUnreachableError(Failure):
    """A registry did not answer, or not in time, or only with its own errors."""

    code = "registry-unreachable"
    exit_code = 5


class RegistryAnswerError(Failure):
    """A registry answered with something damaged, or that is not a registry's answer."""

    code = "registry-bad-answer"
    exit_code = 5


class ImageNotFoundError(Failure):
    """A registry has no such image, or not for the architecture that is needed."""

    code = "image-not-found"
    exit_code = 5


class RegistryDeniedError(Failure):
    """A registry refused: no login, a wrong one, or its limit is used up."""

    code = "registry-denied"
    exit_code = 5


# --- the name of an image ---------------------------------------------------------------------

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_LABEL = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_MAX_NAME = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The full name of an image; what was left out has docker's defaults."""

    registry: str
    """Where it is kept, such as "docker.io" or "localhost:5000"."""
    repository: str
    """Its path there, such as "library/debian"."""
    tag: str | None
    """None only when a digest alone was given."""
    digest: str | None

    @property
    def host(self) -> str:
        """The host that answers for the registry."""
        return "registry-1.docker.io" if self.registry == "docker.io" else self.registry

    @property
    def hostname(self) -> str:
        return urllib.parse.urlsplit(f"//{self.host}").hostname or self.host

    @property
    def is_loopback(self) -> bool:
        return (
            self.hostname in {"localhost", "::1"}
            or self.hostname.endswith(".localhost")
            or re.fullmatch(r"127(\.\d{1,3}){3}", self.hostname) is not None
        )

    @property
    def pinned(self) -> str:
        """What is asked for: the digest where there is one."""
        return self.digest or self.tag or "latest"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.registry}/{self.repository}{tag}{digest}"


def _bad(text: str, why: str) -> BadReference:
    return BadReference(
        f"{text!r} does not name an image: {why}.",
        fix="Write it as REGISTRY/PATH:TAG or REGISTRY/PATH@sha256:..., for example debian:12-slim",
    )


def parse_reference(text: str) -> Reference:
    """Read the name of an image by docker's rules, and fill in what docker would."""
    if "://" in text:
        raise _bad(text, "an image has no scheme such as https://")
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _bad(text, "after @ a digest is expected, sha256: and 64 hexadecimal digits")
    first, slash, path = rest.partition("/")
    # docker's rule: what looks like a host is one; anything else is a path on Docker Hub
    if slash and ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        registry = first
    else:
        registry, path = "docker.io", rest
    if not _HOST.fullmatch(registry):
        raise _bad(text, f"{registry!r} is not a registry's host")
    repository, colon, tag = path.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise _bad(text, f"{tag!r} is not a tag")
    if not _REPOSITORY.fullmatch(repository):
        upper = " (upper-case letters are not allowed)" if repository != repository.lower() else ""
        raise _bad(text, f"{repository!r} is not an image's path{upper}")
    if len(registry) + 1 + len(repository) > _MAX_NAME:
        raise _bad(text, f"its name is longer than {_MAX_NAME} characters")
    if registry in _DOCKER_HUB:
        registry = "docker.io"
        repository = repository if "/" in repository else f"library/{repository}"
    return Reference(
        registry=registry,
        repository=repository,
        tag=tag or (None if at else "latest"),
        digest=digest or None,
    )


# --- the registry's side of a login -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Challenge:
    """What a registry wants to see, from its WWW-Authenticate header."""

    scheme: str
    parameters: Mapping[str, str]


_CHALLENGE = re.compile(r"(?:^|,)\s*(?P<scheme>[A-Za-z][\w-]*)\s+(?=[A-Za-z_]+\s*=)")
_PARAMETER = re.compile(r'([A-Za-z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')


def parse_challenges(header: str) -> tuple[Challenge, ...]:
    """Read a WWW-Authenticate header, which may hold several challenges in one line."""
    starts = list(_CHALLENGE.finditer(header))
    ends = [*(match.start() for match in starts), len(header)][1:]
    return tuple(
        Challenge(
            start["scheme"].lower(),
            {
                name.lower(): re.sub(r"\\(.)", r"\1", quoted) or plain
                for name, quoted, plain in _PARAMETER.findall(header[start.end() : end])
            },
        )
        for start, end in zip(starts, ends, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Login:
    """What docker's configuration holds for a registry; the reason where it cannot be read."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    problem: str = ""

    def __bool__(self) -> bool:
        return bool(self.username or self.identity_token)


def read_login(registry: str) -> Login:
    """Ask docker's own configuration, and its credential helpers, for the login to a registry."""
    import docker.auth
    import docker.errors

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a missing helper is an error already
            found = docker.auth.load_config().resolve_authconfig(registry) or {}
    except (docker.errors.DockerException, OSError, ValueError, TypeError, AttributeError) as exc:
        # much is public, and a broken helper is common: go on without, and tell where it matters
        return Login(problem=f"docker's login for {registry} could not be read: {exc}")
    # entries of the file and answers of a helper spell their keys differently
    entry = {str(key).lower(): value for key, value in found.items() if isinstance(value, str)}
    return Login(
        username=entry.get("username", ""),
        password=entry.get("password", ""),
        identity_token=entry.get("identitytoken", ""),
    )


# --- HTTP -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One finished HTTP exchange."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class Http(Protocol):
    """The one door to the network."""

    def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None, /
    ) -> Answer: ...


def _context(ca_bundle: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context()  # honours SSL_CERT_FILE and SSL_CERT_DIR
    if ca_bundle is not None:
        try:
            context.load_verify_locations(cafile=ca_bundle)
        except (OSError, ssl.SSLError) as exc:
            raise BadCaBundle(
                f"The CA bundle {ca_bundle} cannot be used: {exc}.",
                fix="Give a file of certificates in PEM form: --ca-bundle FILE",
            ) from exc
    return context


def proxy_for(url: str) -> str | None:
    """Name the proxy that the environment sets for an address; this machine itself has none."""
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    loopback = host in {"localhost", "::1"} or host.startswith("127.")
    if loopback or urllib.request.proxy_bypass(host):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy:
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _pool(url: str, context: ssl.SSLContext) -> urllib3.PoolManager:
    import urllib3

    proxy = proxy_for(url)
    if proxy is None:
        return urllib3.PoolManager(ssl_context=context)
    parts = urllib.parse.urlsplit(proxy)
    login = ":".join(urllib.parse.unquote(part or "") for part in (parts.username, parts.password))
    headers = urllib3.make_headers(proxy_basic_auth=login) if parts.username else None
    return urllib3.ProxyManager(
        proxy, ssl_context=context, proxy_ssl_context=context, proxy_headers=headers
    )


def open_http(*, ca_bundle: Path | None, timeout_s: float) -> Http:
    """Make the door: proxies and certificates as the environment says, and one more try."""
    import urllib3

    context = _context(ca_bundle)
    timeout = urllib3.Timeout(connect=min(timeout_s, 5.0), read=timeout_s)
    retries = urllib3.Retry(
        total=1,
        redirect=False,
        status_forcelist=(500, 502, 503, 504),
        allowed_methods=None,
        backoff_factor=0,
        raise_on_status=False,
        respect_retry_after_header=False,  # it may ask for minutes
    )

    def http(
        method: str, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> Answer:
        with _pool(url, context) as pool:
            response = pool.request(
                method,
                url,
                headers=dict(headers),
                body=body,
                timeout=timeout,
                retries=retries,
                redirect=False,
                preload_content=False,
            )
            try:
                # one byte more than allowed, to see that there was more
                data = response.read(_MAX_BYTES + 1)
            finally:
                response.release_conn()
            names = {name.lower(): value for name, value in response.headers.items()}
            return Answer(status=response.status, headers=names, body=data)

    return http


class _Session:
    """The exchange with one registry about one repository."""

    def __init__(self, reference: Reference, http: Http, login: Callable[[], Login]) -> None:
        self.reference = reference
        self._http = http
        self._read_login = login
        self._problem = ""
        self._authorization: str | None = None
        scheme = "http" if reference.is_loopback else "https"
        self._root = f"{scheme}://{reference.host}/v2/{reference.repository}"

    def get(self, path: str, accept: str) -> Answer:
        url = f"{self._root}/{path}"
        answer = self._follow(url, accept)
        if answer.status == 401 and self._authorization is None:
            self._authorization = self._authorize(answer)
            answer = self._follow(url, accept)
        return self._judge(answer, url)

    def _follow(self, url: str, accept: str) -> Answer:
        first = urllib.parse.urlsplit(url)
        for _ in range(_MAX_REDIRECTS + 1):
            headers = {"Accept": accept, "User-Agent": "gpu-provision"}
            here = urllib.parse.urlsplit(url)
            # the login is for the registry alone, not for the store that it points to
            if self._authorization and (here.scheme, here.netloc) == (first.scheme, first.netloc):
                headers["Authorization"] = self._authorization
            answer = self._send("GET", url, headers)
            if answer.status not in {301, 302, 303, 307, 308}:
                return answer
            target = urllib.parse.urljoin(url, answer.headers.get("location", ""))
            scheme = urllib.parse.urlsplit(target).scheme
            if scheme not in {"http", "https"} or (here.scheme, scheme) == ("https", "http"):
                raise RegistryAnswerError(
                    f"{url} points on to {target or 'nowhere'}, which is not followed.",
                    fix=_CONNECT_FIX,
                )
            url = target
        raise RegistryAnswerError(
            f"{self.reference.host} points on more than {_MAX_REDIRECTS} times.", fix=_CONNECT_FIX
        )

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> Answer:
        import urllib3

        try:
            answer = self._http(method, url, headers, body)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as exc:
            reason = getattr(exc, "reason", None) or exc
            host = urllib.parse.urlsplit(url).netloc
            raise RegistryUnreachableError(
                f"The registry {self.reference.registry} could not be asked for {self.reference}: "
                f"{host} {_say(reason)}.",
                fix=_fix_for(reason),
                detail=str(exc),
            ) from exc
        if len(answer.body) > _MAX_BYTES:
            raise RegistryAnswerError(
                f"{url} answered with more than {_MAX_BYTES} bytes; a manifest is smaller.",
                fix=_CONNECT_FIX,
            )
        return answer

    def _authorize(self, refused: Answer) -> str:
        challenges = parse_challenges(refused.headers.get("www-authenticate", ""))
        login = self._read_login()
        self._problem = login.problem
        for challenge in challenges:
            if challenge.scheme == "bearer" and "realm" in challenge.parameters:
                return f"Bearer {self._token(challenge, login)}"
        if any(challenge.scheme == "basic" for challenge in challenges) and login.username:
            return _basic(login)
        raise self._denied(refused)

    def _token(self, challenge: Challenge, login: Login) -> str:
        realm = challenge.parameters["realm"]
        parts = urllib.parse.urlsplit(realm)
        if parts.scheme != "https" and not (self.reference.is_loopback and parts.scheme == "http"):
            raise RegistryAnswerError(
                f"{self.reference.registry} wants the login sent to {realm}, "
                "which is not encrypted; this is not done.",
                fix=_CONNECT_FIX,
            )
        scope = f"repository:{self.reference.repository}:pull"
        fields = {
            "service": challenge.parameters.get("service", ""),
            "scope": challenge.parameters.get("scope") or scope,
        }
        headers = {"User-Agent": "gpu-provision"}
        if login.identity_token:
            form = {
                **fields,
                "grant_type": "refresh_token",
                "refresh_token": login.identity_token,
                "client_id": "gpu-provision",
            }
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            answer = self._send("POST", realm, headers, urllib.parse.urlencode(form).encode())
        else:
            if login.username:
                headers["Authorization"] = _basic(login)
            joint = "&" if parts.query else "?"
            answer = self._send("GET", f"{realm}{joint}{urllib.parse.urlencode(fields)}", headers)
        self._judge(answer, realm)
        document = _document(answer.body, realm)
        token = document.get("token") or document.get("access_token")
        if not isinstance(token, str) or not token:
            raise RegistryAnswerError(f"{realm} answered without a token.", fix=_CONNECT_FIX)
        return token

    def _judge(self, answer: Answer, url: str) -> Answer:
        if answer.status == 200:
            return answer
        registry = self.reference.registry
        if answer.status in {401, 403}:
            raise self._denied(answer)
        if answer.status == 404:
            raise ImageNotFoundError(
                f"{registry} has no image {self.reference}.",
                fix="See that the name and the tag are right; tags of old images get removed. "
                "Another base: --base IMAGE, or --base bootstrap for one made here.",
                detail=_text(answer.body),
            )
        if answer.status == 429:
            raise RegistryDeniedError(
                f"{registry} has had too many requests from here for now (HTTP 429).",
                fix=f"Log in, which raises the limit: docker login {registry}; or wait.",
                detail=_text(answer.body),
            )
        raise RegistryUnreachableError(
            f"{registry} could not answer for {self.reference}: HTTP {answer.status} from {url}.",
            fix=f"Try again later. {_CONNECT_FIX}",
            detail=_text(answer.body),
        )

    def _denied(self, answer: Answer) -> RegistryDeniedError:
        registry = self.reference.registry
        problem = f" ({self._problem})" if self._problem else ""
        return RegistryDeniedError(
            f"{registry} does not show {self.reference} to us (HTTP {answer.status}): "
            f"it is not there, or it needs a login that may read it{problem}.",
            fix=f"docker login {registry}",
            detail=_text(answer.body),
        )


def _basic(login: Login) -> str:
    import urllib3

    headers = urllib3.make_headers(basic_auth=f"{login.username}:{login.password}")
    return headers["authorization"]


def _text(body: bytes) -> str:
    return body[:2000].decode("utf-8", "replace")


def _document(body: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise RegistryAnswerError(
            f"{where} did not answer like a registry: JSON was expected. "
            "A proxy or a login page may stand in between.",
            fix=_CONNECT_FIX,
            detail=_text(body),
        )
    return document


def _say(reason: object) -> str:
    import urllib3

    text = str(reason)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "shows a certificate that this host does not trust"
    if isinstance(reason, urllib3.exceptions.NameResolutionError):
        return "has no address: the name look-up failed"
    if "Connection refused" in text:
        return "refuses connections"
    if isinstance(reason, urllib3.exceptions.NewConnectionError):
        return f"cannot be reached ({text.rpartition(': ')[2]})"
    if isinstance(reason, (urllib3.exceptions.TimeoutError, TimeoutError)):
        return "did not answer in time"
    if isinstance(reason, urllib3.exceptions.ProxyError):
        return f"is out of reach through the proxy ({reason})"
    return f"broke off ({text})"


def _fix_for(reason: object) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(reason):
        return "Name your organisation's certificates: --ca-bundle FILE, or set SSL_CERT_FILE."
    return _CONNECT_FIX


# --- digests ----------------------------------------------------------------------------------


def _checked_digest(answer: Answer, expected: str | None, where: str) -> str:
    """The digest of an answer's body, which must be the one that was announced and asked for."""
    announced = answer.headers.get("docker-content-digest") or None
    wanted = [digest for digest in (expected, announced) if digest is not None]
    for digest in wanted:
        algorithm, _, value = digest.partition(":")
        if algorithm not in {"sha256", "sha512"}:
            raise RegistryAnswerError(
                f"{where} announces an unknown digest, {digest!r}.", fix=_CONNECT_FIX
            )
        found = hashlib.new(algorithm, answer.body).hexdigest()
        if found != value:
            raise RegistryAnswerError(
                f"{where} answered with {algorithm}:{found}, {digest} was needed: "
                "the answer was damaged on its way, or changed by something in between.",
                fix=_CONNECT_FIX,
            )
    return expected or f"sha256:{hashlib.sha256(answer.body).hexdigest()}"


def platforms_of(index: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The (operating system, architecture) pairs that an index offers."""
    found = []
    entries = index.get("manifests")
    for entry in entries if isinstance(entries, list) else []:
        platform = entry.get("platform") if isinstance(entry, dict) else None
        if isinstance(platform, dict):
            pair = (str(platform.get("os")), str(platform.get("architecture")))
            if pair != ("unknown", "unknown"):  # attestations
                found.append(pair)
    return tuple(dict.fromkeys(found))


def _resolve(session: _Session, arch: str) -> str:
    reference = session.reference
    where = str(reference)
    answer = session.get(f"manifests/{reference.pinned}", _ACCEPT)
    digest = _checked_digest(answer, reference.digest, where)
    manifest = _document(answer.body, where)
    content_type = answer.headers.get("content-type", "").partition(";")[0].strip()
    kind = manifest.get("mediaType") or content_type
    if kind in INDEX_TYPES or (kind not in MANIFEST_TYPES and "manifests" in manifest):
        offered = platforms_of(manifest)
    else:
        descriptor = manifest.get("config")
        config_digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
        if not isinstance(config_digest, str) or not _DIGEST.fullmatch(config_digest):
            raise RegistryAnswerError(
                f"{where} is of a kind that cannot be read ({kind or 'no media type'}); "
                "an OCI or Docker version 2 image was needed.",
                fix="Give another base: --base IMAGE, or --base bootstrap for one made here.",
            )
        blob = session.get(f"blobs/{config_digest}", "*/*")
        _checked_digest(
            Answer(status=blob.status, headers={}, body=blob.body), config_digest, where
        )
        config = _document(blob.body, where)
        offered = ((str(config.get("os", "linux")), str(config.get("architecture"))),)
    if ("linux", arch) not in offered:
        listed = ", ".join("/".join(pair) for pair in offered) or "none"
        raise ImageNotFoundError(
            f"{where} does not exist for linux/{arch}; it exists for: {listed}.",
            fix="Give a base that exists for this architecture: --base IMAGE, or --base bootstrap.",
        )
    return digest


def _within(timeout_s: float, work: Callable[[], _T], late: Callable[[], Failure]) -> _T:
    """Do some work in a thread and wait for it no longer than this."""
    results: list[_T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            results.append(work())
        except BaseException as exc:  # noqa: BLE001  raised again in the caller's thread
            errors.append(exc)

    thread = threading.Thread(target=body, name="registry", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if results:
        return results[0]
    raise errors[0] if errors else late()


def resolve_digest(
    reference: str | Reference,
    *,
    arch: str,
    ca_bundle: Path | None = None,
    timeout_s: float = 10.0,
    http: Http | None = None,
    login: Callable[[], Login] | None = None,
) -> str:
    """Say which digest ("sha256:...") an image's tag stands for, once it is seen to fit `arch`.

    It is the digest of the index where there is one, so that one pin serves every architecture.
    `timeout_s` bounds the whole; `http` and `login` stand in for the network and docker's
    configuration.
    """
    parsed = parse_reference(reference) if isinstance(reference, str) else reference
    door = http or open_http(ca_bundle=ca_bundle, timeout_s=timeout_s)
    session = _Session(parsed, door, login or (lambda: read_login(parsed.registry)))
    return _within(
        timeout_s,
        lambda: _resolve(session, _ARCH.get(arch, arch)),
        lambda: RegistryUnreachableError(
            f"The registry {parsed.registry} gave no full answer about {parsed} "
            f"within {timeout_s:g} s.",
            fix=_CONNECT_FIX,
        ),
    )
