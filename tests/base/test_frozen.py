"""``launcher.base.frozen.dataclass`` does what that of the standard library does."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from functools import cached_property
from typing import Any

import pytest

from launcher.base import frozen


def _make(dataclass: Callable[..., Any]) -> dict[str, Any]:
    """Classes of every form that the launcher has, made by one of the two decorators."""

    @dataclass(frozen=True, slots=True)
    class Place:
        """By place, with a default, names that a generated function might use itself, and a field that is not shown."""

        set: int
        MISSING: str = "no"
        hidden: int = field(default=3, repr=False)
        loose: list[int] = field(default_factory=list, compare=False)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        """By name, with a field that is compared and not hashed."""

        first: int = 1
        second: dict[str, int] = field(default_factory=dict, hash=False)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Further(Named):
        """More fields than its base."""

        third: tuple[int, ...]

    @dataclass(frozen=True, kw_only=True)
    class Open:
        """Without slots, with a value that is kept."""

        number: int

        @cached_property
        def twice(self) -> int:
            """Twice the number."""
            return 2 * self.number

    @dataclass(frozen=True, slots=True, eq=False)
    class Same:
        """Equal to itself alone."""

        number: int

    @dataclass(frozen=True, slots=True)
    class Empty:
        """Without a field."""

    @dataclass(frozen=True, slots=True)
    class Own:
        """With methods of its own."""

        number: int

        def __repr__(self) -> str:
            """A text of its own."""
            return "mine"

        def __hash__(self) -> int:
            """A hash of its own."""
            return 7

    found = (Place, Named, Further, Open, Same, Empty, Own)
    for cls in found:
        cls.__qualname__ = cls.__name__
    return {cls.__name__: cls for cls in found}


OURS, THEIRS = _make(frozen.dataclass), _make(dataclasses.dataclass)

ARGUMENTS: list[tuple[str, tuple[object, ...], dict[str, object]]] = [
    ("Place", (1,), {}),
    ("Place", (1, "yes", 4, [5]), {}),
    ("Place", (), {"set": 2, "MISSING": "x"}),
    ("Named", (), {}),
    ("Named", (), {"first": 2, "second": {"a": 1}}),
    ("Further", (), {"third": (1, 2)}),
    ("Open", (), {"number": 3}),
    ("Same", (1,), {}),
    ("Empty", (), {}),
    ("Own", (1,), {}),
]


@pytest.mark.parametrize(("name", "by_place", "by_name"), ARGUMENTS)
def test_its_objects_show_hash_and_compare_like_the_standard_librarys(
    name: str, by_place: tuple[object, ...], by_name: dict[str, object]
) -> None:
    ours, theirs = OURS[name](*by_place, **by_name), THEIRS[name](*by_place, **by_name)
    assert repr(ours) == repr(theirs)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert (ours == OURS[name](*by_place, **by_name)) == (theirs == THEIRS[name](*by_place, **by_name))
    assert ours != theirs
    assert hasattr(ours, "__dict__") == hasattr(theirs, "__dict__")
    assert _hashes(ours) == _hashes(theirs)
    assert OURS[name].__match_args__ == THEIRS[name].__match_args__


def _hashes(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


@pytest.mark.parametrize(("name", "by_place", "by_name"), ARGUMENTS)
def test_they_are_copied_replaced_and_pickled_whole(
    name: str, by_place: tuple[object, ...], by_name: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), name, OURS[name])  # Where ``pickle`` looks for it.
    ours = OURS[name](*by_place, **by_name)
    for other in (copy.copy(ours), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), dataclasses.replace(ours)):
        assert type(other) is type(ours)
        assert dataclasses.asdict(other) == dataclasses.asdict(ours)


@pytest.mark.parametrize("name", [name for name in OURS if name != "Empty"])
def test_none_of_their_fields_can_be_set_or_deleted(name: str) -> None:
    arguments: dict[str, object] = {"third": (1,)} if name == "Further" else {}
    first = dataclasses.fields(OURS[name])[0].name
    ours = OURS[name](**{first: 1}, **arguments)
    with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{first}'"):
        setattr(ours, first, 2)
    with pytest.raises(FrozenInstanceError, match=f"cannot delete field '{first}'"):
        delattr(ours, first)
    assert getattr(ours, first) == 1


@pytest.mark.parametrize(
    ("name", "by_place", "by_name"),
    [("Place", (), {}), ("Named", (1,), {}), ("Further", (), {}), ("Named", (), {"other": 1}), ("Empty", (1,), {})],
)
def test_wrong_arguments_have_the_error_of_the_standard_librarys(
    name: str, by_place: tuple[object, ...], by_name: dict[str, object]
) -> None:
    with pytest.raises(TypeError) as ours:
        OURS[name](*by_place, **by_name)
    with pytest.raises(TypeError) as theirs:
        THEIRS[name](*by_place, **by_name)
    assert str(ours.value) == str(theirs.value)


def test_equal_objects_have_equal_hashes_and_others_do_not_equal_them() -> None:
    first, second = OURS["Place"](1, loose=[1]), OURS["Place"](1, loose=[2])
    assert first == second
    assert hash(first) == hash(second)
    assert first != OURS["Place"](2)
    assert len({first, second, OURS["Place"](2)}) == 2


def test_a_value_that_is_kept_is_computed_once() -> None:
    value = OURS["Open"](number=4)
    assert value.twice == 8
    assert "twice" in vars(value)


def test_it_is_for_frozen_classes_alone() -> None:
    loose: Any = frozen.dataclass
    with pytest.raises(TypeError, match=r"use dataclasses\.dataclass"):

        @loose(frozen=False)
        class Loose:
            number: int
