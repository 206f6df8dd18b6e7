"""The options of `fleet verify --across`."""

from __future__ import annotations

import argparse

import pytest

from provision.cli.option import refuse_without
from provision.errors import BadInputError
from provision.fleet.commands.across import across_options, check_across, worse


def parse(*argv: str, way: str | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    across_options(parser)
    args = parser.parse_args(argv)
    args.verb = parser
    refuse_without(args)
    args.way, args.on = way, "slurm"
    return args


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("--across",),
        ("--across", "--interface", "^docker0,lo", "--sizes", "64K,1G"),
        ("--across", "--master-address", "{node}.ib.example"),
        ("--across", "--master-address", "fe80::1%eth0"),
    ],
)
def test_good_options(argv: tuple[str, ...]) -> None:
    check_across(parse(*argv))


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (("--interface", "eth0"), "--interface requires --across"),
        (("--sizes", "1M"), "--sizes requires --across"),
        (("--master-address", "a"), "--master-address requires --across"),
        (("--across", "--interface", "eth0 x"), "malformed"),
        (("--across", "--sizes", "1T"), "malformed"),
        (("--across", "--sizes", ""), "malformed"),
        (("--across", "--master-address", "a b"), "malformed"),
    ],
)
def test_wrong_options(argv: tuple[str, ...], word: str) -> None:
    with pytest.raises(BadInputError, match=word):
        check_across(parse(*argv))


def test_a_checkout_on_the_nodes_runs_only_the_suite() -> None:
    with pytest.raises(BadInputError, match="--way provision"):
        check_across(parse("--across", way="provision"))


@pytest.mark.parametrize(
    ("first", "second", "code"), [(0, 7, 7), (0, 1, 1), (5, 7, 5), (1, 5, 1), (0, 0, 0), (7, 0, 7)]
)
def test_the_worse_exit_code_counts(first: int, second: int, code: int) -> None:
    assert worse(first, second) == code
