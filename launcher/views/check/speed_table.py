"""``check --speed``: the parts of a step with their formulas, its traffic, and what the prediction rests on.

Parts are those of the slowest stage. What is exposed is not hidden by anything else, so that the exposed seconds of all
parts are the step. Formulas give the seconds before the measured constant, with which all of them are divided.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from launcher import backends
from launcher.base import formula
from launcher.base.units import gib, rounded
from launcher.estimate.speed.calibration import LEAST_ROWS
from launcher.estimate.speed.result import Constant, SpeedEstimate, StageTime
from launcher.estimate.speed.summary import name_of
from launcher.estimate.speed.symbols import SYMBOLS
from launcher.estimate.speed.terms import COMMUNICATION, SpeedTerm
from launcher.preflight.assess import Assessment
from launcher.preflight.measured.known import place
from launcher.spec import RunSpec
from launcher.views.check import speed_line


def as_text(assessment: Assessment, width: int = 80) -> str:
    """The table for a terminal of ``width`` columns, of a valid run."""
    speed = assessment.speed
    if speed is None:
        return "\n".join(_wrapped(f"speed unknown: {assessment.speed_unknown}", width))
    paragraphs = [
        [line for text in speed_line.sentences(assessment) for line in _wrapped(text, width)],
        [*_parts(speed), *_wrapped("exposed: hidden by nothing else, so that these add up to the step", width)],
        list(_traffic(speed)),
        list(_stages(speed.stages)),
        ["how each is computed:"],
        *(list(_formula(term, width)) for term in _terms(speed)),
        ["symbols:", *_symbols(speed, width)],
        [line for text in _utilisation(assessment.spec, speed) for line in _wrapped(text, width)],
        _wrapped(_constant(assessment.spec, speed), width),
    ]
    return "\n\n".join("\n".join(lines) for lines in paragraphs if lines)


def as_dict(speed: SpeedEstimate) -> dict[str, Any]:
    """What ``check --speed --json`` adds to the part ``speed`` of the document."""
    terms = [
        {
            "part": term.part,
            "what": term.what,
            "symbols": formula.printed(term.expression, str),
            "numbers": _numbers(term),
            "seconds": term.seconds,
            "exposed_seconds": term.exposed_seconds,
            "source": term.source,
        }
        for term in _terms(speed)
    ]
    names = ("stage", "forward_seconds", "backward_seconds", "send_seconds")
    stages = [{name: getattr(stage, name) for name in names} for stage in speed.stages]
    return {"terms": terms, "stages": stages, "symbols": legend(_terms(speed))}


def legend(terms: Iterable[SpeedTerm]) -> dict[str, str]:
    """The meaning of the names that terms use."""
    names = {name for term in terms for name in formula.names_in(term.expression)}
    return {name: SYMBOLS.get(name, "as its source says") for name in sorted(names, key=str.lower)}


def _terms(speed: SpeedEstimate) -> list[SpeedTerm]:
    return [term for _, terms in speed.parts() for term in terms]


def _parts(speed: SpeedEstimate) -> Iterator[str]:
    """A row a part: seconds, those that are exposed, and their share of the step."""
    form = "  {:<22}{:>10}{:>10}{:>8}"
    where = f" of stage {_slowest(speed.stages)}, the slowest" if len(speed.stages) > 1 else ""
    yield f"the parts of a step{where}:"
    yield form.format("", "seconds", "exposed", "share")
    for part, terms in speed.parts():
        seconds = sum(term.seconds for term in terms)
        exposed = speed.exposed(part)
        share = f"{exposed / speed.step_seconds:.1%}"
        yield form.format(name_of(part), rounded(seconds), rounded(exposed), share)
    yield form.format("step", "", rounded(speed.step_seconds), "100.0%")


def _slowest(stages: Sequence[StageTime]) -> int:
    return max(stages, key=lambda stage: stage.seconds).stage


def _traffic(speed: SpeedEstimate) -> Iterator[str]:
    """A row a collective: the bytes that a rank moves in a step, seconds, and those that nothing hides."""
    terms = [term for term in _terms(speed) if term.part in COMMUNICATION]
    if not terms:
        return
    form = "  {:<22}{:>14}{:>10}{:>10}"
    yield "communication of a rank in a step:"
    yield form.format("", "bytes", "seconds", "exposed")
    for term in terms:
        name = term.group or name_of(term.part)
        size = gib(round(term.bytes)) if term.bytes else ""
        yield form.format(name, size, rounded(term.seconds), rounded(term.exposed_seconds))


def _stages(stages: Sequence[StageTime]) -> Iterator[str]:
    """A row a stage of a pipeline."""
    if len(stages) < 2:
        return
    form = "  {:<22}{:>10}{:>10}{:>10}"
    yield "stages, seconds of one micro-batch:"
    yield form.format("", "forward", "backward", "send")
    for stage in stages:
        times = (stage.forward_seconds, stage.backward_seconds, stage.send_seconds)
        yield form.format(f"stage {stage.stage}", *map(rounded, times))


def _formula(term: SpeedTerm, width: int) -> Iterator[str]:
    yield from textwrap.wrap(f"{name_of(term.part)}: {term.what}", width, initial_indent="  ", subsequent_indent="  ")
    value = formula.evaluated(term.expression, term.values)
    rows = (f"= {formula.printed(term.expression, str)}", f"= {_numbers(term)}", f"= {rounded(value)} s")
    for row in (*rows, f"source: {term.source}"):
        yield from textwrap.wrap(row, width, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False)


def _numbers(term: SpeedTerm) -> str:
    return formula.printed(term.expression, lambda name: formula.said(term.values[name]))


def _symbols(speed: SpeedEstimate, width: int) -> Iterator[str]:
    for symbol, meaning in legend(_terms(speed)).items():
        yield from textwrap.wrap(f"{symbol}: {meaning}", width, initial_indent="  ", subsequent_indent="    ")


def _utilisation(spec: RunSpec, speed: SpeedEstimate) -> Iterator[str]:
    """MFU and HFU, each with what it counts."""
    peak, form = f"{speed.peak_flops / 1e12:,.0f} TFLOP/s", backends.of(spec).dtypes(spec).compute
    counted = "FLOPs that the model itself needs, causal attention halved and recomputation left out"
    yield (
        f"MFU {speed.mfu:.1%}: {counted}, {rounded(speed.model_flops / 1e12)} TFLOP a step, over what"
        f" {spec.gpus} x {peak}, the card's dense {form} peak, could do in {rounded(speed.step_seconds)} s"
        " (arXiv:2204.02311, appendix B)"
    )
    yield f"HFU {speed.hfu:.1%}: the same with what is computed again (arXiv:2205.05198, section 5)"


def _constant(spec: RunSpec, speed: SpeedEstimate) -> str:
    """The measured factor in all numbers and the band around them, whose runs both are of, and why those."""
    constant = speed.constant
    if not constant.rows:
        return "no measured run corrects this prediction, and its error band is not known"
    crowded = "; its lower end is that of runs on cards that were nearly full" if speed.crowded else ""
    if constant.here:
        return _own(spec, constant) + crowded
    others = constant.whose.endswith("models without experts")
    band = "from runs of models with experts" if others else "from the same runs"
    return (
        f"constant {constant.value:.3f}, with which the seconds of all formulas are divided: the median of"
        f" {runs_of(spec, constant)}; error band {constant.low:.2f} to {constant.high:.2f} times the prediction, {band}"
        f" (launcher/estimate/speed/calibration.json){crowded}"
    )


def _own(spec: RunSpec, constant: Constant) -> str:
    """The same of a constant of the user's own runs."""
    return (
        f"constant {constant.value:.3f}, with which the seconds of all formulas are divided: the median of measured /"
        f" predicted speed in {constant.rows} runs of {constant.whose}, one of each layout; error band"
        f" {constant.low:.2f} to {constant.high:.2f} times the prediction, from the same runs and, as {LEAST_ROWS} of"
        f" them, those that are shipped ({place(spec.cluster)}; --no-measurements leaves them out)"
    )


def runs_of(spec: RunSpec, constant: Constant) -> str:
    """The measured runs of a constant, and why those where they are of other frameworks."""
    runs = f"measured / predicted speed in {constant.rows} runs of {constant.whose}"
    if " pairs of " in constant.whose:
        runs = f"the constants of {constant.whose}, {constant.rows} runs, each pair with one vote"
    execution = backends.of(spec).execution(spec)
    if execution is None or execution.framework in constant.whose:
        return runs
    related, name = any(one in constant.whose for one in execution.related), execution.framework
    return f"{runs} ({f'the nearest to {name} of those measured' if related else f'of {name} too few were measured'})"


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)
