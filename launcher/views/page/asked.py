"""The settings of a run and its machine, and how they differ from the defaults and from this machine."""

import json
import shlex
from collections.abc import Iterator, Mapping

from launcher.base import secret
from launcher.base.errors import LauncherError
from launcher.base.files import JsonObject
from launcher.charts.html import Html, details, table, tag
from launcher.charts.page import Section
from launcher.config.request import request
from launcher.rundir import changes, contents, lock, provenance
from launcher.rundir.lock import Lock
from launcher.spec.parse import to_dict
from launcher.views.page.source import Source

_FEW = 60  # Most differing settings that are shown unfolded.


def section(source: Source) -> Section:
    """The overrides, the settings that differ from the defaults, and later changes."""
    parts = [*_words(source), *_settings(source), *_changes(source)]
    return Section(identity="asked", title="Command and settings", parts=parts)


def made_of(source: Source) -> Section:
    """Versions and machine recorded in the lock, and what differs here."""
    return Section(identity="versions", title="Versions and machine", parts=list(_ingredients(source)))


def pasted(plan: JsonObject, settings: JsonObject) -> str | None:
    """The command that repeats a recorded run, without its name; None when unknown."""
    words = [word for word in plan.get("overrides") or () if not word.startswith(("run.name=", "run.directory="))]
    if not words:
        return None
    script = settings.get("script_args") or ()
    line = shlex.join(["launch", *map(str, words), *(["--", *map(str, script)] if script else [])])
    return secret.redacted(line)


def _words(source: Source) -> Iterator[Html | str]:
    line = pasted(source.plan, source.settings)
    if line is None:
        yield tag("p", "The overrides of the run are not recorded.", class_="missing")
    else:
        yield tag("pre", line)
    if source.plan.get("forced"):
        yield tag("p", "It was started with --force although the check refused it.", class_="warn")
    if contents.exists(source.folder, contents.LOCK):
        again = shlex.join(["launch", "run", "--from", str(source.folder / contents.LOCK)])
        yield tag("p", "To repeat it with everything in its lock: ", tag("code", again))
    else:
        yield tag("p", f"It has no lock ({contents.LOCK}).", class_="missing")


def _settings(source: Source) -> Iterator[Html]:
    if not source.settings:
        yield tag("p", "Its settings cannot be read.", class_="missing")
        return
    try:
        plain = request(()).spec
    except LauncherError:
        plain = None
    if plain is None:
        text = "The defaults cannot be composed here, so the differences from them are unknown."
        yield tag("p", text, class_="missing")
        return
    found = lock.differences(lock.settings(source.settings), lock.settings(to_dict(plain)))
    rows = [(key, _short(value), _short(default)) for key, value, default in found]
    listed = table(["setting", "this run", "default"], rows, identity="settings")
    yield details(f"{len(rows)} settings that differ from the defaults", listed, opened=len(rows) <= _FEW)


def _changes(source: Source) -> Iterator[Html]:
    try:
        made = changes.read(source.folder)
    except LauncherError as error:
        yield tag("p", str(error), class_="missing")
        return
    rows = [
        (str(change.get("step")), str(one.get("path")), _short(one.get("before")), _short(one.get("after")))
        for change in made
        for one in change.get("changes") or ()
        if isinstance(one, Mapping)
    ]
    if rows:
        yield table(["from step", "setting", "before", "after"], rows, caption="changed on resume")


def _ingredients(source: Source) -> Iterator[Html | str]:
    try:
        found = lock.read(source.folder)
    except LauncherError as error:
        yield tag("p", f"The run's lock cannot be read: {error}", class_="missing")
        return
    recorded = lock.ingredients(found.content)
    versions = [
        (key.removeprefix("versions."), _short(value)) for key, value in recorded.items() if key.startswith("versions.")
    ]
    machine = [(key, _short(value)) for key, value in recorded.items() if key.startswith(("hardware.", "environment."))]
    yield from _otherwise(found, recorded)
    yield details(f"versions: {_main(recorded)}", table(["", "then"], versions))
    node = ", ".join(_short(value) for key, value in recorded.items() if key.startswith("hardware.") and value)[:100]
    yield details(f"machine and environment: {node}", table(["", "then"], machine))


def _main(recorded: JsonObject) -> str:
    names = ("python", "packages.torch", "packages.llm-launch", "git.commit")
    known = ((name.rpartition(".")[2], recorded.get(f"versions.{name}")) for name in names)
    return ", ".join(f"{name} {_short(value)[:16]}" for name, value in known if value is not None)


def _otherwise(found: Lock, recorded: JsonObject) -> Iterator[Html | str]:
    here = lock.ingredients({**lock.here(found.spec.data), "script": provenance.script_ingredient(found.spec.script)})
    differing = lock.differences(recorded, here)
    if not differing:
        yield "Versions, data and machine here match the lock."
        return
    rows = [(key, _short(then), _short(now)) for key, then, now in differing]
    yield table(["", "then", "here"], rows, caption=f"{len(rows)} differences between the lock and this machine")


def _short(value: object) -> str:
    text = "-" if value is None else value if isinstance(value, str) else json.dumps(value)
    return secret.redacted(text if len(text) <= 160 else f"{text[:157]}...")
