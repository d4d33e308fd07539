"""A template that is not shipped is rendered within limits, as it would be without them."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.cli import main
from launcher.data import rendering
from launcher.data.chat import Conversation
from launcher.data.rendering import Outcome, writer, written
from launcher.data.template import Rendered, template
from launcher.data.unusable import Unusable
from launcher.spec.training import DataSpec
from tests.support.chat import CHATML, turns
from tests.support.helpers import composed_once

ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}"
ENDLESS += "{% endfor %}"
ON_WORD = "{% if messages[0].content == 'stop' %}" + ENDLESS + "{% endif %}{{ messages[0].content }}"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of the processor, which each of these templates needs or does not whatever the machine is."""
    monkeypatch.setattr(rendering, "SECONDS", 1)


def data(folder: Path, text: str) -> DataSpec:
    path = folder / "own.jinja"
    path.write_text(text)
    return replace(composed_once("data=chat", "data.path=a.jsonl").data, template=str(path))


def talk(word: str, row: int) -> Conversation:
    return Conversation(turns(word, "yes")["messages"], row)


def said(outcome: Outcome) -> str:
    return outcome.text if isinstance(outcome, Rendered) else outcome.finding.rule


@pytest.mark.parametrize("text", [CHATML, "{{ messages[0].content }}{{ eos_token }}"])
def test_the_text_and_what_is_trained_are_those_of_the_same_process(text: str, tmp_path: Path) -> None:
    own = data(tmp_path, text)
    talks = [talk(f"ä{number}", number) for number in range(1, 600)]
    for train_on in ("all", "assistant", "last") if text == CHATML else ("all",):
        apart = list(writer(own).outcomes(talks, train_on))
        assert apart == [template(own).written(each, train_on) for each in talks]


def test_half_of_a_surrogate_pair_is_named_with_its_row_and_the_way_out(tmp_path: Path) -> None:
    (found,) = writer(data(tmp_path, CHATML)).outcomes([talk("a\ud800", 7)], "all")
    assert said(found) == "row 7 holds bytes or escapes that are not UTF-8 (half of a surrogate pair)"


def test_a_template_that_loops_for_hours_is_ended_and_said_to_with_the_row_and_ways_out(tmp_path: Path) -> None:
    own = data(tmp_path, ON_WORD)
    outcomes = list(writer(own).outcomes([talk("go", 1), talk("stop", 2), talk("on", 3), talk("stop", 4)], "all"))
    ended = (
        f"the template {own.template} does not finish within 1 s of CPU time: a "
        "template is a program, and this one loops too"
    )
    assert [said(each) for each in outcomes] == ["go", f"row 2: {ended} much", "on", f"row 4: {ended} much"]
    with pytest.raises(Unusable, match=r"try data\.template=chatml or data\.template=plain"):
        written(outcomes[1])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{{ messages[0].content * 10 ** 11 }}", "row 1: .* exceeds its memory limit"),
        ("{{ 'x' * 10 ** 11 }}", "exceeds its memory limit|is not a Jinja template: MemoryError|was killed by"),
        ("{{ 3 ** (10 ** 9) }}", "does not finish within 1 s"),
        ("{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(60) }}", "does not finish within 1 s"),
    ],
)
def test_memory_constants_and_recursion_have_limits_too(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=why):
        list(map(written, writer(data(tmp_path, text)).outcomes([talk("x", 1)], "all")))


def test_many_rows_together_may_take_longer_than_one(tmp_path: Path) -> None:
    text = "{% for a in range(20000) %}{{ a }}{% endfor %}"
    outcomes = list(writer(data(tmp_path, text)).outcomes([talk("x", row) for row in range(1, 400)], "all"))
    assert len(outcomes) == 399
    assert {type(each) for each in outcomes} == {Rendered}


def test_a_process_that_somebody_ends_is_said_to_have_been(tmp_path: Path) -> None:
    apart = writer(data(tmp_path, CHATML))
    assert isinstance(apart, rendering._Apart)
    apart._process.send_signal(signal.SIGKILL)
    [outcome] = apart.outcomes([talk("x", 1)], "all")
    assert isinstance(outcome, Rendered), "it is asked again by another one"


def test_a_shipped_template_needs_no_process() -> None:
    own = composed_once("data=chat", "data.path=a.jsonl").data
    assert not isinstance(writer(own), rendering._Apart)


@pytest.mark.parametrize("verb", ["check", "prepare"])
def test_a_verb_answers_about_a_template_that_never_ends(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAUNCH_CACHE", "cache")
    (tmp_path / "a.jsonl").write_text(json.dumps(turns("2+2?", "4")) + "\n")
    (tmp_path / "own.jinja").write_text(ENDLESS)
    words = ["model=tiny", "hardware=cpu", "data=chat", "data.path=a.jsonl", "data.template=own.jinja"]
    assert main([verb, *words, "--json"]) == 2
    [error] = json.loads(capsys.readouterr().out)["errors"]
    assert (error["path"], error["found"]) == ("data.template", "own.jinja")
    assert "does not finish within 1 s of CPU time" in error["rule"]
    assert error["way_out"][:2] == ["data.template=chatml", "data.template=plain"]
