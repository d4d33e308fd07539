"""The word ``plan=best``: taken out of a command line, refused where nobody takes it, found where it is misspelt."""

from __future__ import annotations

import pytest

from launcher.base.errors import ConfigErrors
from launcher.config import synonyms
from tests.support.helpers import ask


def test_the_word_is_taken_out_wherever_it_stands() -> None:
    assert synonyms.without_best(["plan=best", "model=tiny"]) == (("model=tiny",), True)
    assert synonyms.without_best(["model=tiny", "plan=best", "plan=best"]) == (("model=tiny",), True)
    assert synonyms.without_best(["model=tiny", "plan"]) == (("model=tiny", "plan"), False)


def test_another_value_is_an_error_with_the_way_out() -> None:
    with pytest.raises(ConfigErrors) as refused:
        synonyms.without_best(["model=tiny", "plan=best", "plan=fastest"])
    [error] = refused.value.errors
    assert (error.path, error.found, error.way_out) == ("plan", "fastest", ("plan=best", "parallel=fsdp"))
    assert error.rule.startswith("its only value is best, the layout that `launch plan` ranks first")


def test_where_no_layout_is_searched_the_word_is_refused_and_never_dropped() -> None:
    [error] = ask("model=tiny", "plan=best").errors
    assert error.rule == "it works in check, show, run and -m: here type the overrides that `launch plan` prints"
    assert error.way_out == ("launch plan",)


@pytest.mark.parametrize("word", ["pla=best", "plam=best", "palan=best"])
def test_a_misspelt_word_is_found(word: str) -> None:
    [error] = ask("model=tiny", word).errors
    assert error.way_out == ("plan=best",)
