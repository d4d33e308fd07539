"""Every option of the installed DeepSpeed's own models has a line that says what it does to memory."""

from __future__ import annotations

import pytest

from launcher.backends.deepspeed import options
from launcher.spec.parse import known_keys
from tests.support.deepspeed_options import defaults

pytestmark = pytest.mark.thorough


def test_every_option_of_deepspeed_s_own_models_has_its_line() -> None:
    found = defaults()
    assert len(found) > 100
    unclassified = sorted(path for path in found if options.line(path) is None and not _holds_options(path))
    assert not unclassified, f"without a line in launcher/backends/deepspeed/options.py: {', '.join(unclassified)}"


def _holds_options(path: str) -> bool:
    return bool(options.inside(path))


def test_what_is_let_through_of_a_refused_option_is_deepspeed_s_own_default() -> None:
    found, compared = {options.named(path): value for path, value in defaults().items()}, 0
    for path, refusal in options.REFUSED.items():
        if refusal.usual is not None and path in found and found[path] is not None:
            assert found[path] == refusal.usual, path
            compared += 1
    assert compared > 12


def test_no_option_stands_in_two_tables_and_all_settings_exist() -> None:
    tables = [*(set(table) for table in options._TABLES), set(options.PROGRAM)]
    assert len(set().union(*tables)) == sum(map(len, tables))
    assert set(options.SETTINGS.values()) <= known_keys()
