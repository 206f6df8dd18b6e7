"""`python -m verify`, or `python PATH/verify`: an image starts it by its path, so that no other
program there finds this package. Oldest Python: 3.8. This file parses on older ones, to be able to
say so.
"""

import os
import sys

if sys.version_info < (3, 8):  # before any import: the other files do not parse there
    sys.stderr.write("verify needs Python 3.8 or newer; this is %s.\n" % sys.version.split()[0])
    sys.exit(2)

if not __package__:
    # Started by its path: Python has put the package's own folder in front, where its modules would
    # stand before others of their name. In an image the folder above holds this package alone.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from verify.commands.main import main


def run() -> None:
    """Run the command line and exit with its code."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
