"""Sends a program to `ray_driver`, which runs it on one node, and ends as the program did.

Run as a script: SOCKET NODE-ID SECONDS, the program on standard input. If this process is ended,
the driver cancels the program.
"""

from __future__ import annotations

import json
import socket
import sys

FAILED = 255
LOST = "gpu-provision: node lost: "
BROKEN = "gpu-provision: Ray failed: "


def main(path: str, node: str, seconds: str) -> int:
    """The program's exit code, or 255 with the reason on standard error."""
    program = sys.stdin.buffer.read()
    request = {"node": node, "seconds": float(seconds), "size": len(program)}
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            connection.sendall(json.dumps(request).encode() + b"\n" + program)
            with connection.makefile("rb") as stream:
                reply = json.loads(stream.readline() or b"{}")
    except OSError as error:
        reply = {"failed": f"the driver of the cluster has ended ({error.strerror})"}
    if "code" not in reply:
        said = LOST + reply["lost"] if "lost" in reply else BROKEN + str(reply.get("failed", "?"))
        sys.stderr.write(f"{said}\n")
        return FAILED
    sys.stdout.write(reply["out"])
    sys.stderr.write(reply["err"])
    return int(reply["code"]) % 256


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
