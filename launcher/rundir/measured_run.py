"""Adds a finished run to the file of measured runs, on its first node when the run ends.

The predictions come from its plan, the measurements from its metrics and the peaks in ``memory.json``.
"""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher import backends
from launcher.base import machine, typed
from launcher.base.errors import ConfigError, ConfigErrors, unreadable
from launcher.base.files import JsonObject
from launcher.config.open_values import option_of
from launcher.estimate.speed.calibration import UNCALIBRATED
from launcher.estimate.speed.estimate import estimate
from launcher.job import events
from launcher.job.versions import every
from launcher.preflight.assess import parts
from launcher.preflight.measured import constants, file
from launcher.preflight.measured.constants import Anchor
from launcher.preflight.measured.file import Content, MeasuredRun, PredictedRun, Row
from launcher.preflight.measured.known import Anchored, place
from launcher.rundir import contents, results, run_names
from launcher.spec import ClusterSpec, RunSpec

_FEWEST_STEPS = 10
"""Fewest steps for a measured speed: the first steps of a run are slower, and single steps may stall."""

_PACKAGES = ("llm-launch", "torch", "deepspeed", "megatron-core", "transformers")


def enter(run: Path, *, finished: bool = True) -> None:
    """Add a run that has ended to the measured runs; an unfinished one once, and only for its checkpoints."""
    try:
        spec = contents.spec_of(run)
        if spec.script is not None:
            return
        path, row = place(spec.cluster), row_of(run, spec)
        if finished:
            file.add(path, row)
        elif row.measured.save_seconds is not None and all(
            (row.id, row.directory) != (known.id, known.directory) for known in file.load(path).rows
        ):
            file.add(path, replace(row, left_out="it did not finish"))
    except Exception as error:
        sys.stderr.write(f"launch: this run was not added to the measured runs: {error}\n")


def read(cluster: ClusterSpec) -> Content:
    """The content of the file of measured runs. Raises ConfigErrors if it cannot be read."""
    path = place(cluster)
    try:
        return file.load(path)
    except OSError as error:
        rule = f"the measured runs cannot be read: {unreadable(error)}"
        own = cluster.measurements is None
        where, way_out = ("--measurements", "FILE.jsonl") if own else ("cluster.measurements", "null")
        raise ConfigErrors([ConfigError(where, str(path), rule, [f"cluster.measurements={way_out}"])]) from None


def anchored(run: Path, word: str, *, others: bool) -> Anchored:
    """The constant of the measured run that ``--anchor`` names, computed with the present speed model.

    ``others`` predicts runs unlike it from the user's other measured runs. Raises ConfigErrors if too little was
    measured.
    """
    spec = contents.spec_of(run)
    row = next((row for row in read(spec.cluster).rows if row.directory == str(run.absolute())), None)
    row = row or row_of(run, spec)
    raw, speed = estimate(spec, **parts(spec), measured=UNCALIBRATED), row.measured.tokens_per_second_per_gpu
    if raw is None or speed is None or row.left_out is not None:
        rule = f"its speed cannot be an anchor: {row.left_out or 'it was not measured, or not predicted'}"
        raise ConfigErrors([ConfigError("--anchor", word, rule, ["launch plan --measurements"])])
    return Anchored(Anchor(row.id, spec, speed / raw.tokens_per_second_per_gpu), others=others)


def row_of(run: Path, spec: RunSpec) -> Row:
    """A finished run as a row of the file of measured runs."""
    execution = backends.of(spec).execution(spec)
    card = spec.hardware.card or spec.hardware.name
    framework = spec.backend.name if execution is None else execution.framework
    seen = sorted({gpu.name for gpu in machine.facts().gpus}) if spec.hardware.device == "cuda" else []
    predicted, measured = _predicted(run), _measured(run, spec)
    calibrated = _constant(run).get("calibration")
    return Row(
        id=run_names.id_of(run),
        directory=str(run.absolute()),
        date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **constants.key_of(spec, card, framework)._asdict(),
        title=" and ".join(seen) or spec.hardware.title,
        device=spec.hardware.device,
        nodes=spec.cluster.nodes,
        gpus=spec.gpus,
        versions={name: version for name, version in every().items() if name in _PACKAGES},
        calibration=calibrated if isinstance(calibrated, str) else None,
        spec_hash=spec.hash,
        model=spec.model.name,
        layout=layout_of(spec),
        predicted=predicted,
        measured=measured,
        left_out=_left_out(run, card, seen, measured),
    )


def layout_of(spec: RunSpec) -> str:
    """The layout of a run in words, with everything that affects its speed."""
    parallel, zero, train = spec.parallel, spec.zero, spec.train
    chosen = {
        "sharded": parallel.shard,
        f"{parallel.replicate} replicas": parallel.replicate > 1,
        f"zero {zero.stage}": zero.stage > 0,
        "sequence parallel": parallel.sequence,
        f"{parallel.virtual_pipeline} chunks": parallel.virtual_pipeline > 1,
        parallel.schedule: parallel.pipeline > 1,
        f"optimizer on {zero.offload_optimizer}": zero.offload_optimizer != "none",
        f"parameters on {zero.offload_parameters}": zero.offload_parameters != "none",
        f"checkpointing {spec.checkpointing.mode}": spec.checkpointing.mode != "none",
        f"loss {train.loss}": train.loss != "full",
        "compiled": train.compile,
        f"adapter {spec.adapter.name}": spec.adapter.name != "none",
    }
    words = [
        f"{spec.model.name} {spec.backend.name} {spec.precision.name}",
        *spec.named_degrees,
        *(word for word, said in chosen.items() if said),
        f"micro-batch {spec.micro_batch_size} x {spec.gradient_accumulation} of {spec.sequence_length}",
    ]
    return ", ".join(words)


def _constant(run: Path) -> JsonObject:
    found = (contents.known(run, contents.PLAN).get("speed") or {}).get("constant")
    return found if isinstance(found, dict) else {}


def _predicted(run: Path) -> PredictedRun:
    peak = contents.known(run, contents.PLAN).get("peak") or {}
    sizes = {
        name: size
        for name in ("allocated_bytes", "needed_bytes", "reserved_bytes")
        if typed.is_whole(size := peak.get(name)) and size > 0
    }
    speed, constant = results.predicted_speed(run), _constant(run).get("value")
    if speed is None:
        return PredictedRun(**sizes)
    raw = speed.per_gpu / constant if typed.is_number(constant) and constant > 0 else None
    return PredictedRun(tokens_per_second_per_gpu=speed.per_gpu, uncorrected=raw, **sizes)


def _measured(run: Path, spec: RunSpec) -> MeasuredRun:
    lines, predicted = results.steps(run), results.predicted_speed(run)
    speed = results.speed(lines, predicted)
    ranks = contents.known(run, contents.MEMORY).get("ranks", ())
    sizes: dict[str, Any] = {}
    for name in ("allocated_bytes", "reserved_bytes"):
        peaks = [size for rank in ranks if typed.is_whole(size := rank.get(f"peak_{name}")) and size > 0]
        sizes[name] = max(peaks, default=None)
    sizes |= _saved(run)
    if speed is None or speed <= 0:
        return MeasuredRun(**sizes)
    steps = len(results.second_half(lines, predicted)) * spec.train.log_every
    return MeasuredRun(tokens_per_second_per_gpu=speed / spec.gpus, steps=steps, **sizes)


def _saved(run: Path) -> dict[str, Any]:
    from statistics import median

    told = [line for line in events.read(run) if line["kind"] == "save" and all(map(_is_positive, _amounts(line)))]
    if not told:
        return {}
    size, seconds = (median(values) for values in zip(*map(_amounts, told), strict=True))
    blocking = [line["blocking_seconds"] for line in told if _is_positive(line.get("blocking_seconds"))]
    found = {"checkpoint_bytes": int(size), "save_seconds": seconds}
    return found | ({"blocking_seconds": median(blocking)} if blocking else {})


def _amounts(line: JsonObject) -> tuple[Any, Any]:
    return line.get("bytes"), line.get("seconds")


def _is_positive(value: object) -> bool:
    return typed.is_number(value) and value > 0


def _left_out(run: Path, card: str, seen: list[str], measured: MeasuredRun) -> str | None:
    if measured.steps < _FEWEST_STEPS:
        return f"{measured.steps} steps were measured, and at least {_FEWEST_STEPS} are needed"
    others = [name for name in seen if option_of(name) not in (None, card)]
    if others:
        return f"it was predicted for {card} and ran on {others[0]}"
    if (contents.known(run, contents.PLAN).get("speed") or {}).get("crowded"):
        return "its card was nearly full, so the allocator may have slowed the run"
    return None
