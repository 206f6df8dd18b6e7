"""Values that are cheap to declare behave as the frozen dataclasses that type checkers take them
for: held against the standard library's own, class by class.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from typing import Any

import pytest

from provision.model import frozen as values
from provision.model import plan as model
from provision.model.plan import Gpu, HostFacts, Plan, Request, Warned

CLASSES = [
    found
    for found in vars(model).values()
    if isinstance(found, type) and found.__module__ == model.__name__ and hasattr(found, "_names")
]


def twin(cls: Any) -> Any:
    """The same class, declared by the standard library."""
    body = {"__annotations__": cls.__annotations__, "__module__": cls.__module__, **cls._defaults}
    made = type(cls.__name__, (), body)
    return dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(made)


def some(cls: Any) -> dict[str, str]:
    """A value for each field; of what type does not matter here."""
    return {name: f"some {name}" for name in cls._names}


def test_every_value_of_a_plan_is_one_of_them() -> None:
    assert len(CLASSES) > 12


@pytest.mark.parametrize("cls", CLASSES)
def test_it_is_what_the_standard_library_would_have_made(cls: Any) -> None:
    theirs, given = twin(cls), some(cls)
    one, same, other = cls(**given), cls(**given), theirs(**given)
    assert one == same
    assert hash(one) == hash(same) == hash(other)
    assert one != other
    assert repr(one) == repr(other)
    assert dataclasses.asdict(one) == dataclasses.asdict(other) == values.asdict(one)
    ours = [(f.name, f.type, f.default, f.kw_only) for f in dataclasses.fields(cls)]
    assert ours == [(f.name, f.type, f.default, f.kw_only) for f in dataclasses.fields(theirs)]
    name = cls._names[0]
    changed = dataclasses.replace(one, **{name: "new"})
    assert changed == values.replace(one, **{name: "new"})
    assert changed != one
    assert getattr(changed, name) == "new"
    for again in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert again == one


@pytest.mark.parametrize("cls", CLASSES)
def test_its_defaults_and_its_demands_are_the_same(cls: Any) -> None:
    theirs = twin(cls)
    needed = {name: "x" for name in cls._names if name not in cls._defaults}
    assert repr(cls(**needed)) == repr(theirs(**needed))
    for wrong in ({**needed, "nobody_knows": 1}, dict(list(needed.items())[1:])):
        if wrong != needed:
            with pytest.raises(TypeError):
                theirs(**wrong)
            with pytest.raises(TypeError, match=cls.__name__):
                cls(**wrong)
    with pytest.raises(TypeError):
        cls("by position")


def test_it_is_frozen_and_has_slots() -> None:
    gpu = Gpu(name="A40")
    with pytest.raises(AttributeError, match="name"):
        gpu.name = "A100"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del gpu.name
    assert not hasattr(gpu, "__dict__")


def test_another_class_with_the_same_fields_is_another_value() -> None:
    warned: object = Warned(code="a", message="b", fix="c")
    assert warned != model.PlanError(code="a", message="b", fix="c")


def test_a_value_that_holds_values_is_compared_by_them() -> None:
    one, other = (HostFacts(gpus=(Gpu(name=name),)) for name in ("A40", "A40"))
    assert one == other
    assert {one, other} == {one}
    assert one != dataclasses.replace(other, gpus=(Gpu(name="A10"),))


def test_properties_and_methods_stay() -> None:
    assert not HostFacts().driver_reports_gpus
    assert Request().framework == "pytorch"
    assert Plan(verdict="none", framework="jax").error is None


def test_declaring_them_does_not_import_the_library() -> None:
    code = "import sys, provision.resolve; sys.exit('dataclasses' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
