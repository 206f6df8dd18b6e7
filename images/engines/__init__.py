"""What builds and runs images on this machine: Docker, Podman, and a sandbox that needs neither.

In: `spec.ImageSpec` to build, `spec.RunJob` to run. Out: `spec.BuiltImage`, `spec.RunResult`.
`runner` chooses who runs a job; the rest of the program speaks to it.
"""
