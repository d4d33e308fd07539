"""Rehearse one rank of Megatron-LM: its own ``pretrain``, loop and arguments, measured as in a run."""

import contextlib
import dataclasses
import os
from typing import Any

from launcher.backends.megatron.translate import environment, translate
from launcher.job.memory import Rehearsed
from launcher.spec import edit
from launcher.worker import TrainingError, data
from launcher.worker.data.corpus import Synthetic
from launcher.worker.engine import Context
from launcher.worker.megatron import pretraining
from launcher.worker.rehearse import Rehearsal, entered, measure

_NEED_PEERS = {
    "tp_comm_overlap": "Transformer Engine's user buffers map the memory of the other ranks",
    "nccl_ub": "buffers that are registered with NCCL need its communicators",
    "use_sharp": "SHARP is set up by NCCL's communicators",
}
"""Arguments, by name in Megatron's namespace, whose code reaches other ranks without torch's process groups."""


def rehearse(rehearsal: Rehearsal) -> Rehearsed:
    """Load and train the rank, with the weights that the run names; checkpoints are neither read nor written."""
    if rehearsal.spec.backend.path is not None:
        raise TrainingError(
            f"backend.path={rehearsal.spec.backend.path} trains with the checkout's own pretrain_gpt.py, which needs "
            "all ranks: rehearse the same run with launch's worker, backend.path=null"
        )
    last = min(rehearsal.steps, rehearsal.spec.steps)
    if rehearsal.spec.evaluates:
        rehearsal = dataclasses.replace(rehearsal, spec=edit.changed(rehearsal.spec, "train.eval_every", last))
    os.environ |= environment(rehearsal.spec)  # Megatron's validator checks it; CUDA reads it at start.
    backend = "gloo" if rehearsal.spec.hardware.device == "cpu" else "nccl"  # Megatron reads this name.
    with entered(rehearsal, backend) as context:
        return _trained(rehearsal, context, last)


def _trained(rehearsal: Rehearsal, context: Context, last: int) -> Rehearsed:
    pretraining.prepare(context)
    from launcher.worker.megatron.data import Provider
    from launcher.worker.rehearse import megatron_steps

    words = rehearsal.words or translate(context.spec, python="").at(str(context.directory)).worker_argv
    args = pretraining.parse([*words, *_late_arguments(context, last)])
    refuse(args)
    # Synthetic rows shaped like the run's own data, which may not be on this machine.
    made_up = Synthetic(context.spec.model.vocab_size, context.spec.sequence_length, context.spec.train.seed)
    batches = data.batches(context, [made_up])

    def train(seconds: list[float]) -> None:
        follower = megatron_steps.Steps(context, batches, last, seconds)
        with contextlib.suppress(megatron_steps.RehearsalDone), megatron_steps.tokens_exchanged():
            pretraining.pretrain(context, args, Provider(context, batches), follower)

    return measure(rehearsal, context, train)


def _late_arguments(context: Context, last: int) -> list[str]:
    words = ["--no-check-for-nan-in-loss-and-grad"]
    if context.spec.evaluates:
        words += ["--eval-interval", str(last), "--eval-iters", "1"]
    return words


def refuse(args: Any) -> None:
    """Raise TrainingError for arguments whose code would wait for the other ranks."""
    for name, reason in _NEED_PEERS.items():
        if getattr(args, name, False):
            argument = name.replace("_", "-")
            raise TrainingError(
                f"--{argument} cannot be rehearsed by one rank alone: {reason}; set +backend.extra.{argument}=null"
            )
    if getattr(args, "num_experts", None) and args.moe_token_dispatcher_type == "flex":
        raise TrainingError(
            "--moe-token-dispatcher-type=flex cannot be rehearsed by one rank alone: its kernels write to the memory "
            "of the other ranks; set +backend.extra.moe-token-dispatcher-type=alltoall"
        )
