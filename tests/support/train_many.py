"""Run several recorded runs one after the other in the same ranks, which saves a start-up per run.

Each run has its own rendezvous port: in a shared store gloo would find the addresses of the previous run and wait
forever.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from launcher.preflight import plan
from launcher.spec import RunSpec
from launcher.spec.parse import parse

_LATE = (
    *("launcher.worker.loop", "launcher.worker.data.corpus"),
    *(f"transformers.models.{name}.modeling_{name}" for name in ("llama", "qwen3", "gpt2", "mixtral")),
)
_LATE_OF_DEEPSPEED = (
    *("deepspeed.runtime.zero.muon.muon_optimizer", "deepspeed.runtime.superoffload.superoffload_stage3"),
    *("deepspeed.module_inject.auto_ep_layer", "deepspeed.sequence.layer", "setuptools"),
)
_LATE_OF_MEGATRON = (
    *("core.tokenizers.text.libraries", "core.tokenizers.text.models", "core.models.mimo"),
    "core.dist_checkpointing.strategies.cached_metadata_filesystem_reader",
)
_LATE_OF_ITS_COMPILER = ("torch._dynamo.backends.inductor", "torch.export._trace", "torch.fx.experimental.validator")
"""Modules of torch that Megatron's first fused function needs."""

ADAPTERS = ("peft", "torchao.float8", "torchao.quantization")
"""Modules that a rank with an adapter imports late, about a thousand: the agent imports them once for all ranks."""

_FP8 = ("torchao.float8", "torch._inductor.codegen.triton")
"""The same for a rank in fp8: torchao needs the compiler when it converts a model, about 500 modules."""


def late(specs: Collection[RunSpec]) -> list[str]:
    """Modules that ranks of some of these runs import late."""
    adapted = any(spec.adapter.name != "none" for spec in specs)
    in_fp8 = any(spec.precision.compute == "fp8" for spec in specs)
    return [*(ADAPTERS if adapted else ()), *(_FP8 if in_fp8 else ())]


def with_fsdp() -> None:
    """Import what a rank of FSDP or DDP needs."""
    for name in ("launcher.worker.fsdp.engine", *_LATE):
        importlib.import_module(name)


def with_deepspeed() -> None:
    """Import what a rank of DeepSpeed needs, and what its initialisation imports late."""
    for name in ("launcher.worker.deepspeed.engine", *_LATE_OF_DEEPSPEED, *_LATE):
        importlib.import_module(name)
    _probe_once()


def _probe_once() -> None:
    """Have DeepSpeed test only once which of its operations can be compiled, 0.3 s in each process that starts it."""
    assert importlib.import_module("deepspeed.ops").__compatible_ops__


def with_megatron() -> None:
    """Import what a rank of Megatron-LM needs, in its worker's order: the CPU stand-ins come first."""
    from launcher.worker.megatron import cpu

    cpu.install()
    for name in ("layout", "follow", "data", "pretraining"):
        importlib.import_module(f"launcher.worker.megatron.{name}")
    for name in ("training.argument_utils", "training.arguments", "training.training", *_LATE_OF_MEGATRON):
        importlib.import_module(f"megatron.{name}")
    models = (f"transformers.models.{name}.modeling_{name}" for name in ("llama", "mixtral"))
    for name in ("launcher.backends.megatron", *models, *_LATE_OF_ITS_COMPILER):
        importlib.import_module(name)
    _read_docstrings_once()


def _read_docstrings_once() -> None:
    """Have Megatron read its help texts only once; reading them twice per run takes a quarter of a small one."""
    from megatron.training import argument_utils, arguments

    found: dict[type, dict[str, str]] = {}
    factory = argument_utils.ArgumentGroupFactory
    read = factory._get_field_docstrings

    def kept(self: Any, configuration: type) -> dict[str, str]:
        if configuration not in found:
            found[configuration] = read(self, configuration)
        return found[configuration]

    factory._get_field_docstrings = kept
    arguments.add_megatron_arguments(argparse.ArgumentParser())


def with_trl() -> None:
    """Import what a rank of TRL needs, and what its trainers import late."""
    for name in ("launcher.worker.trl.training", "trl.trainer.sft_trainer", "trl.trainer.dpo_trainer", *_LATE):
        importlib.import_module(name)
    for name in ("trl.scripts", *_LATE_OF_DEEPSPEED):
        importlib.import_module(name)
    _probe_once()


IMPORTS = {"fsdp": with_fsdp, "deepspeed": with_deepspeed, "megatron": with_megatron, "trl": with_trl}
"""The import function by backend."""


def main(backend: str, *places: str) -> None:
    """Train the runs of some directories, in one rank.

    Args:
        backend: Backend of the runs.
        places: ``DIRECTORY:PORT`` of each run.
    """
    import torch  # Imported here, as in launcher.worker: only ranks need it.

    from launcher.worker import loop

    torch.set_num_threads(1)
    engine = importlib.import_module(f"launcher.worker.{backend}.__main__")
    for place in places:
        name, _, os.environ["MASTER_PORT"] = place.rpartition(":")
        directory = Path(name)
        _forget_groups()
        spec = parse(json.loads((directory / "spec.json").read_text()))
        if hasattr(engine, "build"):
            loop.run(spec, directory, engine.build)
        else:
            job = plan.translate(spec, python="").at(str(directory))
            os.environ.update(job.environment)
            engine.run(spec, directory, job.worker_argv[2:] if backend == "trl" else job.worker_argv)


def _forget_groups() -> None:
    """Reset process groups in the frameworks' module globals, where a second run would find those of the first."""
    if "megatron.training.training" in sys.modules:
        sys.modules["megatron.training.training"].destroy_global_state()
    if "accelerate" in sys.modules:
        sys.modules["accelerate"].state.AcceleratorState._reset_state(reset_partial_state=True)
    if "deepspeed" not in sys.modules:
        return
    comm, groups = (importlib.import_module(f"deepspeed.{name}") for name in ("comm.comm", "utils.groups"))
    setattr(comm, "cdb", None)  # noqa: B010
    groups._release_process_group_references()
