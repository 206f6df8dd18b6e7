"""Whether a bundle's image runs on this machine: said before anything is unpacked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from images.errors import Failure
from provision.build.offline.pack import refuse_unpackable
from provision.build.offline.reader import refuse_other_machine
from provision.catalog.loading import load
from provision.model.plan import HostFacts, Request
from provision.resolve import resolve
from tests.kit.hosts import host

CU128 = Request(cuda="12.8", framework="pytorch", python="3.13", base="bootstrap")
CU117 = Request(cuda="11.7", framework="pytorch", python="3.11", base="bootstrap")


def bundle(request: Request, *packed_for: HostFacts) -> Any:
    plan = resolve(packed_for or (HostFacts(arch="x86_64"),), request, load())
    assert plan.error is None
    return SimpleNamespace(lock=SimpleNamespace(plan=plan), catalog=load())


FITS = [
    pytest.param(CU128, host("580.95.05", "H100"), id="the machine that it is for"),
    pytest.param(CU128, host("535.104.05", "A100"), id="an older driver that runs it"),
    pytest.param(CU128, HostFacts(arch="x86_64"), id="a machine of which nothing is known"),
    pytest.param(CU128, HostFacts(), id="a machine whose architecture only uname says"),
    pytest.param(CU117, host("535.104.05", "A100"), id="another release"),
]


@pytest.mark.parametrize(("request_", "here"), FITS)
def test_a_machine_that_the_build_runs_on(request_: Request, here: HostFacts) -> None:
    refuse_other_machine(bundle(request_), here, "x86_64")


REFUSED = [
    pytest.param(CU128, host("470.82.01", "RTX 3090"), "driver-too-old", id="a driver too old"),
    pytest.param(CU117, host("580.95.05", "B200"), "no-gpu-code", id="a GPU too new"),
    pytest.param(CU128, host("580.95.05", arch="aarch64"), "bundle-other-arch", id="another CPU"),
]


@pytest.mark.parametrize(("request_", "here", "code"), REFUSED)
def test_a_machine_that_it_does_not_run_on(request_: Request, here: HostFacts, code: str) -> None:
    with pytest.raises(Failure) as caught:
        refuse_other_machine(bundle(request_), here, "x86_64")
    assert caught.value.code == code
    assert caught.value.exit_code == 3
    assert caught.value.fix


def test_bases_that_need_this_machine_are_not_packed() -> None:
    good = bundle(CU128).lock.plan
    refuse_unpackable(good)
    for base, word in (("oci:/data/base", "path on this machine"), ("nvidia/cuda:1", "apt-get")):
        kind = "local" if ":/" in base else "registry"
        named = SimpleNamespace(kind=kind, reference=f"docker.io/{base}", apt=())
        plan: Any = SimpleNamespace(base=named)
        with pytest.raises(Failure, match=word) as caught:
            refuse_unpackable(plan)
        assert caught.value.code == "not-packable"
