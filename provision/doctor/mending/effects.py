"""What a fix does to the machine, from its commands: shown to the user first, and checked by tests.

reads: nothing is changed. changes: files or settings. installs, removes: packages. restarts: a
service, a process or a GPU. deletes: files, images, volumes. reboots: the machine. A command that
is not known to change anything counts as reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias, get_args

from provision.doctor.mending.shell import commands, words

Effect: TypeAlias = Literal[
    "reads", "changes", "installs", "removes", "restarts", "deletes", "reboots"
]
EFFECTS: tuple[Effect, ...] = get_args(Effect)

# Prefix commands, before the program that does the work.
_BEFORE = r"(?:\w+=\S*|env|xargs|timeout|nohup|sudo|-\S+|\d+[smh]?) +"
_PACKAGES = (
    r"(?:apt-get|apt|dnf|yum|microdnf|zypper|snap|brew|conda|mamba|micromamba|npm"
    r"|(?:python\S* +-m +)?(?:uv +)?pip3?)(?: +-\S+)*"
)
_ENGINE = r"(?:docker|podman|nerdctl)(?: +(?:container|image|volume|system|builder|network))?"
_UNITS = r"restart|stop|start|reload|kill|enable|disable|daemon-reload|mask|try-restart"
# The first pattern that matches a command decides.
_RULES: tuple[tuple[Effect, tuple[str, ...]], ...] = (
    ("reboots", (r"(?:systemctl +)?(?:reboot|poweroff)\b", r"shutdown\b", r"wsl\S* +--shutdown")),
    (
        "removes",
        (
            rf"{_PACKAGES} +(?:-\S+ +)*(?:purge|remove|autoremove|erase|uninstall)\b",
            r"pacman +-R|rpm +-e|dpkg +(?:-r|-P|--remove|--purge)|dkms +remove",
            r"(?:sh +)?\S*(?:nvidia-uninstall|cuda-uninstaller)",
        ),
    ),
    (
        "installs",
        (
            rf"{_PACKAGES} +(?:-\S+ +)*(?:install|(?:\w+-)?upgrade|update|reinstall|create|swap)\b",
            rf"{_PACKAGES} +(?:-\S+ +)*(?:downgrade|distro-sync|module +\w+|sync|add)\b",
            r"pacman +-S|rpm +-[iU]|dpkg +-i|ubuntu-drivers +install|sh +\S*\.run\b|dkms +install",
        ),
    ),
    (
        "deletes",
        (
            r"(?:rm|rmdir|unlink|shred|truncate|wipefs|mkfs\S*)\b",
            r"find\b.* -delete\b",
            rf"{_ENGINE} +(?:rm|rmi|prune)\b|{_ENGINE} +prune|git +clean\b|kubectl +delete",
            r"(?:python\S* +-m +)?pip3? +cache +purge|conda +clean|ollama +rm",
        ),
    ),
    (
        "restarts",
        (
            rf"systemctl +(?:-\S+ +)*(?:{_UNITS})\b",
            rf"service +\S+ +(?:{_UNITS})|{_ENGINE} +(?:restart|stop|kill)",
            r"(?:kill|pkill|killall|rmmod)\b|fuser\b.* -k|modprobe +-r",
            r"nvidia-smi\b.*(?:--gpu-reset| -r\b)",
        ),
    ),
    (
        "changes",
        (
            r"(?:tee|cp|mv|ln|mkdir|touch|chmod|chown|chgrp|install|dd|unzip|ldconfig|setpci)\b",
            r"(?:nvidia-ctk|grubby|usermod|gpasswd|groupadd|update-\S+|dracut|mokutil|chcon)\b",
            r"(?:modprobe|insmod|mount|umount|swapon|swapoff|mkswap|fallocate|semanage|setsebool)\b",
            r"sed\b.* -i|sysctl\b.* -w|git +(?:pull|checkout|reset|clone|submodule|lfs)|tar +-?x",
            r"nvidia-smi\b.* (?:-pm|-pl|-mig|-c|-e|-dm|-ac|-rac|-lgc|-rgc|mig)\b|helm\b",
            r"kubectl +(?:apply|patch|label|edit|set|annotate)|(?:make|cmake|ninja|nvcc)\b",
            rf"{_ENGINE} +(?:pull|build|load|tag|migrate)|systemd-tmpfiles\b",
        ),
    ),
)
_WRITES = re.compile(r"(?<![0-9&])>{1,2} *(?!/dev/(?:null|stderr|stdout))[\"$~/.\w]")


def effects(run: str) -> tuple[Effect, ...]:
    """All effects of a shell text, in the order of `EFFECTS`; () if it is empty."""
    found = {effect for line in commands(run) for effect in _of(line)}
    if len(found) > 1:
        found.discard("reads")
    return tuple(effect for effect in EFFECTS if effect in found)


def _of(line: str) -> Iterator[Effect]:
    """The effects of each program that a line starts, and whether the line writes to a file."""
    for word in words(line):
        if word.is_program:
            command = re.sub(rf"^(?:{_BEFORE})*", "", line[word.start :])
            yield next((effect for effect, rules in _RULES if _fits(command, rules)), "reads")
    if _WRITES.search(line):
        yield "changes"


def _fits(command: str, patterns: Iterable[str]) -> bool:
    return any(re.match(pattern, command) for pattern in patterns)
