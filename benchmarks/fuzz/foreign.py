"""Cases of other programs' files, and of points: what the importers and ``check --points`` read."""

from __future__ import annotations

import json
import random
import shlex
from functools import lru_cache
from typing import Any

import yaml

from benchmarks.fuzz import mutation
from benchmarks.fuzz.case import Case
from launcher import api

_HF: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "rope_theta": 1e6,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "sliding_window": None,
}
_OPTIONS = {"deepspeed": "--deepspeed", "megatron": "--megatron-args", "hf": "--hf"}
_POINT_WORDS = ("model=7b", "model=tiny", "parallel=fsdp", "hardware=h100_80g", "precision=bf16", "zero.stage=9", "x=1")


def draw(chance: random.Random) -> Case:
    """A file for ``import`` or ``check``; the judge looks at the lists of an import."""
    kind = chance.choice(tuple(_OPTIONS))
    content = _file(chance, kind)
    name = "config.json" if kind == "hf" else "foreign"
    if chance.random() < 0.5:
        options = [option for option in ("--json", "--partial") if chance.random() < 0.5]
        words: tuple[str, ...] = ("import", kind, name, *options)
    else:
        words = ("check", "model=tiny", _OPTIONS[kind], name, "--no-native")
    return Case(source="importers", words=words, files={name: content})


def _file(chance: random.Random, kind: str) -> bytes:
    if kind == "hf":
        return mutation.either(chance, _HF)
    if kind == "deepspeed":
        return mutation.either(chance, _ds_config())
    arguments = _megatron_arguments()
    form = chance.choice(("shell", "yaml", "json"))
    if form == "shell":
        return mutation.text(
            chance,
            f"#!/bin/bash\nTP=2\nARGS=({shlex.join(arguments)})\ntorchrun pretrain_gpt.py ${{ARGS[@]}}\n".encode(),
        )
    pairs = {
        "MODEL_ARGS": {word: True for word in arguments if word.startswith("--")} | {"--tensor-model-parallel-size": 2}
    }
    return mutation.either(chance, pairs) if form == "json" else mutation.text(chance, yaml.safe_dump(pairs).encode())


def draw_points(chance: random.Random) -> Case:
    """A file of points, of which each line has one answer."""
    lines = [_point(chance) for _ in range(chance.randint(1, 4))]
    answers = sum(1 for line in lines if line.strip())
    return Case(
        source="points",
        words=("check", "--points", "points.jsonl"),
        files={"points.jsonl": b"\n".join(lines) + b"\n"},
        answers=answers,
    )


def _point(chance: random.Random) -> bytes:
    point = {
        "id": chance.randint(0, 9),
        "overrides": [chance.choice(_POINT_WORDS) for _ in range(chance.randint(0, 3))],
    }
    if chance.random() < 0.2:
        return json.dumps(point).encode()
    return mutation.either(chance, point).replace(b"\n", b" ").replace(b"\r", b" ")


@lru_cache
def _ds_config() -> Any:
    words = ("model=tiny", "parallel=zero3", "backend=deepspeed", "precision=bf16", "zero.offload_optimizer=cpu")
    return json.loads(api.show(words).files["ds_config.json"])


@lru_cache
def _megatron_arguments() -> tuple[str, ...]:
    return tuple(api.show(("model=tiny", "backend=megatron", "hardware.device=cpu")).worker_argv)
