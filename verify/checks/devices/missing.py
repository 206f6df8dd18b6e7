"""Which GPUs of the machine, or of the plan, are missing, and why.

The PCI bus lists every card that has power. A container or a job is given some of them on purpose,
so a card that NVML does not list is missing only if this process may use all that the driver runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import List, NamedTuple, Optional, Sequence, Set, Tuple

from verify.checks.health.findings import spans
from verify.device import nvml
from verify.device.machine import Machine
from verify.device.pci import DRIVER, PciGpu, bus_address
from verify.model.check import CONFIGURATION, NODE, Outcome, Status, gpus
from verify.model.expectations import ExpectedGpu
from verify.model.measures import Table

CountRow = Tuple[str, Optional[int], str]
"""Who counts, the number of GPUs, and why it differs from the one before."""
_PASSED_ON = ("vfio", "pci-stub", "pciback")  # drivers that give a card to a virtual machine
_REPAIR = (
    "look for {0} in the host's kernel log (dmesg | grep {1}) and switch the host off and on; "
    "if it is still missing, reseat the card, check its power cables, and have it replaced"
)
_RELEASE = (
    "on the host: echo 'blacklist {2}' > /etc/modprobe.d/blacklist-{2}.conf, make the initramfs "
    "again (update-initramfs -u, or dracut -f) and reboot"
)


class Unlisted(NamedTuple):
    """What the PCI bus has and NVML does not; `at_fault` is None if that may be on purpose."""

    address: str
    why: str
    at_fault: Optional[str] = None
    cause: str = ""
    fix: str = ""


@dataclass(frozen=True)
class GpuCensus:
    """The machine's GPUs by the kernel, by /dev, and by NVML."""

    seen: nvml.Nvml
    nodes: int = 0
    pci: Optional[Sequence[PciGpu]] = None

    @property
    def given(self) -> int:
        """GPUs on the bus that NVIDIA's driver runs, each with a node in the host's /dev."""
        return sum(
            gpu.driver == DRIVER and gpu.address not in self._excluded for gpu in self.pci or ()
        )

    @property
    def _excluded(self) -> Set[str]:
        return {bus_address(bus_id) for bus_id in self.seen.excluded}

    def unlisted(self) -> List[Unlisted]:
        """What the bus has and NVML does not; nothing if either is not known."""
        known = [gpu.bus_id for gpu in self.seen.gpus if not gpu.failure]
        if self.seen.error or not all(known):
            return []
        listed = {bus_address(bus_id) for bus_id in known if bus_id}
        models = {gpu.device for gpu in self.pci or () if gpu.address in listed}
        closed = self.seen.closed or any(gpu.closed for gpu in self.pci or ())
        whole = self.nodes >= self.given and not closed
        return [
            Unlisted(gpu.address, "the kernel module's NVreg_ExcludedGpus excludes it")
            if gpu.address in self._excluded
            else _explain(gpu, twin=gpu.device in models, whole=whole)
            for gpu in self.pci or ()
            if gpu.address not in listed
        ]

    def rows(self) -> List[CountRow]:
        """Each source, its number of GPUs, and why that differs from the one before."""
        few = self.pci is not None and self.nodes < self.given
        whys = [listed(self.unlisted())]
        if self.seen.closed:
            whys.append("{} that this process cannot open".format(self.seen.closed))
        if self.seen.gpus and self.pci is not None and not self.pci:
            whys.append("not on the PCI bus: in WSL2, or in the processor")
        return [
            ("PCI bus", None if self.pci is None else len(self.pci), ""),
            ("device nodes", self.nodes, "this container has some of them" if few else ""),
            ("NVML", len(self.seen.gpus), self.seen.error or "; ".join(filter(None, whys))),
        ]


def read_bus(machine: Machine, seen: nvml.Nvml, nodes: int) -> Optional[Tuple[PciGpu, ...]]:
    """The bus. Cards that NVML should list are opened, to see whether this process may do that."""
    pci = machine.pci()
    gone = {gpu.address for gpu in GpuCensus(seen, nodes, pci).unlisted() if gpu.at_fault}
    return pci and tuple(
        replace(gpu, closed=machine.is_closed(gpu)) if gpu.address in gone else gpu for gpu in pci
    )


def judge_gone(census: GpuCensus) -> Optional[Outcome]:
    """The failure for GPUs that the machine has and this process cannot use."""
    seen, gone = census.seen, [gpu for gpu in census.unlisted() if gpu.at_fault]
    lost = [i for i, gpu in enumerate(seen.gpus) if gpu.failure or not (gpu.name and gpu.uuid)]
    if lost:
        where = [gpu.address for gpu in gone if gpu.at_fault == NODE]
        return _judge_lost(seen, lost, where if len(where) == len(lost) else ())
    if not gone:
        return None
    every = gpus(len(seen.gpus) + len(gone))
    message = "NVML lists {} of {}, not {}".format(len(seen.gpus), every, listed(gone))
    cause, fix = ("; ".join(dict.fromkeys(words)) for words in zip(*(gpu[3:] for gpu in gone)))
    at_fault = NODE if any(gpu.at_fault == NODE for gpu in gone) else CONFIGURATION
    return Outcome(Status.FAIL, message, cause, fix, at_fault=at_fault)


def _judge_lost(seen: nvml.Nvml, lost: Sequence[int], where: Sequence[str]) -> Outcome:
    reasons = sorted({seen.gpus[i].failure or "it does not answer" for i in lost})
    message = "{} of {} cannot be used: GPU {}{}: {}".format(
        len(lost),
        gpus(len(seen.gpus)),
        spans(lost),
        " ({})".format(", ".join(where)) if where else "",
        ", ".join(reasons),
    )
    cause = "the driver has lost the GPU: it hangs, or has fallen off the bus"
    if all("reset" in reason for reason in reasons):
        cause = "after an error the GPU works only after a reset"
    fix = "look for Xid lines in the host's kernel log; reset the GPU or reboot the host"
    return Outcome(Status.FAIL, message, cause, fix, at_fault=NODE)


def listed(unlisted: Sequence[Unlisted]) -> str:
    """In a message, with each reason once."""
    whys = dict.fromkeys(gpu.why for gpu in unlisted)
    return "; ".join(
        "{} ({})".format(", ".join(gpu.address for gpu in unlisted if gpu.why == why), why)
        for why in whys
    )


def count_table(rows: Sequence[CountRow]) -> Table:
    """How many GPUs each source has."""
    return Table("Number of GPUs", ("by", "GPUs", "difference"), tuple(rows))


def _explain(gpu: PciGpu, *, twin: bool, whole: bool) -> Unlisted:
    """`twin`: NVML lists a GPU of this model; `whole`: this process may use all of the machine."""
    driver = gpu.driver
    if driver and any(word in driver for word in _PASSED_ON):
        return Unlisted(gpu.address, "bound to {}, for a virtual machine".format(driver))
    why = "bound to {}".format(driver) if driver else "no driver is bound to it"
    if driver == DRIVER:
        cause = "the driver lost it: it hangs, or has fallen off the bus (or nvidia-smi drain)"
        why = why if whole else "not given to this process"
    elif driver:
        cause = "{} took the card before NVIDIA's driver".format(driver)
    else:
        cause = "the driver could not start this card, and has started others of its model"
        why += "" if twin else ": it is too old or too new for the driver, or does not start"
    if not whole or not (twin or driver == DRIVER):
        return Unlisted(gpu.address, why)
    ours = driver in (DRIVER, None)
    fix = (_REPAIR if ours else _RELEASE).format(gpu.address, gpu.address[:-2], driver)
    return Unlisted(gpu.address, why, NODE if ours else CONFIGURATION, cause, fix)


def missing(seen: Sequence[nvml.NvmlGpu], expected: Sequence[ExpectedGpu]) -> List[str]:
    """The plan's GPUs that are missing. Two of one name need two."""
    left = list(seen)
    unseen = []
    for gpu in sorted(expected, key=lambda gpu: gpu.uuid is None):
        match = next((have for have in left if _same(have, gpu)), None)
        if match is None:
            unseen.append(gpu.uuid or gpu.name or "a GPU")
        else:
            left.remove(match)
    return unseen


def _same(have: nvml.NvmlGpu, want: ExpectedGpu) -> bool:
    return want.uuid in (None, have.uuid) and want.name in (None, have.name)
