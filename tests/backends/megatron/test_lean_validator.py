"""The process that asks Megatron-LM's validator imports what that uses, and answers as one that imports everything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from launcher.backends.megatron import installed
from launcher.backends.megatron.validator import question
from launcher.base.package import IMPORT_FOLDER
from tests.support.helpers import make_spec
from tests.support.megatron_specs import drawn

pytestmark = pytest.mark.skipif(installed.found_version() is None, reason="the validator is of the extra 'megatron'")

HEAVY = (
    "apex",
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "torch._meta_registrations",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.utils.tensorboard",
    "transformers",
    "triton",
    "megatron.core.dist_checkpointing",
    "megatron.core.distributed.fsdp",
    "megatron.core.models.gpt.gpt_model",
    "megatron.core.pipeline_parallel",
    "megatron.core.ssm",
    "megatron.core.transformer.transformer_layer",
    "megatron.training.training",
)
"""Modules that build, compile, train or save, and that judge no argument."""

RUN = """
import json, sys
from launcher.worker.megatron import validate
{before}
validate.main()
print(json.dumps([key for key, each in sys.modules.items() if type(each).__name__ != "_Later"]), file=sys.stderr)
"""
"""The validator's program; what it has run of what it imported is the last line that it says."""


def asked(questions: list[dict[str, Any]], *words: str, before: str = "") -> tuple[list[Any], set[str]]:
    """The answers, and the modules that were run for them."""
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", RUN.format(before=before), *words],
        input=json.dumps(questions),
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONPATH": str(IMPORT_FOLDER)},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("[")]
    return json.loads(done.stdout), set(json.loads(lines[-1]) if lines else ())


def with_words(*words: str) -> dict[str, Any]:
    known = question(make_spec("model=7b", "parallel=tp", "hardware=h100_80g", "cluster.gpus_per_node=8"))
    return {**known, "arguments": [*known["arguments"], *words]}


@pytest.fixture(scope="module")
def one() -> tuple[list[Any], set[str]]:
    return asked([with_words()])


def test_one_question_runs_nothing_that_builds_compiles_trains_or_saves(one: tuple[list[Any], set[str]]) -> None:
    answers, modules = one
    assert answers == [None]
    assert {"torch", "megatron.training.arguments", "megatron.core.transformer.transformer_config"} <= modules
    assert not [each for each in sorted(modules) if any(each == key or each.startswith(f"{key}.") for key in HEAVY)]


def test_the_answers_are_those_of_a_process_that_imports_everything(one: tuple[list[Any], set[str]]) -> None:
    few = [question(spec) for spec in list(drawn(2200))[::5]]
    few += [
        with_words("--seed", "x"),
        with_words("--no-such-flag"),
        with_words("--recompute-modules", "q_proj", "--recompute-granularity", "selective"),
        with_words("--use-megatron-fsdp"),
        with_words("--attention-backend", "fused", "--cuda-graph-impl", "local"),
        with_words("--moe-paged-stash"),
        with_words("--ckpt-format", "fsdp_dtensor"),
    ]
    (lean, ours), (whole, theirs) = asked(few), asked(few, "--whole")
    assert lean == whole
    assert sum(answer is None for answer in whole) > 200
    assert sum(answer is not None for answer in whole) > 80
    assert {"sympy", "torch.distributed.tensor", "megatron.core.models.gpt.gpt_model"} <= theirs
    assert len(one[1]) < 0.6 * len(theirs)
    assert len(ours) < 0.7 * len(theirs), "they were not asked again whole"


def test_what_a_stand_in_may_have_spoilt_is_asked_again_whole() -> None:
    """The parser is made of the enumerations and the dataclasses of these modules, which a stand-in is none of."""
    spoilt = 'validate.UNUSED += ("megatron.core.transformer.enums", "megatron.training.config")'
    answers, modules = asked([with_words(), with_words("--seed", "x")], before=spoilt)
    assert answers == [None, {"text": "argument --seed: invalid int value: 'x'", "near": []}]
    assert not modules, "another process has answered"
