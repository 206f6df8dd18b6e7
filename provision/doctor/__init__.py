"""From symptom to cause to fix: texts and the machine's facts, judged by shipped knowledge."""

from provision.doctor.diagnose import diagnose
from provision.doctor.knowledge import Knowledge, load
from provision.doctor.model import Cause, Diagnosis, Evidence, Fact, Facts, Fix

__all__ = [
    "Cause",
    "Diagnosis",
    "Evidence",
    "Fact",
    "Facts",
    "Fix",
    "Knowledge",
    "diagnose",
    "load",
]
