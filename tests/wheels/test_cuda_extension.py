"""A small CUDA extension is compiled with NVIDIA's compiler wheels beside the real PyTorch.

Only on request: it downloads 3 GB and unpacks 7 GB. The directory DIR keeps them:

    GPU_PROVISION_CUDA_EXTENSION=DIR ./run test tests/wheels/test_cuda_extension.py
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.kit.web_server import Handler, WebServer

pytestmark = pytest.mark.timeout(3600)

DIRECTORY = os.environ.get("GPU_PROVISION_CUDA_EXTENSION", "")
PLAN = ("--gpu", "H100", "--driver", "580.95.05", "--base", "bootstrap")
FILES = {
    "setup.py": """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

setup(
    name="fastadd",
    version="1.0",
    packages=["fastadd"],
    ext_modules=[CUDAExtension("fastadd._C", ["fastadd.cu"])],
    cmdclass={"build_ext": BuildExtension},
)
""",
    "fastadd/__init__.py": "import torch\n\nfrom fastadd._C import add\n",
    "fastadd.cu": """
#include <torch/extension.h>

__global__ void add_numbers(const float *a, const float *b, float *sum, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) sum[i] = a[i] + b[i];
}

torch::Tensor add(torch::Tensor a, torch::Tensor b) {
    if (!a.is_cuda()) return a + b;
    auto sum = torch::empty_like(a);
    int count = a.numel();
    add_numbers<<<(count + 255) / 256, 256>>>(
        a.data_ptr<float>(), b.data_ptr<float>(), sum.data_ptr<float>(), count);
    return sum;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("add", &add); }
""",
}


def sdist() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in FILES.items():
            entry = tarfile.TarInfo(f"fastadd-1.0/{name}")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return gzip.compress(buffer.getvalue(), mtime=0)  # the same wheel is not built twice


@pytest.fixture(scope="module")
def index() -> Iterator[str]:
    """An index that has only this source; everything else comes from the default one."""
    data = sdist()
    sha256 = hashlib.sha256(data).hexdigest()
    row = {"filename": "fastadd-1.0.tar.gz", "url": "/fastadd-1.0.tar.gz"}
    page = {
        "meta": {"api-version": "1.0"},
        "name": "fastadd",
        "files": [{**row, "hashes": {"sha256": sha256}, "size": len(data)}],
    }
    answers = {
        "/simple/fastadd/": (json.dumps(page).encode(), "application/vnd.pypi.simple.v1+json"),
        "/fastadd-1.0.tar.gz": (data, "application/gzip"),
    }

    class Files(Handler):
        def answer(self) -> None:
            body, kind = answers.get(self.path, (b"", "text/plain"))
            self.reply(200 if body else 404, body, {"Content-Type": kind})

    with WebServer(Files) as server:
        yield f"{server.url}/simple/"


def provision(*words: str) -> Any:
    places = {
        f"XDG_{name}_HOME": f"{DIRECTORY}/{name.lower()}" for name in ("CACHE", "DATA", "STATE")
    }
    done = subprocess.run(
        [sys.executable, "-m", "provision", *words, "--json"],
        cwd=ROOT,
        env={**os.environ, **places},
        stdout=subprocess.PIPE,
        check=False,
        timeout=3500,
    )
    return json.loads(done.stdout)


@pytest.mark.skipif(not DIRECTORY, reason="GPU_PROVISION_CUDA_EXTENSION=DIR requests it")
def test_an_extension_is_compiled_for_the_gpu_of_the_plan_and_imported(
    index: str, tmp_path: Path
) -> None:
    words = (*PLAN, "--index", index)
    done = provision("wheel", "fastadd", *words, "--output", str(tmp_path))
    assert done["error"] is None, done
    [wheel] = done["wheels"]
    assert wheel["key"]["capabilities"] == ["9.0"]
    assert any("release" in line for line in wheel["compiler"])
    for gpu, status, said in (
        ("H100", "pass", "H100 (9.0): runs sm_90"),
        ("A100", "fail", "A100 (8.0): _C.cpython-311-x86_64-linux-gnu.so has no code for it"),
    ):
        report = provision("inspect", wheel["output"], "--gpu", gpu)
        [code] = [one for one in report["checks"] if one["id"] == "inspect.architectures"]
        assert code["status"] == status
        assert code["message"].startswith(said)
    image = tmp_path / "image"
    more = ("--with", "fastadd", "--builder", "oci", "--no-verify", "--output", str(image))
    assert provision("build", *words, *more)["error"] is None
    only = ("--only", "libraries.packages", "--no-record")
    [check] = provision("verify", f"oci:{image}", *only)["checks"]
    assert (check["status"], check["message"]) == ("pass", "imported: fastadd 1.0")
