"""``python -m launcher.worker.megatron.validate``: check argument lists by Megatron-LM's own code, without a GPU.

Reads a JSON list of questions on stdin (``arguments``, ``world``, ``environment``, ``device``, ``capability``) and
writes a list of answers to stdout: null if ``parse_args``, ``validate_args`` and the configurations of transformer,
optimizer and gradient buffers accept the list, else their message. The target machine's compute capability,
``WORLD_SIZE`` and environment replace this machine's, as does, for a GPU, Transformer Engine if it is not installed.

Layers, kernels, checkpoints and schedules are not executed (``launcher.worker.megatron.later``). If the validating code
uses one of them, all questions are asked again in a process that imports everything (``--whole``).
"""

import argparse
import contextlib
import dataclasses
import difflib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import os
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from launcher.base.files import JsonObject
from launcher.worker.megatron import later

_TARGET: dict[str, Any] = {"device": "cuda", "capability": (9, 0)}
"""The machine of the current question, for the functions that replace the real machine's."""

UNUSED = (
    "megatron.core.dist_checkpointing", "megatron.core.distributed.distributed_data_parallel",
    "megatron.core.distributed.finalize_model_grads", "megatron.core.distributed.fsdp",
    "megatron.core.distributed.param_and_grad_buffer", "megatron.core.distributed.torch_fully_sharded_data_parallel",
    "megatron.core.inference.communication", "megatron.core.inference.contexts",
    "megatron.core.inference.moe.fused_moe", "megatron.core.inference.moe.vllm_fused_moe",
    "megatron.core.inference.quantization", "megatron.core.inference.symmetric_memory", "megatron.core.models.backends",
    "megatron.core.models.gpt.gpt_layer_specs", "megatron.core.models.gpt.gpt_model",
    "megatron.core.models.gpt.heterogeneous", "megatron.core.models.hybrid.hybrid_block",
    "megatron.core.models.hybrid.hybrid_layer_specs", "megatron.core.models.hybrid.hybrid_model",
    "megatron.core.optimizer.distrib_optimizer", "megatron.core.pipeline_parallel", "megatron.core.post_training",
    "megatron.core.recompute", "megatron.core.ssm", "megatron.core.tensor_parallel.inference_layers",
    "megatron.core.transformer.cuda_graphs", "megatron.core.transformer.experimental_attention_variant",
    "megatron.core.transformer.moe.experts", "megatron.core.transformer.moe.ops",
    "megatron.core.transformer.moe.token_dispatcher_inference", "megatron.core.transformer.multi_token_prediction",
    "megatron.core.transformer.transformer_layer", "torch._meta_registrations", "torch.distributed._tensor",
    "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.tensor", "torch.utils.cpp_extension",
    "torch.utils.tensorboard",
)  # fmt: skip
"""Modules that validation seldom uses, and that took three of five seconds with megatron-core 0.19 and torch 2.15
(``python -X importtime``, without cached bytecode)."""

_PROGRAM = "launcher.worker.megatron.validate"
_WHOLE = "--whole"
_MISUSE = (AttributeError, ImportError, NameError, TypeError)
"""Errors that a stand-in for a module could cause; Megatron-LM raises others when it refuses."""

_FUSED: list[tuple[Any, str]] = []  # Transformer Engine kernels that Megatron-LM looks for and this machine lacks.


def judge(questions: Sequence[Mapping[str, Any]]) -> list[JsonObject | None]:
    """Megatron-LM's answer to each argument list, in order, None if it accepts the list; builds the parser once."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parser = _prepare()
        return [_answer(question, parser) for question in questions]


class _Refused(Exception):
    """Raised with argparse's message, instead of printing it and exiting."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        """Raise the message."""
        raise _Refused(message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Copy lists, so that ``validate_args`` does not append to defaults."""
        found, rest = super().parse_known_args(args, namespace)
        for key, value in vars(found).items():
            if isinstance(value, list):
                setattr(found, key, list(value))
        return found, rest


def _answer(question: Mapping[str, Any], parser: argparse.ArgumentParser) -> JsonObject | None:
    _TARGET.update(device=question["device"], capability=tuple(question["capability"]))
    for module, name in _FUSED:
        setattr(module, name, object() if question["device"] == "cuda" else None)
    before, words = dict(os.environ), sys.argv
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update({**question["environment"], "WORLD_SIZE": str(question["world"]), "RANK": "0"})
    sys.argv = ["pretrain_gpt.py", *question["arguments"]]
    try:
        _validate()
    except _Refused as refusal:
        return {"text": str(refusal), "near": _near(str(refusal), parser)}
    except (Exception, SystemExit) as error:
        if isinstance(error, _MISUSE) and later.is_on():
            raise
        return {"text": " ".join(str(error).split()) or _where(error), "near": []}
    finally:
        sys.argv = words
        os.environ.clear()
        os.environ.update(before)
    return None


def _validate() -> None:
    arguments = importlib.import_module("megatron.training.arguments")
    args = arguments.validate_args(arguments.parse_args())
    model_config(args).finalize()
    optimizer = importlib.import_module("megatron.core.optimizer.optimizer_config").OptimizerConfig
    for kind in (optimizer, importlib.import_module("megatron.core.distributed").DistributedDataParallelConfig):
        kind(**{
            field.name: getattr(args, field.name) for field in dataclasses.fields(kind) if hasattr(args, field.name)
        })


def model_config(args: Any) -> Any:
    """The model's configuration, with the RNG tracker that CUDA graphs require and 0.19.2 itself leaves out."""
    from megatron.training import argument_utils

    hybrid = args.hybrid_layer_pattern is not None
    made = (argument_utils.hybrid_config_from_args if hybrid else argument_utils.gpt_config_from_args)(args)
    made.transformer.use_te_rng_tracker = args.te_rng_tracker
    return made


def _where(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(frame.filename).name}: {frame.line}"


def _near(text: str, parser: argparse.ArgumentParser) -> list[str]:
    unknown = next((word for word in text.split() if word.startswith("--")), None)
    known = [option for option in parser._option_string_actions if option.startswith("--")]
    return difflib.get_close_matches(unknown, known, n=2) if unknown and "unrecognized" in text else []


def _without_emerging_optimizers() -> None:
    """Hide emerging-optimizers from Megatron-core: no optimizer steps here, and that package imports Triton."""
    metadata: Any = importlib.metadata
    version = metadata.version

    def found(name: str) -> str:
        if name == "emerging-optimizers":
            raise metadata.PackageNotFoundError(name)
        return str(version(name))

    metadata.version = found
    sys.modules["emerging_optimizers"] = None  # type: ignore[assignment]


def _prepare() -> argparse.ArgumentParser:
    import torch

    plain: Any = lambda function=None, **_: function or (lambda inner: inner)  # noqa: E731
    torch.compile = plain  # Nothing is computed, and importing the compiler takes as long as all other imports.
    _without_emerging_optimizers()
    _without_training_loop()
    arguments: Any = importlib.import_module("megatron.training.arguments")
    parser: argparse.ArgumentParser = _Parser(allow_abbrev=False)
    arguments.add_megatron_arguments(parser)
    arguments.add_megatron_arguments = lambda _: parser
    arguments.argparse = types.SimpleNamespace(ArgumentParser=lambda **_: parser)
    _as_target(torch)
    if importlib.util.find_spec("transformer_engine") is None:
        _as_with_transformer_engine()
    return parser


def _without_training_loop() -> None:
    """Make the package ``megatron.training`` with only the global variables from the imports of its ``__init__``."""
    core = importlib.util.find_spec("megatron.core")
    if core is None or core.origin is None:
        raise ModuleNotFoundError("No module named 'megatron.core'")
    package = types.ModuleType("megatron.training")
    package.__path__ = [str(Path(core.origin).parent.parent / "training")]
    sys.modules["megatron.training"] = package
    variables = importlib.import_module("megatron.training.global_vars")
    for key in dir(variables):
        if not key.startswith("__"):
            setattr(package, key, getattr(variables, key))


def _as_target(torch: Any) -> None:
    def properties(*_: object) -> types.SimpleNamespace:
        major, minor = _TARGET["capability"]
        return types.SimpleNamespace(major=major, minor=minor, name="target", total_memory=0, multi_processor_count=1)

    torch.cuda.get_device_properties = properties
    torch.cuda.get_device_capability = lambda *_: tuple(_TARGET["capability"])
    _replace("get_device_arch_version", lambda: _TARGET["capability"][0])


def _as_with_transformer_engine() -> None:
    """Fake a Transformer Engine that is new enough for every question, as a job on GPUs has."""
    _replace("is_te_min_version", lambda *_, **__: _TARGET["device"] == "cuda")
    for path, names in _KERNELS.items():
        module = importlib.import_module(path)
        _FUSED.extend((module, name) for name in names if getattr(module, name) is None)

    class FusedAdam:
        """A class with the signature that ``OptimizerConfig`` looks for."""

        def __init__(
            self, master_weight_dtype: Any, exp_avg_dtype: Any, exp_avg_sq_dtype: Any, use_decoupled_grad: Any
        ) -> None: ...

    for name in ("transformer_engine", "transformer_engine.pytorch", "transformer_engine.pytorch.optimizers"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["transformer_engine.pytorch.optimizers"].FusedAdam = FusedAdam  # type: ignore[attr-defined]


_KERNELS = {
    "megatron.core.models.common.embeddings.rope_utils": ("fused_apply_rotary_pos_emb",),
    "megatron.core.transformer.moe.moe_utils": (
        "fused_permute",
        "fused_permute_with_probs",
        "fused_sort_chunks_by_index",
        "fused_sort_chunks_by_index_with_probs",
        "fused_unpermute",
    ),
}


def _replace(name: str, function: Any) -> None:
    for key, module in list(sys.modules.items()):
        if key.startswith("megatron.") and vars(module).get(name) is not None:
            setattr(module, name, function)


def main() -> None:
    """Answer the questions on stdin, on stdout."""
    questions = json.load(sys.stdin)
    whole = sys.argv[1:] == [_WHOLE]
    if not whole:
        later.put_off(UNUSED)
    try:
        answers = judge(questions)
    except Exception:
        if whole:
            raise
        _ask_again(questions)
    json.dump(answers, sys.stdout)


def _ask_again(questions: Sequence[Mapping[str, Any]]) -> NoReturn:
    with tempfile.TemporaryFile() as kept:
        kept.write(json.dumps(questions).encode())
        kept.seek(0)
        os.dup2(kept.fileno(), 0)  # Not sys.stdin, which an argument may have closed.
        os.execv(sys.executable, [sys.executable, "-P", "-W", "ignore", "-m", _PROGRAM, _WHOLE])


if __name__ == "__main__":
    main()
