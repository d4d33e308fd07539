"""Problems of a run, in sentences: hangs with the ranks and their stacks, slow ranks, loss spikes.

A hang or a slow rank is shown with the state of a training run until it is over; restarts, rollbacks to a checkpoint
and skipped rows of the data stay there.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.base import files
from launcher.base.files import JsonObject
from launcher.base.units import duration
from launcher.job import events
from launcher.rundir import failure
from launcher.rundir.state import State

_FOLDER = Path("logs", "hangs")
_LASTING = ("restart", "rollback", "bad_rows")  # Kinds of events that stay relevant until a run's end, and after it.
_NAMED = 3  # Ranks that a sentence names; it counts the others, which are in the file.


def part(directory: Path, step: int, node: int) -> Path:
    """The file in which a node writes its findings about its ranks."""
    return directory / _FOLDER / f"step-{step}.node{node}.json"


def beside(run: Path, word: State, reason: str | None) -> str | None:
    """The reason for a run's state, followed by the run's current problems."""
    if word not in ("running", "finished"):
        return reason
    texts = [line["text"] for line in now(run) if word == "running" or line["kind"] in _LASTING]
    return "; ".join([reason, *texts] if reason else texts) or None


def now(run: Path) -> list[JsonObject]:
    """The current events: the newest of each kind and rank that is not over."""
    holding: dict[tuple[str, object], JsonObject] = {}
    for line in events.read(run):
        if line["kind"] in ("start", "restart"):  # Events of the previous ranks do not apply to the new ones.
            holding = {key: each for key, each in holding.items() if each["kind"] in _LASTING}
        if line["kind"] in events.MILESTONES:
            continue
        key = (line["kind"], line.get("rank"))
        holding.pop(key, None)
        if not line.get("over"):
            holding[key] = line
    return list(holding.values())


def stacks(run: Path) -> Path | None:
    """The file with the stacks of ranks that hang or whose hang ended the run; None if there is no hang."""
    found = next((line for line in now(run) if line["kind"] == "hang"), None)
    path = run / _FOLDER / f"step-{found.get('step')}.txt" if found else None
    return path if path is not None and path.is_file() else None


def say_hang(directory: Path, step: int, ranks: Sequence[JsonObject]) -> str:
    """Write the file with all stacks and the event, from one row per rank; returns the sentence."""
    path = _FOLDER / f"step-{step}.txt"
    text = f"{_sentence(step, ranks)}; stacks of all ranks: {path}"
    files.write_text_atomically(directory / path, "\n".join([text, *(line for row in ranks for line in _page(row))]))
    shown = [{key: value for key, value in row.items() if key != "threads"} for row in ranks]
    events.add(directory, "hang", text, step=step, ranks=shown)
    return text


def note_hang(
    directory: Path, *, restart: bool, attempt: str | None, text: str | None = None, beside: str | None = None
) -> None:
    """Record why a job's ranks are ended; ``beside`` says why the job is not restarted."""
    before = files.read_json(directory / failure.HUNG) or {}
    reason = "; ".join(each for each in (text or before.get("text"), beside) if each)
    content = {"text": reason, "restart": restart, "attempt": attempt, "time": time.time()}
    files.write_atomically(directory / failure.HUNG, content)


def _sentence(step: int, ranks: Sequence[JsonObject]) -> str:
    seconds, usual = max(row["seconds"] for row in ranks), max(row["usual"] for row in ranks)
    compared = f" (usually {usual:.3g} s)" if usual else ""
    where = f"step {step}" if step else "the start"
    named = suspects(ranks)
    others = [row for row in ranks if row not in named]
    parts = [_one(row) for row in named[:_NAMED]]
    if len(named) > _NAMED:
        parts.append(f"{len(named) - _NAMED} more ranks as well")
    if others:
        parts.append(_waiting(others))
    return f"{where} has hung for {duration(seconds)}{compared}: {'; '.join(parts)}"


def suspects(ranks: Sequence[JsonObject]) -> list[JsonObject]:
    """The ranks for which the others wait: those blocked by the kernel, else those behind, else all."""
    held = [row for row in ranks if row["state"] is not None]
    if held:
        return held
    places = [(row["step"], _begun(row)) for row in ranks]
    return [row for row, place in zip(ranks, places, strict=True) if place == min(places)]


def _begun(row: JsonObject) -> int:
    numbers: dict[str, int] = {}
    for each in row["collectives"] or ():
        numbers[each["group"]] = max(numbers.get(each["group"], 0), int(each["number"] or 0))
    return sum(numbers.values())


def _one(row: JsonObject) -> str:
    said = [f"rank {row['rank']} on {row['host']} is {row['state'] + ' ' if row['state'] else ''}in {_phase(row)}"]
    if (last := _last(row)) is not None:
        said.append(f"last collective {last}")
    said += [f"at {frame}" for frame in _frames(row)]
    return ", ".join(said)


def _phase(row: JsonObject) -> str:
    return "its script" if row["phase"] == "unknown" else f"phase {row['phase']}"


def _last(row: JsonObject) -> str | None:
    found = row["collectives"]
    if not found:
        return None
    return f"{found[-1]['name']} {found[-1]['number']}{'' if found[-1]['done'] else ' (not done)'}"


def _frames(row: JsonObject) -> list[str]:
    """The innermost frame, and the innermost one outside installed packages."""
    stack = row["stack"]
    own = [frame for frame in stack if "site-packages" not in frame and "/lib/python" not in frame]
    return list(dict.fromkeys(_short(frame) for frame in (*stack[:1], *own[:1])))


def _short(frame: str) -> str:
    function, _, place = frame.rpartition(" (")
    return f"{function} ({Path(place.rstrip(')')).name})"


def _waiting(others: Sequence[JsonObject]) -> str:
    doing = Counter((_phase(row), _last(row)) for row in others).most_common(2)
    return " and ".join(
        f"{count} {'rank waits' if count == 1 else 'ranks wait'} in {phase}"
        + (f", last collective {last}" if last else "")
        for (phase, last), count in doing
    )


def _page(row: JsonObject) -> Iterator[str]:
    yield f"\n== {_one(row)}"
    for each in row["collectives"] or ():
        done = ", done" if each["done"] else ""
        yield f"   {each['name']} {each['number']} of {each['group']}, {each['sizes']}{done}"
    if row["collectives"] is None:
        yield "   it did not report its collectives"
    for thread in row["threads"].split("\n\n"):
        if "<no Python frame>" not in thread:  # Skip the many threads of libraries.
            yield from (*thread.splitlines(), "")
    if not row["threads"]:
        yield "   no stack could be taken"
