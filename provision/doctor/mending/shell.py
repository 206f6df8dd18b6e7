"""As much of the shell's grammar as the shipped fixes need: commands, and the programs they start.

Texts are read, never rewritten by guess: what is not understood (back quotes, a here-document
inside quotes) is left as it stands, and `sh -n` over the whole knowledge says whether it is shell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

_OPERATORS = frozenset(";&|()\n")
# After these a command still begins.
_KEYWORDS = frozenset(["if", "then", "else", "elif", "do", "while", "until", "!", "{", "}", "time"])
_ENDS = frozenset(["fi", "done", "esac", "for", "case"])
# These start the program that is named after them.
_STARTERS: Mapping[str, frozenset[str]] = {  # with their options that take a word
    "sudo": frozenset(["-u", "-g"]),
    "env": frozenset(["-u", "-C"]),
    "xargs": frozenset(["-n", "-I", "-L", "-P"]),
    "exec": frozenset(),
    "nohup": frozenset(),
}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_HERE_DOCUMENT = re.compile(r"(?<!<)<<(-?)\s*(['\"]?)([A-Za-z_]\w*)\2")
# Options of sudo that only say how it behaves. `sudo -u USER` is another matter.
_SUDO_MANNERS = frozenset(["-E", "-H", "-n", "-S", "--"])


@dataclass(frozen=True, slots=True)
class Word:
    """A word as written, where it stands, and whether the shell runs it."""

    text: str
    start: int
    end: int
    is_program: bool


def commands(text: str) -> tuple[str, ...]:
    """The commands of a text: one a line, which goes on after a backslash, after an operator
    that wants more, inside quotes and to the end of a here-document. Comments are left out.
    """
    found: list[str] = []
    pending = ""
    for line in text.splitlines():
        if not pending and (not line.strip() or line.lstrip().startswith("#")):
            continue
        pending = f"{pending}\n{line}" if pending else line.strip()
        if _is_whole(pending):
            found.append(pending)
            pending = ""
    if pending:
        found.append(pending)
    return tuple(found)


def programs(text: str) -> frozenset[str]:
    """Names of the programs (and the shell's own commands) that a text starts."""
    return frozenset(_unquoted(word.text) for word in words(text) if word.is_program)


def without_sudo(command: str) -> str:
    """The command for somebody who is root already. Other users' rights (-u) stay asked for."""
    found = list(words(command))
    cuts: list[tuple[int, int]] = []
    for position, word in enumerate(found):
        if word.text != "sudo" or not word.is_program:
            continue
        rest = position + 1
        while rest < len(found) and found[rest].text in _SUDO_MANNERS:
            rest += 1
        if rest < len(found) and not found[rest].text.startswith("-"):
            cuts.append((word.start, found[rest].start))
    for start, end in reversed(cuts):
        command = command[:start] + command[end:]
    return command


def needs_sudo(command: str) -> bool:
    return any(word.text == "sudo" and word.is_program for word in words(command))


def words(text: str, offset: int = 0) -> Iterator[Word]:
    """All words in order, those of $(...) too, as places in the whole text."""
    text = _without_here_documents(text)
    begins, target, starter, argument = True, False, "", False
    position = 0
    while position < len(text):
        char = text[position]
        if char in _OPERATORS:
            begins, target, starter, argument = True, False, "", False
            position += 1
        elif char in "<>":
            target = not text.startswith((">&", "<&"), position)
            position += 1 if target else 3
        elif char.isspace():
            position += 1
        elif char == "#":
            position = _line_end(text, position)
        elif text.startswith("\\\n", position):
            position += 2
        else:
            end = _word_end(text, position)
            raw = text[position:end]
            runs = begins and not target
            is_option = bool(starter) and (argument or raw.startswith("-"))
            if runs and (is_option or _ASSIGNMENT.match(raw)):
                runs = False
                argument = not argument and raw in _STARTERS.get(starter, ())
            elif runs and raw in _KEYWORDS | _ENDS:
                runs, begins = False, raw in _KEYWORDS
            elif runs:
                starter = raw if raw in _STARTERS else ""
                begins = bool(starter)
            target = False
            # a descriptor's number before > or <
            is_number = raw.isdigit() and text[end : end + 1] in {"<", ">"}
            if not is_number:
                yield Word(raw, offset + position, offset + end, runs)
            yield from _substituted(raw, offset + position)
            position = end


# --- what is written ----------------------------------------------------------------------------

UNNAMED = ""  # a file that is written or removed, and that the text does not name
# Options that take the next word, by program; all other words that begin with "-" stand alone.
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
    """The files that a text overwrites, changes or removes by the usual tools, each once and as
    written, without quotes and with ~ for $HOME. UNNAMED stands for those that only show when it
    runs: of a variable, of xargs, of code. What packages and programs of their own (apt-get,
    nvidia-ctk) write is not seen.
    """
    plain = _without_here_documents(text)
    return tuple(dict.fromkeys(_written(plain, list(words(plain)), 0)))


def _written(text: str, found: Sequence[Word], start: int) -> Iterator[str]:
    """Of words of one level; the words inside a word's $(...) are a level of their own."""
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
        if _OPERATORS & set(gap):
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
    """What stands between two words: operators and redirections, no comment, no >&1."""
    gap = between.replace("\\\n", " ").replace(">|", ">")
    return re.sub(r"#[^\n]*|[<>]&[\d-]|\d+(?=[<>])", "", gap)


def _written_by(command: Sequence[Word]) -> Iterator[str]:
    """What one program writes, by its arguments."""
    runs = [number for number, word in enumerate(command) if word.is_program]
    if not runs:
        return
    program = _unquoted(command[runs[-1]].text).rpartition("/")[2]
    arguments = [word.text for word in command[runs[-1] + 1 :] if word.text]
    yield from _outputs(arguments)
    writes = _WRITERS.get(program)
    if writes is not None:
        fed = any(command[number].text == "xargs" for number in runs[:-1])
        yield from [UNNAMED] * fed
        yield from map(_path, writes(program, arguments))
    elif program in _SHELLS and arguments[:1] and arguments[0].startswith("-"):
        for code in arguments[1:2] if "c" in arguments[0] else ():
            yield from written(_unquoted(code))
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
    """The last operand, or the file of each source in the directory that is named."""
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
    """Of -t DIR and --target-directory=DIR."""
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
    """A word as a file's name; UNNAMED where a variable or a command gives it."""
    plain = _unquoted(word)
    for home in ("$HOME/", "${HOME}/"):
        if plain.startswith(home):
            plain = f"~/{plain[len(home) :]}"
    return UNNAMED if "$" in plain or "`" in plain else plain


# --- the scanner --------------------------------------------------------------------------------


def _is_whole(text: str) -> bool:
    """Whether a command ends with this line."""
    if text.endswith("\\") and not text.endswith("\\\\"):
        return False
    delimiters = [match[3] for match in _HERE_DOCUMENT.finditer(_first_line(text))]
    if delimiters:
        return text.splitlines()[-1].strip() == delimiters[-1] and "\n" in text
    position = 0
    while position < len(text):
        end = _word_end(text, position)
        if end > len(text):
            return False
        position = max(end, position + 1)
    return not text.rstrip().endswith(("|", "&&"))


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _word_end(text: str, position: int) -> int:
    """Where a word ends; behind the text where a quote or a parenthesis is left open."""
    while position < len(text):
        char = text[position]
        if char.isspace() or char in _OPERATORS or char in "<>":
            return position
        if char == "\\":
            position += 2
        elif char == "'":
            position = _after(text, "'", position + 1)
        elif char == '"':
            position = _double_end(text, position + 1)
        elif text.startswith("$(", position):
            position = _substitution_end(text, position + 2)
        elif text.startswith("${", position):
            position = _after(text, "}", position + 2)
        else:
            position += 1
    return position


def _after(text: str, end: str, position: int) -> int:
    found = text.find(end, position)
    return len(text) + 1 if found < 0 else found + 1


def _double_end(text: str, position: int) -> int:
    while position < len(text):
        if text[position] == '"':
            return position + 1
        if text[position] == "\\":
            position += 2
        elif text.startswith("$(", position):
            position = _substitution_end(text, position + 2)
        else:
            position += 1
    return len(text) + 1


def _substitution_end(text: str, position: int) -> int:
    depth = 1
    while position < len(text):
        char = text[position]
        if char == ")":
            depth -= 1
            position += 1
            if not depth:
                return position
        elif char == "(":
            depth += 1
            position += 1
        elif char in "'\"\\$":
            position = max(_word_end(text, position), position + 1)
        else:
            position += 1
    return len(text) + 1


def _substituted(raw: str, offset: int) -> Iterator[Word]:
    """The words of what is in $(...), outside single quotes."""
    position, in_double = 0, False
    while position < len(raw):
        if raw[position] == "\\":
            position += 2
        elif raw[position] == "'" and not in_double:
            position = _after(raw, "'", position + 1)
        elif raw[position] == '"':
            in_double = not in_double
            position += 1
        elif raw.startswith("$((", position):
            position = _substitution_end(raw, position + 2)
        elif raw.startswith("$(", position):
            end = _substitution_end(raw, position + 2)
            yield from words(raw[position + 2 : end - 1], offset + position + 2)
            position = end
        else:
            position += 1


def _line_end(text: str, position: int) -> int:
    found = text.find("\n", position)
    return len(text) if found < 0 else found


def _without_here_documents(text: str) -> str:
    """The text with the bodies of here-documents blanked: the places of all else stay."""
    lines = text.split("\n")
    waiting: list[str] = []
    for number, line in enumerate(lines):
        if waiting:
            if line.strip() == waiting[0]:
                waiting.pop(0)
            lines[number] = " " * len(line)
        else:
            waiting = [match[3] for match in _HERE_DOCUMENT.finditer(line)]
    return "\n".join(lines)


def _unquoted(word: str) -> str:
    return word.replace('"', "").replace("'", "").replace("\\", "")
