"""The Python of a Slurm job, where it is not this one: asked once, and its versions are named before the queue."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.base import cache
from launcher.cli import main
from launcher.job import versions
from launcher.preflight import job_python
from tests.support.helpers import make_spec

WORDS = ("model=tiny", "parallel=fsdp", "cluster=slurm", "hardware=h100_80g")
PACKAGES = {"llm-launch": "0.1.0", "torch": "2.12.1", "transformers": "5.17.0"}

EXPERTS = ("model.family=moe", "model.num_experts=4", "model.num_experts_per_tok=2", "model.moe_intermediate_size=64")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cache, "folder", lambda *_: tmp_path / "cache")
    return tmp_path


def interpreter(folder: Path, *, python: tuple[int, ...] = (3, 12, 1), said: str | None = None, **found: str) -> Path:
    """A program that answers as a Python with these packages and notes that it was started."""
    packages = {**PACKAGES, **{name.replace("_", "-"): text for name, text in found.items()}}
    answer = said if said is not None else json.dumps({"python": python, "packages": packages})
    path = folder / "env" / "bin" / "python"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho x >> {folder}/started\ncat <<'END'\n{answer}\nEND\n")
    path.chmod(0o755)
    return path


def starts(folder: Path) -> int:
    path = folder / "started"
    return len(path.read_text().splitlines()) if path.exists() else 0


def warned(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    chosen = [word for word in WORDS if "cluster" not in word or "recipe=theirs.yaml" not in words]
    main(["check", "--json", *chosen, *words])
    found = json.loads(capsys.readouterr().out)
    return [f"{item['path']}: {item['rule']}: {' '.join(item['way_out'])}" for item in found["warnings"]]


def test_a_check_names_what_the_job_s_python_lacks_and_asks_it_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = interpreter(folder, torch="2.7.1")
    [old] = [text for text in warned(capsys, f"cluster.python={path}") if "torch" in text]
    assert f"torch 2.7.1 is installed for {path}; this version of launch supports torch from 2.11" in old
    assert f"{path} -m pip install 'torch>=2.11'" in old
    interpreter(folder)
    words = (f"cluster.python={path}", "parallel.expert=2", "cluster.gpus_per_node=2", *EXPERTS)
    [lack] = [text for text in warned(capsys, *words) if "torch" in text]
    assert f"parallel.expert: torch 2.12.1 is installed for {path}, which has not been tried with" in lack
    before = starts(folder)
    assert warned(capsys, *words) == warned(capsys, *words)
    assert starts(folder) == before == 2, "the answer is kept until the interpreter changes"


def test_a_run_is_refused_before_the_queue(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = interpreter(folder, torch="2.7.1")
    assert main(["run", *WORDS, f"cluster.python={path}"]) == 2
    assert "supports torch from 2.11" in " ".join(capsys.readouterr().err.split())
    assert not (folder / "runs").exists()


def test_lines_before_the_job_may_bring_other_packages_so_that_only_a_warning_is_given(folder: Path) -> None:
    path = interpreter(folder, torch="2.7.1")
    spec = make_spec(*WORDS, f"cluster.python={path}")
    with_modules = make_spec(*WORDS, f"cluster.python={path}", "cluster.modules=[torch]")
    assert len(list(job_python.errors(spec, job_python.asked))) == 1
    assert not list(job_python.errors(with_modules, job_python.asked))
    assert len(list(job_python.warnings(with_modules, job_python.asked))) == 1


def test_a_python_that_is_too_old_or_lacks_packages_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = interpreter(folder, said='{"python": [3, 10, 4], "packages": {"torch": "2.12.1"}}')
    old, lacks = (text for text in warned(capsys, f"cluster.python={path}") if "cluster.python" in text)
    assert old == "cluster.python: this is Python 3.10.4, and launch needs 3.12: cluster.python=null"
    assert f"llm-launch, transformers are not installed for {path}" in lacks
    assert f"{path} -m pip install 'llm-launch[fsdp]'" in lacks


def test_what_only_some_runs_import_is_installed_by_the_extra_that_brings_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = interpreter(folder)
    words = (f"cluster.python={path}", "parallel.ulysses=2", "adapter=lora", "cluster.gpus_per_node=2")
    [lacks] = [text for text in warned(capsys, *words) if "not installed" in text]
    assert f"peft, deepspeed are not installed for {path}" in lacks
    assert lacks.endswith(f"{path} -m pip install 'llm-launch[fsdp]' && {path} -m pip install 'llm-launch[deepspeed]'")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("cluster.python=python3",), "each node finds python3 through its own PATH"),
        (("cluster.python=/nowhere/bin/python",), "this machine has no such program, but the nodes may have it"),
        (("cluster.container=pyxis", "cluster.container_image=nvcr.io/x"), "they are inside the container"),
        (("cluster.python=FOLDER/env/bin/python",), "it did not list them: exit status 0"),
    ],
)
def test_a_python_that_cannot_be_asked_is_said_with_the_command_that_can(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], reason: str
) -> None:
    interpreter(folder, said="no JSON")
    given = [word.replace("FOLDER", str(folder)) for word in words]
    [found] = [text for text in warned(capsys, *given) if "packages are unknown here" in text]
    assert f"its packages are unknown here: {reason}: launch doctor {' '.join(given)}" in found


def test_a_python_that_hangs_costs_a_limited_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = interpreter(folder)
    path.write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(job_python, "_TIMEOUT_S", 0.2)
    assert any("it did not answer within 0.2 s" in text for text in warned(capsys, f"cluster.python={path}"))


def test_a_check_starts_no_python_that_a_foreign_recipe_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = interpreter(folder, torch="2.7.1")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    (folder / "theirs.yaml").write_text(
        f"schema: 1\nsummary: theirs\nchoose: {{cluster: slurm}}\nset: {{cluster.python: {path}}}\n"
    )
    words = ("recipe=theirs.yaml",)
    [found] = [text for text in warned(capsys, *words) if "cluster.python" in text]
    assert "theirs.yaml is from elsewhere and not trusted (--trust), so it was not started" in found
    assert starts(folder) == 0
    assert any("torch 2.7.1" in text for text in warned(capsys, *words, "--trust"))
    assert starts(folder) == 1


def test_what_a_node_told_the_doctor_is_known_to_later_checks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("cluster.container=pyxis", "cluster.container_image=nvcr.io/x")
    node = {"host": "node7", "python": "3.12.3", "packages": {**PACKAGES, "torch": "2.7.0a0+7c8ec84dab.nv25.03"}}
    job_python.note(make_spec(*WORDS, *words).cluster, node, "2026-11-22")
    [found] = [text for text in warned(capsys, *words) if "torch" in text]
    assert "torch 2.7.0a0+7c8ec84dab.nv25.03 is installed on node7, according to launch doctor on 2026-11-22;" in found
    assert any("are unknown here" in text for text in warned(capsys, words[0], "cluster.container_image=other"))


def test_the_doctor_names_versions_out_of_range_and_settings_that_they_lack(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"torch": "2.11.0", "transformers": "4.40.0", "megatron-core": "0.20.0", "deepspeed": "0.19.8"}
    monkeypatch.setattr(versions, "every", lambda: found)
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["doctor", "--json"]) == 0
    lacks = json.loads(capsys.readouterr().out)["doctor"]["lacks"]
    assert any("torch 2.11.0 has not been tried with expert parallel gradients" in text for text in lacks)
    assert "transformers 4.40.0 is out of range: this version of launch supports transformers from 5.17" in lacks
    assert (
        "megatron-core 0.20.0 is out of range: this version of launch supports megatron-core from 0.19, below 0.20"
        in lacks
    )
    assert any("torch 2.11.0 gives ranks 30 s for their last checkpoint" in text for text in lacks)
    assert not any("deepspeed" in text for text in lacks)
