"""Runs an image where there is no engine, as an ordinary user.

How data flows, and which module does what:

    an image's layers  --unpack-->  a directory, which hostile layers cannot lead out of  (tree)
                       --roots--->  kept under the image id, for the next run
    host's GPU driver  --devices->  device nodes, libraries, programs  (cdi)
    root, job, driver  --plan---->  mounts, environment, command: values only
    a plan             --launch-->  a command of bubblewrap, or of unshare(1) and our stage
                       --run----->  its result

Imports go one way: `run` uses all; `launch` uses `plan`; `roots` uses `unpack`, which uses `tree`
and `ahead`. `stage` is a program of its own, and `errors` says how all of this can fail.
"""

from __future__ import annotations
