"""What the texts of a document from outside may be: each kind by its grammar, all of them bounded.

A label, a lock, a host file or a node's answer is read by one parser, which compares every text
with one of these. Behind it no text has a line end, a control character, a direction mark or a
lone surrogate, and each is short enough to print.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LONGEST = 10_000
"""Characters of a sentence: those about a fleet name its hosts."""
MOST_ITEMS = 100_000
"""Rows of one list: a fleet's plan has some for each host."""


class Grammar(NamedTuple):
    """A kind of text: `wanted` describes it in an error, `pattern` matches it as a whole."""

    wanted: str
    pattern: str
    longest: int = 200

    def fits(self, text: str) -> bool:
        """Whether the text is of this kind."""
        printable = len(text) <= self.longest and text.isprintable()
        return printable and re.fullmatch(self.pattern, text) is not None


TEXT = Grammar(f"printable text of at most {LONGEST} characters", r".*", LONGEST)
NUMBERS = Grammar('numbers with dots, such as "12.8"', r"[0-9]{1,9}(\.[0-9]{1,9}){0,5}")
CAPABILITY = Grammar('a compute capability, such as "8.6"', r"[0-9]{1,3}\.[0-9]{1,3}")
VERSION = Grammar(  # PEP 440
    'a version, such as "2.0.1"',
    r"([0-9]{1,9}!)?[0-9]{1,9}(\.[0-9]{1,9}){0,7}([-_.]?(a|b|c|rc|alpha|beta|pre|preview)[-_.]?[0-9]{0,9})?"
    r"([-_.]?(post|rev|r)[-_.]?[0-9]{0,9})?([-_.]?dev[-_.]?[0-9]{0,9})?(\+[A-Za-z0-9]+([-_.][A-Za-z0-9]+)*)?",
)
NAME = Grammar(
    "a name of letters, digits, hyphens, dots and underscores", r"[A-Za-z0-9][A-Za-z0-9._+-]*"
)
DEBIAN_NAME = Grammar("a name of a Debian package", r"[a-z0-9][a-z0-9+.-]+")
DEBIAN_VERSION = Grammar("a version of a Debian package", r"[0-9][A-Za-z0-9.+~:-]*")
SHA256 = Grammar("64 hexadecimal digits", r"[0-9a-f]{64}")
DIGEST = Grammar("sha256: and 64 hexadecimal digits", r"sha256:[0-9a-f]{64}")
ADDRESS = Grammar("an address without spaces", r"[^\s\"<>\\^`{|}]+", 8000)
REQUIREMENT = Grammar(  # PEP 508, as far as it matters where it is printed or a word of a command
    "a requirement of a package",
    r"[A-Za-z0-9][A-Za-z0-9._-]* {0,3}(\[[A-Za-z0-9._, -]*\])? {0,3}([(~=!<>@;].*)?",
    8000,
)
