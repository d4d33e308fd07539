"""Generated documentation is what the code says."""

from __future__ import annotations

from launcher.documentation import precision_table
from tests.helpers import assert_golden, make_spec


def test_the_precision_table_is_what_the_backends_say() -> None:
    assert_golden("../../docs/precision.md", precision_table(make_spec("model=tiny")))
