"""Modules that are imported and not run: what may be done with their names."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
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
        lambda light: light.twice(2),
        lambda light: light.Layer.size,
        lambda light: isinstance(5, light.Layer),
        lambda light: issubclass(int, light.Layer),
        lambda light: light.Layer(),
        lambda light: light.LIMITS["heads"],
        lambda light: list(light.LIMITS),
        lambda light: bool(light.FEATURES),
        lambda light: type("Own", (light.Layer,), {}),
    ],
)
def test_the_use_of_a_name_is_an_error_by_which_the_modules_are_run_after_all(use: Any, light: Any) -> None:
    with pytest.raises(NameError, match="module was not executed"):
        use(light)
    assert light.record.RAN == []


def test_a_module_that_was_put_off_has_no_version(light: Any) -> None:
    with pytest.raises(AttributeError):
        light.heavy.__version__  # noqa: B018 (the access is what is tested)
