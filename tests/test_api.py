"""``import launcher``: the verbs as functions, which return objects, raise, print nothing and leave no trace."""

from __future__ import annotations

import inspect
import json
import re
import signal
import subprocess
import sys
import threading
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import assert_type

import pytest

import launcher
from launcher.actions import follow
from launcher.actions.check import Shown
from launcher.base.errors import ConfigErrors, DoesNotFit, JobFailed, SubmitError
from launcher.cli import main
from launcher.data.unusable import Unusable
from launcher.estimate.memory.result import Peak
from launcher.job import torchrun
from launcher.preflight.verdict import VerdictName
from launcher.rundir.status import RunState
from tests.support.helpers import ROOT, assert_golden

UNFIT = ["model=llama3_8b", "parallel=fsdp", "hardware=rtx4090", "cluster.gpus_per_node=8"]
FITS = ["model=tiny", "hardware=h100_80g", "cluster.gpus_per_node=2"]
WRONG = ["model=tiny", "precison=fp8"]
SCRIPT = ["model=tiny", "cluster.gpus_per_node=1", "script=train.py"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder whose jobs are a script in place of torchrun and a worker, which take seconds to start."""
    script = tmp_path / "train.py"
    script.write_text(
        "import json, os, sys, time\n"
        "with open(os.environ['LAUNCH_RUN'] + '/metrics.jsonl', 'a') as out:\n"
        "    out.write(json.dumps({'step': 1, 'loss': 2.5, 'tokens_per_second': 10.0}) + '\\n')\n"
        "time.sleep(600 if sys.argv[1:] == ['wait'] else 0)\n"
        "sys.exit('the loss is a fish' if sys.argv[1:] == ['fail'] else 0)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torchrun, "command", lambda spec, python, program, words: (python, str(script), *words))
    return tmp_path


def test_importing_the_launcher_loads_neither_hydra_nor_torch_nor_anything_else_of_it() -> None:
    program = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "import launcher\n"
        "assert set(sys.modules) - before == {'launcher'}, set(sys.modules) - before\n"
        "assert {'check', 'show', 'run', 'submit', 'sweep', 'Run', 'errors'} <= set(dir(launcher))\n"
        f"assert launcher.check({FITS!r}).verdict == 'fits'\n"
        f"launcher.show({FITS!r})\n"
        "print([name for name in ('torch', 'pandas', 'matplotlib', 'rich', 'transformers') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout) == ("", "[]\n")


@pytest.mark.parametrize("words", [UNFIT, FITS, WRONG, ["parallel.tensor=3"], ["recipe=none"], ["train.steps"]])
def test_a_check_is_what_the_command_prints_and_answers(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    check = launcher.check(words)
    assert capsys.readouterr() == ("", "")
    main(["check", *words, "--json"])
    assert check.as_dict() == json.loads(capsys.readouterr().out)
    assert check.verdict == check.as_dict()["verdict"]
    main(["check", *words])
    said = capsys.readouterr()
    assert str(check) == (said.out + said.err).rstrip("\n")


def test_the_api_has_types() -> None:
    """Mypy reads this test as strictly as the code: ``assert_type`` fails there, not here."""
    check = launcher.check(FITS)
    assert_type(check, launcher.Check)
    assert_type(check.verdict, VerdictName)
    assert_type(check.peak, Peak | None)
    assert_type(launcher.show(FITS), Shown)
    functions: tuple[Callable[[list[str]], launcher.Run], ...] = (launcher.run, launcher.submit)
    assert all(map(callable, functions))
    assert Path(str(launcher.__file__)).with_name("py.typed").is_file()


def test_a_check_shows_itself_in_a_notebook_with_its_text_escaped() -> None:
    unfit, wrong = launcher.check(UNFIT)._repr_html_(), launcher.check(["model=<b>"])._repr_html_()
    assert "DOES NOT FIT" in unfit
    assert "whole process" in unfit
    assert "<code>checkpointing=full" in unfit
    assert "<br>if it fit: about " in unfit
    assert "% slower" in unfit
    assert "INVALID" in wrong
    assert "model=&lt;b&gt;" in wrong
    assert "<b>" not in wrong.replace('<b style="', "")


def test_words_are_a_list_and_options_are_keywords() -> None:
    with pytest.raises(TypeError, match=r"overrides is a list of words, each as it is typed: \['model=tiny'"):
        launcher.check("model=tiny")
    wrong = launcher.check(["model=tiny", "--force"])
    assert [(error.path, error.rule) for error in wrong.errors] == [
        ("--force", "options are keywords here, as in force=True, and the words after -- are script_args=[...]")
    ]
    with pytest.raises(TypeError, match="force"):
        launcher.check(FITS, force=True)  # type: ignore[call-arg]


def test_errors_of_a_check_say_what_is_wrong_where_they_are_printed() -> None:
    errors = launcher.check(["model=tiny", "parallel.tensor=3"]).errors
    assert repr(errors).startswith("(ConfigError(path='parallel.tensor', found=3, rule='the ranks of one model copy")
    assert "way_out=['parallel.tensor=2'" in repr(errors)
    secret = "hf_" + "a1B2" * 9
    assert secret not in repr(launcher.check([f"cluster.environment.HF_TOKEN={secret}"]).errors)


def test_a_check_takes_foreign_files_and_explains_a_pile(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1}')
    check = launcher.check(["model=1b", "hardware=a100_80g", "cluster.gpus_per_node=8"], deepspeed=tmp_path / "ds.json")
    assert check.spec is not None
    assert (check.spec.zero.stage, check.spec.backend.name) == (2, "deepspeed")
    assert check.explain("activations").at_peak
    with pytest.raises(ConfigErrors, match="precison"):
        launcher.check(WRONG).explain("gradients")


def test_what_is_shown_is_what_the_command_shows(capsys: pytest.CaptureFixture[str]) -> None:
    shown = launcher.show([*FITS, "run.name=a"])
    assert capsys.readouterr() == ("", "")
    assert main(["show", *FITS, "run.name=a", "--json"]) == 0
    assert shown.as_dict() == json.loads(capsys.readouterr().out)
    assert main(["show", *FITS, "run.name=a"]) == 0
    assert f"{shown}\n" == capsys.readouterr().out
    assert shown.as_dict()["argv"] == list(shown.argv)
    with pytest.raises(ConfigErrors, match="precison"):
        launcher.show(WRONG)


def test_a_run_is_refused_by_exceptions_and_nothing_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for start in (launcher.run, launcher.submit):
        with pytest.raises(ConfigErrors, match="precison"):
            start(WRONG)
        with pytest.raises(DoesNotFit, match="not started, because it does not fit"):
            start(["model=70b", "hardware.memory_bytes=1000000000"])
    with pytest.raises(DoesNotFit, match="no point was started: model=70b: device needs"):
        launcher.sweep(["model=70b,175b", "hardware.memory_bytes=1000000000"])
    with pytest.raises(ConfigErrors, match=r"parallel\.tensor=3"):
        launcher.sweep(["model=tiny", "parallel.tensor=3,5"])
    assert capsys.readouterr() == ("", "")
    assert not (folder / "runs").exists()


def test_a_run_is_started_from_a_thread_and_waited_for_and_signal_handlers_stay(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    runs: list[launcher.Run] = []
    thread = threading.Thread(target=lambda: runs.append(launcher.submit([*SCRIPT, "run.name=a"])))
    thread.start()
    thread.join()
    assert_type(runs[0].wait(timeout=60), RunState)
    assert runs[0].status.state == "finished"
    assert runs[0].spec.script is not None
    assert launcher.Run("a").directory == folder / "runs" / "a"
    assert runs[0].steps() == [{"step": 1, "loss": 2.5, "tokens_per_second": 10.0}]
    assert list(runs[0].metrics()["loss"]) == [2.5]
    assert [signal.getsignal(number) for number in signal.valid_signals()] == handlers
    with pytest.raises(SubmitError, match=r"runs/a exists and is never overwritten"):
        launcher.run([*SCRIPT, "run.name=a"])
    assert capsys.readouterr() == ("", "")


def test_a_run_that_fails_raises_and_one_that_waits_is_cancelled(folder: Path) -> None:
    waiting = launcher.submit([*SCRIPT, "run.name=b"], script_args=["wait"])
    with pytest.raises(JobFailed, match="the loss is a fish"):
        launcher.run([*SCRIPT, "run.name=c"], script_args=["fail"])
    assert "the loss is a fish" in launcher.Run("c").logs(lines=3)
    with pytest.raises(TimeoutError, match=r"b is (queued|running) after 0.1 s"):
        waiting.wait(timeout=0.1)
    while waiting.status.state == "queued":
        threading.Event().wait(0.05)
    assert waiting.cancel()
    assert waiting.wait(timeout=500).state == "cancelled"


def test_a_cell_that_is_stopped_stops_its_run_and_says_so_by_the_same_exception(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    news = follow._news

    def interrupted_once(directory: Path) -> object:
        monkeypatch.setattr(follow, "_news", news)
        while launcher.Run(directory).status.state != "running":
            threading.Event().wait(0.05)
        raise KeyboardInterrupt

    monkeypatch.setattr(follow, "_news", interrupted_once)
    with unittest.TestCase().assertLogs("launcher", "INFO") as said, pytest.raises(KeyboardInterrupt):
        launcher.run([*SCRIPT, "run.name=d"], script_args=["wait"])
    assert launcher.Run("d").status.state == "cancelled"
    assert any("stopping after this step" in line for line in said.output)


def test_a_sweep_has_points_runs_and_rows(folder: Path) -> None:
    judged = launcher.sweep([*SCRIPT, "train.seed=1,2"], start=False)
    assert [point.verdict for point in judged.points] == ["fits", "fits"]
    assert judged.runs == []
    assert "train.seed=2" in str(judged)
    done = launcher.sweep([*SCRIPT, "train.steps=1,0", "run.name=s"])
    assert [(point.overrides, point.kept) for point in done.points] == [
        (("train.steps=1",), True),
        (("train.steps=0",), False),
    ]
    assert [run.status.state for run in done.runs] == ["finished"]
    assert [row["loss"] for row in launcher.Sweep("s").rows()] == [2.5, None]
    assert list(done.metrics()["verdict"]) == ["fits", "invalid"]
    with pytest.raises(ConfigErrors, match=r"it is a sweep: launcher\.Sweep"):
        launcher.Run("s")
    with pytest.raises(ConfigErrors, match="no such run or sweep"):
        launcher.Sweep("none")


def test_progress_and_messages_are_shown_where_they_are_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher.run([*SCRIPT, "run.name=e", "hardware.memory_bytes=1000"], force=True, quiet=False)
    said = capsys.readouterr()
    assert "launch: DOES NOT FIT: " in said.err
    assert f"run directory {folder / 'runs' / 'e'}" in said.out


def test_without_pandas_a_data_frame_is_refused_and_the_way_out_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    (tmp_path / "spec.json").write_text("{}")
    with pytest.raises(ConfigErrors) as refused:
        launcher.Run(tmp_path).metrics()
    assert refused.value.errors[0].rule.endswith("is not installed; Run.steps() returns the same as a list")
    assert refused.value.errors[0].way_out[0].endswith("pip install 'llm-launch[fsdp]'")


def test_checks_in_threads_agree_and_leave_hydra_as_it_was() -> None:
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    words = [[*FITS, f"run.name='{number} is quoted, so that Hydra itself composes'"] for number in range(3)]
    found: list[str] = []
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):  # A program with a Hydra of its own.
        own = GlobalHydra.instance().hydra
        threads = [threading.Thread(target=lambda w=w: found.append(launcher.check(w).verdict)) for w in words]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert GlobalHydra.instance().hydra is own
    assert found == ["fits"] * 3
    assert not GlobalHydra.instance().is_initialized()


def test_the_contract_names_every_function_keyword_and_member() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    said = page[page.index("## Reference") :]
    for name in ("check", "plan", "show", "run", "submit", "sweep"):
        keywords = list(inspect.signature(getattr(launcher, name)).parameters)[1:]
        assert keywords
        assert all(re.search(rf"`{name}.*?\b{keyword}\b", said, re.DOTALL) for keyword in keywords), name
    for kind in (launcher.Check, launcher.Plan, launcher.Run, launcher.Sweep, Shown):
        members = {member for member in (*dir(kind), *kind.__annotations__) if not member.startswith("_")}
        assert len(members) > 4
        unnamed = {member for member in members if not re.search(rf"`{member}[`(]", said)}
        assert unnamed <= {"of", "assessment", "plan", "job"}, kind


def test_the_examples_of_the_documentation_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "python.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 7
    assert_golden("api_examples.py", "\n".join(["# fmt: off\n# ruff: noqa\n", *blocks]))  # Read there by mypy.
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    said = capsys.readouterr().out
    assert "DOES NOT FIT" in said
    assert "('model=1b',) fits None" in said


def test_data_that_cannot_be_used_are_errors_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise Unusable("data.path", "x", "no file matches", ["data=text"])

    monkeypatch.setattr("launcher.actions.run.record_run", failing)
    with pytest.raises(ConfigErrors) as refused:
        launcher.run(["model=tiny"])
    assert [(error.path, error.rule, error.way_out) for error in refused.value.errors] == [
        ("data.path", "no file matches", ("data=text",))
    ]
