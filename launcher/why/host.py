"""Explains nodes that ran out of host memory and full disks: the predicted need, and ways out."""

from collections.abc import Iterator
from dataclasses import replace

from launcher.base import files, machine
from launcher.base.units import gib
from launcher.estimate.memory.result import MemoryEstimate
from launcher.job.memory import OutOfMemory, PileRow
from launcher.preflight import assess
from launcher.spec import RunSpec
from launcher.why import ways_out
from launcher.why.answer import OTHER_PROCESSES, Answer, Evidence, WayOut, Where
from launcher.why.comparison import WITHIN
from launcher.why.subject import Subject

CHECKPOINTS = "checkpoints"
_WHO = {
    "host_killer": "the kernel killed {} for lack of host memory{}",
    "cgroup": "the memory limit of the job's cgroup{} ended {}",
    "slurm": "Slurm ended {} with OUT_OF_MEMORY: more host memory than the job had{}",
}


def of_the_host(run: Subject, oom: OutOfMemory, asked: str) -> Answer:
    """The answer about a lack of host memory; ``asked`` is the sentence about the failed request."""
    first = asked if oom.kind not in _WHO else _killed(oom)
    spec = run.spec
    estimate = None if spec is None else assess.estimated(spec)
    rows = _rows(spec, oom, estimate) if spec is not None and estimate is not None else []
    pile = _named(rows)
    ways: tuple[WayOut, ...] = ()
    if spec is not None and estimate is not None:
        asks_for_a_part = spec.cluster.kind == "slurm" and spec.cluster.memory not in (None, "0")
        text = "all memory of the node, if the partition grants it"
        more = run.offer("cluster.memory=0", text, when=asks_for_a_part)
        ways = (*more, *_fitting(run, spec, oom, estimate))
    return run.answer(
        "out_of_memory",
        (first, *_sentences(oom, estimate, rows, pile)),
        where=Where.of(oom),
        pile=pile,
        piles=rows,
        evidence=tuple(_evidence(run, oom)),
        ways=ways or (run.resume(text=run.from_here()),),
        ways_title="what would fit on the node, cheapest first:",
    )


def of_the_disk(run: Subject, oom: OutOfMemory) -> Answer:
    """The answer about a full disk."""
    who = "" if oom.rank is None else f" by rank {oom.rank}"
    what = "a file" if oom.operation is None else oom.operation
    step = f" of step {oom.step}" if oom.step else ""
    phase = "" if oom.phase is None else f"in the {oom.phase.replace('_', ' ')}{step}: "
    free = oom.free_bytes if oom.free_bytes is not None else machine.disk_free(run.run)
    left = "" if free is None else f", with {gib(free)} free"
    said = [f"no space left on the disk {phase}{what} could not be written{who}{left}"]
    spec, kept = run.spec, files.bytes_in(run.run / "checkpoints")
    ways: list[WayOut] = []
    rows = []
    if spec is not None:
        disk = assess.estimated(spec).disk
        rows = [PileRow(pile=CHECKPOINTS, predicted_bytes=disk.kept_bytes, measured_bytes=kept)]
        said.append(
            f"a checkpoint takes {gib(disk.checkpoint_bytes)}, and up to {gib(disk.kept_bytes)} are on disk while one "
            f"is written (save.keep={spec.save.keep}); this run has {gib(kept)} there now"
        )
        if free is not None:
            ways += ways_out.within(spec, "hardware.disk_bytes", free + kept, run.name, run.takes).ways
    ways.append(run.resume(text=f"once there is space, or `checkpoints/` is a link to another disk; {run.from_here()}"))
    return run.answer(
        "disk",
        said,
        where=Where.of(oom),
        pile=CHECKPOINTS if oom.phase in (None, "checkpoint_save") else None,
        piles=rows,
        evidence=tuple(_evidence(run, oom)),
        ways=ways,
        ways_title="what would fit on the disk, cheapest first:",
    )


def _who(oom: OutOfMemory) -> str:
    who = "the job" if oom.rank is None else f"rank {oom.rank}"
    node = "" if oom.node is None else f" on {oom.node}"
    return f"{who}{node}{f' in step {oom.step}' if oom.step else ''}"


def _killed(oom: OutOfMemory) -> str:
    has = _capacity(oom)
    size = "" if has is None else f", {gib(has)}," if oom.kind == "cgroup" else f", {gib(has)}"
    first, second = (size, _who(oom)) if oom.kind == "cgroup" else (_who(oom), size)
    rank = "" if oom.host is None else f"; the rank's process held {gib(oom.host.rank_bytes)}"
    return _WHO[oom.kind].format(first, second) + rank


def _capacity(oom: OutOfMemory) -> int | None:
    return oom.capacity_bytes or (None if oom.host is None else oom.host.node_bytes)


def _rows(spec: RunSpec, oom: OutOfMemory, estimate: MemoryEstimate) -> list[PileRow]:
    known = {pile: sum(term.bytes for term in terms) for pile, terms in estimate.host.piles.items()}
    rows = [PileRow(pile=pile, predicted_bytes=size, measured_bytes=None) for pile, size in known.items()]
    if oom.host is None or not oom.host.rank_bytes:
        return rows
    ranks = spec.cluster.gpus_per_node * oom.host.rank_bytes
    own = sum(size for pile, size in known.items() if pile != "readers")
    rows.append(PileRow(pile="ranks", predicted_bytes=own, measured_bytes=ranks))
    if oom.host.node_used_bytes is not None:
        others = max(0, oom.host.node_used_bytes - ranks - known.get("readers", 0))
        rows.append(PileRow(pile=OTHER_PROCESSES, predicted_bytes=0, measured_bytes=others))
    return rows


def _named(rows: list[PileRow]) -> str | None:
    total = sum(row.predicted_bytes or 0 for row in rows if row.pile not in ("ranks", OTHER_PROCESSES))
    above = max(rows, key=lambda row: row.grown_bytes, default=None)
    if above is not None and above.grown_bytes > WITHIN * total:
        return above.pile
    parts = [row for row in rows if row.pile not in ("ranks", OTHER_PROCESSES)]
    largest = max(parts, key=lambda row: row.predicted_bytes or 0, default=None)
    return None if largest is None else largest.pile


def _sentences(
    oom: OutOfMemory, estimate: MemoryEstimate | None, rows: list[PileRow], pile: str | None
) -> Iterator[str]:
    if estimate is None:
        return
    parts = ", ".join(f"{row.pile} {gib(row.predicted_bytes or 0)}" for row in rows if row.measured_bytes is None)
    has = _capacity(oom) or estimate.host.capacity_bytes
    of = "" if has is None else f" of {gib(has)}"
    yield f"predicted: {gib(estimate.host.bytes_per_node)}{of} per node ({parts})"
    for row in rows:
        if row.pile == pile and row.grown_bytes > 0:
            whose = "the ranks' processes" if pile == "ranks" else "other processes on the node"
            yield f"{whose} had {gib(row.grown_bytes)} more than predicted ({gib(row.measured_bytes or 0)})"
    if oom.others:
        named = ", ".join(
            f"{each.get('name') or each.get('pid')} {gib(int(each.get('bytes') or 0))}" for each in oom.others[:3]
        )
        yield f"the largest processes on the node: {named}"


def _fitting(run: Subject, spec: RunSpec, oom: OutOfMemory, estimate: MemoryEstimate) -> tuple[WayOut, ...]:
    has = _capacity(oom) or estimate.host.capacity_bytes
    if has is None:
        return ()
    used = has if oom.host is None or oom.host.node_used_bytes is None else max(has, oom.host.node_used_bytes)
    beyond = max(0, used - estimate.host.bytes_per_node)
    return ways_out.within(spec, "hardware.host_memory_bytes", has - beyond - 1, run.name, run.takes).ways


def _evidence(run: Subject, oom: OutOfMemory) -> Iterator[Evidence]:
    yield from run.evidence_of("oom.json", f"{oom.kind}: {oom.message}")
    if oom.rank is not None:
        yield from run.evidence_of(f"logs/error.rank{oom.rank}.json", oom.message)
    for path in run.slurm_logs:
        yield from run.evidence_in(path, r"(?i)oom[-_]kill|out of memory")
    if oom.place == "host":
        for found in run.evidence_in("memory.jsonl", r'"host"'):
            yield replace(found, text="the last memory record before it")
