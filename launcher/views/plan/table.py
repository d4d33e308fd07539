"""A plan as terminal text: assumptions, a row for each layout, and the command to paste.

A layout has its figures on one line, its description on the next, and below that why it is slower than the first.
Nothing depends on colour. Prose is wrapped to the terminal's width; the command is broken between words.
"""

import shlex
from collections.abc import Iterator

from launcher import backends
from launcher.base.terminal import filled, wrapped
from launcher.base.units import count, gib, rounded
from launcher.estimate.speed.calibration import Constant
from launcher.estimate.speed.estimate import unknown
from launcher.estimate.speed.terms import COMMUNICATION
from launcher.planner import slower_because, wording
from launcher.planner.keys import VARIED
from launcher.planner.layouts import Layout, Plan
from launcher.preflight.evidence import not_rehearsed
from launcher.spec.edit import value_at
from launcher.views.plan import sentences

_FORM = "{:>2} {:>8} {:>15} {:>7} {:>5} {:>10} {:>5} {:>6} {:>7} {:>6}"
_HEADS = ("", "tokens/s", "error band", "step", "MFU", "memory", "", "bubble", "exposed", "vs 1")
_FORM_OF_MEMORY = "{:>2} {:>10} {:>5}"
_INDENT = 3
_LIKELY = 0.95  # A layout less likely to fit than this is listed with its probability.


def text(plan: Plan, width: int = 80, *, lines: bool = False) -> str:
    """The plan for a terminal; ``lines`` adds the command of each layout, not only of the first."""
    if not plan.layouts:
        return "\n".join([*wrapped(_assumed(plan), width), *wrapped(_nothing(plan), width)])
    first, so_far = plan.layouts[0], "" if plan.finished else " of those found so far"
    numbered = enumerate((*plan.layouts, *plan.others), 1)
    paragraphs = [
        wrapped(_question(plan, first), width),
        wrapped(_basis(plan), width),
        [*_heading(first, width), *(row for at, each in numbered for row in _row(plan, at, each, width, lines))],
        wrapped(_remarks(plan), width),
        [] if plan.tight is None else ["try it:", *pasteable(plan, plan.tight, width, _trial(plan.tight)[0])],
        [] if lines else [f"launch the first{so_far}:", *pasteable(plan, first, width)],
        wrapped(_further(plan, lines=lines), width),
    ]
    return "\n\n".join("\n".join(paragraph) for paragraph in paragraphs if paragraph)


def pasteable(plan: Plan, layout: Layout, width: int, command: str = "launch") -> list[str]:
    """The command to paste for a layout, broken by backslashes between words where it exceeds the width."""
    lines = [command]
    for word in map(shlex.quote, (*plan.single, *layout.overrides)):
        if len(lines[-1]) + 1 + len(word) > width - 2:
            lines[-1] += " \\"
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}"
    return lines


def _question(plan: Plan, first: Layout) -> Iterator[str]:
    spec = first.spec
    nodes = f" on {spec.cluster.nodes} nodes" if spec.cluster.nodes > 1 else ""
    precisions = dict.fromkeys(each.spec.precision.name for each in plan.layouts)
    yield (
        f"{spec.model.name}, {' or '.join(precisions)}, {spec.gpus} x {spec.hardware.title}{nodes}; a step:"
        f" {spec.global_batch_size:,} sequences of {spec.sequence_length:,} tokens ="
        f" {count(spec.tokens_per_step)} tokens"
    )
    if varied := [name.removesuffix(".name") for name in _varied(plan) if name != "precision.name"]:
        yield f"layouts change the training itself: they differ in {' and '.join(varied)}"
    yield from _assumed(plan)


def _assumed(plan: Plan) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for each in plan.assumptions:
        reasons.setdefault(each.why, []).append(each.override)
    for why, overrides in reasons.items():
        yield f"assumed: {' '.join(overrides)} ({why})"


def _basis(plan: Plan) -> Iterator[str]:
    first = plan.layouts[0]
    if first.speed is None:
        why = unknown(first.spec, backends.of(first.spec)) or "not predicted"
        yield f"speed unknown: {why}; layouts with the least overhead come first"
        return
    engines: dict[str, list[str]] = {}
    for each in (*plan.layouts, *plan.others):
        names = engines.setdefault("unknown" if each.speed is None else _runs(each.speed.constant), [])
        if (name := wording.engine(each.spec)) not in names:
            names.append(name)
    told = "; ".join(f"{', '.join(names)} {runs}" for runs, names in engines.items())
    yield f"speeds are formulas times the median of measured / predicted in: {told}"


def _runs(constant: Constant) -> str:
    if not constant.rows:
        return "none (1, and no error band)"
    return f"{constant.rows} runs of {constant.whose} ({constant.value:.3f})"


def _varied(plan: Plan) -> list[str]:
    names = [f"{group}.name" for group in VARIED]
    return [name for name in names if len({value_at(each.spec, name) for each in plan.layouts}) > 1]


def _heading(first: Layout, width: int) -> list[str]:
    capacity = first.verdict.capacity_bytes
    said = [] if capacity is None else [f"memory: needed on the fullest rank, of {gib(capacity)}"]
    if first.speed is not None:
        said = ["tokens/s: of one GPU", *said, "exposed: communication that nothing overlaps"]
    heads = _HEADS if first.speed is not None else ("", *_HEADS[5:7])
    return [*wrapped("; ".join(said), width), "", _form(first).format(*heads).rstrip()]


def _form(first: Layout) -> str:
    return _FORM if first.speed is not None else _FORM_OF_MEMORY


def _row(plan: Plan, number: int, layout: Layout, width: int, lines: bool) -> Iterator[str]:
    if number == len(plan.layouts) + 1:
        yield "the fastest of other engines:"
    first = plan.layouts[0]
    yield _form(first).format(number, *_figures(layout, first)).rstrip()
    indent = " " * _INDENT
    told = (
        *wording.layout(layout.spec).split(wording.BETWEEN),
        *(str(value_at(layout.spec, key)) for key in _varied(plan)),
        *_caveats(layout),
    )
    yield from filled(told, width, wording.BETWEEN, indent, f"{indent}  ")
    for text in (sentences.cost(layout, plan.length), layout.loses):
        yield from filled(text.split(", "), width, ", ", indent, f"{indent}  ")
    if lines:
        yield from (f"{indent}{line}" for line in pasteable(plan, layout, width - _INDENT))


def _figures(layout: Layout, first: Layout) -> Iterator[str]:
    speed, best, verdict = layout.speed, first.speed, layout.verdict
    if best is not None:
        yield "-" if speed is None else rounded(speed.tokens_per_second_per_gpu)
        yield f"{rounded(speed.low)}-{rounded(speed.high)}" if speed is not None and speed.constant.rows else "-"
        yield "-" if speed is None else f"{rounded(speed.step_seconds)} s"
        yield "-" if speed is None else f"{speed.mfu:.1%}"
    yield "-" if verdict.used_bytes is None else gib(verdict.used_bytes)
    yield _share(layout)
    if best is not None:
        yield "-" if speed is None else f"{speed.bubble:.1%}"
        yield "-" if speed is None else f"{exposed(layout):.1%}"
        lost = slower_because.loss(layout, first)
        yield "" if lost is None or layout is first else f"{-lost:+.1%}"


def _share(layout: Layout) -> str:
    used, capacity = layout.verdict.used_bytes, layout.verdict.capacity_bytes
    return f"{used / capacity:.0%}" if used is not None and capacity else ""


def _caveats(layout: Layout) -> Iterator[str]:
    zero = layout.spec.zero
    if "cpu" in (zero.offload_parameters, zero.offload_optimizer):
        yield f"{gib(layout.verdict.host_bytes)} of host memory a node"
    if layout.verdict.chance < _LIKELY:
        yield f"{layout.verdict.chance:.0%} likely to fit"
    if layout.unmeasured:
        yield f"nothing measured backs {', '.join(layout.unmeasured)}"


def exposed(layout: Layout) -> float:
    """Share of the step spent waiting for communication."""
    speed = layout.speed
    return 0.0 if speed is None else sum(speed.exposed(part) for part in COMMUNICATION) / speed.step_seconds


def _remarks(plan: Plan) -> Iterator[str]:
    first = plan.layouts[0]
    if first.verdict.name == "tight":
        yield (
            f"No layout that certainly fits is expected to be faster: 1 is {first.verdict.chance:.0%} likely to fit;"
            f" {_trial(first)[1]}"
        )
    if any(each.verdict.chance < _LIKELY for each in plan.layouts):
        yield "ordered by expected speed: predicted speed times the probability of fitting"
    yield from _untried(plan)
    tight = plan.tight
    if tight is None:
        return
    gain, verdict = slower_because.loss(tight, first), tight.verdict
    faster = "" if gain is None else f"{-gain:+.1%} tokens/s with "
    why = "" if gain is None else f"; why 1 is slower: {slower_because.loss_text(first, tight)}"
    yield (
        f"at the edge of the card: {faster}{wording.layout(tight.spec)}, needs {gib(verdict.used_bytes or 0)} of"
        f" {gib(verdict.capacity_bytes or 0)} and is {verdict.chance:.0%} likely to fit; {_trial(tight)[1]}{why}"
    )


def _trial(layout: Layout) -> tuple[str, str]:
    """The command that measures a layout, and what it does, as a clause."""
    if not_rehearsed(layout.spec):
        return "launch", "its first steps measure it"
    return "launch rehearse", "`launch rehearse` measures it on one GPU before the queue"


def _untried(plan: Plan) -> Iterator[str]:
    if (untried := plan.untried) is None:
        return
    gain = slower_because.loss(untried, plan.layouts[0])
    faster = "" if gain is None else f"{-gain:+.1%} tokens/s by formulas alone: "
    yield (
        f"set aside: {faster}{wording.layout(untried.spec)}; nothing measured backs"
        f" {', '.join(untried.unmeasured)} (--unmeasured ranks it with the others)"
    )


def _further(plan: Plan, *, lines: bool) -> Iterator[str]:
    if not lines and len(plan.layouts) > 1:
        yield "--lines prints the command of each layout, --json has all of them"
    yield _counted(plan)


def _counted(plan: Plan) -> str:
    counts = plan.counts
    rest = "slower by a bound or an estimate" if plan.finished else "undecided or slower"
    left = [(counts.invalid, "invalid"), (counts.unfit, "do not fit"), (counts.slower, rest)]
    told = ", ".join(f"{number:,} {what}" for number, what in left if number)
    how = "searched" if plan.finished else "interrupted after"
    return f"{how} {counts.considered:,} layouts in {rounded(plan.seconds, 2)} s" + (f": {told}" if told else "")


def _nothing(plan: Plan) -> Iterator[str]:
    if not plan.finished:
        yield f"interrupted before any layout that fits was found; {_counted(plan)}"
        return
    valid = plan.counts.considered - plan.counts.invalid
    none = f"DOES NOT FIT: none of the {valid:,} valid layouts" if valid else "no layout is valid"
    yield f"{none}; {_counted(plan)}"
    if plan.nearest is not None:
        yield from sentences.nearest(plan.nearest)
