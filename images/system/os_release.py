"""os-release files: the distribution of a machine or an image.

https://www.freedesktop.org/software/systemd/man/latest/os-release.html
"""

from __future__ import annotations

import shlex

FILES = ("/etc/os-release", "/usr/lib/os-release")  # the first that exists is used


def parse_os_release(text: str) -> dict[str, str]:
    """The assignments of an os-release file ("ID": "ubuntu"), quotes removed. Other lines are
    skipped; a value without its closing quote stays as it is.
    """
    found = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith("#"):
            try:
                found[name] = " ".join(shlex.split(value))
            except ValueError:
                found[name] = value
    return found
