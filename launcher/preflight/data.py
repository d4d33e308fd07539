"""Checks a run's data against its settings: too few tokens, token ids beyond the vocabulary, length of an epoch.

Data that this machine does not have are an error for a run on this machine, and otherwise a warning, because the job
looks again before it builds its model. If a package is missing, a warning says that the data were not looked at.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise

from launcher import backends
from launcher.base import machine
from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.data import look
from launcher.data.epoch import DataLook, held_out, is_exact, sizes_of, tokens_needed, trained, untrained
from launcher.data.files import files_of, is_on_hub
from launcher.data.packing import bins
from launcher.data.survey import Survey
from launcher.data.unusable import NotHere, PackageMissing, Unusable
from launcher.preflight import this_machine
from launcher.spec import RunSpec, edit


@dataclass(frozen=True)
class DataFindings:
    """The result of looking at a run's data."""

    spec: RunSpec  # The run.
    survey: Survey | None = None  # What was seen; None if there was nothing to look at here.
    errors: tuple[ConfigError, ...] = ()  # Reasons why the run cannot train on the data.
    warnings: tuple[ConfigError, ...] = ()  # What was not looked at, or may go wrong.

    @cached_property
    def samples(self) -> int | None:
        """Samples in one epoch, without held-out ones; None in stages, or if the number of tokens is unknown."""
        found = None if self.survey is None or self.spec.data.stages else sizes_of(self.spec, self.survey)
        return None if found is None else trained(self.spec, found)

    @cached_property
    def passes(self) -> list[float]:
        """How often a run in stages reads each data set; empty for others, or if the number of tokens is unknown."""
        spec, total = self.spec, self.spec.steps * self.spec.global_batch_size
        sizes = None if self.survey is None or not spec.data.stages else sizes_of(spec, self.survey)
        ends = [-(-each.after_tokens // spec.sequence_length) for each in spec.data.stages[1:]]
        read = [0.0] * len(spec.data.mix)
        for (start, end), stage in zip(pairwise((0, *ends, total)), spec.data.stages, strict=True) if sizes else ():
            for place, weight in enumerate(stage.weights):
                size = max(1, sizes[place] - held_out(spec, sizes[place])) if sizes else 1
                read[place] += (end - start) * weight / sum(stage.weights) / size
        return read if sizes else []

    @cached_property
    def conversations(self) -> dict[str, float] | None:
        """The shares of cut-off conversations, of padding and of fully masked conversations; None for other data."""
        samples, length = None if self.survey is None else self.survey.samples, self.spec.sequence_length
        if not samples:
            return None
        how, kept = self.spec.data.packed, [min(tokens, length + 1) for tokens, _ in samples]
        number = len(samples) if how == "none" else len(bins(kept, length + 1))
        cut = 0 if how == "concat" else sum(tokens > length + 1 for tokens, _ in samples)
        masked = sum(label is None or (label > length and how != "concat") for _, label in samples)
        return {
            "cut": cut / len(samples),
            "padding": 0.0 if how == "concat" else 1 - sum(kept) / (number * (length + 1)),
            "masked": masked / len(samples),
        }

    def as_dict(self) -> JsonObject | None:
        """The key ``data`` of ``launch check --json``."""
        survey, samples = self.survey, self.samples
        if survey is None:
            return None
        names = ("format", "files", "bytes", "rows", "rows_exact", "tokens", "tokens_error", "vocabulary")
        steps = None if samples is None else samples / self.spec.global_batch_size
        return {
            **{name: getattr(survey, name) for name in names},
            "columns": list(survey.columns),
            "samples": samples,
            "steps": steps,
            "epochs": self.spec.steps / steps if steps else None,
            "conversations": self.conversations,
            "seen": {"rows": survey.seen, "empty": survey.empty, "duplicates": survey.duplicates, "all": survey.whole},
            **({"bad_rows": survey.bad.as_dict()} if survey.bad.skips else {}),
        }


def seen(spec: RunSpec, looking: DataLook = look.look) -> DataFindings:
    """Look at a run's data, in time that does not grow with their size."""
    if spec.script is not None or (spec.backend.path is not None and spec.data.source == "tokens"):
        return DataFindings(
            spec
        )  # A script reads its own data; the other path is the prefix of Megatron's indexed data.
    if bool(spec.task.rows) != (spec.data.source == "rows"):
        return DataFindings(spec)  # A rule reports that the task reads other data.
    try:
        survey = looking(spec.data, spec.task.name)
    except PackageMissing as error:
        return DataFindings(spec, warnings=(_not_looked(error),))
    except NotHere as error:
        if this_machine.is_meant(spec, machine.facts()):
            return DataFindings(spec, errors=(error.finding,))
        rule = "it is not on this machine, so it was not checked; the job checks it before it builds the model"
        ways = ["data=synthetic data.path=null"]
        return DataFindings(spec, warnings=(ConfigError(error.finding.path, error.finding.found, rule, ways),))
    except Unusable as error:
        return DataFindings(spec, errors=(error.finding,))
    if survey is None:
        return DataFindings(spec, warnings=tuple(_not_fetched(spec)))
    return DataFindings(spec, survey, tuple(_errors(spec, survey)), tuple(_warnings(spec, survey)))


def _not_fetched(spec: RunSpec) -> Iterator[ConfigError]:
    """A warning for a data set of the Hub that is not in the cache, so that neither content nor size is known."""
    missing = [each.path for each in spec.data.sets if is_on_hub(each) and not files_of(each)]
    if not missing:
        return
    rule = "it is not in this machine's Hugging Face cache, so it was not checked; the job downloads it"
    if spec.cluster.kind == "slurm":
        rule += ", so its first node needs network access, unless you tokenize the data here first"
    path = "data.mix" if spec.data.mix else "data.path"
    yield ConfigError(path, ", ".join(map(str, missing)), rule, ["launch prepare ..., with the same words"])


def _errors(spec: RunSpec, survey: Survey) -> Iterator[ConfigError]:
    tokens, length, path = survey.tokens, spec.sequence_length, spec.data.path
    missing = [name for name in spec.task.rows if survey.columns and name not in survey.columns]
    if missing:
        read, held = (", ".join(each) for each in (spec.task.rows, survey.columns))
        rule = f"task={spec.task.name} reads the columns {read}; the data have {held}, and no {', no '.join(missing)}"
        from launcher.data import task_rows  # Late, because few runs read rows.

        yield ConfigError("task.name", spec.task.name, rule, task_rows.other_tasks(survey.columns, spec.task.name))
        return
    if spec.counts_epochs and not backends.of(spec).profile.counts_epochs and not is_exact(spec, survey):
        rule = "the engine needs the number of steps before it opens the data, and only part of the data was counted"
        yield ConfigError(
            edit.length_key(spec), edit.length_value(spec), rule, [f"train.steps={spec.steps} train.epochs=null"]
        )
    named = survey.vocabulary is not None and spec.data.tokenizer == "bytes"  # A rule knows its ids without a look.
    if survey.largest >= spec.model.vocab_size and not named:
        rows = max(survey.largest + 1, survey.vocabulary or 0)
        rule = f"the data contain token id {survey.largest}, but the model's embedding ends below it"
        yield ConfigError("model.vocab_size", spec.model.vocab_size, rule, [f"model.vocab_size={rows}"])
    if tokens is None or survey.tokens_error > tokens // 2:
        return
    sizes = sizes_of(spec, survey) or [0]
    samples = min(sizes)
    if _all_cut_off(spec, survey):
        yield from _cut_off(spec, survey)
    elif not samples and survey.samples is not None:
        unread = survey.bad.count == survey.bad.rows > 0
        rule = "no row can be used" if unread else "no conversation has a turn to train on: no assistant turn with text"
        yield ConfigError("data.path", path, rule, ["data.on_bad_row=error" if unread else "data.train_on=all"])
    elif not samples:
        rule = f"{tokens} tokens are too few: a sample takes {length} tokens plus one"
        shorter = [f"train.sequence_length={tokens - 1}"] if tokens > 1 else []
        yield ConfigError("data.path", path, rule, ["data=synthetic data.path=null", *shorter])
    elif any(held_out(spec, size) >= size for size in sizes):
        rule = f"the data have {samples} samples, and all of them are held out for evaluation"
        yield ConfigError(
            "data.eval_fraction",
            spec.data.eval_fraction,
            rule,
            ["train.eval_every=null", "data=synthetic data.path=null"],
        )


def _all_cut_off(spec: RunSpec, survey: Survey) -> bool:
    """True if nothing would be trained: every conversation is cut off before its first label."""
    samples = survey.samples or ()
    return bool(samples) and is_exact(spec, survey) and untrained(spec, survey) == len(samples)


def _cut_off(spec: RunSpec, survey: Survey) -> Iterator[ConfigError]:
    if number := untrained(spec, survey):
        ends, length, answer = tokens_needed(spec, survey), spec.sequence_length, spec.task.completion_length
        longest = max((end for end in ends if end is not None), default=0)
        rule = f"{number} of {len(ends)} conversations are cut off before their first trained token"
        ways = [f"train.sequence_length={longest + 1}"] if longest > length else []
        if spec.task.name == "reward":
            rule = f"{number} of {len(ends)} pairs have a longer answer, and TRL drops these pairs"
        if spec.task.name == "grpo":
            rule = f"{number} of {len(ends)} prompts plus an answer are longer, and TRL truncates neither"
            shorter = answer + length - longest
            ways = [f"train.sequence_length={longest}"] + [f"task.completion_length={shorter}"] * (shorter > 0)
        yield ConfigError("train.sequence_length", length, rule, ways)


def _warnings(spec: RunSpec, survey: Survey) -> Iterator[ConfigError]:
    if spec.counts_epochs and not is_exact(spec, survey) and spec.data.samples is not None:
        rule = (
            "this is an estimate of an epoch from part of the data; the job counts all samples and sets its steps by it"
        )
        yield ConfigError("data.samples", spec.data.samples, rule)
    if not _all_cut_off(spec, survey):
        yield from _cut_off(spec, survey)
    if survey.equal:
        rule = f"{survey.equal} of {len(survey.samples or ())} pairs have equal answers, from which nothing is learned"
        yield ConfigError("data.path", spec.data.path, rule)
    if survey.bad.count:
        yield ConfigError("data.on_bad_row", spec.data.on_bad_row, survey.bad.sentences, ["data.on_bad_row=error"])
    if survey.missing is not None:
        yield _not_looked(survey.missing)
    if survey.vocabulary is not None and survey.largest < spec.model.vocab_size < survey.vocabulary:
        rule = (
            f"data.tokenizer={spec.data.tokenizer} has ids up to {survey.vocabulary - 1}, beyond the model's embedding"
        )
        yield ConfigError("model.vocab_size", spec.model.vocab_size, rule, [f"model.vocab_size={survey.vocabulary}"])


def _not_looked(error: Unusable) -> ConfigError:
    found = error.finding
    return ConfigError(found.path, found.found, f"not checked: {found.rule}", found.way_out)
