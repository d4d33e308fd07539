"""The measured runs that estimates take constants from: ``launch plan --measurements`` and ``--forget RUN``."""

import difflib
import shlex
from collections.abc import Iterator, Sequence

from launcher.actions.requests import Output, folder
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.base.units import counted, gib, rounded
from launcher.config.request import request
from launcher.preflight.measured import constants, file
from launcher.preflight.measured.constants import Key
from launcher.preflight.measured.file import Content, Row
from launcher.rundir import measured_run


def list_runs(words: Sequence[str]) -> Output:
    """The measured runs of the user, or of the named cluster; raises ConfigErrors if they cannot be read."""
    content = measured_run.read(request(words).require().cluster)
    return Output(document={"schema": 1, "measurements": _as_dict(content)}, text="\n".join(_as_text(content)))


def forget(words: Sequence[str], run: str) -> Output:
    """Remove a run from the measured ones; raises ConfigErrors if it is not among them."""
    content = measured_run.read(request(words).require().cluster)
    lost = _find_row(content, run)
    file.forget(content.path, lost)
    return Output(
        document={"schema": 1, "measurements": {"file": str(content.path), "forgotten": lost.as_dict()}},
        text=f"{lost.id} is removed from {content.path}",
    )


def _find_row(content: Content, word: str) -> Row:
    place = str((folder() / word).absolute())
    found = [row for row in content.rows if row.directory == place] or [row for row in content.rows if row.id == word]
    if len(found) == 1:
        return found[0]
    if found:
        rule, ways = "several runs have this name: give its directory", [row.directory for row in found]
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
        yield f"no measured run in {content.path}: a run that finishes is added there"
    else:
        yield f"{counted(len(content.rows), 'measured run')} in {content.path}:"
    for row in content.rows:
        yield from _row(row)
    if content.rows:
        yield ""
        yield "constants that predictions take from these runs:"
        yield from _constants(content.rows)
    for reason in content.unreadable:
        yield f"a line is skipped because it is not a measured run: {reason}"


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
        yield f"    used in no constant: {reason}"


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
            yield f"  {name}: none yet, {counted(len(found), 'layout')} of the {constants.LEAST_LAYOUTS} that it takes"
    if not layouts:
        yield "  none: no run has a speed that was predicted and measured"
    peaks = sorted(row.peak_ratio for row in rows if row.peak_ratio is not None)
    if peaks:
        middle = peaks[len(peaks) // 2]
        yield f"measured peaks of {counted(len(peaks), 'run')}: {middle:.2f} of the prediction, the middle one"
