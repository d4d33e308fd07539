"""``parse``: every error at once with path, rule and way out; ``to_dict`` its inverse."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import asdict
from hashlib import sha256
from typing import Any

import pytest

from launcher.base.errors import ConfigErrors
from launcher.spec.edit import changed
from launcher.spec.hardware import UNHASHED_WHEN_UNSET
from launcher.spec.parse import known_keys, parse, to_dict
from tests.support.helpers import ask, make_spec

BASE = to_dict(make_spec("model=tiny"))


def errors_of(**changes: object) -> dict[str, tuple[str, tuple[str, ...]]]:
    config: dict[str, Any] = deepcopy(BASE)
    for path, value in changes.items():
        group, _, key = path.partition("__")
        if key:
            config[group][key] = value
        else:
            config[group] = value
    with pytest.raises(ConfigErrors) as caught:
        parse(config)
    return {error.path: (error.rule, error.way_out) for error in caught.value.errors}


@pytest.mark.parametrize("words", [("model=tiny",), ("parallel=zero3", "adapter=lora"), ("cluster=slurm",)])
def test_a_specification_survives_the_round_trip(words: tuple[str, ...]) -> None:
    spec = make_spec(*words)
    assert parse(to_dict(spec)) == spec


def test_a_record_of_a_version_without_a_later_key_is_read_and_the_key_is_unknown() -> None:
    older = deepcopy(to_dict(make_spec("hardware=b200")))
    hardware = older["hardware"]
    assert isinstance(hardware, dict)
    del hardware["compute_capability"]
    assert parse(older).hardware.compute_capability is None
    del hardware["memory_bytes"]
    with pytest.raises(ConfigErrors, match=r"hardware\.memory_bytes=None: must be set"):
        parse(older)


def test_wrong_types_values_and_ranges_are_all_named_at_once() -> None:
    found = errors_of(
        train__steps="many",
        train__compile=1,
        checkpointing__mode="ful",
        optimizer__lr=float("nan"),
        optimizer__beta1=1.5,
        adapter__targets="q_proj",
        backend__name="deepspede",
        cluster__environment=3,
        zero__stage=4,
        save__every=0,
    )
    assert found == {
        "train.steps": ("must be an integer of at least 1 or null", ("train.steps=null",)),
        "train.compile": ("must be true or false", ("train.compile=true", "train.compile=false")),
        "checkpointing.mode": ("must be one of none, selective, full", ("checkpointing.mode=full",)),
        "optimizer.lr": ("must be a number above 0", ("optimizer.lr=0.0003",)),
        "optimizer.beta1": ("must be a number from 0 to below 1", ("optimizer.beta1=0.9",)),
        "adapter.targets": ("must be a list, each a single line of text", ("adapter.targets=[q_proj]",)),
        "backend.name": ("must be one of deepspeed, fsdp, megatron, trl", ("backend.name=deepspeed",)),
        "cluster.environment": ("must be a mapping of names to values", ("cluster.environment={}",)),
        "zero.stage": ("must be an integer from 0 to 3", ("zero.stage=3",)),
        "save.every": ("must be an integer of at least 1 or null", ("save.every=1",)),
    }


def test_unknown_and_missing_keys_are_named() -> None:
    config: dict[str, Any] = deepcopy(BASE)
    config["train"]["stpes"] = 3
    del config["train"]["seed"]
    config["model"]["hidden_size"] = "???"
    with pytest.raises(ConfigErrors) as caught:
        parse(config)
    found = {error.path: (error.rule, error.way_out) for error in caught.value.errors}
    assert found["train.stpes"] == ("there is no such key", ("train.steps=3",))
    assert found["train.seed"][0] == "must be set"
    assert found["model.hidden_size"] == ("must be set", ("model.hidden_size=...",))


def test_a_group_that_is_no_mapping_is_named() -> None:
    assert errors_of(train=3)["train"][0] == "a group of keys is expected here"


def test_integers_are_numbers_and_numbers_are_names() -> None:
    config: dict[str, Any] = deepcopy(BASE)
    config["optimizer"]["lr"] = 1
    config["run"]["name"] = 7
    spec = parse(config)
    assert spec.optimizer.lr == 1.0
    assert spec.run.name == "7"


def test_every_key_of_the_specification_is_known() -> None:
    keys = known_keys()
    assert {"model.family", "save.async", "script", "zero.stage"} <= keys
    assert "save.asynchronous" not in keys


def test_the_hash_names_what_the_run_is_and_not_where_it_goes() -> None:
    one = make_spec("model=tiny")
    assert one.hash == make_spec("model=tiny", "run.name=elsewhere").hash
    assert one.hash != make_spec("model=tiny", "train.seed=1").hash
    fuller = ("hardware.disk_bytes=1000000", "hardware.host_memory_bytes=1000000000")
    assert one.hash == make_spec("model=tiny", *fuller).hash, "a disk fills up while nobody changes the run"


@pytest.mark.parametrize("clip", [1.0, 1])
def test_the_hash_is_that_of_all_groups_as_one_text_of_json(clip: float) -> None:
    spec = changed(make_spec("model=tiny"), "optimizer.clip", clip)
    content = {name: group for name, group in asdict(spec).items() if name not in ("run", "sweep")}
    content["hardware"] |= {"disk_bytes": None, "host_memory_bytes": None}
    for key in ("measurements", "storage_bandwidth", *UNHASHED_WHEN_UNSET):
        del content["cluster"][key]
    kept = make_spec("model=tiny").data
    for key in (
        "mix",
        "stages",
        "eval_path",
        "eval_split",
        "eval_config",
        "eval_sets",
        "columns",
        "special_tokens",
        "template_values",
        "on_bad_row",
        "revision",
        "config",
        "max_samples",
        "samples",
        "packing",
    ):
        assert content["data"].pop(key) == getattr(kept, key)
    del content["task"], content["eval"]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert spec.hash == sha256(text.encode()).hexdigest()[:12]


def test_a_key_that_came_later_counts_only_where_it_is_set() -> None:
    assert make_spec("cluster=slurm", "cluster.mail=me").hash != make_spec("cluster=slurm").hash


def test_nothing_below_an_open_node_breaks_a_line_of_the_batch_script() -> None:
    config = to_dict(make_spec("model=tiny"))
    config["cluster"]["extra"] = {"comment": "a\nb"}  # type: ignore[index]
    with pytest.raises(ConfigErrors) as caught:
        parse(config)
    assert [error.path for error in caught.value.errors] == ["cluster.extra"]


@pytest.mark.parametrize("key", ["train.seed", "hardware.disk_bytes"])
def test_a_whole_number_has_at_most_64_bits(key: str) -> None:
    assert ask("model=tiny", f"{key}={2**64 - 1}").errors == ()
    for value in (2**64, 10**400, "1e300"):
        (error,) = ask("model=tiny", f"{key}={value}").errors
        assert error.path == key
        assert error.rule in ("must fit in 64 bits, as every setting does", "a number must have fewer than 309 digits")


@pytest.mark.parametrize("key", ["model.initializer_range", "model.norm_epsilon", "optimizer.epsilon"])
def test_what_transformers_refuses_and_what_drowns_all_else_is_out_of_range(key: str) -> None:
    assert ask("model=tiny", f"{key}=1").errors == ()
    for value in ("-0.02", "0", "1.5", "nan", "inf"):
        (error,) = ask("model=tiny", f"{key}={value}").errors
        assert (error.path, error.rule) == (key, "must be a number above 0, at most 1")
