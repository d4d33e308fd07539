"""The speed part of a run's page: tokens/s and step time, predicted and measured, and the predicted parts of a step."""

import statistics
from collections.abc import Iterator

from launcher.base.units import Pair, rounded
from launcher.charts.html import Cell, Html, table, tag
from launcher.charts.page import Chart, Section
from launcher.estimate.speed.result import name_of
from launcher.rundir import results
from launcher.views.check import time as plot_time
from launcher.views.check.time import seconds_text
from launcher.views.page.source import Source
from launcher.views.pairs import error_text


def section(source: Source) -> Section:
    """Tokens and seconds, and the parts of a step."""
    return Section(identity="speed", title="Speed", parts=[*_compared(source), *_parts(source)])


def _compared(source: Source) -> Iterator[Html | str]:
    predicted = results.predicted_speed(source.folder)
    tokens = results.speed(source.rows, predicted)
    later = results.second_half(source.rows, predicted)
    seconds = [value for row in later if (value := results.number(row, "step_seconds"))]
    gpus = max(1, source.job.get("nodes", 1) * source.job.get("gpus_per_node", 1))
    step = statistics.median(seconds) if seconds else None
    if predicted is None and tokens is None:
        yield tag("p", "No speed was predicted or measured yet.", class_="missing")
        return
    pairs = {
        "tokens/s a GPU": Pair(predicted and predicted.per_gpu, None if tokens is None else tokens / gpus),
        "tokens/s of all ranks": Pair(predicted and predicted.tokens_per_second, tokens),
        "seconds of a step": Pair(predicted and predicted.step_seconds, step),
    }
    lines = ([name, *pair.texts(lambda value: rounded(value, 4)), error_text(pair)] for name, pair in pairs.items())
    yield table(["", "predicted", "measured", "prediction off by"], lines)
    if predicted is None:
        yield "No speed was predicted: it is unknown on CPUs and for devices or engines without constants."
    else:
        band = f"{rounded(predicted.low)} to {rounded(predicted.high)}"
        yield f"The prediction's band is {band} tokens/s a GPU; measured is the median of the second half of the steps."


def _parts(source: Source) -> Iterator[Chart]:
    parts = list(plot_time.recorded_parts(source.plan))
    whole = sum(part.exposed for part in parts)
    if not whole:
        return
    of, unit = plot_time.unit(whole)
    told = [(name_of(part.name), seconds_text(part.exposed), part) for part in parts]
    rows = ((name, took, Cell(part.formula, wide=True), Cell(part.source, wide=True)) for name, took, part in told)
    yield Chart(
        title="A step as it was predicted, part by part",
        spec=plot_time.chart(parts, whole, of, f"time of a step, {unit}"),
        said=f"A step takes {seconds_text(whole)}: " + ", ".join(f"{name} {took}" for name, took, _ in told),
        numbers=table(["part", "waited for", "formula", "source"], rows),
    )
