"""Composition and parsing of a command line into a RunSpec, with all errors of keys, values and types at once."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.base import machine
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.frozen import dataclass
from launcher.config import choices, open_values, recipes, synonyms
from launcher.config.catalog import Catalog
from launcher.config.compose import Config, compose
from launcher.config.overrides import Override, is_own_model, read
from launcher.config.recipes import Recipe
from launcher.estimate import families
from launcher.spec import RunSpec
from launcher.spec.model import SCRIPTS_OWN
from launcher.spec.parse import parse

if TYPE_CHECKING:
    from launcher.config.hub.own_models import OwnModel


_FP32 = "precision is not set and the ranks are on CPUs: fp32, as bf16 is many times slower on most of them"


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """The words of a command line that describe one run, or a sweep."""

    words: tuple[str, ...]  # Overrides as typed.
    script_args: tuple[str, ...] = ()  # The words after ``--``.
    catalog: Catalog  # The configuration folders to choose from.

    @property
    def overrides(self) -> tuple[Override, ...]:
        """The valid overrides, in order."""
        return self._read[0]

    @property
    def errors(self) -> tuple[ConfigError, ...]:
        """An error for each invalid word."""
        return self._read[1]

    @cached_property
    def _read(self) -> tuple[tuple[Override, ...], tuple[ConfigError, ...]]:
        overrides, errors = read(self.words, self.catalog)
        return tuple(overrides), tuple(errors)

    @cached_property
    def recipe(self) -> tuple[Path, Recipe] | None:
        """The file of the named recipe, and the recipe without what other words override; None without one."""
        return recipes.named(self.overrides, self.catalog)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The user's request: the specification, or as much of it as can be parsed, and its errors.

    ``spec`` may be set together with errors: it then comes from the remaining overrides, so that the rules can be
    checked too and all errors of a configuration are reported at once. ``warnings`` are about values that were assumed.
    ``backend`` is the one that the command line or its recipe names, which no way out may change. ``said`` are notes
    on defaults that differ on this run's device. ``chosen`` are the overrides that ``auto`` and ``best`` stand for.
    """

    overrides: tuple[str, ...]
    spec: RunSpec | None
    errors: tuple[ConfigError, ...]
    warnings: tuple[ConfigError, ...] = ()
    backend: str | None = None
    said: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()

    def require(self) -> RunSpec:
        """Return the specification; raises ConfigErrors if there were errors."""
        if self.errors or self.spec is None:
            raise ConfigErrors(self.errors)
        return self.spec


def request(
    texts: Sequence[str],
    *,
    script_args: Sequence[str] = (),
    catalog: Catalog | None = None,
    facts: machine.Machine | None = None,
) -> Request:
    """Compose and parse a command line, by default in the working folder and on this machine."""
    catalog = catalog or Catalog(folder=Path.cwd())
    return request_of(CommandLine(words=tuple(texts), script_args=tuple(script_args), catalog=catalog), facts)


def request_of(line: CommandLine, facts: machine.Machine | None = None) -> Request:
    """Compose and parse a command line that is already parsed into words, as :func:`request` does."""
    texts, script_args, catalog = line.words, line.script_args, line.catalog
    overrides: Sequence[Override] = line.overrides
    errors = line.errors
    try:
        given = recipes.expand(overrides, catalog)
        own = _own_model(given, overrides, catalog)
        overrides = _with_weights(own.expand(given) if own is not None else given, overrides, catalog)
        overrides = choices.with_defaults(overrides, catalog)
    except ConfigErrors as error:
        return Request(overrides=tuple(texts), spec=None, errors=(*errors, *error.errors))
    backend, overrides = choices.backend_of(overrides), choices.with_task(overrides)
    facts = facts or machine.facts()
    spec, found = _specify(overrides, script_args, catalog, facts)
    if found and spec is None:
        broken = {error.path for error in found}
        rest = [override for override in overrides if override.key not in broken]
        if len(rest) < len(overrides):
            spec, _ = _specify(rest, script_args, catalog, facts)
    warnings = tuple(_guessed(spec, overrides, facts)) if spec is not None else ()
    if own is not None and spec is not None:
        keys = {override.key for override in given}
        warnings += tuple(own.remarks(spec, keys))
        errors = (*errors, *own.refusals(spec, keys))
    typed = {override.key for override in overrides}
    is_fp32 = spec is not None and spec.script is None and open_values.leaves_precision(spec.hardware.device, typed)
    return Request(
        overrides=tuple(texts),
        spec=spec,
        errors=(*errors, *found),
        warnings=warnings,
        backend=backend,
        said=(_FP32,) if is_fp32 else (),
    )


def _own_model(overrides: Sequence[Override], typed: Sequence[Override], catalog: Catalog) -> "OwnModel | None":
    if not any(override.group and override.key == "model" and is_own_model(override.value) for override in overrides):
        return None
    from launcher.config.hub import own_models  # Late, because few runs need it.

    return own_models.chosen(overrides, catalog, fetching=own_models.may_fetch(typed, catalog))


def _with_weights(overrides: Sequence[Override], typed: Sequence[Override], catalog: Catalog) -> Sequence[Override]:
    if not any(override.key == "model.weights" and "/" in override.value for override in overrides):
        return overrides
    from launcher.config.hub import own_models  # Late, because few runs need it.

    return own_models.with_weights(overrides, catalog, fetching=own_models.may_fetch(typed, catalog))


def _guessed(spec: RunSpec, overrides: Sequence[Override], facts: machine.Machine) -> Iterator[ConfigError]:
    """A warning that the number of GPUs per node was assumed: it is not set, and this machine has none."""
    said = {"cluster", "cluster.gpus_per_node"} & {override.key for override in overrides}
    if said or facts.gpus or spec.hardware.device != "cuda" or spec.hardware.name == "auto":
        return
    number = spec.cluster.gpus_per_node
    rule = f"it is not set and this machine has no GPU to count: {number} assumed, as for its CPU ranks"
    yield ConfigError("cluster.gpus_per_node", None, rule, [f"cluster.gpus_per_node={open_values.SLURM_GPUS}"])


def _specify(
    overrides: Sequence[Override], script_args: Sequence[str], catalog: Catalog, facts: machine.Machine
) -> tuple[RunSpec | None, tuple[ConfigError, ...]]:
    try:
        keys = {override.key for override in overrides}
        config: Config = open_values.with_machine(compose(overrides, catalog), facts, keys)
        config["train"] = open_values.with_length(config["train"], keys)
        config["train"] = open_values.one_of(config["train"], ("train.eval_every", "train.evals_per_epoch"), keys)
        if "data.path" not in keys and config["data"].get("mix"):
            config["data"] = {**config["data"], "path": None}
        config["save"] = open_values.one_of(config["save"], ("save.every", "save.per_epoch"), keys)
        if script_args:
            config["script_args"] = list(script_args)
        if config["script"] and not any(override.key.partition(".")[0] == "model" for override in overrides):
            model = {"name": Path(str(config["script"])).stem, "source": SCRIPTS_OWN}
            config["model"] = {**config["model"], **model}
        return _with_samples(families.with_targets(parse(config))), ()
    except ConfigErrors as error:
        return None, tuple(map(synonyms.correction, error.errors))


def _with_samples(spec: RunSpec) -> RunSpec:
    if spec.train.epochs is None and spec.train.evals_per_epoch is None and spec.save.per_epoch is None:
        return spec
    from launcher.data import epoch  # Imported late: few runs set their length in epochs.

    return epoch.with_samples(spec)
