"""``launch recipe save`` and ``launch recipe fetch``: recipes that are written into the working folder.

What a file is, the user's own or from elsewhere, is recorded before it appears, and where that fails it does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from launcher.actions.asking import folder, write_new
from launcher.actions.output import Output
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.terminal import say
from launcher.config import recipe_file, recipes
from launcher.config.catalog import Catalog
from launcher.config.overrides import read
from launcher.config.trust import privileged_settings
from launcher.config.trust import sources as trust
from launcher.config.trust.privileged_settings import PrivilegedSetting
from launcher.config.trust.sources import Source
from launcher.rundir import contents, status
from launcher.spec.parse import parse

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")


def save(name: str, texts: Sequence[str], *, run: str | None, summary: str | None, trusted: bool) -> Output:
    """Write a command line, or that of a run, as a recipe of the working folder.

    Args:
        name: The recipe's name.
        texts: Its overrides.
        run: The run whose command line stands before them.
        summary: What it is for, in one line.
        trusted: True to trust what is from elsewhere.
    """
    name = name.removesuffix(".yaml")
    if not texts and run is None:
        rule = "a recipe is made of overrides, or of the command line of a run"
        ways = [f"launch recipe save {name} model=tiny", f"launch recipe save {name} --run RUN"]
        raise ConfigErrors([ConfigError("OVERRIDES", None, rule, ways)])
    require_name("NAME", name, "my_recipe")
    catalog, directory = Catalog(folder=folder()), None
    if run is not None:
        from launcher.actions.find_runs import find

        [directory, *_] = find([run])
        catalog = Catalog(folder=typed_in(directory))
        texts = [*_words_of(directory, catalog), *texts]
    origin = _origin(directory, texts, catalog, trusted=trusted)
    content = recipe_file.content_of(texts, catalog, summary=summary or f"saved from: launch {' '.join(texts)}")
    return _said(_written(name, content, origin), f"launch recipe={name}")


def keep(
    name: str,
    texts: Sequence[str],
    catalog: Catalog,
    *,
    summary: str,
    source: str,
    run: Path | None = None,
    trusted: bool = False,
) -> Path:
    """Write overrides as a recipe of the working folder; its path.

    Args:
        name: Its name.
        texts: The overrides.
        catalog: The configuration folders.
        summary: What the recipe is for, in one line.
        source: Where its numbers are from, in one line.
        run: The run that the words are of, which may be from elsewhere.
        trusted: True to trust what is from elsewhere.

    Raises:
        ConfigErrors: A word cannot be read, or holds a secret.
        SubmitError: There is a recipe of this name, or it cannot be written.
    """
    content = {**recipe_file.content_of(texts, catalog, summary=summary), "source": source}
    return _written(name, content, _origin(run, texts, catalog, trusted=trusted))


def place(name: str) -> Path:
    """The file of a recipe of the working folder."""
    return folder() / "recipes" / f"{name}.yaml"


def require_name(where: str, name: str, way_out: str) -> None:
    """Refuse a name that is none.

    Raises:
        ConfigErrors: It is not.
    """
    if not _NAME.match(name):
        raise ConfigErrors([ConfigError(where, name, "a recipe's name is letters, digits and _ . -", [way_out])])


def _written(name: str, content: Mapping[str, Any], origin: str | None) -> Path:
    path = place(name)
    privileged = privileged_settings.of_recipe(recipes.check(content, str(path)))
    note = partial(trust.note_own, path) if origin is None else partial(_note_foreign, path, origin, privileged)
    write_new(path, recipe_file.as_text(name, content), otherwise=": choose another name", before=note)
    if origin is not None:
        say(f"launch: it is from {origin}, which is not trusted, and so is as foreign: launch recipe trust {name}")
    return path


def _note_foreign(path: Path, origin: str, privileged: Sequence[PrivilegedSetting], content: bytes) -> None:
    trust.note_foreign(path, content, origin, privileged)


def _origin(run: Path | None, texts: Sequence[str], catalog: Catalog, *, trusted: bool) -> str | None:
    """The run or recipe from elsewhere that a recipe is made of; None where it is the user's own words alone."""
    if run is not None and not status.is_own(run):
        if not trusted:
            return str(run)
        status.remember(run)
    named = recipes.named(read(texts, catalog)[0], catalog)
    if named is None:
        return None
    path, privileged = named[0], privileged_settings.of_recipe(named[1])
    if trusted:
        trust.require([Source(path=path, privileged=privileged)], folder=catalog.folder, given=True)
    return str(path) if trust.is_foreign(path, folder=catalog.folder, privileged=privileged) else None


def _words_of(run: Path, catalog: Catalog) -> list[str]:
    """The command line of a run; of one that repeats a lock, the words that mean the same without the lock."""
    words: list[str] | None = (contents.read(run, contents.PLAN) or {}).get("overrides")
    if words is None:
        raise contents.BadRecord(run / contents.PLAN, "it does not say the command line of the run")
    if not any(word.startswith("--from=") for word in words):
        return words
    return recipe_file.words_for(contents.spec_of(run), catalog)


def typed_in(run: Path) -> Path:
    """The folder in which a run's command line was typed, whose recipes it may name; this one where that is gone."""
    there = Path(contents.known(run, contents.JOB).get("working_directory", ""))
    return there if there.is_absolute() and there.is_dir() else folder()


def fetch(source: str, name: str | None) -> Output:
    """Write a recipe or lock from the network into the working folder."""
    from launcher.config import safe_yaml
    from launcher.config.trust import fetch

    name = name or Path(source.partition("#sha256=")[0].rpartition("#")[2]).stem
    require_name("--name", name, "--name mine")
    content = fetch.fetch(source)
    data = safe_yaml.loads(content.decode(errors="replace"), source)
    path, use = folder() / "recipes" / f"{name}.yaml", f"launch recipe={name}"
    if isinstance(data, dict) and "spec" in data:
        path, use = folder() / f"{name}.yaml", f"launch run --from {name}.yaml"
        privileged = privileged_settings.of_spec(parse(data["spec"]))
    else:
        privileged = privileged_settings.of_recipe(recipes.check(data, source))
    write_new(
        path, content, otherwise=": choose another --name", before=partial(_note_foreign, path, source, privileged)
    )
    return _said(path, use)


def _said(path: Path, use: str) -> Output:
    return Output(document={"schema": 1, "recipe": {"path": str(path), "use": use}}, text=f"{path}\n{use}")
