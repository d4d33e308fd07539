"""Batches, optimizer, data, checkpoints and logs as Megatron-LM arguments.

Two programs read the list: the launcher's worker, which runs Megatron's loop and provides data, trackers and the
choice of checkpoint itself, and ``pretrain_gpt.py`` of a checkout (``backend.path``), which has only these arguments:
for it the list also gives data set and tracker. ``{run}`` stands for the run directory until that is known.
"""

from launcher.backends.megatron.implementation import fsdp
from launcher.backends.megatron.network import Arguments
from launcher.backends.megatron.traits import reshardable
from launcher.job import RUN
from launcher.spec import RunSpec

_OPTIMIZERS = {"adamw": "adam"}
SCHEDULES = {"wsd": "WSD", "inverse_sqrt": "inverse-square-root"}  # Schedules with names that differ from ours.
_MINUTE = 60
CORPUS = f"{RUN}/data/corpus"
"""The indexed data set, ``.bin`` and ``.idx``, that the worker writes from ``data.source`` before it trains."""


def arguments(spec: RunSpec) -> Arguments:
    """Arguments for batches, optimizer, data, checkpoints, process and logs."""
    return {**_steps(spec), **_optimizer(spec), **_data(spec), **_checkpoints(spec), **_process(spec), **_logs(spec)}


def _steps(spec: RunSpec) -> Arguments:
    """Arguments for steps and batches; ``pretrain`` divides by ``--eval-interval`` even if nothing is evaluated."""
    train = spec.train
    return {
        "micro-batch-size": spec.micro_batch_size,
        "global-batch-size": spec.global_batch_size,
        "train-iters": spec.steps,
        "eval-interval": spec.eval_every or spec.steps,
        "eval-iters": train.eval_steps if spec.evaluates else 0,
        "seed": train.seed,
        "cross-entropy-loss-fusion": train.loss == "fused",
        "cross-entropy-fusion-impl": "native" if train.loss == "fused" else None,
        "calculate-per-token-loss": spec.data.marked,
    }


def _optimizer(spec: RunSpec) -> Arguments:
    optimizer = spec.optimizer
    wsd = optimizer.schedule == "wsd"
    return {
        "optimizer": _OPTIMIZERS.get(optimizer.name, optimizer.name),
        **_momentum(spec),
        "lr": optimizer.lr,
        "min-lr": optimizer.min_lr,
        "lr-decay-style": SCHEDULES.get(optimizer.schedule, optimizer.schedule),
        "lr-decay-iters": optimizer.schedule_steps(spec.steps),
        "lr-wsd-decay-iters": optimizer.wsd_steps(spec.steps) if wsd else None,
        "lr-wsd-decay-style": optimizer.wsd_decay if wsd else None,
        "lr-warmup-iters": spec.warmup_steps,
        "lr-warmup-init": optimizer.warmup_lr or None,
        "weight-decay": optimizer.weight_decay,
        "clip-grad": optimizer.clip,
    }


def _momentum(spec: RunSpec) -> Arguments:
    optimizer = spec.optimizer
    if optimizer.name == "sgd":
        return {"sgd-momentum": optimizer.beta1}
    adam: Arguments = {"adam-beta1": optimizer.beta1, "adam-beta2": optimizer.beta2, "adam-eps": optimizer.epsilon}
    return {"muon-momentum": optimizer.beta1, **adam} if optimizer.name == "muon" else adam


def _data(spec: RunSpec) -> Arguments:
    """Arguments for data: text is tokenized before Megatron-LM reads it, so its tokenizer is the null one.

    An indexed data set cannot mark which tokens are trained, so only the worker passes conversations to Megatron-LM.
    """
    data = spec.data
    held_out = 100 * data.eval_fraction if spec.evaluates else 0.0
    synthetic = data.source == "synthetic"
    return {
        "mock-data": synthetic,
        **({} if synthetic or data.marked else _files(spec)),
        "split": None if data.evaluated and spec.backend.path else f"{100 - held_out:g},{held_out:g},0",
        "data-cache-path": f"{RUN}/data/cache",
        "tokenizer-type": "NullTokenizer",
        "num-workers": data.workers,
        "no-create-attention-mask-in-dataloader": spec.hardware.device == "cuda",
    }


def _files(spec: RunSpec) -> Arguments:
    """The indexed data sets with their weights; the worker itself provides a mix and a separate evaluation set."""
    data = spec.data
    if spec.backend.path is None:
        return {} if len(data.sets) > 1 else {"data-path": CORPUS}
    parts = zip(data.weights or (0.0,) * len(data.trained), data.trained, strict=True)
    paths = tuple(word for weight, part in parts for word in (f"{weight:g}" if weight else "", part.path or "") if word)
    if not data.evaluated:
        return {"data-path": paths if len(paths) > 1 else paths[0]}
    return {"train-data-path": paths, "valid-data-path": data.evaluated[""].path}


def _checkpoints(spec: RunSpec) -> Arguments:
    """A run starts from its own newest checkpoint; the worker looks there before it takes ``save.load``.

    The worker also saves when it is asked to stop, and skips the last step's checkpoint if ``save.last`` is false. A
    persistent asynchronous writer is a new Python process, because a GPU's context does not survive a fork; without a
    GPU it fails (``torch.cuda.device_count`` is 0 there), and a fork of the rank writes.
    """
    save = spec.save
    saves = spec.saves or spec.backend.path is None
    return {
        "save": f"{RUN}/checkpoints" if saves else None,
        "save-interval": (spec.save_every or spec.steps) if saves else None,
        "load": save.load or f"{RUN}/checkpoints",
        "exit-on-missing-checkpoint": save.load is not None,
        "ckpt-format": "fsdp_dtensor" if fsdp(spec) else "torch_dist",
        "dist-ckpt-optim-fully-reshardable": reshardable(spec),
        "async-save": save.asynchronous,
        "async-strategy": "mcore" if save.asynchronous else None,
        "use-persistent-ckpt-worker": save.asynchronous and spec.hardware.device == "cuda",
    }


def _process(spec: RunSpec) -> Arguments:
    """Arguments for the process: Slurm warns with SIGUSR2, which only the ranks handle; a local job gets SIGTERM."""
    return {
        "distributed-backend": "gloo" if spec.hardware.device == "cpu" else "nccl",
        "distributed-timeout-minutes": spec.train.timeout_s // _MINUTE,
        "exit-signal-handler": True,
        "exit-signal": "SIGUSR2" if spec.cluster.kind == "slurm" else "SIGTERM",
    }


def _logs(spec: RunSpec) -> Arguments:
    """Arguments for logs: a checkout's program tracks itself; the worker uses ``launcher.worker.metrics``."""
    tracking, alone = spec.tracking, spec.backend.path is not None
    return {
        "log-interval": spec.train.log_every,
        "log-throughput": spec.hardware.device == "cuda",
        "tensorboard-dir": f"{RUN}/tensorboard" if alone and tracking.kind == "tensorboard" else None,
        "wandb-project": (tracking.project or "launch") if alone and tracking.kind == "wandb" else None,
        "wandb-exp-name": RUN if alone and tracking.kind == "wandb" else None,
        "wandb-save-dir": RUN if alone and tracking.kind == "wandb" else None,
    }
