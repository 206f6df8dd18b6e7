"""The `provision` command, and `python -m provision`."""

import errno
import importlib.util
import os
import sys

import provision

_NO_MEMORY = b"""error: This machine or its limits give too little memory to run this program.
  fix: Allow more: ulimit -v unlimited; in a container, its memory limit.
"""
_FOREIGN = """error: {} hides the package {} of gpu-provision.
  fix: Install gpu-provision in its own environment (uv tool install, pipx), and unset PYTHONPATH.
"""


def foreign() -> "tuple[str, str] | None":
    """The folder of a package that hides one of ours, and its name; none of its code is run."""
    place = provision.__path__[0].removesuffix("provision")
    for name in ("images", "verify"):
        found = importlib.util.find_spec(name)
        there = list(found.submodule_search_locations or ()) if found else []
        if there != [place + name]:
            return there[0] if there else place, name
    return None


def run() -> None:
    """Entry point of the `provision` command. Ctrl-C while its modules load ends it as it does
    later: without a traceback, with exit code 130. So does too little memory, with 4; what has no
    memory to print its own sentence ends here, too. So does a foreign package of our names, with 4.
    """
    try:
        other = foreign()
        if other:
            sys.stderr.write(_FOREIGN.format(*other))
            sys.exit(4)
        from provision.cli.main import run as start

        start()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    except (MemoryError, SystemError):  # the second: the interpreter had none to say so
        pass
    except (ImportError, OSError) as error:
        if getattr(error, "errno", None) != errno.ENOMEM and "map segment" not in str(error):
            raise
    os.write(2, _NO_MEMORY)
    os._exit(4)  # the interpreter's own end needs memory, too


if __name__ == "__main__":
    run()
