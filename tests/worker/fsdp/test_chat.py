"""Conversations: the loss is the mean over the trained tokens of the global batch, however the ranks are laid out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional

from launcher.spec import RunSpec
from launcher.worker import marks
from launcher.worker.data.order import Order
from launcher.worker.model import LanguageModel, initial, network
from tests.support.chat import TALK, TRAINED
from tests.support.helpers import make_spec
from tests.support.training import SMALL, lines, train_all

TOLERANCE = 2e-5
"""Relative, over five steps."""

LORA = ("adapter=lora", "optimizer.lr=1e-2")
WORDS = ("train.steps=5", *TRAINED)

ONE_RANK = {
    "whole": ("parallel=ddp", "train.micro_batch_size=8", "save.export=safetensors"),
    "accumulating": ("parallel=ddp", "train.micro_batch_size=2", "save.export=safetensors"),
    "lora": ("parallel=ddp", *LORA),
}
TWO_RANKS = {
    "whole_accumulating": ("parallel=ddp", "train.micro_batch_size=2", "save.export=safetensors"),
    "whole_chunked": ("parallel=fsdp", "train.micro_batch_size=1", "train.loss=chunked", "train.loss_chunk=50"),
    "whole_tensor": ("parallel=fsdp_tp", "train.micro_batch_size=8"),
    "whole_stages": ("parallel=fsdp_pp", "train.micro_batch_size=2"),
    "whole_context": ("parallel=fsdp_cp", "train.micro_batch_size=4"),
    "lora": ("parallel=fsdp", *LORA),
}
"""By the run of one rank that they are held against."""

type Numbers = dict[str, list[tuple[float, ...]]]


def numbers(folder: Path, runs: Mapping[str, Sequence[str]], ranks: int) -> Numbers:
    train_all(folder, {name: (*WORDS, *each) for name, each in runs.items()}, ranks=ranks)
    keys = ("loss", "grad_norm", "eval_loss")
    return {name: [tuple(line[key] for key in keys if key in line) for line in lines(folder / name)] for name in runs}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chat")


@pytest.fixture(scope="module")
def expected(folder: Path) -> Numbers:
    return numbers(folder / "one", ONE_RANK, 1)


@pytest.fixture(scope="module")
def on_two_ranks(folder: Path) -> Numbers:
    return numbers(folder / "two", TWO_RANKS, 2)


@pytest.mark.parametrize("name", TWO_RANKS)
def test_two_ranks_learn_what_one_process_does(name: str, expected: Numbers, on_two_ranks: Numbers) -> None:
    reference = expected[name.partition("_")[0]]
    assert reference[-1][0] < 0.98 * reference[0][0], "nothing was learnt, so equal losses would say little"
    assert len(reference[-1]) == 3, "the last step evaluates"
    for found, wanted in zip(on_two_ranks[name], reference, strict=True):
        assert found == pytest.approx(wanted, rel=TOLERANCE)


@pytest.mark.usefixtures("on_two_ranks")
def test_accumulation_by_four_and_two_ranks_by_two_end_in_the_same_weights(folder: Path, expected: Numbers) -> None:
    assert expected["accumulating"][-1] == pytest.approx(expected["whole"][-1], rel=TOLERANCE)
    runs = [folder / place for place in ("one/whole", "one/accumulating", "two/whole_accumulating")]
    models = [transformers.AutoModelForCausalLM.from_pretrained(run / "export") for run in runs]
    first, *others = (dict(model.named_parameters()) for model in models)
    for other in others:
        assert all(torch.allclose(first[name], other[name], atol=1e-5) for name in first)


def test_the_first_loss_is_the_mean_over_what_the_assistants_say(expected: Numbers) -> None:
    spec = make_spec(*SMALL, *WORDS, "parallel=ddp", "train.micro_batch_size=8", "cluster.gpus_per_node=1")
    order = Order(
        size=18,  # Of 24, a quarter is held out.
        seed=spec.train.seed,
        shuffle=True,
        global_batch_size=8,
        micro_batch_size=8,
        data_rank=0,
        data_ranks=1,
    )
    talk = [json.loads(line)["messages"] for line in TALK.read_text().splitlines()]
    model = _first_model(spec)
    total, count = torch.zeros(()), 0
    for number in order.samples(1)[0]:
        asked, said = (message["content"] for message in talk[number])
        head = f"user: {asked}\n\nassistant: ".encode()
        text = (head + f"{said}\n\n".encode())[:65]
        if len(text) > len(head):
            logits = model(input_ids=torch.tensor([list(text[:-1])])).logits[0, len(head) - 1 :]
            labels = torch.tensor(list(text[len(head) :]))
            total, count = total + functional.cross_entropy(logits, labels, reduction="sum"), count + len(labels)
    assert count > 50
    assert expected["whole"][0][0] == pytest.approx(float(total.detach() / count), rel=TOLERANCE)


def _first_model(spec: RunSpec) -> Any:
    made = network.network(spec.model, torch.float32)
    made.to_empty(device="cpu")
    network.retie(made)
    initial.fill(made, spec.train.seed)
    return made


def test_a_batch_without_a_trained_token_has_no_loss_and_no_gradient() -> None:
    spec = make_spec(*SMALL, "data=chat", "data.path=a.jsonl", "train.loss=chunked", "train.loss_chunk=7")
    model = LanguageModel(_first_model(spec), spec)
    rows = ~torch.arange(66).reshape(2, 33)
    assert marks.count(rows) == 0
    assert marks.ids(rows).tolist() == torch.arange(66).reshape(2, 33).tolist()
    loss = model(rows)
    loss.backward()
    assert loss == 0
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert gradients
    assert all(gradient.abs().max() == 0 for gradient in gradients)
