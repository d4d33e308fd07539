"""Runs one rehearsal from request to answer: the ranks in turn, each at the depths that the device can hold."""

import functools
import time
from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path

from launcher.base import machine
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.frozen import dataclass
from launcher.base.units import duration, gib
from launcher.estimate.memory.host import processes_of
from launcher.estimate.memory.result import MemoryEstimate
from launcher.job.memory import Rehearsed
from launcher.preflight.evidence import Evidence
from launcher.rehearsing import choice, comparison, device, process
from launcher.rehearsing.choice import Request
from launcher.rehearsing.comparison import PredictedRank, predict
from launcher.rehearsing.device import Device
from launcher.rehearsing.result import Built, Phase, RankRehearsed, Rehearsal
from launcher.spec import RunSpec

_QUICK_FLOPS = 1e11  # FLOPs of all steps that take seconds on any processor, so that its speed is not measured.
_QUEUED = "cluster=slurm"  # A GPU of the cluster can rehearse what this machine cannot.
_PRODUCTS_SHARE = 0.5
"""Share of the time that matrix products may take by the forecast, since other operations take time, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where and how a rehearsal runs."""

    device: Device  # The device.
    folder: Path  # For the files of each model that is built.
    say: Callable[[str], None]  # Reports progress.
    run: Callable[..., Rehearsed] = process.rehearse  # Rehearses one rank of one model.


def rehearse(spec: RunSpec, estimate: MemoryEstimate, request: Request, stage: Stage) -> Rehearsal:
    """Rehearse a valid run. Raises ConfigErrors if that is impossible here, and JobFailed if the rank failed."""
    ready, ends = device.fitted(spec, stage.device), time.monotonic() + 60 * request.minutes
    ranks = choice.ranks(spec, estimate, request)
    found, method = [], ""
    for number, rank in enumerate(ranks):
        share = (ends - time.monotonic()) / (len(ranks) - number)
        one, method = _Rank(spec, ready, rank, request, stage).rehearsed(share)
        found.append(one)
    return Rehearsal(
        ranks=tuple(found),
        world=spec.gpus,
        stands_in=stage.device.stands_in(spec),
        method=method,
        tokens=spec.tokens_per_step,
        covers=any(one.rank == choice.rank_of(spec, estimate.peak.stage) for one in found),
    )


class _Rank:
    def __init__(self, spec: RunSpec, ready: RunSpec, rank: int, request: Request, place: Stage) -> None:
        self.spec, self.rank, self.request, self.place = spec, rank, request, place
        self.stage = spec.stage_of(rank)
        self.stands_in = place.device.stands_in(spec)
        self.ready = choice.fewer_micro_batches(ready, self.stage) if self.stands_in else ready

    def rehearsed(self, seconds: float) -> tuple[RankRehearsed, str]:
        """The rank's answer, and how memory was measured."""
        asked = self.request.layers
        layers = choice.asked(self.ready, asked) if asked else self._best_depths(seconds)
        ends = time.monotonic() + seconds
        models, documents, estimates = [], [], []
        for number in layers:
            spec = choice.at(self.ready, number)
            folder = self.place.folder / f"rank{self.rank}-layers{number}"
            said = predict(spec, self.stage)
            self._say(number, said)
            found = self.place.run(
                spec,
                self.rank,
                steps=self.request.steps,
                folder=folder,
                seconds=ends - time.monotonic(),
                environment=device.environment(self.spec, self.place.device),
            )
            of_rank = choice.layers_of(spec, self.stage)
            models.append(comparison.built(found, said, rank_layers=of_rank, folder=folder))
            documents.append(found)
            estimates.append(said)
            if found.ran_out:
                break
        return self._answer(models, documents, estimates), documents[-1].method

    def _best_depths(self, seconds: float) -> tuple[int, ...]:
        """The first depths that the device can hold and that extrapolate well. Raises ConfigErrors if it holds none."""
        lacks, ways, possible = "", [_QUEUED], []
        for depths in choice.candidates(self.ready, self.stage):
            lacks, *ways = self._lacks(depths, seconds)
            if not lacks:
                bent = self._bent(depths)
                if bent <= comparison.STRAIGHT:
                    return depths
                possible.append((bent, depths))
        if possible:
            return min(possible)[1]
        noun = "layer" if depths[-1] == 1 else "layers"
        raise ConfigErrors([ConfigError("rehearse", None, f"even {depths[-1]} {noun} of the model {lacks}", ways)])

    def _bent(self, depths: tuple[int, ...]) -> float:
        """The relative error of extrapolating the estimates of these depths to the whole model."""
        if len(depths) == 1:
            return 0.0
        built = [choice.at(self.ready, number) for number in depths]
        layers = [choice.layers_of(spec, self.stage) for spec in built]
        estimates = [predict(spec, self.stage) for spec in built]
        whole = choice.layers_of(self.ready, self.stage)
        return abs(comparison.bent(layers, estimates, predict(self.ready, self.stage), whole))

    def _lacks(self, depths: tuple[int, ...], seconds: float) -> tuple[str, ...]:
        smaller = ["train.micro_batch_size=1"] if self.ready.micro_batch_size > 1 else []
        said = predict(choice.at(self.ready, depths[-1]), self.stage)
        own = said.outside_bytes - said.communicators_bytes
        on_cpu = self.place.device.kind == "cpu"
        own += processes_of(self.ready.backend.name).rank_bytes if on_cpu else 0
        needs = said.peak_bytes + own
        if needs > self.place.device.memory_bytes:
            text = f"need {gib(needs)}, and {self.place.device.name} has {gib(self.place.device.memory_bytes)} free"
            return (text, *smaller, _QUEUED)
        if not on_cpu:
            return ("",)
        takes = self._takes(depths)
        if takes > _PRODUCTS_SHARE * seconds:
            speed = f"{self._flops_a_second / 1e9:.0f} GFLOP/s, just measured"
            text = f"take {duration(takes)} for {self.request.steps} steps on this processor ({speed})"
            return (text, *smaller, f"--minutes {ceil(takes / _PRODUCTS_SHARE / 60) + 1}", _QUEUED)
        return ("",)

    def _takes(self, depths: tuple[int, ...]) -> float:
        work = self.request.steps * sum(choice.flops(choice.at(self.ready, number)) for number in depths)
        return 0.0 if work < _QUICK_FLOPS else work / self._flops_a_second

    @functools.cached_property
    def _flops_a_second(self) -> float:
        threads = {"OMP_NUM_THREADS": "1", **device.environment(self.spec, self.place.device)}
        return (process.gflops(self.ready.precision.compute, threads) or float("inf")) * 1e9

    def _say(self, layers: int, said: PredictedRank) -> None:
        whole = self.ready.model.num_hidden_layers
        depth_ = f"{layers} of {whole} layers" if layers < whole else f"{whole} layers"
        at = f"rank {self.rank} of {self.spec.gpus}"
        at += f" (stage {self.stage})" if self.spec.parallel.pipeline > 1 else ""
        self.place.say(
            f"launch: {at}, {depth_}, on {self.place.device.name}: {gib(said.peak_bytes)} of allocations predicted"
        )

    def _answer(
        self, models: Sequence[Built], documents: Sequence[Rehearsed], estimates: Sequence[PredictedRank]
    ) -> RankRehearsed:
        whole_layers = choice.layers_of(self.ready, self.stage)
        whole = predict(self.ready, self.stage)
        two = len(models) > 1
        phases = comparison.extrapolated(models, whole, whole_layers) if two else models[-1].phases
        fullest, depths = comparison.fullest(phases), [model.rank_layers for model in models]
        is_whole = two or models[-1].layers == self.ready.model.num_hidden_layers
        beside = whole if is_whole else estimates[-1]
        bent = comparison.bent(depths, estimates, whole, whole_layers) if two else None
        decides = is_whole and (bent is None or abs(bent) <= comparison.STRAIGHT)
        evidence = self._evidence(models, documents[-1], phases, beside, decides=decides)
        seconds = comparison.seconds(models, whole_layers) if is_whole and not self.stands_in else None
        return RankRehearsed(
            rank=self.rank,
            stage=self.stage,
            rank_layers=whole_layers,
            phases=phases,
            fullest=None if fullest is None else fullest.phase,
            piles=comparison.piles(fullest, beside, documents, depths, whole_layers),
            step_seconds=seconds,
            built=tuple(models),
            extrapolated=two,
            whole=is_whole,
            bent=bent,
            verdict=evidence.verdict(self.spec.rank_memory_bytes),
            evidence=evidence,
        )

    def _evidence(
        self,
        models: Sequence[Built],
        document: Rehearsed,
        phases: Sequence[Phase],
        said: PredictedRank,
        *,
        decides: bool,
    ) -> Evidence:
        measured = [phase for phase in phases if phase.measured.allocated_bytes is not None]
        peak = max((phase.measured.allocated_bytes or 0 for phase in measured), default=None)
        beside = max((phase.predicted.allocated_bytes or 0 for phase in measured), default=said.peak_bytes)
        least, used = (None, None) if peak is None else _needs(phases, said)
        cut = tuple(model.layers for model in models if model.layers < self.ready.model.num_hidden_layers)
        return Evidence(
            time=time.time(),
            node=machine.node(),
            device=document.device,
            device_name=document.device_name,
            device_bytes=self._capacity(),
            rank=self.rank,
            stage=self.stage,
            predicted_bytes=said.peak_bytes if document.ran_out else beside,
            measured_bytes=None if document.ran_out else peak,
            least_bytes=None if document.ran_out else least,
            used_bytes=None if document.ran_out else used,
            ran_out=document.ran_out,
            depths=cut,
            partial=self.stands_in or not decides,
            versions=dict(document.versions),
            directory=str(self.place.folder),
        )

    def _capacity(self) -> int:
        given = self.spec.hardware.usable_bytes if self.spec.hardware.device == "cpu" else None
        return self.place.device.memory_bytes if given is None else given


def _needs(phases: Sequence[Phase], said: PredictedRank) -> tuple[int, int]:
    """The least bytes that the run needs on the rank's device, and the bytes including the allocator's cache.

    What a rank alone does not have or was not measured comes from the estimate: communicators, the context if unknown,
    and phases that were not measured.
    """
    context = said.outside_bytes - said.communicators_bytes
    least = used = 0
    for phase in phases:
        known = phase.measured if phase.measured.allocated_bytes is not None else phase.predicted
        reserved = known.allocated_bytes or 0 if known.reserved_bytes is None else known.reserved_bytes
        own = context if known.device_bytes is None else known.device_bytes - reserved
        least = max(least, (known.allocated_bytes or 0) + own)
        used = max(used, reserved + own)
    return least + said.communicators_bytes, used + said.communicators_bytes
