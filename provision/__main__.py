"""The `provision` command, and `python -m provision`."""

import errno
import os
import sys

_NO_MEMORY = b"""error: This machine or its limits give too little memory to run this program.
  fix: Allow more: ulimit -v unlimited; in a container, its memory limit.
"""


def run() -> None:
    """Entry point of the `provision` command. Ctrl-C while its modules load ends it as it does
    later: without a traceback, with exit code 130. So does too little memory, with 4; what has no
    memory to print its own sentence ends here, too.
    """
    try:
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
