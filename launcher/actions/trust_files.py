"""``launch recipe trust``: show what of a file from elsewhere would act, and trust exactly these bytes from now on.

With ``--origin`` it is the repository that is trusted, by the addresses of its remotes: what lies in ``recipes/``,
``runs/`` and ``conf/`` of a folder of it, now and after each pull.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from launcher.actions.requests import Output, folder
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.config import recipes, safe_yaml
from launcher.config.catalog import Catalog, yaml_files
from launcher.config.recipes import literal
from launcher.config.trust import privileged_settings
from launcher.config.trust import sources as trust
from launcher.config.trust import store as trust_store
from launcher.config.trust.privileged_settings import PrivilegedSetting
from launcher.config.trust.sources import Source
from launcher.rundir import contents, lock

type _Acts = tuple[Path, PrivilegedSetting]
"""A file, and a setting of it."""


def trust_file(words: Sequence[str], *, origin: bool) -> Output:
    """Show and trust a file, or with ``origin`` the repository around it."""
    if origin:
        return _trust_origin(Path(words[0]) if words else folder())
    if not words:
        rule = "name what is to be trusted: a recipe, a lock, or a folder of configuration groups"
        raise ConfigErrors([ConfigError("FILE", None, rule, ["launch recipe trust FILE"])])
    sources = _sources(words[0])
    foreign = [source for source in sources if trust.why_foreign(source, folder=folder()) is not None]
    privileged = [(source.path, setting) for source in sources for setting in source.privileged]
    for source in foreign:
        trust.note_trusted(source.path)
    if foreign:
        said = f"launch: trusted as it is now: {' '.join(str(source.path) for source in foreign)}"
    else:
        of = "is your own, or trusted already" if privileged else "does nothing that needs your word"
        said = f"launch: there is nothing to trust: {words[0]} {of}"
    path = folder() / words[0] if len(sources) != 1 else sources[0].path
    return _output(path, privileged, [], _lines(privileged, named=len(sources) > 1), trusted=bool(foreign), said=said)


def _sources(word: str) -> list[Source]:
    """The recipe, lock, run, or files of a folder of groups that a word names, with the settings that act in them."""
    path = folder() / word
    if path.is_dir() and not (path / contents.LOCK).is_file():
        if not any(yaml_files(path)):
            rule = "the folder holds neither a lock nor configuration groups"
            raise ConfigErrors([ConfigError("FILE", word, rule, ["launch recipe trust recipes/NAME.yaml"])])
        options = privileged_settings.of_conf(path).items()
        return [Source(path=file, privileged=privileged) for file, privileged in options]
    if path.is_dir() or (path.is_file() and _is_lock(path)):
        found = lock.read(path)
        return [Source(path=found.path, privileged=privileged_settings.of_spec(found.spec), written=True)]
    recipe = Catalog(folder=folder()).recipe(word)
    return [Source(path=recipe, privileged=privileged_settings.of_recipe(recipes.load(recipe)))]


def _is_lock(path: Path) -> bool:
    content = safe_yaml.load(path)
    return isinstance(content, Mapping) and "spec" in content


def _trust_origin(place: Path) -> Output:
    urls = trust.untrusted_remotes(folder() / place)
    privileged = [(path, setting) for path, setting in _acting_here() if trust.remotes(path)] if urls else []
    if urls:
        trust_store.add_origins(urls)
        said = "launch: trusted: recipes/, runs/ and conf/ of repositories from there, now and after each pull"
    else:
        said = f"launch: there is nothing to trust: {place} lies in no repository with a remote that is not trusted"
    return _output(place, privileged, urls, [*urls, *_lines(privileged, named=True)], trusted=bool(urls), said=said)


def _acting_here() -> list[_Acts]:
    """The settings that act in recipes and configuration groups of the working folder; none of a broken recipe."""
    catalog, found = Catalog(folder=folder()), list[_Acts]()
    for path in (path for place in catalog.recipes[:-1] for path in sorted(place.glob("*.yaml"))):
        try:
            found += [(path, setting) for setting in privileged_settings.of_recipe(recipes.load(path))]
        except ConfigErrors:
            continue
    groups = (item for place in catalog.conf[:-1] for item in privileged_settings.of_conf(place).items())
    return found + [(path, setting) for path, privileged in groups for setting in privileged]


def _lines(privileged: Sequence[_Acts], *, named: bool) -> Iterator[str]:
    """Privileged settings with their whole values, one a line, behind their files where these are to be named."""
    for path, setting in privileged:
        where = f"{os.path.relpath(path, folder())}: " if named else ""
        yield f"{where}{setting.key}={literal(setting.value)} {setting.does}"


def _output(
    path: Path, privileged: Sequence[_Acts], urls: Sequence[str], lines: Iterable[str], *, trusted: bool, said: str
) -> Output:
    acts = [
        {"path": str(file), "key": setting.key, "value": setting.value, "does": setting.does}
        for file, setting in privileged
    ]
    content = {"path": str(path), "acts": acts, "origins": [*urls], "trusted": trusted}
    return Output(document={"schema": 1, "recipe": content}, text="\n".join(lines), said=(said,))
