"""The wheels that were built from source before, as `lock` and `provision wheel` look for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from images.store.built_wheels import BuiltWheel, BuiltWheels
from images.store.upkeep import hash_file
from provision.build.source.key import CachedWheel, WheelKey, fitting, key_from_json
from provision.model.plan import Plan


class WheelCache:
    """The wheels built by this user, below a directory."""

    def __init__(self, directory: Path) -> None:
        self._wheels = BuiltWheels(directory)

    def names(self) -> frozenset[str]:
        """The packages that wheels were built of."""
        return frozenset(one.key.name for one in self._all())

    def with_key(self, key: WheelKey) -> CachedWheel | None:
        """The wheel that was made from exactly this; None: there is none, or it has changed."""
        return self._sound([one for one in self._all() if one.key == key])

    def fitting(self, requirement: str, plan: Plan) -> CachedWheel | None:
        """The newest wheel that a requirement allows and that runs in the plan's image."""
        return self._sound(fitting(self._all(), requirement, plan))

    def keep(
        self, wheel: Path, key: WheelKey, *, glibc: str | None, compiler: Sequence[str]
    ) -> CachedWheel:
        """Keep a wheel that was just built."""
        about = {"schema": 1, "key": key.to_json(), "glibc": glibc, "compiler": list(compiler)}
        found = cached_wheel(self._wheels.keep(wheel, about))
        assert found is not None
        return found

    def _all(self) -> list[CachedWheel]:
        read = (cached_wheel(one) for one in self._wheels.all())
        return [one for one in read if one is not None]

    @staticmethod
    def _sound(wheels: Sequence[CachedWheel]) -> CachedWheel | None:
        """The first that has not changed since it was built."""
        return next((one for one in wheels if hash_file(Path(one.path)) == one.sha256), None)


def cached_wheel(built: BuiltWheel) -> CachedWheel | None:
    """A wheel of the store with its key; None: what is written about it is malformed."""
    about = built.about
    data = about.get("key")
    key = key_from_json(data) if isinstance(data, Mapping) else None
    glibc, compiler = about.get("glibc"), about.get("compiler")
    if key is None:
        return None
    return CachedWheel(
        key=key,
        path=str(built.path),
        sha256=built.sha256,
        size=built.size,
        glibc=glibc if isinstance(glibc, str) else None,
        compiler=tuple(map(str, compiler)) if isinstance(compiler, list) else (),
    )
