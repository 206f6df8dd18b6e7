"""Names of images: docker's rules, and what is refused."""

from __future__ import annotations

import pytest

from images.registry import BadReference, parse_reference

HEX = "0123456789abcdef" * 4
DIGEST = f"sha256:{HEX}"


@pytest.mark.parametrize(
    ("text", "registry_name", "repository", "tag", "digest"),
    [
        pytest.param("debian", "docker.io", "library/debian", "latest", None, id="a bare name"),
        pytest.param("debian:12", "docker.io", "library/debian", "12", None, id="a name and a tag"),
        pytest.param("nvidia/cuda:1.2-x", "docker.io", "nvidia/cuda", "1.2-x", None, id="an owner"),
        pytest.param(
            "index.docker.io/a", "docker.io", "library/a", "latest", None, id="the old host"
        ),
        pytest.param(
            "nvcr.io/nvidia/k/p:24", "nvcr.io", "nvidia/k/p", "24", None, id="a deep path"
        ),
        pytest.param("localhost/a", "localhost", "a", "latest", None, id="localhost is a host"),
        pytest.param("h:5000/a", "h:5000", "a", "latest", None, id="a port makes a host"),
        pytest.param("[::1]:5000/a:b", "[::1]:5000", "a", "b", None, id="an IPv6 address"),
        pytest.param("Host/a", "Host", "a", "latest", None, id="upper case makes a host"),
        pytest.param(f"a@{DIGEST}", "docker.io", "library/a", None, DIGEST, id="a digest alone"),
        pytest.param(f"r.io/a:1@{DIGEST}", "r.io", "a", "1", DIGEST, id="a tag and a digest"),
        pytest.param("a__b/c-d.e:T_1", "docker.io", "a__b/c-d.e", "T_1", None, id="separators"),
    ],
)
def test_a_name_is_read_by_dockers_rules(
    text: str, registry_name: str, repository: str, tag: str | None, digest: str | None
) -> None:
    found = parse_reference(text)
    assert (found.registry, found.repository) == (registry_name, repository)
    assert (found.tag, found.digest) == (tag, digest)
    assert parse_reference(str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param(" debian", id="a space"),
        pytest.param("https://docker.io/debian", id="a scheme"),
        pytest.param("Debian", id="upper case in the path"),
        pytest.param("debian:", id="an empty tag"),
        pytest.param("debian:a b", id="a space in the tag"),
        pytest.param(f"debian:{'x' * 129}", id="a tag that is too long"),
        pytest.param("debian@sha256:abc", id="a short digest"),
        pytest.param("debian@", id="an empty digest"),
        pytest.param(f"debian@md5:{HEX}", id="another algorithm"),
        pytest.param("a//b", id="an empty part"),
        pytest.param("-a/b", id="a leading dash"),
        pytest.param("host.:80/x", id="a host with an empty label"),
        pytest.param("h:port/x", id="a port that is no number"),
        pytest.param("../etc/passwd", id="dots"),
        pytest.param("a/b\n:c", id="a newline"),
        pytest.param("debian:1\n", id="a newline at the end"),
        pytest.param("/".join(["a" * 50] * 6), id="too long"),
        pytest.param("debian:\u0661", id="a digit that is not ASCII"),
    ],
)
def test_what_is_no_name_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadReference) as caught:
        parse_reference(text)
    assert caught.value.exit_code == 2
    assert "debian:12-slim" in caught.value.fix
