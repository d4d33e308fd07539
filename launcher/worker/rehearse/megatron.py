"""A rank of Megatron-LM, alone: its own ``pretrain``, its own loop, its own arguments, followed as in a run."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from launcher.backends.megatron.translate import environment, translate
from launcher.job.memory import Rehearsed
from launcher.spec import edit
from launcher.worker import TrainingError
from launcher.worker.data import Batches
from launcher.worker.data.corpus import Corpus, Synthetic, split
from launcher.worker.engine import Context
from launcher.worker.megatron import pretraining
from launcher.worker.rehearse import Rehearsal, document, entered, ran_out

_NEED_PEERS = {
    "tp_comm_overlap": "Transformer Engine's user buffers map the memory of the other ranks",
    "nccl_ub": "buffers that are registered with NCCL need its communicators",
    "use_sharp": "SHARP is set up by NCCL's communicators",
}
"""Arguments, by their names in Megatron's namespace, whose code talks to other ranks past torch's process groups."""


def rehearse(rehearsal: Rehearsal) -> Rehearsed:
    """Load and train the rank. Weights are loaded where the run names some; a checkpoint is neither read nor written.

    Raises:
        TrainingError: The run cannot be rehearsed.
    """
    if rehearsal.spec.backend.path is not None:
        raise TrainingError(
            f"backend.path={rehearsal.spec.backend.path} trains by the checkout's own pretrain_gpt.py, which no rank "
            "runs without the others: rehearse the same run by the launcher's worker, backend.path=null"
        )
    last = min(rehearsal.steps, rehearsal.spec.steps)
    if rehearsal.spec.train.eval_every is not None:
        rehearsal = dataclasses.replace(rehearsal, spec=edit.changed(rehearsal.spec, "train.eval_every", last))
    os.environ |= environment(rehearsal.spec)  # Megatron's validator asks for it; CUDA reads it as it starts.
    backend = "gloo" if rehearsal.spec.hardware.device == "cpu" else "nccl"  # Megatron asks for its name.
    with entered(rehearsal, backend) as context:
        return _trained(rehearsal, context, last)


def _trained(rehearsal: Rehearsal, context: Context, last: int) -> Rehearsed:
    """All steps, then one batch of the evaluation where the run evaluates."""
    pretraining.prepare(context)
    from launcher.worker.megatron.data import Provider
    from launcher.worker.rehearse import megatron_steps

    words = rehearsal.words or translate(context.spec, python="").at(str(context.directory)).worker_argv
    args = pretraining.parsed([*words, *_known_here(context, last)])
    refuse(args)
    batches = _batches(context)
    follower = megatron_steps.Steps(context, batches, last)
    try:
        with megatron_steps.tokens_exchanged():
            pretraining.pretrain(context, args, Provider(context, batches), follower)
    except megatron_steps.Done:
        pass
    except Exception as error:
        if not ran_out(rehearsal, error):
            raise
        return document(rehearsal, context, follower.seconds, ran_out=True)
    return document(rehearsal, context, follower.seconds)


def _known_here(context: Context, last: int) -> list[str]:
    """Arguments of a rehearsal, of which Megatron's parser takes the last: values are made up, nothing is saved."""
    words = ["--no-check-for-nan-in-loss-and-grad"]
    if context.spec.train.eval_every is not None:
        words += ["--eval-interval", str(last), "--eval-iters", "1"]
    return words


def refuse(args: Any) -> None:
    """Refuse arguments whose code would wait for the other ranks.

    Raises:
        TrainingError: One was given.
    """
    for name, reason in _NEED_PEERS.items():
        if getattr(args, name, False):
            argument = name.replace("_", "-")
            raise TrainingError(
                f"--{argument} cannot be rehearsed by one rank alone: {reason}; +backend.extra.{argument}=null"
            )
    if getattr(args, "num_experts", None) and args.moe_token_dispatcher_type == "flex":
        raise TrainingError(
            "--moe-token-dispatcher-type=flex cannot be rehearsed by one rank alone: its kernels write into the memory "
            "of the other ranks; +backend.extra.moe-token-dispatcher-type=alltoall"
        )


def _batches(context: Context) -> Batches:
    """Made-up rows in the shapes of the run's own data, which need not be on this machine."""
    spec = context.spec
    whole: Corpus = Synthetic(spec.model.vocab_size, spec.sequence_length, spec.train.seed)
    if spec.train.eval_every is None:
        return Batches(context, whole, whole, None)
    return Batches(context, whole, *split(whole, spec.data.eval_fraction))
