"""What is said of symbols that nothing defines, and how their names are written."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from images.inspect.contents import read_image, read_wheel
from images.inspect.image import conclude
from provision.verification.inspection.mangled import readable
from provision.verification.inspection.report import make_report
from tests.kit.cases import cases
from tests.kit.elf_maker import elf
from tests.kit.image_maker import Files, image_of, installed
from tests.kit.wheel_maker import InMemory
from tests.kit.wheel_maker import wheel as wheel_of
from tests.unit.images.inspect.test_image_needs import MODULE, SITE, program

ENV = {"PATH": "/opt/venv/bin:/usr/bin"}


def packages(extension: bytes, *, requires: str = "torch") -> Files:
    """A Python, torch with a library that defines `c10::check()`, and torchvision's module."""
    library = elf(soname="libc10.so", defines=["_ZN3c105checkEv"])
    torch: Files = {
        "torch/lib/libc10.so": library,
        f"torch/{MODULE}": elf(needed=["libc10.so"], rpath="$ORIGIN/lib"),
    }
    vision: Files = {f"torchvision/{MODULE}": extension}
    return {
        "usr/bin/python3.11": program(defines=["PyErr_Occurred"]),
        "opt/venv/bin/python3": "/usr/bin/python3.11",
        **installed("torch", "2.0.1", torch, site=SITE),
        **installed("torchvision", "0.16.0", vision, site=SITE, requires=[requires]),
    }


@cases(
    "symbol shown",
    ("a nested name", "_ZN3c104cuda9SetDeviceEi", "c10::cuda::SetDevice"),
    ("of C", "c10_cuda_check_implementation", "c10_cuda_check_implementation"),
    ("a function outside of namespaces", "_Z3fooi", "foo"),
    ("a const method", "_ZNK2at6Tensor3dimEv", "at::Tensor::dim"),
    ("a constructor", "_ZN3c105ErrorC1Ev", "c10::Error::Error"),
    ("a destructor", "_ZN3c105ErrorD2Ev", "c10::Error::~Error"),
    ("a table of virtual functions", "_ZTVN3c105ErrorE", "vtable for c10::Error"),
    ("a template is cut", "_ZNSt6vectorIiE4pushEv", "std::vector<...>"),
    ("a length beyond the name", "_ZN99999xE", "_ZN99999xE"),
    ("nothing in it", "_Z", "_Z"),
    ("an operator", "_ZN3c10ltERKNS_6SymIntEi", "c10::operator<"),
    ("an operator outside of namespaces", "_ZlsR6QDebugi", "operator<<"),
    ("an abbreviation", "_ZNKSs4findEPKcm", "std::string::find"),
    ("a tag of the ABI", "_ZNSt7__cxx114listB5cxx11E", "std::__cxx11::list"),
    ("what is not understood", "_ZN1aS_1bEv", "a::..."),
    ("only so many parts", "_ZN" + "1a" * 99_999, "::".join("a" * 32)),
    ("without a name", "_ZN12_GLOBAL__N_13fooEv", "(anonymous namespace)::foo"),
)
def test_a_name_of_c_plus_plus_is_readable(symbol: str, shown: str) -> None:
    assert readable(symbol) == shown


@given(st.text(alphabet="_ZNSt0123456789EICDKabv", max_size=200))
def test_any_name_is_shown(text: str) -> None:
    assert readable("_Z" + text)


def verdict_of(files: Files) -> dict[str, Any]:
    found = conclude(read_image(image_of(files, env=ENV)))
    report = make_report(found, (), seconds=1.0)
    return next(dict(one) for one in report["checks"] if one["id"] == "inspect.symbols")


def test_a_missing_symbol_fails_with_the_package_that_should_define_it() -> None:
    extension = elf(needed=["libc10.so"], wants=["_ZN3c104goneEv"])
    one = verdict_of(packages(extension))
    assert one["status"] == "fail"
    assert "torchvision 0.16.0" in one["message"]
    assert "c10::gone (_ZN3c104goneEv), which torch 2.0.1 does not define" in one["message"]
    assert "torch 2.0.1" in one["fix"]


def test_a_requirement_that_does_not_hold_is_named_as_the_cause() -> None:
    extension = elf(needed=["libc10.so"], wants=["_ZN3c104goneEv"])
    one = verdict_of(packages(extension, requires="torch==2.1.0"))
    assert one["cause"] == "It requires torch==2.1.0, and 2.0.1 is installed."
    assert "torch==2.1.0" in one["fix"]


def test_a_package_whose_own_library_lacks_a_symbol_is_to_be_reinstalled() -> None:
    extension = elf(needed=["libown.so"], rpath="$ORIGIN", wants=["gone"])
    own: Files = {f"{SITE}/torchvision/libown.so": elf(soname="libown.so")}
    one = verdict_of({**packages(extension), **own})
    assert "gone, which nothing that it loads defines" in one["message"]
    assert one["fix"] == "Reinstall it: pip install --force-reinstall torchvision==0.16.0"


def test_a_program_of_no_package_is_named_by_its_path() -> None:
    one = verdict_of({"usr/bin/p": program(wants=["\udcff" + "x" * 999])})
    assert one["message"].startswith("/usr/bin/p needs ?xxx")
    assert len(one["message"]) < 300
    assert "build /usr/bin/p in this image" in one["fix"]


def test_a_module_for_another_python_is_named() -> None:
    one = verdict_of(packages(elf(wants=["PyErr_Gone"])))
    assert one["status"] == "fail"
    assert "another Python than 3.11" in one["cause"]


def test_all_found_passes_with_their_number() -> None:
    extension = elf(needed=["libc10.so"], wants=["_ZN3c105checkEv", "PyErr_Occurred"])
    one = verdict_of(packages(extension))
    assert (one["status"], one["measured"]["symbols"]) == ("pass", 2)


def test_a_program_that_may_never_call_it_passes_with_the_reading() -> None:
    files: Files = {
        "usr/bin/p": program(needed=["libx.so.1"], calls=["gone"], wants=["f"]),
        "usr/lib/libx.so.1": elf(soname="libx.so.1", defines=["f"]),
    }
    one = verdict_of(files)
    assert one["status"] == "pass"
    assert "gone" in str(one["measured"])


def test_a_wheel_alone_is_not_judged_for_what_others_define() -> None:
    extension = elf(needed=["libc10.so"], wants=["_ZN3c104goneEv", "PyErr_Occurred"])
    data = wheel_of({f"torchvision/{MODULE}": extension}, name="torchvision", requires=("torch",))
    found = conclude(read_wheel(InMemory(data)))
    report = make_report(found, (), seconds=1.0)
    one = next(one for one in report["checks"] if one["id"] == "inspect.symbols")
    assert one["status"] == "skip"
