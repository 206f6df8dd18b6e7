"""Rules for the services of a compose file: how they get a GPU, and what else they need."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from provision.catalog.catalog import Catalog
from provision.doctor.lint.base_rules import judge_image
from provision.doctor.lint.env_rules import capabilities_without_compute
from provision.doctor.lint.findings import RuleHit, table
from provision.sources.packages import Position
from provision.sources.yaml import YamlNode, read_yaml

_LAUNCHERS = frozenset(["torchrun", "deepspeed", "accelerate"])
_CDI = re.compile(r"nvidia\.com/\w+=.*")
_NONE = frozenset(["void", "none"])
_SWARM = frozenset(["mode", "placement", "update_config", "rollback_config", "endpoint_mode"])
_RESERVATION = """deploy:
  resources:
    reservations:
      devices:
        - driver: nvidia
          count: all
          capabilities: [gpu]"""


@dataclass(frozen=True)
class Service:
    """A service with the properties that the rules need."""

    name: str
    node: YamlNode
    place: Position

    @cached_property
    def image(self) -> str:
        node = self.node.get("image")
        return (node.text if node else None) or ""

    @cached_property
    def environment(self) -> dict[str, tuple[str | None, Position]]:
        return environment_of(self.node)

    @cached_property
    def runtime(self) -> str | None:
        node = self.node.get("runtime")
        return node.text if node else None

    @cached_property
    def devices(self) -> tuple[YamlNode, ...]:
        """The entries of deploy.resources.reservations.devices."""
        node: YamlNode | None = self.node
        for key in ("deploy", "resources", "reservations", "devices"):
            node = node.get(key) if node else None
        return tuple(node.items()) if node else ()

    @cached_property
    def has_cdi(self) -> bool:
        node = self.node.get("devices")
        words = [item.text or "" for item in node.items()] if node else []
        return any(_CDI.fullmatch(word) or word.startswith("/dev/nvidia") for word in words)

    @cached_property
    def asks(self) -> bool:
        """Whether it requests a GPU in any way."""
        return bool(
            self.devices
            or self.node.get("gpus")
            or self.has_cdi
            or "nvidia" in (self.runtime or "")
            or "$" in (self.runtime or "")
        )

    @cached_property
    def reason(self) -> str | None:
        """Why it obviously uses GPUs; None: there is no sign of it."""
        if any(re.fullmatch(p, self.image) for p in table("known.toml")["image"]["gpu"]):
            return f"the image {self.image}"
        for name in ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"):
            value, _ = self.environment.get(name, (None, None))
            if value and value not in _NONE and "$" not in value:
                return f"{name}={value}"
        return None

    @cached_property
    def command(self) -> tuple[str, ...]:
        return tuple(
            word
            for key in ("entrypoint", "command")
            if (node := self.node.get(key)) is not None
            for word in node.words()
        )


ServiceRule = Callable[[Service, "Catalog"], Iterator[RuleHit]]


def judge_compose(path: str, text: str, catalog: Catalog) -> Iterator[RuleHit]:
    """What the rules find. BadInputError: the file cannot be read as YAML."""
    root = read_yaml(path, text)
    services = root.get("services") if root else None
    if root is None or services is None:
        return
    all_services = [
        Service(name, node, services.key_place(name)) for name, node in services.pairs()
    ]
    for service in all_services:
        for rule in RULES:
            for hit in rule(service, catalog):
                yield replace(hit, start=service.place.line)
    if any(service.asks or service.reason for service in all_services):
        yield from _obsolete_version(root)


def looks_like_compose(text: str) -> bool:
    return re.search(r"^services:\s*(#.*)?$", text, re.MULTILINE) is not None


def gpu_missing(service: Service, _: Catalog) -> Iterator[RuleHit]:
    extended = service.node.get("extends") is not None
    if service.asks or service.reason is None or extended:
        return
    yield RuleHit(
        rule="compose-gpu-missing",
        at=service.place,
        message=f"Service {service.name} is for GPUs ({service.reason}) and asks for none; it "
        "gets one only where nvidia is the engine's default runtime.",
        fix=f"Add to the service:\n{_RESERVATION}",
    )


def capabilities_missing(service: Service, _: Catalog) -> Iterator[RuleHit]:
    for device in service.devices:
        capabilities = device.get("capabilities")
        if capabilities is None or not capabilities.words():
            yield RuleHit(
                rule="compose-capabilities-missing",
                at=device.at,
                message="A reserved device needs capabilities; without them the deployment fails.",
                fix="Add to it: capabilities: [gpu]",
            )


def count_and_ids(service: Service, _: Catalog) -> Iterator[RuleHit]:
    for device in service.devices:
        if device.get("count") is not None and device.get("device_ids") is not None:
            yield RuleHit(
                rule="compose-count-and-ids",
                at=device.key_place("device_ids"),
                message="count and device_ids exclude each other, and both are given.",
                fix="Keep one of them.",
            )


def shared_memory(service: Service, _: Catalog) -> Iterator[RuleHit]:
    launcher = next((w for w in service.command if w.rpartition("/")[2] in _LAUNCHERS), None)
    patterns = table("known.toml")["image"]["shared_memory"]
    if launcher is None and not any(re.fullmatch(p, service.image) for p in patterns):
        return
    if not (service.asks or service.reason) or _has_shared_memory(service):
        return
    yield RuleHit(
        rule="compose-shm",
        at=service.place,
        message=f"Service {service.name} has the 64 MiB of /dev/shm that are usual; "
        "NCCL and the loaders of PyTorch need more.",
        fix="Add to the service: ipc: host, or a size, for example shm_size: 8gb",
    )


def _has_shared_memory(service: Service) -> bool:
    if service.node.get("shm_size") is not None or service.node.get("ipc") is not None:
        return True
    if service.node.get("extends") is not None:
        return True
    mounts = [service.node.get("tmpfs"), service.node.get("volumes")]
    for mount in mounts:
        items = [*mount.items(), mount] if mount else []
        for item in items:
            target = item.get("target")
            if "/dev/shm" in (item.text or "") or (target and target.text == "/dev/shm"):  # noqa: S108
                return True
    return False


def runtime_and_reservation(service: Service, _: Catalog) -> Iterator[RuleHit]:
    if service.runtime == "nvidia" and service.devices:
        yield RuleHit(
            rule="compose-runtime-and-devices",
            at=service.node.key_place("runtime"),
            message="runtime: nvidia and the reserved devices ask for the same GPUs in two ways.",
            fix="Keep the reservation.",
        )


def visible_devices_none(service: Service, _: Catalog) -> Iterator[RuleHit]:
    value, at = service.environment.get("NVIDIA_VISIBLE_DEVICES", (None, service.place))
    if value in _NONE and service.asks:
        yield RuleHit(
            rule="visible-devices-none",
            at=at,
            message=f"NVIDIA_VISIBLE_DEVICES={value} takes from the service the GPUs that it "
            "asks for.",
            fix="Leave it out, or write NVIDIA_VISIBLE_DEVICES: all",
        )


def capabilities_of_environment(service: Service, _: Catalog) -> Iterator[RuleHit]:
    value, at = service.environment.get("NVIDIA_DRIVER_CAPABILITIES", (None, service.place))
    if value and "$" not in value and capabilities_without_compute(value):
        yield RuleHit(
            rule="capabilities-without-compute",
            at=at,
            message=f"With NVIDIA_DRIVER_CAPABILITIES={value} the driver's libcuda.so.1 is not "
            "mounted, and no CUDA program finds a GPU.",
            fix="Add compute: NVIDIA_DRIVER_CAPABILITIES: compute,utility",
        )


def locked_memory(service: Service, _: Catalog) -> Iterator[RuleHit]:
    node = service.node.get("devices")
    devices = [item.text or "" for item in node.items()] if node else []
    limits = service.node.get("ulimits")
    if not any(device.startswith("/dev/infiniband") for device in devices):
        return
    if service.node.get("privileged") or (limits and limits.get("memlock")):
        return
    yield RuleHit(
        rule="compose-memlock",
        at=node.at if node else service.place,
        message="RDMA has to lock memory, and the usual limit is 8 MiB or less.",
        fix="Add to the service: ulimits: {memlock: -1}",
    )


def swarm(service: Service, _: Catalog) -> Iterator[RuleHit]:
    deploy = service.node.get("deploy")
    said = [name for name, _node in deploy.pairs() if name in _SWARM] if deploy else []
    if deploy and said and service.devices:
        yield RuleHit(
            rule="compose-swarm",
            at=deploy.key_place(said[0]),
            message=f"deploy.{said[0]} is for a swarm, and a swarm does not know reserved devices.",
            fix="In a swarm: generic_resources, and node-generic-resources in daemon.json.",
        )


def image_tag(service: Service, catalog: Catalog) -> Iterator[RuleHit]:
    node = service.node.get("image")
    if node is not None and service.image:
        yield from judge_image(service.image, node.at, str(node.raw.value), catalog)


def _obsolete_version(root: YamlNode) -> Iterator[RuleHit]:
    if root.get("version") is not None:
        yield RuleHit(
            rule="compose-version",
            at=root.key_place("version"),
            message="The key version has no meaning any more; docker compose warns of it.",
            fix="Remove the line.",
        )


RULES: tuple[ServiceRule, ...] = (
    gpu_missing,
    capabilities_missing,
    count_and_ids,
    shared_memory,
    runtime_and_reservation,
    visible_devices_none,
    capabilities_of_environment,
    locked_memory,
    swarm,
    image_tag,
)


def environment_of(service: YamlNode) -> dict[str, tuple[str | None, Position]]:
    """The environment of a service, of either form: the value (None: from outside), its place."""
    node = service.get("environment")
    if node is None:
        return {}
    found = {name: (value.text, node.key_place(name)) for name, value in node.pairs()}
    for item in node.items():
        name, equals, value = (item.text or "").partition("=")
        found[name.strip()] = (value if equals else None, item.at)
    return found
