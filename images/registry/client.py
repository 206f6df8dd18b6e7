"""The exchange with a registry: tokens, redirects, and what its refusals mean."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from images.printable import printable
from images.registry.auth import Challenge, Login, parse_challenges, token_request
from images.registry.errors import (
    CONNECT_FIX,
    ImageNotFoundError,
    RegistryAnswerError,
    RegistryDeniedError,
    RegistryUnreachableError,
)
from images.registry.http import MAX_BYTES, Answer, Http
from images.registry.reference import Reference, is_loopback

_MAX_REDIRECTS = 4


class RepositoryClient:
    """Asks one registry about one repository, and logs in when it is told to."""

    def __init__(self, reference: Reference, http: Http, login: Callable[[], Login]) -> None:
        self.reference = reference
        self._http = http
        self._read_login = login
        self._problem = ""
        self._authorization: str | None = None
        scheme = "http" if reference.is_loopback else "https"
        self._root = f"{scheme}://{reference.host}/v2/{reference.repository}"

    def get(self, path: str, accept: str) -> Answer:
        """Get something of the repository, such as "manifests/latest", or raise why not."""
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
            # the login is for the registry alone, not for the storage that it redirects to
            if self._authorization and (here.scheme, here.netloc) == (first.scheme, first.netloc):
                headers["Authorization"] = self._authorization
            answer = self._send("GET", url, headers)
            if answer.status not in {301, 302, 303, 307, 308}:
                return answer
            target = urllib.parse.urljoin(url, answer.headers.get("location", ""))
            scheme = urllib.parse.urlsplit(target).scheme
            if scheme not in {"http", "https"} or (here.scheme, scheme) == ("https", "http"):
                raise RegistryAnswerError(
                    f"{url} redirects to {target or 'nowhere'}, which is not followed.",
                    fix=CONNECT_FIX,
                )
            url = target
        raise RegistryAnswerError(
            f"{self.reference.host} redirects more than {_MAX_REDIRECTS} times.", fix=CONNECT_FIX
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
                f"{host} {describe(reason)}.",
                fix=fix_for(reason),
                detail=str(exc),
            ) from exc
        if len(answer.body) > MAX_BYTES:
            raise RegistryAnswerError(
                f"{url} answered with more than {MAX_BYTES} bytes; a manifest is smaller.",
                fix=CONNECT_FIX,
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
            return login.basic()
        raise self._denied(refused)

    def _token(self, challenge: Challenge, login: Login) -> str:
        realm = challenge.parameters["realm"]
        check_realm(realm, self.reference)
        scope = f"repository:{self.reference.repository}:pull"
        request = token_request(
            challenge, login, (challenge.parameters.get("scope") or scope).split(" ")
        )
        answer = self._send(request.method, request.url, request.headers, request.body)
        self._judge(answer, realm)
        document = parse_json_object(answer.body, realm)
        token = document.get("token") or document.get("access_token")
        if not isinstance(token, str) or not token:
            raise RegistryAnswerError(f"{realm} answered without a token.", fix=CONNECT_FIX)
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
                fix="Check the name and the tag; tags of old images get removed.",
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
            fix=f"Try again later. {CONNECT_FIX}",
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


def check_realm(realm: str, reference: Reference) -> None:
    """Refuse an address for logins that is not encrypted, unless both ends are this machine."""
    try:
        parts = urllib.parse.urlsplit(realm)
        near = reference.is_loopback and is_loopback(parts.hostname or "")
    except ValueError:
        near, parts = False, urllib.parse.urlsplit("")
    if not (parts.scheme == "https" and parts.hostname) and not (near and parts.scheme == "http"):
        raise RegistryAnswerError(
            f"{reference.registry} wants the login sent to {printable(realm[:200])}, "
            "which is not encrypted; this is not done.",
            fix=CONNECT_FIX,
        )


def _text(body: bytes) -> str:
    return body[:2000].decode("utf-8", "replace")


def parse_json_object(body: bytes, where: str) -> dict[str, Any]:
    """Read an answer that must be a JSON object; `where` is who gave it."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise RegistryAnswerError(
            f"{where} did not answer like a registry: JSON was expected. "
            "A proxy or a login page may stand in between.",
            fix=CONNECT_FIX,
            detail=_text(body),
        )
    return document


def describe(reason: object) -> str:
    """Say what went wrong on the way to a host, as the rest of a sentence that names it."""
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


def fix_for(reason: object, otherwise: str = CONNECT_FIX) -> str:
    """Say what helps against it."""
    if "CERTIFICATE_VERIFY_FAILED" in str(reason):
        return "Name your organisation's certificates: --ca-bundle FILE, or set SSL_CERT_FILE."
    return otherwise
