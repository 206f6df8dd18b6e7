"""A package index on 127.0.0.1 for the refresh, which misbehaves on request, and a small world:
wheels with METADATA of the shapes that real projects use, and a catalog that knows some of them.

The shapes of pages follow the simple repository API (PEP 503, 592, 629, 658, 691, 700, 714); those
of the PyTorch index follow what writes it (github.com/pytorch/test-infra s3_management/manage.py at
027dd1349934): a directory a wheel tag, each of whose pages also lists the wheels that lie above the
tags, "+" written as %2B, and a page above the tags that lists everything. Versions are made up.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import html
import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from provision.catalog.catalog import Catalog
from provision.catalog.data_files import DATA
from provision.catalog.index.fetch import PATIENCE, FetchLimits
from provision.catalog.loading import load
from provision.catalog.overlay import Overlay, read_overlay, write_overlay
from provision.catalog.refresh import Refreshed, refresh, to_overlay
from provision.catalog.tables import FILES
from tests.kit.manifest_maker import cuda, directory, driver
from tests.kit.package_server import HTML, Reply, Server
from tests.kit.web_server import basic, part_of

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
UPLOADED = "2030-01-02T03:04:05"
TODAY = "2030-05-05"
QUICK = FetchLimits(
    retries=replace(
        PATIENCE, connect_s=2.0, answer_s=1.0, silence_s=1.0, first_wait_s=0.01, longest_wait_s=0.3
    ),
    request_s=3.0,
    total_s=20.0,
)


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel of the index."""

    name: str
    data: bytes
    metadata: bytes
    requires_python: str | None = None
    yanked: bool = False
    uploaded: str | None = UPLOADED

    @property
    def project(self) -> str:
        return self.name.partition("-")[0].replace("_", "-")

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def make_wheel(
    name: str,
    requires: Sequence[str] = (),
    *,
    files: Mapping[str, str] | None = None,
    extras: Sequence[str] = (),
    requires_python: str | None = ">=3.10",
    yanked: bool = False,
    uploaded: str | None = UPLOADED,
) -> Wheel:
    """A wheel from its file name and what it asks for, with a stranger's files in front."""
    project, version = name.split("-")[:2]
    lines = ["Metadata-Version: 2.1", f"Name: {project}", f"Version: {version}"]
    lines += [f"Requires-Python: {requires_python}"] if requires_python else []
    lines += [f"Provides-Extra: {extra}" for extra in extras]
    lines += [f"Requires-Dist: {text}" for text in requires]
    metadata = ("\n".join(lines) + "\n\nA description: Requires-Dist: nothing\n").encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in {"padding.bin": "x" * 300_000, **(files or {})}.items():
            archive.writestr(path, text, zipfile.ZIP_STORED)
        archive.writestr(f"{project}-{version}.dist-info/METADATA", metadata)
    return Wheel(
        name=name,
        data=buffer.getvalue(),
        metadata=metadata,
        requires_python=requires_python,
        yanked=yanked,
        uploaded=uploaded,
    )


@dataclass(kw_only=True)
class Fault:
    """What a path does instead of its duty. `times` None: always."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    kind: str | None = None
    hang: bool = False
    cut: bool = False
    times: int | None = None


class _Site(Server):
    def __init__(self, index: SimpleIndex) -> None:
        super().__init__()
        self.index = index

    def reply_to(self, path: str, headers: Mapping[str, str]) -> Reply:
        return self.index.reply_to(path, headers)


@dataclass(kw_only=True)
class SimpleIndex:
    """A running index: /simple/PROJECT/, /files/NAME, /whl/TAG/torch/, /v2/REPOSITORY/tags/list.

    `tags` are the wheels of each tag of the PyTorch index; those of "" lie above the tags. `pages`
    are served as they are, by path: (content type, body).
    """

    wheels: list[Wheel]
    tags: dict[str, list[Wheel]] = field(default_factory=dict)
    images: dict[str, list[str]] = field(default_factory=dict)
    pages: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    faults: dict[str, Fault] = field(default_factory=dict)
    speaks_json: bool = True
    offers_metadata: bool = True
    gives_ranges: bool = True
    packs: bool = False
    page_of_tags: int = 1000
    login: str | None = None
    asked: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    address: str = ""

    @property
    def url(self) -> str:
        return f"http://{self.address}/simple"

    @property
    def whl(self) -> str:
        return f"http://{self.address}/whl"

    @property
    def nvidia(self) -> str:
        return f"http://{self.address}/compute"

    def paths(self) -> list[str]:
        """Every path that was asked for, in order."""
        return [path for path, _ in self.asked]

    @contextmanager
    def serving(self) -> Iterator[SimpleIndex]:
        """The index, up while the block runs."""
        with contextlib.closing(_Site(self)) as site:
            self.address = site.host
            yield self

    def reply_to(self, whole: str, headers: Mapping[str, str]) -> Reply:
        """The answer to a request."""
        self.asked.append((whole, headers))
        path = unquote(urlsplit(whole).path)
        fault = self.faults.get(path)
        if fault is not None and fault.times is not None:
            fault.times -= 1
            if fault.times < 0:
                fault = None
        if self.login is not None and headers.get("authorization") != basic(self.login):
            return Reply(status=401, headers={"WWW-Authenticate": 'Basic realm="index"'})
        if fault is not None and fault.status is not None:
            return Reply(status=fault.status, headers=fault.headers, body=fault.body or b"")
        found = self._found(path, whole, headers)
        if path.endswith(".whl") and found.status == 200 and self.gives_ranges:
            status, part, more = part_of(found.body, headers["range"])
            return Reply(status=status, body=part, headers=more)
        if fault is not None:
            body, kind = fault.body, fault.kind
            found = replace(
                found,
                body=found.body if body is None else body,
                kind=kind or found.kind,
                cut=fault.cut,
                hang=fault.hang,
            )
        if self.packs and "gzip" in headers.get("accept-encoding", ""):
            packed = {**found.headers, "Content-Encoding": "gzip"}
            found = replace(found, body=gzip.compress(found.body), headers=packed)
        return found

    def _found(self, path: str, whole: str, headers: Mapping[str, str]) -> Reply:
        parts = path.strip("/").split("/")
        if path in self.pages:
            kind, body = self.pages[path]
            return Reply(body=body, kind=kind)
        if parts[0] == "simple" and len(parts) == 2:
            wheels = [wheel for wheel in self.wheels if wheel.project == parts[1]]
            if wheels and self.speaks_json and wants_json(headers.get("accept", "")):
                return Reply(body=json_page(parts[1], wheels, self), kind=JSON_TYPE)
            if wheels:
                return Reply(body=html_page(parts[1], wheels, self, "../../files/"), kind=HTML)
        if parts[0] == "whl" and parts[-1] == "torch" and parts[1] in self.tags:
            return Reply(body=tag_page(self, parts[1]), kind="text/html")
        if parts[0] in {"files", "whl"}:
            tagged = [wheel for wheels in self.tags.values() for wheel in wheels]
            for wheel in (*self.wheels, *tagged):
                if parts[-1] in {wheel.name, f"{wheel.name}.metadata"}:
                    is_whole = parts[-1] == wheel.name
                    return Reply(body=wheel.data if is_whole else wheel.metadata)
        if parts[0] == "v2" and "/".join(parts[1:-2]) in self.images:
            return self._tag_list("/".join(parts[1:-2]), whole)
        return Reply(status=404)

    def _tag_list(self, repository: str, whole: str) -> Reply:
        tags = self.images[repository]
        _, _, last = urlsplit(whole).query.partition("last=")
        start = tags.index(unquote(last)) + 1 if last else 0
        some = tags[start : start + self.page_of_tags]
        headers = {}
        if start + len(some) < len(tags):
            query = f"n={self.page_of_tags}&last={quote(some[-1])}"
            headers["Link"] = f'</v2/{repository}/tags/list?{query}>; rel="next"'
        body = json.dumps({"name": repository, "tags": some}).encode()
        return Reply(body=body, kind="application/json", headers=headers)


def wants_json(accept: str) -> bool:
    """Content negotiation: whether JSON has a higher weight than HTML, and HTML where none does."""
    weights: dict[str, float] = {}
    for part in accept.split(","):
        kind, _, parameters = part.partition(";")
        weights[kind.strip()] = float(parameters.partition("q=")[2] or 1)
    plain = max(
        weights.get("text/html", 0.0), weights.get("application/vnd.pypi.simple.v1+html", 0.0)
    )
    return weights.get(JSON_TYPE, 0.0) > plain


def json_page(project: str, wheels: Sequence[Wheel], index: SimpleIndex) -> bytes:
    """PEP 691 and 700."""
    files: list[dict[str, Any]] = []
    for wheel in wheels:
        entry: dict[str, Any] = {
            "filename": wheel.name,
            "url": f"../../files/{quote(wheel.name)}",
            "hashes": {"sha256": wheel.sha256},
            "size": len(wheel.data),
            "requires-python": wheel.requires_python,
            "yanked": "broken" if wheel.yanked else False,
        }
        if wheel.uploaded:
            entry["upload-time"] = f"{wheel.uploaded}.123456Z"
        if index.offers_metadata:
            entry["core-metadata"] = {"sha256": hashlib.sha256(wheel.metadata).hexdigest()}
        files.append(entry)
    versions = sorted({wheel.name.split("-")[1] for wheel in wheels})
    page = {"meta": {"api-version": "1.1"}, "name": project, "versions": versions, "files": files}
    return json.dumps(page).encode()


def html_page(project: str, wheels: Sequence[Wheel], index: SimpleIndex, base: str) -> bytes:
    """PEP 503 with the attributes of its successors."""
    lines = []
    for wheel in wheels:
        attributes = [f'href="{base}{quote(wheel.name)}#sha256={wheel.sha256}"']
        if wheel.requires_python:
            attributes.append(f'data-requires-python="{html.escape(wheel.requires_python)}"')
        if wheel.yanked:
            attributes.append('data-yanked=""')
        if index.offers_metadata:
            digest = hashlib.sha256(wheel.metadata).hexdigest()
            attributes.append(f'data-core-metadata="sha256={digest}"')
        lines.append(f"<a {' '.join(attributes)}>{html.escape(wheel.name)}</a><br/>")
    head = '<!DOCTYPE html>\n<html><head><meta name="pypi:repository-version" content="1.1">'
    title = f"<title>Links for {project}</title></head>\n<body>"
    return "\n".join([head, title, *lines, "</body></html>", "<!--TIMESTAMP 1-->"]).encode()


def tag_page(index: SimpleIndex, tag: str) -> bytes:
    """The page of torch of one tag, with the wheels above the tags."""
    anchors = [
        f'<a href="/whl/{one}{"/" if one else ""}{quote(wheel.name)}#sha256={wheel.sha256}"'
        + (f' data-core-metadata="sha256={_digest(wheel.metadata)}"' if wheel.metadata else "")
        + f">{wheel.name}</a><br/>"
        for one in (tag, "")
        for wheel in index.tags.get(one, [])
    ]
    lines = ["<!DOCTYPE html>", "<html>", "  <body>", *anchors, "  </body>", "</html>"]
    return "\n".join([*lines, "<!--TIMESTAMP 1-->"]).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# ---- a small world ----

_LINUX_X86 = 'platform_system == "Linux" and platform_machine == "x86_64"'
_GPU = [
    "filelock",
    f"nvidia-cuda-runtime-cu12==12.6.77; {_LINUX_X86}",
    f"nvidia-cudnn-cu12==9.5.1.17; {_LINUX_X86}",
    f"nvidia-nccl-cu12==2.26.2; {_LINUX_X86}",
    f"triton==3.3.0; {_LINUX_X86}",
    'opt-einsum>=3.3; extra == "opt-einsum"',
]
_GPU_13 = [
    'cuda-toolkit[cublas,cudart]==13.0.3; platform_system == "Linux"',
    'nvidia-cudnn-cu13==9.19.0.56; platform_system == "Linux"',
    'nvidia-nccl-cu13==2.28.9; platform_system == "Linux"',
    'triton~=3.6.0; platform_system == "Linux"',
]


def torch_wheels(version: str, requires: Sequence[str], *, yanked: bool = False) -> list[Wheel]:
    """A release as the default index has it: for Linux on both machines, Windows and a Mac."""
    platforms = ("manylinux_2_28_x86_64", "manylinux_2_28_aarch64", "win_amd64")
    tags = ("cp312-cp312", "cp313-cp313", "cp313-cp313t")
    names = [f"torch-{version}-{tag}-{platform}.whl" for platform in platforms for tag in tags]
    names.append(f"torch-{version}-cp312-none-macosx_11_0_arm64.whl")
    return [make_wheel(name, requires, yanked=yanked) for name in names]


_AND_CUDA = [
    "numpy>=1.26",
    'nvidia-cuda-runtime-cu12<13.0,>=12.5.82; extra == "and-cuda"',
    'nvidia-cudnn-cu12<10.0,>=9.3.0.75; extra == "and-cuda"',
]
_TF_TAGS = "cp312-cp312-manylinux_2_17"


def world() -> SimpleIndex:
    """An index with one release more of everything than `small_catalog` knows."""
    many = "manylinux2014"
    wheels = [
        *torch_wheels("9.0.0", _GPU),
        *torch_wheels("9.1.0", _GPU_13),
        make_wheel("torch-8.0.0-cp38-cp38-manylinux1_x86_64.whl"),  # older than the catalog
        make_wheel("torch-9.2.0rc1-cp312-cp312-manylinux_2_28_x86_64.whl", _GPU_13),
        make_wheel("torchvision-0.90.0-cp312-cp312-manylinux_2_28_x86_64.whl", ["torch==9.0.0"]),
        make_wheel("torchvision-0.91.0-cp312-cp312-manylinux_2_28_x86_64.whl", ["torch==9.1.0"]),
        make_wheel("torchaudio-2.11.0-cp312-cp312-manylinux_2_28_x86_64.whl"),
        *(
            make_wheel(f"tensorflow-{one}.{many}_{arch}.whl", _AND_CUDA, extras=["and-cuda"])
            for one, arch in (
                (f"5.0.0-{_TF_TAGS}_x86_64", "x86_64"),
                (f"5.1.0-{_TF_TAGS}_x86_64", "x86_64"),
                (f"5.1.0-{_TF_TAGS}_aarch64", "aarch64"),
            )
        ),
        make_wheel("jaxlib-0.90.0-cp312-cp312-manylinux_2_27_x86_64.whl"),
        make_wheel("jaxlib-0.91.0-cp312-cp312-manylinux_2_27_x86_64.whl"),
        make_wheel("jaxlib-0.91.0-cp312-cp312-manylinux_2_27_aarch64.whl"),
        make_wheel("jax_cuda12_plugin-0.91.0-cp312-cp312-manylinux_2_27_x86_64.whl", [
            'nvidia-cuda-runtime-cu12>=12.1.105; sys_platform == "linux" and extra == "with-cuda"',
            'nvidia-cudnn-cu12<10.0,>=9.8; sys_platform == "linux" and extra == "with-cuda"',
            'nvidia-nccl-cu12>=2.18.1; sys_platform == "linux" and extra == "with-cuda"',
        ], extras=["with-cuda"]),
        make_wheel("nvidia_cudnn_cu12-9.90.0.1-py3-none-manylinux_2_27_x86_64.whl"),
        make_wheel("nvidia_cudnn_cu12-9.91.0.1-py3-none-manylinux_2_27_x86_64.whl"),
        make_wheel("nvidia_cudnn_cu12-9.91.0.1-py3-none-manylinux_2_27_aarch64.whl"),
        make_wheel("nvidia_nccl_cu12-2.90.1-py3-none-manylinux_2_18_x86_64.whl"),
        make_wheel("nvidia_nccl_cu12-2.91.1-py3-none-manylinux_2_18_x86_64.whl"),
        make_wheel("cuda_toolkit-13.0.3.0-py2.py3-none-any.whl"),
        make_wheel("cuda_toolkit-99.0.0-py2.py3-none-any.whl"),
    ]  # fmt: skip
    name = "torch-{}+{}-cp312-cp312-{}.whl"
    tags = {
        "": [make_wheel("torch-9.0.0-cp312-cp312-manylinux_2_28_aarch64.whl")],
        "cpu": [make_wheel(name.format("9.0.0", "cpu", "manylinux_2_28_x86_64"))],
        "cu118": [
            make_wheel(name.format("9.0.0", "cu118", "linux_x86_64")),
            make_wheel("torchvision-0.90.0+cu118-cp312-cp312-linux_x86_64.whl"),
        ],
        "cu126": [make_wheel(name.format("9.0.0", "cu126", "manylinux_2_28_x86_64"))],
        "cu130": [
            make_wheel(
                name.format("9.1.0", "cu130", "manylinux_2_28_x86_64"),
                [text.partition(";")[0] for text in _GPU_13],
            ),
            make_wheel(name.format("9.1.0", "cu130.with.more", "manylinux_2_28_x86_64")),
        ],
    }
    images = {
        "nvidia/cuda": [
            "12.6.3-base-ubuntu22.04",
            "12.6.3-devel-ubuntu22.04",
            "99.0.1-cudnn-devel-ubuntu24.04",
            "latest",
            "9.0-base",
        ],
        "library/python": ["3.12-slim-bookworm", "3.12", "3.13-slim-bookworm", "3.13-slim-nosuch"],
    }
    # older than the catalog: nothing of it is news
    pages = {
        **directory("nvidia-driver", {"390.30": driver("390.30", "2018-03-29")}),
        **directory("cuda", {"9.0.1": cuda("9.0.1", "2017-09-25")}),
    }
    return SimpleIndex(wheels=wheels, tags=tags, images=images, pages=pages)


def small_catalog(directory: Path, **tables: Sequence[Mapping[str, object]]) -> Catalog:
    """A catalog of a few made-up rows among the shipped ones of NVIDIA's; `tables` replace more."""
    replaced: dict[str, Sequence[Mapping[str, object]]] = {**_ROWS, **tables}
    directory.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        raw = json.loads(Path(DATA, name).read_text(encoding="utf-8"))
        raw["sources"]["made-up"] = "made up for a test"
        for table, rows in replaced.items():
            if table in raw:
                raw[table] = [{"source": "made-up", **row} for row in rows]
        for table in ("exceptions", "conflicts"):
            raw.pop(table, None)
        (directory / name).write_text(json.dumps(raw), encoding="utf-8")
    return load(directory)


def refreshed(catalog: Catalog, at: SimpleIndex, *sources: str, **options: Any) -> Refreshed:
    """A refresh from a running index."""
    given: dict[str, Any] = {
        "sources": sources,
        "index": at.url,
        "pytorch_index": at.whl,
        "nvidia": at.nvidia,
        "today": TODAY,
        "limits": QUICK,
        "env": {"PATH": "/nosuch"},
        **options,
    }
    return refresh(catalog, **given)


def laid_over(folder: Path, found: Refreshed, previous: Overlay | None = None) -> Catalog:
    """The catalog of FOLDER/data after the refresh was written and read again."""
    path = folder / "copy" / "catalog.json"
    write_overlay(path, to_overlay(found, previous))
    return load(folder / "data", overlay=read_overlay(path))


def _build(
    tag: str, cuda: str | None, arch: str, at: Sequence[str], **more: object
) -> dict[str, Any]:
    return {
        "version": "9.0.0", "tag": tag, "cuda": cuda, "arch": arch,
        "python_tags": ["cp312-cp312", "cp313-cp313", "cp313-cp313t"], "sm": None, "ptx": None,
        "cudnn": None, "nccl": None, "glibc": "2.28", "existence": "confirmed", "at": list(at),
        **more,
    }  # fmt: skip


_ROWS: dict[str, Sequence[Mapping[str, object]]] = {
    "releases": [
        {"version": "9.0.0", "requires_python": ">=3.10", "torchvision": "0.90.0",
         "torchaudio": None, "upload_time": UPLOADED, "yanked": False, "numpy": None},
    ],
    "builds": [
        _build("cpu", None, "x86_64", ["pytorch"], python_tags=["cp312-cp312"]),
        _build("cpu", None, "aarch64", ["pypi"]),
        _build("cu118", "11.8", "x86_64", ["pytorch"], existence="likely", glibc="2.17",
               python_tags=["cp312-cp312"], glibc_confidence="assumed"),
        _build("cu126", "12.6", "x86_64", ["pytorch", "pypi"], sm=["sm_80", "sm_90"],
               cudnn="9.5.1.17", nccl="2.26.2"),
    ],
    "tensorflow_releases": [
        {"version": "5.0.0", "cuda": "12.5", "cudnn": "9.3", "libraries": "extra",
         "requires_python": ">=3.10", "upload_time": UPLOADED, "yanked": False,
         "prerelease": False, "sm": ["sm_80"], "ptx": None},
    ],
    "tensorflow_wheels": [
        {"version": "5.0.0", "arch": "x86_64", "gpu": True, "python_tags": ["cp312-cp312"],
         "glibc": "2.17", "size_max_bytes": 1},
    ],
    "tensorflow_gpu": [],
    "jax_releases": [
        {"version": "0.90.0", "python_tags": ["cp312-cp312"], "archs": ["x86_64"],
         "glibc": "2.27"},
    ],
    "jax_plugins": [
        {"version": "0.90.0", "cuda_major": 12, "package": "jax-cuda12-plugin", "extra": "cuda12",
         "cuda_runtime": ">=12.1.105", "cudnn": "<10.0,>=9.8", "nccl": None, "min_driver": "525",
         "sm_min": "5.2", "driver_source": "made-up"},
    ],
    "cudnn": [
        {"version": "9.90.0.1", "cuda_major": 12, "capabilities": ["7.5", "8.0"],
         "min_driver": "525.60.13", "archs": ["x86_64"], "upload_date": "2030-01-02",
         "yanked": False, "sm_source": "made-up"},
    ],
    "nccl": [
        {"version": "2.90.1", "cuda_major": 12, "sm_min": "5.0", "archs": ["x86_64"],
         "upload_date": "2030-01-02"},
    ],
    "images": [
        {"tag": "12.6.3-base-ubuntu22.04", "archs": ["x86_64"], "status": "supported"},
        {"tag": "12.6.3-devel-ubuntu22.04", "archs": None, "status": "inferred"},
        {"tag": "12.6.2-devel-ubuntu22.04", "archs": None, "status": "seen"},
    ],
    "start_rules": [],
    "python_images": [
        {"python": "3.12", "suite": "bookworm", "confidence": "likely"},
        {"python": "3.11", "suite": "bookworm"},
    ],
}  # fmt: skip
