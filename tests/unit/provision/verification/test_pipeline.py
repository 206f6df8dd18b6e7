"""The steps between the rooms, as far as they are pure."""

from __future__ import annotations

import pytest

from provision.host.gpu_request import gpus_to_request
from provision.model.plan import Engine, Gpu, HostFacts
from provision.verification.suite import gpu_runtime_warning, proven, run_command

GPU = Gpu(name="NVIDIA GeForce RTX 3090", compute_capability=(8, 6))


def host(*engines: Engine, gpus: tuple[Gpu, ...] | None = (GPU,)) -> HostFacts:
    return HostFacts(gpus=gpus, engines=engines)


def docker(*cdi: str, runtime: bool | None) -> Engine:
    return Engine(name="docker", server="26.1", gpu_runtime=runtime, cdi_devices=cdi)


@pytest.mark.parametrize(
    ("facts", "asked", "warned"),
    [
        pytest.param(host(docker(runtime=True)), "runtime", False, id="the NVIDIA runtime"),
        pytest.param(host(docker("nvidia.com/gpu=0", runtime=False)), "cdi", False, id="CDI only"),
        pytest.param(
            host(docker("nvidia.com/gpu=0", runtime=True)), "runtime", False, id="both are there"
        ),
        pytest.param(host(docker(runtime=False)), "runtime", True, id="neither, which is told"),
        pytest.param(host(docker(runtime=None)), "runtime", False, id="an engine that cannot tell"),
        pytest.param(host(docker(runtime=False), gpus=()), "none", False, id="no GPUs at all"),
        pytest.param(host(docker(runtime=False), gpus=None), "none", False, id="GPUs not known"),
        pytest.param(host(), "runtime", False, id="an engine that was not looked at"),
    ],
)
def test_gpus_are_asked_for_as_the_engine_can_give_them(
    facts: HostFacts, asked: str, *, warned: bool
) -> None:
    assert gpus_to_request(facts) == asked
    assert (gpu_runtime_warning(facts) is not None) == warned


@pytest.mark.parametrize(
    ("gpus", "notes", "words"),
    [
        pytest.param("runtime", (), "--gpus all", id="by the runtime"),
        pytest.param("cdi", (), "--device nvidia.com/gpu=all", id="by CDI"),
        pytest.param("none", (), "--ulimit memlock=-1", id="limits as proven"),
    ],
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
