"""``launch check --explain PILE`` and ``--speed``: the terms of a pile and the parts of a step, each with its formula.

The parts are those of the slowest stage. Exposed time overlaps with nothing else, so the exposed seconds of all parts
add up to the step. Formulas give seconds before the division by the measured constant.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from launcher import backends
from launcher.base import formula
from launcher.base.files import JsonObject
from launcher.base.terminal import wrapped
from launcher.base.units import gib, rounded
from launcher.estimate.memory.moments import ALWAYS, MOMENTS, TRAINING, Moments
from launcher.estimate.memory.result import Band
from launcher.estimate.memory.terms import MemoryTerm
from launcher.estimate.speed.calibration import LEAST_ROWS, Constant
from launcher.estimate.speed.result import SpeedEstimate, StageTime, name_of
from launcher.estimate.speed.terms import COMMUNICATION, SpeedTerm, symbols
from launcher.preflight.assess import Assessment
from launcher.preflight.explain import Explanation
from launcher.preflight.measured.known import place
from launcher.spec import RunSpec
from launcher.views.check import sentences


def explanation_text(found: Explanation, width: int = 80) -> str:
    """The terms of a pile, their symbols, and the error band, for a terminal of ``width`` columns."""
    where = f"the worst rank (stage {found.stage}) at its peak, {found.moment.replace('_', ' ')}"
    name = found.pile.replace("_", " ")
    total = sum(term.bytes for term in found.at_peak)
    lines = wrapped(f"{name} of {where}: {gib(total)} ({total:,} bytes)", width)
    lines += [line for term in found.at_peak for line in _memory_term(term, width)]
    if found.elsewhere:
        lines += ["", f"{name} at other moments:"]
        lines += [line for term in found.elsewhere for line in _memory_term(term, width)]
    if found.symbols:
        lines += ["", "symbols:", *_symbols(found.symbols, width)]
    return "\n".join([*lines, "", *wrapped(_band(found.band), width)])


def _band(band: Band) -> str:
    if band.own:
        whose = f"{band.rows} runs of {band.whose}"
    elif band.lacking:
        parts = ", ".join(band.lacking)
        whose = f"{band.rows} runs of {band.whose}, the widest known band: nothing measured backs {parts}"
    elif band.runs_on is not None:
        whose = f"{band.rows} runs of {band.whose}, also on {band.runs_on}"
    else:
        whose = f"{band.rows} runs of {band.whose}, the widest known band: too few runs of this kind were measured"
    return (
        f"error band of the verdict: {band.low:.3f} to {band.high:.3f} times the prediction, from measured /"
        f" predicted in {whose} (launcher/estimate/memory/residuals.json)"
    )


def _memory_term(term: MemoryTerm, width: int) -> Iterator[str]:
    yield ""
    size = f"= {term.bytes:,} bytes, {gib(term.bytes)}"
    rows = (f"= {term.symbols}", f"= {term.numbers}", size, f"when: {_when(term.moments)}", f"source: {term.source}")
    yield from _term(term.what, rows, width)


def _term(what: str, rows: Iterable[str], width: int) -> Iterator[str]:
    yield from wrapped(what, width, "  ", "  ")
    yield from wrapped(rows, width, "    ", "      ")


def _when(moments: Moments) -> str:
    if moments == ALWAYS:
        return "always"
    if moments == TRAINING:
        return "always, once the model is loaded"
    return ", ".join(moment.replace("_", " ") for moment in MOMENTS if moment in moments)


def speed_text(assessment: Assessment, width: int = 80) -> str:
    """The parts of a step of a valid run, its traffic, and the basis of the prediction, for a terminal."""
    speed = assessment.speed
    if speed is None:
        return "\n".join(wrapped(f"speed unknown: {assessment.speed_unknown}", width))
    paragraphs = [
        wrapped(sentences.speed(assessment), width),
        [*_parts(speed), *wrapped("exposed: not overlapped with other work; these add up to the step", width)],
        list(_traffic(speed)),
        list(_stages(speed.stages)),
        ["how each part is computed:"],
        *(list(_speed_term(term, width)) for term in _terms(speed)),
        ["symbols:", *_symbols(_legend(_terms(speed)), width)],
        wrapped(_utilisation(assessment.spec, speed), width),
        wrapped(_constant(assessment.spec, speed), width),
    ]
    return "\n\n".join("\n".join(lines) for lines in paragraphs if lines)


def speed_document(speed: SpeedEstimate) -> JsonObject:
    """The terms that ``check --speed --json`` adds to the part ``speed`` of the document."""
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
    return {"terms": terms, "stages": stages, "symbols": _legend(_terms(speed))}


def _legend(terms: Iterable[SpeedTerm]) -> dict[str, str]:
    names = {name for term in terms for name in formula.names_in(term.expression)}
    return {name: symbols().get(name, "see the source") for name in sorted(names, key=str.lower)}


def _terms(speed: SpeedEstimate) -> list[SpeedTerm]:
    return [term for _, terms in speed.parts() for term in terms]


def _parts(speed: SpeedEstimate) -> Iterator[str]:
    form = "  {:<22}{:>10}{:>10}{:>8}"
    slowest = max(speed.stages, key=lambda stage: stage.seconds, default=None)
    where = f" of stage {slowest.stage}, the slowest" if slowest and len(speed.stages) > 1 else ""
    yield f"the parts of a step{where}:"
    yield form.format("", "seconds", "exposed", "share")
    for part, terms in speed.parts():
        seconds = sum(term.seconds for term in terms)
        exposed = speed.exposed(part)
        share = f"{exposed / speed.step_seconds:.1%}"
        yield form.format(name_of(part), rounded(seconds), rounded(exposed), share)
    yield form.format("step", "", rounded(speed.step_seconds), "100.0%")


def _traffic(speed: SpeedEstimate) -> Iterator[str]:
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
    if len(stages) < 2:
        return
    form = "  {:<22}{:>10}{:>10}{:>10}"
    yield "stages, seconds of one micro-batch:"
    yield form.format("", "forward", "backward", "send")
    for stage in stages:
        times = (stage.forward_seconds, stage.backward_seconds, stage.send_seconds)
        yield form.format(f"stage {stage.stage}", *map(rounded, times))


def _speed_term(term: SpeedTerm, width: int) -> Iterator[str]:
    value = f"= {rounded(formula.evaluated(term.expression, term.values))} s"
    rows = (f"= {formula.printed(term.expression, str)}", f"= {_numbers(term)}", value, f"source: {term.source}")
    yield from _term(f"{name_of(term.part)}: {term.what}", rows, width)


def _numbers(term: SpeedTerm) -> str:
    return formula.printed(term.expression, lambda name: formula.short_text(term.values[name]))


def _symbols(legend: Mapping[str, str], width: int) -> list[str]:
    return wrapped((f"{symbol}: {meaning}" for symbol, meaning in legend.items()), width, "  ", "    ")


def _utilisation(spec: RunSpec, speed: SpeedEstimate) -> Iterator[str]:
    peak, form = f"{speed.peak_flops / 1e12:,.0f} TFLOP/s", backends.of(spec).dtypes(spec).compute
    counted = "the model's own FLOPs, causal attention counted half and recomputation not at all"
    yield (
        f"MFU {speed.mfu:.1%}: {counted}, {rounded(speed.model_flops / 1e12)} TFLOP a step, divided by what"
        f" {spec.gpus} x {peak}, the card's dense {form} peak, can do in {rounded(speed.step_seconds)} s"
        " (arXiv:2204.02311, appendix B)"
    )
    yield f"HFU {speed.hfu:.1%}: the same with recomputation counted (arXiv:2205.05198, section 5)"


_BANDS = {
    "same": "from the same runs",
    "others": "from the errors of runs on other stacks",
    "experts": "from runs of models with experts",
}


def _constant(spec: RunSpec, speed: SpeedEstimate) -> str:
    constant = speed.constant
    if not constant.rows:
        return "no measured run corrects this prediction, and its error band is unknown"
    if constant.here:
        return _own(spec, constant)
    return (
        f"constant {constant.value:.3f}, by which the seconds of all formulas are divided: the median of"
        f" {_runs_of(spec, constant)}; error band {constant.low:.2f} to {constant.high:.2f} times the prediction,"
        f" {_BANDS[constant.band_of]} (launcher/estimate/speed/calibration.json)"
    )


def _own(spec: RunSpec, constant: Constant) -> str:
    if constant.rows == 1:
        return (
            f"constant {constant.value:.3f}, by which the seconds of all formulas are divided: measured / predicted"
            f" speed of {constant.whose} (--anchor); error band {constant.low:.2f} to {constant.high:.2f} times the"
            " prediction, the spread of multi-node runs predicted from a run on one node"
            " (launcher/estimate/speed/calibration.json)"
        )
    return (
        f"constant {constant.value:.3f}, by which the seconds of all formulas are divided: the median of measured /"
        f" predicted speed in {constant.rows} runs of {constant.whose}, one of each layout; error band"
        f" {constant.low:.2f} to {constant.high:.2f} times the prediction, from the same runs and the shipped ones,"
        f" which count as {LEAST_ROWS} ({place(spec.cluster)}; --no-measurements leaves your runs out)"
    )


def _runs_of(spec: RunSpec, constant: Constant) -> str:
    runs = f"measured / predicted speed in {constant.rows} runs of {constant.whose}"
    if constant.votes > 1:
        runs = f"the constants of {constant.whose}, {constant.rows} runs, each framework with one vote"
    execution = backends.of(spec).execution(spec)
    if execution is None or execution.framework in constant.frameworks:
        return runs
    name, related = execution.framework, bool(constant.frameworks)
    return f"{runs} ({f'closest relatives of {name}' if related else f'too few runs of {name}'})"
