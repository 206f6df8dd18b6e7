"""nvidia-smi's words; where the recorded ones come from: tests/data/nvidia_smi/SOURCES.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from provision.host.machine import Answer, ProbedMachine, Question
from provision.host.runner import ProgramResult
from provision.host.smi import FIELDS, Header, failure, parse_header, parse_query, read_smi
from provision.model.plan import Absent, Gpu
from tests import ROOT
from tests.kit.cases import cases

DATA = ROOT / "tests" / "data" / "nvidia_smi"
PROGRAM = "/usr/bin/nvidia-smi"
UUID = "GPU-3fb6b3a4-0000-4000-8000-9a2ed4b9e1c7"


def text(name: str) -> str:
    return (DATA / name).read_text()


class FakeSmi:
    """Answers by argument; keeps what it was asked."""

    def __init__(
        self, header: ProgramResult, queries: Mapping[str, ProgramResult] | None = None
    ) -> None:
        self.header = header
        self.queries = queries or {}
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, argv: Sequence[str], timeout_s: float, /) -> ProgramResult:
        assert timeout_s <= 10
        self.asked.append(tuple(argv))
        if len(argv) == 1:
            return self.header
        fields = argv[1].removeprefix("--query-gpu=")
        return self.queries.get(fields, ProgramResult(code=255, out="unexpected query"))


def machine(run: FakeSmi) -> ProbedMachine:
    """A machine that has nvidia-smi and nothing else."""

    def ask(question: Question) -> Answer:
        if question == ("status", PROGRAM):
            size = {"mode": 0o755, "uid": 0, "gid": 0, "size": 1, "modified": 0}
            return {"kind": "file", "device": "8:1", **size}
        if question[0] != "run":
            return None
        done = run(question[2:], float(question[1]))
        return {"code": done.code, "out": done.out, "err": done.err, "problem": done.problem}

    return ProbedMachine(env={"PATH": "/usr/bin"}, source=ask)


@cases(
    "name header",
    ("331 names no CUDA", "header_331.txt", Header(driver="331.62")),
    ("470", "header_470.txt", Header(driver="470.182.03", cuda="11.4", cuda_text="11.4")),
    ("510 with MIG on", "header_510_mig.txt",
     Header(driver="510.47.03", cuda="11.6", cuda_text="11.6")),
    ("WSL2, where the program is older than the driver and CUDA is broken", "header_545_wsl.txt",
     Header(driver="546.80", cuda_text="ERR!")),
    ("550", "header_550.txt", Header(driver="550.135", cuda="12.4", cuda_text="12.4")),
    ("610 says KMD and CUDA UMD", "header_610.txt",
     Header(driver="610.43.02", cuda="13.3", cuda_text="13.3")),
    ("a failure is no header", "exit_9.txt", Header()),
    ("nor is NVML's own version", "exit_18_570.txt", Header()),
)  # fmt: skip
def test_the_header_gives_driver_and_cuda(name: str, header: Header) -> None:
    assert parse_header(text(name)) == header


@cases(
    "line gpu",
    ("a GPU without MIG", f"NVIDIA L4, {UUID}, 8.9, 23034, [N/A]",
     Gpu(name="NVIDIA L4", uuid=UUID, compute_capability=(8, 9), memory_mib=23034, mig=False)),
    ("a GPU with MIG on", f"NVIDIA A100-SXM4-40GB, {UUID}, 8.0, 40960, Enabled",
     Gpu(name="NVIDIA A100-SXM4-40GB", uuid=UUID, compute_capability=(8, 0), memory_mib=40960,
         mig=True)),
    ("a comma in the name", f"NVIDIA Test, with comma, {UUID}, 12.0, 32607 MiB, Disabled",
     Gpu(name="NVIDIA Test, with comma", uuid=UUID, compute_capability=(12, 0), memory_mib=32607,
         mig=False)),
    ("memory shared with the processor", f"NVIDIA GB10, {UUID}, 12.1, [N/A], [N/A]",
     Gpu(name="NVIDIA GB10", uuid=UUID, compute_capability=(12, 1), mig=False)),
    ("a GPU in trouble",
     f"[Unknown Error], {UUID}, [Unknown Error], [Unknown Error], [Unknown Error]", Gpu(uuid=UUID)),
)  # fmt: skip
def test_a_query_line_is_one_gpu(line: str, gpu: Gpu) -> None:
    assert parse_query(f"{line}\n", FIELDS) == ((gpu,), ())


def test_a_line_that_is_no_gpu_is_kept_apart() -> None:
    lost = text("exit_15.txt")
    line = f"NVIDIA L4, {UUID}, 8.9, 23034, [N/A]\n"
    found, strange = parse_query(line + lost, FIELDS)
    assert len(found) == 1
    assert strange == (" ".join(lost.split()),)


@cases(
    "code name why",
    ("9", 9, "exit_9.txt", "the NVIDIA kernel module is not loaded (exit 9)"),
    ("12", 12, "exit_12.txt", "libnvidia-ml.so.1 was not found (exit 12)"),
    ("18", 18, "exit_18.txt",
     ("the kernel module and libnvidia-ml.so.1 differ in version: "
      "reboot, or reload the modules (exit 18)")),
    ("17", 17, "exit_17.txt",
     "the operating system blocks the GPU's device files (cgroup, or WSL driver) (exit 17)"),
    ("4", 4, "exit_4.txt",
     ("no permission to open /dev/nvidia* "
      "(exit 4: Failed to initialize NVML: Insufficient Permissions)")),
    ("255", 255, "exit_255.txt", "exit 255: Failed to initialize NVML: Unknown Error"),
)  # fmt: skip
def test_a_failure_is_said_in_our_words(code: int, name: str, why: str) -> None:
    assert failure(ProgramResult(code=code, out=text(name))) == why


def test_a_lost_gpu_is_named() -> None:
    assert "0000:02:00.0" in failure(ProgramResult(code=15, out=text("exit_15.txt")))


def test_header_and_query_together_are_the_facts() -> None:
    run = FakeSmi(
        ProgramResult(code=0, out=text("header_550.txt")),
        {",".join(FIELDS): ProgramResult(code=0, out=f"NVIDIA L4, {UUID}, 8.9, 23034, [N/A]\n")},
    )
    reading = read_smi(machine(run))
    assert (reading.driver, reading.driver_cuda) == ("550.135", "12.4")
    assert [gpu.name for gpu in reading.gpus or ()] == ["NVIDIA L4"]
    assert reading.absent == ()


def test_an_old_driver_is_asked_again_without_the_fields_it_lacks() -> None:
    run = FakeSmi(
        ProgramResult(code=0, out=text("header_331.txt")),
        {
            ",".join(FIELDS): ProgramResult(code=2, out=text("exit_2.txt")),
            "name,uuid,memory.total,mig.mode.current": ProgramResult(
                code=2, out='Field "mig.mode.current" is not a valid field to query.\n'
            ),
            "name,uuid,memory.total": ProgramResult(code=0, out=f"Tesla K20m, {UUID}, 4799\n"),
        },
    )
    reading = read_smi(machine(run))
    assert reading.gpus == (Gpu(name="Tesla K20m", uuid=UUID, memory_mib=4799),)
    assert [row.fact for row in reading.absent] == [
        "driver_cuda",
        "gpus[*].compute_capability",
        "gpus[*].mig",
    ]


def test_a_gpu_lost_among_others_leaves_the_others() -> None:
    answer = f"NVIDIA L4, {UUID}, 8.9, 23034, [N/A]\n" + text("exit_15.txt")
    run = FakeSmi(
        ProgramResult(code=0, out=text("header_550.txt")),
        {",".join(FIELDS): ProgramResult(code=15, out=answer)},
    )
    reading = read_smi(machine(run))
    assert len(reading.gpus or ()) == 1
    assert [row.fact for row in reading.absent] == ["gpus[?]", "gpus"]


def test_no_devices_is_none_there() -> None:
    run = FakeSmi(
        ProgramResult(code=0, out=text("header_550.txt")),
        {",".join(FIELDS): ProgramResult(code=0, out="No devices were found\n")},
    )
    assert read_smi(machine(run)).gpus == ()


def test_a_broken_cuda_is_absent_with_what_stood_there() -> None:
    reading = read_smi(machine(FakeSmi(ProgramResult(code=0, out=text("header_545_wsl.txt")))))
    assert reading.driver == "546.80"
    assert (
        Absent(fact="driver_cuda", source="nvidia-smi", reason="its header says 'ERR!'")
        in reading.absent
    )


@cases(
    "done why",
    ("garbage", ProgramResult(code=0, out="hello\n"), "no header that we know"),
    ("nothing", ProgramResult(code=0), "no header that we know"),
    ("no such program", ProgramResult(problem="nvidia-smi was not found"), "was not found"),
    ("a crash", ProgramResult(code=-11), "exit -11, no output"),
)
def test_a_program_that_does_not_answer_has_failed(done: ProgramResult, why: str) -> None:
    assert why in (read_smi(machine(FakeSmi(done))).failed or "")


def test_wsl_has_it_outside_path(tmp_path: Path) -> None:
    place = tmp_path / "usr/lib/wsl/lib/nvidia-smi"
    place.parent.mkdir(parents=True)
    place.touch()
    run = FakeSmi(ProgramResult(problem="it hangs"))
    read_smi(ProbedMachine(root=tmp_path, env={"PATH": "/usr/bin"}, run=run))
    assert run.asked == [("/usr/lib/wsl/lib/nvidia-smi",)]


def test_without_the_program_nothing_is_run(tmp_path: Path) -> None:
    run = FakeSmi(ProgramResult())
    reading = read_smi(ProbedMachine(root=tmp_path, env={"PATH": "/usr/bin"}, run=run))
    assert reading.failed == "nvidia-smi was not found"
    assert run.asked == []
