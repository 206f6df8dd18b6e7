"""Base and layers -> configuration, manifest, index: pure, so equal parts result in equal digests.

The image inherits what a Dockerfile's FROM would; fields that only describe the machine that built
the base are omitted. The only time in it is the base's: nothing here reads a clock.

https://github.com/opencontainers/image-spec/blob/main/config.md
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from images.oci.model import (
    CONFIG,
    DOCKER_LAYER_GZIP,
    INDEX,
    LAYER,
    LAYER_GZIP,
    LAYER_ZSTD,
    MANIFEST,
    Descriptor,
    to_bytes,
)
from images.oci.sources import Image

_DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"
_AS_OCI = {
    _DOCKER_LAYER: LAYER,
    DOCKER_LAYER_GZIP: LAYER_GZIP,
    f"{_DOCKER_LAYER}.zstd": LAYER_ZSTD,
}
# ONBUILD has run, or never will; the rest describes the container that made the base.
_NOT_INHERITED = frozenset(
    {"OnBuild", "Hostname", "Domainname", "Image", "ArgsEscaped", "AttachStdin", "AttachStdout"}
    | {"AttachStderr", "Tty", "OpenStdin", "StdinOnce"}
)
_NO_TIME = "1970-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSettings:
    """What a container of the image starts with; `env` overrides the base's, and so does an
    `entrypoint`.
    """

    env: Mapping[str, str]
    working_dir: str
    command: tuple[str, ...]
    entrypoint: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """A layer on top of the base, as stored in the target."""

    blob: Descriptor
    diff_id: str
    created_by: str


def base_blob(blob: Descriptor) -> Descriptor:
    """A base's layer with OCI's media type: all types in a manifest are of one family."""
    return Descriptor(
        media_type=_AS_OCI.get(blob.media_type, blob.media_type), digest=blob.digest, size=blob.size
    )


def image_config(base: Image, added: Sequence[Added], settings: ContainerSettings) -> bytes:
    """The configuration; its digest is the image ID."""
    inherited = base.config.get("config")
    config = {
        key: value
        for key, value in (inherited if isinstance(inherited, dict) else {}).items()
        if key not in _NOT_INHERITED and value not in (None, "", [], {})
    }
    config["Env"] = _merged_env(config.get("Env"), settings.env)
    config["WorkingDir"] = settings.working_dir
    config["Cmd"] = list(settings.command)
    if settings.entrypoint:
        config["Entrypoint"] = list(settings.entrypoint)
    labels = config.get("Labels")
    config["Labels"] = {**(labels if isinstance(labels, dict) else {}), **settings.labels}
    created = base.config.get("created")
    time = created if isinstance(created, str) and created else _NO_TIME
    platform = base.platform.to_json()
    return to_bytes(
        {
            **platform,
            "created": time,
            "config": config,
            "rootfs": {
                "type": "layers",
                "diff_ids": [
                    *(layer.diff_id for layer in base.layers),
                    *(layer.diff_id for layer in added),
                ],
            },
            "history": [
                *_base_history(base, time),
                *({"created": time, "created_by": layer.created_by} for layer in added),
            ],
        }
    )


def image_manifest(
    base: Image,
    added: Iterable[Added],
    config: Descriptor,
    annotations: Mapping[str, str],
) -> bytes:
    """The manifest, always in OCI's format."""
    layers = [base_blob(layer.blob) for layer in base.layers] + [layer.blob for layer in added]
    return to_bytes(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {**config.to_json(), "mediaType": CONFIG},
            "layers": [layer.to_json() for layer in layers],
            **({"annotations": dict(annotations)} if annotations else {}),
        }
    )


def image_index(manifests: Sequence[Descriptor], annotations: Mapping[str, str]) -> bytes:
    """An index of the images of several platforms; each descriptor has its platform."""
    return to_bytes(
        {
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": [
                one.to_json() for one in sorted(manifests, key=lambda one: str(one.platform))
            ],
            **({"annotations": dict(annotations)} if annotations else {}),
        }
    )


def _merged_env(base: object, ours: Mapping[str, str]) -> list[str]:
    """The base's variables in their order; ours replace them or are appended."""
    lines = [line for line in base if isinstance(line, str)] if isinstance(base, list) else []
    merged = dict(line.partition("=")[::2] for line in lines) | dict(ours)
    return [f"{name}={value}" for name, value in merged.items()]


def _base_history(base: Image, time: str) -> list[dict[str, Any]]:
    """The base's history, if it matches the number of layers: some tools compare them."""
    found = base.config.get("history")
    entries = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    if sum(not one.get("empty_layer") for one in entries) == len(base.layers):
        return entries
    return [{"created": time, "created_by": "the base image"} for _ in base.layers]
