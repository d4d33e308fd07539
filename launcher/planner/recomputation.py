"""The least recomputation that makes a run fit, which replaces the word ``checkpointing=auto``.

Each kind of recomputation that the engine has (none, modules of a block and their combinations, the operators of
selective checkpointing, whole blocks) is applied to as few layers as make the run fit, found by bisection; first with
the whole error band of the estimate below the capacity, and if nothing suffices, with its middle. Of those that fit,
the fastest by the speed model is chosen, and of equally fast ones the one with less memory. If the speed is unknown, it
is the one that recomputes the smallest share of the matrix products.
"""

from collections.abc import Iterator
from itertools import combinations
from math import inf

from launcher import backends
from launcher.base.frozen import dataclass
from launcher.estimate import families
from launcher.estimate.memory.estimate import needs
from launcher.estimate.rank import recomputed
from launcher.estimate.rank.stages import cut_of, rank_layers
from launcher.preflight import assess, findings, pricing, verdict
from launcher.preflight.pricing import Measured
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec, edit

_MEGATRON = (("core_attn",), ("layernorm",), ("moe_act",), ("mlp",), ("moe",), ("layernorm", "moe_act"),
             ("core_attn", "layernorm"), ("core_attn", "mlp"), ("core_attn", "layernorm", "mlp"))  # fmt: skip
"""Combinations of ``--recompute-modules`` to try; the engine refuses modules that a run does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastRecomputation:
    """The chosen recomputation: its words, the run, whether it fits and what it costs."""

    words: tuple[str, ...]
    spec: RunSpec
    fits: bool  # False if nothing suffices; the choice is then the strongest.
    slower: float | None  # Relative increase of the step time over no recomputation; None if speeds are unknown.

    @property
    def said(self) -> str:
        """The choice as a sentence."""
        text = " ".join(self.words)
        if not self.fits:
            return f"{text}: even the strongest recomputation does not make the run fit"
        if not self.words[1:] and self.words[0].endswith("=none"):
            return f"{text}: the run fits without recomputation"
        if self.slower is None:
            return f"{text}, the least that fits; by share of matrix products, as the speed is unknown"
        return f"{text}, the least that fits: {self.slower:.1%} more time a step than without"


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of recomputation, on all or some layers of a stage."""

    parts: tuple[str, ...]  # The recomputed parts as named in ``rank.recomputed``; empty for none.
    settings: dict[str, object]  # The keys that select it.
    counted: bool  # True if it can be limited to the first layers.


def least(spec: RunSpec, measured: Measured | None = None) -> LeastRecomputation:
    """The least recomputation that makes a valid run, given without any, fit."""
    layers = max(len(rank_layers(cut_of(spec), stage)) for stage in range(spec.parallel.pipeline))
    plain = _seconds(spec, measured)
    found = _fitting(spec, layers, measured, safely=True) or _fitting(spec, layers, measured, safely=False)
    if not found:
        settings: dict[str, object] = {"checkpointing.mode": "full"}
        return LeastRecomputation(words=_words(settings), spec=edit.changed_at(spec, settings), fits=False, slower=None)
    price, _, settings, run = min(found, key=lambda one: one[:2])
    slower = None if plain is None else price / plain - 1
    return LeastRecomputation(words=_words(settings), spec=run, fits=True, slower=slower)


def _fitting(
    spec: RunSpec, layers: int, measured: Measured | None, *, safely: bool
) -> list[tuple[float, int, dict[str, object], RunSpec]]:
    """The kinds that make the run fit: the cost of each, the bytes that it needs, its keys and the run."""
    found = []
    for way in _kinds(spec):
        if (fewest := _fewest(spec, way, layers, safely=safely)) is not None:
            settings, run, judged = fewest
            price = _seconds(run, measured)
            again = _recomputed_share(run, way, settings, layers) if price is None else price
            found.append((again, judged.used_bytes or 0, settings, run))
        if found and not way.parts:
            break  # No recomputation is cheaper than none at all.
    return found


def _kinds(spec: RunSpec) -> Iterator[_Kind]:
    yield _Kind((), {}, counted=False)
    if backends.of(spec).engine(spec).library == "megatron":
        for names in _MEGATRON:
            yield _Kind(names, {"checkpointing.mode": "selective", "checkpointing.modules": names}, counted=False)
        whole: dict[str, object] = {"checkpointing.mode": "full", "checkpointing.method": "block"}
        yield _Kind((recomputed.BLOCK,), whole, counted=True)
        return
    known = recomputed.modules(families.of(spec.model), spec.model)
    for count in range(1, len(known) + 1):
        for chosen in combinations(known, count):
            yield _Kind(chosen, {"checkpointing.mode": "selective", "checkpointing.modules": chosen}, counted=True)
    yield _Kind((recomputed.BLOCK,), {"checkpointing.mode": "selective"}, counted=True)
    yield _Kind((recomputed.BLOCK,), {"checkpointing.mode": "full"}, counted=True)


def _fewest(
    spec: RunSpec, way: _Kind, layers: int, *, safely: bool
) -> tuple[dict[str, object], RunSpec, Verdict] | None:
    """One kind on as few layers as make the run fit; None if it is refused, or not enough on all layers."""

    def on(count: int) -> tuple[dict[str, object], RunSpec]:
        settings = {**way.settings, **({"checkpointing.layers": count} if count < layers else {})}
        return settings, edit.changed_at(spec, settings)

    settings, run = on(layers)
    if next(findings.broken_by_change(run), None) is not None:
        return None
    if (judged := _judge(run, safely=safely)).excess_bytes:
        return None
    least_, most = 1, layers
    while way.counted and least_ < most:
        middle = (least_ + most) // 2
        fewer, smaller = on(middle)
        if not (found := _judge(smaller, safely=safely)).excess_bytes:
            settings, run, judged, most = fewer, smaller, found, middle
        else:
            least_ = middle + 1
    return settings, run, judged


def _judge(spec: RunSpec, *, safely: bool) -> Verdict:
    return verdict.judge(spec, needs(spec, **assess.parts(spec)), safely=safely)


def _seconds(spec: RunSpec, measured: Measured | None) -> float | None:
    """Seconds per step, as if there were enough memory; None if unknown."""
    found = pricing.predicted(spec, assess.parts, verdict.INVALID, measured).speed
    return None if found is None else found.step_seconds


def _recomputed_share(spec: RunSpec, way: _Kind, settings: dict[str, object], layers: int) -> float:
    """The cost of recomputation without a speed model: the recomputed share of a block's matrices, times layers."""
    if not way.parts:
        return 0.0
    count = settings.get("checkpointing.layers", layers)
    family, last = families.of(spec.model), spec.model.num_hidden_layers - 1
    share = float(recomputed.share_of_weights(family, spec.model, last, way.parts))
    half = 0.5 if spec.checkpointing.mode == "selective" and not spec.checkpointing.modules else 1.0
    return (share * half + 1e-6) * (count if isinstance(count, int) else inf)


def _words(settings: dict[str, object]) -> tuple[str, ...]:
    mode = settings.get("checkpointing.mode", "none")
    rest = (edit.override(path, value) for path, value in settings.items() if path != "checkpointing.mode")
    return (f"checkpointing={mode}", *rest)
