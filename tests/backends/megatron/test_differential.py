"""Our rules against Megatron-LM's own validator: over many runs, one accepts what the other accepts."""

from __future__ import annotations

import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from launcher.backends.megatron.translate import argument_list
from launcher.backends.megatron.validator import answers, question
from launcher.base.errors import ConfigError
from launcher.preflight import findings
from launcher.spec import RunSpec, edit
from launcher.spec.parse import applied
from tests.support.helpers import make_spec
from tests.support.megatron_specs import BASES, VALUES, drawn

pytestmark = pytest.mark.skipif(
    find_spec("megatron") is None, reason="the validator is megatron-core's, of the extra 'megatron'"
)

COUNT = 3650
"""Runs that are judged: every value of every setting on every base, and some more."""

DELIBERATE: tuple[tuple[str, str, str], ...] = (
    ("parallel.tensor", "intermediate size", "fails later: building the layer divides its width"),
    ("parallel.pipeline", "must divide the", "layers would be left out where stages are interleaved"),
    ("parallel.expert_tensor", "divide its width", "fails later: building the expert divides its width"),
    ("parallel.sequence", "Megatron-LM trains experts", "fails later: building the MoE layer raises"),
    ("parallel.expert", "hold one copy of the experts", "fails later: the process groups do not come out even"),
    ("parallel.replicate", "replicas", "fails later: the process groups do not come out even"),
    ("train.sequence_length", "ranks that share a sequence", "fails later: the first scatter along the sequence"),
    ("train.global_batch_size", "interleaved schedule", "fails later: the first step of the schedule"),
    ("model.num_key_value_heads", "must divide", "fails later: building attention divides its heads"),
    ("model.num_experts_per_tok", "a token is routed to", "fails later: the router takes more experts than there are"),
    ("model.moe_intermediate_size", "must be set", "Megatron-LM takes another setting in its place"),
    ("model.qk_nope_head_dim", "must be set", "an empty head"),
    ("model.qk_rope_head_dim", "must be set", "an empty head"),
    ("model.v_head_dim", "must be set", "an empty head"),
    ("model.first_dense_layers", "leaves none", "experts in no layer"),
    ("model.num_experts", "the family", "the family decides how memory is counted"),
    ("model.kv_lora_rank", "the family", "the family decides how memory is counted"),
    ("model.kv_lora_rank", "needs Transformer Engine", "fails later: building the attention of CPU ranks"),
    ("model.attention_bias", "", "the family decides how memory is counted"),
    ("model.mlp_bias", "", "the family decides how memory is counted"),
    ("model.hidden_act", "fused with a bias", "another function would be computed than was asked for"),
    ("zero.stage", "accumulates over", "Megatron-FSDP beside pipeline stages is not in the memory estimate"),
    ("zero.stage", "CUDA streams", "fails later: Megatron-FSDP makes CUDA streams"),
    ("parallel.context", "needs Transformer Engine", "fails later: the attention of CPU ranks asserts"),
    ("zero.offload_optimizer", "CPU ranks", "nothing would be moved"),
    ("optimizer.name", "its Lion takes", "another optimizer: Adam's betas, and Adam for embeddings and norms"),
    ("optimizer.name", "gloo does not", "fails later: weights of several sizes are gathered"),
    ("optimizer.name", "only with bf16 weights", "fails later: the chain of optimizers asks for a loss scale"),
    ("optimizer.name", "not step fp16 weights", "fails later: the optimizer is built"),
    ("optimizer.name", "shards only Adam-like states", "fails later: the distributed optimizer asserts Adam"),
    ("precision.master", "runs only on CUDA", "fails later: Transformer Engine's FusedAdam has no CPU kernels"),
    ("precision.optimizer_states", "runs only on CUDA", "fails later: no FusedAdam on CPU ranks"),
    ("model.rope_theta", "whole number", "another base would be used than was asked for"),
    ("train.timeout_s", "whole minutes", "another time would be waited than was asked for"),
    ("precision.accumulate", "", "memory is counted for one gradient buffer in one format"),
    ("precision.master", "uses fp32 or fp16", "Megatron-FSDP: no estimate for a step on bf16"),
    ("precision.recipe", "from compute capability", "the target has no kernels for it"),
    ("precision.compute", "supports fp32", "the target has no such matrix units"),
    ("precision.compute", "only GPU kernels", "fails later: Transformer Engine's fp8 has no CPU kernels"),
    ("model.attention", "flash-attn", "the flash-attn package has no such kernel"),
)
"""Refusals beyond those of ``validate_args``: key, part of the rule, reason (docs/engines.md)."""


TARGETS = ("queue", "no_queue", "grouped", "fused", "bad_word", "queue_again")
"""Questions about the machine that is asked for, beside the runs."""


@pytest.fixture(scope="module")
def judged() -> tuple[list[RunSpec], list[dict[str, Any] | None]]:
    """The runs and the questions about targets, answered by one process."""
    specs = list(drawn(COUNT))
    found = answers([question(spec) for spec in specs] + _targets(), timeout_s=540)
    return specs, found


def _targets() -> list[dict[str, Any]]:
    queue = question(make_spec("model=7b", "parallel=tp", "hardware=h100_80g", "cluster.gpus_per_node=8"))
    cpu = question(make_spec("model=tiny", "parallel=tp", "data=synthetic"))
    return [
        queue,
        {**queue, "environment": {}},
        {**queue, "arguments": [*queue["arguments"], "--moe-grouped-gemm"], "capability": [7, 0]},
        {**cpu, "arguments": [word for word in cpu["arguments"] if word != "--no-rope-fusion"]},
        {**queue, "arguments": [*queue["arguments"], "--seed", "x"]},
        queue,
    ]


def test_the_validator_judges_for_the_target_and_not_for_this_machine(judged: Any) -> None:
    """An H100 needs one hardware queue, a V100 has no grouped products, and the CPU no rotary fusion."""
    texts: list[Any] = [None if answer is None else answer["text"] for answer in judged[1][COUNT:]]
    found = dict(zip(TARGETS, texts, strict=True))
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in found["no_queue"]
    assert found["grouped"] == "Unsupported compute capability for GroupedGEMM kernels."
    assert found["fused"] == "apply_rope_fusion is not available. Please install TE >= 1.4."
    assert found["bad_word"] == "argument --seed: invalid int value: 'x'"
    assert found["queue"] is None
    assert found["queue_again"] is None


def test_our_rules_and_megatron_s_validator_accept_the_same_runs(judged: Any) -> None:
    specs, theirs = judged[0], judged[1][:COUNT]
    ours = [list(findings.broken_rules(spec)) for spec in specs]
    assert len(theirs) == len(specs) >= len(BASES) * sum(len(set(values)) for values in VALUES.values())
    counts = Counter((not broken, answer is None) for broken, answer in zip(ours, theirs, strict=True))
    assert counts[True, True] > 600, counts
    assert counts[False, False] > 200, counts
    too_lax = [answer["text"] for broken, answer in zip(ours, theirs, strict=True) if not broken and answer]
    assert not too_lax, Counter(too_lax).most_common(10)
    too_strict = [
        (error.path, error.rule)
        for spec, broken, answer in zip(specs, ours, theirs, strict=True)
        if answer is None
        for error in broken
        if not _is_deliberate(error) and not _is_unsaid(spec, error)
    ]
    assert not too_strict, Counter(too_strict).most_common(10)


def _is_deliberate(error: ConfigError) -> bool:
    return any(error.path == path and part in error.rule for path, part, _ in DELIBERATE)


def _is_unsaid(spec: RunSpec, error: ConfigError) -> bool:
    """Whether another value gives the same argument list: no argument says it, so Megatron-LM was not asked."""
    said = argument_list(spec)
    others = [applied(spec, way) for way in error.way_out]
    others += [edit.changed(spec, error.path, value) for value in VALUES.get(error.path, ())]
    return any(argument_list(other) == said for other in others if other is not None and other != spec)


def test_every_deliberate_refusal_is_documented() -> None:
    text = Path("docs/engines.md").read_text()
    section = text.partition("### Its own validator")[2].partition("\n### ")[0]
    assert set(re.findall(r"`([a-z_]+\.[a-z_]+)`", section)) == {path for path, _, _ in DELIBERATE}
