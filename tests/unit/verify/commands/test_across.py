"""The command line of `verify across`, and its page."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.cases import cases
from verify.commands import across
from verify.model.check import UsageError

ARGV = ["--rank", "1", "--world", "2", "--master", "node-a:29500"]


def test_the_options() -> None:
    options = across.parse([*ARGV, "--sizes", "64k,1M,64K"])
    assert options.master == ("node-a", 29500)
    assert options.sizes == (1 << 16, 1 << 20)
    assert across.parse([*ARGV[:-1], "[fe80::1]:5"]).master == ("fe80::1", 5)


@pytest.mark.parametrize(
    "argv",
    [
        ["--rank", "2", "--world", "2", "--master", "a:1"],
        ["--rank", "-1", "--world", "2", "--master", "a:1"],
        ["--rank", "0", "--world", "1", "--master", "a:1"],
        [*ARGV[:-1], "node-a"],
        [*ARGV[:-1], "node-a:0"],
        [*ARGV[:-1], "node-a:65536"],
        [*ARGV[:-1], ":1"],
        [*ARGV, "--sizes", "1T"],
        [*ARGV, "--sizes", ""],
        [*ARGV, "--sizes", "0"],
        [*ARGV, "--timeout", "0"],
        [*ARGV, "--timeout", "nan"],
    ],
)
def test_wrong_usage(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        across.parse(argv)


def report(**more: Any) -> dict[str, Any]:
    table = {"title": "T", "columns": ["a", "b"], "rows": [["x", 0.00123456]]}
    found = {"status": "pass", "backend": "gloo", "code": None, "message": "m", "cause": None}
    return {**found, "fix": None, "measured": {"tables": [table]}, **more}


@cases(
    "more code",
    ("GPUs over NCCL", {"backend": "nccl"}, 0),
    ("gloo proves nothing about NCCL", {}, 7),
    ("another framework", {"status": "skip"}, 7),
    ("a failure", {"status": "fail", "backend": "nccl"}, 1),
)
def test_the_exit_code(more: dict[str, Any], code: int) -> None:
    assert across.exit_code(report(**more)) == code


def test_the_page() -> None:
    assert across.page(report()) == "PASS  m\n\nT\n  a  b\n  x  0.00123\n"
    failed = across.page(report(status="fail", code="across-hang", cause="c", fix="f", measured={}))
    assert failed == "FAIL  m\n      code:  across-hang\n      cause: c\n      fix:   f\n"
