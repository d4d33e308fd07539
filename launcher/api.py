"""The launcher from Python: the functions behind the verbs, for notebooks and other programs (docs/python.md).

``import launcher`` has all of them. Each takes the words of a command line as a list and the options as keywords, calls
what its verb calls, and returns an object in place of printing. :func:`check` answers a wrong configuration with the
verdict ``invalid``; the others raise the exceptions of ``launcher.errors``. Messages go to the log ``launcher``; with
``quiet=False`` they and the progress are shown as on the command line. Nothing here exits the program or changes its
signal handlers, and all of it may be called many times and from any thread.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Literal

from launcher.actions import check as _check
from launcher.actions import importing as _importing
from launcher.actions import plan as _plan
from launcher.actions import recipes as _recipes
from launcher.actions import rehearse as _rehearse
from launcher.actions import run as _run
from launcher.actions import sweep as _sweep
from launcher.actions.check import Shown
from launcher.actions.handles import Run, Sweep
from launcher.actions.requests import JudgeRequest, MeasureRequest
from launcher.actions.trust_gate import require_trust
from launcher.base.errors import INTERRUPTED, ConfigError, ConfigErrors, DataError, DoesNotFit, raise_any
from launcher.base.terminal import heard_by, say
from launcher.config.ledger import Imported
from launcher.data.unusable import as_errors
from launcher.planner.keys import VARIED
from launcher.rehearsing.choice import MINUTES, STEPS
from launcher.submission.submit import submit as _start
from launcher.sweeping.point import Point
from launcher.views.check import Check
from launcher.views.plan import Plan
from launcher.views.rehearsal import Rehearsed

__all__ = [
    "Check", "Imported", "Plan", "Rehearsed", "Run", "Shown", "Sweep",
    "check", "import_", "plan", "rehearse", "run", "show", "submit", "sweep",
]  # fmt: skip

type Words = Sequence[str]
"""Overrides as they are typed: ``["model=llama3_8b", "train.steps=200"]``."""

type Engine = Literal["formula", "trace"]

type Vary = Literal["precision", "optimizer", "adapter"]


def check(
    overrides: Words = (),
    *,
    hf: str | Path | None = None,
    deepspeed: str | Path | None = None,
    megatron_args: str | Path | None = None,
    engine: Engine = "formula",
    native: bool = True,
    trust: bool = False,
    partial: bool = False,
    variables: Mapping[str, str] | None = None,
    script_args: Words = (),
) -> Check:
    """Judge a run without starting it, as ``launch check`` does; nothing is written.

    Args:
        overrides: The words of the run.
        hf: Take the model from a Hugging Face folder or config.json.
        deepspeed: Take the settings of a ds_config.json.
        megatron_args: Take the settings of a Megatron-LM argument list.
        engine: Predict memory by formulas, or trace the worker under fake tensors (seconds; needs torch).
        native: Ask the engine's own validator, too (Megatron-LM's).
        trust: Let what is from elsewhere run code there, too.
        partial: Judge the run although words of these files that matter are left out; each is a warning.
        variables: Values of the variables that the argument list is a script of.
        script_args: The arguments of ``script=FILE``.

    Returns:
        The answer; a configuration that is wrong has the verdict ``invalid`` and its errors.
    """
    try:
        request = _check.CheckRequest(
            overrides=_words(overrides),
            script_args=_texts("script_args", script_args),
            hf=_path(hf),
            deepspeed=_path(deepspeed),
            megatron_args=_path(megatron_args),
            variables=tuple(f"{name}={value}" for name, value in (variables or {}).items()),
            engine=engine,
            native=native,
            trust=trust,
            partial=partial,
        )
        with _heard(quiet=True):
            return _check.check_run(request, _check.files_of(request))
    except ConfigErrors as error:
        return Check(assessment=None, errors=error.errors, warnings=())


def plan(
    overrides: Words = (),
    *,
    vary: Sequence[Vary] = (),
    unmeasured: bool = False,
    save: str | None = None,
    quiet: bool = True,
) -> Plan:
    """Search the layouts that the words leave open, as ``launch plan`` does.

    Args:
        overrides: The words of the run without a layout, several values of a layout's key in the grammar of Hydra.
        vary: Groups whose options are searched, too.
        unmeasured: Rank layouts whose mode nothing measured backs like the others.
        save: Write the first layout as the recipe of this name.
        quiet: False shows messages and progress.

    Returns:
        The answer: ``layouts``, the fastest first, each with the ``overrides`` to append, ``speed``, ``verdict`` and
        ``spec``; none where nothing fits.

    Raises:
        ConfigErrors: The configuration is wrong.
        SubmitError: There is a recipe of this name, or it cannot be written.
    """
    if unknown := [group for group in vary if group not in VARIED]:
        rule = "it is no group that is varied"
        raise ConfigErrors(ConfigError("vary", group, rule, list(VARIED)) for group in unknown)
    began = _plan.clock()
    name = None if save is None else _recipes.free_name(save)
    request = MeasureRequest(overrides=_words(overrides), vary=tuple(vary), unmeasured=unmeasured, save=name)
    with _heard(quiet=quiet):
        answer = _plan.Search(request, _plan.question_of(request), began=began, quiet=quiet).answer()
        _recipes.save_layout(request, answer.question, answer.plan)
    return Plan.of(answer.plan)


def rehearse(
    overrides: Words = (),
    *,
    stage: int | None = None,
    rank: int | None = None,
    all_stages: bool = False,
    steps: int = STEPS,
    layers: Sequence[int] = (),
    minutes: float = MINUTES,
    trust: bool = False,
    quiet: bool = True,
) -> Rehearsed:
    """Measure one rank of a run alone on this machine, as ``launch rehearse`` does.

    Args:
        overrides: The words of the run.
        stage: A rank of this pipeline stage; without a stage or rank, of that which needs the most.
        rank: This rank.
        all_stages: A rank of every stage that holds something else.
        steps: Training steps.
        layers: Build models of these layers: one depth, or two to extrapolate from.
        minutes: The limit on all of it.
        trust: Let what is from elsewhere run code.
        quiet: False shows messages.

    Returns:
        The answer, whose ``verdict`` may be that it does not fit; it is kept as evidence for the run.

    Raises:
        ConfigErrors: The configuration is wrong, or cannot be rehearsed so.
        SubmitError: The folder of rehearsals cannot be written.
        JobFailed: The rehearsal failed, or took too long.
    """
    request = _rehearse.RehearseRequest(
        overrides=_words(overrides),
        stage=stage,
        rank=rank,
        all_stages=all_stages,
        steps=steps,
        layers=",".join(map(str, layers)) or None,
        minutes=minutes,
        trust=trust,
    )
    with _heard(quiet=quiet):
        question, assessment = _rehearse.question_of(request), _rehearse.judge_rehearsed(request)
        if assessment.spec.cluster.kind == "slurm":
            rule = "from Python a run is rehearsed on this machine; `launch rehearse` submits it"
            raise ConfigErrors([ConfigError("cluster", "slurm", rule, ["cluster=local"])])
        return _rehearse.rehearse_here(assessment, question, say)


def import_(
    kind: str, file: str | Path, *, partial: bool = False, variables: Mapping[str, str] | None = None
) -> Imported:
    """Read another program's file, as ``launch import`` does; nothing is written.

    Args:
        kind: What the file is, as ``launch import`` has it: ``deepspeed``, ``hf``, ``axolotl``, ...
        file: The file; of ``hf`` also a model's folder.
        partial: Go on although words that matter are left out.
        variables: Values of the variables of a Megatron-LM script; ``config`` or ``task`` of other kinds.

    Returns:
        Its settings as ``overrides`` and as a ``recipe``, and where each of its keys ended: ``said``, ``default``,
        ``kept`` and ``left_out``, with ``not_understood`` beside them.

    Raises:
        ConfigErrors: The file cannot be read, is no run here, or leaves out what matters.
    """
    return _importing.import_file(kind, Path(file), partial=partial, variables=variables or {})


def show(overrides: Words = (), *, script_args: Words = ()) -> Shown:
    """Translate a run, as ``launch show`` does: argv, environment, files and sbatch text of what ``run`` starts.

    Raises:
        ConfigErrors: The configuration is wrong. A run that does not fit is shown all the same.
    """
    with _heard(quiet=True):
        asked = JudgeRequest(overrides=_words(overrides), script_args=_texts("script_args", script_args))
        return _check.translate_run(asked.command_line())


def run(
    overrides: Words = (),
    *,
    lock: str | Path | None = None,
    hf: str | Path | None = None,
    force: bool = False,
    rehearsed: bool = False,
    trust: bool = False,
    engine: Engine = "formula",
    native: bool = True,
    script_args: Words = (),
    quiet: bool = True,
) -> Run:
    """Check, record and start a run, as ``launch`` does; on this machine wait for its end, on Slurm return at once.

    Args:
        overrides: The words of the run.
        lock: Repeat a run: its lock, directory or name; the words then only set keys over it.
        hf: Take the model from a Hugging Face folder or config.json.
        force: Start what does not fit; the record says so.
        rehearsed: Take the verdict of its rehearsal in place of the memory estimate's.
        trust: Let a recipe or lock from elsewhere run code and leave the working folder.
        engine: Predict memory by formulas, or by a trace.
        native: Ask the engine's own validator, too.
        script_args: The arguments of ``script=FILE``.
        quiet: False shows messages and progress.

    Raises:
        ConfigErrors: The configuration is wrong, or this machine cannot run it.
        DoesNotFit: It does not fit, and was not forced.
        SubmitError: The submission, the cluster or the run folder failed.
        JobFailed: The job failed.
        KeyboardInterrupt: It was interrupted; the run has saved a checkpoint and can be resumed.
    """
    one = submit(**locals())  # Both have the same keywords.
    if one.spec.cluster.kind == "local":
        with _heard(quiet=quiet):
            _run.wait_for_end(one.directory, one.spec, show=None if quiet else print)
    return one


def submit(
    overrides: Words = (),
    *,
    lock: str | Path | None = None,
    hf: str | Path | None = None,
    force: bool = False,
    rehearsed: bool = False,
    trust: bool = False,
    engine: Engine = "formula",
    native: bool = True,
    script_args: Words = (),
    quiet: bool = True,
) -> Run:
    """As :func:`run`, and return as soon as the run was started or queued; ``Run.wait`` waits for its end."""
    request = _run.RunRequest(
        overrides=_words(overrides),
        script_args=_texts("script_args", script_args),
        lock=_path(lock),
        hf=_path(hf),
        force=force,
        rehearsed=rehearsed,
        trust=trust,
        engine=engine,
        native=native,
    )
    with _heard(quiet=quiet):
        ready = _run.prepare_run(request, quiet=quiet)
        directory = _run.record_run(ready)
        _start(directory, ready.plan.spec)
        return Run(directory)


def sweep(
    overrides: Words = (), *, start: bool = True, force: bool = False, trust: bool = False, quiet: bool = True
) -> Sweep:
    """Judge every point of a sweep and start those that fit, as ``launch -m`` does.

    On this machine the runs go one after the other and this waits for them; on Slurm it returns at once. A run that
    fails is a state of its point and no exception.

    Args:
        overrides: The words, several values in the grammar of Hydra: ``train.seed=1,2``, ``model=glob(llama*)``.
        start: False only judges the points of a grid, as ``launch check -m`` does.
        force: Start points that do not fit, too.
        trust: Let a recipe from elsewhere run code and leave the working folder.
        quiet: False shows messages and progress.

    Raises:
        ConfigErrors: The configuration is wrong, or no point is valid.
        DoesNotFit: No point fits.
        SubmitError: The submission, the cluster or the sweep's folder failed.
        KeyboardInterrupt: It was interrupted; ``launch resume`` goes on.
    """
    request = _sweep.SweepRequest(overrides=_words(overrides), force=force, trust=trust)
    with _heard(quiet=quiet):
        if not start:
            return Sweep(None, _sweep.judge_points(request, quiet=quiet))
        require_trust(request.command_line(), trusted=trust)
        _, directory, points, exit_status = _sweep.start_sweep(request, show=None if quiet else print)
    if not any(point.kept for point in points):
        raise _none_kept(points)
    if exit_status == INTERRUPTED:
        raise KeyboardInterrupt
    return Sweep(directory, points)


def _none_kept(points: Sequence[Point]) -> ConfigErrors | DoesNotFit:
    """The exception of a sweep without a point that was started, with the reason of each."""
    unfit = [point for point in points if point.verdict != "invalid"]
    if unfit:
        reasons = "; ".join(f"{' '.join(point.overrides)}: {point.reason}" for point in unfit)
        return DoesNotFit(f"no point was started: {reasons}")
    return ConfigErrors(ConfigError(" ".join(point.overrides), None, str(point.reason)) for point in points)


def _words(overrides: Words) -> tuple[str, ...]:
    found = _texts("overrides", overrides)
    rule = "options are keywords here, as in force=True, and the words after -- are script_args=[...]"
    typed = [ConfigError(word, None, rule) for word in found if word.startswith("-")]
    raise_any(typed)
    return found


def _texts(name: str, words: Words) -> tuple[str, ...]:
    if isinstance(words, str) or not all(isinstance(word, str) for word in words):
        raise TypeError(f"{name} is a list of words, each as it is typed: ['model=tiny', 'train.steps=20']")
    return tuple(words)


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


@contextmanager
def _heard(*, quiet: bool) -> Iterator[None]:
    """Send messages to the log, unless they are to be shown."""
    try:
        with heard_by(logging.getLogger("launcher").info) if quiet else nullcontext():
            yield
    except DataError as error:
        raise as_errors(error) from error
