"""`python -m verify`. Oldest Python: 3.8. This file parses on older ones, to be able to say so."""

import sys

if sys.version_info < (3, 8):  # before any import: the other files do not parse there
    sys.stderr.write("verify needs Python 3.8 or newer; this is %s.\n" % sys.version.split()[0])
    sys.exit(2)

from verify.cli import main


def run() -> None:
    """Run the command line and exit with its code."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
