"""Layers of byte code: what is compiled, bytes that tell nothing of the process, and refusals.

They compile with the Python that runs the tests, as if it were the base's.
"""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import platform
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.layers import compiling, interpreter
from images.layers.base_facts import BaseFacts
from images.layers.bytecode import (
    MOST_GROUPS,
    BytecodeLayer,
    bytecode_groups,
    bytecode_layer,
    cached_path,
    is_compiled,
)
from images.layers.errors import WheelRefusedError
from images.layers.interpreter import Compiler, Interpreter, greet, take_runtime
from images.layers.order import arrange
from images.layers.own import site_of
from images.layers.own_errors import BytecodeError
from images.system.errors import NoRunnerError
from images.wheels.remote_file import Wheel
from tests.kit.cases import cases
from tests.kit.layer_maker import Piece, change, collect, craft, files_of, locked, pieces_of, unpack
from tests.kit.programs import run_program
from tests.unit.images.layers.test_base_facts import PYTHON, file, image

X_Y = f"{sys.version_info[0]}.{sys.version_info[1]}"
SITE = site_of(X_Y)
BASE = image([file("usr/bin/python3", PYTHON)])
SET = b"""
def f(x): return x in {'alpha_w', 'beta_w'} or 'alpha_w'
def g(x): return x in {'alpha_w', 'beta_w'}
"""


def facts(full: str | None) -> BaseFacts:
    return BaseFacts(python="/usr/bin/python3", python_full=full, glibc=None, bash=True, cuda=False)


def compiler(full: str | None = None) -> Compiler:
    return Compiler(facts(full or platform.python_version()), python=X_Y, base=BASE, confine=plain)


@pytest.fixture(scope="module")
def here() -> Compiler:
    """This Python as a compiler, for whose zlib the machine is to be asked."""
    made = compiler()
    try:
        made.interpreter()
    except BytecodeError as error:
        pytest.skip(error.detail)
    return made


def layer_of(
    files: Mapping[str, bytes], directory: Path, made_by: Compiler, *, broken: bool = False
) -> BytecodeLayer:
    pieces = pieces_of(*(Piece(name=name, content=content) for name, content in files.items()))
    if broken:
        pieces = change(pieces, "bad.py", said={"crc": 1}, said_before={"crc": 1})
    path = directory / "it.whl"
    path.write_bytes(craft(pieces))
    return bytecode_layer(
        [locked()], compiler=made_by, site=SITE, exclude_unneeded=False, fetch=lambda _: path
    )


def test_modules_get_byte_code_that_is_not_compared_with_its_source(
    here: Compiler, tmp_path: Path
) -> None:
    files = {
        "a/__init__.py": b"VALUE = 1\n",
        "a/b.c.py": b"x = 2\n",
        "a/py2.py": b"print 'old'\n",
        "a/nul.py": b"x = 1\0",
        "a/template.py": b"{{ name }} = 1\n",
        "a/latin.py": b"# coding: latin-1\nx = '\xe4'\n",
        "a/tests/test_a.py": b"x = 3\n",
        "a/data.txt": b"x = 4\n",
        "example-1.0.data/purelib/single.py": b"y = 5\n",
        "example-1.0.data/scripts/tool.py": b"#!python\n",
    }
    content, _ = collect(layer_of(files, tmp_path, here).stream(None))
    found = files_of(content)
    names = {path.removeprefix(f"{SITE}/").replace(f".cpython-{X_Y.replace('.', '')}", "")
             for path in found}  # fmt: skip
    assert names == {
        "a/__pycache__/__init__.pyc",
        "a/__pycache__/b.c.pyc",
        "a/__pycache__/latin.pyc",
        "__pycache__/single.pyc",
    }
    for data in found.values():
        assert data[:4] == importlib.util.MAGIC_NUMBER
        assert data[4:8] == b"\1\0\0\0"
    init = found[cached_path(f"{SITE}/a/__init__.py", X_Y)]
    assert init[8:16] == importlib.util.source_hash(b"VALUE = 1\n")
    assert marshal.loads(init[16:]).co_filename == f"/{SITE}/a/__init__.py"


def test_python_takes_it_in_place_of_the_source(here: Compiler, tmp_path: Path) -> None:
    content, _ = collect(layer_of({"mod.py": b"print('byte code')\n"}, tmp_path, here).stream(None))
    site = tmp_path / "site"
    for path, data in files_of(content).items():
        target = site / path.removeprefix(f"{SITE}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    (site / "mod.py").write_text("print('source')\n")
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(site)!r}]; import mod"]
    done = run_program(command, check=True)
    assert done.stdout == "byte code\n"


def test_the_layer_is_as_the_stream_says_and_the_same_when_it_is_known(
    here: Compiler, tmp_path: Path
) -> None:
    import gzip

    layer = layer_of({f"p/m{n}.py": b"x = %d\n" % n for n in range(9)}, tmp_path, here)
    content, unpacked = collect(layer.stream(None))
    plain = gzip.decompress(content)
    assert unpacked.diff_id == f"sha256:{hashlib.sha256(plain).hexdigest()}"
    assert unpacked.size == len(plain)
    assert collect(layer.stream(unpacked)) == (content, unpacked)
    assert list(unpack(content)) == sorted(unpack(content), key=lambda path: path.split("/"))


def test_wheels_without_python_make_an_empty_layer_and_start_nothing(tmp_path: Path) -> None:
    nobody = compiler("9.9.9")
    content, _ = collect(layer_of({"lib.so": b"x"}, tmp_path, nobody).stream(None))
    assert unpack(content) == {}


RUN = """
import sys
{before}
scope = {{"__name__": "worker"}}
exec({text!r}, scope)
held = [sys.intern(chr(n)) for n in range(256)]
import marshal
if {ours}:
    code = scope["compile_alike"]("/x.py", {source!r})
else:
    code = compile({source!r}, "/x.py", "exec")
sys.stdout.write(marshal.dumps(code).hex())
"""


def dumped(source: bytes, before: str, *, ours: bool) -> str:
    """What a fresh Python makes of a source after doing something else."""
    text = Path(compiling.__file__).read_text(encoding="utf-8")
    script = RUN.format(before=before, text=text, source=source, ours=ours)
    done = run_program(
        [sys.executable, "-S", "-s", "-c", script], env={"PYTHONHASHSEED": "0"}, check=True
    )
    return done.stdout


# spelled backwards, so that the script's own constants do not hold what it interns
INTERNED = "held_before = [sys.intern(w[::-1]) for w in ('w_ahpla', 'w_ateb')]"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="sources with sets are left out")
def test_what_the_process_holds_is_not_in_the_bytes() -> None:
    fresh, used = (dumped(SET, before, ours=True) for before in ("", INTERNED))
    assert fresh == used


def test_and_would_be_if_nothing_were_done_about_it() -> None:
    """The seeded fault: plain `compile` shares the set in one process, and not in the other."""
    fresh, used = (dumped(SET, before, ours=False) for before in ("", INTERNED))
    assert fresh != used


@pytest.mark.skipif(sys.version_info < (3, 11), reason="sources with sets are left out")
def test_words_that_are_put_together_are_seen_too() -> None:
    split = SET.replace(b"'alpha_w'", b"'alp' 'ha_w'").replace(b"'beta_w'", b"'bet\\x61_w'")
    assert len({dumped(split, before, ours=True) for before in ("", INTERNED)}) == 1


@given(st.permutations([SET, b"x = 'beta_w'\n", b"def alpha_w(): return '*', '', 'a b'\n"]))
def test_the_order_of_sources_is_not_in_their_bytes(sources: Sequence[bytes]) -> None:
    first = {source: compiling.compiled("/x.py", source) for source in sources}
    again = {source: compiling.compiled("/x.py", source) for source in reversed(sources)}
    assert first == again


@cases(
    "version source kind",
    ("a set before 3.11, which sorts them", (3, 10, 13), SET, b"S"),
    ("no set before 3.11", (3, 10, 13), b"x = 'a', 'b', 1.5\n", b"K"),
    ("a set from 3.11 on", (3, 11, 0), SET, b"K"),
)
def test_a_set_in_no_order_is_left_out(
    version: tuple[int, ...], source: bytes, kind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    assert compiling.compiled("/x.py", source)[:1] == kind


@cases(
    "source",
    ("brackets without end", b"(" * 50_000),
    ("signs without end", b"x = " + b"-" * 3000 + b"1"),
    ("no text", b"\xff\xfe\0"),
    ("an unknown encoding", b"# coding: nonsense\n"),
    ("a return outside of a function", b"return 1"),
)
def test_what_is_no_program_is_left_out_or_compiled_and_no_more(source: bytes) -> None:
    answers = {compiling.compiled("/x.py", source) for _ in range(2)}
    assert len(answers) == 1
    assert answers.pop()[:1] in {b"S", b"K"}


@cases(
    "path expected",
    ("a module", "a/b.py", True),
    ("a module of its own", "six.py", True),
    ("testing is for others' tests", "torch/testing/_comparison.py", True),
    ("a test", "numpy/core/tests/test_x.py", False),
    ("tests by their other name", "a/test/__init__.py", False),
    ("a name that is none", "a/.py", False),
    ("a stub", "a/b.pyi", False),
)
def test_what_is_compiled(path: str, expected: bool) -> None:  # noqa: FBT001
    assert is_compiled(f"{SITE}/{path}", SITE) is expected
    assert not is_compiled(f"opt/venv/bin/{path}", SITE)


@pytest.mark.parametrize("name", ["a/b.py", "six.py", "a/b.c.py"])
def test_byte_code_lies_where_python_looks(name: str) -> None:
    assert cached_path(f"/s/{name}", X_Y) == importlib.util.cache_from_source(f"/s/{name}")


def test_a_damaged_wheel_is_the_wheel_s_fault(here: Compiler, tmp_path: Path) -> None:
    files = {f"m{n}.py": b"x = 1\n" for n in range(5)} | {"n/bad.py": b"x = 2\n"}
    with pytest.raises(WheelRefusedError, match=r"n/bad\.py"):
        collect(layer_of(files, tmp_path, here, broken=True).stream(None))


def stand_in(script: str) -> Interpreter:
    """A program in an interpreter's place: it is given our options, and reads none."""
    return Interpreter(argv=("/bin/sh", "-c", script, "sh"), environment={}, shown="stand-in")


@cases(
    "script",
    ("ends at once", "exit 3"),
    ("ends in the middle of an answer", "head -c 9 >/dev/null; printf K"),
    ("is killed", "kill -9 $$"),
)
def test_a_compiler_that_ends_is_a_failure_that_names_the_source(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = compiler()
    monkeypatch.setattr(dying, "interpreter", lambda: stand_in(script))
    with pytest.raises(BytecodeError) as caught:
        collect(layer_of({"a/b.py": b"x = 1\n"}, tmp_path, dying).stream(None))
    assert "a/b.py" in caught.value.message
    assert "without --bytecode" in caught.value.fix


def test_a_compiler_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("images.layers.bytecode._SILENCE_SECONDS", 0.2)
    hanging = compiler()
    monkeypatch.setattr(hanging, "interpreter", lambda: stand_in("exec sleep 60"))
    with pytest.raises(BytecodeError, match="said nothing"):
        collect(layer_of({"a/b.py": b"x = 1\n"}, tmp_path, hanging).stream(None))


def test_an_answer_that_is_damaged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying = compiler()
    answer = (b"K" + bytes(4) + b"\5\0\0\0" + b"\2\0\0\0" + compiling.deflate(b"")).hex()
    printed = "".join(f"\\{int(answer[at : at + 2], 16):03o}" for at in range(0, len(answer), 2))
    monkeypatch.setattr(
        lying, "interpreter", lambda: stand_in(f"printf '{printed}'; cat >/dev/null")
    )
    with pytest.raises(BytecodeError, match="damaged"):
        collect(layer_of({"a/b.py": b"x = 1\n"}, tmp_path, lying).stream(None))


def test_closing_it_early_leaves_nothing_running(here: Compiler, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    files = {f"m{n:04}.py": b"x = %d\n" % n * 50 for n in range(2000)}
    stream = layer_of(files, tmp_path, here).stream(None)
    next(stream)
    stream.close()
    assert set(threading.enumerate()) <= before


@cases(
    "greeting expected",
    ("one as the base's", "cpython 3.11.2 x 9809ebd5 136628", "3.11.2"),
    ("zlib-ng", "cpython 3.11.2 x b904a73b 136079", "3.11.2 zlib b904a73b 136079"),
    ("another kind", "pypy 3.11.2 x 9809ebd5 136628", "3.11.2 pypy"),
    ("no greeting", "hello", None),
    ("nothing", "", None),
)
def test_an_interpreter_says_what_it_is(greeting: str, expected: str | None) -> None:
    frame = "G\\000\\000\\000\\000\\000\\000\\000\\000\\000\\000\\000\\000"
    assert greet(stand_in(f"printf '{frame}{greeting}'")) == expected


def test_a_program_that_is_missing_gives_no_greeting() -> None:
    assert greet(Interpreter(argv=("/nowhere/python",), environment={}, shown="x")) is None


def test_another_version_is_refused_with_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BytecodeError) as caught:
        compiler("3.99.1").interpreter()
    assert "Python 3.99.1" in caught.value.message
    assert "without --bytecode" in caught.value.fix
    assert platform.python_version() in caught.value.detail
    monkeypatch.setattr(interpreter, "ORIGINAL_ZLIB", "0 0")
    with pytest.raises(BytecodeError) as caught:
        compiler().interpreter()
    assert "zlib" in caught.value.detail


def test_a_base_without_a_full_version_is_refused() -> None:
    made = Compiler(facts(None), python=X_Y, base=BASE, confine=plain)
    with pytest.raises(BytecodeError, match="version"):
        made.interpreter()


def test_the_key_is_of_the_wheels_and_the_python(tmp_path: Path) -> None:
    def key(names: Sequence[str] = ("a", "b"), full: str = "3.11.2", **more: object) -> str:
        given = {"site": SITE, "exclude_unneeded": False, **more}
        wheels = [locked(name) for name in names]
        fetch = tmp_path.joinpath
        return bytecode_layer(wheels, compiler=compiler(full), fetch=fetch, **given).key  # type: ignore[arg-type]

    others = [key(["a"]), key(full="3.11.3"), key(site="x"), key(exclude_unneeded=True)]
    assert key(["b", "a"]) == key()
    assert len({key(), *others}) == 5


def test_nothing_of_a_base_is_written_elsewhere(tmp_path: Path) -> None:
    hostile = BaseFacts(
        python="/usr/bin/python3.11", python_full="3.11.2", glibc=None, bash=True, cuda=False,
        loader="/lib/ld.so", stdlib="/usr/lib/python3.11",
        runtime={"../../x": "/lib/a", "/abs": "/lib/a", "..": "/lib/a", "lib-dynload/..": "/lib/a",
                 "lib-dynload/z.so": "/lib/a", "libz.so.1": "/lib/a"},
    )  # fmt: skip
    base = image(
        [
            file("usr/bin/python3.11", b"py"),
            file("lib/ld.so", b"ld"),
            file("lib/a", b"a"),
            file("usr/lib/python3.11/os.py"),
            file("usr/lib/python3.11/encodings/utf_8.py"),
            file("usr/lib/python3.11/test/big.py"),
            file("usr/lib/python3.11//abs.py"),
        ]
    )
    root = tmp_path / "root"
    root.mkdir()
    take_runtime(base, hostile, "3.11", root)
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.*")) == [
        "root/lib/python3.11",
        "root/lib/python3.11/abs.py",
        "root/lib/python3.11/encodings/utf_8.py",
        "root/lib/python3.11/lib-dynload/z.so",
        "root/lib/python3.11/os.py",
        "root/so/libz.so.1",
    ]
    assert (root / "bin/python").read_bytes() == b"py"
    assert (root / "loader").read_bytes() == b"ld"


OF_THE_BASE = BaseFacts(
    python="/usr/bin/python3", python_full="3.11.2", glibc=None, bash=True, cuda=False,
    loader="/lib/ld.so", stdlib="/usr/lib/python3",
)  # fmt: skip


def plain(
    root: Path, at: str, argv: Sequence[str], env: Mapping[str, str]
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """No sandbox: for programs of our own."""
    return tuple(word.replace(at, str(root), 1) for word in argv), env


def test_without_a_sandbox_the_base_s_own_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(interpreter, "_of_this_machine", lambda _: iter(()))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")

    def none(*_: object) -> NoReturn:
        raise NoRunnerError("A sandbox needs bubblewrap.", fix="Install it.")

    made = Compiler(OF_THE_BASE, python=X_Y, base=BASE, confine=none)
    with pytest.raises(BytecodeError) as caught:
        made.interpreter()
    assert "A sandbox needs bubblewrap." in caught.value.detail


def test_a_compiler_removes_what_it_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(interpreter, "_of_this_machine", lambda _: iter(()))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    made = Compiler(OF_THE_BASE, python=X_Y, base=BASE, confine=plain)
    with pytest.raises(BytecodeError) as caught:
        made.interpreter()
    assert "does not run" in caught.value.detail
    assert list(tmp_path.iterdir()) != []
    del made, caught
    import gc

    gc.collect()
    assert list(tmp_path.iterdir()) == []


WHEELS = st.lists(
    st.builds(
        lambda name, size: Wheel(
            name=name,
            version="1",
            url="x",
            size=size,
            sha256=hashlib.sha256(name.encode()).hexdigest(),
        ),
        st.from_regex(r"(nvidia-)?[a-z]{1,6}", fullmatch=True),
        st.one_of(st.none(), st.integers(0, 1 << 30), st.integers(0, 1 << 18)),
    ),
    unique_by=lambda wheel: wheel.name,
    max_size=60,
)


@given(WHEELS)
def test_groups_keep_all_wheels_in_the_order_of_their_layers(wheels: list[Wheel]) -> None:
    layers = arrange(wheels)
    groups = bytecode_groups(layers)
    assert [w for group in groups for w in group] == [w for group in layers for w in group]
    assert len(groups) <= MOST_GROUPS
    assert all(groups)


def test_a_small_package_more_changes_one_group_of_a_real_lock() -> None:
    sizes = {"torch": 620 << 20, "nvidia-cudnn": 557 << 20, "nvidia-nccl": 177 << 20}
    sizes |= {"sympy": 6 << 20, "numpy": 18 << 20, "jinja2": 134_000, "filelock": 22_000}

    def groups(more: Mapping[str, int]) -> set[tuple[str, ...]]:
        wheels = [
            Wheel(name=name, version="1", url="x", size=size, sha256=name)
            for name, size in {**sizes, **more}.items()
        ]
        found = bytecode_groups(arrange(wheels, framework=("torch",)))
        return {tuple(wheel.name for wheel in group) for group in found}

    before, after = groups({}), groups({"six": 11_000})
    assert ("nvidia-cudnn", "nvidia-nccl") in before
    assert len(before - after) == 1
    assert len(after - before) == 1
