"""Megatron-LM's own training loop loses what one process without Megatron does, however the ranks are laid out."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from itertools import batched
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional

from launcher.backends.megatron import options
from launcher.backends.megatron.implementation import COUNTED
from launcher.importers import UNKNOWN
from launcher.importers.megatron import read
from launcher.importers.megatron.arguments import KEPT
from launcher.preflight.assess import estimated
from launcher.saved import headers
from launcher.spec import RunSpec
from launcher.spec.parse import parse
from launcher.worker.data.corpus import Synthetic
from launcher.worker.data.order import Order
from launcher.worker.model import network
from tests.support import cover, megatron_flags, megatron_saved, memory_lines, ranks, train_many
from tests.support.chat import TRAINED
from tests.support.foreign_files import SIZES as IMPORTED
from tests.support.helpers import make_spec
from tests.support.training import GPT, MOE, SMALL, environment, lines, train_all

TOLERANCE, NORM_TOLERANCE = 2e-6, 2e-5
"""Relative, over all steps; of losses and of the norms of gradients, which show an error a step earlier."""

STEPS, SAVED = 4, 2
SIZES = ("model.num_hidden_layers=4", "model.vocab_size=512", "model.num_key_value_heads=4", f"train.steps={STEPS}")
"""Sizes that divide among all layouts below; Megatron pads the vocabulary to 128 rows for each tensor parallel rank."""

GROUPED = "model.num_key_value_heads=2"
ONE_GROUP = "model.num_key_value_heads=1"
GROUPED_MOE = (*MOE, GROUPED)
EVALUATED = (f"train.eval_every={SAVED}", "train.eval_steps=2")
MEGATRON = ("parallel=tp", "parallel.tensor=1", "parallel.sequence=false", "zero=0", "train.micro_batch_size=2")
TENSOR = "parallel.tensor=2"
TWO_BATCHES = (TENSOR, "train.micro_batch_size=4")
"""Two micro-batches: to go through four adds waits for the other rank, and nothing that the runs of stages lack."""

PIPELINE = "parallel.pipeline=2"
DISTRIBUTED = "zero=1"

REFERENCE = {
    "single": ("parallel=ddp", "save.export=safetensors"),
    "evaluated": ("parallel=ddp", *EVALUATED),
    "moe": ("parallel=ddp", *GROUPED_MOE, "save.export=safetensors"),
    "gpt": ("parallel=ddp", *GPT),
    "fewer_groups_than_ranks": ("parallel=ddp", ONE_GROUP),
    "chat": ("parallel=ddp", *TRAINED),
}
FOUR = {
    "tensor_pipeline": (
        TENSOR,
        PIPELINE,
        DISTRIBUTED,
        f"save.every={SAVED}",
        "save.last=true",
        "save.export=safetensors",
    ),
    "tensor_data": (TENSOR, "parallel.sequence=true", DISTRIBUTED, "checkpointing=selective"),
    "pipeline_data": (PIPELINE, "parallel.virtual_pipeline=2", "parallel.schedule=interleaved", DISTRIBUTED),
    "resumed_tensor": ("parallel.tensor=4", DISTRIBUTED),
}
TWO = {
    "tensor": (TENSOR,),  # Four micro-batches.
    "evaluated": (*TWO_BATCHES, *EVALUATED),
    "tensor_sequence": (*TWO_BATCHES, "parallel.sequence=true"),
    "pipeline": (PIPELINE,),
    "interleaved": (PIPELINE, "parallel.virtual_pipeline=2", "parallel.schedule=interleaved"),
    "data": (DISTRIBUTED, "checkpointing=full"),
    "gpt": (PIPELINE, *GPT),
    "moe": ("parallel.expert=2", DISTRIBUTED, *GROUPED_MOE, "save.export=safetensors"),
    "resumed_data": (DISTRIBUTED,),
    "saving_beside": (*TWO_BATCHES, "save.every=1", "save.last=true", "save.async=true"),
    "fewer_groups_than_ranks": (*TWO_BATCHES, ONE_GROUP),
    "chat_tensor": (*TWO_BATCHES, *TRAINED),
    "chat_data": (DISTRIBUTED, *TRAINED),
    "chat_pipeline": (PIPELINE, *TRAINED, "train.micro_batch_size=1"),
}
LOADED = {
    "llama": (TENSOR, "parallel.sequence=true"),
    "moe": ("parallel.expert=2", *GROUPED_MOE),
}
"""Runs on two ranks from a folder that ``transformers`` has written; Mixtral's has its experts one by one."""

ONE = {"selective": ("checkpointing=selective",), "gpt": GPT, "resumed_one": (DISTRIBUTED,)}
RUNS = cover.Runs(
    parts={"four": FOUR, "two": TWO, "one": ONE},
    ranks={"four": 4, "one": 1},
    needed=("four/tensor_pipeline", "two/evaluated", "two/moe", "two/saving_beside"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def reference(folder: Path) -> dict[str, list[float]]:
    return train_all(folder / "reference", {name: (*SIZES, *words) for name, words in REFERENCE.items()}, ranks=1)


@pytest.fixture(scope="module")
def four(folder: Path, request: pytest.FixtureRequest) -> None:
    _train(folder, "four", RUNS.of("four", request), 4)


@pytest.fixture(scope="module")
def two(folder: Path, four: None, request: pytest.FixtureRequest) -> None:
    _train(folder, "two", RUNS.of("two", request), 2)


@pytest.fixture(scope="module")
def one(folder: Path, four: None, request: pytest.FixtureRequest) -> None:
    _train(folder, "one", RUNS.of("one", request), 1)


def _train(folder: Path, part: str, runs: Mapping[str, Sequence[str]], ranks: int) -> None:
    """Train them in the same ranks; what is resumed goes on from step ``SAVED`` of the run on two axes."""
    load = f"save.load={folder / 'four' / 'tensor_pipeline' / 'checkpoints' / f'iter_{SAVED:07d}'}"
    words = {
        run: (*MEGATRON, *SIZES, *overrides, *((load,) if run.startswith("resumed") else ()))
        for run, overrides in runs.items()
    }
    train_all(folder / part, words, ranks=ranks)


@pytest.mark.parametrize("run", RUNS.marked("four", "two", "one"))
@pytest.mark.usefixtures("reference")
def test_ranks_lose_what_one_process_does(run: str, folder: Path, request: pytest.FixtureRequest) -> None:
    part, _, name = run.partition("/")
    request.getfixturevalue(part)
    single = "chat" if name.startswith("chat") else name if name in REFERENCE else "single"
    found, expected = (lines(place) for place in (folder / run, folder / "reference" / single))
    assert expected[-1]["loss"] < 0.98 * expected[0]["loss"], "nothing was learnt: equal losses would say little"
    expected = expected[SAVED:] if name.startswith("resumed") else expected
    for key, tolerance in (("loss", TOLERANCE), ("grad_norm", NORM_TOLERANCE)):
        values = [line[key] for line in expected]
        assert [line[key] for line in found] == pytest.approx(values, rel=tolerance), key


@pytest.mark.usefixtures("reference", "two")
def test_norms_rates_and_held_out_losses_are_those_of_one_process(folder: Path) -> None:
    expected, found = (lines(folder / part) for part in ("reference/evaluated", "two/evaluated"))
    for key in ("grad_norm", "eval_loss", "learning_rate"):
        values = [line[key] for line in expected if key in line]
        assert len(values) == (2 if key == "eval_loss" else STEPS)
        assert [line[key] for line in found if key in line] == pytest.approx(values, rel=1e-4), key
    assert expected[0].keys() == found[0].keys()


@pytest.mark.usefixtures("four")
def test_the_memory_of_every_phase_is_measured(folder: Path) -> None:
    content = json.loads((folder / "four" / "tensor_pipeline" / "memory.json").read_text())
    assert len(content["ranks"]) == 4
    for rank in content["ranks"]:
        assert all(rank["phases"].values()), rank["phases"]
        assert rank["static_bytes"]
    found = memory_lines.whole(folder / "four" / "tensor_pipeline", ranks=4)
    phases = {phase for record in found for phase in record.phases}
    assert {"load", "checkpoint_save"} <= phases


@pytest.mark.usefixtures("four")
def test_planning_reads_a_checkpoint_by_its_headers_alone(folder: Path) -> None:
    place = folder / "four" / "tensor_pipeline" / "checkpoints" / f"iter_{SAVED:07d}"
    found = headers.distributed(place)
    assert found is not None
    assert found.files == {path.name for path in place.glob("*.distcp")}
    assert found.shapes["embedding.word_embeddings.weight"] == (512, 64)


@pytest.mark.usefixtures("four")
def test_the_newest_checkpoints_are_kept_and_the_outcome_is_written(folder: Path) -> None:
    run = folder / "four" / "tensor_pipeline"
    assert sorted(path.name for path in (run / "checkpoints").glob("iter_*")) == ["iter_0000002", "iter_0000004"]
    assert (run / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "4"
    outcome = json.loads((run / "logs" / "outcome.json").read_text())
    assert (outcome["state"], outcome["step"]) == ("finished", STEPS)
    assert not list((folder / "four" / "tensor_data" / "checkpoints").glob("iter_*")), "save.last=false saves nothing"


@pytest.mark.usefixtures("two")
def test_a_checkpoint_is_written_beside_training(folder: Path) -> None:
    run = folder / "two" / "saving_beside" / "checkpoints"
    assert sorted(path.name for path in run.glob("iter_*")) == ["iter_0000003", "iter_0000004"]
    assert (run / "latest_checkpointed_iteration.txt").read_text() == "4"


@pytest.mark.usefixtures("four", "two", "reference")
@pytest.mark.parametrize(("run", "expected"), [("four/tensor_pipeline", "single"), ("two/moe", "moe")])
def test_the_export_is_the_model_that_one_process_trains(run: str, expected: str, folder: Path) -> None:
    tokens = torch.arange(64).reshape(2, 32)
    losses = []
    for path in (folder / run, folder / "reference" / expected):
        model = transformers.AutoModelForCausalLM.from_pretrained(path / "export", dtype=torch.float32)
        with torch.no_grad():
            losses.append(float(model(input_ids=tokens, labels=tokens).loss))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_muon_of_megatron_core_steps_weights_that_tensor_parallel_ranks_share(tmp_path: Path) -> None:
    words = ("parallel=tp", "zero=0", "optimizer=muon", f"train.steps={STEPS}")
    losses = train_all(tmp_path, {"muon": words}, ranks=2)["muon"]
    assert len(losses) == STEPS
    assert losses == sorted(losses, reverse=True)
    spec = parse(json.loads((tmp_path / "muon" / "spec.json").read_text()))
    assert spec.parallel.tensor == 2
    said = {each.pile: each.bytes for each in estimated(spec).piles}
    # At the peak it also has the output projection's gradient, not yet added to the buffer.
    said["gradients"] -= 4 * spec.model.vocab_size * spec.model.hidden_size // spec.parallel.tensor
    last = json.loads((tmp_path / "muon" / "memory.jsonl").read_text().splitlines()[-1])
    for pile in ("parameters", "gradients", "optimizer_states"):
        assert said[pile] == pytest.approx(last["phases"]["forward"]["piles"][pile], rel=0.001), pile


def test_sgd_of_megatron_core_goes_on_from_its_checkpoint_as_if_unbroken(tmp_path: Path) -> None:
    runs: dict[str, tuple[str, ...]] = {}
    for name, momentum in (("sgd", 0.9), ("plain", 0.0)):
        words = (*MEGATRON, *SIZES, TENSOR, "optimizer=sgd", f"optimizer.beta1={momentum}")
        runs[name] = (*words, f"save.every={SAVED}", "save.last=true")
        runs[f"{name}_resumed"] = (*words, f"save.load={tmp_path}/{name}/checkpoints/iter_{SAVED:07d}")
    found = train_all(tmp_path, runs, ranks=2)
    assert all(found[f"{name}_resumed"] == found[name][SAVED:] for name in ("sgd", "plain"))

    newest = tmp_path / "sgd" / "checkpoints" / f"iter_{STEPS:07d}"
    for part in newest.glob("*.distcp"):
        os.truncate(part, 100)
    tracked = f"with {SAVED} in latest_checkpointed_iteration.txt the run continues from iter_{SAVED:07d}"
    with pytest.raises(AssertionError, match=re.escape(f"{newest} cannot be read ({tracked}): ")):
        train_all(tmp_path, {"sgd": runs["sgd"]}, ranks=2)


def test_a_run_starts_from_what_transformers_has_written(folder: Path) -> None:
    runs, expected = {}, {}
    for name, overrides in LOADED.items():
        words = (*MEGATRON, *SIZES, "train.steps=1", *overrides)
        weights = folder / "weights" / name
        spec = make_spec(*SMALL, "cluster.gpus_per_node=2", *words)
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(network.config(spec.model))
        model.save_pretrained(weights)
        rows = _first_batch(spec)
        with torch.no_grad():
            logits = model(input_ids=rows[:, :-1]).logits
        expected[name] = float(functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))
        runs[name] = (*words, f"model.weights={weights}")
    found = train_all(folder / "loaded", runs, ranks=2)
    assert {name: losses[0] for name, losses in found.items()} == pytest.approx(expected, rel=TOLERANCE)


def _first_batch(spec: RunSpec) -> torch.Tensor:
    corpus = Synthetic(spec.model.vocab_size, spec.sequence_length, spec.train.seed)
    order = Order(
        size=corpus.size,
        seed=spec.train.seed,
        shuffle=spec.data.shuffle,
        global_batch_size=spec.global_batch_size,
        micro_batch_size=spec.global_batch_size,
        data_rank=0,
        data_ranks=1,
    )
    return torch.from_numpy(np.stack([corpus.sample(number) for number in order.samples(1)[0]]))


def test_every_argument_of_the_installed_megatron_ends_in_one_list_of_an_import_and_one_class_of_extra(
    tmp_path: Path,
) -> None:
    """Asked of a rank of this file's, which has imported Megatron-LM: that takes longer than all the rest."""
    place = tmp_path / "flags.json"
    ranks.run(
        megatron_flags.write,
        [str(place)],
        imports=train_many.IMPORTS["megatron"],
        count=1,
        environment=environment(),
        log=tmp_path / "ranks.log",
    )
    flags = json.loads(place.read_text())
    assert len(flags) > 700
    unknown, wrong = [], []
    for some in batched(flags.items(), 25):
        words = [word for flag, value in some for word in ([flag] if value is True else [flag, str(value)])]
        found = read(json.dumps([*IMPORTED.split(), *words]), "args.json")
        lists = [[said.key for said in found.said], found.default, found.kept, [left.key for left in found.left_out]]
        wrong += [flag for flag, _ in some if sum(flag in entries for entries in lists) != 1]
        unknown += [left.key for left in found.left_out if left.effect == UNKNOWN]
    assert (unknown, wrong) == ([], [])
    assert {f"--{name}" for name in KEPT} <= set(flags)
    names = [flag.removeprefix("--") for flag in flags]
    counted = {*options.SETTINGS, *COUNTED}
    unclassified = [name for name in names if name not in counted and options.line(name) is None]
    assert unclassified == [], "each has its line in launcher/backends/megatron/options.py"
    listed = [name for table in (options.NO_MEMORY, options.REFUSED) for row in table.values() for name in row.split()]
    gone = sorted({*listed} - {*names})
    assert gone == [], "only arguments that Megatron-LM has have a line"


def test_a_switch_that_is_handed_on_leaves_the_bytes_that_a_model_saves(tmp_path: Path) -> None:
    """Asked of Megatron-core itself, with each of its switches in turn; one that is refused or counted may differ."""
    place = tmp_path / "saved.json"
    ranks.run(
        megatron_saved.write,
        [str(place)],
        imports=train_many.IMPORTS["megatron"],
        count=1,
        environment=environment(),
        log=tmp_path / "ranks.log",
    )
    found = json.loads(place.read_text())
    plain = found.pop("")
    differs = {name: size - plain for name, size in found.items() if size != plain}
    handed = {name for row in options.NO_MEMORY.values() for name in row.split()} & found.keys()
    assert len(handed) > 40
    # The softmax of all experts in place of that of the chosen, in fp32: the router is counted so in any case.
    assert {name: differs[name] for name in handed & differs.keys()} == {
        "moe-router-pre-softmax": (4 - 2) * 4 * megatron_saved.TOKENS
    }
    assert "attention-output-gate" in differs, "a switch that is refused is seen to change what is saved"
