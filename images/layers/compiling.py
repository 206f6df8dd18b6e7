"""Compiles and deflates sources: the part of `bytecode` that the target's version of Python runs.

An interpreter gets it as text (-c). It needs only built-in modules of the standard library and
zlib, and runs on Python 3.8 and later. It compiles its input and never executes it.

stdin: for each source the sizes of its path and content (two 32-bit numbers), path, content.
stdout: for each source, in the same order, a kind (one byte), checksum and size of the .pyc, the
size of what follows (three numbers), and that: for kind K the deflated .pyc, for S the reason why
the source is skipped. With the argument "greet": only one greeting, of kind G.

The output of `compile` and `marshal` depends on the strings that the process has interned: they
decide whether functions share a constant set, and whether a letter is marked. So that the bytes
depend neither on earlier sources nor on the interpreter's build, we intern all letters here, and
before each source all words in it.
"""

from __future__ import annotations

import _imp
import gc
import marshal
import posix
import sys
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types

MOST_SOURCE_BYTES = 16 << 20
UNCHECKED_HASH = b"\x01\0\0\0"
WORDS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
NO_WORDS = bytes(byte if byte in WORDS else 0x20 for byte in range(256))
NOT_A_PROGRAM = (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError)


def magic_number() -> bytes:
    return bytes(sys.modules["_frozen_importlib_external"].MAGIC_NUMBER)


def number(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def frame(kind: bytes, crc: int, size: int, content: bytes) -> bytes:
    head = b"".join(value.to_bytes(4, "little") for value in (crc, size, len(content)))
    return kind + head + content


def deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def constants(code: types.CodeType) -> list[object]:
    """All constants of a module, including those of its functions and those in tuples."""
    found: list[object] = []
    todo: list[object] = [code]
    while todo:
        one = todo.pop()
        if isinstance(one, tuple):
            todo.extend(one)
        elif hasattr(one, "co_consts"):
            todo.extend(one.co_consts)
        else:
            found.append(one)
    return found


def elements(constant: object) -> list[object]:
    """The elements of a set or tuple, recursively; empty for other constants."""
    if isinstance(constant, (frozenset, tuple)):
        return [inner for part in constant for inner in (part, *elements(part))]
    return []


def compile_alike(path: str, source: bytes) -> types.CodeType | None:
    """Compile a source so that the code does not depend on what was compiled before.

    None if that is impossible: 3.10 writes a set in memory order, and only 3.11 sorts it.
    """
    held = {sys.intern(word.decode()) for word in source.translate(NO_WORDS).split()}
    while True:
        code = compile(source, path, "exec", dont_inherit=True, optimize=0)
        found = constants(code)
        sets = [part for one in found for part in elements(one)]
        # words that are concatenated or escaped in the source are visible only now
        missing = {part for part in sets if isinstance(part, str)} - held
        if not missing:
            break
        held |= {sys.intern(part) for part in missing}
    if sys.version_info < (3, 11) and any(isinstance(one, frozenset) for one in found):
        return None
    return code


def names(code: types.CodeType) -> list[object]:
    """All names in a module's code.

    Before 3.11 `marshal` marks each name that has other references in the process: we hold all.
    """
    found: list[object] = []
    todo = [code]
    while todo:
        one = todo.pop()
        found += [one.co_name, one.co_filename, *one.co_names, *one.co_varnames]
        found += [*one.co_freevars, *one.co_cellvars]
        todo.extend(inner for inner in one.co_consts if hasattr(inner, "co_consts"))
    return [*found, *(constant for constant in constants(code) if isinstance(constant, str))]


def compiled(path: str, source: bytes) -> bytes:
    try:
        code = compile_alike(path, source)
    except NOT_A_PROGRAM as error:
        return frame(b"S", 0, 0, type(error).__name__.encode())
    if code is None:
        return frame(b"S", 0, 0, b"has a set without an order")
    held = names(code) if sys.version_info < (3, 11) else []
    magic = magic_number()
    digest = _imp.source_hash(int.from_bytes(magic, "little"), source)
    data = magic + UNCHECKED_HASH + digest + marshal.dumps(code)
    del held
    return frame(b"K", zlib.crc32(data), len(data), deflate(data))


def write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[posix.write(1, view) :]


def sample() -> bytes:
    """Half a megabyte, as varied as byte code: its compressed form identifies the zlib."""
    words = [repr((index * 2654435761) % 4294967296).encode() for index in range(4096)]
    state, parts = 12345, []
    for _ in range(40000):
        state = (state * 1103515245 + 12345) % 2147483648
        parts.append(words[(state >> 16) % (64 if state & 32768 else 4096)])
        if not state >> 7 & 15:
            parts.append(bytes([state >> 8 & 255]) * (state >> 20 & 63))
    return b"".join(parts)


def greeting() -> bytes:
    """Describe this compiler: implementation, version, magic number, checksum of zlib's output."""
    made = deflate(sample())
    version = sys.version.split()[0] + ("t" if "free-threading" in sys.version else "")
    kind = sys.implementation.name
    return f"{kind} {version} {magic_number().hex()} {zlib.crc32(made):08x} {len(made)}".encode()


def main() -> None:
    read = sys.stdin.buffer.read
    if sys.argv[-1] == "greet":
        write(frame(b"G", 0, 0, greeting()))
        return
    gc.disable()  # code has no cycles
    held = [sys.intern(chr(letter)) for letter in range(256)]
    while held:
        head = read(8)
        if len(head) < 8:
            return
        path = read(number(head, 0)).decode("utf-8", "surrogateescape")
        write(compiled(path, read(number(head, 4))))


if __name__ == "__main__":
    main()
