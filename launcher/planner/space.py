"""The space of layouts: every key that the search may set, and the values that it tries.

A *variant* is a layout without its *memory savings*: activation checkpointing, the chunked loss and the allocator,
which cost time or nothing. Variants with the same *degrees* and micro-batch have stages that take the same time. The
search tries all of the following, and nothing else:

- tensor ranks: divisors of the GPUs connected by NVLink or within a node;
- pipeline stages: every number that divides the remaining ranks, up to one layer per stage, evenly or with both ends
  smaller, for Megatron's interleaved stages by one layer each; every schedule; model chunks: divisors of a stage's
  layers, up to the first with which the bubble is less than a hundredth of the passes;
- context and Ulysses ranks: divisors of the remaining ranks that leave at least 4,096 tokens of a sequence per rank;
- expert ranks: divisors of the experts; within an expert as many tensor ranks as outside, or one;
- sharding: DDP; FSDP with and without resharding, in replicas of whole nodes; ZeRO 0 to 3, with and without a second
  partition within a node; optimizer states, and parameters too, in host memory;
- micro-batches: every divisor of a rank's part of the global batch up to 128 sequences that leaves at least one
  micro-batch per pipeline stage; one sequence if there is none;
- the loss: fused if the engine has it, else full; and chunked.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from typing import Any

from launcher import backends
from launcher.base.errors import ConfigError
from launcher.base.frozen import dataclass
from launcher.estimate.rank.stages import FOLDED, cut_of
from launcher.estimate.speed.network import network_of
from launcher.planner.keys import ALLOCATORS, LOSSES, MODES, SAVING_KEYS, MemorySavings, Settings
from launcher.spec import RunSpec, edit
from launcher.spec.edit import changed_at, value_at

_FEWEST_TOKENS = 4096  # Least tokens of a split sequence per rank, as in nine of ten published runs that split it.
_PASSES_PER_IDLE = 100  # Passes per idle one above which more model chunks gain less than the error of a prediction.
_LARGEST_MICRO_BATCH = 128
_SCHEDULES = ("1f1b", "interleaved", "gpipe", "zero_bubble", "zbv", "dualpipe_v")
_OF_MODES = frozenset(("checkpointing.layers", "checkpointing.method", "checkpointing.modules"))
"""Keys whose errors may end with another mode of activation checkpointing."""

_BATCH = frozenset(("train.global_batch_size", "train.gradient_accumulation"))
"""Keys whose errors may end with another micro-batch or schedule."""

type Steps = tuple[Callable[[Settings], Iterator[Settings]], ...]
type Refused = Callable[[RunSpec], Iterable[ConfigError]]


_ENDS = ("parallel.first_stage_layers", "parallel.last_stage_layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """The part of a layout that determines the time of a stage's passes: degrees, experts, micro-batch."""

    settings: Settings  # Its keys.
    size: int  # Number of layouts with these degrees, valid or not.


@dataclass(frozen=True, kw_only=True)
class Space:
    """The layouts of one engine."""

    base: RunSpec  # The run from the words, with this engine.
    fixed: frozenset[str]  # Keys that the words set.
    choices: Mapping[str, Sequence[object]]  # Keys with the values that the words ask to try.
    losses: tuple[str, ...]  # The ways to compute the loss to try, the fastest first.
    schedules: tuple[str, ...]  # The pipeline schedules that the engine has.
    stages: tuple[int, ...]  # The ZeRO stages that it has.
    copies: bool  # True if it supports replicas of shards (hybrid sharding).
    second: bool  # True if it supports a second partition within a node.

    @classmethod
    def of(
        cls, base: RunSpec, fixed: frozenset[str], choices: Mapping[str, Sequence[object]], refused: Refused
    ) -> "Space":
        """The layouts of an engine: with the fused loss if it has one, else the full one, and with the chunked one."""
        # A loss that needs an optional package is tried only if the words ask for it.
        borrowed = any(each.path == "train.loss" for each in backends.of(base).profile.borrowed)
        known = [each for each in LOSSES if each != "fused"] if borrowed else LOSSES
        losses = _valid(base, "train.loss", known, refused)
        own, stages = _framework(base, base.zero.stage), _valid(base, "zero.stage", (0, 1, 2, 3), refused)
        staged = changed_at(base, {"parallel.pipeline": 2})
        schedules = [
            name for name in _SCHEDULES if _valid(_in_chunks(staged, name), "parallel.schedule", (name,), refused)
        ]
        return cls(
            base=base,
            fixed=fixed,
            choices=choices,
            losses=tuple(loss for loss in losses if loss != "full" or "fused" not in losses) or ("full",),
            schedules=tuple(schedules),
            stages=tuple(each for each in stages if _framework(base, each) == own),
            copies=base.parallel.shard and bool(_valid(base, "parallel.replicate", (base.gpus,), refused)),
            second=bool(_valid(changed_at(base, {"zero.stage": 3}), "zero.hpz", (base.gpus,), refused)),
        )

    def values(self, path: str, candidates: Sequence[Any]) -> Sequence[Any]:
        """The values of one key to try."""
        if path in self.choices:
            return self.choices[path]
        return (value_at(self.base, path),) if path in self.fixed else candidates

    @cached_property
    def said(self) -> frozenset[str]:
        """Keys that the words set."""
        return self.fixed | self.choices.keys()

    def degrees(self, refused: Refused) -> Iterator[Degrees]:
        """All valid degrees, in a fixed order."""
        outer: Steps = (self._degrees, self._experts, self._micro_batches)
        for settings in self._extended({}, outer, self._inner, refused):
            variants = sum(1 for _ in self._sharding(settings)) * sum(1 for _ in self._chunks(settings))
            yield Degrees(settings=settings, size=variants * self.savings.size)

    def variants(self, degrees: Degrees, refused: Refused) -> Iterator[RunSpec]:
        """The variants of some degrees, in a fixed order."""
        for settings in self.sharded(degrees, refused):
            yield from self.staged(settings, refused)

    def sharded(self, degrees: Degrees, refused: Refused) -> Iterator[Settings]:
        """Some degrees with each way to shard the states; pipeline chunks and schedule stay open."""
        return self._extended(degrees.settings, (self._sharding,), (self._chunks,), refused)

    def staged(self, settings: Settings, refused: Refused) -> Iterator[RunSpec]:
        """The variants of one result of :meth:`sharded`."""
        for each in self._extended(settings, (self._chunks,), (), refused):
            yield changed_at(self.base, each)

    @property
    def _inner(self) -> Steps:
        """The steps from degrees to a variant, which do not affect the time of a stage's passes."""
        return self._sharding, self._chunks

    def _extended(self, settings: Settings, steps: Steps, ahead: Steps, refused: Refused) -> Iterator[Settings]:
        """The settings after these steps, with the steps ``ahead`` still to come.

        If the first choices of all remaining steps lead to an error that no remaining step can end, the branch is
        pruned.
        """
        step, *later = steps
        for further in step(settings):
            chosen = {**settings, **further}
            first = self._completed(chosen, (*later, *ahead))
            if first is None:
                continue
            open_keys = SAVING_KEYS | _OF_MODES | (first.keys() - chosen.keys())
            open_keys |= _BATCH if ahead or later else set()
            if self._errs_only_at(open_keys, first, refused):
                yield from self._extended(chosen, tuple(later), ahead, refused) if later else (chosen,)

    def _errs_only_at(self, keys: Set[str], settings: Settings, refused: Refused) -> bool:
        """True if all errors of a layout are at the given keys; cached, since up to three steps ask the same."""
        question = tuple(map(repr, settings.values()))
        known = self._errors.get(question)
        if known is None or (isinstance(known, str) and known in keys):
            known = frozenset()
            for error in refused(changed_at(self.base, settings)):
                if error.path not in keys:
                    known = error.path
                    break
                known |= {error.path}
            self._errors[question] = known
        return not isinstance(known, str) and known <= keys

    @cached_property
    def _errors(self) -> "dict[tuple[str, ...], str | frozenset[str]]":
        """A cache by layout: the keys of all its errors, or the key of one that no remaining step can end."""
        return {}

    def _completed(self, settings: Settings, later: Steps) -> Settings | None:
        for step in later:
            first = next(step(settings), None)
            if first is None:
                return None
            settings = {**settings, **first}
        return settings

    @cached_property
    def savings(self) -> MemorySavings:
        """The memory savings to try."""
        allocators = ALLOCATORS if self.base.hardware.device == "cuda" else ALLOCATORS[:1]
        return MemorySavings(
            sorted(self.values("checkpointing.mode", MODES), key=MODES.index),
            sorted(self.values("train.loss", self.losses), key=LOSSES.index),
            sorted(self.values("train.allocator", allocators), key=ALLOCATORS.index),
        )

    def chunkings(self, degrees: Settings) -> list[tuple[str, int]]:
        """The schedules of some degrees, each with its number of model chunks per stage."""
        return [(each["parallel.schedule"], each["parallel.virtual_pipeline"]) for each in self._chunks(degrees)]

    @cached_property
    def _span(self) -> int:
        """The number of GPUs that reach each other without the network."""
        network = network_of(self.base)
        return self.base.cluster.gpus_per_node if network is None else network.span

    def _degrees(self, _: Settings) -> Iterator[Settings]:
        world = self.base.gpus
        for tensor, pipeline in itertools.product(self._tensor_degrees, self._pipeline_degrees):
            if world % (tensor * pipeline):
                continue
            for context, ulysses in self._splits(world // (tensor * pipeline)):
                for sequence in self.values("parallel.sequence", (False, True) if tensor > 1 else (False,)):
                    for ends in self._ends(pipeline):
                        yield {
                            "parallel.tensor": tensor,
                            "parallel.sequence": sequence,
                            "parallel.pipeline": pipeline,
                            "parallel.context": context,
                            "parallel.ulysses": ulysses,
                            **ends,
                        }

    @property
    def _tensor_degrees(self) -> Sequence[int]:
        heads = self.base.model.num_attention_heads
        return self.values("parallel.tensor", [n for n in edit.divisors(self._span) if heads % n == 0])

    @property
    def _pipeline_degrees(self) -> Sequence[int]:
        return self.values("parallel.pipeline", range(1, self.base.model.num_hidden_layers + 1))

    def _splits(self, ranks: int) -> Iterator[tuple[int, int]]:
        """Degrees of context and Ulysses parallelism that the remaining ranks allow."""
        length, batch = self.base.sequence_length, self.base.global_batch_size
        split = [n for n in edit.divisors(ranks) if n == 1 or length // n >= _FEWEST_TOKENS]
        said = self.said
        contexts, others = self.values("parallel.context", split), self.values("parallel.ulysses", split)
        for context, ulysses in itertools.product(contexts, others):
            both = context * ulysses
            searched_degree = 1 if "parallel.context" in said else context
            searched_degree *= 1 if "parallel.ulysses" in said else ulysses
            if ranks % both == 0 and batch % (ranks // both) == 0 and (searched_degree == 1 or both in split):
                yield context, ulysses

    def _experts(self, settings: Settings) -> Iterator[Settings]:
        experts, tensor = self.base.model.num_experts, settings["parallel.tensor"]
        degrees = edit.divisors(experts) if experts else [1]
        inner: Sequence[int | None] = (None, 1) if tensor > 1 and experts else (None,)
        for expert in self.values("parallel.expert", degrees):
            for inside in self.values("parallel.expert_tensor", inner):
                if self.base.gpus % (expert * (inside or tensor) * settings["parallel.pipeline"]) == 0:
                    yield {"parallel.expert": expert, "parallel.expert_tensor": inside}

    def _chunks(self, settings: Settings) -> Iterator[Settings]:
        stages = settings["parallel.pipeline"]
        for chunks in self.values("parallel.virtual_pipeline", self._divisors(settings) if stages > 1 else (1,)):
            fitting = [name for name in self.schedules if _takes(name, chunks)] if stages > 1 else ["1f1b"]
            for schedule in self.values("parallel.schedule", fitting):
                yield {"parallel.virtual_pipeline": chunks, "parallel.schedule": schedule}

    def _divisors(self, settings: Settings) -> tuple[int, ...]:
        """Numbers of model chunks per stage, up to one with a small bubble of ``(p - 1) / (m v)`` of a step."""
        stages, counts_ends = settings["parallel.pipeline"], settings["backend.extra"] != self.base.backend.extra
        named = [size for key in _ENDS if (size := settings[key]) is not None]
        layers = self._layers + (len(backends.of(self.base).profile.counted_ends) if counts_ends else 0)
        divisors = edit.divisors(math.gcd((layers - sum(named)) // max(1, stages - len(named)), *named))
        if "parallel.schedule" not in self.said:
            batches = self._share(settings) // (settings["train.micro_batch_size"] or 1)
            enough = (n for n, chunks in enumerate(divisors, 1) if (stages - 1) * _PASSES_PER_IDLE <= batches * chunks)
            divisors = divisors[: next(enough, len(divisors))]
        return divisors[1:] if counts_ends else divisors  # One chunk per stage is the case of smaller end stages.

    @cached_property
    def _layers(self) -> int:
        return cut_of(self.base).counted

    def _ends(self, stages: int) -> Iterator[Settings]:
        """Equal stages, and smaller first and last stages, which hold the embedding and the head.

        Interleaved stages consist of whole chunks, so their ends are smaller by exactly one layer each (Megatron).
        """
        first, last = _ENDS
        extra = self.base.backend.extra
        even: Settings = {first: None, last: None, "backend.extra": extra}
        if {first, last} & (self.fixed | set(self.choices)):
            for a, b in itertools.product(
                self.values(first, self._other_end(stages)), self.values(last, self._other_end(stages))
            ):
                yield {**even, first: a, last: b}
            return
        layers, counted = self._layers, backends.of(self.base).profile.counted_ends
        if layers % stages == 0:
            yield even
        if layers != self.base.model.num_hidden_layers:
            return
        for inner in dict.fromkeys((-(-layers // stages), layers // stages + 1)):
            ends = layers - (stages - 2) * inner
            if stages > 2 and 2 <= ends < 2 * inner:
                yield {**even, first: ends // 2, last: ends - ends // 2}
        if stages > 1 and counted and (layers + len(counted)) % stages == 0:
            yield {**even, "backend.extra": {**extra, **counted}}

    def _other_end(self, stages: int) -> Sequence[int | None]:
        """Sizes of one end stage if the other is set, with inner stages as in :meth:`_ends`."""
        layers, said = self.base.model.num_hidden_layers, self.base.parallel
        ends = [size for size in (said.first_stage_layers, said.last_stage_layers) if size is not None]
        inner = dict.fromkeys((-(-layers // stages), layers // stages + 1))
        sizes = [layers - (stages - 2) * size - sum(ends) for size in inner]
        return [None, *(size for size in sizes if size >= 1 and stages > 1)]

    def _sharding(self, degrees: Settings) -> Iterator[Settings]:
        shard, reshards = self.base.parallel.shard, "backend.reshard_after_forward"
        said = shard and reshards in self.said
        for stage in self.values("zero.stage", self.stages[-1:] if said else self.stages):
            open_stage = shard and "zero.stage" in self.fixed and stage == 3
            for reshard in self.values(reshards, (None, False) if open_stage else (None,)):
                for replicas in self.values("parallel.replicate", self._replicas(degrees) if self.copies else (1,)):
                    for hpz in self.values("zero.hpz", self._second_partitions(stage)):
                        for offload in self._offload():
                            yield {
                                "zero.stage": stage,
                                reshards: reshard,
                                "parallel.replicate": replicas,
                                "zero.hpz": hpz,
                                **offload,
                            }

    def _replicas(self, degrees: Settings) -> Sequence[int]:
        """Replicas of whole nodes: FSDP's traffic stays within each, with one reduction between them."""
        ranks = self.base.gpus // (degrees["parallel.tensor"] * degrees["parallel.pipeline"])
        data = ranks // (degrees["parallel.context"] * degrees["parallel.ulysses"])
        whole = self.base.cluster.nodes
        return [n for n in edit.divisors(data) if n == 1 or (n <= whole and whole % n == 0)]

    def _second_partitions(self, stage: int) -> Sequence[int]:
        cluster = self.base.cluster
        return (1, cluster.gpus_per_node) if stage == 3 and cluster.nodes > 1 and self.second else (1,)

    def _offload(self) -> Iterator[Settings]:
        optimizer, parameters = "zero.offload_optimizer", "zero.offload_parameters"
        for states in self.values(optimizer, ("none", "cpu")):
            for weights in self.values(parameters, ("none", "cpu") if states == "cpu" else ("none",)):
                yield {optimizer: states, parameters: weights}

    def _micro_batches(self, degrees: Settings) -> Iterator[Settings]:
        share, stages = self._share(degrees), degrees["parallel.pipeline"]
        sizes = [n for n in edit.divisors(share) if n <= _LARGEST_MICRO_BATCH and stages * n <= share] or [1]
        for size in self.values("train.micro_batch_size", sizes):
            yield {"train.micro_batch_size": size}

    def _share(self, degrees: Settings) -> int:
        split: int = degrees["parallel.tensor"] * degrees["parallel.pipeline"]
        split *= degrees["parallel.context"] * degrees["parallel.ulysses"]
        return self.base.global_batch_size // max(1, self.base.gpus // split)


def _takes(schedule: str, chunks: int) -> bool:
    if schedule in FOLDED:
        return chunks == 2
    return schedule == "zero_bubble" or (schedule == "interleaved") == (chunks > 1)


def _in_chunks(spec: RunSpec, schedule: str) -> RunSpec:
    """The run with the fewest model chunks per stage that its schedule takes."""
    chunks = next(chunks for chunks in (1, 2) if _takes(schedule, chunks))
    return changed_at(spec, {"parallel.virtual_pipeline": chunks})


def _framework(base: RunSpec, stage: int) -> str | None:
    """The framework that runs a stage of ZeRO: the passes of one are no bound for those of another."""
    execution = backends.of(base).execution(changed_at(base, {"zero.stage": stage}))
    return None if execution is None else execution.framework


def _valid[T](base: RunSpec, path: str, values: Iterable[T], refused: Refused) -> tuple[T, ...]:
    return tuple(
        value for value in values if all(error.path != path for error in refused(changed_at(base, {path: value})))
    )
