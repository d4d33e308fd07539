"""``launch recipe trust``: show what of a file from elsewhere would act, and trust exactly these bytes from now on.

With ``--origin`` it is the repository that is trusted, by the addresses of its remotes: what lies in ``recipes/``,
``runs/`` and ``conf/`` of a folder of it, now and after each pull.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.commands._common import folder, print_json, say
from launcher.config import acting, origins, recipes, safe_yaml, trust, trust_store
from launcher.config.acting import Deed
from launcher.config.catalog import Catalog
from launcher.config.recipes import literal
from launcher.config.trust import Source
from launcher.errors import ConfigError, ConfigErrors
from launcher.rundir import lock, losses


def trust_file(words: Sequence[str], options: argparse.Namespace) -> int:
    """Show and trust a file, or with ``--origin`` the repository around it."""
    if options.origin:
        return _trust_origin(Path(words[0]) if words else folder(), options)
    if not words:
        rule = "name what is to be trusted: a recipe, a lock, or a folder of configuration groups"
        raise ConfigErrors([ConfigError("FILE", None, rule, ["launch recipe trust FILE"])])
    source = _source(words[0])
    reason = trust.why_foreign(source, folder=folder())
    if not options.json:
        for deed in source.deeds:
            print(_line(deed))
    if reason is not None:
        trust.note_trusted(source.path)
    say(_nothing_to_do(source) if reason is None else f"launch: {source.path} is trusted as it is now")
    if options.json:
        facts = {"path": str(source.path), "acts": [_as_dict(deed) for deed in source.deeds]}
        print_json({"schema": 1, "recipe": {**facts, "origins": [], "trusted": reason is not None}})
    return 0


def _nothing_to_do(source: Source) -> str:
    if not source.deeds:
        return f"launch: there is nothing to trust: {source.path} does nothing that needs your word"
    return f"launch: there is nothing to trust: {source.path} is your own, or trusted already"


def _source(word: str) -> Source:
    """The recipe, lock, run or folder of configuration groups that a word names, with all that acts in it.

    Raises:
        ConfigErrors: There is none, or it is none of these.
    """
    path = folder() / word
    if path.is_dir() and not (path / losses.NAME).is_file():
        if not any(trust.files_of(path)):
            rule = "the folder holds neither a lock nor configuration groups"
            raise ConfigErrors([ConfigError("FILE", word, rule, ["launch recipe trust recipes/NAME.yaml"])])
        return Source(path=path, deeds=acting.of_conf(path))
    if path.is_dir() or (path.is_file() and _is_lock(path)):
        found = lock.read(path)
        return Source(path=found.path, deeds=acting.of_spec(found.spec))
    recipe = Catalog(folder=folder()).recipe(word)
    return Source(path=recipe, deeds=acting.of_recipe(recipes.load(recipe)))


def _is_lock(path: Path) -> bool:
    content = safe_yaml.load(path)
    return isinstance(content, Mapping) and "spec" in content


def _trust_origin(place: Path, options: argparse.Namespace) -> int:
    """Trust the repository around a file or folder, after its addresses and what acts in its recipes were shown."""
    urls = trust.untrusted_remotes(folder() / place)
    deeds = [(path, deed) for path, deed in _acting_here() if origins.remotes(path)] if urls else []
    if not options.json:
        for url in urls:
            print(url)
        for path, deed in deeds:
            print(f"{path.relative_to(folder())}: {_line(deed)}")
    if urls:
        trust_store.add_origins(urls)
        say("launch: trusted: recipes/, runs/ and conf/ of repositories from there, now and after each pull")
    else:
        say(f"launch: there is nothing to trust: {place} lies in no repository with a remote that is not trusted")
    if options.json:
        acts = [{"path": str(path), **_as_dict(deed)} for path, deed in deeds]
        print_json({"schema": 1, "recipe": {"path": str(place), "acts": acts, "origins": urls, "trusted": bool(urls)}})
    return 0


def _acting_here() -> list[tuple[Path, Deed]]:
    """What acts in the recipes and configuration groups of the working folder; a broken recipe acts in no way."""
    catalog, found = Catalog(folder=folder()), list[tuple[Path, Deed]]()
    for path in (path for place in catalog.recipes[:-1] for path in sorted(place.glob("*.yaml"))):
        try:
            found += [(path, deed) for deed in acting.of_recipe(recipes.load(path))]
        except ConfigErrors:
            continue
    return found + [(place, deed) for place in catalog.conf[:-1] for deed in acting.of_conf(place)]


def _line(deed: Deed) -> str:
    """A deed with the whole of its value, in one line."""
    return f"{deed.key}={literal(deed.value)} {deed.does}"


def _as_dict(deed: Deed) -> dict[str, Any]:
    return {"key": deed.key, "value": deed.value, "does": deed.does}
