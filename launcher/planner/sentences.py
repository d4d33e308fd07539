"""The answers to the questions beside the layouts, as sentences: time and money, the smallest and the largest."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.planner import length
from launcher.planner.largest import Largest, Tried
from launcher.planner.result import Layout, Nearest, Plan
from launcher.planner.sizes import MOST_NODES
from launcher.planner.smallest import Smallest, Step
from launcher.text.units import count, duration, gib, rounded

_FIXES = 3
"""Changes that are told."""

_KINDS = {"micro_batch": "micro-batch", "sequence": "sequence", "model": "model"}
_UNITS = {"micro_batch": "sequences", "sequence": "tokens", "model": "parameters"}

_BUT = "; with the model's states on the GPUs alone, {}: zero.offload_optimizer=none"


def cost(layout: Layout, days: float | None = None) -> str:
    """Time, GPU-hours and money of the whole training; empty where its speed is unknown.

    Args:
        layout: The layout.
        days: The limit on the time.
    """
    found = length.cost_of(layout)
    if found is None:
        return ""
    paid = "" if found.price is None else f", cost {rounded(found.price)}"
    slow = "TOO SLOW: " if length.in_time(layout, days) is False else ""
    took = duration(found.days * length.DAY)
    return f"{slow}{count(layout.spec.steps * layout.spec.tokens_per_step)} tokens in {took}, {rounded(found.gpu_hours)} GPU-hours{paid}"


def late(plan: Plan, found: Smallest) -> Iterator[str]:
    """What is said where no layout is fast enough: the smallest cluster that would be."""
    days = plan.length.days if plan.length is not None else None
    fastest = length.cost_of(plan.layouts[0])
    assert days is not None and fastest is not None
    yield f"TOO SLOW: the fastest takes {duration(fastest.days * length.DAY)}, and --days is {days:g}."
    yield from smallest(found, days)


def smallest(found: Smallest, days: float | None) -> Iterator[str]:
    """The smallest cluster, the next smaller one and the next larger one."""
    limit = "" if days is None else f" within {days:g} days"
    if found.size is None:
        last = found.smaller
        what = "" if last is None else f" up to {last.size}: the last {_lacking(last)}"
        yield f"No cluster{what} trains it{limit}." if last is None else f"No cluster trains it{limit}{what}."
        return
    but = "" if found.on_devices is None else _BUT.format(found.on_devices)
    yield f"The smallest cluster that trains it{limit}: {found.size}{but}."
    if found.smaller is not None:
        yield f"One step smaller, {found.smaller.size}: {_lacking(found.smaller)}."
    if found.larger is not None:
        yield f"One step larger, {found.larger.size}: {_brings(found.larger)}."


def _lacking(step: Step) -> str:
    return step.lacks or "is enough"


def _brings(step: Step) -> str:
    """The speed of a size, or why it is not enough."""
    if step.layout is None or step.lacks:
        return step.lacks
    speed = step.layout.speed
    if speed is None:
        return "fits"
    told = f"{rounded(speed.tokens_per_second)} tokens/s, {rounded(speed.tokens_per_second_per_gpu)} a GPU"
    return f"{told}; {cost(step.layout)}" if step.layout.spec.train.tokens else told


def largest(found: Largest) -> Iterator[str]:
    """The largest, and the next ones with the reason why not."""
    what, unit = _KINDS[found.kind], _UNITS[found.kind]
    if found.words:
        yield f"The largest {what} that fits: {count(found.value) if unit == 'parameters' else f'{found.value:,}'} {unit}, {' '.join(found.words)}."
    else:
        yield f"No {what} fits."
    yield from (f"{_named(each)}: {each.lacks}." for each in found.larger)


def _named(tried: Tried) -> str:
    return " ".join(tried.words)


def nearest(found: Nearest) -> Iterator[str]:
    """What would help where nothing fits."""
    if found.closest is None:
        yield f"{found.rule[:1].upper()}{found.rule[1:]}."
    elif found.closest.verdict.excess_bytes:
        yield f"The layout that comes nearest lacks {gib(found.closest.verdict.excess_bytes)}: {' '.join(found.closest.overrides)}"
    if found.size is not None and found.layout is not None:
        yield f"The smallest cluster on which something fits: {found.size}, with {' '.join(found.layout.overrides)}"
    elif found.closest is not None:
        yield f"No cluster is large enough, of {MOST_NODES:,} nodes either."
    for fix in found.fixes[:_FIXES]:
        yield f"On this cluster the layout that comes nearest fits with {' '.join(fix.overrides)}: {fix.price}"
