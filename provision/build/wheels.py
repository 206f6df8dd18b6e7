"""Builds without an engine: the lock's wheels become layers on an unchanged base.

Nothing is run, no file of a wheel is unpacked, and the same lock gives the same digests everywhere.
The inputs of a layer are its key; the store remembers the result, so that a layer which its target
has is neither downloaded nor made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from images.assembly.build import Built, Recipe, build
from images.assembly.opening import open_image
from images.engines.runner import DockerRunner, Runner
from images.engines.sandbox.run import confine
from images.layers.base_facts import BaseFacts, facts_from_json, read_base_facts
from images.layers.bytecode import bytecode_groups, bytecode_layer
from images.layers.interpreter import Compiler
from images.layers.order import wheel_sources
from images.layers.own import image_environment, lock_layer, site_of, skeleton_layer, suite_layer
from images.layers.toolkit import toolkit_layers
from images.layers.transcode import WheelLayer
from images.oci.archive import ArchiveTarget
from images.oci.archive_reader import open_archive
from images.oci.assemble import ContainerSettings, image_index
from images.oci.model import INDEX, MANIFEST, platform_of
from images.oci.reference import parse_reference
from images.oci.sources import Image, LayerSource
from images.store.fetch import Fetcher
from images.store.store import Store
from provision.build.base import BuildSettings
from provision.build.cut import cut_layers, note_kept, report_of
from provision.build.destination import Choice
from provision.build.disk_space import BuildSpace
from provision.build.load_check import LoadCheck
from provision.build.loading import LoadSubject
from provision.build.maker import KeptImage, LockedImage, MadeImage, RunnableImage
from provision.build.next_commands import kept_name
from provision.build.packing import (
    BuildMemory,
    ImportRecording,
    Making,
    compressed,
    lazy,
    learned,
    report_spared,
    report_written_twice,
)
from provision.build.pipeline import nvcc_flags, secrets_for
from provision.build.project.code import ProjectCode
from provision.build.targets import SquashfsTarget, open_target
from provision.lock.labels import labels_for
from provision.lock.lockfile import Lock
from provision.model.plan import PACKAGES, Request
from provision.output.console import Console
from provision.resolve.packages import asked_for
from provision.verification.subject import prepared, runner_here, sandbox_here
from provision.verification.suite import suite_directory
from provision.version import VERSION

if TYPE_CHECKING:
    from typing_extensions import Self

_BASE_FACTS = "base-facts"


class WheelMaker(AbstractContextManager["WheelMaker"]):
    """Makes layers from wheels and writes them to a target."""

    def __init__(
        self,
        *,
        choice: Choice,
        tag: str,
        request: Request,
        making: Making,
        code: ProjectCode | None,
        images: Path,
        engine: DockerRunner | None,
        verify: bool,
        settings: BuildSettings,
        console: Console,
    ) -> None:
        self._destination = choice.destination
        self._tag = tag
        self._request = request
        self._making = making
        self._code = code
        self._images = images
        self._engine = engine
        self._verify = verify
        self._settings = settings
        self._console = console
        self._held = ExitStack()
        self._built: list[Built] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._store = stack.enter_context(
                Store.open(
                    self._settings.state,
                    limit_bytes=self._making.store_limit,
                    on_note=self._console.note,
                )
            )
            self._target, self._mount = stack.enter_context(
                open_target(
                    self._destination,
                    self._settings,
                    images=self._images,
                    on_wait=self._console.note,
                )
            )
            self._held = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()

    @property
    def place(self) -> str:
        return self._target.shown

    def make(self, image: LockedImage, _: Path) -> MadeImage:
        """Make the image; the lock's own text goes into a layer, so its file is not needed."""
        lock = image.lock
        base = self._open_base(image)
        facts = self._facts_of(base, lock.plan.python or "")
        memory = BuildMemory(
            self._store,
            learned(self._making.cache_from, base.platform, self._settings, self._console),
        )
        with self._console.transfer() as progress:
            # kept until the image is named: running it reads its wheels again
            fetcher = self._held.enter_context(
                Fetcher(
                    self._store,
                    secrets=secrets_for(lock, self._request, self._settings),
                    offline=self._settings.offline,
                    on_bytes=progress.fetched,
                    on_note=self._console.note,
                )
            )
            sources = self._sources(lock, base, facts, fetcher)
            recipe = Recipe(
                base=base,
                sources=cut_layers(sources, self._making.cut),
                settings=self._settings_of(lock, base),
            )
            check = LoadCheck(
                LoadSubject(
                    plan=lock.plan,
                    layers=[source for source in sources if isinstance(source, WheelLayer)],
                    base=base,
                    python=facts.python,
                    environment=recipe.settings.env,
                ),
                self._store,
                progress,
            )
            packed = self._packed(recipe, image, memory, fetcher)
            built = build(
                packed,
                self._target,
                memory,
                progress,
                workers=max(2, min(4, os.cpu_count() or 2)),
                mount=self._mount,
                wanted=lambda missing: self._fetch(check, fetcher, packed, missing, memory),
                give_up=fetcher.close,
                beside=check.run,
            )
        if self._making.exclude_unneeded:
            report_spared(lock, self._store, self._console)
        report_written_twice(sources, self._store, self._console)
        check.report(self._console)
        cut = report_of(recipe.sources, self._making.cut, self._store)
        note_kept(cut, self._console)
        self._built.append(built)
        # under its digest, so that an index can name it and a registry does not delete it
        self._target.publish(built.content, MANIFEST, name=None)
        made = MadeImage(
            image_id=built.image_id,
            size_bytes=built.size,
            manifest=built.manifest,
            image=built.image,
            layers=tuple(asdict(layer) for layer in built.layers),
            loading=check.verdict,
            cut=cut,
        )
        if isinstance(self._target, SquashfsTarget):
            return self._target.write_image(made, self._console)
        return made

    def _fetch(
        self,
        check: LoadCheck,
        fetcher: Fetcher,
        recipe: Recipe,
        missing: Sequence[LayerSource],
        memory: BuildMemory,
    ) -> None:
        """Start the downloads, if the disks can hold all of the build."""
        # a squashfs needs the files of all layers, whether they are known or not
        needed = recipe.sources if self._destination.kind == "squashfs" else missing
        wheels = [wheel for source in needed for wheel in source.wheels]
        room = BuildSpace(
            destination=self._destination,
            images=self._images,
            state=self._settings.state,
            engine=self._engine,
            verify=self._verify,
            has=self._target.has,
        )
        fetched = sum(wheel.size or 0 for wheel in fetcher.missing(wheels))
        room.check(recipe, missing, memory.known, fetched=fetched, make_room=self._store.make_room)
        check.prefetch(fetcher, needed)

    @contextmanager
    def ready(self, made: MadeImage) -> Iterator[RunnableImage]:
        """Load or unpack it, wherever it was sent: its layers are made again for that."""
        assert made.image is not None
        if made.image.squashfs is not None:
            runner: Runner = sandbox_here(self._settings.state)
            with prepared(made.image, runner, self._console) as (_, handle):
                yield RunnableImage(runner=runner, handle=handle)
            return
        if self._engine is not None and self._destination.kind == "engine":
            with self._console.transfer() as progress:
                progress.expect(made.size_bytes)
                handle = self._engine.prepare(
                    made.image, lambda count: progress.wrote("for the suite", count)
                )
            try:
                yield RunnableImage(runner=self._engine, handle=handle)
            finally:
                self._engine.keep(handle)
            return
        runner = self._engine or runner_here(
            self._settings.state,
            self._console,
            otherwise=", or skip the verification: --no-verify",
        )
        with prepared(made.image, runner, self._console) as (_, handle):
            yield RunnableImage(runner=runner, handle=handle)

    def publish(self, made: tuple[MadeImage, ...]) -> MadeImage:
        """Give the image its name; several images become an index of platforms."""
        is_pushed = self._destination.kind == "registry"
        return self._publish(made, self._destination.where if is_pushed else self._tag)

    def keep(self, made: tuple[MadeImage, ...], state: str) -> KeptImage:
        """A file gets another name; a registry has the image already, by its digest."""
        tag, where = kept_name(self._tag, state), self._destination.where
        if self._destination.kind == "registry":
            pushed = parse_reference(where)
            assert made[0].manifest is not None
            tag = where = f"{pushed.registry}/{pushed.repository}@{made[0].manifest.digest}"
        else:
            if isinstance(self._target, ArchiveTarget | SquashfsTarget):
                file = Path(where)
                where = str(file.with_name(f"{file.stem}-{state}{file.suffix}"))
                self._target.go_to(Path(where))
            self._publish(made, tag)
        return KeptImage(tag=tag, destination=replace(self._destination, where=where))

    def _publish(self, made: tuple[MadeImage, ...], name: str) -> MadeImage:
        if self._destination.kind == "engine":
            assert self._engine is not None
            (image,) = (one.image for one in made)
            assert image is not None
            handle = self._engine.prepare(image, lambda _: None, name=name)
            self._engine.remove(handle)  # it has its name
            return made[0]
        if len(self._built) == 1:
            self._target.publish(self._built[0].content, MANIFEST, name=name)
            return made[0]
        index = image_index([built.manifest for built in self._built], {})
        published = self._target.publish(index, INDEX, name=name)
        return replace(
            made[0],
            manifest=published,
            image=None,
            size_bytes=sum(one.size_bytes for one in made),
        )

    def _packed(
        self, recipe: Recipe, image: LockedImage, memory: BuildMemory, fetcher: Fetcher
    ) -> Recipe:
        """The image with its layers as they are written."""
        if self._making.lazy is None:
            return compressed(recipe, self._making.compression)
        module, state = PACKAGES[image.lock.plan.framework], self._settings.state
        recording = ImportRecording(module, memory, self._store, fetcher, state, self._console)
        return lazy(recipe, self._making.lazy, recording, own_base=image.base.archive is not None)

    def _settings_of(self, lock: Lock, base: Image) -> ContainerSettings:
        labels = labels_for(lock, VERSION, self._making.cut)
        settings = image_environment(base.config, nvcc_flags=nvcc_flags(lock.plan), labels=labels)
        if self._code is None:
            return settings
        program = self._code.program
        return replace(settings, working_dir=program.directory, command=program.command)

    def _open_base(self, image: LockedImage) -> Image:
        pinned = image.base
        platform = platform_of(image.plan.arch or "")
        if pinned.archive is not None:
            return open_archive(pinned.archive, None, platform)
        return open_image(
            pinned.reference,
            platform=platform,
            store=self._store,
            ca_bundle=self._settings.ca,
            offline=self._settings.offline,
            on_wait=self._console.note,
        )

    def _facts_of(self, base: Image, python: str) -> BaseFacts:
        """The contents of the base, read once and cached by its digest."""
        key = f"{base.digest} {base.platform} {python}"
        found = facts_from_json(self._store.facts(_BASE_FACTS, key))
        if found is None:
            found = read_base_facts(base, python)
            self._store.remember_facts(_BASE_FACTS, key, found.to_json())
        return found

    def _sources(
        self, lock: Lock, base: Image, facts: BaseFacts, fetcher: Fetcher
    ) -> tuple[LayerSource, ...]:
        """All our layers, the lowest first; what changes often is on top."""
        plan, unpacked = lock.plan, self._settings.unpacked
        python = plan.python or ""
        wheels = wheel_sources(
            lock.wheels,
            python=python,
            framework={PACKAGES[plan.framework]},
            own=asked_for(plan),  # they change most often
            exclude_unneeded=self._making.exclude_unneeded,
            fetch=fetcher.fetch,
        )
        links = toolkit_layers(
            lock.wheels,
            facts=facts,
            arch=plan.arch or "",
            site=site_of(python),
            fetch=fetcher.fetch,
        )
        compiled: tuple[LayerSource, ...] = ()
        if self._making.bytecode:
            compiler = Compiler(facts, python=python, base=base, confine=confine)
            # in the order of the wheels' layers: if two files have one name, the later one counts
            compiled = tuple(
                bytecode_layer(
                    group,
                    compiler=compiler,
                    site=site_of(python),
                    exclude_unneeded=self._making.exclude_unneeded,
                    fetch=fetcher.fetch,
                )
                for group in bytecode_groups([source.wheels for source in wheels])
            )
        return (
            skeleton_layer(facts, python=python),
            *wheels,
            *links,
            *compiled,
            suite_layer(unpacked.suite if unpacked else suite_directory()),
            lock_layer(lock.text.encode()),
            *((self._code.layer(python),) if self._code else ()),
        )
