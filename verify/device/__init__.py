"""Reads this machine: NVML, the kernel's log, memory and process limits, the driver.

In: nothing, or a recording. Out: frozen values (`telemetry`, `nvml_types`). `machine.Machine` is
the one seam to hardware; `recording` replays one. Imports nothing else from the suite.
"""
