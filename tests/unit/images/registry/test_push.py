"""Pushing to a registry: what is sent, how it goes on where it broke, and what is not believed."""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from images.errors import Failure
from images.net.retries import Retries
from images.oci.errors import BadReference, DigestMismatchError
from images.oci.model import CONFIG, LAYER_GZIP, MANIFEST, Descriptor, descriptor_of, to_bytes
from images.oci.sources import Stream, Unpacked, Written
from images.registry.auth import Login
from images.registry.errors import (
    PushRefusedError,
    RegistryAnswerError,
    RegistryDeniedError,
    RegistryUnreachableError,
)
from images.registry.target import RegistryTarget
from tests.kit.cases import cases
from tests.kit.fake_push_registry import PushRegistry, digest_of, errors

MB = 1 << 20
HASTY = Retries(tries=3, first_wait_s=0.001, longest_wait_s=0.01)
BRIEF = Retries(
    connect_s=5.0, silence_s=0.6, answer_s=0.6, commit_s=0.6, tries=2, first_wait_s=0.001
)
"""For what never answers; the rest may take as long as a busy machine makes it."""
UNPACKED = Unpacked(diff_id=f"sha256:{'1' * 64}", size=7)


class Layer:
    """A layer of made-up bytes; it counts how often it was made."""

    def __init__(self, size: int, piece: int = 100_000, seed: bytes = b"x") -> None:
        block = hashlib.sha256(seed).digest() * 4096
        self.content = (block * (size // len(block) + 1))[:size]
        self.piece = piece
        self.opened = 0
        self.closed = 0
        self.at_most: int | None = None

    def __call__(self) -> Stream:
        self.opened += 1
        try:
            for at in range(0, len(self.content), self.piece):
                yield self.content[at : at + self.piece]
        finally:
            self.closed += 1
        return UNPACKED

    @property
    def blob(self) -> Descriptor:
        return descriptor_of(LAYER_GZIP, self.content)


@pytest.fixture
def server() -> Iterator[PushRegistry]:
    fake = PushRegistry()
    yield fake
    fake.close()


Opener = Callable[..., RegistryTarget]


@pytest.fixture
def target(server: PushRegistry) -> Iterator[RegistryTarget]:
    opened = open_target(server)
    yield opened
    opened.close()


def open_target(server: PushRegistry, **more: Any) -> RegistryTarget:
    more = {"login": Login, "retries": HASTY, **more}
    return RegistryTarget.open(f"{server.address}/team/app:1", **more)


def write(
    target: RegistryTarget, layer: Layer, *, known: bool = True, told: list[int] | None = None
) -> Written:
    heard: list[int] = [] if told is None else told
    expected = layer.blob if known else None
    return target.write(layer, expected=expected, on_bytes=heard.append)


def has(server: PushRegistry, layer: Layer) -> bool:
    return server.blobs.get(("team/app", layer.blob.digest)) == layer.content


# --- what is sent ---


@pytest.mark.parametrize("size", [0, 1, 99_999, 100_000, 100_001, 3 * MB + 5])
@pytest.mark.parametrize("known", [True, False], ids=["known before", "not known before"])
def test_a_layer_arrives(
    server: PushRegistry,
    target: RegistryTarget,
    size: int,
    known: bool,  # noqa: FBT001
) -> None:
    layer, told = Layer(size), list[int]()
    written = write(target, layer, known=known, told=told)
    assert has(server, layer)
    assert written == Written(digest=layer.blob.digest, size=size, unpacked=UNPACKED)
    assert sum(told) == size
    assert [one.method for one in server.seen] == ["POST", "PATCH", "PUT"]
    assert layer.opened == layer.closed == 1
    assert not server.uploads


def test_a_layer_is_sent_in_one_chunked_request(
    server: PushRegistry, target: RegistryTarget
) -> None:
    write(target, Layer(2 * MB))
    patch = next(one for one in server.seen if one.method == "PATCH")
    assert patch.headers["transfer-encoding"] == "chunked"
    assert "content-range" not in patch.headers


def test_connections_are_kept(server: PushRegistry, target: RegistryTarget) -> None:
    for n in range(3):
        layer = Layer(1000 + n)
        assert not target.has(layer.blob)
        write(target, layer)
    target.publish(to_bytes({"n": 1}), MANIFEST, name="1")
    assert len({one.connection for one in server.seen}) == 1


def test_several_threads_write_at_once(server: PushRegistry, target: RegistryTarget) -> None:
    layers = [Layer(700_000 + n, seed=bytes([n])) for n in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda layer: write(target, layer), layers))
    assert all(has(server, layer) for layer in layers)


def test_what_is_there_is_asked_for_once(server: PushRegistry, target: RegistryTarget) -> None:
    layer = Layer(5)
    server.blobs["team/app", layer.blob.digest] = layer.content
    assert target.has(layer.blob)
    assert target.has(layer.blob)
    assert server.count("HEAD") == 1


def test_what_was_written_is_not_asked_for(server: PushRegistry, target: RegistryTarget) -> None:
    layer = Layer(5)
    write(target, layer)
    assert target.has(layer.blob)
    assert server.count("HEAD") == 0


@cases(
    "status headers expected",
    ("404 is not there", 404, {}, False),
    ("no answer to HEAD is not there", 405, {}, False),
    ("another", 200, {"Docker-Content-Digest": f"sha256:{'0' * 64}"}, False),
)
def test_a_blob_is_there_only_when_it_is_this_one(
    server: PushRegistry, target: RegistryTarget, status: int, headers: dict[str, str],
    expected: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    server.rule("HEAD", "blobs", status=status, headers=headers)
    assert target.has(Layer(0).blob) is expected


def test_a_blob_of_another_size_is_not_there(server: PushRegistry, target: RegistryTarget) -> None:
    layer = Layer(5)
    server.blobs["team/app", layer.blob.digest] = layer.content[:4]
    assert not target.has(layer.blob)


def test_a_blob_behind_a_storage_is_there(server: PushRegistry, target: RegistryTarget) -> None:
    layer = Layer(5)
    server.blobs["team/app", layer.blob.digest] = layer.content
    server.storage = f"http://localhost:{server.port}"
    assert target.has(layer.blob)


def test_a_small_blob_is_sent_once(server: PushRegistry, target: RegistryTarget) -> None:
    for _ in range(2):
        assert target.write_bytes(b"{}", CONFIG) == descriptor_of(CONFIG, b"{}")
    assert server.count("PUT") == 1


# --- mounts ---


def test_a_mount_sends_nothing(server: PushRegistry, target: RegistryTarget) -> None:
    layer = Layer(5)
    server.blobs["team/base", layer.blob.digest] = layer.content
    assert target.mount(layer.blob, "team/base")
    assert has(server, layer)
    assert target.has(layer.blob)
    assert len(server.seen) == 1
    assert server.seen[0].query == {"mount": layer.blob.digest, "from": "team/base"}


def test_the_upload_of_a_mount_that_failed_is_used(
    server: PushRegistry, target: RegistryTarget
) -> None:
    layer = Layer(5)
    assert not target.mount(layer.blob, "team/base")
    write(target, layer)
    assert has(server, layer)
    assert server.count("POST") == 1


def test_the_upload_of_a_mount_that_is_not_used_is_cancelled(
    server: PushRegistry, target: RegistryTarget
) -> None:
    assert not target.mount(Layer(5).blob, "team/base")
    assert server.uploads
    target.close()
    assert not server.uploads


@pytest.mark.parametrize("status", [400, 403, 404, 405])
def test_a_registry_without_mounts_is_pushed_to(
    server: PushRegistry, target: RegistryTarget, status: int
) -> None:
    server.rule("POST", "uploads", status=status)
    assert not target.mount(Layer(5).blob, "team/base")


def test_a_mount_of_other_bytes_is_not_believed(
    server: PushRegistry, target: RegistryTarget
) -> None:
    told = {"Docker-Content-Digest": digest_of(b"other")}
    server.rule("POST", "uploads", status=201, headers=told)
    with pytest.raises(RegistryAnswerError, match="says that it has"):
        target.mount(Layer(5).blob, "team/base")


# --- going on where it broke ---


@pytest.mark.parametrize("known", [True, False], ids=["known before", "not known before"])
def test_an_upload_goes_on_where_it_broke(
    server: PushRegistry,
    target: RegistryTarget,
    known: bool,  # noqa: FBT001
) -> None:
    layer, told = Layer(6 * MB), list[int]()
    server.rule("PATCH", "uploads", cut_after=4 * MB)
    write(target, layer, known=known, told=told)
    assert has(server, layer)
    assert sum(told) == len(layer.content)
    assert server.count("POST") == 1
    ranges = [one.headers.get("content-range") for one in server.seen if one.method == "PATCH"]
    assert ranges == [None, f"{4 * MB}-{6 * MB - 1}"]
    sent = sum(one.body_bytes for one in server.seen if one.method == "PATCH")
    assert sent == len(layer.content)


def test_an_upload_that_breaks_often_but_gets_on_is_gone_on_with(
    server: PushRegistry, target: RegistryTarget
) -> None:
    layer = Layer(12 * MB)
    server.rule("PATCH", "uploads", cut_after=2 * MB, times=5)
    write(target, layer)
    assert has(server, layer)


def test_an_upload_that_does_not_get_on_is_given_up(
    server: PushRegistry, target: RegistryTarget
) -> None:
    layer = Layer(6 * MB)
    server.rule("PATCH", "uploads", cut_after=3 * MB)
    server.rule("PATCH", "uploads", cut_after=1, times=99)
    with pytest.raises(RegistryUnreachableError) as caught:
        write(target, layer)
    assert f"{3 * MB + 2} of {6 * MB} bytes had arrived" in caught.value.message
    assert "failed 3 times" in caught.value.message
    assert not server.blobs
    assert server.count("PATCH") == 4


def test_a_registry_that_forgets_gets_it_anew(server: PushRegistry, target: RegistryTarget) -> None:
    layer, told = Layer(3 * MB), list[int]()
    server.forgets = True
    server.rule("PATCH", "uploads", cut_after=2 * MB)
    write(target, layer, told=told)
    assert has(server, layer)
    assert server.count("POST") == 2
    assert sum(told) == len(layer.content)


def test_what_broke_twice_at_a_place_is_sent_in_parts(
    server: PushRegistry, target: RegistryTarget
) -> None:
    layer = Layer(20 * MB)
    server.rule("PATCH", "uploads", cut_after=100_000, times=2)
    write(target, layer)
    assert has(server, layer)
    ranges = [one.headers.get("content-range", "") for one in server.seen if one.method == "PATCH"]
    assert ranges[-2:] == [f"200000-{199_999 + 16 * MB}", f"{200_000 + 16 * MB}-{20 * MB - 1}"]


@cases(
    "largest parts", ("16 MB pass", 18 * MB, 2), ("4 MB pass", 5 * MB, 5), ("1 MB passes", MB, 20)
)
def test_a_limit_for_bodies_is_kept(
    server: PushRegistry, target: RegistryTarget, largest: int, parts: int
) -> None:
    server.max_body = largest
    layer = Layer(20 * MB)
    write(target, layer)
    assert has(server, layer)
    whole = [one for one in server.seen if one.method == "PATCH" and "content-range" in one.headers]
    assert len(whole) >= parts


def test_a_limit_too_small_is_refused(server: PushRegistry, target: RegistryTarget) -> None:
    server.max_body = 1000
    with pytest.raises(PushRefusedError, match="413") as caught:
        write(target, Layer(2 * MB))
    assert "client_max_body_size" in caught.value.fix


def test_the_least_part_of_a_registry_is_kept(server: PushRegistry, target: RegistryTarget) -> None:
    server.chunk_min = 20 * MB
    server.rule("PATCH", "uploads", cut_after=100_000)
    write(target, Layer(21 * MB), known=False)
    last = [one.headers.get("content-range", "") for one in server.seen if one.method == "PATCH"]
    assert last[-2] == f"100000-{99_999 + 20 * MB}"


def test_a_registry_that_takes_less_than_it_was_sent_gets_the_rest(
    server: PushRegistry, target: RegistryTarget
) -> None:
    server.takes_at_most = 2 * MB
    layer = Layer(5 * MB)
    write(target, layer)
    assert has(server, layer)


@pytest.mark.parametrize(
    "how", [{"cut_answer": True}, {"status": 503, "times": 2}], ids=["its answer", "the request"]
)
def test_a_lost_end_does_not_cost_the_body(
    server: PushRegistry, target: RegistryTarget, how: dict[str, Any]
) -> None:
    layer = Layer(50_000)
    server.rule("PUT", "uploads", **how)
    write(target, layer)
    assert has(server, layer)
    assert server.count("PATCH") == 1


@cases(
    "method how",
    ("503 at the begin", "POST", {"status": 503}),
    ("429", "POST", {"status": 429, "headers": {"Retry-After": "1"}}),
    ("broken at the begin", "POST", {"cut_answer": True}),
    ("500 in the middle", "PATCH", {"status": 500}),
    ("416 in the middle", "PATCH", {"status": 416}),
    ("404 in the middle", "PATCH", {"status": 404}),
    ("the answer to the body is lost", "PATCH", {"cut_answer": True}),
    ("400 at the end, once", "PUT", {"status": 400}),
    ("404 at the end", "PUT", {"status": 404}),
)
@pytest.mark.parametrize("forgets", [False, True], ids=["it remembers", "it forgets"])
def test_one_trouble_is_overcome(
    server: PushRegistry, target: RegistryTarget, method: str, how: dict[str, Any],
    forgets: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    layer = Layer(2 * MB)
    server.forgets = forgets
    server.rule(method, "uploads", **how)
    write(target, layer)
    assert has(server, layer)


def test_a_registry_that_stops_reading_is_left(server: PushRegistry) -> None:
    target = open_target(server, retries=BRIEF)
    server.rule("PATCH", "uploads", stall_after=1000, times=99)
    started = time.monotonic()
    with pytest.raises(RegistryUnreachableError, match="in time"):
        write(target, Layer(30 * MB))
    assert time.monotonic() - started < 60
    target.close()


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT", "HEAD"])
@pytest.mark.parametrize("how", ["hang", "drip"])
def test_nothing_waits_for_ever(server: PushRegistry, method: str, how: str) -> None:
    target = open_target(server, retries=BRIEF)
    server.rule(method, "", times=99, **{how: True})
    started = time.monotonic()
    with pytest.raises(RegistryUnreachableError, match=r"in time|did not confirm"):
        target.write_bytes(b"{}", CONFIG)
    assert time.monotonic() - started < 60
    target.close()


def test_who_is_waited_for_is_told(server: PushRegistry) -> None:
    told: list[str] = []
    target = open_target(server, retries=Retries(tries=4, on_wait=told.append))
    slept: list[float] = []
    target._session.sleep = slept.append
    server.rule("POST", "", times=3, status=429, headers={"Retry-After": "100"})
    target.write_bytes(b"{}", CONFIG)
    target.close()
    assert len(slept) == 3
    assert max(slept) <= 20
    assert len(told) == 3
    assert all(f"{server.address} answered HTTP 429" in text for text in told)
    assert all("trying again in" in text for text in told)


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
@pytest.mark.parametrize("how", ["hang", "drip"])
@pytest.mark.parametrize("forgets", [False, True], ids=["it remembers", "it forgets"])
def test_one_silence_is_overcome(
    server: PushRegistry,
    method: str,
    how: str,
    forgets: bool,  # noqa: FBT001
) -> None:
    target = open_target(server, retries=replace(BRIEF, tries=4, answer_s=1.0, silence_s=2.0))
    server.forgets = forgets
    server.rule(method, "uploads", **{how: True})
    layer = Layer(MB)
    write(target, layer)
    assert has(server, layer)
    target.close()


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(
    cuts=st.lists(st.integers(1, 5 * MB), max_size=6),
    piece=st.integers(1000, 3 * MB),
    forgets=st.booleans(),
    known=st.booleans(),
)
def test_whatever_breaks_what_arrives_is_whole(
    cuts: list[int],
    piece: int,
    forgets: bool,  # noqa: FBT001
    known: bool,  # noqa: FBT001
) -> None:
    server = PushRegistry()
    server.forgets = forgets
    for cut in cuts:
        server.rule("PATCH", "uploads", cut_after=cut)
    target = open_target(server, retries=Retries(tries=9, first_wait_s=0, answer_s=5))
    layer, told = Layer(4 * MB + 3, piece), list[int]()
    written = write(target, layer, known=known, told=told)
    assert has(server, layer)
    assert written.digest == layer.blob.digest
    assert sum(told) == len(layer.content)
    assert min(told) > 0
    assert layer.opened == layer.closed
    target.close()
    server.close()


# --- what is not believed, and what is refused ---


def test_other_bytes_than_expected_are_not_committed(
    server: PushRegistry, target: RegistryTarget
) -> None:
    other = Layer(3 * MB, seed=b"y")
    with pytest.raises(DigestMismatchError):
        target.write(other, expected=Layer(3 * MB).blob, on_bytes=lambda _: None)
    assert not server.blobs
    assert not server.uploads
    assert server.count("PUT") == 0
    assert server.count("DELETE") == 1


@pytest.mark.parametrize("size", [MB, 3 * MB], ids=["fewer", "more"])
@pytest.mark.parametrize("cut", [None, MB // 2], ids=["in one go", "after a break"])
def test_fewer_or_more_bytes_than_expected_are_not_committed(
    server: PushRegistry, target: RegistryTarget, size: int, cut: int | None
) -> None:
    if cut:
        server.rule("PATCH", "uploads", cut_after=cut)
    with pytest.raises(DigestMismatchError):
        target.write(Layer(size), expected=Layer(2 * MB).blob, on_bytes=lambda _: None)
    assert not server.blobs
    assert server.count("PUT") == 0


def test_a_source_without_an_end_is_stopped(server: PushRegistry, target: RegistryTarget) -> None:
    def stream() -> Stream:
        yield from itertools.repeat(b"x" * MB)
        return UNPACKED

    with pytest.raises(DigestMismatchError):
        target.write(stream, expected=Layer(2 * MB).blob, on_bytes=lambda _: None)
    assert sum(one.body_bytes for one in server.seen) <= 2 * MB


def test_a_source_that_changes_between_two_tries_is_not_committed(
    server: PushRegistry, target: RegistryTarget
) -> None:
    made = iter([Layer(3 * MB), Layer(MB), Layer(MB)])

    def stream() -> Stream:
        return next(made)()

    server.rule("PATCH", "uploads", cut_after=2 * MB)
    with pytest.raises(DigestMismatchError, match="was longer before"):
        target.write(stream, expected=None, on_bytes=lambda _: None)
    assert not server.blobs


@pytest.mark.parametrize(
    "error", [OSError(5, "Input/output error"), BrokenPipeError(), KeyboardInterrupt()], ids=repr
)
def test_a_source_that_fails_is_no_broken_connection(
    server: PushRegistry, target: RegistryTarget, error: BaseException
) -> None:
    def stream() -> Stream:
        yield b"x" * MB
        raise error

    with pytest.raises(type(error)) as caught:
        target.write(stream, expected=None, on_bytes=lambda _: None)
    assert caught.value is error
    # a connection that broke would be followed by a question, or by an upload begun anew
    assert (server.count("POST"), server.count("GET")) == (1, 0)
    assert server.count("PATCH") <= 1
    assert not server.blobs


@pytest.mark.parametrize("known", [True, False])
def test_a_registry_that_lies_about_a_blob_is_not_believed(
    server: PushRegistry,
    target: RegistryTarget,
    known: bool,  # noqa: FBT001
) -> None:
    server.lies = digest_of(b"other")
    with pytest.raises(RegistryAnswerError, match="is not what was sent"):
        write(target, Layer(5), known=known)


def test_a_registry_that_does_not_name_the_digest_is_asked(
    server: PushRegistry, target: RegistryTarget
) -> None:
    server.lies = "silent"
    layer = Layer(5)
    write(target, layer)
    assert server.count("HEAD") == 1
    target.publish(b"{}", MANIFEST, name="1")
    assert server.count("HEAD", "manifests") == 1


def test_a_registry_that_took_nothing_is_not_believed(
    server: PushRegistry, target: RegistryTarget
) -> None:
    server.rule("PUT", "uploads", status=201, times=9)
    with pytest.raises(RegistryAnswerError, match="nothing by that digest"):
        write(target, Layer(5))


def test_a_registry_that_says_it_has_more_than_was_sent_gets_it_anew(
    server: PushRegistry, target: RegistryTarget
) -> None:
    server.rule("PATCH", "uploads", cut_after=1000)
    location = {"Location": "/v2/team/app/blobs/uploads/x", "Range": "0-9999999"}
    server.rule("GET", "uploads", status=204, headers=location)
    layer = Layer(MB)
    write(target, layer)
    assert has(server, layer)
    assert server.count("POST") == 2


def test_damage_on_the_way_is_told(server: PushRegistry, target: RegistryTarget) -> None:
    server.rule("PUT", "uploads", status=400, body=errors("DIGEST_INVALID", "not it"), times=9)
    with pytest.raises(PushRefusedError, match="not it"):
        write(target, Layer(5))
    assert server.count("PATCH") == 2


@cases(
    "status body expected words",
    ("401 without a challenge", 401, b"", RegistryDeniedError, "docker login"),
    ("403", 403, errors("DENIED", "no push"), RegistryDeniedError, "no push"),
    ("404 is a repository to be created", 404, errors("NAME_UNKNOWN", "no such repository"),
     PushRefusedError, "Create the repository team/app"),
    ("413", 413, b"<html>", PushRefusedError, "larger bodies"),
    ("429", 429, b"slow down", RegistryDeniedError, "rate-limiting"),
    ("a quota", 400, errors("UNSUPPORTED", "quota of team used up"), PushRefusedError,
     "Free space"),
    ("507", 507, b"", PushRefusedError, "Free space"),
    ("500 again and again", 500, b"", RegistryUnreachableError, "HTTP 500"),
    ("a page", 200, b"<html>log in</html>", RegistryAnswerError, "login page"),
    ("a redirect of a POST", 302, b"", RegistryAnswerError, "login page"),
)  # fmt: skip
def test_each_refusal_of_a_blob_says_what_to_do(
    server: PushRegistry, target: RegistryTarget, status: int, body: bytes,
    expected: type[Failure], words: str,
) -> None:  # fmt: skip
    server.rule("POST", "uploads", status=status, body=body, times=99)
    with pytest.raises(expected) as caught:
        write(target, Layer(5))
    assert words in f"{caught.value.message} {caught.value.fix}"
    assert caught.value.exit_code == 5


@cases(
    "status body words",
    ("409", 409, errors("DENIED", "tag is immutable"), "Give another tag"),
    ("400", 400, errors("TAG_INVALID", "it is fixed"), "Give another tag"),
    ("for terminals", 400, errors("MANIFEST_INVALID", "bad\x1b[2J"), "bad?[2J"),
    ("413", 413, b"", "larger bodies"),
    ("no JSON", 422, b"plain words", "plain words"),
    ("no JSON that can be read", 418, b"[" * 100_000, "HTTP 418"),
)
def test_each_refusal_of_a_manifest_says_what_to_do(
    server: PushRegistry, target: RegistryTarget, status: int, body: bytes, words: str
) -> None:
    server.rule("PUT", "manifests", status=status, body=body, times=99)
    with pytest.raises(PushRefusedError) as caught:
        target.publish(b"{}", MANIFEST, name="1")
    assert words in f"{caught.value.message} {caught.value.fix}"
    assert "\x1b" not in caught.value.message + caught.value.detail


def test_a_closed_port_is_said_at_once(server: PushRegistry) -> None:
    server.close()
    with pytest.raises(RegistryUnreachableError, match="refuses connections") as caught:
        open_target(server).has(Layer(5).blob)
    assert "--base" not in caught.value.fix


@cases(
    "location",
    ("none", ""),
    ("a file", "file:///etc/passwd"),
    ("no address", "http://["),
    ("not encrypted elsewhere", "http://example.invalid/upload"),
    ("no port", "http://127.0.0.1:99999/x"),
    ("too long", "/x" * 10_000),
)
def test_a_place_that_is_none_is_not_gone_to(
    server: PushRegistry, target: RegistryTarget, location: str
) -> None:
    server.rule("POST", "uploads", status=202, headers={"Location": location})
    with pytest.raises(RegistryAnswerError, match="redirects to"):
        write(target, Layer(5))


def test_a_place_may_be_absolute(server: PushRegistry, target: RegistryTarget) -> None:
    server.absolute = True
    layer = Layer(5)
    write(target, layer)
    assert has(server, layer)


def test_an_endless_answer_is_not_read(server: PushRegistry, target: RegistryTarget) -> None:
    server.rule("PUT", "manifests", status=400, body=b"x" * (6 * MB), times=9)
    with pytest.raises(PushRefusedError) as caught:
        target.publish(b"{}", MANIFEST, name="1")
    assert len(caught.value.detail) <= 2000


# --- manifests ---


def test_a_manifest_is_put_under_its_tag(server: PushRegistry, target: RegistryTarget) -> None:
    manifest = to_bytes({"schemaVersion": 2})
    assert target.publish(manifest, MANIFEST, name="1.2") == descriptor_of(MANIFEST, manifest)
    assert server.manifests["team/app", "1.2"] == (manifest, MANIFEST)


def test_a_manifest_is_put_under_its_digest(server: PushRegistry, target: RegistryTarget) -> None:
    target.publish(b"{}", MANIFEST, name=None)
    assert [one.path for one in server.seen] == [f"/v2/team/app/manifests/{digest_of(b'{}')}"]


def test_the_name_may_be_the_whole_name(server: PushRegistry, target: RegistryTarget) -> None:
    target.publish(b"{}", MANIFEST, name=target.shown)
    assert ("team/app", "1") in server.manifests


@pytest.mark.parametrize("name", ["a/b", "", "x" * 129, "ü", "../1", "-x", "a b"])
def test_a_name_that_is_no_tag_is_refused(
    server: PushRegistry, target: RegistryTarget, name: str
) -> None:
    with pytest.raises(BadReference):
        target.publish(b"{}", MANIFEST, name=name)
    assert not server.seen


def test_a_digest_cannot_be_pushed_to() -> None:
    with pytest.raises(BadReference, match="cannot be pushed to"):
        RegistryTarget.open(f"r.io/a@sha256:{'0' * 64}")


def test_a_registry_that_lies_about_a_manifest_is_not_believed(
    server: PushRegistry, target: RegistryTarget
) -> None:
    server.lies = digest_of(b"other")
    with pytest.raises(RegistryAnswerError, match="is not what was sent"):
        target.publish(b"{}", MANIFEST, name="1")


def test_a_manifest_too_large_for_registries_is_not_sent(
    server: PushRegistry, target: RegistryTarget
) -> None:
    with pytest.raises(PushRefusedError, match="larger than registries accept"):
        target.publish(b" " * (4 * MB + 1), MANIFEST, name="1")
    assert not server.seen


def test_a_manifest_is_put_again_after_a_lost_answer(
    server: PushRegistry, target: RegistryTarget
) -> None:
    server.rule("PUT", "manifests", cut_answer=True)
    server.rule("PUT", "manifests", status=503)
    target.has(Layer(0).blob)  # it has answered once, so it is waited for
    target.publish(b"{}", MANIFEST, name="1")
    assert ("team/app", "1") in server.manifests


def test_no_threads_are_left(server: PushRegistry, target: RegistryTarget) -> None:
    write(target, Layer(MB))
    target.close()
    deadline = time.monotonic() + 60
    while [one for one in threading.enumerate() if isinstance(one, threading.Timer)]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert server.seen
