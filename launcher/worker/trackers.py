"""Experiment trackers beside ``metrics.jsonl``; their packages are imported only when one is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from launcher.base import package
from launcher.worker.engine import Context
from launcher.worker.errors import TrainingError


class Tracker:
    """No tracker; those below override both methods."""

    def log(self, line: Mapping[str, float | int | None]) -> None:
        """Take one line of ``metrics.jsonl``."""

    def close(self) -> None:
        """End the tracker's run."""


def start(context: Context) -> Tracker:
    """The tracker that the run names; called on rank 0 alone.

    Raises:
        TrainingError: Its package is not installed.
    """
    kind = context.spec.tracking.kind
    if kind == "none":
        return Tracker()
    return {"tensorboard": _TensorBoard, "wandb": _Wandb, "mlflow": _Mlflow}[kind](context)


def _package(name: str, kind: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        way_out = f"{package.install('tracking')}, or tracking=none"
        raise TrainingError(f"tracking={kind} needs a package that is not installed: {way_out}") from None


def _numbers(line: Mapping[str, float | int | None]) -> dict[str, float]:
    return {key: value for key, value in line.items() if key not in ("step", "time") and value is not None}


class _TensorBoard(Tracker):
    def __init__(self, context: Context) -> None:
        _package("tensorboard", "tensorboard")
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self._writer = writer(log_dir=str(context.directory / "tensorboard"))

    def log(self, line: Mapping[str, float | int | None]) -> None:
        for key, value in _numbers(line).items():
            self._writer.add_scalar(key, value, line["step"])

    def close(self) -> None:
        self._writer.close()


class _Wandb(Tracker):
    def __init__(self, context: Context) -> None:
        wandb = _package("wandb", "wandb")
        tracking, name = context.spec.tracking, context.directory.name
        settings = wandb.Settings(base_url=tracking.uri) if tracking.uri else None
        # The directory's name as id: a resumed run goes on in the same run of Weights & Biases.
        self._run = wandb.init(
            project=tracking.project, name=name, id=name, resume="allow", dir=str(context.directory), settings=settings
        )

    def log(self, line: Mapping[str, float | int | None]) -> None:
        self._run.log(_numbers(line), step=line["step"])

    def close(self) -> None:
        self._run.finish()


class _Mlflow(Tracker):
    def __init__(self, context: Context) -> None:
        self._mlflow = _package("mlflow", "mlflow")
        tracking = context.spec.tracking
        if tracking.uri is not None:
            self._mlflow.set_tracking_uri(tracking.uri)
        if tracking.project is not None:
            self._mlflow.set_experiment(tracking.project)
        self._mlflow.start_run(run_name=context.directory.name)

    def log(self, line: Mapping[str, float | int | None]) -> None:
        self._mlflow.log_metrics(_numbers(line), step=line["step"])

    def close(self) -> None:
        self._mlflow.end_run()
