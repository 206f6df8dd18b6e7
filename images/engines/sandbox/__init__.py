"""Runs an image without an engine, as an ordinary user.

The data flow, and the modules:

    an image's layers  --unpack-->  a directory that hostile layers cannot escape  (tree)
                       --roots--->  kept under the image ID, for the next run
    host's GPU driver  --devices->  device nodes, libraries, programs  (cdi)
    root, job, driver  --plan---->  mounts, environment, command: values only
    a plan             --launch-->  a command with bubblewrap, or with unshare(1) and our stage
                       --run----->  its result

Imports go one way: `run` uses all; `launch` uses `plan`; `roots` uses `unpack`, which uses `tree`
and `read_ahead`. `stage` is a separate program, and `errors` lists the failures.
"""

from __future__ import annotations
