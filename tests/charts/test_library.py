from __future__ import annotations

from pathlib import Path

import pytest

from launcher.base.errors import ConfigErrors
from launcher.charts import library, lines

ROWS = [{"step": step, "loss": 1 / step} for step in range(1, 9)]


def test_a_missing_library_is_said_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_spec", lambda _: None)
    with pytest.raises(ConfigErrors, match="vl-convert-python, which is not installed") as refused:
        library.require("--output", Path("page.html"))
    assert refused.value.errors[0].way_out[0].endswith("-m pip install 'llm-launch[report]'")


def test_the_same_chart_is_a_picture_of_the_same_bytes() -> None:
    spec = {**lines.curves(ROWS, x="step", y="loss", title="loss"), "width": 300}
    svg = library.picture(spec, "svg")
    assert svg == library.picture(spec, "svg")
    assert b">loss</text>" in svg
    assert library.picture(spec, "png").startswith(b"\x89PNG")
