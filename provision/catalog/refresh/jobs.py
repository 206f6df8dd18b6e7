"""The sources by name, each with the function that reads it and its citation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from images.errors import Failure
from images.net.address import host_of
from provision.catalog.refresh import jax, nvidia, pytorch, tensorflow
from provision.catalog.refresh.address import default_index
from provision.catalog.refresh.fetch import PageFetcher
from provision.catalog.refresh.index import Index
from provision.catalog.refresh.known import CurrentRows
from provision.catalog.refresh.model import SourceError, SourceReading
from provision.catalog.refresh.pytorch_index import address_template, read_pytorch_index
from provision.catalog.refresh.redist import READERS, Redist, redist_template
from provision.catalog.refresh.registry import (
    cuda_repository,
    python_repository,
    read_cuda_images,
    read_python_images,
)
from provision.catalog.refresh.threads import Threads

INDEX_SOURCES = ("torch", "tensorflow", "jax", "cudnn", "nccl", "toolkits")
"""The sources on the default package index."""

_READ = {
    "torch": "pages and METADATA of torch, torchvision and torchaudio",
    "tensorflow": "page and METADATA of tensorflow, build_info.py inside its wheels",
    "jax": "pages of jaxlib and its CUDA plugins, METADATA of the plugins",
    "cudnn": "pages of nvidia-cudnn-cu*",
    "nccl": "pages of nvidia-nccl-cu*",
    "toolkits": "page of cuda-toolkit",
    "driver-manifests": "redistrib_*.json of nvidia-driver",
    "cuda-manifests": "redistrib_*.json of cuda",
    "cudnn-manifests": "redistrib_*.json of cudnn",
}
_REGISTRY_FIX = (
    "Check that this host can reach it (HTTPS_PROXY, NO_PROXY, --ca-bundle FILE), or name a "
    "mirror: --registry HOST"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshJob:
    """One source, ready to be read: its name in sentences, and the source text of its rows."""

    name: str
    text: str
    work: Callable[[], SourceReading]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What every source is created from: URLs, the fetcher, and limits."""

    known: CurrentRows
    fetcher: PageFetcher
    threads: Threads
    today: str
    index: str | None
    pytorch_index: str | None
    registry: str | None
    nvidia: str | None
    recheck: bool
    env: Mapping[str, str]


def make_jobs(
    names: Sequence[str], asking: Asking
) -> tuple[dict[str, RefreshJob], dict[str, Failure]]:
    """The sources by name; those whose URL cannot be determined have failed already."""
    jobs: dict[str, RefreshJob] = {}
    failed: dict[str, Failure] = {}
    for group, make in (
        (INDEX_SOURCES, _index_jobs),
        (("pytorch-index",), _pytorch_job),
        (("cuda-images",), _cuda_job),
        (("python-images",), _python_job),
        (tuple(READERS), _manifest_jobs),
    ):
        wanted = [name for name in names if name in group]
        made = _made(make, asking) if wanted else {}
        if isinstance(made, Failure):
            failed |= dict.fromkeys(wanted, made)
        else:
            jobs |= {name: made[name] for name in wanted}
    return jobs, failed


def _made(
    make: Callable[[Asking], dict[str, RefreshJob]], asking: Asking
) -> dict[str, RefreshJob] | Failure:
    try:
        return make(asking)
    except Failure as error:
        return error


def _index_jobs(asking: Asking) -> dict[str, RefreshJob]:
    address = default_index(asking.index, asking.env)
    index = Index(address.url, address.name, asking.fetcher, asking.threads)
    where = address.name if address.name == "PyPI" else f"the package index at {address.name}"
    known, recheck = asking.known, asking.recheck
    works: dict[str, Callable[[], SourceReading]] = {
        "torch": partial(pytorch.read_torch, index, known, recheck=recheck),
        "tensorflow": partial(tensorflow.read_tensorflow, index, known, recheck=recheck),
        "jax": partial(jax.read_jax, index, known, recheck=recheck),
        "cudnn": partial(nvidia.read_cudnn, index, known),
        "nccl": partial(nvidia.read_nccl, index, known),
        "toolkits": partial(nvidia.read_toolkits, index, known),
    }
    return {
        name: RefreshJob(
            name=address.name, text=f"{where}, read {asking.today}: {_READ[name]}", work=work
        )
        for name, work in works.items()
    }


def _pytorch_job(asking: Asking) -> dict[str, RefreshJob]:
    is_own = asking.pytorch_index is None
    template = address_template(asking.known.catalog.pytorch_index_template, asking.pytorch_index)
    name = "the PyTorch index" if is_own else host_of(template)
    where = name if is_own else f"the PyTorch index at {name}"
    work = partial(
        read_pytorch_index,
        template,
        name,
        asking.known,
        asking.fetcher,
        asking.threads,
        is_own=is_own,
    )
    text = f"{where}, read {asking.today}: the pages of torch, one a wheel tag"
    return {"pytorch-index": RefreshJob(name=name, text=text, work=work)}


def _cuda_job(asking: Asking) -> dict[str, RefreshJob]:
    repository = cuda_repository(asking.known.catalog, asking.registry)
    return {"cuda-images": _registry_job(asking, repository, read_cuda_images)}


def _python_job(asking: Asking) -> dict[str, RefreshJob]:
    repository = python_repository(asking.known.catalog, asking.registry)
    return {"python-images": _registry_job(asking, repository, read_python_images)}


def _manifest_jobs(asking: Asking) -> dict[str, RefreshJob]:
    is_own = asking.nvidia is None
    template = redist_template(asking.known.catalog.redist_template, asking.nvidia)
    name = "NVIDIA" if is_own else host_of(template)
    where = "NVIDIA's download server" if is_own else f"the copy of it at {name}"
    redist = Redist(template, name, asking.fetcher, asking.threads)
    return {
        source: RefreshJob(
            name=name,
            text=f"{where}, read {asking.today}: {_READ[source]}",
            work=partial(read, redist, asking.known, asking.today),
        )
        for source, read in READERS.items()
    }


def _registry_job(
    asking: Asking, repository: str, read: Callable[..., SourceReading]
) -> RefreshJob:
    name = repository.partition("/")[0]

    def work() -> SourceReading:
        tags = _list_tags(repository, asking.fetcher)
        return read(tags, name, asking.known, is_own=asking.registry is None)

    text = f"{repository}, its list of tags, read {asking.today}"
    return RefreshJob(name=name, text=text, work=work)


def _list_tags(repository: str, fetcher: PageFetcher) -> tuple[str, ...]:
    from images.registry import (
        ImageNotFoundError,
        RegistryAnswerError,
        RegistryUnreachableError,
    )
    from images.registry.tags import list_tags

    try:
        return list_tags(repository, timeout_s=fetcher.limits.request_s, client=fetcher.client)
    except (RegistryUnreachableError, RegistryAnswerError) as error:
        raise SourceError(error.message, fix=_REGISTRY_FIX) from error
    except ImageNotFoundError as error:
        raise SourceError(f"There is no {repository}.", fix=_REGISTRY_FIX) from error
