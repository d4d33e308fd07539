"""Read and write recipes and locks: ``launch recipe list``, ``show``, ``lock``, ``save`` and ``fetch``.

Whether a file is the user's own or from elsewhere is recorded before it appears; if that fails, no file appears.
"""

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from launcher import backends
from launcher.actions.find_runs import named
from launcher.actions.requests import (
    JudgeRequest,
    Output,
    PlanRequest,
    compose_run,
    folder,
    judge_run,
    own_measurements,
    write_new,
)
from launcher.base import machine
from launcher.base.errors import ConfigError, ConfigErrors, SubmitError
from launcher.base.files import JsonObject
from launcher.base.package import __version__
from launcher.base.terminal import pasteable, say, width, wrapped
from launcher.base.units import gib, rounded
from launcher.config import recipe_file, recipes, safe_yaml
from launcher.config.catalog import Catalog
from launcher.config.overrides import read
from launcher.config.recipes import Recipe
from launcher.config.request import request
from launcher.config.trust import privileged_settings
from launcher.config.trust import sources as trust
from launcher.config.trust.sources import Source
from launcher.planner.layouts import Layout, Plan
from launcher.planner.question import Question
from launcher.preflight import assess
from launcher.preflight.assess_here import Judging
from launcher.preflight.plan import plan
from launcher.rundir import contents, lock, results, run_names, signature
from launcher.rundir.record import job_as_dict
from launcher.spec import RunSpec
from launcher.spec.parse import parse

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")


def save(name: str, texts: Sequence[str], *, run: str | None, summary: str | None, trusted: bool) -> Output:
    """Write overrides, after the command line of a ``run`` if given, as a recipe in the working folder."""
    name = name.removesuffix(".yaml")
    if not texts and run is None:
        rule = "a recipe is made from overrides or from a run's command line"
        ways = [f"launch recipe save {name} model=tiny", f"launch recipe save {name} --run RUN"]
        raise ConfigErrors([ConfigError("OVERRIDES", None, rule, ways)])
    require_name("NAME", name, "my_recipe")
    catalog, directory = Catalog(folder=folder()), None
    if run is not None:
        [directory, *_] = named([run]).runs
        catalog = Catalog(folder=typing_folder(directory))
        texts = [*_words_of(directory, catalog), *texts]
    origin = _origin(directory, texts, catalog, trusted=trusted)
    content = recipe_file.content_of(texts, catalog, summary=summary or f"saved from: launch {' '.join(texts)}")
    return _written_output(_written(name, content, origin), f"launch recipe={name}")


def write_recipe(
    name: str,
    texts: Sequence[str],
    catalog: Catalog,
    *,
    summary: str,
    source: str,
    run: Path | None = None,
    trusted: bool = False,
) -> Path:
    """Write overrides as a recipe in the working folder, with the source of its numbers; returns its path.

    ``run`` is the run that the words come from; ``trusted`` trusts it and a recipe from elsewhere that they name.
    Raises ConfigErrors if a word is wrong or a secret, SubmitError if the recipe exists or cannot be written.
    """
    content = {**recipe_file.content_of(texts, catalog, summary=summary), "source": source}
    return _written(name, content, _origin(run, texts, catalog, trusted=trusted))


def recipe_path(name: str) -> Path:
    """The file of a recipe in the working folder."""
    return folder() / "recipes" / f"{name}.yaml"


def require_name(where: str, name: str, way_out: str) -> None:
    """Raise ConfigErrors for a name that is invalid for a recipe."""
    if not _NAME.match(name):
        raise ConfigErrors([ConfigError(where, name, "a recipe's name must be letters, digits and _ . -", [way_out])])


def _written(name: str, content: Mapping[str, Any], origin: str | None) -> Path:
    path = recipe_path(name)
    privileged = privileged_settings.of_recipe(recipes.check(content, str(path)))
    note = (
        partial(trust.note_own, path)
        if origin is None
        else partial(trust.note_foreign, path, source=origin, privileged=privileged)
    )
    write_new(path, recipe_file.as_text(name, content), otherwise=": choose another name", before=note)
    if origin is not None:
        say(f"launch: it is from {origin}, which is not trusted, so neither is this: launch recipe trust {name}")
    return path


def _origin(run: Path | None, texts: Sequence[str], catalog: Catalog, *, trusted: bool) -> str | None:
    if run is not None and not signature.is_own(run):
        if not trusted:
            return str(run)
        run_names.remember(run)
    named = recipes.named(read(texts, catalog)[0], catalog)
    if named is None:
        return None
    path, privileged = named[0], privileged_settings.of_recipe(named[1])
    if trusted:
        trust.require([Source(path=path, privileged=privileged)], folder=catalog.folder, given=True)
    return str(path) if trust.is_foreign(path, folder=catalog.folder, privileged=privileged) else None


def _words_of(run: Path, catalog: Catalog) -> list[str]:
    words: list[str] | None = (contents.read(run, contents.PLAN) or {}).get("overrides")
    if words is None:
        raise contents.BadRecord(run / contents.PLAN, "it does not contain the run's command line")
    if not any(word.startswith("--from=") for word in words):
        return words
    return recipe_file.words_for(contents.spec_of(run), catalog)


def typing_folder(run: Path) -> Path:
    """The folder where a run's command line was typed, whose recipes it may name; the current one if that is gone."""
    there = Path(contents.known(run, contents.JOB).get("working_directory", ""))
    return there if there.is_absolute() and there.is_dir() else folder()


def fetch(source: str, name: str | None) -> Output:
    """Download a recipe or lock into the working folder."""
    from launcher.config.trust import fetch  # Late, because it imports HTTP.

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
    note = partial(trust.note_foreign, path, source=source, privileged=privileged)
    write_new(path, content, otherwise=": choose another --name", before=note)
    return _written_output(path, use)


def _written_output(path: Path, use: str) -> Output:
    return Output(document={"schema": 1, "recipe": {"path": str(path), "use": use}}, text=f"{path}\n{use}")


_UNKNOWN = {"model": None, "gpus": None, "strategy": None, "predicted_bytes": None, "verdict": "invalid"}


def show(name: str) -> Output:
    """The overrides that a recipe stands for; raises ConfigErrors if it does not exist or cannot be read."""
    recipe = recipes.load(Catalog(folder=folder()).recipe(name))
    content = {"choose": dict(recipe.choose), "set": dict(recipe.set), "sweep": dict(recipe.sweep)}
    words = [*(["-m"] if recipe.sweep else []), *recipe.overrides(), *recipe.sweeps()]
    source = f"# source: {recipe.source}\n" if recipe.source else ""
    return Output(
        document={"schema": 1, "recipe": {"name": recipe.name, "summary": recipe.summary, **content}},
        text=f"# {recipe.summary}\n{source}launch {pasteable(words)}",
    )


def lock_of(words: Sequence[str], script_args: Sequence[str]) -> Output:
    """The lock of a run with its first losses, or of a command line that has not been started."""
    if len(words) == 1 and "=" not in words[0]:
        [directory, *_] = named(words).runs
        results.add_losses(directory)
        content = lock.read(directory).content
    else:
        line = JudgeRequest(overrides=tuple(words), script_args=tuple(script_args)).command_line()
        found = compose_run(line, own_measurements(wanted=True))
        planned = plan(judge_run(found, Judging()), python=sys.executable)
        content = lock.build(planned, job_as_dict(planned.job), found.overrides)
    rows = content.get("losses") or []
    text = lock.as_text({key: value for key, value in content.items() if key != "losses"}, rows)
    return Output(document={"schema": 1, "recipe": dict(content)}, text=text.removesuffix("\n"))


def list_recipes() -> Output:
    """Every recipe with its model, GPUs, strategy and predicted peak."""
    catalog, facts = Catalog(folder=folder()), machine.facts()
    rows = [_row_of(name, catalog, facts) for name in catalog.groups["recipe"]]
    size = max((len(row["name"]) for row in rows), default=0)
    lines = [f"{'recipe':{size}}  {'GPUs':>4}  {'strategy':26} {'peak':>10}"]
    for row in rows:
        peak = row["verdict"] if row["predicted_bytes"] is None else gib(row["predicted_bytes"])
        lines.append(f"{row['name']:{size}}  {row['gpus'] or '-':>4}  {row['strategy'] or '-':26} {peak:>10}")
        text = row["summary"] if row["reason"] is None else row["reason"]
        lines += wrapped(text, width(), "    ", "    ")
    return Output(document={"schema": 1, "recipe": rows}, text="\n".join(lines))


def _row_of(name: str, catalog: Catalog, facts: machine.Machine) -> JsonObject:
    try:
        return _row(recipes.load(catalog.recipe(name)), catalog, facts)
    except ConfigErrors as error:
        reason = "; ".join(f"{each.where}: {each.rule}" for each in error.errors)
        return {"name": name, "summary": "", "sweep": [], **_UNKNOWN, "reason": reason}


def _row(recipe: Recipe, catalog: Catalog, facts: machine.Machine) -> JsonObject:
    found = request([f"recipe={recipe.name}"], catalog=catalog, facts=facts)
    row = {"name": recipe.name, "summary": recipe.summary, "sweep": sorted(recipe.sweep)}
    if found.spec is None:
        raise ConfigErrors(found.errors)
    spec, judged = found.spec, assess.assess(found.spec, earlier=found.errors, search=None)
    return {
        **row,
        "model": spec.model.name,
        "gpus": spec.gpus,
        "strategy": strategy(spec),
        "predicted_bytes": None if judged.estimate is None else judged.estimate.peak.allocated_bytes,
        "verdict": judged.verdict.name,
        "reason": None,
    }


def strategy(spec: RunSpec) -> str:
    """The engine, adapter and degrees of a run in a few words: ``megatron tp8 pp4 dp2``."""
    parallel = spec.parallel
    degrees = {"tp": parallel.tensor, "pp": parallel.pipeline, "cp": parallel.context, "ep": parallel.expert}
    parts = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
    adapter = [spec.adapter.name] if spec.adapter.name != "none" else []
    engine = spec.parallel.name if backends.of(spec).profile.told_by_preset else spec.backend.name
    return " ".join([engine, *adapter, *parts, *([f"dp{spec.data_degree}"] if spec.data_degree > 1 else [])])


def free_name(name: str) -> str:
    """A recipe's name without its suffix; raises ConfigErrors if it is invalid, SubmitError if it is taken."""
    name = name.removesuffix(".yaml")
    require_name("--save", name, "--save my_recipe")
    path = recipe_path(name)
    if os.path.lexists(path):
        raise SubmitError(f"{path} exists and is not overwritten: choose another name")
    return name


def save_layout(request: PlanRequest, question: Question, found: Plan) -> dict[str, str] | None:
    """Write the first layout as a recipe; returns path and use as in ``recipe save --json``, or None without one.

    Raises ConfigErrors if the words contain a secret, SubmitError if it cannot be written.
    """
    if request.save is None:
        return None
    if not (found.layouts and found.finished):
        why = "no layout fits" if found.finished else "the search was interrupted"
        say(f"launch: no recipe is written, because {why}")
        return None
    layout, typed = found.layouts[0], shlex.join(("launch", "plan", *question.words, *_flags(request)))
    spec = layout.spec
    name = f"The best layout of {spec.model.name} on {spec.gpus} x {spec.hardware.title or spec.hardware.name}"
    path = write_recipe(
        request.save,
        (*question.single, *layout.overrides),
        question.catalog,
        summary=f"{name}; {_prediction_text(layout)}",
        source=f"planned on {datetime.now(UTC).date()} by launch {__version__}: {typed}",
    )
    use = f"launch recipe={request.save}"
    say(f"launch: the first layout is in {path}: `{use}` starts it")
    return {"path": str(path), "use": use}


def _flags(request: PlanRequest) -> Iterator[str]:
    yield from (f"--vary={group}" for group in request.vary)
    yield from ("--unmeasured",) if request.unmeasured else ()
    yield from ("--smallest",) if request.smallest else ()
    for name in ("largest", "days"):
        if (value := getattr(request, name)) is not None:
            yield f"--{name}={value}"


def _prediction_text(layout: Layout) -> str:
    speed, verdict = layout.speed, layout.verdict
    parts = ["speed not predicted"]
    if speed is not None:
        band = f" ({rounded(speed.low)} to {rounded(speed.high)})" if speed.constant.rows else ""
        parts = [f"predicted {rounded(speed.tokens_per_second_per_gpu)} tokens/s a GPU{band}"]
    if verdict.used_bytes is not None:
        of = "" if verdict.capacity_bytes is None else f" of {gib(verdict.capacity_bytes)}"
        parts.append(f"{gib(verdict.used_bytes)}{of} on the fullest rank")
    return ", ".join(parts)
