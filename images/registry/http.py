"""HTTP as this host must speak it: its proxies, its certificates, and no endless waits."""

from __future__ import annotations

import ssl
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from images.registry.errors import BadCaBundle

if TYPE_CHECKING:
    import urllib3

MAX_BYTES = 4 * 1024 * 1024
"""The largest manifest that the specification tells registries to accept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One finished HTTP exchange."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class Http(Protocol):
    """The one way to the network; tests put their own in its place."""

    def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None, /
    ) -> Answer: ...


def tls_context(ca_bundle: Path | None) -> ssl.SSLContext:
    """The system's authorities, and those of a bundle. BadCaBundle: it cannot be read."""
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


def pool_for(url: str, context: ssl.SSLContext, *, connections: int = 1) -> urllib3.PoolManager:
    """Connections to one address, through the proxy that the environment names for it.

    `connections`: how many are kept for the next request.
    """
    return open_pool(proxy_for(url), context, connections=connections)


def open_pool(
    proxy: str | None, context: ssl.SSLContext, *, connections: int = 1
) -> urllib3.PoolManager:
    """Connections through a proxy, or without one."""
    import urllib3

    if proxy is None:
        return urllib3.PoolManager(maxsize=connections, ssl_context=context)
    parts = urllib.parse.urlsplit(proxy)
    login = ":".join(urllib.parse.unquote(part or "") for part in (parts.username, parts.password))
    headers = urllib3.make_headers(proxy_basic_auth=login) if parts.username else None
    return urllib3.ProxyManager(
        proxy,
        maxsize=connections,
        ssl_context=context,
        proxy_ssl_context=context,
        proxy_headers=headers,
    )


def open_http(*, ca_bundle: Path | None, timeout_s: float) -> Http:
    """Make an HTTP client: proxies and certificates as the environment says, and one retry."""
    import urllib3

    context = tls_context(ca_bundle)
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
        with pool_for(url, context) as pool:
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
                data = response.read(MAX_BYTES + 1)
            finally:
                response.release_conn()
            names = {name.lower(): value for name, value in response.headers.items()}
            return Answer(status=response.status, headers=names, body=data)

    return http
