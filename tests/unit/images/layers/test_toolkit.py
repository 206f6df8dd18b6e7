"""Links and a loader's cache for NVIDIA's wheels: which locks need them, and what is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from images.layers.base_facts import BaseFacts
from images.layers.own import site_of
from images.layers.tar import TarEntry
from images.layers.toolkit import ToolkitFile, toolkit_entries, toolkit_layers
from images.system import ldcache
from images.wheels.remote_file import Wheel
from tests.kit.cases import cases
from tests.kit.layer_maker import Piece, collect, craft, locked, pieces_of, unpack

SITE = site_of("3.11")
ELF = b"\x7fELF" + bytes(60)
FACTS = BaseFacts(
    python="/usr/bin/python3.11",
    python_full="3.11.2",
    glibc="2.36",
    bash=True,
    cuda=False,
    ld_cache=ldcache.with_libraries(None, ["/lib/libz.so.1"], arch="x86_64", directories=()),
    ld_conf={
        "/etc/ld.so.conf": "include ld.so.conf.d/*.conf\n",
        "/etc/ld.so.conf.d/z.conf": "/z\n",
    },
)


def never(wheel: Wheel) -> Path:
    raise AssertionError(wheel)


def found(*paths: str, **fields: bool) -> list[ToolkitFile]:
    return [ToolkitFile(path=f"{SITE}/nvidia/{path}", **fields) for path in paths]


def made(
    files: Sequence[ToolkitFile], *, all_directories: bool, cuda: bool = False
) -> dict[str, TarEntry]:
    facts = replace(FACTS, cuda=cuda)
    entries = toolkit_entries(
        files, facts=facts, arch="x86_64", site=SITE, all_directories=all_directories
    )
    return {entry.path.replace(f"{SITE}/nvidia/", ""): entry for entry in entries}


def cached(entries: dict[str, TarEntry]) -> set[str]:
    read = ldcache.read_cache(entries["etc/ld.so.cache"].content)
    assert read is not None
    return {entry.path for entry in read}


COMPILER = [
    *found("cu13/bin/nvcc", runs=True),
    *found("cu13/lib/libcudart.so.13", "cu13/lib/libnvrtc.so.13", is_library=True),
    *found("cu13/lib/libnvrtc.so.13.0.1", "cu13/lib/stubs/libcuda.so", is_library=True),
    *found("cu13/lib/libhere.so", "cu13/lib/libhere.so.1", is_library=True),
    *found("cu13/lib/libcudart_static.a", "cu13/include/cuda.h"),
    *found("nccl/lib/libnccl.so.2", is_library=True),
]


def test_a_compiler_stands_where_everybody_looks_for_it() -> None:
    entries = made(COMPILER, all_directories=False)
    links = {path: entry.target for path, entry in entries.items() if entry.kind == "symlink"}
    assert links == {
        "usr/local/cuda": f"/{SITE}/nvidia/cu13",
        "cu13/lib64": "lib",
        "cu13/lib/libcudart.so": "libcudart.so.13",
        "cu13/lib/libnvrtc.so": "libnvrtc.so.13",
    }
    configuration = entries["etc/ld.so.conf.d/gpu-provision.conf"].content.decode()
    assert configuration == f"/{SITE}/nvidia/cu13/lib\n"
    assert cached(entries) == {
        "/lib/libz.so.1",
        *(
            f"/{SITE}/nvidia/cu13/lib/{name}"
            for name in ("libcudart.so.13", "libnvrtc.so.13", "libnvrtc.so.13.0.1")
        ),
        *(f"/{SITE}/nvidia/cu13/lib/{name}" for name in ("libhere.so", "libhere.so.1")),
    }


def test_a_base_s_own_toolkit_is_left_alone() -> None:
    assert "usr/local/cuda" not in made(COMPILER, all_directories=False, cuda=True)


def test_a_toolkit_s_own_lib64_is_left_alone() -> None:
    files = [*COMPILER, *found("cu13/lib64/libx.so.1")]
    assert "cu13/lib64" not in made(files, all_directories=False)


def test_a_compiler_that_cannot_be_run_is_none() -> None:
    assert made(found("cu13/bin/nvcc"), all_directories=False) == {}


def test_tensorflow_s_loader_knows_each_directory() -> None:
    files = [
        *found("cudnn/lib/libcudnn.so.9", "cusolver/lib/libcusolver.so.11", is_library=True),
        *found("cuda_nvcc/bin/ptxas", runs=True),
        *found("cublas/include/cublas.h", "x/y/lib/libdeep.so"),
    ]
    entries = made(files, all_directories=True)
    assert set(entries) == {"etc/ld.so.cache", "etc/ld.so.conf.d/gpu-provision-tensorflow.conf"}
    text = entries["etc/ld.so.conf.d/gpu-provision-tensorflow.conf"].content.decode()
    assert text == f"/{SITE}/nvidia/cudnn/lib\n/{SITE}/nvidia/cusolver/lib\n"
    assert len(cached(entries)) == 3


NVIDIA = locked("nvidia-cudnn-cu12")


@cases(
    "wheels count",
    ("PyTorch finds its libraries itself", [locked("torch"), NVIDIA], 0),
    ("TensorFlow needs the loader's cache", [locked("tensorflow"), NVIDIA], 1),
    ("not so without NVIDIA's wheels", [locked("tensorflow")], 0),
    ("a compiler", [locked("torch"), locked("nvidia-cuda-nvcc")], 1),
    ("a compiler by its older name", [locked("nvidia-cuda-nvcc-cu12")], 1),
    ("a name that only begins so", [locked("nvidia-cuda-nvcc-mock")], 0),
    ("no wheels", [], 0),
)
def test_names_alone_decide(wheels: list[Wheel], count: int) -> None:
    layers = toolkit_layers(wheels, facts=FACTS, arch="x86_64", site=SITE, fetch=never)
    assert len(layers) == count


def test_the_key_is_of_nvidia_s_wheels_and_the_base_s_loader() -> None:
    wheels = [locked("tensorflow"), NVIDIA]

    def key(more: Sequence[Wheel] = (), facts: BaseFacts = FACTS, arch: str = "x86_64") -> str:
        given = [*more, *wheels]
        (layer,) = toolkit_layers(given, facts=facts, arch=arch, site=SITE, fetch=never)
        return layer.key

    assert key([locked("requests")]) == key()
    others = [
        key([locked("nvidia-nccl-cu12")]),
        key([locked("nvidia-cuda-nvcc")]),
        key(facts=replace(FACTS, ld_cache=b"other")),
        key(facts=replace(FACTS, ld_conf={})),
        key(facts=replace(FACTS, cuda=True)),
        key(arch="aarch64"),
    ]
    assert len({key(), *others}) == len(others) + 1


def test_a_layer_is_made_of_real_wheels_and_scripts_are_no_libraries(tmp_path: Path) -> None:
    files = [
        Piece(name="nvidia/cu13/bin/nvcc", content=b"#!", attributes=0o100744 << 16),
        Piece(name="nvidia/cu13/lib/libcudart.so.13", content=ELF),
        Piece(name="nvidia/cu13/lib/libscript.so", content=b"INPUT(-lcudart)"),
        Piece(name="nvidia/cu13/lib/libnote.so.txt", content=b"no library"),
    ]
    name = "nvidia-cuda-nvcc"
    path = tmp_path / "it.whl"
    path.write_bytes(craft(pieces_of(*files, name=name.replace("-", "_"))))
    (layer,) = toolkit_layers(
        [locked(name, file="nvidia_cuda_nvcc-1.0-py3-none-any.whl")],
        facts=FACTS, arch="x86_64", site=SITE, fetch=lambda _: path,
    )  # fmt: skip
    content, unpacked = collect(layer.stream(None))
    assert (content, unpacked) == collect(layer.stream(unpacked))
    read = unpack(content)
    assert read["usr/local/cuda"].content.decode() == f"/{SITE}/nvidia/cu13"
    paths = ldcache.read_cache(read["etc/ld.so.cache"].content)
    assert paths is not None
    assert {one.name for one in paths} == {"libz.so.1", "libcudart.so.13"}
    assert [wheel.name for wheel in layer.wheels] == [name]
