"""Names of images: docker's rules, and what is refused."""

from __future__ import annotations

import pytest

from images.oci.errors import BadReference
from images.oci.reference import parse_reference
from tests.kit.cases import cases

HEX = "0123456789abcdef" * 4
DIGEST = f"sha256:{HEX}"


@cases(
    "text registry_name repository tag digest",
    ("a bare name", "debian", "docker.io", "library/debian", "latest", None),
    ("a name and a tag", "debian:12", "docker.io", "library/debian", "12", None),
    ("an owner", "nvidia/cuda:1.2-x", "docker.io", "nvidia/cuda", "1.2-x", None),
    ("the old host", "index.docker.io/a", "docker.io", "library/a", "latest", None),
    ("a deep path", "nvcr.io/nvidia/k/p:24", "nvcr.io", "nvidia/k/p", "24", None),
    ("localhost is a host", "localhost/a", "localhost", "a", "latest", None),
    ("a port makes a host", "h:5000/a", "h:5000", "a", "latest", None),
    ("an IPv6 address", "[::1]:5000/a:b", "[::1]:5000", "a", "b", None),
    ("upper case makes a host", "Host/a", "Host", "a", "latest", None),
    ("a digest alone", f"a@{DIGEST}", "docker.io", "library/a", None, DIGEST),
    ("a tag and a digest", f"r.io/a:1@{DIGEST}", "r.io", "a", "1", DIGEST),
    ("separators", "a__b/c-d.e:T_1", "docker.io", "a__b/c-d.e", "T_1", None),
)
def test_a_name_is_read_by_dockers_rules(
    text: str, registry_name: str, repository: str, tag: str | None, digest: str | None
) -> None:
    found = parse_reference(text)
    assert (found.registry, found.repository) == (registry_name, repository)
    assert (found.tag, found.digest) == (tag, digest)
    assert parse_reference(str(found)) == found


@cases(
    "text",
    ("nothing", ""),
    ("a space", " debian"),
    ("a scheme", "https://docker.io/debian"),
    ("upper case in the path", "Debian"),
    ("an empty tag", "debian:"),
    ("a space in the tag", "debian:a b"),
    ("a tag that is too long", f"debian:{'x' * 129}"),
    ("a short digest", "debian@sha256:abc"),
    ("an empty digest", "debian@"),
    ("another algorithm", f"debian@md5:{HEX}"),
    ("an empty part", "a//b"),
    ("a leading dash", "-a/b"),
    ("a host with an empty label", "host.:80/x"),
    ("a port that is no number", "h:port/x"),
    ("dots", "../etc/passwd"),
    ("a newline", "a/b\n:c"),
    ("a newline at the end", "debian:1\n"),
    ("too long", "/".join(["a" * 50] * 6)),
    ("a digit that is not ASCII", "debian:\u0661"),
)
def test_what_is_no_name_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadReference) as caught:
        parse_reference(text)
    assert caught.value.exit_code == 2
    assert "debian:12-slim" in caught.value.fix
