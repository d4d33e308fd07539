"""Real training in tests: recorded runs in their own ranks, without the launcher."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import random
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.preflight import plan
from launcher.spec import RunSpec
from launcher.spec.parse import to_dict
from tests.support import ranks as ranks_of_a_job
from tests.support import train_many
from tests.support.helpers import ROOT, make_spec

SMALL = (
    "model=tiny",
    "model.num_hidden_layers=2",
    "model.hidden_size=64",
    "model.intermediate_size=96",
    "model.num_attention_heads=4",
    "model.num_key_value_heads=2",
    "precision=fp32",
    "data=synthetic",
    "train.sequence_length=32",
    "train.global_batch_size=8",
    "train.steps=20",
    "optimizer.lr=3e-3",
    "save.last=false",
)
"""A model and a task that are learned in seconds; a test's overrides come after these."""

GPT = (
    "model.family=gpt",
    "model.hidden_act=gelu_new",
    "model.normalization=layernorm",
    "model.position_embedding=learned",
    "model.attention_bias=true",
    "model.mlp_bias=true",
    "model.tie_word_embeddings=true",
)
"""GPT-2's block, with the sizes of a Llama-style model."""

MOE = (
    "model.family=moe",
    "model.num_experts=4",
    "model.num_experts_per_tok=2",
    "model.moe_intermediate_size=48",
)
"""Four experts instead of each MLP."""

_LATENT = (
    *("model.kv_lora_rank=16", "model.q_lora_rank=24", "model.qk_nope_head_dim=16", "model.qk_rope_head_dim=8"),
    *("model.v_head_dim=16", "model.num_key_value_heads=4"),
)
FAMILIES_OF_EXPERTS = {
    "mixtral": MOE,
    "qwen3_moe": (*MOE, "model.qk_norm=true"),
    "gpt_oss": (
        *(*MOE, "model.family=transformers", "model.model_type=gpt_oss", "model.attention=eager"),
        *("model.moe_intermediate_size=96", "model.extra={layer_types:[full_attention,full_attention]}"),
    ),
    "deepseek": (
        *(*MOE, *_LATENT, "model.family=deepseek", "model.num_shared_experts=1", "model.first_dense_layers=1"),
        *("model.n_group=2", "model.topk_group=1", "model.norm_topk_prob=true"),
    ),
}


def prepare(directory: Path, *overrides: str, ranks: int) -> RunSpec:
    """Write ``spec.json`` and the job's files into a new run directory, like the launcher."""
    spec = make_spec(*SMALL, f"cluster.gpus_per_node={ranks}", "train.micro_batch_size=4", *overrides)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "logs").mkdir(exist_ok=True)
    (directory / "spec.json").write_text(json.dumps(to_dict(spec)))
    for name, text in plan.translate(spec, python=sys.executable).at(str(directory)).files.items():
        (directory / name).write_text(text)
    return spec


def environment(backend: str = "") -> dict[str, str]:
    """Variables that the launcher would set, and no compiler for DeepSpeed, on which TRL may also run.

    Compiling its shared-memory allreduce alone would take minutes, and extension folders must not be shared.
    """
    wanted = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "DS_ACCELERATOR": "cpu", "LAUNCH_CACHE": ""}
    if backend in ("deepspeed", "trl"):
        wanted |= {"CXX": "/bin/false", "TORCH_EXTENSIONS_DIR": f"{os.environ['XDG_CACHE_HOME']}/extensions"}
    root = str(ROOT)
    return {**os.environ, **wanted, "PYTHONPATH": root}


def train_all(folder: Path, runs: Mapping[str, Sequence[str]], *, ranks: int) -> dict[str, list[float]]:
    """Train several runs in the same ranks, one after the other; return the losses of each.

    Args:
        folder: Each run gets a directory of its name in it.
        runs: Overrides by name, all for one backend.
        ranks: CPU processes.
    """
    specs = {name: prepare(folder / name, *overrides, ranks=ranks) for name, overrides in runs.items()}
    backends = {spec.backend.name for spec in specs.values()}
    assert len(backends) == 1, f"one backend at a time, not {backends}"
    places = [f"{folder / name}:{port}" for name, port in zip(runs, free_ports(len(runs)), strict=True)]
    backend = backends.pop()
    ranks_of_a_job.run(
        train_many.main,
        [backend, *places],
        imports=train_many.IMPORTS[backend],
        count=ranks,
        environment=environment(backend),
        log=folder / "ranks.log",
        late=train_many.late(specs.values()),
    )
    return {name: losses(folder / name) for name in runs}


_RANGES, _PORTS = 20, 440  # Ranges of ports from 2,000 to 10,800, and the ports in each.


@functools.cache
def _own_ports() -> range:
    """Ports of this process: the first range whose first port it can hold until it ends."""
    for first in range(2_000, 2_000 + _RANGES * _PORTS, _PORTS):
        kept = socket.socket()
        try:
            kept.bind(("127.0.0.1", first))
        except OSError:
            kept.close()
        else:
            atexit.register(kept.close)
            return range(first + 1, first + _PORTS)
    raise AssertionError(f"{_RANGES} processes of tests run on this machine")


def free_ports(count: int) -> list[int]:
    """Free ports outside the system's ephemeral range, since most are used minutes after they were found.

    Each process of pytest has its own ports, even beside another run of the tests and whatever seed a test sets. A
    development cluster uses those above (``slurm.dev_cluster``).
    """
    found: list[int] = []
    own = _own_ports()
    for port in random.SystemRandom().sample(own, len(own)):
        with socket.socket() as each, contextlib.suppress(OSError):
            each.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            break
    return found


def lines(directory: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl``, unchanged."""
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def losses(directory: Path) -> list[float]:
    """Loss of each step that has a line."""
    return [line["loss"] for line in lines(directory) if "loss" in line]


def error(directory: Path) -> str:
    """The message of the first error that a rank wrote."""
    written = sorted((directory / "logs").glob("error.rank*.json"), key=lambda path: path.stat().st_mtime_ns)
    assert written, "no rank wrote an error"
    message: str = json.loads(written[0].read_text())["message"]
    return message
