"""Judges whether the libraries of an image will load while its layers are downloaded and written.

Reading them costs about as much as writing the layers; beside the downloads it costs little. A
library that will not load ends the build at once, and nothing has the image's name yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from images.oci.sources import LayerSource
from images.store.fetch import Fetcher
from images.store.store import Store
from provision.build.load_reader import read_first
from provision.build.loading import LoadSubject, LoadVerdict, check_loading
from provision.output.console import Console, TransferProgress


class LoadCheck:
    """One check beside one build."""

    def __init__(self, subject: LoadSubject, store: Store, progress: TransferProgress) -> None:
        self._subject = subject
        self._store = store
        self._progress = progress
        self._fetching: frozenset[str] = frozenset()
        self.verdict: LoadVerdict | None = None

    def prefetch(self, fetcher: Fetcher, sources: Sequence[LayerSource]) -> None:
        """Start the downloads for these layers; what is read first is downloaded first."""
        # a wheel may be in several layers: its files, its byte code, links to its toolkit
        different = {w.sha256: w for source in sources for w in source.wheels}
        wheels = list(different.values())
        requested = self._subject.requested
        self._fetching = frozenset(wheel.sha256 for wheel in wheels)
        self._progress.will_fetch(sum(wheel.size or 0 for wheel in wheels))
        fetcher.prefetch(wheels, read_first(wheels, requested) if requested else ())

    def run(self, stopped: Callable[[], bool]) -> None:
        """Read and judge the wheels as they arrive. WillNotLoadError: see `check_loading`."""
        self.verdict = check_loading(
            self._subject,
            self._store,
            tell=self._progress.say,
            fetching=self._fetching,
            stopped=stopped,
        )

    def report(self, console: Console) -> None:
        """Say what was found."""
        if self.verdict is not None:
            console.note(self.verdict.words)
            if self.verdict.warning is not None:
                console.warn(*self.verdict.warning)
