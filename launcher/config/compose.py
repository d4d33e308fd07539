"""Composition of choices and overrides into one plain dictionary. The only module that imports Hydra.

Hydra composes the parts: the defaults under one preset, and each option separately. Parts are cached, in memory and in
the user's cache folder, by the digest of the configuration files; choices and values are then inserted here, values
that need Hydra's grammar as Hydra parses them. If options reach outside of their own group, each set of choices is
composed and cached as a whole; a value or a configuration that interpolates is composed by Hydra in full. A test
checks that all of these give the same result.
"""

import contextlib
import re
import shlex
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from launcher.base import cache, secret
from launcher.base.errors import ComposeError, ConfigError
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.package import __version__
from launcher.config import safe_yaml
from launcher.config.catalog import PRESETS, PRIMARY, Catalog
from launcher.config.overrides import Override, takes_text

type Config = JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """All values between two numbers, over which only a sampler can sweep; ``log`` draws their logarithm uniformly."""

    low: float
    high: float
    integer: bool
    log: bool


_folders: list[str] = []
"""The user's folders of the composition in progress: Hydra takes a plugin's class, not an instance with state."""

_one_at_a_time = threading.Lock()  # Hydra's state is global, and a program may check in several threads.


def compose(overrides: Sequence[Override], catalog: Catalog) -> Config:
    """Compose one configuration from checked overrides, weakest first; raises ComposeError if one cannot be parsed."""
    sweeping = [override for override in overrides if override.sweeps]
    if sweeping:
        rule = "several values make a sweep, but this starts one run"
        raise ComposeError(ConfigError(o.key, o.value, rule, _one_or_all(o)) for o in sweeping)
    catalog.require_bounded()
    settings = [override for override in overrides if not override.group]
    values = _values(settings)
    base = None if values is None else _base(_choices(overrides), catalog)
    if values is None or base is None:
        return _hydra(_last_choices(overrides), catalog)
    config = dict(base)
    for override, value in zip(settings, values, strict=True):
        _put(config, override.key.split("."), value)
    return config


def _values(settings: Sequence[Override]) -> list[object] | None:
    """The values of settings, in order; None if one interpolates, or is a mapping with keys that are not text."""
    refuse_unreadable(override.hydra for override in settings if not override.plain()[0])
    values = [value_of(override) for override in settings]
    return values if all(map(_stands_alone, values)) else None


def _stands_alone(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _stands_alone(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_stands_alone, value))
    return (isinstance(value, str) and "${" not in value and value != "???") or isinstance(value, int | float | None)


def _choices(overrides: Iterable[Override]) -> dict[str, str]:
    return {override.key: override.value for override in overrides if override.group}


def _last_choices(overrides: Sequence[Override]) -> list[str]:
    """Every value in order, and the last choice of each group: Hydra refuses a group that is chosen twice."""
    chosen = [Override("", key, value, group=True).hydra for key, value in _choices(overrides).items()]
    return chosen + [override.hydra for override in overrides if not override.group]


def _one_or_all(override: Override) -> list[str]:
    value = override.value.partition(",")[0]
    one = [f"{override.key}={value}"] if value.isalnum() else []
    is_path = not override.group and "'" not in override.value and {"/", "."} & {*override.value}
    return [*one, f"-m {override.text}", *([f"\"{override.key}='{override.value}'\""] if is_path else [])]


def _put(config: Config, keys: list[str], value: object) -> None:
    for key in keys[:-1]:
        config[key] = config = dict(config.get(key) or {})
    config[keys[-1]] = _merged(config.get(keys[-1]), value)


def _merged(old: object, new: object) -> object:
    """Merge mappings key by key; any other value replaces the earlier one."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}


def _base(choices: dict[str, str], catalog: Catalog) -> Config | None:
    """The composition of only the choices; None if files interpolate, since values may then change others."""
    if catalog.interpolates:
        return None
    if not catalog.options_stand_alone:
        return _part(PRIMARY, tuple(sorted(choices.items())), catalog)
    config = dict(_part(PRIMARY, tuple((g, o) for g, o in choices.items() if g == PRESETS), catalog))
    for group, option in choices.items():
        if group != PRESETS:
            config[group] = _part(f"{group}/{option}", (), catalog)[group]
    return config


def _part(name: str, choices: tuple[tuple[str, str], ...], catalog: Catalog) -> Config:
    # Without own files the composition is the same in every folder.
    folder = catalog.folder if len(catalog.conf) > 1 else catalog.conf[-1].parent
    return _composed(name, choices, folder, catalog.digest)


@lru_cache(maxsize=512)
def _composed(name: str, choices: tuple[tuple[str, str], ...], folder: Path, digest: str) -> Config:

    def found() -> Config:
        return _hydra([Override("", *item, group=True).hydra for item in choices], Catalog(folder=folder), name)

    # The user's cache folder outlives this version, and another version may compose the same files differently.
    config: Config = cache.answer("composed", [__version__, name, choices, digest], found)
    return config


def _hydra(overrides: list[str], catalog: Catalog, name: str = PRIMARY) -> Config:
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    refuse_unreadable(overrides)
    try:
        ours = str(catalog.conf[-1])
        with _one_at_a_time, _user_folders_first(catalog), initialize_config_dir(ours, version_base="1.3"):
            config = OmegaConf.to_container(_configuration(name, overrides), resolve=True, throw_on_missing=False)
    except (HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError, TypeError) as error:
        rule = " ".join(str(error).split())
        raise ComposeError([ConfigError("conf", str(catalog.conf[0]), f"it does not compose: {rule}")]) from None
    assert isinstance(config, dict), "a composed configuration is a mapping"
    return _completed({str(key): value for key, value in config.items()}, catalog, name)


def _configuration(name: str, overrides: list[str]) -> Any:
    """Compose as ``hydra.compose`` does, without the settings of a program that Hydra starts (its node ``hydra``).

    Composing these takes two thirds of the time of an option. Raises HydraException if a file adds folders to Hydra's
    search path, since Hydra finds a package's folder by importing it.
    """
    from hydra._internal.config_repository import CachingConfigRepository
    from hydra._internal.defaults_list import create_defaults_list
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    loader = GlobalHydra.instance().config_loader()
    repository = CachingConfigRepository(loader.repository)
    loaded = repository.load_config(config_path=name)
    if loaded is not None and OmegaConf.select(loaded.config, "hydra.searchpath") is not None:
        raise HydraException(f"hydra.searchpath in {name}.yaml is not supported: groups are only read from conf/")
    parsed = OverridesParser.create().parse_overrides(overrides)
    found = create_defaults_list(repository, name, parsed, prepend_hydra=False, skip_missing=False)
    config = loader._compose_config_from_defaults_list(found.defaults, repository)
    OmegaConf.set_struct(config, True)
    loader._apply_overrides_to_config(found.config_overrides, config)
    return config


def _completed(config: Config, catalog: Catalog, name: str) -> Config:
    if len(catalog.conf) == 1:
        return config  # Every shipped option inherits its base.
    chosen, is_option, _ = name.partition("/")
    for group in [chosen] if is_option else catalog.groups:
        found, base = config.get(group, {}), catalog.conf[-1] / group / "_base.yaml"
        if not isinstance(found, dict):
            rule = f"must be a group of keys; a file in {catalog.conf[0]} sets it"
            raise ComposeError([ConfigError(group, found, rule, [f"launch show {group}"])])
        if base.is_file():
            inherited: Any = safe_yaml.load(base)
            config[group] = {**inherited, **found}
    if not is_option:
        config = {"script": None, "script_args": [], **config}
    return config


@contextlib.contextmanager
def _user_folders_first(catalog: Catalog) -> Iterator[None]:
    """Put the user's folders before the shipped ones on Hydra's search path; ``hydra.searchpath`` can only append."""
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class UserFolders(SearchPathPlugin):  # type: ignore[misc]
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            for folder in _folders:
                search_path.prepend(provider="user", path=f"file://{folder}")

    if not any(plugin.__name__ == "UserFolders" for plugin in Plugins.instance().discover(SearchPathPlugin)):
        Plugins.instance().register(UserFolders)
    _folders[:] = [str(folder) for folder in reversed(catalog.conf[:-1])]
    try:
        yield
    finally:
        _folders.clear()


def refuse_unreadable(texts: Iterable[str]) -> None:
    """Raise ComposeError if Hydra's grammar cannot parse an override."""
    texts = list(texts)
    if not texts:
        return
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    if unreadable := [error for text in texts if (error := _unreadable(parser, text, HydraException))]:
        raise ComposeError(unreadable)


def _unreadable(parser: Any, text: str, exception: type[Exception]) -> ConfigError | None:
    try:
        parser.parse_override(text)
    except exception as error:
        key, _, value = text.lstrip("+").partition("=")
        if secret.shown(value, key) != value:  # Hydra's message and the quoted word would repeat parts of it.
            rule = "the value cannot be parsed: quote a text with special characters"
            return ConfigError(key, secret.NOT_SHOWN, rule)
        reason = str(error).splitlines()[0]
        quoted = value.strip("'\"").replace('"', '\\"')
        ways = [shlex.quote(f'{key}="{quoted}"')] if takes_text(key) else []
        return ConfigError(key, value, f"the value cannot be parsed: {reason}", ways)
    return None


def value_of(override: Override) -> object:
    """Return the value of an override as data: a name, number, boolean, list or mapping."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    plain, value = override.plain()
    if override.group:
        return override.value
    return value if plain else OverridesParser.create().parse_override(override.hydra).value()


_LARGE = re.compile(r"^(\d{6,})\.0$")  # An integer that Hydra prints as a float, such as 1e8.
_NAME = re.compile(r"[A-Za-z0-9_]+\Z")  # A single option's name, recognized without importing Hydra's grammar (0.2 s).


def swept(override: Override, options: Sequence[str]) -> tuple[str, ...] | Interval | None:
    """Return the values that an override sweeps over in Hydra's grammar; None if it names one.

    ``glob(...)`` selects from ``options``, the names of the override's group. Raises ConfigErrors: The value cannot be
    parsed, or nothing matches the glob.
    """
    if override.group and _NAME.match(override.value):
        return None
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Glob, IntervalSweep
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    if unreadable := _unreadable(parser, override.text, HydraException):
        raise ComposeError([unreadable])
    parsed = parser.parse_override(override.text)
    if not parsed.is_sweep_override():
        return None
    content = parsed.value()
    if isinstance(content, IntervalSweep):
        integer = isinstance(content.start, int) and isinstance(content.end, int)
        return Interval(low=content.start, high=content.end, integer=integer, log="log" in content.tags)
    if not isinstance(content, Glob):
        return tuple(_LARGE.sub(r"\1", value) for value in parsed.sweep_string_iterator())
    found = tuple(content.filter(list(options)))
    if not found:
        names = ", ".join(options)
        rule = f"the pattern matches none of the options {names}" if options else "only a group has options"
        raise ComposeError([ConfigError(override.key, override.value, rule)])
    return found
