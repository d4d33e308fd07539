"""``launch plan --measurements`` and ``--forget RUN``: the measured runs that estimates take their constants from."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator, Sequence

from launcher.actions import find_runs
from launcher.actions.requests import Output, folder
from launcher.base.errors import ConfigError, ConfigErrors, unreadable
from launcher.base.files import JsonObject
from launcher.base.units import gib, rounded
from launcher.config.request import request
from launcher.estimate.speed.estimate import estimate
from launcher.preflight.assess import parts
from launcher.preflight.measured import constants, file
from launcher.preflight.measured.constants import Anchor, Key
from launcher.preflight.measured.file import Content, Row
from launcher.preflight.measured.known import Anchored, place
from launcher.rundir import contents, measured_run
from launcher.spec import ClusterSpec


def list_runs(words: Sequence[str]) -> Output:
    """The measured runs of the user, or of the cluster that is named; raises ConfigErrors where they cannot be read."""
    content = _read(request(words).require().cluster)
    return Output(document={"schema": 1, "measurements": _as_dict(content)}, text="\n".join(_as_text(content)))


def forget(words: Sequence[str], run: str) -> Output:
    """Take a run out of the measured ones; raises ConfigErrors where it is none of them."""
    content = _read(request(words).require().cluster)
    lost = _find_row(content, run)
    file.forget(content.path, lost)
    return Output(
        document={"schema": 1, "measurements": {"file": str(content.path), "forgotten": lost.as_dict()}},
        text=f"{lost.id} is taken out of {content.path}",
    )


def anchored(word: str, *, others: bool) -> Anchored:
    """The constant of the measured run that ``--anchor`` names, by the model of speed as it is now.

    Raises ConfigErrors where the word is no run, or too little was measured of it. ``others`` is true to predict runs
    that are unlike it by the user's measured ones.
    """
    [run, *_] = find_runs.find([word])
    spec = contents.spec_of(run)
    row = next((row for row in _read(spec.cluster).rows if row.directory == str(run.absolute())), None)
    row = row or measured_run.row_of(run, spec)
    raw, speed = estimate(spec, **parts(spec), calibrated=False), row.measured.tokens_per_second_per_gpu
    if raw is None or speed is None or row.left_out is not None:
        rule = f"its speed anchors nothing: {row.left_out or 'it was not measured, or not predicted'}"
        raise ConfigErrors([ConfigError("--anchor", word, rule, ["launch plan --measurements"])])
    return Anchored(Anchor(row.id, spec, speed / raw.tokens_per_second_per_gpu), others=others)


def _read(cluster: ClusterSpec) -> Content:
    path = place(cluster)
    try:
        return file.load(path)
    except OSError as error:
        rule = f"the measured runs cannot be read: {unreadable(error)}"
        own = cluster.measurements is None
        where, way_out = ("--measurements", "FILE.jsonl") if own else ("cluster.measurements", "null")
        raise ConfigErrors([ConfigError(where, str(path), rule, [f"cluster.measurements={way_out}"])]) from None


def _find_row(content: Content, word: str) -> Row:
    place = str((folder() / word).absolute())
    found = [row for row in content.rows if row.directory == place] or [row for row in content.rows if row.id == word]
    if len(found) == 1:
        return found[0]
    if found:
        rule, ways = "several runs have this name: say its directory", [row.directory for row in found]
    else:
        rule = f"{content.path} has no run of this name"
        ways = difflib.get_close_matches(word, dict.fromkeys(row.id for row in content.rows))
    typed = [f"launch plan --forget {shlex.quote(way)}" for way in ways] or ["launch plan --measurements"]
    raise ConfigErrors([ConfigError("--forget", word, rule, typed)])


def _as_dict(content: Content) -> JsonObject:
    return {
        "file": str(content.path),
        "rows": [{**row.as_dict(), "why_not": constants.why_not(row)} for row in content.rows],
        "constants": [
            {**key._asdict(), "value": own.value, "deviation": own.deviation, "runs": own.runs, "nodes": own.nodes}
            for key, own in constants.of_rows(content.rows).items()
        ],
        "unreadable": list(content.unreadable),
    }


def _as_text(content: Content) -> Iterator[str]:
    if not content.rows:
        yield f"no measured run in {content.path}: a run that finishes is entered there"
    else:
        yield f"{_number(len(content.rows), 'measured run')} in {content.path}:"
    for row in content.rows:
        yield from _row(row)
    if content.rows:
        yield ""
        yield "constants that predictions take from these runs:"
        yield from _constants(content.rows)
    for reason in content.unreadable:
        yield f"a line is left out that is no measured run: {reason}"


def _row(row: Row) -> Iterator[str]:
    yield f"  {row.id}  {row.date}  {row.gpus} x {row.title}"
    yield f"    {row.layout}"
    parts = []
    if row.measured.tokens_per_second_per_gpu is not None:
        told = row.predicted.tokens_per_second_per_gpu
        beside = "" if told is None else f", predicted {rounded(told)}"
        parts.append(f"{rounded(row.measured.tokens_per_second_per_gpu)} tokens/s a GPU{beside}")
    if row.measured.allocated_bytes is not None:
        of = "" if row.predicted.allocated_bytes is None else f", predicted {gib(row.predicted.allocated_bytes)}"
        parts.append(f"peak {gib(row.measured.allocated_bytes)}{of}")
    yield f"    {'; '.join(parts) or 'nothing was measured'}"
    if (reason := constants.why_not(row)) is not None:
        yield f"    in no constant: {reason}"


def _constants(rows: tuple[Row, ...]) -> Iterator[str]:
    own = constants.of_rows(rows)
    layouts: dict[Key, set[str]] = {}
    for row in filter(constants.counts, rows):
        layouts.setdefault(Key.of(row), set()).add(row.layout)
    for key, found in layouts.items():
        kind = ", models with experts" if key.experts else ""
        name = f"{key.framework} on {key.hardware} ({key.cluster}){kind}"
        if key in own:
            value, deviation, runs, _ = own[key]
            yield f"  {name}: {value:.3f} of the formulas, from {runs} runs that deviate by {deviation:.1%}"
        else:
            yield f"  {name}: none yet, {_number(len(found), 'layout')} of the {constants.LEAST_LAYOUTS} that it takes"
    if not layouts:
        yield "  none: no run has a speed that was predicted and measured"
    peaks = sorted(row.peak_ratio for row in rows if row.peak_ratio is not None)
    if peaks:
        middle = peaks[len(peaks) // 2]
        yield f"measured peaks of {_number(len(peaks), 'run')}: {middle:.2f} of the prediction, the middle one"


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
