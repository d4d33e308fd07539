"""Composition: presets, precedence, the user's own folder, and both ways to compose giving the same."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra import initialize_config_dir
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from launcher.base.errors import ComposeError
from launcher.cli import main
from launcher.config import compose as module
from launcher.config.catalog import PRIMARY, Catalog
from launcher.config.overrides import Override, read
from launcher.config.request import request
from launcher.preflight import findings
from tests.support.helpers import make_spec
from tests.support.rule_cases import NODE

SHIPPED = Catalog(folder=Path("/nonexistent"))


def composed(*texts: str, catalog: Catalog = SHIPPED) -> dict[str, Any]:
    overrides, errors = read(texts, catalog)
    assert not errors
    return module.compose(overrides, catalog)


def by_hydra(overrides: Sequence[Override]) -> Any:
    """The configuration that Hydra itself composes of the shipped files."""
    with initialize_config_dir(str(SHIPPED.conf[-1]), version_base="1.3"):
        found = hydra.compose(PRIMARY, overrides=module._last_choices(overrides))
    return OmegaConf.to_container(found, resolve=True, throw_on_missing=False)


def test_a_preset_chooses_backend_and_zero_and_the_command_line_wins_in_any_position() -> None:
    assert make_spec("parallel=zero2").zero.stage == 2
    for words in (("parallel=zero2", "zero=3"), ("zero=3", "parallel=zero2")):
        spec = make_spec(*words)
        assert (spec.backend.name, spec.zero.stage) == ("deepspeed", 3)


@pytest.mark.parametrize(
    ("backend", "stage", "shard"), [("megatron", 1, False), ("deepspeed", 3, False), ("fsdp", 3, True)]
)
def test_a_backend_chosen_without_a_preset_brings_its_own_defaults(backend: str, stage: int, shard: bool) -> None:
    for words in ((f"backend={backend}",), (f"backend.name={backend}", "parallel.tensor=1")):
        spec = make_spec("model=7b", *words)
        assert (spec.backend.name, spec.zero.stage, spec.parallel.shard) == (backend, stage, shard)
        assert spec.parallel.name == backend
    assert make_spec(f"backend={backend}", "zero=2").zero.stage == 2
    assert make_spec("parallel.shard=true", f"backend={backend}").parallel.shard
    assert make_spec(f"backend={backend}", "parallel=tp_pp").parallel.name == "tp_pp"


def test_the_presets_that_backends_bring_are_not_for_choosing(tmp_path: Path) -> None:
    assert not {"megatron", "deepspeed", "plain", "_megatron"} & {*Catalog(folder=tmp_path).groups["parallel"]}


def test_a_mistyped_backend_keeps_its_ways_out() -> None:
    [error] = request(["model=tiny", "backend.name=nope"]).errors
    assert "backend.name=megatron" in error.way_out


def test_a_run_of_megatron_by_its_degrees_alone_is_valid() -> None:
    spec = make_spec("backend=megatron", "parallel.tensor=2", "parallel.pipeline=2", "model=7b", *NODE)
    assert findings.errors(spec) == ()


def test_a_recipe_that_chooses_a_backend_alone_brings_its_defaults(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text("schema: 1\nsummary: mine\nchoose: {backend: megatron}\n")
    assert make_spec("recipe=mine", folder=tmp_path).parallel.name == "megatron"
    assert make_spec("recipe=mine", "backend=deepspeed", folder=tmp_path).parallel.name == "deepspeed"
    assert make_spec("recipe=mine", "parallel=tp", folder=tmp_path).parallel.name == "tp"


def test_the_last_of_two_choices_and_of_two_values_wins() -> None:
    spec = make_spec("precision=fp32", "precision=bf16", "train.steps=3", "train.steps=4")
    assert (spec.precision.compute, spec.train.steps) == ("bf16", 4)


KEYS = {
    "train.steps": st.integers(1, 10**12),
    "optimizer.lr": st.floats(1e-9, 1e6),
    "train.compile": st.sampled_from(["true", "False", "TRUE"]),
    "checkpointing.modules": st.sampled_from(["[]", "[mlp]", "[ mlp, core_attn ]", "['a']", "[1,true,null]"]),
    "run.directory": st.sampled_from(["'a b'", "'[x]'", "'it\\'s'", "''"]),
    "train.eval_every": st.sampled_from(["null", "5"]),
    "data.mix": st.sampled_from(["[{path: a}]", "[{path: a, weight: .5}, {path: 'b c'}]"]),
    "backend.extra": st.sampled_from(["{a: {b: 1, c: [1, x]}, d: null}", "{}", "{1: 2}", "{a: ???}", "null"]),
    "cluster.environment": st.sampled_from(["{A: b}", "{A: 'b c', B: 2}", "{A: ${train.seed}}", "null"]),
    "cluster.environment.A": st.sampled_from(["c", '"d e"', "[1]"]),
    "optimizer.epsilon": st.sampled_from([".5", "1e-8", "5.", "inf"]),
    "data.path": st.from_regex(r"[A-Za-z0-9_/.~:@+,'\[\]{}= -]{0,12}", fullmatch=True),
    "run.name": st.from_regex(r"[A-Za-z0-9_.+-]{1,8}", fullmatch=True),
}


@settings(max_examples=6, deadline=None)
@given(st.fixed_dictionaries({}, optional=KEYS), st.sampled_from(["fsdp", "zero2", "3d"]))
def test_values_put_in_place_give_what_hydra_gives(values: dict[str, object], preset: str) -> None:
    overrides, errors = read([f"parallel={preset}", *(f"{key}={value}" for key, value in values.items())], SHIPPED)
    assert not errors
    try:
        quick = module.compose(overrides, SHIPPED)
    except ComposeError:
        return  # Hydra's grammar, or the test for sweeps, refuses the text: there is nothing to compare.
    assert repr(quick) == repr(by_hydra(overrides))


def test_options_composed_apart_give_what_hydra_gives_of_them_together() -> None:
    assert SHIPPED.options_stand_alone
    options = [f"{group}={option}" for group, names in SHIPPED.groups.items() if group != "recipe" for option in names]
    assert len(options) > 80
    draw = random.Random(1)
    for _ in range(8):
        overrides, _ = read(draw.sample(options, 12), SHIPPED)
        assert repr(module.compose(overrides, SHIPPED)) == repr(by_hydra(overrides))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("tracking/mine.yaml", "# @package _global_\ndefaults: [none, _self_]\ntrain: {steps: 7}\n"),
        ("parallel/mine.yaml", "# @package _global_\ndefaults: [_base, _self_]\ntrain:\n  steps: 7\n"),
    ],
)
def test_an_option_that_reaches_into_another_group_does_so(tmp_path: Path, file: str, text: str) -> None:
    for name in ("tracking", "parallel"):
        (tmp_path / "conf" / name).mkdir(parents=True)
    (tmp_path / "conf" / file).write_text(text)
    catalog = Catalog(folder=tmp_path)
    assert not catalog.options_stand_alone
    assert composed(file.replace("/", "=").removesuffix(".yaml"), catalog=catalog)["train"]["steps"] == 7


def test_what_is_put_in_place_stays_out_of_the_parts_that_are_kept() -> None:
    before = composed("parallel=ddp")
    assert composed("parallel=ddp", "train.steps=123456", "+cluster.environment.A=b")["train"]["steps"] == 123456
    assert composed("parallel=ddp") == before


def test_the_users_own_folder_comes_first(tmp_path: Path) -> None:
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "config.yaml").write_text("of: another project\n")
    (tmp_path / "conf" / "model" / "mine.yaml").write_text("defaults: [tiny, _self_]\nname: mine\nhidden_size: 128\n")
    (tmp_path / "conf" / "model" / "tiny.yaml").write_text("defaults: [_base, _self_]\nname: ours\n")
    catalog = Catalog(folder=tmp_path)
    assert "mine" in catalog.groups["model"]
    assert composed("model=mine", catalog=catalog)["model"]["hidden_size"] == 128
    assert composed("model=tiny", catalog=catalog)["model"]["name"] == "ours"
    assert composed("model=tiny")["model"]["name"] == "tiny"


GROUPS = [group for group in SHIPPED.groups if group != "recipe"]


def chosen(group: str) -> str:
    """An option of a group that the defaults choose, or any."""
    return {"model": "tiny", "hardware": "auto", "parallel": "fsdp"}.get(group, SHIPPED.groups[group][0])


@pytest.mark.parametrize(
    ("group", "text"),
    [
        pytest.param(group, text, marks=[pytest.mark.thorough] if text and group != "model" else [])
        for group in GROUPS
        for text in ("", "one")
    ],
)
def test_an_option_of_the_users_inherits_the_base_of_its_group(group: str, text: str, tmp_path: Path) -> None:
    folder = tmp_path / "conf" / group
    folder.mkdir(parents=True)
    key, value = next(item for item in composed()[group].items() if item[1] != "???")
    head = "# @package parallel\n" if group == "parallel" else ""
    (folder / "mine.yaml").write_text(head + (f"{key}: {json.dumps(value)}\n" if text == "one" else text))
    catalog = Catalog(folder=tmp_path)
    found = request(["model=tiny", f"{group}=mine"], catalog=catalog)
    assert all(error.path.startswith(f"{group}.") and error.rule == "must be set" for error in found.errors)
    assert (
        composed(f"{group}=mine", catalog=catalog)[group].keys() == composed(f"{group}={chosen(group)}")[group].keys()
    )


def test_a_key_that_an_option_leaves_to_its_base_can_be_set_where_hydra_composes_in_full(tmp_path: Path) -> None:
    folder = tmp_path / "conf" / "cluster"
    folder.mkdir(parents=True)
    (folder / "local.yaml").write_text("kind: local\nsetup: ['echo ${cluster.kind}']\n")
    catalog = Catalog(folder=tmp_path)
    assert catalog.interpolates
    assert composed("cluster.gpus_per_node=3", catalog=catalog)["cluster"]["gpus_per_node"] == 3


@pytest.mark.parametrize("verb", ["check", "plan", pytest.param("recipe list", marks=pytest.mark.thorough)])
def test_a_cluster_option_of_two_keys_serves_every_verb(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "conf" / "cluster").mkdir(parents=True)
    (tmp_path / "conf" / "cluster" / "local.yaml").write_text("kind: local\nsetup: []\n")
    monkeypatch.chdir(tmp_path)
    words = "model=tiny hardware=h100_80g cluster.gpus_per_node=2 parallel=ddp train.micro_batch_size=1"
    assert main([*verb.split(), *("" if verb == "recipe list" else words).split()]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_that_is_no_mapping_is_an_error_of_the_users_folder(group: str, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    primary = (SHIPPED.conf[-1] / "launch.yaml").read_text()
    (tmp_path / "conf" / "launch.yaml").write_text(f"{primary}\n{group}: 3\n")
    found = request([], catalog=Catalog(folder=tmp_path)).errors
    assert found
    assert all("must be a group of keys" in error.rule or "does not compose" in error.rule for error in found)


def test_a_primary_file_of_the_users_may_leave_groups_and_keys_out(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "launch.yaml").write_text("defaults: [{model: tiny}, _self_]\n")
    found = request([], catalog=Catalog(folder=tmp_path)).errors
    assert found
    assert {error.rule for error in found} == {"must be set"}


def test_a_changed_file_is_composed_anew(tmp_path: Path) -> None:
    (tmp_path / "conf" / "model").mkdir(parents=True)
    file = tmp_path / "conf" / "model" / "mine.yaml"
    for size in (128, 1024):
        file.write_text(f"defaults: [tiny, _self_]\nhidden_size: {size}\n")
        assert composed("model=mine", catalog=Catalog(folder=tmp_path))["model"]["hidden_size"] == size


def test_a_broken_file_of_the_users_is_named(tmp_path: Path) -> None:
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "bad.yaml").write_text("defaults: [nope, _self_]\n")
    with pytest.raises(ComposeError, match="In 'model/bad': Could not load 'model/nope'"):
        composed("model=bad", catalog=Catalog(folder=tmp_path))


def test_an_interpolating_configuration_follows_the_values(tmp_path: Path) -> None:
    (tmp_path / "conf" / "train").mkdir(parents=True)
    (tmp_path / "conf" / "train" / "mine.yaml").write_text(
        "defaults: [_base, _self_]\nglobal_batch_size: ${.micro_batch_size}\n"
    )
    config = composed("train=mine", "train.micro_batch_size=6", catalog=Catalog(folder=tmp_path))
    assert config["train"]["global_batch_size"] == 6


def test_a_value_that_cannot_be_read_is_an_error_of_its_override() -> None:
    with pytest.raises(ComposeError) as caught:
        composed("adapter.targets=[a", "train.steps=3")
    assert [error.path for error in caught.value.errors] == ["adapter.targets"]
    assert caught.value.errors[0].rule.startswith("the value cannot be parsed")


def test_no_file_of_the_users_groups_has_hydra_import_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf" / "train").mkdir(parents=True)
    (tmp_path / "conf" / "train" / "mine.yaml").write_text("hydra: {searchpath: [pkg://imported_by_hydra]}\n")
    (tmp_path / "imported_by_hydra").mkdir()
    (tmp_path / "imported_by_hydra" / "__init__.py").write_text("raise SystemExit('it was imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ComposeError) as caught:
        composed("train=mine", catalog=Catalog(folder=tmp_path))
    assert "hydra.searchpath in train/mine.yaml is not supported: groups are only read from conf/" in str(caught.value)
