"""What a fix does to the machine, from its commands: shown to the user first, and checked by tests.

reads: nothing is changed. changes: files or settings. installs, removes: packages. restarts: a
service, a process or a GPU. deletes: files, images, volumes. reboots: the machine. A command that
is not known only to read counts as a change. What starts a program of the user's reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Literal, TypeAlias, get_args

from provision.doctor.mending.shell import commands, words
from provision.doctor.shell import tokens
from provision.doctor.tables import table

Effect: TypeAlias = Literal[
    "reads", "changes", "installs", "removes", "restarts", "deletes", "reboots"
]
EFFECTS: tuple[Effect, ...] = get_args(Effect)

# Prefix commands, before the program that does the work.
_BEFORE = r"(?:\w+=\S*|env|xargs|timeout|nohup|sudo|time|-[uC] +\S+|-\S+|\d+[smh]?) +"
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
            rf"{_PACKAGES} +(?:-\S+ +)*(?:downgrade|distro-sync|sync|add)\b",
            rf"{_PACKAGES} +(?:-\S+ +)*module +(?:install|enable|disable|reset|switch-to)\b",
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
            r"nvidia-smi\b.*(?:--gpu-reset| -r\b)|ray +stop|echo +quit\b|systemctl +isolate",
            r"kubectl +(?:drain|rollout +restart)|podman +(?:system +migrate|machine +stop)",
        ),
    ),
    (
        "changes",
        (
            r"sed\b.* -i|sysctl\b.*(?: -w|=| --system)|find\b.* -exec\b|date\b.* -s",
            r"curl\b.* (?:-\w*[oO]|--output)(?! +/dev/null)\b|ollama +(?:pull|create)",
            r"python\S*\b.*(?:write_text|write_bytes|json\.dump\(|open\([^)]*['\"][wa]b?['\"])",
            r"nvidia-smi\S*(?: +-i +\S+)? +-(?:pm|pl|mig|c|e|dm|ac|rac|lgc|rgc)\b",
            r"nvidia-smi +mig +(?:-i +\S+ +)?-[cd]|dcgmi +profile +--(?:pause|resume)\b",
            r"nvidia-cuda-mps-control +-d\b",
            r"python\S* +-m +(?:venv|ensurepip|compileall)\b",
        ),
    ),
)
_TOLD: Mapping[Effect, str] = {
    "removes": "removes packages",
    "deletes": "deletes files",
    "reboots": "reboots",
}
_TRIES = re.compile(r" (?:--dry-run(?:=\w+)?|--help|--version)(?= |$)")
_WRITES = re.compile(r"(?<![0-9&])>{1,2} *(?!/dev/(?:null|stderr|stdout))[\"$~/.\w]")


@cache
def effects(run: str) -> tuple[Effect, ...]:
    """All effects of a shell text, in the order of `EFFECTS`; () if it is empty."""
    found = {effect for line in commands(run) for effect in _of(line)}
    if len(found) > 1:
        found.discard("reads")
    return tuple(effect for effect in EFFECTS if effect in found)


@cache
def stops(run: str) -> tuple[str, ...]:
    """Whose work the commands of a shell text end, besides that of the failure: "running
    containers". () if nobody's.
    """
    started = [command for line in commands(run) for command in _started(line)]
    rules: Mapping[str, str] = table("commands.toml")["stops"]
    return tuple(
        whose for whose, rule in rules.items() if any(re.match(rule, one) for one in started)
    )


def warning(run: str) -> str:
    """What a person must know before typing the commands; "" if they do no harm."""
    told = [words for effect, words in _TOLD.items() if effect in effects(run)]
    told += [f"stops {whose}" for whose in stops(run)]
    return f"This {' and '.join(told)}: review it first." if told else ""


def changes_anything(run: str) -> bool:
    """Whether a shell text does more than read."""
    return bool(set(effects(run)) - {"reads"})


def _of(line: str) -> Iterator[Effect]:
    """The effects of each program that a line starts, and whether the line writes to a file."""
    for command in _started(line):
        effect = next((effect for effect, rules in _RULES if _fits(command, rules)), None)
        if effect is None or _TRIES.search(command):
            effect = "reads" if _only_reads(command) else "changes"
        yield effect
    if _WRITES.search(line):
        yield "changes"


def _started(line: str) -> Iterator[str]:
    """The commands of a line, each from its program on."""
    for word in words(line):
        if word.is_program:
            rest = line[word.start :]
            ends = (token.start for token in tokens(rest) if token.kind == "operator")
            yield re.sub(rf"^(?:{_BEFORE})*", "", rest[: next(ends, None)])


def _only_reads(command: str) -> bool:
    program = command.partition(" ")[0].strip("\"'").rpartition("/")[2].removesuffix(".exe")
    reads: Mapping[str, str] = table("commands.toml")["reads"]
    if program in reads["always"].split() or command.startswith(("./", '"$', "$", "your")):
        return True  # ./program is the user's
    if _TRIES.search(command) or not program:
        return True
    options = r"(?: +-\S+(?: +[^\s-]\S*)??)*?"
    rule = rf"\S+{options} +(?:{reads[program]})(?![\w-])" if program in reads else "$"
    return re.match(rule, command) is not None


def _fits(command: str, patterns: Iterable[str]) -> bool:
    return any(re.match(pattern, command) for pattern in patterns)
