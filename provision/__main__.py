"""The `provision` command, and `python -m provision`."""

import sys


def run() -> None:
    """Entry point of the `provision` command. Ctrl-C while its modules load ends it as it does
    later: without a traceback, with exit code 130.
    """
    try:
        from provision.cli.main import run as start
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    start()


if __name__ == "__main__":
    run()
