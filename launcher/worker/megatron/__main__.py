"""``python -m launcher.worker.megatron --run DIR ARGUMENTS``: one rank of Megatron-LM, started by torchrun.

Megatron's own ``pretrain`` trains, with the launcher's samples, initial values and hooks. The model is ``GPTModel``:
megatron-core 0.19 deprecates it in favour of ``HybridModel``, but ``pretrain_gpt.py`` of a checkout builds it, so
checkpoints are interchangeable.
"""

import functools
from collections.abc import Sequence
from pathlib import Path

from launcher.spec import RunSpec
from launcher.worker import TrainingError, data, loop
from launcher.worker.engine import Context
from launcher.worker.megatron import pretraining
from launcher.worker.process import main


def run(spec: RunSpec, directory: Path, arguments: Sequence[str]) -> None:
    """Train one run from its newest checkpoint, or from the start, to its last step, with Megatron-LM's arguments."""
    with loop.entered(spec, directory, backend="gloo" if spec.hardware.device == "cpu" else "nccl") as context:
        _train(context, arguments)


def _train(context: Context, arguments: Sequence[str]) -> None:
    pretraining.prepare(context)
    from launcher.worker.megatron import layout
    from launcher.worker.megatron.data import Provider
    from launcher.worker.megatron.follow import MegatronHooks

    args = pretraining.parse([*arguments, *_late_arguments(context)])
    now, whole = data.counted(context)
    if now.spec.steps != context.spec.steps:
        raise TrainingError(
            f"the data's {now.spec.data.samples:,} samples make {now.spec.steps:,} steps, but Megatron-LM was started "
            f"with {context.spec.steps:,}: launch the run again"
        )
    batches = data.batches(context, whole)
    follower = MegatronHooks(context, batches)
    chunks, interrupted = pretraining.pretrain(context, args, Provider(context, batches), follower)
    context.beat.begin("end")
    export = None if interrupted else functools.partial(layout.write, chunks, context)
    follower.recorded.end(follower.step, export)


def _late_arguments(context: Context) -> list[str]:
    from launcher.worker.megatron import checkpoints

    words, found = ["--no-check-for-nan-in-loss-and-grad"], checkpoints.source(context)
    if found is not None:
        words += ["--load", str(found[0]), "--ckpt-step", str(found[1]), "--override-opt-param-scheduler"]
    return words


if __name__ == "__main__":
    main(run, arguments=True)
