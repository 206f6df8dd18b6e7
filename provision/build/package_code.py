"""Compares the wheels that a lock has beside the framework with the plan's CUDA and the GPUs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from provision.build.base import BuildSettings
from provision.build.package_cuda import THREADS, WheelRuntimes, other_cuda_warning
from provision.lock.gpu_code import MOST_BYTES, MissingCode, missing_code
from provision.lock.lead import PackageRelease, native_in
from provision.lock.runtimes import major_of, runtimes_in
from provision.lock.solve import Solution
from provision.model.plan import Warned
from provision.resolve.fleet import Fleet, GpuKind, show_capability, with_capability

_MOST_TARGETS = 8


class WheelLook:
    """Looks into the wheels of a lock, by range requests. `tell` gets the name of each package."""

    def __init__(
        self,
        runtimes: WheelRuntimes,
        fleet: Fleet,
        settings: BuildSettings,
        tell: Callable[[str], None],
    ) -> None:
        self._runtimes = runtimes
        self._fleet = fleet
        self._settings = settings
        self._tell = tell

    def warnings(
        self,
        found: Solution,
        releases: Mapping[str, PackageRelease],
        framework: str,
        requested: Collection[str],
    ) -> list[Warned]:
        """A warning for each package beside `framework`, whose build was chosen, that is for
        another CUDA, or has device code but none for one of the GPUs.
        """
        addresses = native_in(found.text)
        addresses.pop(framework, None)
        cuda = found.plan.cuda
        others = self._runtimes.others(addresses, releases, cuda, runtimes_in(found.text))
        warnings = [other_cuda_warning(other) for other in others.values()]
        if self._settings.offline or cuda is None:
            return warnings
        coded = {
            name: address
            for name, address in addresses.items()
            if name not in others and self._runtimes.of(address)
        }
        for name, missing in self._missing(coded, major_of(cuda), requested).items():
            title = f"{name} {releases[name].version}"
            kinds = [kind for kind in self._fleet.devices if kind.capability in missing.gpus]
            fix = _request_another(name, missing) if name in requested else _if_used(name)
            warnings.append(_no_code(title, kinds, missing, fix))
        return warnings

    def _missing(
        self, coded: Mapping[str, str], runtime: str, requested: Collection[str]
    ) -> dict[str, MissingCode]:
        """What the wheels at these addresses lack. A requested one is read as far as needed."""
        gpus = tuple(
            dict.fromkeys(kind.capability for kind in self._fleet.devices if kind.capability)
        )

        def look(name: str) -> MissingCode | None:
            most = None if name in requested else MOST_BYTES
            self._tell(f"{name}: for which GPUs")
            return missing_code(coded[name], gpus, runtime, ca_bundle=self._settings.ca, most=most)

        with ThreadPoolExecutor(THREADS) as threads:
            looked = dict(zip(coded, threads.map(look, coded), strict=True))
        return {name: missing for name, missing in looked.items() if missing is not None}


def _no_code(title: str, kinds: Sequence[GpuKind], missing: MissingCode, fix: str) -> Warned:
    return Warned(
        code="no-gpu-code",
        message=f"{title} has no code for {' and '.join(map(with_capability, kinds))}: it is "
        f"compiled for {_targets(missing.targets)}. Its kernels fail on that GPU.",
        fix=fix,
    )


def _request_another(name: str, missing: MissingCode) -> str:
    capabilities = " and ".join(map(show_capability, missing.gpus))
    return (
        f"Request another release of {name}, or name an index that has it for compute capability "
        f"{capabilities} with --index."
    )


def _if_used(name: str) -> str:
    return f"If you use it, request a release of {name} that has code for that GPU with --with."


def _targets(targets: Sequence[str]) -> str:
    shown = ", ".join(targets[:_MOST_TARGETS])
    return f"{shown} and {len(targets) - _MOST_TARGETS} more" if targets[_MOST_TARGETS:] else shown
