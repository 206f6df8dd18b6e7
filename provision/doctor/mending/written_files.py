"""Which files a shell text overwrites, changes or removes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from provision.doctor.mending.shell import Word, words
from provision.doctor.shell import OPERATORS, unquoted, without_relative_entries_documents

UNNAMED = ""  # a file that is written or removed, but not named in the text
# Options that take the next word, by program; all other words that begin with "-" take none.
_VALUES: Mapping[str, frozenset[str]] = {
    "truncate": frozenset(["-s", "--size", "-r", "--reference"]),
    "shred": frozenset(["-n", "-s"]),
    "cp": frozenset(["-S", "--suffix"]),
    "mv": frozenset(["-S", "--suffix"]),
    "ln": frozenset(["-S", "--suffix"]),
    "install": frozenset(["-m", "-o", "-g", "-S", "--mode", "--owner", "--group", "--suffix"]),
    "rsync": frozenset(["-e", "-f"]),
}
_SHELLS = frozenset(["sh", "bash", "dash", "ksh", "zsh"])
_INTERPRETERS = re.compile(r"python[\d.]*|perl|ruby|node|g?awk|mawk")
_CODE_WRITES = re.compile(
    r"write|\bopen\([^)]*[\"'][waxr]b?\+?[\"']|unlink|remove|rename|replace\(|rmtree|truncate|copy|move"
)
_CODE_PATH = re.compile(r"[\"'](/[^\"'\s]+)[\"']|environ\[[\"']HOME[\"']\], *[\"']([^\"'\s]+)[\"']")
_IN_PLACE = re.compile(r"-[A-Za-z0-9]*i|--in-place")  # of sed, perl
_SCRIPT_GIVEN = re.compile(r"-[A-Za-z0-9]*[ef]|--expression|--file")


def written(text: str) -> tuple[str, ...]:
    """The files that a text overwrites, changes or removes with the usual tools, each once and as
    written, without quotes and with ~ for $HOME. UNNAMED means files that are known only at run
    time: from a variable, xargs or code. Files that packages and other programs (apt-get,
    nvidia-ctk) write are not detected.
    """
    plain = without_relative_entries_documents(text)
    return tuple(dict.fromkeys(_written(plain, list(words(plain)), 0)))


def _written(text: str, found: Sequence[Word], start: int) -> Iterator[str]:
    """Handles the words of one level; the words inside a word's $(...) form a separate level."""
    command: list[Word] = []
    position = 0
    while position < len(found):
        word = found[position]
        inside = position + 1
        while inside < len(found) and found[inside].start < word.end:
            inside += 1
        nested = found[position + 1 : inside]
        yield from _written(text, nested, nested[0].start if nested else 0)
        gap = _gap(text[start : word.start])
        if OPERATORS & set(gap):
            yield from _written_by(command)
            command = []
        start, gap = word.end, gap.rpartition("\n")[2]
        if ">" in gap:
            yield _path(word.text)
        if ">" in gap or "<" in gap:
            word = Word("", word.start, word.end, is_program=False)
        command.append(word)
        position = inside
    yield from _written_by(command)


def _gap(between: str) -> str:
    """The text between two words: operators and redirections, no comment, no >&1."""
    gap = between.replace("\\\n", " ").replace(">|", ">")
    return re.sub(r"#[^\n]*|[<>]&[\d-]|\d+(?=[<>])", "", gap)


def _written_by(command: Sequence[Word]) -> Iterator[str]:
    """What one program writes, from its arguments."""
    runs = [number for number, word in enumerate(command) if word.is_program]
    if not runs:
        return
    program = unquoted(command[runs[-1]].text).rpartition("/")[2]
    arguments = [word.text for word in command[runs[-1] + 1 :] if word.text]
    yield from _outputs(arguments)
    writes = _WRITERS.get(program)
    if writes is not None:
        fed = any(command[number].text == "xargs" for number in runs[:-1])
        yield from [UNNAMED] * fed
        yield from map(_path, writes(program, arguments))
    elif program in _SHELLS and arguments[:1] and arguments[0].startswith("-"):
        for code in arguments[1:2] if "c" in arguments[0] else ():
            yield from written(unquoted(code))
    elif _INTERPRETERS.fullmatch(program):
        code = " ".join(arguments)
        named = [one or f"~/{own}" for one, own in _CODE_PATH.findall(code)]
        in_place = program in {"perl", "ruby"} and any(map(_IN_PLACE.match, arguments))
        if in_place or _CODE_WRITES.search(code):
            yield from [UNNAMED] if in_place else named or [UNNAMED]


def _outputs(arguments: Sequence[str]) -> Iterator[str]:
    """`-o FILE`, `--output FILE`, `--output=FILE`: curl, gpg and others."""
    for number, word in enumerate(arguments):
        if word in {"-o", "--output"} and number + 1 < len(arguments):
            yield from (path for path in [_path(arguments[number + 1])] if path[:1] in {"/", "~"})
        elif word.startswith("--output="):
            yield _path(word.partition("=")[2])


def _operands(program: str, arguments: Sequence[str]) -> list[str]:
    valued, found = _VALUES.get(program, frozenset()), []
    skip = only = False
    for word in arguments:
        if skip:
            skip = False
        elif not only and word == "--":
            only = True
        elif not only and word.startswith("-") and word != "-":
            skip = word in valued
        else:
            found.append(word)
    return found


def _all_operands(program: str, arguments: Sequence[str]) -> Iterable[str]:
    return _operands(program, arguments)


def _destination(program: str, arguments: Sequence[str]) -> Iterable[str]:
    """The last operand, or the file of each source if it is a directory."""
    if program == "install" and any(word in {"-d", "--directory"} for word in arguments):
        return []
    folder = _folder(arguments)
    named = [word for word in _operands(program, arguments) if word != folder]
    if folder is None and named and named[-1].endswith("/"):
        folder = named.pop()
    if folder is None:
        return named[-1:]
    return [f"{folder.rstrip('/')}/{word.rpartition('/')[2]}" for word in named]


def _moved(program: str, arguments: Sequence[str]) -> Iterable[str]:
    folder = _folder(arguments)
    sources = [word for word in _operands(program, arguments) if word != folder]
    return [*sources[: None if folder else -1], *_destination(program, arguments)]


def _folder(arguments: Sequence[str]) -> str | None:
    """The directory of -t DIR and --target-directory=DIR."""
    for number, word in enumerate(arguments):
        if word in {"-t", "--target-directory"} and number + 1 < len(arguments):
            return arguments[number + 1]
        if word.startswith("--target-directory="):
            return word.partition("=")[2]
    return None


def _edited(program: str, arguments: Sequence[str]) -> Iterable[str]:
    """The files of `sed -i`: the first operand is the script, unless an option gives it."""
    if not any(_IN_PLACE.match(word) for word in arguments):
        return []
    if not any(_SCRIPT_GIVEN.fullmatch(word) for word in arguments):
        return _operands(program, arguments)[1:]
    before = ["", *arguments[:-1]]
    return [
        word
        for option, word in zip(before, arguments, strict=True)
        if not word.startswith("-") and not _SCRIPT_GIVEN.fullmatch(option)
    ]


def _of_dd(_: str, arguments: Sequence[str]) -> Iterable[str]:
    return [word.partition("=")[2] for word in arguments if word.startswith("of=")]


def _of_find(_: str, arguments: Sequence[str]) -> Iterable[str]:
    acts = {"-delete", "-exec", "-execdir", "-ok", "-fprint"}
    return [UNNAMED] if acts & set(arguments) else []


def _unnamed(_: str, __: Sequence[str]) -> Iterable[str]:
    return [UNNAMED]


_WRITERS: Mapping[str, Callable[[str, Sequence[str]], Iterable[str]]] = {
    **dict.fromkeys(("rm", "rmdir", "unlink", "shred", "tee", "truncate"), _all_operands),
    **dict.fromkeys(("cp", "install", "ln", "rsync"), _destination),
    "mv": _moved,
    "sed": _edited,
    "dd": _of_dd,
    "find": _of_find,
    "eval": _unnamed,
}


def _path(word: str) -> str:
    """A word as a file name; UNNAMED if a variable or a command gives it."""
    plain = unquoted(word)
    for home in ("$HOME/", "${HOME}/"):
        if plain.startswith(home):
            plain = f"~/{plain[len(home) :]}"
    return UNNAMED if "$" in plain or "`" in plain else plain
