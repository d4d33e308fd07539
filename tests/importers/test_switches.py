"""Words of other programs that switch something off, or that another word switches off: none is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.base import registry
from launcher.importers import Imported, _table

TABLES = sorted(path.stem for path in Path(_table.__file__).with_name("tables").glob("*.yaml"))


def read(kind: str, text: str) -> Imported:
    found: Imported = registry.load("importers", kind).read(text, "file.yaml")
    return found


def words_of(content: Any) -> Iterator[Any]:
    """All keys of nested mappings."""
    if isinstance(content, dict):
        yield from content
    for each in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        yield from words_of(each)


@pytest.mark.parametrize("name", TABLES)
def test_every_word_of_a_table_is_text(name: str) -> None:
    """YAML reads a key ``off`` as false, and a row whose word is none acts on nothing."""
    found = list(words_of(_table.table(name)))
    assert found
    assert [word for word in found if not isinstance(word, str)] == []


DPO = "base_model: a/b\nrl: dpo\n"


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("torchtune", "batch_size: 2\nfsdp_reshard_after_forward: false\n", {"zero=2"}),
        ("torchtune", "context_parallel_dim: 2\nsave_every_n_steps: 9\nkeep_last_n_checkpoints: 3\n",
         {"parallel.context=2", "save.every=9", "save.keep=3"}),
        ("megatron_bridge", "ddp: {use_distributed_optimizer: false}\n", {"zero=0"}),
        ("megatron_bridge", "mixed_precision: {grad_reduce_in_fp32: false}\n",
         {"precision.gradients=bf16", "precision.accumulate=bf16", "precision.reduce=bf16"}),
        ("megatron_bridge", "validation: {eval_interval: 0}\n", {"train.eval_every=null"}),
        ("nanotron", "optimizer: {accumulate_grad_in_fp32: false}\n", {"precision.gradients=bf16"}),
        ("trl", "dataset_name: c/d\ncompletion_only_loss: false\n", {"data.train_on=all"}),
        ("trl", "dataset_name: c/d\ncompletion_only_loss: true\nassistant_only_loss: false\n",
         {"data.train_on=assistant"}),
        ("axolotl", "micro_batch_size: 2\nbatch_size: 16\n", {"train.gradient_accumulation=8"}),
        ("axolotl", f"{DPO}dpo_loss_type: [hinge]\n", {"task.loss=hinge"}),
        ("axolotl", "rl: ipo\n", {"task=dpo", "task.loss=ipo"}),
    ],
)  # fmt: skip
def test_a_word_that_switches_something_off_is_said(kind: str, text: str, words: set[str]) -> None:
    assert words <= set(read(kind, text).overrides)


@pytest.mark.parametrize(
    ("kind", "text", "setting"),
    [
        ("axolotl", "save_strategy: 'no'\nsave_steps: 100\n", "save.every"),
        ("axolotl", "eval_strategy: 'no'\neval_steps: 100\n", "train.eval_every"),
        ("axolotl", "torch_compile: true\nliger_rope: true\nplugins: [x.LigerPlugin]\n", "train.kernels"),
        ("llamafactory", "stage: dpo\npref_loss: simpo\n", "task.loss"),
    ],
)
def test_a_word_that_another_switches_off_sets_nothing(kind: str, text: str, setting: str) -> None:
    assert not [word for word in read(kind, text).overrides if word.startswith(f"{setting}=")]


@pytest.mark.parametrize(
    ("kind", "text", "note"),
    [
        ("trl", "dataset_name: c/d\n", "data.train_on=all trains every token"),
        ("axolotl", "micro_batch_size: 4\nsample_packing: true\nflash_attention: true\n",
         "4 rows are packed into one there"),
    ],
)  # fmt: skip
def test_what_a_run_here_does_in_another_way_is_said(kind: str, text: str, note: str) -> None:
    assert any(note in each for each in read(kind, text).not_understood)
    assert not any(note in each for each in read(kind, f"{text}completion_only_loss: true\nmicro_batch_size: 1\n"
                                                 if kind == "trl" else "base_model: a/b\n").not_understood)  # fmt: skip
