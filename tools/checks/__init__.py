"""Checks that rows of the catalog are consistent. Tests run it on the shipped and on broken tables.

A row that is known to break a rule has an entry among the file's `exceptions`, with the reason; an
exception that no row needs is itself a problem.
"""

from __future__ import annotations

from provision.catalog.catalog import Catalog
from tools.checks import drivers, every_table, frameworks, images, libraries


def check(catalog: Catalog) -> list[str]:
    """Every broken invariant, as sentences that name file and row; [] if the catalog is sound."""
    problems = [problem for rule in _RULES for problem in rule(catalog)]
    broken = {(problem.rule, problem.name) for problem in problems}
    excused = {(row.rule, row.row) for row in catalog.excused}
    idle = [
        f"exceptions ({row.row}): excuses nothing under {row.rule}"
        for row in catalog.excused
        if (row.rule, row.row) not in broken
    ]
    return [str(p) for p in problems if (p.rule, p.name) not in excused] + idle


_RULES = (
    *every_table.RULES,
    *drivers.RULES,
    *frameworks.RULES,
    *libraries.RULES,
    *images.RULES,
)
