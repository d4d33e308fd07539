"""What takes longer than a second shows on a terminal that it is at work, and says in the end how long it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

import launcher
from launcher import cli
from launcher.actions import check as check_action
from launcher.actions import plan, waiting
from launcher.actions import run as run_action
from launcher.backends import Judgement
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.planner import question
from launcher.planner.question import Question
from launcher.preflight import assess

FEW = ("model=125m", "hardware=h100_80g", "cluster.gpus_per_node=1", "parallel=ddp", "train.micro_batch_size=1")


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Late:
    """A timer whose time is up at once, as where the block takes longer than it."""

    daemon = False

    def __init__(self, seconds: float, show: Callable[[], None]) -> None:
        assert seconds == 1.0
        self._show = show

    def start(self) -> None:
        self._show()

    def cancel(self) -> None:
        pass

    def join(self) -> None:
        pass


class Early(Late):
    """A timer whose time is never up."""

    def start(self) -> None:
        pass


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, timer: type[Late]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(waiting, "Timer", timer)


@pytest.mark.parametrize(
    "words",
    [("check", "model=tiny"), ("check", "model=tiny", "--json"), ("run", "model=tiny", "parallel.tensor=3")],
)
def test_a_check_that_takes_longer_than_a_second_says_on_a_terminal_that_it_is_at_work(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_a_terminal(monkeypatch, Late)
    cli.main(list(words))
    assert "checking the run" in capsys.readouterr().err


@pytest.mark.parametrize("verb", [check_action, run_action])
def test_the_sign_is_there_while_the_engines_own_validator_is_waited_for(
    verb: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def asked(*given: object, **named: object) -> None:
        seen.append("checking the run" in capsys.readouterr().err)
        raise ConfigErrors([ConfigError("model", None, "enough is seen")])

    on_a_terminal(monkeypatch, Late)
    monkeypatch.setattr(verb, "judge_run", asked)
    cli.main([str(verb.__name__).rpartition(".")[2], "model=tiny"])  # type: ignore[attr-defined]
    assert seen == [True]


MEGATRON = ("model=tiny", "hardware=h100_80g", "cluster.gpus_per_node=8", "parallel=tp", "data=synthetic")


@pytest.mark.parametrize("verb", ["check", "run", "rehearse"])
def test_the_sign_names_megatron_while_its_validator_is_waited_for(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def asked(spec: object) -> Judgement:
        seen.append(" ".join(capsys.readouterr().err.split()))
        return Judgement(errors=(ConfigError("model", None, "enough is seen"),))

    on_a_terminal(monkeypatch, Late)
    monkeypatch.setattr(assess, "judge", asked)
    assert cli.main([verb, *MEGATRON]) == 2
    assert len(seen) == 1
    assert "waiting for Megatron-LM's own validator; --no-native skips it" in seen[0]
    assert "checking the run" in seen[0]


def test_the_sign_names_no_validator_where_none_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_a_terminal(monkeypatch, Late)
    assert cli.main(["check", "model=tiny", "parallel=fsdp"]) == 0
    assert "validator" not in capsys.readouterr().err


def test_a_plan_names_megatron_while_its_validator_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "judge_all", lambda specs: tuple(Judgement() for _ in specs))
    on_a_terminal(monkeypatch, Late)
    assert cli.main(["plan", *MEGATRON, "train.micro_batch_size=1"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "asking Megatron-LM's own validators about these layouts" in said


def test_a_quick_check_and_one_that_nobody_looks_at_show_no_sign(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "Timer", Late)
    assert cli.main(["check", "model=tiny"]) == 0
    assert capsys.readouterr().err == "", "no terminal"
    on_a_terminal(monkeypatch, Late)
    assert launcher.check(["model=tiny"]).fits
    assert capsys.readouterr().err == "", "a program asks"
    on_a_terminal(monkeypatch, Early)
    assert cli.main(["check", "model=tiny"]) == 0
    assert capsys.readouterr().err == "", "quick"


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Reading the words takes 3 seconds, and the engines' own validators take 38."""
    clock = Clock()
    read, ask = question.ask, assess.judge_all

    def reading(words: Sequence[str], *, vary: Sequence[str]) -> Question:
        clock.now += 3
        return read(words, vary=vary)

    def asking(specs: object) -> tuple[Judgement, ...]:
        clock.now += 38
        return ask(specs)  # type: ignore[arg-type]

    monkeypatch.setattr(plan, "clock", clock)
    monkeypatch.setattr(plan, "ask", reading)
    monkeypatch.setattr(plan, "judge_all", asking)
    return clock


def test_a_plan_says_how_long_the_whole_command_took(slow: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", *FEW]) == 0
    said = capsys.readouterr()
    assert "layouts in 3.0 s" in said.out, "it is printed before the validators are asked"
    assert "launch: 41 s in total, 38 s of that in the engines' own validators" in said.err
    assert cli.main(["plan", *FEW, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["seconds"] == 41
    assert cli.main(["plan", *FEW, "--no-native"]) == 0
    said = capsys.readouterr()
    assert ("layouts in 3.0 s" in said.out, said.err) == (True, "")


def test_a_plan_that_waits_for_the_validators_says_so_on_a_terminal(
    slow: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_a_terminal(monkeypatch, Late)
    assert cli.main(["plan", *FEW]) == 0
    assert "asking the engines' own validators about these layouts" in " ".join(capsys.readouterr().err.split())
