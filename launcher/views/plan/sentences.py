"""Sentences of a plan beside its layouts: time, cost, the smallest cluster, the largest size, what would help."""

from collections.abc import Iterator

from launcher.base.units import count, duration, gib, rounded
from launcher.planner import length, wording
from launcher.planner.largest import Largest
from launcher.planner.layouts import Layout, Length, Nearest, Plan
from launcher.planner.smallest import MOST_NODES, Smallest, Step

_FIXES = 3  # Most changes that are listed.
_KINDS = {"micro_batch": ("micro-batch", "sequences"), "sequence": ("sequence", "tokens"), "model": ("model", "")}


def cost(layout: Layout, asked: Length | None) -> str:
    """Time, GPU-hours and cost of the whole training; empty when its length or speed is unknown."""
    found = None if asked is None else length.cost_of(layout)
    if found is None or asked is None:
        return ""
    paid = "" if found.price is None else f", cost {rounded(found.price)}"
    slow = "TOO SLOW: " if length.in_time(layout, asked.days) is False else ""
    took, spec = duration(found.days * length.DAY), layout.spec
    tokens = count(spec.steps * spec.tokens_per_step)
    return f"{slow}{tokens} tokens in {took}, {rounded(found.gpu_hours)} GPU-hours{paid}"


def late(fastest: Layout, asked: Length, found: Smallest) -> Iterator[str]:
    """Sentences for when no layout is fast enough: the time it takes, and the smallest cluster that is fast enough."""
    took = length.cost_of(fastest)
    if took is not None and asked.days is not None:
        yield f"TOO SLOW: the fastest layout takes {duration(took.days * length.DAY)}, more than {_days(asked.days)}."
        yield from smallest(found, asked)


def _days(number: float) -> str:
    return f"{number:g} {'day' if number == 1 else 'days'}"


def smallest(found: Smallest, asked: Length | None) -> Iterator[str]:
    """The smallest cluster, and the next smaller and larger sizes."""
    limit = "" if asked is None or asked.days is None else f" within {_days(asked.days)}"
    if found.size is None:
        yield f"None of the clusters tried trains it{limit}."
    else:
        yield f"The smallest cluster that trains it{limit}: {found.size}, {' '.join(found.size.words)}."
    if found.on_devices is not None:
        yield f"With all model states on the GPUs, zero.offload_optimizer=none: {found.on_devices}."
    if found.smaller is not None:
        step = "One step smaller" if found.size is not None else "The largest"
        yield f"{step}, {found.smaller.size}: {found.smaller.lacks}."
    if found.larger is not None:
        yield f"One step larger, {found.larger.size}: {_brought(found.larger, asked)}."


def _brought(step: Step, asked: Length | None) -> str:
    if step.layout is None or step.lacks:
        return step.lacks
    speed, worded = step.layout.speed, wording.layout(step.layout.spec)
    if speed is None:
        return worded
    each = rounded(speed.tokens_per_second_per_gpu)
    paid = cost(step.layout, asked)
    return f"{rounded(speed.tokens_per_second)} tokens/s, {each} a GPU{', ' if paid else ''}{paid}; {worded}"


def largest(found: Largest) -> Iterator[str]:
    """The largest that fits, and why the next larger ones do not."""
    what, unit = _KINDS[found.kind]
    size = f"{found.value:,} {unit}" if unit else f"{count(found.value)} parameters"
    limit = f"; {found.limit}" if found.limit else ""
    yield (
        f"The largest {what} that fits: {size}, {' '.join(found.words)}{limit}." if found.words else f"No {what} fits."
    )
    yield from (f"{' '.join(each.words)}: {each.lacks}." for each in found.larger)


def on_host(plan: Plan) -> Iterator[str]:
    """How to ask for the same without host memory, when the first layout offloads model states."""
    if plan.layouts and plan.layouts[0].spec.zero.offload_optimizer != "none":
        yield "It keeps model states in host memory: zero.offload_optimizer=none asks for the largest without."


def nearest(found: Nearest) -> Iterator[str]:
    """What would help when nothing fits."""
    closest = found.closest
    if closest is None:
        yield f"{found.rule[:1].upper()}{found.rule[1:]}."
    else:
        yield f"Closest is {wording.layout(closest.spec)}: {gib(closest.verdict.excess_bytes)} short."
    if found.size is not None and found.layout is not None:
        yield (
            f"The smallest cluster on which something fits is {found.size}: {' '.join(found.size.words)}, with"
            f" {wording.layout(found.layout.spec)}."
        )
    elif closest is not None:
        yield f"Nothing fits on any cluster of up to {MOST_NODES:,} nodes."
    for fix in found.fixes[:_FIXES]:
        yield f"On this cluster the closest layout fits with {' '.join(fix.overrides)}: {fix.price}."
