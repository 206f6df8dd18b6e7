"""The machine that we run on, as probes ask it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from provision.host.machine import ProbedMachine
from provision.host.runner import local_runner


def this_machine(env: Mapping[str, str] | None = None) -> ProbedMachine:
    """Its files, its programs, and the environment (ours, unless another is given)."""
    env = os.environ if env is None else env
    return ProbedMachine(env=dict(env), run=local_runner(env))
