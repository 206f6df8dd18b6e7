"""The PAM stacks that all services share, as pam-auth-update writes them from its profiles.

https://wiki.ubuntu.com/PAMConfigFrameworkSpec
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from images.bootstrap.tree import PackageTree, file_names

WANTED = r"usr/share/pam/common-[a-z-]+|usr/share/pam-configs/[^/]+"
_STACKS = ("account", "auth", "password", "session", "session-noninteractive")
_NOTHING = "[default=1]\t\t\tpam_permit.so"
"""Used for a block without a module: skips the refusal that follows."""
_FIELD = re.compile(r"^([A-Za-z-]+):[ \t]*(.*(?:\n[ \t].*)*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Profile:
    name: str
    fields: Mapping[str, str]

    @property
    def rank(self) -> tuple[int, str]:
        return -int(self.fields.get("Priority", "0")), self.name

    def lines(self, stack: str, block: str, *, first: bool) -> list[str]:
        kind = stack.partition("-")[0].capitalize()
        if self.fields.get(f"{kind}-Type") != block:
            return []
        if stack == "session-noninteractive" and self._is_on("Session-Interactive-Only"):
            return []
        text = self.fields.get(f"{kind}-Initial" if first else kind) or self.fields.get(kind, "")
        return [line.lstrip() for line in text.splitlines() if line.strip()]

    def _is_on(self, name: str) -> bool:
        return self.fields.get(name, "no").lower() == "yes"

    @property
    def is_default(self) -> bool:
        return self._is_on("Default")


def add_stacks(tree: PackageTree) -> None:
    """Write /etc/pam.d/common-*, and pam-auth-update's state files."""
    profiles = sorted(_profiles(tree), key=lambda profile: profile.rank)
    if not profiles:
        return
    used = [profile for profile in profiles if profile.is_default]
    for stack in _STACKS:
        template = tree.read(f"usr/share/pam/common-{stack}")
        if template is None:
            continue
        kind = stack.partition("-")[0]
        text, remembered = template.decode(), ""
        for block in ("Primary", "Additional"):
            chosen = [(p.name, lines) for p, lines in _block(used, stack, block) if lines]
            if not chosen and block == "Primary":
                chosen = [("null", [_NOTHING])]
            lines = _numbered([line for _, lines in chosen for line in lines])
            body = "".join(f"{kind}\t{line}\n" for line in lines)
            variable = re.search(rf"(?m)^\${kind}_(?:nonint_)?{block.lower()}\n", text)
            if variable is not None:
                text = text[: variable.start()] + body + text[variable.end() :]
            remembered += "".join(f"Module: {n}\n" + "\n".join(ls) + "\n" for n, ls in chosen)
        tree.add_file(f"etc/pam.d/common-{stack}", text.encode())
        tree.add_file(f"var/lib/pam/{stack}", remembered.encode())
    tree.add_file("var/lib/pam/seen", "".join(f"{profile.name}\n" for profile in profiles).encode())


def _profiles(tree: PackageTree) -> list[_Profile]:
    found = []
    for path in file_names(tree.texts, "usr/share/pam-configs"):
        text = (tree.read(path) or b"").decode()
        found.append(_Profile(path.rpartition("/")[2], dict(_FIELD.findall(text))))
    return found


def _block(
    profiles: Sequence[_Profile], stack: str, block: str
) -> list[tuple[_Profile, list[str]]]:
    found: list[tuple[_Profile, list[str]]] = []
    for profile in profiles:
        first = not any(lines for _, lines in found)
        found.append((profile, profile.lines(stack, block, first=first)))
    return found


def _numbered(lines: list[str]) -> list[str]:
    """Replace "end" by the number of modules that a success skips: to the end of the block."""
    return [re.sub(r"\bend\b", str(len(lines) - at), line) for at, line in enumerate(lines)]
