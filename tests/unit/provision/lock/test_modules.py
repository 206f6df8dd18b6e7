"""The top-level modules of wheels, from their directories."""

from __future__ import annotations

import pytest

from provision.lock.modules import modules_in


@pytest.mark.parametrize(
    ("members", "modules"),
    [
        pytest.param(["cv2/__init__.py", "opencv-4.dist-info/RECORD"], {"cv2"}, id="a package"),
        pytest.param(["six.py"], {"six"}, id="a module"),
        pytest.param(["_x.cpython-311-x86_64-linux-gnu.so"], {"_x"}, id="an extension module"),
        pytest.param(["google/protobuf/message.py"], {"google"}, id="a namespace"),
        pytest.param(["a-1.data/purelib/a/b.py", "a-1.data/platlib/c.py"], {"a", "c"}, id="parts"),
        pytest.param(["a-1.data/scripts/tool.py", "a-1.data/data/x.py"], set(), id="no modules"),
        pytest.param(["distutils-precedence.pth"], set(), id="a .pth file"),
    ],
)
def test_modules_of_a_wheel(members: list[str], modules: set[str]) -> None:
    assert modules_in(members) == modules
