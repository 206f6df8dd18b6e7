"""The whole job in seconds: a torch that is only a name, from an index of our own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.engines.lab import World
from tests.kit.private_index import SIGNATURE, Authority, Index, Wheel, make_wheel, serve

TORCH = "torch-2.0.1+cu117-cp311-cp311-linux_x86_64.whl"
NUMPY = make_wheel("numpy-1.26.4-py3-none-any.whl", {"numpy/__init__.py": b""})
PIP = make_wheel("pip-26.1-py3-none-any.whl", {"pip/__init__.py": b""})
SIGNED = make_wheel("signed-1.0-py3-none-any.whl", {"signed/__init__.py": b""})
CA_CANARY = "canary-in-the-authority-2f9d"
PASSWORD = "canary/in the:login@81c3"


@dataclass(frozen=True)
class Source:
    """Where the small images come from."""

    authority: Authority
    uv_wheel: Wheel

    @contextmanager
    def index(
        self,
        torch: str = "",
        *,
        held: str = "",
        claims: int | None = None,
        zeros: int = 0,
        password: str = PASSWORD,
    ) -> Iterator[Index]:
        """An index with a torch whose whole code is `torch`."""
        code = {"torch/__init__.py": torch.encode()}
        wheel = make_wheel(TORCH, code, claims=claims, zeros=zeros)
        wheels = (wheel, NUMPY, PIP, SIGNED, self.uv_wheel)
        with serve(self.authority, *wheels, password=password, held=held) as index:
            yield index

    def words(self, index: Index, tag: str, *more: str) -> list[str]:
        """The command line."""
        argv = ["build", "--cuda", "11.7", "--python", "3.11", "--base", "bootstrap", "--json"]
        argv += ["--index", index.url, "--ca-bundle", str(self.authority.bundle), "--tag", tag]
        return [*argv, *more]

    def signed(self, index: Index) -> str:
        """A requirement whose address has a signature."""
        place = f"https://{index.address}:{index.port}/signed/{SIGNED.name}"
        return f"{SIGNED.project} @ {place}?signature={SIGNATURE}"

    def env(self, index: Index) -> dict[str, str]:
        """The index is the default one too, so that nothing comes from anywhere else."""
        return {"UV_DEFAULT_INDEX": index.url}


def left_over(world: World) -> list[str]:
    """Files that a job has left in the temporary directory."""
    return sorted(path.name for path in world.temporary.iterdir())
