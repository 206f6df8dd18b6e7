"""Whole wheels: what each kind of them says of itself, and what its libraries say."""

from __future__ import annotations

from pathlib import Path

import pytest

from images.inspect import measuring
from images.inspect.measuring import measure
from images.inspect.model import LibraryCode, WheelCode
from images.wheels.errors import WheelUnreadableError
from tests.kit.cases import cases
from tests.kit.wheel_maker import AARCH64, library, recorded, targets, torch_wheel, wheel

TORCH = "torch-2.0.1-cp311-cp311-manylinux1_x86_64.whl"
BUILD_INFO = "tensorflow/python/platform/build_info.py"


class Wheels:
    """Writes wheels and measures them."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __call__(
        self,
        body: bytes,
        name: str = "example-1.0-cp311-cp311-linux_x86_64.whl",
        *,
        deep: bool = False,
    ) -> WheelCode:
        path = self.place / name
        path.write_bytes(body)
        return measure(str(path), deep=deep)


@pytest.fixture
def measured(tmp_path: Path) -> Wheels:
    return Wheels(tmp_path)


def test_torch_tells_by_its_flags(measured: Wheels, tmp_path: Path) -> None:
    body = torch_wheel()
    code = measured(body, TORCH)
    assert code == WheelCode(
        source=str(tmp_path / TORCH),
        name="torch",
        version="2.0.1+cu117",
        python_tag="cp311-cp311",
        platform_tags=("manylinux1_x86_64",),
        arch="x86_64",
        cuda="11.7",
        cudnn="8.5.0.96",
        flags=("sm_70", "sm_80", "compute_80"),
        libraries=(),
        sm=((7, 0), (8, 0)),
        ptx=(8, 0),
        how="flags",
        requires=("filelock", 'nvidia-cudnn-cu11 (==8.5.0.96) ; platform_system == "Linux"'),
        bytes_read=code.bytes_read,
        bytes_total=len(body),
        notes=(),
    )


def test_torch_without_cuda_is_believed(measured: Wheels) -> None:
    code = measured(torch_wheel(cuda="None", flags=b""), TORCH)
    assert (code.how, code.sm, code.ptx, code.cuda, code.cudnn) == (
        "build-info",
        (),
        None,
        None,
        None,
    )
    assert code.notes == ("torch/version.py says that it was built without CUDA.",)


def test_torch_without_flags_tells_by_its_libraries(measured: Wheels) -> None:
    code = measured(torch_wheel(flags=b""), TORCH)
    assert (code.how, code.sm, code.ptx, code.cuda) == ("fatbins", ((8, 0),), None, "11.7")
    assert [found.name for found in code.libraries] == ["torch/lib/libtorch_cuda.so"]


def test_a_deep_reading_says_where_libraries_and_flags_differ(measured: Wheels) -> None:
    kernels = library({".nv_fatbin": targets("sm_80") * 30 + targets("sm_80", "sm_90a")})
    code = measured(torch_wheel(code=kernels), TORCH, deep=True)
    assert (code.how, code.sm, code.ptx) == ("flags", ((7, 0), (8, 0)), (8, 0))
    assert code.libraries == (
        LibraryCode(name="torch/lib/libtorch_cuda.so", fatbins=31, sass={"sm_80": 31, "sm_90a": 1}),
    )
    few, lacking = code.notes
    assert few == "Of the 31 fatbins of torch/lib/libtorch_cuda.so, only some hold sm_90a (1)."
    assert lacking.startswith("The build names 7.0, and not nearly all fatbins of torch/lib/libtor")


@cases(
    "text how sm ptx cuda cudnn",
    ("all of it", ("[('cuda_compute_capabilities', ['sm_60', 'sm_89', 'compute_90']), "
     "('cuda_version', '12.5.1'), ('cudnn_version', '9'), ('is_cuda_build', True)]"), "build-info",
     ((6, 0), (8, 9)), (9, 0), "12.5", "9"),
    ("CPU", "[('is_cuda_build', False)]", "build-info", (), None, None, None),
    ("nothing", "[('is_cuda_build', True)]", "fatbins", ((8, 0),), None, None, None),
)  # fmt: skip
def test_tensorflow_tells_by_its_build_info(
    measured: Wheels, text: str, how: str, sm: object, ptx: object, cuda: object, cudnn: object
) -> None:
    body = wheel(
        {
            BUILD_INFO: f"import collections\nbuild_info = OrderedDict({text})\n".encode(),
            "tensorflow/libtensorflow_cc.so.2": library({".nv_fatbin": targets("sm_80")}),
        },
        name="tensorflow",
        version="2.21.0",
    )
    code = measured(body)
    assert (code.how, code.sm, code.ptx, code.cuda, code.cudnn) == (how, sm, ptx, cuda, cudnn)


def test_any_other_wheel_tells_by_its_libraries(measured: Wheels) -> None:
    body = wheel(
        {
            "example/_C.cpython-311-x86_64-linux-gnu.so": recorded("linked.so"),
            "example.libs/libother-1234.so.13.1": library({".nv_fatbin": targets("sm_80")}),
            "example/none.so": library({".text": b"x"}),
            "example/empty.so": b"",
            "example/notes.so.txt": b"no library",
        }
    )
    code = measured(body)
    assert (code.how, code.sm, code.ptx, code.cuda) == ("fatbins", ((8, 0),), None, None)
    assert [(found.name, found.fatbins) for found in code.libraries] == [
        ("example/_C.cpython-311-x86_64-linux-gnu.so", 2),
        ("example.libs/libother-1234.so.13.1", 1),
    ]
    assert len(code.notes) == 3


def test_a_wheel_of_python_alone_has_no_code(measured: Wheels) -> None:
    code = measured(wheel({"example/__init__.py": b""}), "example-1.0-py3-none-any.whl")
    assert (code.sm, code.ptx, code.arch, code.platform_tags) == ((), None, None, ("any",))
    assert code.notes == ("No device code was found in it.",)


@cases(
    "name python_tag platforms arch",
    ("two", "a-1-cp39-abi3-x_y.b.whl", "cp39-abi3", ("x_y", "b"), None),
    ("with a build number", "a-1-3-cp311-cp311-manylinux_2_28_aarch64.whl", "cp311-cp311",
     ("manylinux_2_28_aarch64",), "aarch64"),
    ("another name", "a.zip", "cp311-cp311", ("linux_x86_64",), "x86_64"),
    ("too short", "a.whl", "cp311-cp311", ("linux_x86_64",), "x86_64"),
)  # fmt: skip
def test_tags_are_those_of_the_name_or_else_of_the_wheel(
    measured: Wheels, name: str, python_tag: str, platforms: tuple[str, ...], arch: str | None
) -> None:
    code = measured(wheel({"example/__init__.py": b""}), name)
    assert (code.python_tag, code.platform_tags, code.arch) == (python_tag, platforms, arch)


def test_a_library_for_another_machine_is_told(measured: Wheels) -> None:
    other = {"a.so": library({".nv_fatbin": targets("sm_90")}, machine=AARCH64)}
    assert "Its tags say x86_64, and it holds" in " ".join(measured(wheel(other)).notes)
    assert measured(wheel(other), "example-1.0-py3-none-any.whl").arch == "aarch64"


@cases(
    "body said",
    ("no zip", b"no zip", "no zip directory"),
    ("a name that is none", wheel({}, name="../x"), "no wheel"),
    ("two names", wheel({"other-1.dist-info/METADATA": b"Name: x\nVersion: 1"}), "no wheel"),
    ("a library that is none", wheel({"a.so": b"text" * 99}), "a.so is not an ELF"),
    ("a wheel for Windows", wheel({"a/b.dll": b"MZ"}), "for another system"),
    ("a wheel for macOS", wheel({"a/b.dylib": b"x"}), "for another system"),
    ("a text of five megabytes", wheel({"torch/version.py": bytes(5 << 20)}), "are allowed"),
)
def test_what_is_no_wheel_for_us_is_named(measured: Wheels, body: bytes, said: str) -> None:
    with pytest.raises(WheelUnreadableError, match=said) as caught:
        measured(body)
    assert caught.value.fix


def test_libraries_beyond_all_measure_are_refused(
    measured: Wheels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "_LIBRARY_BYTES", 100)
    with pytest.raises(WheelUnreadableError, match="100 are allowed"):
        measured(wheel({"a.so": library({".text": bytes(500)})}))


def test_progress_names_the_member_and_ends_at_its_size(tmp_path: Path) -> None:
    path = tmp_path / TORCH
    path.write_bytes(torch_wheel(size=1 << 20))
    heard: list[tuple[str, int, int]] = []
    measure(str(path), deep=True, on_progress=lambda *said: heard.append(said))
    last = {name: (done, total) for name, done, total in heard}
    assert set(last) == {f"torch/lib/libtorch_{name}.so" for name in ("cuda", "cpu", "python")}
    assert all(done == total > 0 for done, total in last.values())
