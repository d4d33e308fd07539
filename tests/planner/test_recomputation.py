"""``checkpointing=auto``: the least recomputation that fits, by the planner's own price."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.actions import points
from launcher.actions.requests import compose_run
from launcher.base.errors import ConfigErrors
from launcher.config import synonyms
from launcher.config.catalog import Catalog
from launcher.config.request import CommandLine, request
from launcher.estimate.memory.estimate import needs
from launcher.planner.recomputation import LeastRecomputation, least
from launcher.preflight import assess, verdict
from launcher.spec import RunSpec, edit
from tests.support.helpers import make_spec

GPUS = ("model=7b", "parallel=fsdp", "precision=bf16", "hardware=h100_80g", "cluster.gpus_per_node=8")
CROWDED = (*GPUS, "train.micro_batch_size=3")


def lacks(spec: RunSpec) -> int:
    return verdict.judge(spec, needs(spec, **assess.parts(spec)), safely=True).excess_bytes


def seconds(spec: RunSpec) -> float:
    found = assess.assess(spec, search=None).speed
    assert found is not None
    return found.step_seconds


@pytest.fixture(scope="module")
def found() -> LeastRecomputation:
    return least(make_spec(*CROWDED))


def test_a_run_that_fits_recomputes_nothing() -> None:
    chosen = least(make_spec(*GPUS))
    assert chosen.words == ("checkpointing=none",)
    assert chosen.said == "checkpointing=none: the run fits without recomputation"


def test_what_is_chosen_fits_and_a_layer_less_does_not(found: LeastRecomputation) -> None:
    layers = found.spec.checkpointing.layers
    assert layers is not None
    assert found.fits
    assert lacks(make_spec(*CROWDED)) > 0
    assert lacks(found.spec) == 0
    assert lacks(edit.changed(found.spec, "checkpointing.layers", layers - 1)) > 0
    assert make_spec(*CROWDED, *found.words) == found.spec


@pytest.mark.parametrize("words", ["checkpointing=selective", "checkpointing=full"])
def test_it_is_faster_than_the_presets_that_fit(words: str, found: LeastRecomputation) -> None:
    other = make_spec(*CROWDED, words)
    assert lacks(other) == 0
    assert seconds(found.spec) < seconds(other)
    assert found.slower == pytest.approx(seconds(found.spec) / seconds(make_spec(*CROWDED)) - 1, abs=1e-3)


def test_where_nothing_suffices_it_is_said() -> None:
    chosen = least(make_spec(*GPUS, "train.micro_batch_size=64"))
    assert (chosen.words, chosen.fits) == (("checkpointing=full",), False)
    assert chosen.said == "checkpointing=full: even the strongest recomputation does not make the run fit"


def test_without_a_known_speed_the_fewest_products_are_repeated() -> None:
    words = ("model=tiny", "model.num_hidden_layers=8", "parallel=fsdp", "hardware=cpu", "cluster.gpus_per_node=2")
    spec = make_spec(*words)
    plain = needs(spec, **assess.parts(spec)).peak.high_bytes
    chosen = least(make_spec(*words, f"hardware.memory_bytes={int(plain * 0.99)}"))
    assert chosen.fits
    assert chosen.slower is None
    assert "checkpointing.modules=[norm]" in chosen.words


def test_megatron_recomputes_modules_or_the_first_layers() -> None:
    chosen = least(make_spec("model=7b", "parallel=tp", "hardware=a100_40g", "train.micro_batch_size=4", *GPUS[4:]))
    assert chosen.fits
    assert chosen.words[0] in ("checkpointing=selective", "checkpointing=full")


def _composed(*words: str) -> tuple[str, ...]:
    line = CommandLine(words=words, catalog=Catalog(folder=Path.cwd()))
    return compose_run(line, None).overrides


def test_a_run_is_composed_and_recorded_with_the_concrete_words(
    found: LeastRecomputation, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _composed(*CROWDED, "checkpointing=auto") == (*CROWDED, *found.words)
    assert f"checkpointing=auto is {found.said}" in capsys.readouterr().err


def test_a_point_of_many_is_judged_with_the_concrete_words(found: LeastRecomputation, tmp_path: Path) -> None:
    lines = [
        {"id": n, "overrides": [*CROWDED, *words]} for n, words in enumerate((("checkpointing=auto",), found.words))
    ]
    (tmp_path / "points.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    first, second = (json.loads(text) for _, text in points.answers(tmp_path / "points.jsonl"))
    assert first == second | {"id": 0}


def test_a_key_of_the_group_beside_it_is_refused() -> None:
    with pytest.raises(ConfigErrors, match="checkpointing=auto sets the keys of this group"):
        _composed(*GPUS, "checkpointing=auto", "checkpointing.layers=4")


@pytest.mark.parametrize("words", [("checkpointing=auto",), ("model=7b", "checkpointing=auto")])
def test_where_it_is_not_chosen_the_error_says_where_it_is(words: tuple[str, ...]) -> None:
    [error] = request(words).errors
    assert error.rule == synonyms.AUTO_ALONE
    assert error.way_out[0] == "launch plan"
