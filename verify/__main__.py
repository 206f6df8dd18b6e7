"""`python -m verify`, `python PATH/verify` or `python verify.pyz`: in an image the suite is started
by its path, so that no other program there imports this package. It needs Python 3.8. This file
also parses on older ones, 2.7 too, so that it can report that.
"""

import os
import sys

if sys.version_info < (3, 8):  # before any import: the other files do not parse there
    sys.stderr.write("verify needs Python 3.8 or newer; this is %s.\n" % sys.version.split()[0])
    sys.exit(2)

if not __package__ and os.path.isfile(__file__):
    # Started by its path: Python has put the package's own folder first in sys.path, where its
    # modules would hide others of the same name. In an image the parent folder holds only verify.
    # In verify.pyz this file is beside the package, and no file of the system.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from verify.commands.main import run

if __name__ == "__main__":
    run()
