"""Train as ``trl.scripts.<task>.main`` does, with the launcher's model, samples and callback.

``main`` itself takes no callback and loads data only by ``datasets.load_dataset``. TRL's own parser reads the
configuration from ``trl.yaml``, and the trainer is made from it as in ``main``.
"""

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from launcher.data.template import template
from launcher.data.tokenizer import of_transformers
from launcher.worker import TrainingError, files
from launcher.worker.engine import Context
from launcher.worker.model import adapters, initial
from launcher.worker.model.network import fake_quantise, network, retie
from launcher.worker.trl import samples
from launcher.worker.trl.follow import TrainerHooks

_NAMES = {"sft": "SFT", "dpo": "DPO", "kto": "KTO", "reward": "Reward", "grpo": "GRPO"}


def run(context: Context, arguments: Sequence[str]) -> object:
    """Train to the last step, or until the run is asked to stop; return an object that holds the whole run."""
    with context.memory.measuring("load"):
        write_start(context)
        own = samples.of(context)
        trainer = _trainer(context, own, arguments)
        adapters.release_inputs(trainer.model, context.spec)
        adapters.keep_start(trainer.model, context)
        follower = TrainerHooks(context, trainer, own)
    follower.train()
    return follower


def tokenizer(context: Context) -> Any:
    """The tokenizer of ``data.tokenizer``, with the chat template of ``data.template``."""
    data = context.spec.data
    made = of_transformers(data.tokenizer, data.roles)
    if data.template is not None or made.chat_template is None:
        made.chat_template = template(data).text
    if made.pad_token is None:
        made.pad_token = made.eos_token
    return made


def write_start(context: Context) -> None:
    """Write the initial model to ``start/`` in the run directory if the run names no weights; all ranks wait for it.

    TRL's trainers load their model, and for DPO and KTO the reference model, from a folder. The values are those from
    which every other engine of the launcher starts.
    """
    folder = context.directory / "start"
    if context.rank == 0 and context.spec.model.weights is None and not folder.is_dir():
        partial = folder.with_suffix(".partial")
        made = network(context.spec.model, torch.float32)
        made.to_empty(device="cpu")
        retie(made)
        initial.fill(made, context.spec.train.seed)
        made.config.architectures = [type(made).__name__]
        made.save_pretrained(partial)
        tokenizer(context).save_pretrained(partial)
        files.finish_directory(partial, folder)
    dist.barrier()


def _trainer(context: Context, own: samples.Samples, arguments: Sequence[str]) -> Any:
    trl: Any = importlib.import_module("trl")
    name = _NAMES[context.spec.task.name]
    if context.spec.zero.stage and not context.spec.parallel.shard:
        from launcher.worker.model.ulysses import connect  # Late, because other runs go without DeepSpeed.

        # Before ZeRO 3 shards weights as they are loaded: accelerate connects only for GPUs, and on CPUs DeepSpeed
        # would see a world of one rank (``PartialState``).
        connect(context.device)
        _decay_as_the_trainer()
    script, settings, model = _parsed(trl, name, arguments)
    if context.device.type == "cpu" and context.spec.parallel.shard:
        _shard_on_cpus()
    has_logits = name == "GRPO" or (name == "SFT" and settings.loss_type != "chunked_nll")
    if context.spec.parallel.shard and (settings.use_liger_kernel or not has_logits):
        _return_in_fp32()
    kind = getattr(trl, f"{name}Trainer")
    settings.model_init_kwargs = {
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(settings.model_init_kwargs or {}),
    }
    training, held_out = own.first
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # They concern settings that the launcher checked or chose.
        made = kind(
            model=model.model_name_or_path,
            args=settings,
            train_dataset=training,
            eval_dataset=held_out,
            processing_class=tokenizer(context),
            quantization_config=trl.get_quantization_config(model),
            peft_config=_adapter(context, trl.get_peft_config(model)),
            **({"reward_funcs": _rewards(script)} if name == "GRPO" else {}),
        )
        fake_quantise(made.model, context.spec)
    return made


def _adapter(context: Context, found: Any) -> Any:
    """The adapter's configuration: LoRA from TRL's own arguments, with PiSSA's initialization, or OFT.

    PiSSA draws the start of its iterations: the seed lets a resumed run compute the same base again.
    """
    spec = context.spec
    if spec.adapter.rotates:
        return adapters.settings(spec)
    if spec.adapter.pissa is not None:
        found.init_lora_weights = adapters.start(spec)
        torch.manual_seed(spec.train.seed)
    return found


def _parsed(trl: Any, name: str, arguments: Sequence[str]) -> tuple[Any, Any, Any]:
    script = importlib.import_module("trl.scripts.grpo").GRPOScriptArguments if name == "GRPO" else trl.ScriptArguments
    parser = trl.TrlParser((script, getattr(trl, f"{name}Config"), trl.ModelConfig))
    try:
        found: tuple[Any, Any, Any] = parser.parse_args_and_config(list(arguments))
    except (SystemExit, ValueError) as error:
        raise TrainingError(f"TRL cannot parse its configuration: {error}") from error
    return found


def _shard_on_cpus() -> None:
    """Make accelerate run FSDP2 on CPU ranks, for which it would silently use DDP.

    ``AcceleratorState`` reads ``ACCELERATE_USE_FSDP`` only for accelerators (``accelerate/state.py``, 1.15); its FSDP2
    itself works on any device.
    """
    from accelerate import DistributedType, PartialState

    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def _return_in_fp32() -> None:
    """Have accelerate's FSDP2 return losses and log-probabilities in fp32, as autocast does for its DDP.

    ``set_mixed_precision`` (``accelerate/utils/dataclasses.py``, 1.15) rounds them to the compute format, in which DPO
    and KTO would compare sums over a completion, and ranks without a chosen one exchange fp32 with those in bf16.
    """
    fsdp: Any = importlib.import_module("torch.distributed.fsdp")
    shard = fsdp.fully_shard

    def fully_shard(module: Any, *, mp_policy: Any, **options: Any) -> Any:
        if hasattr(module, "base_model"):  # The whole model, of transformers or peft.
            mp_policy = replace(mp_policy, output_dtype=torch.float32)
        return shard(module, mp_policy=mp_policy, **options)

    fsdp.fully_shard = fully_shard


def _decay_as_the_trainer() -> None:
    """Give DeepSpeed's optimizer the groups of the trainer's own; transformers gives it one, norms included."""
    from transformers.integrations import deepspeed

    made = deepspeed.deepspeed_optim_sched

    def in_groups(trainer: Any, *arguments: Any) -> Any:
        optimizer, schedule = made(trainer, *arguments)
        groups = trainer.create_optimizer().param_groups
        optimizer.params = [
            {key: group[key] for key in ("params", "weight_decay")} for group in groups if group["params"]
        ]
        return optimizer, schedule

    deepspeed.deepspeed_optim_sched = in_groups


def _rewards(script: Any) -> list[Callable[..., Any] | str]:
    known = importlib.import_module("trl.rewards")
    words = script.reward_funcs or ()
    return [word if "/" in word else getattr(known, word, None) or _function(word) for word in words]


def _function(word: str) -> Callable[..., Any]:
    module, _, name = word.rpartition(".")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise TrainingError(f"task.rewards={word}: {error}") from error
    finally:
        sys.path.pop(0)
    return found
