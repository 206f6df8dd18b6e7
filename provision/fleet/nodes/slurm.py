"""Nodes of a Slurm cluster: lists them with sinfo, runs the program on each with srun.

Each node is a job of its own, so that one that hangs or dies holds up no other.
https://slurm.schedmd.com/sinfo.html and srun.html; the messages are those of Slurm 22.05.
"""

from __future__ import annotations

import re
import secrets
from typing import NamedTuple

from images.system import process
from images.system.process import Completed, describe_exit
from images.text.printable import printable
from provision.errors import BadInputError, Exit, IndexUnreachableError
from provision.fleet.nodes.calls import FailureSign, NodeCall, NodeFailure, last_line
from provision.fleet.nodes.program import PYTHON_FIX
from provision.model.request import quoted

SINFO_S = 30
_FORMAT = "%N|%T|%R|%a|%m|%G|%l|%E"
_MEMORY_MIB = 256
_PARTITION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,-]{0,200}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,253}", re.ASCII)
_GPUS = re.compile(r"\bgpu(?::[^:,()]*)??:(\d+)(?=[,(]|$)")
_ASKED = frozenset({"idle", "mixed", "allocated", "completing", "planned", "reserved"})
"""The states in which a node can start a job, now or soon."""
_LIMIT = re.compile(
    r"(?:(?:(?P<days>\d{1,9})-)?(?P<hours>\d{1,9}):)?(?P<minutes>\d{1,9}):\d\d", re.ASCII
)
_MARKS = {
    "*": "not responding",
    "~": "powered down",
    "%": "powering down",
    "!": "to be powered down",
}
"""What marks after a state say of nodes that are not asked: a job would start a cloud's machine."""
_BUSY = r"nodes are busy|allocation .* revoked|queued and waiting|temporarily unavailable"
_SILENT = (
    r".*(?:[Cc]ommunication connection failure|[Nn]ode failure|NODE FAIL|timed out on|"
    r"Connection timed out|DUE TO NODE FAILURE).*"
)
_AGAIN = "Repeat the command: it asks only nodes without a result."
# What slurmstepd says of a job that Slurm ended: "*** STEP 12.0 ON n1 CANCELLED AT ... ***"
_ENDED_BY_SLURM = (
    FailureSign(
        pattern=r"CANCELLED AT .* DUE TO TIME LIMIT",
        code="job-time-limit",
        message="Slurm ended the job at its time limit",
        fix="See the partition's limit (scontrol show partition), or run fewer checks: --level "
        "quick",
    ),
    FailureSign(
        pattern=r"DUE TO PREEMPTION|[Jj]ob.* preempted",
        code="job-preempted",
        message="the job was preempted",
        fix=_AGAIN,
    ),
    FailureSign(
        pattern=r"DUE TO JOB REQUEUE",
        code="job-requeued",
        message="the job was requeued",
        fix=_AGAIN,
    ),
    FailureSign(
        pattern=r"CANCELLED AT|aborted before step completely launched|[Jj]ob has been cancelled",
        code="job-canceled",
        message="the job was canceled",
        fix=_AGAIN,
    ),
    FailureSign(
        pattern=r"Required [Nn]ode not available|ReqNodeNotAvail",
        code="node-out-of-service",
        message="Slurm took the node out of service before the job started",
        fix="See it: scontrol show node NAME",
    ),
)
_NO_PYTHON = r"python3: (?:No such file|command not found)"


class SlurmError(IndexUnreachableError):
    """Slurm's controller does not answer, or its programs fail."""

    code = "slurm-unreachable"
    exit_code = Exit.UNREACHABLE


class SlurmNode(NamedTuple):
    """One node, by sinfo. `state` without its marks, and what the mark says, if it must not be
    asked; `memory` in MiB and `gpus` as configured; `minutes` is the longest time that its
    partition gives a job, None if there is no limit; `reason` is why an administrator or Slurm took
    it out of service, "" if none did.
    """

    name: str
    state: str
    mark: str
    partition: str
    memory: int
    minutes: int | None
    gpus: int
    reason: str


def parse_partition(text: str) -> str | None:
    """The partition of "slurm[:PARTITION]". BadInputError: it is none."""
    if not text:
        return None
    if _PARTITION.fullmatch(text):
        return text
    raise BadInputError(
        f"--on slurm:{quoted(text)} is not the name of a partition.",
        fix="See the names: sinfo --summarize",
    )


def list_nodes(partition: str | None) -> tuple[SlurmNode, ...]:
    """The nodes of a partition, or of all. SlurmError: sinfo does not answer. BadInputError: there
    are none.
    """
    chosen = () if partition is None else ("--partition", partition)
    fix = "See that the controller is up: scontrol ping"
    try:
        done = process.run(
            ("sinfo", "--noheader", "--Node", *chosen, "--format", _FORMAT),
            timeout_s=SINFO_S,
            env={"LC_ALL": "C"},
            apart=True,
            missing_fix="Run this where Slurm's commands are installed: a login node.",
        )
    except process.CommandTimedOut as error:
        raise SlurmError(f"sinfo did not answer within {SINFO_S} s.", fix=fix) from error
    if not done.ok:
        said = printable(last_line(done.output), limit=200) or describe_exit(done.code)
        raise SlurmError(f"sinfo failed: {said}", fix=fix)
    nodes = parse_sinfo(done.stdout)
    if not nodes:
        where = "" if partition is None else f" in partition {partition}"
        raise BadInputError(f"Slurm has no nodes{where}.", fix="See them: sinfo --Node")
    return nodes


def parse_sinfo(text: str) -> tuple[SlurmNode, ...]:
    """sinfo's lines, each node once: in its first partition that is up."""
    found: dict[str, SlurmNode] = {}
    usable: set[str] = set()
    for line in text.splitlines():
        parts = line.strip().split("|", 7)
        if len(parts) != 8 or not _NAME.fullmatch(parts[0]):
            continue
        name, state, partition, up, memory, gres, limit, reason = (part.strip() for part in parts)
        if name in usable or (name in found and up != "up"):
            continue
        if up == "up":
            usable.add(name)
        found[name] = SlurmNode(
            name=name,
            state=state.rstrip("*~#!%$@^-").lower(),
            mark=next((words for sign, words in _MARKS.items() if sign in state), ""),
            partition=partition,
            memory=int(memory) if memory.isascii() and memory.isdigit() else 0,
            minutes=_minutes(limit),
            gpus=sum(int(count) for count in _GPUS.findall(gres)),
            reason="" if reason == "none" else printable(reason, limit=200),
        )
    return tuple(found.values())


class SlurmJob(NamedTuple):
    """What each node's job may use. `wait_s`: how long it may wait until the node is free; `run_s`:
    how long it may run. `whole`: it gets the node alone, with all memory and CPUs; else it may use
    256 MiB and one CPU.
    """

    wait_s: float
    run_s: float
    whole: bool = False


def slurm_calls(nodes: tuple[SlurmNode, ...], job: SlurmJob) -> tuple[NodeCall, ...]:
    """The calls. All GPUs of a node are requested: Slurm may hide the others from a job."""
    nonce = secrets.token_hex(6)
    return tuple(
        _call(node, f"gpu-provision-{nonce}-{number}", job) for number, node in enumerate(nodes)
    )


def _call(node: SlurmNode, name: str, job: SlurmJob) -> NodeCall:
    if node.state not in _ASKED or node.mark:
        return NodeCall(node.name, refused=_out_of_service(node))
    argv = (
        "srun",
        f"--job-name={name}",
        f"--partition={node.partition}",
        f"--nodelist={node.name}",
        *("--nodes=1", "--ntasks=1"),
        *(_WHOLE if job.whole else _small(node)),
        *((f"--gres=gpu:{node.gpus}",) if node.gpus else ()),
        f"--time={_time_limit(node, job)}",
        f"--immediate={max(1, int(job.wait_s))}",
        f"--export={_EXPORTED}",
        *("--chdir=/", "--kill-on-bad-exit", "--quit-on-interrupt"),
        *("python3", "-I", "-"),
    )
    return NodeCall(
        node.name,
        argv,
        lambda done: explain_srun(node.name, done),
        cleanup=("scancel", "--quiet", f"--name={name}"),
    )


# Where the node's programs and its home are, and no more: other variables may hold tokens.
# https://slurm.schedmd.com/srun.html: with a list, only these and Slurm's own are passed.
_EXPORTED = "PATH,LD_LIBRARY_PATH,HOME,USER,LOGNAME"


def _time_limit(node: SlurmNode, job: SlurmJob) -> int:
    """In minutes. A job that asks for more than its partition gives would wait for ever."""
    wanted = int(job.run_s // 60) + 1
    return wanted if node.minutes is None else max(1, min(wanted, node.minutes))


def _minutes(limit: str) -> int | None:
    """A limit as sinfo writes it ("infinite", "30:00", "2-12:00:00"), in whole minutes."""
    found = _LIMIT.fullmatch(limit)
    if found is None:
        return None
    days, hours, minutes = (int(found[part] or 0) for part in ("days", "hours", "minutes"))
    return (days * 24 + hours) * 60 + minutes


_WHOLE = ("--exclusive", "--mem=0", "--cpu-bind=none")


def _small(node: SlurmNode) -> tuple[str, ...]:
    # else a job may get all memory, or, where none is configured, be refused
    memory = (f"--mem={_MEMORY_MIB}M",) if node.memory >= _MEMORY_MIB else ()
    return ("--cpus-per-task=1", *memory)


def _out_of_service(node: SlurmNode) -> NodeFailure:
    state = f"{node.state}, {node.mark}" if node.mark else node.state
    why = f": {node.reason}" if node.reason else ""
    return NodeFailure(
        code="node-out-of-service",
        message=f"{node.name}: Slurm runs nothing there, it is {state}{why}.",
        fix="See it: scontrol show node NAME. Back in service: scontrol update nodename=NAME "
        "state=resume",
    )


def explain_srun(name: str, done: Completed) -> NodeFailure:
    """Why a call gave no answer, by what srun printed."""
    said = printable(last_line(done.output), limit=200) or f"srun {describe_exit(done.code)}"
    if re.search(_NO_PYTHON, done.output):
        return NodeFailure(code="no-python", message=f"{name}: it has no python3.", fix=PYTHON_FIX)
    if silent := re.search(_SILENT, done.output):
        line = printable(silent[0], limit=200)
        return NodeFailure(
            code="node-silent",
            message=f"{name}: it does not answer Slurm: {line}",
            fix="See whether it is up, and slurmd on it: scontrol show node NAME",
        )
    for sign in _ENDED_BY_SLURM:
        if re.search(sign.pattern, done.output):
            return sign.of(name)
    if re.search(_BUSY, done.output):
        return NodeFailure(
            code="node-busy",
            message=f"{name}: it is busy: no job with all its GPUs could start there in time.",
            fix="Repeat the command later: it asks only nodes without a result. All GPUs are "
            "requested because Slurm may hide the others from a job.",
        )
    return NodeFailure(
        code="node-failed",
        message=f"{name}: {said}",
        fix="Run the same by hand: srun --nodelist=NAME python3 --version",
    )
