"""Explains a device that ran out of memory: who asked for how much, which pile grew, why, and what would fit."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from launcher.base.units import gib, request
from launcher.job import memory
from launcher.job.memory import SIZE, OutOfMemory, PileRow, asked_bytes, in_bytes, size_in
from launcher.preflight import assess, findings
from launcher.rundir import output
from launcher.rundir.contents import MEMORY, PLAN, SPEC
from launcher.why import comparison, endings, growth, host, reasons, ways_out
from launcher.why.answer import Answer, Evidence, WayOut, Where
from launcher.why.comparison import Comparison, PredictedPiles
from launcher.why.subject import Subject

_TITLE = "what would fit, judged with the measured piles, cheapest first:"
_PLACES = {"device": "the device", "host": "the node", "disk": "the disk"}


def ran_out(run: Subject) -> OutOfMemory | None:
    """The out-of-memory record of the last attempt, from the ranks' file or an error's text; None if there is none."""
    found = memory.ran_out(run.run)
    if found is not None and found.time >= growth.began(run.run):
        return found
    for error in run.errors[:1]:
        return told(error)
    logged = output.logged_error(run.run) if "OutOfMemoryError" in run.reason else None
    return (None if logged is None else told(logged)) or of_a_reason(run.reason)


def answer(run: Subject, oom: OutOfMemory) -> Answer:
    """The answer about a run that ran out of memory."""
    on_cpu = run.spec is not None and run.spec.hardware.device == "cpu"  # The ranks' tensors are then in host memory.
    if oom.place == "host" and (oom.kind != "allocator" or not on_cpu):
        return host.of_the_host(run, oom, asked(oom))
    if oom.place == "disk":
        return host.of_the_disk(run, oom)
    if run.spec is None:
        return _without_prediction(run, oom)
    loads = oom.phase == "load" and run.saved
    foreseen = comparison.predict(assess.going_on(run.spec) if loads else run.spec, oom.rank, oom.phase, oom.layer)
    found = comparison.compare(run.spec, foreseen, oom)
    grows = _growth(run, oom, found)
    if grows is not None:
        found = comparison.named(found, grows.pile)
    kept = growth.kept(oom, comparison.between_steps(run.spec, oom.rank).piles, found) if grows is None else 0
    ways = _ways(run, oom, found, foreseen, grows=grows is not None, kept=kept)
    said = (asked(oom), *reasons.sentences(run, oom, found, foreseen, grows, kept))
    first = tuple(reasons.first_ways(run, oom, found, grows))
    return run.answer(
        "out_of_memory",
        (*said, *_not_taken(ways, searched=grows is None and not first)),
        where=Where.of(oom),
        pile=found.pile,
        piles=found.rows,
        evidence=tuple(evidence_of(run, oom)),
        ways=(*first, *ways.ways),
        ways_title=_TITLE,
    )


def _without_prediction(run: Subject, oom: OutOfMemory) -> Answer:
    said = [asked(oom), f"there is no prediction to compare with: {_not_judged(run)}"]
    ways = [WayOut(command=shlex.join(["launch", "logs", run.name]), text="the traceback and the ranks' output")]
    larger = run.settings is not None and run.settings.micro_batch_size > 1
    text = "the smallest micro-batch, with the same global batch"
    ways = [*run.offer("train.micro_batch_size=1", text, when=larger), *ways]
    return run.answer(
        "out_of_memory",
        said,
        where=Where.of(oom),
        pile=max(oom.piles, key=lambda pile: oom.piles[pile], default=None),
        piles=[PileRow(pile=p, predicted_bytes=None, measured_bytes=s) for p, s in oom.piles.items()],
        evidence=tuple(evidence_of(run, oom)),
        ways=ways,
    )


def _not_judged(run: Subject) -> str:
    if run.settings is None:
        return f"this version cannot read its recorded settings, {SPEC}"
    if run.settings.judges_no_model:
        return "the model that the script builds is unknown (`model=` names one)"
    broken = next(findings.broken_rules(run.settings), None)
    return "" if broken is None else f"its settings break a rule of this version: {broken}"


def asked(oom: OutOfMemory) -> str:
    """The first sentence: the asking rank, the request, and the free bytes."""
    who = "it" if oom.phase is None else oom.phase.replace("_", " ")
    parts = [f"{who} of layer {oom.layer}" if oom.layer is not None else who]
    if oom.rank is not None:
        parts = [f"rank {oom.rank}"] if parts == ["it"] else [*parts, f"on rank {oom.rank}"]
    if oom.node is not None:
        parts.append(f"on {oom.node}" if oom.rank is None else f"({oom.node})")
    if oom.step:
        parts.append(f"in step {oom.step}")
    size = "more memory" if oom.requested_bytes is None else request(oom.requested_bytes, oom.free_bytes)
    text = f"{' '.join(parts)} asked for {size}"
    if oom.requested_bytes is None and oom.free_bytes is not None:
        text += f" with {gib(oom.free_bytes)} free"
    if oom.capacity_bytes is not None:
        text += f" of {gib(oom.capacity_bytes)}"
    return f"{text} on {_PLACES[oom.place]}"


def _growth(run: Subject, oom: OutOfMemory, found: Comparison) -> growth.Growth | None:
    grows = growth.fastest([record for record in growth.this_attempt(run.run) if oom.rank in (None, record.rank)])
    if grows is None or grows.longer or found.kind == "as_predicted":
        return None
    beyond = found.grown[0].grown_bytes if found.grown else 0
    return grows if grows.grown_bytes >= max(beyond / 2, comparison.WITHIN * found.predicted_bytes) else None


def _ways(
    run: Subject, oom: OutOfMemory, found: Comparison, foreseen: PredictedPiles, *, grows: bool, kept: int
) -> ways_out.WaysOut:
    if run.spec is None or grows:
        return ways_out.WaysOut(ways=())
    rule = ways_out.carried(run.spec, found, oom, foreseen.moments, grows=kept > 0)
    return ways_out.on_device(run.spec, rule, run.name, run.takes)


def _not_taken(found: ways_out.WaysOut, *, searched: bool) -> Iterator[str]:
    words = found.untaken
    if searched and not words and not found.ways:
        near = found.nearest
        nearest = "" if near is None else f"; the closest, `{shlex.join(near.overrides)}`, needs {gib(near.peak_bytes)}"
        yield f"no single change makes this run fit, judged by what was measured{nearest}"
    if words:
        named, it = " or ".join(f"`{each}`" for each in words), "it" if len(words) == 1 else "these"
        yield f"a new run would also fit with {named}; this one cannot be resumed with {it}"


def evidence_of(run: Subject, oom: OutOfMemory) -> Iterator[Evidence]:
    """The files that show how the run ran out of memory."""
    yield from run.evidence_of(memory.OUT_OF_MEMORY, f"{oom.kind}: {oom.message}")
    of_rank = rf'"rank": {oom.rank}[,}}]' if oom.rank is not None else r'"rank":'
    for found in run.evidence_in(memory.RECORDS, of_rank):
        yield Evidence(file=found.file, line=found.line, text="the last memory record before it")
    if oom.snapshot is not None:
        yield from run.evidence_of(oom.snapshot, "all allocations", line=None)
    yield from endings.first_error(run)
    log = None if run.errors else output.first_log(run.run)
    if log is not None and "OutOfMemoryError" in run.reason:
        yield from endings.frames(run)
        yield from run.evidence_in(log, "OutOfMemoryError")
    yield from run.evidence_of(PLAN, "the prediction when the run was recorded", line=None)
    if not (run.run / memory.RECORDS).is_file():
        yield from run.evidence_of(MEMORY, "measured peaks by phase and rank", line=None)


_CAPACITY = re.compile(rf"total capacity of {SIZE}")
_FREE = re.compile(rf"of which {SIZE} is free")
_OWN = re.compile(rf"this process has {SIZE} memory in use")
_ALLOCATED = re.compile(rf"allocated memory {SIZE} is allocated by PyTorch")
_UNUSED = re.compile(rf"and {SIZE} is reserved by PyTorch but unallocated")
_OTHER = re.compile(rf"Process (\d+) has {SIZE} memory in use")
_FUNCTIONS = re.compile(r"^\s*File \"(?P<file>[^\"]+)\", line \d+, in (?P<function>\S+)", re.MULTILINE)
_PHASES = (
    (re.compile(r"evaluate"), "evaluation"),
    (re.compile(r"backward"), "backward"),
    (re.compile(r"/optim/|optimizer|_update|clip_grad"), "optimizer"),
    (re.compile(r"save|checkpoint/state_dict"), "checkpoint_save"),
    (re.compile(r"forward|functional\.py|_call_impl"), "forward"),
    (re.compile(r"restore|build|load"), "load"),
)
"""Patterns of names in a traceback, with the phase that they belong to, the more specific first."""


def told(error: Mapping[str, Any]) -> OutOfMemory | None:
    """The out-of-memory record from a rank's error; None if it is another error."""
    message = str(error["message"])
    if error["type"] != "OutOfMemoryError" and "out of memory" not in message.lower():
        return None
    allocated, unused = size_in(_ALLOCATED, message), size_in(_UNUSED, message)
    others = tuple(
        {"pid": int(found[1]), "name": "", "bytes": in_bytes(*found.groups()[1:])} for found in _OTHER.finditer(message)
    )
    on_host = "DefaultCPUAllocator" in message or "Cannot allocate memory" in message
    return OutOfMemory(
        kind="allocator" if on_host else "device",
        place="host" if on_host else "device",
        time=0.0,
        rank=None if error["rank"] is None else int(error["rank"]),
        node=error.get("node"),
        phase=phase_of(str(error["traceback"])),
        requested_bytes=asked_bytes(message),
        free_bytes=size_in(_FREE, message),
        capacity_bytes=size_in(_CAPACITY, message),
        allocated_bytes=allocated,
        reserved_bytes=None if allocated is None or unused is None else allocated + unused,
        others_bytes=_others(message),
        others=others,
        message=message,
    )


def of_a_reason(reason: str) -> OutOfMemory | None:
    """The out-of-memory record from the reason of a script, the last line of its traceback; None if it is another."""
    if re.match(r"(\w+\.)*OutOfMemoryError: ", reason) is None:
        return None
    return told({"rank": None, "type": "OutOfMemoryError", "message": reason, "traceback": ""})


def phase_of(traceback: str) -> str | None:
    """The phase that the functions in a traceback belong to; None if unknown."""
    frames = [f"{found['file']} {found['function']}" for found in _FUNCTIONS.finditer(traceback)]
    return next((phase for pattern, phase in _PHASES if any(pattern.search(frame) for frame in frames)), None)


def _others(message: str) -> int | None:
    capacity, free, own = (size_in(each, message) for each in (_CAPACITY, _FREE, _OWN))
    return None if capacity is None or free is None or own is None else max(0, capacity - free - own)
