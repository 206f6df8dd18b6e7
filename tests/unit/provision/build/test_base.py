"""The base of an image: what is said if it can no longer be made."""

from __future__ import annotations

from provision.build.base import BaseChangedError, changed_packages
from provision.model.plan import Base, DebianPackage
from tests.kit.cases import cases


def packages(*texts: str) -> list[DebianPackage]:
    pairs = (text.split("=") for text in texts)
    return [DebianPackage(name=name, version=version, sha256="0") for name, version in pairs]


@cases(
    "locked made words",
    ("the same", ["a=1"], ["a=1"], ""),
    ("another version", ["a=1", "b=1"], ["a=2", "b=1"], "a 1 is now 2"),
    ("one less", ["a=1", "b=1"], ["a=1"], "b 1 is no longer needed"),
    ("one more", ["a=1"], ["a=1", "b=2"], "new is b 2"),
    ("several", ["a=1", "b=1", "c=1"], ["a=2", "b=2", "c=2"], "a 1 is now 2, 2 more"),
)
def test_the_packages_that_changed_are_named(
    locked: list[str], made: list[str], words: str
) -> None:
    assert changed_packages(packages(*locked), packages(*made), most=1) == words


def test_a_base_that_changed_names_its_packages() -> None:
    def base(digest: str, version: str) -> Base:
        return Base(
            kind="bootstrap", reference="b", python="3.11", glibc=None,
            digest=f"sha256:{digest * 64}", apt=("git",), added=tuple(packages(f"git={version}")),
        )  # fmt: skip

    error = BaseChangedError(base("1", "1:2.39"), base("2", "1:2.40"))
    assert error.message.endswith("names 111111111111. Other versions: git 1:2.39 is now 1:2.40.")
    assert "--snapshot today" in error.fix
