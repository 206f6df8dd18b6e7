"""The top-level modules of wheels, from their directories."""

from __future__ import annotations

from provision.lock.modules import modules_in
from tests.kit.cases import cases


@cases(
    "members modules",
    ("a package", ["cv2/__init__.py", "opencv-4.dist-info/RECORD"], {"cv2"}),
    ("a module", ["six.py"], {"six"}),
    ("an extension module", ["_x.cpython-311-x86_64-linux-gnu.so"], {"_x"}),
    ("a namespace", ["google/protobuf/message.py"], {"google"}),
    ("parts", ["a-1.data/purelib/a/b.py", "a-1.data/platlib/c.py"], {"a", "c"}),
    ("no modules", ["a-1.data/scripts/tool.py", "a-1.data/data/x.py"], set()),
    ("a .pth file", ["distutils-precedence.pth"], set()),
)
def test_modules_of_a_wheel(members: list[str], modules: set[str]) -> None:
    assert modules_in(members) == modules
