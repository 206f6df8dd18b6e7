"""Network access to the indexes: the CA bundles and logins that a build needs."""

from __future__ import annotations

import functools
import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from images.net.address import shown_url, url_secrets
from images.net.connections import proxy_for
from images.net.secrets import Secrets
from provision.errors import BadInputError
from provision.host.indexes import pip_index
from provision.host.uv import index_logins
from provision.output.files import read_named

# In the order in which a user would expect one to override the next.
_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE")

# Where systems keep the authorities that they trust, including a company's own: Debian, Fedora,
# SUSE, Red Hat, Alpine. pip, curl and Docker read these; uv does not by itself.
SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
)

_CA_LIMIT = 16 << 20
_CA_FIX = "Name a file of PEM certificates, such as /etc/ssl/certs/ca-certificates.crt"


def ca_bundle(
    option: str | None, env: Mapping[str, str], *, system: Iterable[str] = SYSTEM_BUNDLES
) -> Path | None:
    """The named bundle; else the first existing one that the environment names; else the system's.
    BadInputError: the named one does not exist.
    """
    if option is not None:
        path = Path(option)
        data = read_named("file", path, _CA_LIMIT, BadInputError, _CA_FIX, option="--ca-bundle")
        if b"-----BEGIN CERTIFICATE-----" not in data:
            raise BadInputError(f"--ca-bundle {path} holds no PEM certificate.", fix=_CA_FIX)
        return path
    named = (value for name in _CA_VARIABLES if (value := env.get(name)))
    return next((Path(name) for name in (*named, *system) if _is_readable_file(name)), None)


def _is_readable_file(name: str) -> bool:
    try:
        return Path(name).is_file() and os.access(name, os.R_OK)
    except OSError:  # a name that is too long, say
        return False


@functools.lru_cache(maxsize=64)
def no_such_host(url: str) -> str | None:
    """Why nothing at this address can be asked: its host has no address. None: it has one, or a
    proxy looks it up, or the question failed for now.
    """
    host = urlsplit(url).hostname
    if not host or proxy_for(url):
        return None
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        names = error.errno == socket.EAI_NONAME
        return f"failed to lookup address information: {error.strerror}" if names else None
    except (OSError, UnicodeError):
        return None
    return None


def make_secrets(
    *,
    ca: Path | None,
    index: str | None,
    hosts: Iterable[str],
    env: Mapping[str, str],
    addresses: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
) -> Secrets:
    """What the build must see to download: the CA bundle, logins for the lock's hosts only, and
    whole addresses of wheels. `names` of indexes -> their addresses.
    """
    default = env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or pip_index(env) or ""
    named = (default, index or "")
    wanted = {*hosts, *(urlsplit(url).hostname for url in named)}
    known = index_logins(env, names or {}, *named)
    logins = {host: login for host, login in known.items() if host in wanted}
    words = {word for url in named for word in url_secrets(url)}
    words |= {word or user for user, word in logins.values()}
    words.update(word for url in addresses for word in url_secrets(url))
    return Secrets(
        addresses={shown_url(url): url for url in addresses},
        ca_bundle=ca.read_text(encoding="utf-8", errors="replace") if ca else "",
        netrc="".join(
            f"machine {host} login {_netrc_word(user)} password {_netrc_word(word)}\n"
            for host, (user, word) in sorted(logins.items())
        ),
        pip_index=default,
        values=tuple(sorted(words)),
    )


def _netrc_word(text: str) -> str:
    """The word as a netrc file needs it: quoted if it has a blank, a quote or the like."""
    if re.fullmatch(r"[\w.@:/+~=!$%&*-]+", text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
