"""The machine of a record: the facts that matter for the proof. No name of machine or user; for a
GPU's UUID its hash, which shows whether it is the same card but not which one.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from provision.attestation.signing.parser import StatementKind
from provision.model.plan import Gpu, HostFacts

_SLUG_LENGTH = 60
_MOST_MIB = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGpu:
    """One GPU; `compute_capability` as "9.0"."""

    name: str | None
    compute_capability: str | None
    memory_mib: int | None
    mig: bool | None
    uuid_sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedHost:
    """A machine; `gpus` None: unknown. `engine` is what ran the image ("docker 26.1"). The fields
    below the GPUs are informative, and nothing is judged by them.
    """

    arch: str | None
    driver: str | None
    kernel: str | None
    engine: str | None
    gpus: tuple[RecordedGpu, ...] | None
    driver_cuda: str | None = None
    glibc: str | None = None
    os_id: str | None = None
    os_version: str | None = None
    wsl: bool | None = None

    @property
    def kinds(self) -> list[tuple[str | None, str | None, bool]] | None:
        """Its GPUs by name, capability and MIG mode, in an order independent of slot numbers."""
        if self.gpus is None:
            return None
        kinds = [(gpu.name, gpu.compute_capability, gpu.mig is True) for gpu in self.gpus]
        return sorted(kinds, key=json.dumps)

    def is_like(self, other: RecordedHost) -> bool:
        """Whether both are the same kind of machine. The driver does not count: it can be
        changed.
        """
        return (self.arch, self.kinds) == (other.arch, other.kinds)

    @property
    def gpus_in_words(self) -> str:
        """ "2 x NVIDIA H100 80GB HBM3 (9.0)"."""
        kinds = self.kinds
        if not kinds:
            return "no GPU" if kinds is not None else "GPUs not known"
        words = [
            f"{name or 'unnamed GPU'} "
            f"({capability or 'capability not known'}{', MIG' if mig else ''})"
            for name, capability, mig in kinds
        ]
        return ", ".join(f"{words.count(word)} x {word}" for word in dict.fromkeys(words))

    @property
    def slug(self) -> str:
        """The kind of machine as part of a file name: readable, and different for different
        kinds.
        """
        words = re.sub(r"[^a-z0-9]+", "-", self.gpus_in_words.lower()).strip("-")
        text = json.dumps({"arch": self.arch, "gpus": self.kinds}, sort_keys=True)
        return f"{words[:_SLUG_LENGTH].strip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def recorded_host(facts: HostFacts, *, kernel: str | None, engine: str | None) -> RecordedHost:
    """The machine of these facts."""
    return RecordedHost(
        arch=facts.arch,
        driver=facts.driver,
        kernel=kernel,
        engine=engine,
        gpus=None if facts.gpus is None else tuple(map(_recorded_gpu, facts.gpus)),
        driver_cuda=facts.driver_cuda,
        glibc=facts.glibc,
        os_id=facts.os_id,
        os_version=facts.os_version,
        wsl=facts.wsl,
    )


def _recorded_gpu(gpu: Gpu) -> RecordedGpu:
    capability = gpu.compute_capability
    return RecordedGpu(
        name=gpu.name,
        compute_capability="{}.{}".format(*capability) if capability else None,
        memory_mib=gpu.memory_mib,
        mig=gpu.mig,
        uuid_sha256=hashlib.sha256(gpu.uuid.encode()).hexdigest() if gpu.uuid else None,
    )


def host_to_json(host: RecordedHost) -> dict[str, Any]:
    """The machine in a statement's format."""
    return {
        "arch": host.arch,
        "driver": host.driver,
        "driver_cuda": host.driver_cuda,
        "kernel": host.kernel,
        "glibc": host.glibc,
        "os": {"id": host.os_id, "version": host.os_version},
        "wsl": host.wsl,
        "engine": host.engine,
        "gpus": None if host.gpus is None else [asdict(gpu) for gpu in host.gpus],
    }


def parse_host(kind: StatementKind, value: object) -> RecordedHost:
    """The machine in a statement of that kind, as far as it is judged."""
    data = kind.object_at("host", value)
    gpus = data.get("gpus")

    def text(name: str) -> str | None:
        return kind.optional_text_at(f"host.{name}", data.get(name))

    return RecordedHost(
        arch=text("arch"),
        driver=text("driver"),
        kernel=text("kernel"),
        engine=text("engine"),
        gpus=None
        if gpus is None
        else tuple(_parse_gpu(kind, gpu) for gpu in kind.list_at("host.gpus", gpus)),
    )


def _parse_gpu(kind: StatementKind, value: object) -> RecordedGpu:
    data = kind.object_at("host.gpus", value)
    mig, memory = data.get("mig"), data.get("memory_mib")
    is_size = memory is None or (type(memory) is int and 0 <= memory < _MOST_MIB)
    if not isinstance(mig, bool | None) or not is_size:
        raise kind.unlike("host.gpus is not valid")

    def text(name: str) -> str | None:
        return kind.optional_text_at(f"host.gpus.{name}", data.get(name))

    return RecordedGpu(
        name=text("name"),
        compute_capability=text("compute_capability"),
        memory_mib=memory,
        mig=mig,
        uuid_sha256=text("uuid_sha256"),
    )
