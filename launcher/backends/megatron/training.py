"""Batches, optimizer, data, checkpoints and logs as Megatron-LM arguments.

Two programs read the list: the launcher's worker, which follows Megatron's loop and brings data, trackers and the
choice of checkpoint itself, and ``pretrain_gpt.py`` of a checkout (``backend.path``), which has only these arguments:
for it the list names its own data set and tracker. ``{run}`` stands for the run directory until that is known.
"""

from launcher.backends.megatron.implementation import fsdp
from launcher.backends.megatron.network import Arguments
from launcher.backends.megatron.traits import reshardable
from launcher.job import RUN
from launcher.spec import RunSpec

_OPTIMIZERS = {"adamw": "adam"}
SCHEDULES = {"wsd": "WSD", "inverse_sqrt": "inverse-square-root"}  # Schedules under other names than ours.
_MINUTE = 60
CORPUS = f"{RUN}/data/corpus"
"""The indexed data set, ``.bin`` and ``.idx``, that the worker writes of ``data.source`` before it trains."""


def arguments(spec: RunSpec) -> Arguments:
    """Arguments of batches, optimizer, data, checkpoints, process and logs."""
    return {**_steps(spec), **_optimizer(spec), **_data(spec), **_checkpoints(spec), **_process(spec), **_logs(spec)}


def _steps(spec: RunSpec) -> Arguments:
    """``--eval-interval`` has no default of use: ``pretrain`` divides by it also where nothing is evaluated."""
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
    """Token ids: whatever makes them of text runs before Megatron-LM reads them, so its tokenizer has no words.

    An indexed data set has no marks of what is trained: conversations reach Megatron-LM from the worker alone.
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
    """The indexed data sets, with their weights; a mix, and a set of its own for evaluations, the worker brings."""
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

    The worker also saves when it is asked to stop, and leaves out the last step's where ``save.last`` is false. An
    asynchronous writer that persists is a new Python process, for a GPU's context does not survive a fork; without a
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
    """Slurm's warning is SIGUSR2, which torchrun ignores and its ranks take; a local job is ended by SIGTERM."""
    return {
        "distributed-backend": "gloo" if spec.hardware.device == "cpu" else "nccl",
        "distributed-timeout-minutes": spec.train.timeout_s // _MINUTE,
        "exit-signal-handler": True,
        "exit-signal": "SIGUSR2" if spec.cluster.kind == "slurm" else "SIGTERM",
    }


def _logs(spec: RunSpec) -> Arguments:
    """A checkout's program tracks by itself; the worker does it as for every engine (``launcher.worker.metrics``)."""
    tracking, alone = spec.tracking, spec.backend.path is not None
    return {
        "log-interval": spec.train.log_every,
        "log-throughput": spec.hardware.device == "cuda",
        "tensorboard-dir": f"{RUN}/tensorboard" if alone and tracking.kind == "tensorboard" else None,
        "wandb-project": (tracking.project or "launch") if alone and tracking.kind == "wandb" else None,
        "wandb-exp-name": RUN if alone and tracking.kind == "wandb" else None,
        "wandb-save-dir": RUN if alone and tracking.kind == "wandb" else None,
    }
