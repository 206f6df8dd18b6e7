"""What goes wrong with a project's files."""

from __future__ import annotations

from images.net.address import shown_text
from provision.errors import BadInputError


class ProjectError(BadInputError):
    """A project that cannot be read, or declares nothing. Lines that its message quotes are shown
    without the secrets of their addresses.
    """

    code = "bad-project"

    def __init__(self, message: str, *, fix: str) -> None:
        super().__init__(shown_text(message), fix=fix)


class ProjectIncompleteError(ProjectError):
    """The image would not have what the project requires."""

    code = "project-incomplete"
