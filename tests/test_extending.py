"""Everything that can be added is one new file, in a folder or in an installed package (docs/architecture.md)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.base.package import IMPORT_FOLDER

PAGE = (IMPORT_FOLDER / "docs" / "architecture.md").read_text()
LAUNCH = "import sys; from launcher.cli import main; sys.exit(main(sys.argv[1:]))"
WORLD = ("hardware=h100_80g", "cluster.gpus_per_node=8")
TINY = ("model=tiny", "parallel=ddp", *WORLD)
ACME = ("model=7b", "model.family=parallel_blocks", "backend.name=acme", *WORLD)


def launch(*words: str, folder: Path, program: str = LAUNCH) -> tuple[int, str]:
    """The status and the output of ``launch WORDS`` in a folder whose ``site`` is among the installed packages."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder / "site"), str(IMPORT_FOLDER)))}
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def judged(points: Mapping[str, Sequence[str]], folder: Path, program: str = LAUNCH) -> dict[str, dict[str, Any]]:
    """The document of ``check --json`` of each point, from one process."""
    lines = [json.dumps({"id": name, "overrides": list(words)}) for name, words in points.items()]
    (folder / "points.jsonl").write_text("\n".join(lines))
    _, out = launch("check", "--points", "points.jsonl", folder=folder, program=program)
    return {answer["id"]: answer for answer in map(json.loads, out.splitlines())}


def installed(folder: Path, name: str, offers: Mapping[str, Mapping[str, str]], files: Mapping[str, str]) -> None:
    """A package as pip leaves it: its files, and a ``.dist-info`` with its entry points."""
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in of.items()) for group, of in offers.items()
    ]
    metadata = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        "entry_points.txt": "\n".join(lines),
    }
    described = {f"{name.replace('-', '_')}-1.0.dist-info/{file}": text for file, text in metadata.items()}
    for file, text in {**described, **files}.items():
        path = folder / "site" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def on_the_page() -> dict[str, str]:
    """The files that the page shows, by the path in their first line."""
    blocks = re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    assert [name for name, _ in blocks] == ["pyproject.toml", "acme_launch/family.py", "acme_launch/backend.py"]
    return dict(blocks)


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package of the page is installed."""
    files, folder = on_the_page(), tmp_path_factory.mktemp("acme")
    project = tomllib.loads(files.pop("pyproject.toml"))["project"]
    installed(folder, project["name"], project["entry-points"], files)
    return folder


def test_the_example_of_the_page_is_under_100_lines() -> None:
    assert sum(text.count("\n") for text in on_the_page().values()) < 100


def test_the_page_shows_the_command_that_is_tried_here() -> None:
    assert f"    launch check {' '.join(ACME)}\n" in PAGE


def test_a_family_and_a_backend_of_an_installed_package_are_checked(acme: Path) -> None:
    status, out = launch("check", *ACME, "--json", folder=acme)
    found, llama = json.loads(out), judged({"llama": (*ACME, "model.family=llama")}, acme)["llama"]
    assert (status, found["errors"]) == (0, [])
    norms = 32 * 4096
    assert found["parameters"]["total"] == llama["parameters"]["total"] - norms
    piles = {pile["pile"]: pile for pile in found["piles"]}
    assert piles["reduce_buffers"]["bytes"] == 2 * found["parameters"]["per_rank"]
    assert piles["reduce_buffers"]["source"] == "acme_train/buckets.py"
    before = {pile["pile"]: pile["bytes"] for pile in llama["piles"]}
    assert piles["activations"]["bytes"] < before["activations"]


def test_a_backend_of_an_installed_package_makes_the_job(acme: Path) -> None:
    status, out = launch("show", *ACME, "model=tiny", "--json", folder=acme)
    found = json.loads(out)
    assert status == 0
    assert found["argv"][-4:] == ["--", "acme_train", "--run", "{run}"]
    assert found["worker_argv"] == ["--run", "{run}"]


def test_an_installed_family_reads_its_own_config_json(acme: Path) -> None:
    sizes = {"num_attention_heads": 4, "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128}
    config = {"model_type": "acme", **sizes, "vocab_size": 256, "max_position_embeddings": 128}
    (acme / "config.json").write_text(json.dumps(config))
    status, out = launch("import", "hf", "config.json", "--json", folder=acme)
    assert status == 0
    assert "model.family=parallel_blocks" in json.loads(out)["import"]["overrides"]


def test_what_the_installed_and_the_shipped_engines_refuse_of_them_is_said(acme: Path) -> None:
    words = ("model=7b", "model.family=parallel_blocks", "precision=bf16", *WORLD)
    found = judged(
        {
            "acme": (*ACME, "parallel.tensor=2"),
            "fsdp": ("parallel=fsdp", *words),
            "tp": ("parallel=tp", *words),
        },
        acme,
    )
    rules = {(name, error["path"]): error["rule"] for name, answer in found.items() for error in answer["errors"]}
    assert rules == {
        ("acme", "parallel.tensor"): "acme supports only data parallelism",
        ("fsdp", "model.family"): (
            "backend=fsdp builds the families transformers, llama, deepseek, gpt, moe, deepseek_v2, glm in this version"
        ),
        ("tp", "model.family"): "Megatron-LM's arguments cannot describe the family parallel_blocks",
    }


def test_installed_code_is_imported_only_where_it_is_chosen(tmp_path: Path) -> None:
    marker = "from pathlib import Path\nPath('imported').touch()\n"
    offers = {"llm_launch.backends": {"loud": "loud"}, "llm_launch.families": {"loud": "loud"}}
    installed(tmp_path, "loud-launch", offers, {"loud.py": marker})
    assert launch("check", *TINY, folder=tmp_path)[0] == 0
    assert not (tmp_path / "imported").exists()
    assert launch("check", *TINY, "backend.name=loud", folder=tmp_path)[0] == 2
    assert (tmp_path / "imported").exists()


BROKEN: dict[str, tuple[dict[str, str], str, str]] = {
    "no module": ({}, "bad", "which cannot be imported: ModuleNotFoundError: No module named 'bad'"),
    "raises": ({"bad.py": "raise OSError('no licence')\n"}, "bad", "which cannot be imported: OSError: no licence"),
    "no such object": (
        {"bad.py": ""},
        "bad:backend",
        "which cannot be imported: AttributeError: module 'bad' has no attribute 'backend'",
    ),
    "abstract": (
        {
            "bad.py": "from launcher.backends import Backend\nclass Bad(Backend):\n    framework = 'bad'\n"
            "    def dtypes(self, spec): ...\n    def engine(self, spec): ...\n    def overheads(self, rank): ...\n"
            "backend = Bad()\n"
        },
        "bad:backend",
        "which cannot be imported: TypeError: Can't instantiate abstract class Bad without an implementation for"
        " abstract method 'translate'",
    ),
    "members missing": (
        {"bad.py": "from launcher.backends.fsdp import *\ndel check, framework\n"},
        "bad",
        "which lacks check, framework of launcher.backends.Backend",
    ),
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What is said of each broken package where it is chosen, all of them being installed."""
    folder = tmp_path_factory.mktemp("refused")
    points: dict[str, Sequence[str]] = {
        "none": TINY,
        "clash": (*TINY, "model=gpt2"),
        "twice": (*TINY, "backend.name=same"),
    }
    for number, (case, (files, value, _)) in enumerate(BROKEN.items()):
        renamed = {file.replace("bad", f"bad{number}"): text for file, text in files.items()}
        offers = {"llm_launch.backends": {f"bad{number}": value.replace("bad", f"bad{number}")}}
        installed(folder, f"bad{number}-launch", offers, renamed)
        points[case] = (*TINY, f"backend.name=bad{number}")
    installed(folder, "clash-launch", {"llm_launch.families": {"gpt": "clash"}}, {"clash.py": ""})
    for name in ("one-launch", "two-launch"):
        installed(folder, name, {"llm_launch.backends": {"same": "same"}}, {})
    return judged(points, folder)


@pytest.mark.parametrize(("number", "case"), [*enumerate(BROKEN)])
def test_a_broken_package_is_an_error_that_names_it(number: int, case: str, refused: dict[str, dict[str, Any]]) -> None:
    _, value, reason = BROKEN[case]
    said = f"the installed package bad-launch offers it as {value}, {reason}"
    [error] = refused[case]["errors"]
    assert error["path"] == "backend.name"
    assert error["rule"].replace(f"bad{number}", "bad") == said
    shipped = [f"backend.name={name}" for name in ("deepspeed", "fsdp", "megatron")]  # TRL trains no task=pretrain.
    assert error["way_out"] == [f"pip install --upgrade bad{number}-launch", *shipped]


def test_a_name_that_the_launcher_ships_is_refused_where_it_is_chosen(refused: dict[str, dict[str, Any]]) -> None:
    assert refused["none"]["errors"] == []
    assert refused["clash"]["errors"] == [
        {
            "path": "model.family",
            "found": "gpt",
            "rule": "the installed package clash-launch offers this name, which the launcher itself uses",
            "way_out": ["pip uninstall clash-launch"],
        }
    ]


def test_a_name_that_two_packages_offer_is_refused(refused: dict[str, dict[str, Any]]) -> None:
    [error] = refused["twice"]["errors"]
    assert error["rule"] == "it is offered by more than one package: one-launch and two-launch"
    assert error["way_out"] == ["pip uninstall one-launch", "pip uninstall two-launch"]


def test_a_gpu_a_model_size_and_a_recipe_are_one_file_each_of_the_users_own_folder(tmp_path: Path) -> None:
    files = {
        "conf/hardware/mine.yaml": "defaults: [_base, _self_]\nname: mine\ntitle: A GPU of 10 GiB\n"
        "memory_bytes: 10737418240\nreserved_bytes: 0\ndtypes: [fp32, bf16]\nsource: its box\n",
        "conf/model/deeper.yaml": "defaults: [tiny, _self_]\nname: deeper\nnum_hidden_layers: 9\n",
        "recipes/both.yaml": "schema: 1\nsummary: Both on two of them\n"
        "choose: {model: deeper, hardware: mine, parallel: ddp}\nset: {cluster.gpus_per_node: 2}\n",
    }
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    found = judged({"both": ("recipe=both",), "tiny": ("recipe=both", "model=tiny")}, tmp_path)
    both, tiny = found["both"], found["tiny"]
    assert both["verdict"] == "fits"
    assert both["gpu"] == {"name": "mine", "memory_bytes": 10737418240}
    assert both["world"]["gpus"] == 2
    assert both["parameters"]["total"] > tiny["parameters"]["total"]


ONE_FILE = {
    "families": (
        "from launcher.estimate.families import llama\nfrom launcher.estimate.families.llama import *\n"
        "def block(model, layer):\n"
        "    return [weight for weight in llama.block(model, layer) if 'post_attention' not in weight.name]\n",
        "model.family=added",
    ),
    "backends": (
        "from launcher.backends import deepspeed\nfrom launcher.backends.fsdp import *\n"
        "framework, overheads = 'added', deepspeed.overheads\n",
        "backend.name=added",
    ),
}


@pytest.mark.parametrize("package", ONE_FILE)
def test_a_family_and_a_backend_are_one_file_each_of_the_launchers_folder(package: str, tmp_path: Path) -> None:
    text, word = ONE_FILE[package]
    (tmp_path / package).mkdir()
    (tmp_path / package / "added.py").write_text(text)
    room = {"families": "launcher.estimate.families", "backends": "launcher.backends"}[package]
    longer = f"import {room} as room; room.__path__.append({str(tmp_path / package)!r}); {LAUNCH}"
    found = judged({"shipped": TINY, "added": (*TINY, word)}, tmp_path, program=longer)
    assert [answer["errors"] for answer in found.values()] == [[], []]
    assert found["added"]["peak"] != found["shipped"]["peak"]
    fewer = found["shipped"]["parameters"]["total"] - found["added"]["parameters"]["total"]
    assert (fewer > 0) == (package == "families")


KIND = (
    "from launcher.estimate.families._decoders.kinds.mlp import *\n"
    "from launcher.estimate.families._weights import linear\n"
    "def weights(part):\n    return linear('mixer.only', part.model.hidden_size, 16, bias=False)\n"
)
HYBRID = {
    "model_type": "nemotron_h", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 16,
    "ssm_state_size": 16, "n_groups": 2, "layers_block_type": ["linear_attention", "added"],
}  # fmt: skip


def test_a_kind_of_layer_is_one_file_that_the_description_of_a_model_type_names(tmp_path: Path) -> None:
    (tmp_path / "kinds").mkdir()
    (tmp_path / "kinds" / "added.py").write_text(KIND)
    (tmp_path / "config.json").write_text(json.dumps(HYBRID))
    room = "launcher.estimate.families._decoders"
    longer = (
        f"from {room} import TYPES, kinds; kinds.__path__.append({str(tmp_path / 'kinds')!r})\n"
        f"from {room}.description import Step; from dataclasses import replace; one = TYPES['nemotron_h']\n"
        "steps = {**one.steps, 'added': (Step(norm='norm', kinds=('added',)),)}\n"
        f"TYPES['nemotron_h'] = replace(one, steps=steps)\n{LAUNCH}"
    )
    words = ("model=./config.json", "parallel=ddp", *WORLD)
    found = judged({"named": words}, tmp_path, program=longer)["named"]
    shipped = judged({"named": words}, tmp_path)["named"]
    assert found["errors"] == []
    mixer = 64 * (128 + 192 + 8) + 192 * 5 + 3 * 8 + 128 + 128 * 64
    assert found["parameters"]["total"] == 2 * 256 * 64 + 64 + (64 + mixer) + (64 + 64 * 16)
    assert "a layer of a nemotron_h is" in shipped["errors"][0]["rule"]
