"""NVML's answers as plain values, so that they can be recorded like a file."""

from __future__ import annotations

from provision.doctor.probes.machine import Answer
from provision.host.nvml import NvmlLoader, read_nvml

TIMEOUT_S = 4.0


def ask_nvml(load: NvmlLoader) -> Answer:
    """`failed` is why it did not answer. A GPU has `name` and `capability` ("8.6")."""
    reading = read_nvml(load, timeout_s=TIMEOUT_S)
    gpus: list[Answer] | None = None
    if reading.gpus is not None:
        gpus = [
            {
                "name": gpu.name,
                "capability": (
                    "{}.{}".format(*gpu.compute_capability) if gpu.compute_capability else None
                ),
                "mig": gpu.mig,
            }
            for gpu in reading.gpus
        ]
    return {
        "driver": reading.driver,
        "library": reading.user_mode_driver,
        "cuda": reading.driver_cuda,
        "gpus": gpus,
        "failed": reading.failed,
    }
