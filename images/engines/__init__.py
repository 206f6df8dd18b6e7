"""Builds and runs images on this machine: Docker, Podman, and a sandbox that needs neither.

In: `spec.ImageSpec` to build, `spec.RunJob` to run. Out: `spec.BuiltImage`, `spec.RunResult`.
`runner` chooses what runs a job, and is the interface for the rest of the program.
"""
