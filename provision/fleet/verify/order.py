"""What all nodes run: an image by a name that means the same everywhere, with its expectations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from images.assembly.opening import parse_place
from images.engines.sandbox.sif import ENDING
from provision.catalog.catalog import Catalog
from provision.errors import BadInputError
from provision.fleet.nodes.in_image import ImageWork, suite_command
from provision.fleet.on_node.image import INSIDE, WAYS
from provision.lock.labels import cut_of, expectations, plan_of, spec_of
from provision.resolve.packages import asked_for
from provision.verification.subject import Subject, squashfs_of

_OF_LAYOUTS = ("provision", "podman", "apptainer")
_OF_SQUASHFS = ("provision", "apptainer", "enroot")
_OF_SIF = ("provision", "apptainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOrder:
    """The suite of one image at one level. `image` is its name on the nodes, `image_id` the digest
    of its configuration, or of the file of a squashfs; `digest` that of its manifest, or the same.
    `timeout_s` is without the `burn_min` minutes for which all GPUs of a node are loaded.
    """

    image: str
    image_id: str
    level: str
    timeout_s: float
    expect: Mapping[str, Any]
    specs: Mapping[str, Mapping[str, Any]]
    ways: tuple[str, ...] = WAYS
    provision: str | None = None
    digest: str | None = None
    burn_min: float | None = None

    @property
    def whole_s(self) -> float:
        """Seconds that the suite may take on a node."""
        return self.timeout_s + 60 * (self.burn_min or 0.0)

    def work(self) -> ImageWork:
        """What a node is asked for."""
        burn = () if self.burn_min is None else ("--burn", f"{self.burn_min:g}")
        words = ("--json", "--level", self.level, *burn)
        return ImageWork(
            image=self.image,
            command=suite_command(*words, "--expect", "-"),
            timeout_s=self.whole_s,
            ways=self.ways,
            provision=self.provision,
            verify=(*words, "--timeout", f"{self.timeout_s:.0f}"),
            expect=self.expect,
            specs=self.specs,
            digest=self.digest,
        )


def read_order(
    subject: Subject,
    catalog: Catalog,
    *,
    level: str,
    timeout_s: float,
    way: str | None,
    provision: str | None,
    inside: bool = False,
    burn_min: float | None = None,
) -> FleetOrder:
    """The order for an image that is read here. `inside`: the nodes run it themselves, as
    Kubernetes does. BadInputError: the nodes cannot have it, or the way is none.
    """
    if inside:
        option = "--way" if way is not None else "--provision"
        if (way, provision) != (None, None):
            raise BadInputError(
                f"{option} cannot be used with --on kubernetes.",
                fix=f"Remove {option}: the cluster runs the image.",
            )
        if subject.registry is None or subject.digest is None:
            raise BadInputError(
                f"Kubernetes needs an image of a registry; {subject.name} is not in one.",
                fix="Push it, and name it as REGISTRY/PATH:TAG: provision build --push "
                "REGISTRY/PATH:TAG",
            )
    if way is not None and way not in WAYS:
        raise BadInputError(f"Unknown --way {way!r:.40}.", fix=f"Use {', '.join(WAYS)}.")
    if way == "provision" and provision is None:
        raise BadInputError(
            f"--way {way} requires --provision.",
            fix='Name a checkout that the nodes share: --provision "/shared/gpu-provision/run '
            'provision"',
        )
    ways = tuple(one for one in WAYS if one != "provision" or provision is not None)
    image = name_on_nodes(subject)
    if image.startswith("oci:"):
        ways = tuple(one for one in ways if one in _OF_LAYOUTS)
    elif image.startswith("/"):
        able = _OF_SIF if image.endswith(ENDING) else _OF_SQUASHFS
        ways = tuple(one for one in ways if one in able)
    if way is not None and way not in ways:
        what = "a layout directory" if image.startswith("oci:") else f"a {Path(image).suffix} file"
        raise BadInputError(
            f"{way} cannot run {what}.",
            fix=f"Use --way {', '.join(ways)}, or push the image to a registry.",
        )
    plan = plan_of(subject.labels, subject.name)
    chosen = (INSIDE,) if inside else ways if way is None else (way,)
    return FleetOrder(
        image=image,
        image_id=subject.image_id,
        level=level,
        timeout_s=timeout_s,
        expect=expectations(
            plan,
            None,
            subject.image_id,
            packages=asked_for(plan),
            cut=cut_of(subject.labels, subject.name),
        ),
        specs={row.name: spec_of(row) for row in catalog.gpus},
        ways=chosen,
        provision=provision,
        digest=subject.digest,
        burn_min=burn_min,
    )


def name_on_nodes(subject: Subject) -> str:
    """The name under which every node gets this very image: a registry's digest, an engine's ID, or
    the absolute path of a layout or a squashfs. BadInputError: it is an archive, or in this user's
    own layout.
    """
    if (file := squashfs_of(subject.name)) is not None:
        return str(file.absolute())
    if subject.registry is not None and subject.digest is not None:
        repository = subject.registry.partition("@")[0]
        head, slash, last = repository.rpartition("/")
        return f"{head}{slash}{last.partition(':')[0]}@{subject.digest}"
    if subject.engine is not None:
        return subject.image_id
    place = parse_place(subject.name)
    if place.path is None or not place.path.is_dir():
        raise BadInputError(
            f"{subject.name} is on this machine only, and the nodes need it, too.",
            fix="Push it to a registry, or write it to a directory that the nodes share: provision "
            "build --output oci:DIR, or --output DIR/NAME.sqsh",
        )
    name = "" if place.name is None else f":{place.name}"
    return f"oci:{Path(place.path).absolute()}{name}"
