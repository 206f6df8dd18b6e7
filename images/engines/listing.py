"""The images that an engine has, by a label: lists them, says what uses them, removes their names.

Docker is asked through its API, podman by its command line; both describe an image alike. Nothing
here waits long: an engine that does not answer is left out by the caller.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from images.engines.archive import is_holder
from images.engines.docker import Docker
from images.engines.docker_errors import EngineError, NoEngineError
from images.engines.podman import INSTALL_FIX, answer_of
from images.engines.run_arguments import ROLE
from images.system import process

_PATIENCE_S = 30
_ROLE_KEY = ROLE.partition("=")[0]
_REAL_DATES_S = 1_000_000_000.0
"""A reproducible image says that it was made in 1970, or with its base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContainer:
    """A container that was made from an image, and whether it runs."""

    name: str
    image_id: str
    running: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineImage:
    """An image as an engine describes it. `created`: seconds since the epoch; None: not known.
    `history`: the command of each step, the last one at the end. `run_tags`: tags by which runs
    loaded it for themselves, which are not among the names.
    """

    image_id: str
    names: tuple[str, ...]
    labels: Mapping[str, str]
    size: int
    created: float | None
    history: tuple[str, ...]
    run_tags: tuple[str, ...] = ()
    containers: tuple[EngineContainer, ...] = ()


class EngineImages(Protocol):
    """The images of one engine."""

    @property
    def name(self) -> str:
        """ "docker" or "podman"."""

    def labelled(self, label: str) -> tuple[EngineImage, ...]:
        """The images with this label. EngineError: the engine does not say."""

    def has(self, name: str) -> bool:
        """Whether the engine has an image of this name, with whatever label."""

    def loaded(self, repository: str) -> tuple[EngineImage, ...]:
        """The images with a name in this repository. EngineError: the engine does not say."""

    def remove(self, name: str) -> None:
        """Remove a name, or an image without one by its ID; the engine deletes an image with its
        last name. EngineError: it refuses.
        """

    def leftovers(self) -> tuple[EngineContainer, ...]:
        """Containers of tests and of `run` that have ended: their processes were killed."""

    def remove_container(self, name: str) -> None:
        """Remove a container that does not run. EngineError: the engine refuses."""


class DockerImages(Docker):
    """The images of a Docker engine."""

    name = "docker"

    @classmethod
    def find(cls, *, fix: str) -> DockerImages:
        """The engine that the environment names. NoEngineError, with `fix`: none answers."""
        return cls.connect(fix=fix, timeout_s=_PATIENCE_S)

    def labelled(self, label: str) -> tuple[EngineImage, ...]:
        return self._images(filters={"label": label})

    def loaded(self, repository: str) -> tuple[EngineImage, ...]:
        return self._images(name=repository)

    def remove(self, name: str) -> None:
        self._guard(lambda: self._client.api.remove_image(name))

    def leftovers(self) -> tuple[EngineContainer, ...]:
        return tuple(one for one in self._containers(label=_ROLE_KEY) if not one.running)

    def remove_container(self, name: str) -> None:
        self._guard(lambda: self._client.api.remove_container(name, v=True))

    def _images(self, **chosen: Any) -> tuple[EngineImage, ...]:  # noqa: ANN401  the SDK's words
        rows = self._guard(lambda: self._client.api.images(**chosen))
        containers = self._containers() if rows else ()
        found = [(one, self._find(one)) for one in dict.fromkeys(str(row["Id"]) for row in rows)]
        return tuple(
            read_image(image.attrs, self._history(image_id), containers)
            for image_id, image in found
            if image is not None  # removed meanwhile
        )

    def _history(self, image_id: str) -> list[str]:
        with contextlib.suppress(EngineError):
            steps = self._guard(lambda: self._get(image_id).history())
            return [str(step.get("CreatedBy") or "") for step in reversed(steps)]
        return []

    def _containers(self, label: str = "") -> tuple[EngineContainer, ...]:
        filters = {"label": label} if label else {}
        rows = self._guard(lambda: self._client.api.containers(all=True, filters=filters))
        return tuple(
            EngineContainer(
                name=_first(row.get("Names"), row["Id"][:12]),
                image_id=str(row.get("ImageID")),
                running=row.get("State") in _RUNNING,
            )
            for row in rows
        )


class PodmanImages:
    """The images of this user's podman, which need not be able to run any."""

    name = "podman"

    def __init__(self, program: str) -> None:
        self._program = program

    @classmethod
    def find(cls) -> PodmanImages:
        """The podman of this host. NoEngineError: there is none."""
        program = process.which("podman")
        if program is None:
            raise NoEngineError("podman is not installed.", fix=INSTALL_FIX)
        return cls(program)

    def labelled(self, label: str) -> tuple[EngineImage, ...]:
        words = ["images", "--quiet", "--no-trunc", "--filter", f"label={label}"]
        ids = list(dict.fromkeys(self._ask(words).split()))
        if not ids:
            return ()
        containers = self._containers()
        return tuple(
            read_image(about, _steps(about.get("History")), containers)
            for about in _rows(self._ask(["image", "inspect", *ids]))
        )

    def loaded(self, repository: str) -> tuple[EngineImage, ...]:
        del repository  # builds load nothing into podman that stays
        return ()

    def has(self, name: str) -> bool:
        return self._run(["image", "exists", name]).ok

    def remove(self, name: str) -> None:
        self._ask(["rmi", name.removeprefix("sha256:")])

    def leftovers(self) -> tuple[EngineContainer, ...]:
        return tuple(one for one in self._containers(label=_ROLE_KEY) if not one.running)

    def remove_container(self, name: str) -> None:
        self._ask(["rm", "--volumes", name])

    def _containers(self, label: str = "") -> tuple[EngineContainer, ...]:
        words = ["ps", "--all", "--no-trunc", "--format", "json"]
        words += ["--filter", f"label={label}"] if label else []
        return tuple(
            EngineContainer(
                name=_first(row.get("Names"), str(row.get("Id"))[:12]),
                image_id=_digest(row.get("ImageID")),
                running=row.get("State") in _RUNNING,
            )
            for row in _rows(self._ask(words))
        )

    def _ask(self, words: list[str]) -> str:
        return answer_of(words, self._run(words))

    def _run(self, words: list[str]) -> process.Completed:
        return process.run([self._program, *words], timeout_s=_PATIENCE_S, apart=True)


_RUNNING = frozenset({"running", "paused", "restarting", "stopping", "removing"})


def read_image(
    about: Mapping[str, Any], history: Sequence[str], containers: Iterable[EngineContainer]
) -> EngineImage:
    """An image from what `docker image inspect` or `podman image inspect` says of it."""
    image_id = _digest(about.get("Id"))
    config = about.get("Config")
    labels = config.get("Labels") if isinstance(config, dict) else None
    tags = [str(tag) for tag in about.get("RepoTags") or () if tag != "<none>:<none>"]
    names = [tag.removeprefix("localhost/") for tag in tags if not is_holder(tag)]
    return EngineImage(
        image_id=image_id,
        names=tuple(dict.fromkeys(names)),
        labels={str(key): str(value) for key, value in (labels or {}).items()},
        size=int(about.get("Size") or 0),
        created=_made(about),
        history=tuple(history),
        run_tags=tuple(tag for tag in tags if is_holder(tag)),
        containers=tuple(one for one in containers if _digest(one.image_id) == image_id),
    )


def _made(about: Mapping[str, Any]) -> float | None:
    """When the image was made, or else when the engine got its name."""
    metadata = about.get("Metadata")
    tagged = metadata.get("LastTagTime") if isinstance(metadata, dict) else None
    times = [_seconds(text) for text in (tagged, about.get("Created"))]
    return next((time for time in times if time is not None and time > _REAL_DATES_S), None)


def _seconds(text: object) -> float | None:
    """The seconds since the epoch of "2026-11-29T10:13:57.123456789Z"."""
    if not isinstance(text, str):
        return None
    day, dot, rest = text.partition(".")
    zone = rest.lstrip("0123456789") if dot else ""
    try:
        return datetime.fromisoformat(f"{day}{zone}".replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None


def _steps(history: object) -> list[str]:
    rows = history if isinstance(history, list) else []
    return [str(row.get("created_by") or "") for row in rows if isinstance(row, dict)]


def _rows(text: str) -> list[dict[str, Any]]:
    """The objects of a JSON list. EngineError: the text is something else."""
    try:
        found = json.loads(text or "[]")
    except (ValueError, RecursionError) as error:
        raise EngineError(
            "podman's answer is not valid JSON.", fix="Check: podman images --format json"
        ) from error
    return [row for row in found or () if isinstance(row, dict)]


def _digest(image_id: object) -> str:
    """An ID with its algorithm, which podman omits."""
    text = str(image_id or "")
    return text if text.startswith("sha256:") else f"sha256:{text}"


def _first(names: object, otherwise: str) -> str:
    found = names if isinstance(names, list) else []
    return str(found[0]).lstrip("/") if found else otherwise
