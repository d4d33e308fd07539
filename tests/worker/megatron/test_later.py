"""Modules that are put off: what runs them and what does not."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from launcher.worker.megatron import later

FILES = {
    "record.py": "RAN = []\n",
    "heavy/__init__.py": "import record\nrecord.RAN.append('heavy')\n__version__ = '1.2'\n",
    "heavy/layers.py": """
import record
record.RAN.append('layers')
FEATURES, LIMITS = True, {'heads': 8}
def twice(value): return 2 * value
class Layer: size = 3
""",
    "light.py": """
from typing import Optional
import record
from heavy.layers import FEATURES, LIMITS, Layer, twice
import heavy
def of(layer: Layer, other: Optional[Layer] = None, third: Layer | None = None) -> Layer: return layer
""",
}


@pytest.fixture
def light(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that imports names of another, which is put off."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    later.put_off(["heavy"])
    return importlib.import_module("light")


def test_names_in_annotations_and_in_what_nobody_calls_run_nothing(light: Any) -> None:
    assert light.of(5) == 5
    assert light.record.RAN == []


@pytest.mark.parametrize(
    "use",
    [
        lambda light: light.twice(2) == 4,
        lambda light: light.Layer.size == 3,
        lambda light: not isinstance(5, light.Layer),
        lambda light: not issubclass(int, light.Layer),
        lambda light: light.Layer().size == 3,
        lambda light: light.LIMITS["heads"] == 8,
        lambda light: bool(light.FEATURES),
        lambda light: light.FEATURES == True,  # noqa: E712 (the comparison is what is tested)
    ],
)
def test_the_use_of_a_name_runs_its_module_once_and_its_package_before_it(use: Any, light: Any) -> None:
    assert use(light)
    assert use(light)
    assert light.record.RAN == ["heavy", "layers"]


def test_a_module_that_was_put_off_tells_its_version(light: Any) -> None:
    assert light.heavy.__version__ == "1.2"
    assert light.record.RAN == ["heavy"]


def test_a_class_that_was_put_off_is_subclassed_as_itself(light: Any) -> None:
    class Own(light.Layer):  # type: ignore[misc]
        pass

    assert Own.size == 3
    assert Own.__mro__[1].__name__ == "Layer"
    assert type(sys.modules["heavy.layers"]) is ModuleType


def test_a_name_that_a_module_has_not_is_missed_when_it_is_used(light: Any) -> None:
    absent = sys.modules["heavy.layers"].absent
    with pytest.raises(ModuleNotFoundError, match=r"heavy\.layers\.absent"):
        absent()
