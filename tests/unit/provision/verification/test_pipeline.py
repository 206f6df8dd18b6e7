"""The steps between the rooms, as far as they are pure."""

from __future__ import annotations

from provision.build.next_commands import run_command
from provision.host.gpu_request import gpus_to_request
from provision.model.plan import Engine, Gpu, HostFacts
from provision.verification.suite import gpu_runtime_warning, proven
from tests.kit.cases import cases

GPU = Gpu(name="NVIDIA GeForce RTX 3090", compute_capability=(8, 6))


def host(*engines: Engine, gpus: tuple[Gpu, ...] | None = (GPU,)) -> HostFacts:
    return HostFacts(gpus=gpus, engines=engines)


def docker(*cdi: str, runtime: bool | None) -> Engine:
    return Engine(name="docker", server="26.1", gpu_runtime=runtime, cdi_devices=cdi)


@cases(
    "facts asked warned",
    ("the NVIDIA runtime", host(docker(runtime=True)), "runtime", False),
    ("CDI only", host(docker("nvidia.com/gpu=0", runtime=False)), "cdi", False),
    ("both are there", host(docker("nvidia.com/gpu=0", runtime=True)), "runtime", False),
    ("neither, which is told", host(docker(runtime=False)), "runtime", True),
    ("an engine that cannot tell", host(docker(runtime=None)), "runtime", False),
    ("no GPUs at all", host(docker(runtime=False), gpus=()), "none", False),
    ("GPUs not known", host(docker(runtime=False), gpus=None), "none", False),
    ("an engine that was not looked at", host(), "runtime", False),
)
def test_gpus_are_asked_for_as_the_engine_can_give_them(
    facts: HostFacts, asked: str, *, warned: bool
) -> None:
    assert gpus_to_request(facts) == asked
    assert (gpu_runtime_warning(facts) is not None) == warned


@cases(
    "gpus notes words",
    ("by the runtime", "runtime", (), "--gpus all"),
    ("by CDI", "cdi", (), "--device nvidia.com/gpu=all"),
    ("limits as proven", "none", (), "--ulimit memlock=-1"),
)
def test_the_next_command_has_the_flags(gpus: str, notes: tuple[str, ...], words: str) -> None:
    command = run_command("a:b", gpus=gpus, notes=notes)
    assert words in command
    assert command.endswith(" a:b")
    assert "--shm-size 1g" in command


def test_the_next_command_leaves_out_what_the_engine_refused() -> None:
    command = run_command("a:b", gpus="none", notes=("ulimit memlock: not permitted",))
    assert "memlock" not in command
    assert "stack" in command


def test_what_made_do_with_the_cpu_is_not_proven() -> None:
    def check(name: str, status: str, **measured: str) -> dict[str, object]:
        return {"id": name, "status": status, "message": "m", "measured": measured}

    shown, missing = proven(
        {
            "checks": [
                check("a", "pass"),
                check("b", "skip"),
                check("c", "pass", device="cpu"),
                check("d", "fail"),
                check("e", "pass", device="cuda"),
            ]
        }
    )
    assert [line[0] for line in shown] == ["a", "e"]
    assert [line[0] for line in missing] == ["b", "c"]
