"""What the image should be: reads the JSON file with expectations.

A field that is null or missing is not checked.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple

from verify.model.frameworks import FRAMEWORKS

_VERSION = re.compile(r"\d+(\.\d+)*[0-9A-Za-z.+-]*")


class ExpectationsError(Exception):
    """The expectations file is invalid; the message lists every problem."""


@dataclass(frozen=True)
class Spec:
    """A card's specified figures, from its maker, without sparsity."""

    memory_bandwidth_gbs: Optional[float] = None
    tflops: Mapping[str, float] = field(default_factory=dict)  # by "fp32", "tf32", "fp16", ...
    nvlink: Optional[bool] = None
    sure: bool = True  # whether the figures are the maker's for this very card


@dataclass(frozen=True)
class ExpectedGpu:
    """One GPU that should be visible."""

    uuid: Optional[str] = None
    name: Optional[str] = None
    compute_capability: Optional[str] = None
    spec: Optional[Spec] = None


@dataclass(frozen=True)
class Scope:
    """How much is tested on a machine that is not the image's: "image" (what is in it) or "results"
    (all but times and rates), and why no more.
    """

    checks: str
    because: str


@dataclass(frozen=True)
class Expectations:
    """What to compare with. `gpus` is None when they are unknown."""

    framework_name: Optional[str] = None
    framework: Optional[str] = None  # its version
    wheel_tag: Optional[str] = None
    cuda: Optional[str] = None
    cudnn: Optional[str] = None
    nccl: Optional[str] = None
    python: Optional[str] = None
    gpus: Optional[Tuple[ExpectedGpu, ...]] = None
    digest: Optional[str] = None
    packages: Tuple[str, ...] = ()  # that were asked for beside the framework
    cut: Tuple[str, ...] = ()  # the only compute capabilities that the image has code for, if set
    emulator: Optional[str] = None  # of the image's processor, on a machine with another one
    machine: Optional[str] = None  # the host's name, which a container does not see
    scope: Optional[Scope] = None  # None: everything of the level

    @property
    def gpu_count(self) -> Optional[int]:
        """How many GPUs should be visible, if that is known."""
        return None if self.gpus is None else len(self.gpus)


def parse(text: str) -> Expectations:
    """Read expectations. Raises ExpectationsError, which names every problem at once."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ExpectationsError("not JSON: {}".format(error)) from error
    if not isinstance(document, dict):
        raise ExpectationsError("expected an object, found {}".format(_kind(document)))
    reader = _Reader()
    found = reader.expectations(document)
    if reader.problems:
        raise ExpectationsError("; ".join(reader.problems))
    return found


class _Reader:
    """Collects problems, so that a user can fix a file in one go."""

    def __init__(self) -> None:
        self.problems: List[str] = []

    def expectations(self, document: Mapping[str, Any]) -> Expectations:
        if document.get("schema") != 1 or isinstance(document.get("schema"), bool):
            self.problems.append("schema: expected 1, found {!r}".format(document.get("schema")))
        framework = self.table(document, "framework", "framework")
        name = self.text(framework, "name", "framework.name")
        if name is not None and name not in FRAMEWORKS:
            said = "framework.name: verify supports {}, not {!r}"
            self.problems.append(said.format(", ".join(FRAMEWORKS), name))
        image = self.table(document, "image", "image")
        plain = ("cuda", "cudnn", "nccl", "python")
        return Expectations(
            framework_name=name,
            framework=self.version(framework, "version", "framework.version"),
            wheel_tag=self.text(document, "wheel_tag", "wheel_tag"),
            gpus=self.gpus(document.get("gpus")),
            packages=self.texts(document, "packages"),
            digest=self.text(image, "digest", "image.digest"),
            cut=self.texts(document, "cut"),
            emulator=self.text(document, "emulator", "emulator"),
            machine=self.text(document, "machine", "machine"),
            scope=self.scope(self.table(document, "scope", "scope")),
            **{key: self.version(document, key, key) for key in plain},
        )

    def scope(self, table: Mapping[str, Any]) -> Optional[Scope]:
        checks = self.text(table, "checks", "scope.checks")
        if checks not in (None, "image", "results"):
            self.problems.append("scope.checks: expected image or results, found " + repr(checks))
        because = self.text(table, "because", "scope.because")
        return Scope(checks, because or "not the machine of the image") if checks else None

    def gpus(self, rows: Any) -> Optional[Tuple[ExpectedGpu, ...]]:
        if rows is None:
            return None
        if not isinstance(rows, list):
            self.problems.append("gpus: expected a list, found {}".format(_kind(rows)))
            return None
        return tuple(self.gpu(row, "gpus[{}]".format(i)) for i, row in enumerate(rows))

    def gpu(self, row: Any, path: str) -> ExpectedGpu:
        table = self.table({"row": row}, "row", path)
        return ExpectedGpu(
            uuid=self.text(table, "uuid", path + ".uuid"),
            name=self.text(table, "name", path + ".name"),
            compute_capability=self.version(
                table, "compute_capability", path + ".compute_capability"
            ),
            spec=self.spec(table, path + ".spec"),
        )

    def spec(self, gpu: Mapping[str, Any], path: str) -> Optional[Spec]:
        if gpu.get("spec") is None:
            return None
        table = self.table(gpu, "spec", path)
        rates = self.table(table, "tflops", path + ".tflops")
        found = {kind: self.number(rates, kind, path + ".tflops." + kind) for kind in rates}
        nvlink, sure = table.get("nvlink"), table.get("sure", True)
        for name, value in (("nvlink", nvlink), ("sure", sure)):
            if value is not None and not isinstance(value, bool):
                said = "{}.{}: expected true or false, found {}"
                self.problems.append(said.format(path, name, _kind(value)))
        return Spec(
            self.number(table, "memory_bandwidth_gbs", path + ".memory_bandwidth_gbs"),
            {kind: rate for kind, rate in found.items() if rate is not None},
            nvlink if isinstance(nvlink, bool) else None,
            sure is True,
        )

    def number(self, outer: Mapping[str, Any], key: str, path: str) -> Optional[float]:
        value = outer.get(key)
        if value is None:
            return None
        usable = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not usable or not 0 < value < 1e9:
            self.problems.append(
                "{}: expected a number above 0, found {!r:.40}".format(path, value)
            )
            return None
        return float(value)

    def table(self, outer: Mapping[str, Any], key: str, path: str) -> Dict[str, Any]:
        value = outer.get(key)
        if value is not None and not isinstance(value, dict):
            self.problems.append("{}: expected an object, found {}".format(path, _kind(value)))
        return value if isinstance(value, dict) else {}

    def texts(self, outer: Mapping[str, Any], key: str) -> Tuple[str, ...]:
        value = outer.get(key)
        if value is None:
            return ()
        if isinstance(value, list) and all(isinstance(one, str) and one for one in value):
            return tuple(value)
        self.problems.append("{}: expected a list of texts, found {}".format(key, _kind(value)))
        return ()

    def text(self, outer: Mapping[str, Any], key: str, path: str) -> Optional[str]:
        value = outer.get(key)
        if value is None or (isinstance(value, str) and value):
            return value
        self.problems.append("{}: expected a text, found {}".format(path, _kind(value)))
        return None

    def version(self, outer: Mapping[str, Any], key: str, path: str) -> Optional[str]:
        value = self.text(outer, key, path)
        if value is not None and not _VERSION.fullmatch(value):
            self.problems.append("{}: {!r} is not a version".format(path, value))
            return None
        return value


def _kind(value: Any) -> str:
    if value == "":
        return "an empty text"
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return kinds.get(type(value), "null" if value is None else "a number")
