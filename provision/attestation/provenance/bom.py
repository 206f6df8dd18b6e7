"""The bill of materials of an image, from its lock: CycloneDX, as JSON.

It lists what the image was made of: each wheel, the base (of a bootstrap base its Debian packages)
and the suite that is installed with them. The same lock and base give the same bytes: it has no
time, its serial number comes from the lock's digest, and everything is sorted here, whatever the
library's own order is. It has no licences: they are in the wheels, which a build from known layers
never reads, and a partial list would differ between machines.

Only one format, since scanners read both: CycloneDX has fields for the sha256 and the URL of
downloads, and its maintainers also maintain the library.
https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from images.wheels.remote_file import Wheel
from provision.attestation.provenance.public import public_base, public_url, wheel_file
from provision.errors import LockFileError
from provision.lock.lockfile import Lock
from provision.lock.source_builds import GitSource, SourceBuild
from provision.model.plan import TITLES, Plan
from provision.version import VERSION

if TYPE_CHECKING:
    from cyclonedx.model import HashType, Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component
    from packageurl import PackageURL

MEDIA_TYPE = "application/vnd.cyclonedx+json"
IMAGE_REF = "image"

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:gpu-provision:bill-of-materials:1")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# Debian Policy, 5.6.1 and 5.6.12, and the architecture that dpkg may put behind a name.
_DEBIAN = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9+.-]+)(?::[a-z0-9-]+)?=(?P<version>[A-Za-z0-9.+:~-]+)"
)
_PLAN_KEYS = ("cuda", "wheel_tag", "cudnn", "nccl", "python", "arch", "flavour")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFiles:
    """The files of an image that are not those of their wheels: each its package, its path in the
    wheel and its sha256 (hex). `why`: the option that changed them.
    """

    why: str
    files: Sequence[tuple[str, str, str]] = ()


def bill_of_materials(
    lock: Lock, *, debian: Sequence[str] = (), changed: ChangedFiles | None = None
) -> bytes:
    """The document. `debian` are the packages of a bootstrap base, each as "name=version".
    `changed`: files that differ from those of the wheels whose digests it has.
    """
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion

    made = make_outputter(_bom(lock, debian, changed), OutputFormat.JSON, SchemaVersion.V1_6)
    document = json.loads(made.output_as_string())
    del document["metadata"]["timestamp"]  # the library requires a version
    return (json.dumps(_sorted(document), indent=2, sort_keys=True) + "\n").encode()


def distinct(wheels: Iterable[Wheel]) -> list[Wheel]:
    """Each wheel once, however often and wherever the lock names it."""
    once = {(wheel.name, wheel.version, wheel.sha256): wheel for wheel in wheels}
    return [once[key] for key in sorted(once)]


def wheel_purl(wheel: Wheel) -> PackageURL:
    """The package by the name that scanners and advisories know it by."""
    from packageurl import PackageURL

    return PackageURL("pypi", name=wheel.name, version=wheel.version)


def base_purl(base: Mapping[str, str], arch: str | None) -> PackageURL | None:
    """A base by its digest, and where a registry has it."""
    from packageurl import PackageURL

    if base.get("kind") != "registry" or "name" not in base or "digest" not in base:
        return None
    repository, _, tag = base["name"].rpartition("/")[2].partition(":")
    qualifiers = {"repository_url": base["name"].removesuffix(f":{tag}"), "tag": tag}
    return PackageURL(
        "oci",
        name=repository,
        version=base["digest"],
        qualifiers={**{key: value for key, value in qualifiers.items() if value}, **_arch(arch)},
    )


def _arch(arch: str | None) -> dict[str, str]:
    names = {"x86_64": "amd64", "aarch64": "arm64"}
    return {"arch": names[arch]} if arch in names else {}


def _bom(lock: Lock, debian: Sequence[str], changed: ChangedFiles | None) -> Bom:
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.tool import ToolRepository

    image = _image(lock, changed)
    builds = {one.sha256: one for one in lock.builds}
    wheels = [_wheel(one, changed, builds.get(one.sha256)) for one in distinct(lock.wheels)]
    base, packages = _base(lock.plan), _debian_packages(debian, lock.plan)
    suite = _own("verification suite, in /opt/gpu-provision")
    parts = [*wheels, suite, *([base] if base else []), *packages]
    bom = Bom(
        serial_number=uuid.uuid5(_NAMESPACE, _identity(lock, debian, changed)),
        components=parts,
        metadata=BomMetaData(
            component=image,
            tools=ToolRepository(components=[_own("builder", ref="gpu-provision-builder")]),
        ),
    )
    bom.register_dependency(image, [*wheels, suite, *([base] if base else packages)])
    if base and packages:
        bom.register_dependency(base, packages)
    return bom


def _identity(lock: Lock, debian: Sequence[str], changed: ChangedFiles | None) -> str:
    """What the document depends on."""
    more = f" {changed.why} {sorted(changed.files)}" if changed else ""
    return f"{lock.sha256} {VERSION} {sorted(set(debian))}{more}"


def _image(lock: Lock, changed: ChangedFiles | None) -> Component:
    """The image, described by its purpose; this document is attached to its digest."""
    from cyclonedx.model.component import Component, ComponentType

    plan = lock.plan
    facts = {key: getattr(plan, key) for key in _PLAN_KEYS}
    return Component(
        type=ComponentType.CONTAINER,
        name=plan.framework,
        version=plan.framework_version,
        description=f"{TITLES[plan.framework]} {plan.framework_version} for CUDA {plan.cuda}",
        bom_ref=IMAGE_REF,
        properties=_properties(
            {**facts, "lock:sha256": lock.sha256, "changed-by": changed.why if changed else None}
        ),
    )


def _wheel(wheel: Wheel, changed: ChangedFiles | None, build: SourceBuild | None) -> Component:
    from cyclonedx.model import ExternalReference, ExternalReferenceType, XsUri
    from cyclonedx.model.component import Component, ComponentType, Pedigree

    kinds = ExternalReferenceType
    purl, sha256 = wheel_purl(wheel), _sha256(wheel.sha256, f"the wheel of {wheel.name}")
    rows = [(kinds.DISTRIBUTION, wheel.url, [sha256])]
    built: dict[str, str] = {}
    source = build.source if build is not None else None
    if isinstance(source, GitSource):
        rows.append((kinds.VCS, source.url, []))
        built = {"source:commit": source.commit, "source:tree": source.tree}
    elif source is not None:
        hashes = [_sha256(source.sha256, f"the source of {wheel.name}")]
        rows.append((kinds.SOURCE_DISTRIBUTION, source.url, hashes))
        built = {"source:sha256": source.sha256}
    references = [
        ExternalReference(type=kind, url=XsUri(url), hashes=hashes)
        for kind, address, hashes in rows
        if (url := public_url(address)) is not None
    ]
    files = {
        f"changed-file:{path}": f"sha256:{digest}"
        for package, path, digest in (changed.files if changed else ())
        if _canonical(package) == _canonical(wheel.name)
    }
    why = f"{_counted(len(files))} changed by {changed.why}" if changed and files else None
    return Component(
        type=ComponentType.LIBRARY,
        name=wheel.name,
        version=wheel.version,
        purl=purl,
        # A lock that names a package twice still has two parts, each with its own reference.
        bom_ref=f"{purl}#{wheel.sha256}",
        hashes=[sha256],
        external_references=references,
        pedigree=Pedigree(notes=why) if why else None,
        properties=_properties(
            {"wheel:file": wheel_file(wheel), "wheel:size": wheel.size, **built, **files}
        ),
    )


def _counted(files: int) -> str:
    return "1 file was" if files == 1 else f"{files} files were"


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _base(plan: Plan) -> Component | None:
    from cyclonedx.model.component import Component, ComponentType

    base = public_base(plan.base)
    if not base:
        return None
    name, _, version = base.get("name", "").rpartition("/")[2].partition(":")
    digest = base.get("digest", "").removeprefix("sha256:")
    words = "Debian, from its packages" if base["kind"] == "bootstrap" else "base image"
    return Component(
        type=ComponentType.CONTAINER,
        name=name or "base",
        version=version or None,
        description=words,
        purl=base_purl(base, plan.arch),
        bom_ref="base",
        hashes=[_sha256(digest, "the base")] if _SHA256.fullmatch(digest) else [],
        properties=_properties({f"base:{key}": value for key, value in base.items()}),
    )


def _debian_packages(debian: Iterable[str], plan: Plan) -> list[Component]:
    """The packages by name and version; which are architecture-independent is unknown."""
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    suite = plan.base.suite if plan.base else None
    found = {}
    for text in debian:
        if (match := _DEBIAN.fullmatch(text)) is None:
            raise LockFileError(
                f"A package of the base is not as dpkg names one: {text[:80]!r}.",
                fix="Rebuild the base: provision build --base bootstrap",
            )
        name, version = match["name"], match["version"]
        qualifiers = {"distro": suite} if suite else {}
        purl = PackageURL("deb", "debian", name, version, qualifiers=qualifiers)
        found[str(purl)] = Component(
            type=ComponentType.LIBRARY, name=name, version=version, purl=purl, bom_ref=str(purl)
        )
    return list(found.values())


def _own(what: str, *, ref: str | None = None) -> Component:
    from cyclonedx.model.component import Component, ComponentType

    return Component(
        type=ComponentType.APPLICATION,
        name="gpu-provision",
        version=VERSION,
        description=what,
        bom_ref=ref or "gpu-provision",
    )


def _sha256(digest: str, whose: str) -> HashType:
    from cyclonedx.model import HashAlgorithm, HashType

    if not _SHA256.fullmatch(digest):
        raise LockFileError(
            f"The lock has no valid sha256 of {whose}.",
            fix="The lock was edited or made by another version: lock again with provision lock",
        )
    return HashType(alg=HashAlgorithm.SHA_256, content=digest)


def _properties(values: Mapping[str, object]) -> list[Property]:
    from cyclonedx.model import Property

    return [
        Property(name=f"gpu-provision:{name}", value=str(value))
        for name, value in values.items()
        if value is not None
    ]


def _sorted(value: Any) -> Any:  # noqa: ANN401  any JSON value
    """Every list sorted: no order in this document has a meaning."""
    if isinstance(value, dict):
        return {key: _sorted(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted((_sorted(item) for item in value), key=_key)
    return value


def _key(value: object) -> str:
    return json.dumps(value, sort_keys=True)
