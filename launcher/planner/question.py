"""The planner's question: keys that the words fix or leave open, assumptions, and the engines that may answer.

A word that sets a key fixes it; a chosen option fixes the keys that its file sets, so ``parallel=fsdp`` fixes FSDP and
leaves its degrees open. A layout key with several values (``parallel.tensor=1,2,4``) restricts the search to these.
What an answer needs but the words do not set is assumed and reported: the cluster's size, and the sequences per step.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from launcher.base import machine, registry
from launcher.base.errors import ConfigError, ConfigErrors, raise_any
from launcher.base.frozen import dataclass
from launcher.config import recipes
from launcher.config.axes import Axis, read_axes
from launcher.config.catalog import PRESETS, Catalog
from launcher.config.choices import backend_of, keys_set_by
from launcher.config.overrides import Override, read
from launcher.config.request import Request, request
from launcher.planner.keys import SEARCHED
from launcher.planner.layouts import Assumption
from launcher.spec import RunSpec
from launcher.spec.edit import value_at

_NODE = 8  # GPUs in a typical node.
_SWEPT_GROUPS = (PRESETS, "backend", "zero", "precision", "checkpointing")
"""Groups whose options a layout may choose from."""

_BATCH_TOKENS = ((1.0e9, 2**19), (4.0e9, 2**20), (20.0e9, 2**21), (float("inf"), 2**22))
"""Tokens per step by parameters: 0.5 to 3.2 million (GPT-3, arXiv:2005.14165, table 2.1), as powers of two."""

_TUNING_SEQUENCES = 128
"""Default sequences per step of post-training (supervised and preference tuning of arXiv:2411.15124)."""

_CPU_SEQUENCES = 4
"""Default sequences per step on each CPU rank: CPU runs are trials, not full trainings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCandidate:
    """An engine that may answer."""

    words: tuple[str, ...]  # The words that choose it; empty if the question names it.
    spec: RunSpec  # The resulting run.
    fixed: frozenset[str]  # Keys fixed by the question, and by options chosen among several.


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question about layouts."""

    words: tuple[str, ...]  # As typed.
    assumptions: tuple[Assumption, ...]  # Words assumed for what the question leaves out.
    fixed: frozenset[str]  # Keys that the words set.
    choices: Mapping[str, tuple[object, ...]]  # Layout keys with several values, and these values.
    openings: tuple[EngineCandidate, ...]  # The engines that may answer.
    single: tuple[str, ...]  # The words with one value each: ``words`` without the ``choices``.
    catalog: Catalog  # The configuration folders.
    facts: machine.Machine  # This machine.

    @property
    def assumed(self) -> tuple[str, ...]:
        """The assumed words."""
        return tuple(each.override for each in self.assumptions)

    def compose(self, overrides: Sequence[str]) -> Request:
        """The run of a layout: the question's words, the assumed ones, and the layout's own."""
        return request((*self.single, *self.assumed, *overrides), catalog=self.catalog, facts=self.facts)


def ask(
    words: Sequence[str],
    *,
    vary: Sequence[str] = (),
    catalog: Catalog | None = None,
    facts: machine.Machine | None = None,
) -> Question:
    """Read a question from typed overrides, by default for this machine and the working folder's configuration.

    ``vary`` lists groups whose options are searched too (:data:`VARIED`). Raises ConfigErrors if a word is wrong, or if
    a swept key is not part of a layout.
    """
    catalog, facts = catalog or Catalog(folder=Path.cwd()), facts or machine.facts()
    axes = read_axes(words, catalog)
    groups, choices = _choices(axes.swept, catalog, facts)
    for group in vary:
        groups[group] = tuple(f"{group}={option}" for option in catalog.groups[group])
    typed = _typed(axes.fixed, catalog)
    fixed = keys_set_by(typed, catalog) | frozenset(choices)
    _require_open(vary, fixed)
    question = Question(
        words=tuple(words),
        assumptions=(),
        fixed=fixed,
        choices=choices,
        openings=(),
        single=axes.fixed,
        catalog=catalog,
        facts=facts,
    )
    question = replace(question, assumptions=tuple(_size(question)))
    named = backend_of(typed) is not None or any(each.group and each.key == PRESETS for each in typed)
    engines = () if named or groups.keys() & {PRESETS, "backend"} else _engines(question)
    run = question.compose((*engines[:1], *(texts[0] for texts in groups.values()))).require()
    if run.script is not None:
        rule = "a script distributes itself over the ranks, so there is no layout to search"
        raise ConfigErrors([ConfigError("script", run.script, rule, [f"launch check script={run.script}"])])
    question = replace(question, assumptions=(*question.assumptions, *_batch(question, run)))
    return replace(question, openings=tuple(_openings(question, engines, groups, vary)))


def _typed(words: Sequence[str], catalog: Catalog) -> list[Override]:
    overrides, errors = read(words, catalog)
    raise_any(errors)
    return recipes.expand(overrides, catalog)


def _choices(
    swept: Sequence[Axis], catalog: Catalog, facts: machine.Machine
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[object, ...]]]:
    """Group options, as typed, and key values that the words ask to try."""
    groups: dict[str, tuple[str, ...]] = {}
    keys: dict[str, tuple[object, ...]] = {}
    errors: list[ConfigError] = []
    for axis in swept:
        words = [f"{axis.key}={value}" for value in axis.values] if isinstance(axis.values, tuple) else []
        if words and axis.key in _SWEPT_GROUPS and axis.key in catalog.groups:
            groups[axis.key] = tuple(words)
        elif words and axis.key in SEARCHED:
            values = [_value(word, axis.key, catalog, facts) for word in words]
            keys[axis.key] = tuple(dict.fromkeys(value for value in values if not isinstance(value, ConfigError)))
            errors += [value for value in values if isinstance(value, ConfigError)]
        else:
            rule = "a plan is for one training on one cluster: only layout keys may have several values"
            errors.append(ConfigError(axis.key, None, rule, ["launch -m plan=best"]))
    raise_any(errors)
    return groups, keys


def _value(word: str, key: str, catalog: Catalog, facts: machine.Machine) -> object | ConfigError:
    found = request((word,), catalog=catalog, facts=facts)
    refused = next((error for error in found.errors if error.path == key), None)
    return refused or value_at(found.require(), key)


def _require_open(vary: Sequence[str], fixed: frozenset[str]) -> None:
    said_too = [group for group in vary if any(key == group or key.startswith(f"{group}.") for key in fixed)]
    if said_too:
        rule = "a varied group must be left open, but the words set it: leave those words out"
        raise ConfigErrors(ConfigError(f"--vary {group}", None, rule) for group in said_too)


def _engines(question: Question) -> tuple[str, ...]:
    """The words that choose each engine if the question names none, the default engine's first."""
    usual = question.compose(()).spec
    task = "pretrain" if usual is None else usual.task.name
    found = [name for name in registry.names("backends") if not registry.faults("backends", name)]
    found = [name for name in found if task in registry.load("backends", name).profile.tasks]
    found.sort(key=lambda name: usual is not None and name != usual.backend.name)
    openings = {name: registry.load("backends", name).profile.openings or (f"backend={name}",) for name in found}
    return tuple(word for words in openings.values() for word in words)


def _size(question: Question) -> Iterator[Assumption]:
    """One node of eight, if the words name a GPU that is not this machine's."""
    cluster = {"cluster.nodes": 1, "cluster.gpus_per_node": _NODE}
    hardware = {"hardware", "hardware.name"} & question.fixed
    if not hardware or set(cluster) & question.fixed == set(cluster):
        return
    run = question.compose(()).spec
    if run is None or run.hardware.device != "cuda" or run.hardware.name == "auto":
        return
    for key, value in cluster.items():
        if key not in question.fixed and "cluster" not in question.fixed:
            yield Assumption(override=f"{key}={value}", why="the cluster's size is not set")


def _batch(question: Question, run: RunSpec) -> Iterator[Assumption]:
    """Sequences per step: enough for the usual tokens of a model of this size, the same number on every GPU."""
    if run.train.global_batch_size is not None:
        return
    if {"train.micro_batch_size", "train.gradient_accumulation"} <= question.fixed:
        rule = "micro-batch and accumulation give each layout another batch, which changes the training: set the batch"
        way_out = [f"train.global_batch_size={run.global_batch_size}"]
        raise ConfigErrors([ConfigError("train.global_batch_size", None, rule, way_out)])
    if run.hardware.device == "cpu":
        sequences, why = _CPU_SEQUENCES * run.gpus, f"{_CPU_SEQUENCES} sequences per CPU rank, for a trial"
    elif run.task.name != "pretrain" or run.data.is_chat or run.adapter.name != "none":
        sequences = -(-_TUNING_SEQUENCES // run.gpus) * run.gpus
        why = f"{sequences} sequences a step, usual for post-training (arXiv:2411.15124)"
    else:
        from launcher.estimate import families
        from launcher.estimate.rank.counts import parameter_counts

        size = parameter_counts(run, families.of(run.model))[0]
        tokens = next(tokens for most, tokens in _BATCH_TOKENS if size <= most)
        sequences = max(1, -(-tokens // (run.sequence_length * run.gpus))) * run.gpus
        why = f"{sequences * run.sequence_length:,} tokens a step, usual for this size (arXiv:2005.14165, table 2.1)"
    yield Assumption(override=f"train.global_batch_size={sequences}", why=f"the global batch is not set: {why}")


def _openings(
    question: Question, engines: Sequence[str], groups: Mapping[str, tuple[str, ...]], vary: Sequence[str]
) -> Iterator[EngineCandidate]:
    """Each engine with each option to try; an option fixes the keys that it sets, as a typed one does."""
    open_words = {*engines, *(word for group in vary for word in groups[group])}
    for choice in itertools.product(*([engines] if engines else []), *groups.values()):
        found = question.compose(choice)
        if found.errors and len(engines) < 2:
            raise ConfigErrors(found.errors)
        if not found.errors and found.spec is not None:
            options = [word for word in choice if word not in open_words]
            fixed = question.fixed | keys_set_by(_typed(options, question.catalog), question.catalog)
            yield EngineCandidate(words=choice, spec=found.spec, fixed=fixed)
