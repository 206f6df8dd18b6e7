"""What was read of wheels is read once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from provision.lock.facts import WheelFacts
from tests.kit.cases import cases

WHEEL = "https://index.test/files/demo-1.0-py3-none-any.whl"


def lock(sha256: str | None = "a" * 64, url: str = WHEEL) -> str:
    hashes = f'sha256 = "{sha256}"' if sha256 else 'md5 = "0"'
    return (
        'lock-version = "1.0"\ncreated-by = "uv"\n[[packages]]\nname = "demo"\nversion = "1.0"\n'
        f'wheels = [{{ url = "{url}", hashes = {{ {hashes} }} }}]\n'
    )


class Reader:
    """Counts what is read."""

    def __init__(self, fact: Mapping[str, object] | None = None) -> None:
        self.read: list[str] = []
        self.fact = fact or {"name": "demo"}

    def __call__(self, addresses: list[str]) -> dict[str, Mapping[str, object]]:
        self.read += addresses
        return dict.fromkeys(addresses, self.fact)


def test_a_wheel_is_read_once_by_all_jobs(tmp_path: Path) -> None:
    reader = Reader()
    for _ in range(2):
        facts = WheelFacts(tmp_path)
        facts.learn(lock())
        for _ in range(2):
            assert facts.of("metadata", [WHEEL], reader) == {WHEEL: {"name": "demo"}}
    assert reader.read == [WHEEL]


@cases(
    "first then",
    ("another-file-at-the-same-address", lock(), lock("b" * 64)),
    ("a-wheel-without-a-hash", lock(None), lock(None)),
    ("a-wheel-that-no-lock-names", None, None),
    ("a-hash-that-came-later", lock(None), lock()),
)
def test_what_may_have_changed_is_read_again(
    first: str | None, then: str | None, tmp_path: Path
) -> None:
    for text, fact in ((first, {"n": 1}), (then, {"n": 2})):
        facts = WheelFacts(tmp_path)
        if text:
            facts.learn(text)
        assert facts.of("metadata", [WHEEL], Reader(fact)) == {WHEEL: fact}


def test_a_wheel_that_could_not_be_read_is_read_again(tmp_path: Path) -> None:
    facts = WheelFacts(tmp_path)
    facts.learn(lock())
    assert facts.of("metadata", [WHEEL], lambda _: {}) == {}
    assert facts.of("metadata", [WHEEL], Reader()) == {WHEEL: {"name": "demo"}}


def test_kinds_of_facts_are_apart(tmp_path: Path) -> None:
    facts = WheelFacts(tmp_path)
    facts.learn(lock())
    assert facts.of("one", [WHEEL], Reader({"n": 1})) != facts.of("two", [WHEEL], Reader({"n": 2}))


def test_a_signed_address_is_not_written(tmp_path: Path) -> None:
    signed = f"{WHEEL}?signature=topsecret"
    facts = WheelFacts(tmp_path)
    facts.learn(lock(url=signed))
    assert facts.of("metadata", [signed], Reader())
    written = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert any(b"demo-1.0" in data for data in written)
    assert not any(b"topsecret" in data for data in written)
