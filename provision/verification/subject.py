"""The image that `provision verify` and `inspect` are given: on an engine, or anywhere else.

A name is looked up on the engine, then in this user's own layout (for images built without an
engine), then in a registry if it names one. A path or `oci:DIR:NAME` is read from disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from images.engines.docker_errors import NoEngineError
from images.engines.emulation import check_runs, emulator_of, runs_natively
from images.engines.squashfs import ENDINGS
from images.errors import Failure
from images.oci.errors import ImagePlaceError, PlatformMissingError
from images.oci.layout_reader import names_in, open_layout
from images.oci.model import Platform, host_platform
from images.oci.sources import Image
from images.system.hashed_file import check_unchanged
from images.text.suggestions import alike, did_you_mean, no_such, or_nearby
from provision.lock.labels import labels_in
from provision.output.console import Console

if TYPE_CHECKING:
    from images.engines.podman import Podman
    from images.engines.runner import DockerRunner, Runner, RunnerName


T = TypeVar("T")
IMAGE, FILE_OR_IMAGE = "image", "file or image"
_NAME_ONE = (
    "Name an image, or what holds one: a directory (OCI layout), a .tar archive, a .sqfs file."
)
_FILE_ENDINGS = frozenset(
    {".tar", ".gz", ".tgz", ".zip", ".whl", ".log", ".txt", ".out", ".err", ".json", ".toml"}
    | {".yml", ".yaml", ".md", ".py", *ENDINGS}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePlaces:
    """Where images may be: the engine (`connect` fails if none answers), this user's own layout,
    podman's storage if `podman`, and what a registry needs; `state` is where a sandbox unpacks;
    `tell` hears what takes long.
    """

    connect: Callable[[], DockerRunner]
    images: Path
    state: Path
    ca: Path | None = None
    offline: bool = False
    podman: bool = True
    tell: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One image. `engine` has it, or `image` can be read; `registry`: a registry has it under that
    name; `digest`: that of its manifest, if it has one; `emulator`: what would run it here, if it
    is not for this machine's processor. A squashfs has one digest, that of the file; `claims`:
    those of the image that the file says it is.
    """

    name: str
    image_id: str
    labels: Mapping[str, str]
    engine: DockerRunner | Podman | None = None
    image: Image | None = None
    registry: str | None = None
    digest: str | None = None
    emulator: str = ""
    claims: tuple[str, ...] = ()

    @property
    def manifest(self) -> str | None:
        """The digest that a statement about this image must name, if that of its configuration
        proves too little: a lazy start shows what its manifest and its blobs say.
        """
        return self.digest if self.image is not None and self.image.is_lazy else None


def find_subject(text: str, places: ImagePlaces, *, what: str = IMAGE) -> Subject:
    """Find the named image; a failure says where it was looked for. `what`: what the user may have
    meant by the name. `nowhere` makes the failure.
    """
    from images.assembly.opening import open_path, parse_place
    from images.engines.squashfs.reader import open_squashfs

    if (file := squashfs_of(text)) is not None:
        return _read(text, open_squashfs(file, places.state, places.tell))
    place = parse_place(text)
    if place.path is not None:
        return _read(text, nearest(partial(open_path, place)))
    name = place.name or text
    if place.kind == "registry":
        return _in_registry(name, places)
    engine, problem = _engine(places.connect)
    if engine is not None and engine.has(name):
        image_id = engine.image_id(name)
        labels = engine.labels(image_id)
        emulator = "the engine's emulator" if engine.emulates(image_id) else ""
        return Subject(
            name=text, image_id=image_id, labels=labels, engine=engine, emulator=emulator
        )
    if place.kind == "any" and (own := nearest(partial(own_image, name, places.images))):
        return _read(text, own)
    if place.kind == "any" and places.podman and (subject := _on_podman(name, text)):
        return subject
    if place.kind == "any" and names_a_registry(name):
        return _in_registry(name, places)
    raise nowhere(text, places, engine, problem, what)


def _on_podman(name: str, text: str) -> Subject | None:
    from images.engines.podman import Podman

    found = Podman.find(name)
    if found is None:
        return None
    emulator = "" if runs_natively(found.platform) else "podman's emulator"
    return Subject(
        name=text,
        image_id=found.image_id,
        labels=found.labels,
        engine=Podman.connect(),
        emulator=emulator,
    )


def squashfs_of(text: str) -> Path | None:
    """The squashfs that a text names; None if it names none."""
    from images.engines.squashfs.reader import is_squashfs

    path = Path(text.removeprefix("squashfs:")).expanduser()
    return path if is_squashfs(path) else None


def engine_name(subject: Subject, places: ImagePlaces) -> str:
    """What would run the image here; "" if nothing can."""
    if subject.engine is not None:
        return subject.engine.name
    from images.engines.runner import choose_runner

    wanted: RunnerName | Literal["auto"] = "auto"
    if subject.image is not None and subject.image.squashfs is not None:
        wanted = "sandbox"
    try:
        return choose_runner(cache=places.state, wanted=wanted).runner.name
    except Failure:
        return ""


@contextmanager
def ready(
    subject: Subject, places: ImagePlaces, console: Console, order: Sequence[RunnerName] = ()
) -> Iterator[tuple[Runner, str]]:
    """What can run the image here, and the name that it uses for the image. `order`: which may run
    one that no engine has; () for all.
    """
    if subject.emulator:
        console.note(
            f"{subject.name} is for another processor and runs under emulation "
            f"({subject.emulator}): its timings mean nothing, and it gets no GPU."
        )
    if subject.engine is not None:
        yield subject.engine, subject.image_id
        return
    assert subject.image is not None
    if subject.image.squashfs is not None:
        runner: Runner = sandbox_here(places.state)
    else:
        runner = runner_here(places.state, console, order)
    with prepared(subject.image, runner, console) as found:
        yield found


def runner_here(
    cache: Path, console: Console, order: Sequence[RunnerName] = (), otherwise: str = ""
) -> Runner:
    """What can run an image that no engine has, of `order` or else of all; the error names each
    unusable runner with the reason, and `otherwise`. `cache`: where a sandbox keeps unpacked
    images.
    """
    from images.engines.runner import ORDER, choose_runner

    chosen = choose_runner(cache=cache, order=order or ORDER, otherwise=otherwise)
    for passed in chosen.passed_over:
        console.progress(f"cannot use {passed.name}: {passed.problem.message}")
    console.progress(f"using {chosen.runner.name}")
    return chosen.runner


def sandbox_here(cache: Path) -> Runner:
    """What runs a squashfs: engines cannot mount one."""
    from images.engines.runner import choose_runner

    return choose_runner(cache=cache, wanted="sandbox").runner


@contextmanager
def prepared(image: Image, runner: Runner, console: Console) -> Iterator[tuple[Runner, str]]:
    """Make an image runnable, and give its name there; then it is removed or unmounted, except
    for the last one that a sandbox has unpacked. OtherMachineError: this machine cannot run it;
    FileChangedError: the file of a squashfs was changed before the end.
    """
    from images.engines.sandbox.run import Sandbox

    check_runs(image.platform, image.shown)
    with console.transfer() as progress:
        progress.expect(sum(layer.blob.size for layer in image.layers))
        handle = runner.prepare(image, lambda count: progress.wrote("to run it", count))
    try:
        yield runner, handle
        if image.squashfs is not None:
            check_unchanged(image.squashfs)
    finally:
        if image.squashfs is not None or not isinstance(runner, Sandbox):
            runner.remove(handle)


def _read(text: str, image: Image, registry: str | None = None) -> Subject:
    return Subject(
        name=text,
        image_id=image.image_id,
        labels=labels_in(image.config),
        image=image,
        registry=registry,
        digest=image.digest,
        emulator=emulator_of(image.platform),
        claims=image.claims,
    )


def nearest(opened: Callable[[Platform], T]) -> T:
    """The image for this machine; if there is none, one that can be emulated here, else any."""
    try:
        return opened(host_platform())
    except PlatformMissingError as missing:
        offered = missing.offered
        if not offered:
            raise
    return opened(next(filter(emulator_of, offered), offered[0]))


def _in_registry(name: str, places: ImagePlaces) -> Subject:
    from images.assembly.opening import open_registry

    def opened(platform: Platform) -> Image:
        return open_registry(
            name, platform=platform, store=None, ca_bundle=places.ca, offline=places.offline
        )

    return _read(name, nearest(opened), registry=name)


def _engine(connect: Callable[[], DockerRunner]) -> tuple[DockerRunner | None, Failure | None]:
    try:
        return connect(), None
    except Failure as failure:
        return None, failure


def nowhere(
    text: str, places: ImagePlaces, engine: DockerRunner | None, problem: Failure | None, what: str
) -> Failure:
    """The failure for an image that was not found: where it was looked for, and similar names."""
    from images.assembly.opening import parse_place
    from images.registry.errors import ImageNotFoundError

    place = parse_place(text)
    name = place.name or text
    is_any = place.kind == "any"
    # Path.exists raises for a name that is too long
    if is_any and os.path.exists(name):  # noqa: PTH110
        kind = "directory" if Path(name).is_dir() else "file"
        return ImagePlaceError(f"The {kind} {name} does not hold an image.", fix=_NAME_ONE)
    own = names_in(places.images) if is_any else ()
    near = did_you_mean(alike(name, [*_names_on(engine), *own]))
    files = or_nearby(name, "", keep=lambda path: what != IMAGE or is_image_file(path))
    if is_any and not near and (looks_like_file(name) or (files and what != IMAGE)):
        return ImagePlaceError(no_such("file", name), fix=files or _NAME_ONE)
    looked = "the engine does not have it" if engine else _sentence_end(problem)
    ways = [] if near or files else ["build one (provision build --cuda 11.7)"]
    if is_any:
        looked = f"it is not among the images built here, and {looked}"
        ways += [f"name one in a registry (docker://{name})"]
    if engine is None:
        ways += ["start Docker if it is one of Docker's (provision doctor says how)"]
    otherwise = ", or ".join([", ".join(ways[:-1]), ways[-1]] if ways[1:] else ways)
    meant = near or files
    if meant:
        fix = f"{meant} Otherwise {otherwise}." if otherwise else meant
    else:
        fix = f"{otherwise[:1].upper()}{otherwise[1:]}"
    missing: type[Failure] = ImageNotFoundError if engine else NoEngineError
    return missing(f"There is no {what} {name}: {looked}.", fix=fix)


def looks_like_file(name: str) -> bool:
    """Whether a name ends like a file name, which few image names do."""
    return Path(name).suffix.lower() in _FILE_ENDINGS


def is_image_file(path: Path) -> bool:
    """Whether a file or a directory looks like an image."""
    return path.suffix in {".tar", *ENDINGS} or (path / "oci-layout").is_file()


def _sentence_end(problem: Failure | None) -> str:
    """ "No container engine answers at X." -> "no container engine answers at X"."""
    message = problem.message.rstrip(".") if problem else "no engine was asked"
    return message[:1].lower() + message[1:]


def _names_on(engine: DockerRunner | None) -> tuple[str, ...]:
    try:
        return engine.names() if engine is not None else ()
    except Failure:
        return ()


def own_image(name: str, images: Path, platform: Platform | None) -> Image | None:
    """The image of that name in this user's own layout, if there is one. PlatformMissingError:
    there is, but not for this platform.
    """
    if not (images / "oci-layout").exists():
        return None
    try:
        return open_layout(images, name, platform)
    except PlatformMissingError:
        raise
    except Failure:
        return None


def names_a_registry(name: str) -> bool:
    """Whether the first word is a host; "team/torch" is not sent to Docker Hub implicitly."""
    first, slash, _ = name.partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")
