"""Collects accuracy readings: which dtypes are tried where, and what an error in one means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

from verify.backends.base import Backend
from verify.checks.numerics.accuracy import AccuracyReading


class Results(NamedTuple):
    """What a check collects: readings, and the reason for each dtype that it leaves out."""

    backend: Backend
    readings: List[AccuracyReading]
    left_out: Dict[str, str]

    def able(self, dtype: str, everywhere: Sequence[Any]) -> List[Any]:
        """The places that have a dtype; notes why the others do not."""
        reasons = {place: place.lacks(dtype) for place in everywhere}
        for reason in filter(None, reasons.values()):
            self.left_out.setdefault(dtype, reason)
        return [place for place, reason in reasons.items() if reason is None]

    def add(self, work: Callable[[], List[AccuracyReading]], doomed: AccuracyReading) -> None:
        """Add the work's readings; or `doomed` with the error, or the reason for leaving it out."""
        try:
            self.readings.extend(work())
        except Exception as error:
            text = "{}: {}".format(type(error).__name__, error)
            if self.backend.lacks_kernel(text, doomed.dtype, doomed.gpu):
                self.left_out.setdefault(doomed.dtype, text.partition("\n")[0][:160])
            else:
                self.readings.append(replace(doomed, raised=text))
