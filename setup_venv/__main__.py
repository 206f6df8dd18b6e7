"""The command that `./run` calls. Exit codes: 0, 4 (this host), 5 (network, disk), 130."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # python3 -I DIRECTORY puts our files before the standard library
    sys.path[:1] = []
    sys.path.append(str(Path(__file__).absolute().parents[1]))

from setup_venv.environment import set_up
from setup_venv.errors import SetupError


def main(words: Sequence[str]) -> int:
    """Set up .venv; print an error and its fix to stderr."""
    requirements, named, key = words
    try:
        set_up(requirements, named, key)
    except SetupError as error:
        sys.stderr.write(f"error: {error}\n  fix: {error.fix}\n")
        return error.code
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; the next ./run sets up .venv again\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
