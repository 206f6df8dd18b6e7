"""What can be wrong with an offline bundle, or with what should go into one."""

from __future__ import annotations

from images.text.printable import printable
from provision.errors import BadInputError, NothingCompatibleError

_COPY_FIX = "Copy it again, and compare both copies: sha256sum FILE"


class BadBundleError(BadInputError):
    """A file that is not an offline bundle, or a damaged one."""

    code = "bad-bundle"

    def __init__(self, path: object, problem: str, fix: str = _COPY_FIX) -> None:
        shown = printable(str(path), limit=100)
        super().__init__(f"The bundle {shown} cannot be used: {problem}.", fix=fix)


class NotPackableError(BadInputError):
    """A lock, or an installation, that cannot go into an offline bundle."""

    code = "not-packable"


class BundleArchError(NothingCompatibleError):
    """A bundle for machines of another CPU architecture."""

    code = "bundle-other-arch"
