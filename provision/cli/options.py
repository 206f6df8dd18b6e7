"""Parsed options -> values, each checked; what is wrong is refused before anything slow begins."""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING, cast

from provision.errors import BadInputError
from provision.model.frozen import replace
from provision.model.plan import Flavour, Gpu, HostFacts, Request
from provision.model.request import parse_compute_capability, parse_driver, parse_request, quoted

if TYPE_CHECKING:
    from pathlib import Path

    from images.registry import Reference
    from images.runner import DockerRunner
    from provision.build.job import Job
    from provision.build.pipeline import Settings
    from provision.catalog import Catalog
    from provision.output.console import Console
    from provision.verification.command import Order
    from provision.verification.subject import Places
    from provision.verification.suite import Asked

_BUILDERS = ("auto", "docker", "oci")
_LEVELS = ("quick", "standard", "full")


def read_catalog(console: Console) -> Catalog:
    """The shipped catalog with what this machine has learned since laid over it."""
    from provision.catalog import current

    catalog, problem = current(os.environ)
    if problem is not None:
        console.note(problem)
    return catalog


def read_request(args: argparse.Namespace, catalog: Catalog) -> Request:
    """What was asked for; a CUDA that never existed is no request."""
    if args.flavour not in {"runtime", "devel"}:
        raise BadInputError(
            f"Unknown --flavour {quoted(args.flavour)}.", fix="Use runtime or devel."
        )
    flavour: Flavour = "devel" if args.flavour == "devel" else "runtime"
    request = parse_request(
        cuda=args.cuda,
        framework=args.framework,
        framework_version=args.framework_version,
        python=args.python,
        companions=args.companions,
        flavour=flavour,
        base=args.base,
        index=args.index,
    )
    if request.cuda is not None:
        _refuse_unknown_cuda(request.cuda, catalog)
    return request


def _refuse_unknown_cuda(cuda: str, catalog: Catalog) -> None:
    if catalog.toolkit(cuda) is None:
        known = ", ".join(catalog.cuda_versions())
        raise BadInputError(
            f"There is no CUDA {cuda} in the catalog.",
            fix=f"Known versions: {known}. If it is newer: provision catalog refresh",
        )


def this_host() -> HostFacts:
    """What is known of the machine that we run on."""
    from provision.host import detect

    return detect()


def read_hosts(args: argparse.Namespace, catalog: Catalog) -> tuple[HostFacts, ...]:
    """The hosts the plan is for: those of the files, else this one; what-if laid over each."""
    from provision.model.facts import read_host_file

    driver = None if args.driver is None else parse_driver(args.driver)
    gpus = tuple(what_if_gpu(text, catalog) for text in args.gpus)
    if args.host.count("-") > 1:
        raise BadInputError("stdin can be used only once.", fix='Pass "--host -" only once.')
    hosts = tuple(read_host_file(path) for path in args.host) or (this_host(),)
    hosts = tuple(_what_if(facts, driver, gpus) for facts in hosts)
    arch = _arch_of(gpus, catalog)
    return hosts if args.host or arch is None else tuple(replace(f, arch=arch) for f in hosts)


def _arch_of(gpus: tuple[Gpu, ...], catalog: Catalog) -> str | None:
    """The CPU architecture of the machine that the GPUs asked about are part of, if they are."""
    found = {catalog.find_gpu(gpu.name).host_arch for gpu in gpus if gpu.name}
    return found.pop() if len(found) == 1 else None


def _what_if(facts: HostFacts, driver: str | None, gpus: tuple[Gpu, ...]) -> HostFacts:
    if driver is not None:
        facts = replace(facts, driver=driver, driver_cuda=None, user_mode_driver=None)
    if gpus:
        facts = replace(facts, gpus=gpus)
    stated = {"driver": driver is not None, "gpus": bool(gpus)}
    read = tuple(pair for pair in facts.sources if not stated.get(pair[0], False))
    return replace(facts, sources=read)


def what_if_gpu(text: str, catalog: Catalog) -> Gpu:
    capability = parse_compute_capability(text)
    if capability is not None:
        return Gpu(compute_capability=capability)
    match = catalog.find_gpu(text)
    if match.compute_capability is not None:
        name = match.rows[0].name if len(match.rows) == 1 else text
        return Gpu(name=name, compute_capability=match.compute_capability)
    if match.status == "ambiguous":
        names = ", ".join(f"{row.name}" for row in match.rows[:6])
        raise BadInputError(
            f"--gpu {quoted(text)} is ambiguous: {names}.",
            fix="Give the full name, or the compute capability: --gpu 8.6",
        )
    if (vendor := catalog.other_vendor(text)) is not None:
        raise BadInputError(
            f"--gpu {quoted(text)} is not an NVIDIA GPU ({vendor}). CUDA builds run on NVIDIA GPUs "
            "only.",
            fix="Name an NVIDIA GPU, for example: --gpu 'RTX 3090'",
        )
    near = f" Did you mean {' or '.join(match.suggestions[:3])}?" if match.suggestions else ""
    raise BadInputError(
        f"--gpu {quoted(text)} is not in the catalog.{near}",
        fix="Give its compute capability, which "
        "nvidia-smi --query-gpu=compute_cap --format=csv prints: --gpu 8.6",
    )


def read_settings(args: argparse.Namespace) -> Settings:
    from provision.build.pipeline import Settings
    from provision.lock.network import ca_bundle

    return Settings(
        ca=ca_bundle(args.ca_bundle, os.environ),
        offline=args.offline,
        state=state_directory(),
        env=os.environ,
        snapshot=_read_snapshot(args),
    )


def _read_snapshot(args: argparse.Namespace) -> str | None:
    from provision.model.request import parse_snapshot

    text = getattr(args, "snapshot", None)
    return None if text is None else parse_snapshot(text, time.time())


def read_places(args: argparse.Namespace) -> Places:
    """Where an image may be that was named."""
    from images.runner import DockerRunner
    from provision.lock.network import ca_bundle
    from provision.verification.subject import Places

    return Places(
        connect=lambda: cast("DockerRunner", DockerRunner.connect(fix=engine_fix())),
        images=image_home(),
        state=state_directory(),
        ca=ca_bundle(getattr(args, "ca_bundle", None), os.environ),
        offline=getattr(args, "offline", False),
    )


def read_build(args: argparse.Namespace, catalog: Catalog) -> Job:
    """One build, with all that was asked of it."""
    from pathlib import Path

    from provision.build.destination import read_destination
    from provision.build.documents import Documenting
    from provision.build.job import Job
    from provision.build.wheels import Making
    from provision.cli.sizes import store_limit

    if args.builder not in _BUILDERS:
        raise BadInputError(
            f"Unknown --builder {quoted(args.builder)}.", fix="Use auto, docker or oci."
        )
    destination = read_destination(args.output, args.push)
    if args.push is not None and args.tag is not None:
        raise BadInputError(
            "--push and --tag both name the image.",
            fix="Remove --tag: --push registry.example/team/torch:cu117",
        )
    return Job(
        request=read_request(args, catalog),
        catalog=catalog,
        settings=read_settings(args),
        asked=read_asked(args),
        making=Making(
            exclude_unneeded=args.exclude_unneeded,
            bytecode=args.bytecode,
            cache_from=args.cache_from,
            store_limit=store_limit(os.environ),
        ),
        images=image_home(),
        documenting=Documenting(
            home=record_home(),
            wanted=not args.no_provenance,
            bom=None if args.sbom is None else _file("--sbom", args.sbom),
            statement=None if args.provenance is None else _file("--provenance", args.provenance),
            key=None if args.key is None else _file("--key", args.key),
        ),
        locks=tuple(Path(name) for name in args.lock),
        tag=read_tag(args.tag),
        builder=args.builder,
        destination=destination,
        verify=not args.no_verify,
        dry_run=args.dry_run,
    )


def image_home() -> Path:
    """The layout of this user's own images: data, which nobody but the user may empty."""
    from pathlib import Path

    base = Path(os.environ.get("XDG_DATA_HOME") or "")
    if not base.is_absolute():
        base = Path(os.environ.get("HOME") or "/") / ".local" / "share"
    return base / "gpu-provision" / "images"


def state_directory() -> Path:
    """Where bases, locks and bug reports are kept between runs."""
    from pathlib import Path

    base = os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME") or "/") / ".cache"
    return Path(base) / "gpu-provision"


def record_home() -> Path:
    """Where records and the key that signs them are kept: not in a cache, which may be emptied."""
    from pathlib import Path

    base = Path(os.environ.get("XDG_STATE_HOME") or "")
    if not base.is_absolute():  # the XDG specification has such a value ignored
        base = Path(os.environ.get("HOME") or "/") / ".local" / "state"
    return base / "gpu-provision"


def mended_home() -> Path:
    """Where the journals of what --fix did are kept."""
    return record_home() / "mended"


def engine_fix() -> str:
    from images.engine_setup import fix_text

    return fix_text()


def read_level(text: str | None) -> str:
    if text is None:
        return "standard"
    if text not in _LEVELS:
        raise BadInputError(f"Unknown --level {quoted(text)}.", fix="Use quick, standard or full.")
    return text


def read_names(option: str, text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if len(name) > 60 or not all(c.isalnum() or c in ".-_" for c in name):
            raise BadInputError(
                f"{option}: there is no check {quoted(name)}.", fix="List them: verify --list"
            )
    if not names:
        raise BadInputError(f"{option} needs the name of a check.", fix="List them: verify --list")
    return names


def read_asked(args: argparse.Namespace) -> Asked:
    """What is asked of the suite."""
    from provision.verification.suite import Asked

    return Asked(
        level=read_level(args.level),
        require=read_names("--require", args.require),
        only=read_names("--only", getattr(args, "only", None)),
        timeout_s=_read_seconds(getattr(args, "timeout", None)),
    )


def _read_seconds(text: str | None) -> float:
    if text is None:
        return 1800.0
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:9]) <= 7 * 86400:
        raise BadInputError(
            f"--timeout {quoted(text)} is not a number of seconds (at most a week).",
            fix="For two hours: --timeout 7200",
        )
    return float(text)


def read_order(args: argparse.Namespace) -> Order:
    """One verification, with all that is to be kept of it."""
    from provision.verification.command import Order, Recording
    from provision.verification.report_files import FORMATS

    if args.trust or args.lock is not None:
        option = "--trust" if args.trust else "--lock"
        checks = "--check-record or --check-provenance" if args.trust else "--check-provenance"
        raise BadInputError(
            f"{option} requires {checks}.", fix=f"Remove {option}, or add {checks}."
        )
    if args.no_record and (args.record is not None or args.key is not None or args.attach_record):
        raise BadInputError(
            "--no-record cannot be used with --record, --attach-record or --key.",
            fix="Remove one of them.",
        )
    asked = read_asked(args)
    if asked.only and args.record is not None:
        raise BadInputError(
            "--only runs a part of the suite, but a record covers all of it.",
            fix="Remove --only or --record; with --only no record is written.",
        )
    return Order(
        image=read_image(args.image),
        asked=asked,
        files={
            name: _file(f"--{name}", given)
            for name in FORMATS
            if (given := _of(args, name)) is not None
        },
        baseline=None if args.baseline is None else _file("--baseline", args.baseline),
        recording=Recording(
            home=record_home(),
            wanted=not args.no_record and not asked.only,
            path=None if args.record is None else _file("--record", args.record),
            key=None if args.key is None else _file("--key", args.key),
            attach=args.attach_record,
        ),
    )


def read_check(args: argparse.Namespace) -> tuple[Path | None, list[Path], str | None]:
    """Which record is to be judged, whose keys are trusted, and from which level on it is enough:
    the options of a run say nothing here.
    """
    from provision.verification.report_files import FORMATS

    runs = (
        "require",
        "only",
        "timeout",
        "baseline",
        "record",
        "no_record",
        "key",
        "attach_record",
        *FORMATS,
    )
    given = [f"--{name.replace('_', '-')}" for name in runs if getattr(args, name)]
    if given:
        raise BadInputError(
            f"--check-record runs nothing, so {' and '.join(given)} would have no effect.",
            fix=f"Remove --check-record or {' and '.join(given)}.",
        )
    path = _there("--check-record", args.check_record) if args.check_record else None
    level = None if args.level is None else read_level(args.level)
    return path, [_there("--trust", text) for text in args.trust], level


def read_origin_check(args: argparse.Namespace) -> tuple[Path | None, list[Path], Path | None]:
    """Which statement is to be judged, whose keys are trusted, and which lock it should name."""
    from pathlib import Path

    from provision.verification.report_files import FORMATS

    runs = ("require", "only", "timeout", "baseline", "record", "no_record", "key")
    given = [
        f"--{name.replace('_', '-')}"
        for name in (*runs, "attach_record", *FORMATS)
        if getattr(args, name)
    ]
    if given:
        raise BadInputError(
            f"--check-provenance runs nothing, so {' and '.join(given)} would have no effect.",
            fix=f"Remove --check-provenance or {' and '.join(given)}.",
        )
    path = _there("--check-provenance", args.check_provenance) if args.check_provenance else None
    lock = Path(args.lock) if args.lock is not None else None
    return path, [_there("--trust", text) for text in args.trust], lock


def _of(args: argparse.Namespace, name: str) -> str | None:
    text: str | None = getattr(args, name)
    return text


def _file(option: str, text: str) -> Path:
    """A file by its whole path, since other processes work in other directories."""
    from pathlib import Path

    if not text:
        raise BadInputError(f"{option} needs a file name.", fix=f"For example: {option} DIR/FILE")
    return Path(os.path.abspath(text))  # noqa: PTH100  links are not resolved


def _there(option: str, text: str) -> Path:
    """A file that is read: one that is not there is said before anything is looked for."""
    from images.nearby import no_such, or_nearby

    path = _file(option, text)
    if not path.exists():
        raise BadInputError(
            no_such("file", text, option=option),
            fix=or_nearby(text, f"Name a file: {option} DIR/FILE"),
        )
    return path


def read_tag(text: str | None) -> str | None:
    if text is None:
        return None
    reference = _reference("--tag", text)
    if reference.digest is not None:
        raise BadInputError(
            "--tag takes a name and a tag, not a digest.", fix="For example: --tag team/torch:cu117"
        )
    return (
        text if reference.tag is not None and ":" in text.rpartition("/")[2] else f"{text}:latest"
    )


def read_image(text: str) -> str:
    """The name of an image, or where one lies."""
    from images.oci.opening import parse_place

    if len(text) > 4096 or "\0" in text:
        raise BadInputError(
            f"The image {quoted(text)} is too long for a name or a path.",
            fix="Write it as REGISTRY/PATH:TAG, for example team/torch:cu117",
        )
    place = parse_place(text)
    if place.path is None and not text.startswith("sha256:"):
        _reference("The image", place.name or text)
    return text


def _reference(what: str, text: str) -> Reference:
    from images.registry import parse_reference

    if len(text) > 400:
        raise BadInputError(
            f"{what} {quoted(text)} is too long for the name of an image.",
            fix="Write it as REGISTRY/PATH:TAG, for example team/torch:cu117",
        )
    return parse_reference(text)
