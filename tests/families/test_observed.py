"""Models whose class was built without memory, in place of a description: read, counted, judged, and refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.backends import _models as adapters
from launcher.base.files import JsonObject
from launcher.config.hub import observing, reading
from launcher.estimate import families
from launcher.estimate.families import observed
from launcher.estimate.rank.counts import kinds_of, parameter_counts
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.speed.products import products
from launcher.spec import RunSpec
from launcher.spec.parse import parse, to_dict
from tests.support.helpers import make_spec, needs
from tests.support.model_files import left_out, model_of, refused, that_matters

FILE = {
    "model_type": "lfm2",
    "hidden_size": 8,
    "vocab_size": 32,
    "num_hidden_layers": 3,
    "torch_dtype": "float32",
}
LINE = {
    "saved": [100.5, 2.0],
    "adapted": [90.5, 2.0],
    "frozen": [60.5, 2.0],
    "extra": [10.0, 0.0],
    "keeps_input": False,
}
FORMS = dict.fromkeys(("fp32", "bf16", "mixed"), LINE)
FOUND: JsonObject = {
    "class": "Lfm2Config",
    "parameters": 32 * 8 * 2 + 8 + 2 * (16 * 8 + 4) + 4 * 8 * 6,
    "sizes": {
        "num_hidden_layers": 3,
        "hidden_size": 8,
        "intermediate_size": 6,
        "num_attention_heads": 2,
        "vocab_size": 32,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 6,
    },
    "layers": ["mixer", "mixer experts", "mixer"],
    "before": {"model.embeddings.weight": [32, 8]},
    "after": {"model.norm_f.weight": [8], "lm_head.weight": [32, 8]},
    "kinds": {
        "mixer": {"mixer.in_proj.weight": [16, 8], "mixer.A_log": [4]},
        "mixer experts": {"mixer.experts.up_proj": [4, 6, 8]},
    },
    "linears": ["in_proj"],
    "attention": "causal_sdpa",
    "logits": [1.0, None],
    "reads": ["block_ff_dim", "hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"],
    "passes": {"mixer": FORMS, "mixer experts": FORMS},
}
"""What building a class shows, made small."""


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The configurations for which a class was built, by a process that is not started."""
    asked: list[str] = []

    def run(text: str) -> JsonObject:
        asked.append(text)
        return FOUND

    monkeypatch.setattr(observing, "_run", run)
    monkeypatch.setattr(observing, "_version", lambda name: "1.0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return asked


def _spec(document: dict[str, Any], *words: str) -> RunSpec:
    run = to_dict(make_spec("model=tiny", "precision=fp32", *words))
    group = run["model"]
    assert isinstance(group, dict)
    run["model"] = {**group, **reading.read(json.dumps(document), "config.json").model}
    return parse(run)


def test_a_type_that_no_family_describes_is_counted_by_its_class(built: list[str]) -> None:
    spec = _spec(FILE)
    assert spec.model.family == "observed"
    assert list(families.check(spec)) == []
    total, active = parameter_counts(spec, families.of(spec.model))
    assert (total, total - active) == (FOUND["parameters"], 3 * 6 * 8)
    assert kinds_of(observed, spec.model, (0, 1, 2), first_apart=False) == (("mixer", 2, 2), ("mixer experts", 1, 1))


@pytest.mark.parametrize(
    "document",
    [{"model_type": "opt", "do_layer_norm_before": False}, {"model_type": "qwen2_moe", "decoder_sparse_step": 2}],
)
def test_layers_that_a_description_does_not_cover_are_counted_by_their_class(
    document: dict[str, Any], built: list[str]
) -> None:
    assert model_of(document)["family"] == "observed"
    assert json.loads(built[0]) == document


def test_a_class_is_built_once_for_a_file_and_called_with_all_that_it_says(built: list[str]) -> None:
    spec = _spec(FILE)
    assert _spec(FILE) == spec
    [asked] = built
    assert "torch_dtype" not in json.loads(asked)
    found = families.of(spec.model).transformers_config(spec.model)
    assert found is not None
    assert (found.name, found.settings) == (
        "Lfm2Config",
        {"hidden_size": 8, "vocab_size": 32, "num_hidden_layers": 3},
    )


def test_a_size_by_a_word_that_the_class_does_not_read_is_refused_with_its_own(built: list[str]) -> None:
    foreign = {"model_type": "lfm2", "n_layers": 5, "dModel": 16, "ffn_dim": 9, "vocab_size": 32}
    assert refused(foreign) == {
        "n_layers": "rename it to num_hidden_layers in the file",
        "dModel": "rename it to hidden_size in the file",
        "ffn_dim": "rename it to intermediate_size in the file",
    }
    assert model_of(foreign) == {}
    assert left_out({**FILE, "n_layers": 3})["n_layers"] == ("no effect: num_hidden_layers says the same", False)
    assert that_matters({**FILE, "n_layers": 4, "block_ff_dim": 9, "mystery": 5}) == ["n_layers"]
    assert that_matters({**FILE, "scoring_func": "mine", "moe_ffn_hidden_size": [6, 6, 6]}) == []


def test_the_bytes_of_a_layer_are_those_of_its_kind_and_of_the_length(built: list[str]) -> None:
    engine = EngineTraits(library="transformers", size=2, residual_size=2, sequence_length=10)
    rows = observed.saved(_spec(FILE).model, 1, engine)
    assert [(row.name, row.bytes, row.only_readers) for row in rows] == [
        ("tensors of mixer experts", 81, False),
        ("inputs of linears of mixer experts", 30, True),
        ("inputs of other weights of mixer experts", 10, True),
    ]
    assert not observed.attends(_spec(FILE).model, 0)


def test_a_module_of_several_layers_is_counted_once_and_multiplied_by_each(
    built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, shape = "shared.up_proj.weight", [5, 8]
    after = {**FOUND["after"], f"model.layers.0.{place}": shape}
    found = {**FOUND, "shared": {"mixer": {place: shape}}, "after": after}
    monkeypatch.setattr(observing, "_run", lambda text: found)
    spec = _spec(FILE, "parallel=fsdp")
    assert parameter_counts(spec, observed)[0] == FOUND["parameters"] + 5 * 8
    layers = [products(observed, spec.model, spec.adapter, layer, joined=False) for layer in range(3)]
    assert [(5, 8) in [(each.outputs, each.inputs) for each in layer] for layer in layers] == [True, False, True]
    [error] = observed.not_computed(replace(spec, adapter=replace(spec.adapter, name="lora")))
    assert (error.path, error.way_out) == ("adapter.name", ("adapter=none",))


ZAMBA2 = {
    "model_type": "zamba2",
    "num_hidden_layers": 5,
    "layers_block_type": ["mamba", "hybrid", "hybrid", "mamba", "hybrid"],
    "num_mem_blocks": 2,
    "use_shared_attention_adapter": True,
    "adapter_rank": 4,
    "n_mamba_heads": 8,
    "mamba_d_state": 16,
    "chunk_size": 16,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 256,
}


def test_layers_that_share_a_block_have_one_module_which_stands_outside_them() -> None:
    needs("torch")
    from launcher.worker.observe import structure

    found = structure.structure(structure.configuration(ZAMBA2))
    first, second, third = (found.blocks[layer].shared_transformer for layer in (1, 2, 4))
    assert third is first is not second
    kinds = [name for name, used in found.shared.items() if used]
    assert [found.layers[layer] in kinds for layer in range(5)] == [False, True, False, False, True]
    made = structure.weights(found)
    outside = [name for name in made["after"] if "self_attn.q_proj" in name]
    assert outside == ["model.layers.1.shared_transformer.self_attn.q_proj.weight"]
    inside = sum(math.prod(shape) for kind in found.layers for shape in made["kinds"][kind].values())
    others = sum(math.prod(shape) for place in ("before", "after") for shape in made[place].values())
    assert inside + others == sum(each.numel() for each in found.model.parameters())


def test_another_size_than_was_built_is_refused_with_the_one_that_was(built: list[str]) -> None:
    run = to_dict(_spec(FILE))
    group = run["model"]
    assert isinstance(group, dict)
    [error] = families.check(parse({**run, "model": {**group, "num_hidden_layers": 2}}))
    assert (error.path, error.way_out) == ("model.num_hidden_layers", ("model.num_hidden_layers=3",))
    [error] = families.check(parse({**run, "model": {**group, "extra": {}}}))
    assert error.path == "model.family"


def test_an_adapter_is_beside_the_linears_that_were_found_and_none_else(built: list[str]) -> None:
    spec = _spec(FILE, "adapter=lora", "adapter.targets=[in_proj]", "adapter.rank=4", "parallel=fsdp")
    assert list(adapters.check(spec)) == []
    assert parameter_counts(spec, observed)[0] == FOUND["parameters"] + 2 * 4 * (16 + 8)
    packed = _spec(FILE, "adapter=qlora", "adapter.targets=[in_proj]", "parallel=fsdp")
    assert [error.way_out for error in observed.not_computed(packed)] == [("adapter=lora",)]
    [error] = adapters.check(_spec(FILE, "adapter=lora", "adapter.targets=[up_proj]", "parallel=fsdp"))
    assert error.way_out == ("adapter.targets=[in_proj]",)


@pytest.mark.parametrize("word", ["parallel.tensor=2", "checkpointing=selective", "model.attention=eager"])
def test_what_its_layers_do_not_show_is_refused(built: list[str], word: str) -> None:
    spec = _spec(FILE, word)
    if "attention" in word:
        run = to_dict(spec)
        group = run["model"]
        assert isinstance(group, dict)
        spec = parse({**run, "model": {**group, "attention": "eager"}})
    assert [error.path for error in observed.not_computed(spec)] == [
        word.partition("=")[0].replace("checkpointing", "checkpointing.mode")
        if "checkpointing" in word
        else word.partition("=")[0]
    ]


def test_the_reason_is_said_where_no_class_can_be_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(text: str) -> JsonObject:
        raise observing.NotObservedError("its class cannot be built: ValueError: no")

    monkeypatch.setattr(observing, "_run", run)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    [error] = reading.read(json.dumps(FILE), "config.json").errors
    assert error.path == "config.json: model_type"
    assert str(error.rule).endswith("its class cannot be built: ValueError: no")


def test_a_limit_without_end_is_the_default_of_its_class(built: list[str]) -> None:
    for infinity in (float("inf"), {"__float__": "Infinity"}):
        text = json.dumps({**FILE, "time_step_limit": [0.0, infinity]})
        assert "Infinity" in text
        found = reading.read(text, "config.json")
        assert not found.errors
        assert [left.key for left in found.imported.left_out if left.matters] == []
    assert len(built) == 1


TINY: dict[str, dict[str, Any]] = {
    "granitemoehybrid": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 48,
        "logits_scaling": 4.0,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_n_groups": 1,
        "mamba_d_state": 16,
        "mamba_chunk_size": 16,
        "layer_types": ["mamba", "attention"],
    },
}
SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TINY)
def test_a_worker_has_the_loss_and_the_parameters_of_the_class(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from launcher.worker.model import LanguageModel, initial, network

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spec = _spec({"model_type": kind, **SIZES, **TINY[kind]})
    ours = network.network(spec.model, torch.float32).to_empty(device="cpu")
    network.retie(ours)
    initial.fill(ours, 1)
    torch.manual_seed(0)
    plain = transformers.AutoModelForCausalLM.from_config(network.config(spec.model)).float().train()
    assert parameter_counts(spec, families.of(spec.model))[0] == sum(each.numel() for each in plain.parameters())
    assert all(torch.isfinite(each).all() for each in ours.parameters())
    ours.load_state_dict(plain.state_dict())
    tokens = torch.randint(0, 256, (2, 65), generator=torch.Generator().manual_seed(1))
    logits = plain(input_ids=tokens[:, :-1], use_cache=False).logits.float()
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss = LanguageModel(ours, spec).train()(tokens)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)


DRAWN: dict[str, dict[str, Any]] = {
    "falcon_h1": {
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_ssm": 128,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
        "ssm_multipliers": [0.5, 0.6, 0.7, 0.8, 0.9],
    },
    "mamba": {"state_size": 4, "rescale_prenorm_residual": True},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "rescale_prenorm_residual": True},
    "afmoe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_dense_layers": 1},
}
"""Types whose class sets tensors of a module as it is called with one around it."""


def _made(kind: str) -> tuple[Any, Any]:
    """A network whose tensors hold no number, and one that its class has filled."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from launcher.worker.model import network

    config = transformers.CONFIG_MAPPING[kind](**SIZES, **DRAWN[kind])
    with torch.device("meta"):
        ours = transformers.AutoModelForCausalLM.from_config(config)
    network.retie(ours.to_empty(device="cpu"))
    for each in (*ours.parameters(), *ours.buffers()):
        if each.is_floating_point():
            torch.nn.init.constant_(each, float("nan"))
    torch.manual_seed(0)
    return ours, transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("kind", DRAWN)
def test_first_values_that_a_module_gives_to_those_in_it_are_those_of_the_class(kind: str) -> None:
    torch = pytest.importorskip("torch")
    from launcher.worker.model import initial

    ours, plain = _made(kind)
    initial.fill(ours, 1)
    buffers = dict(plain.named_buffers())
    assert all(torch.equal(each, buffers[name]) for name, each in ours.named_buffers())
    wanted = dict(plain.named_parameters())
    for name, each in ours.named_parameters():
        drawn, expected = each.detach(), wanted[name].detach()
        if each.dim() > 1:
            assert float(drawn.std()) == pytest.approx(float(expected.std()), rel=0.25), name
            assert float(drawn.abs().max()) == pytest.approx(float(expected.abs().max()), rel=0.5), name


def test_a_buffer_of_which_nothing_says_what_it_holds_is_refused_by_its_name() -> None:
    torch = pytest.importorskip("torch")
    from launcher.worker import TrainingError
    from launcher.worker.model import initial

    ours, _ = _made("mamba")
    ours.backbone.layers[1].mixer.register_buffer("scale", torch.full((3,), float("nan")), persistent=False)
    with pytest.raises(
        TrainingError, match=r"how transformers' mamba computes its buffer backbone.layers.1.mixer.scale,"
    ):
        initial.fill(ours, 1)


def test_a_layer_of_a_class_that_fsdp_made_is_filled_as_any_other() -> None:
    needs("torch")
    from launcher.worker.model import initial

    def refuse(cls: type) -> Any:
        raise AssertionError("FSDP's class makes one of the class that it was made of, which takes arguments")

    ours, plain = _made("falcon_h1")
    for layer in ours.model.layers:
        layer.__class__ = type("Sharded", (type(layer),), {"__new__": refuse})
    initial.fill(ours, 1)
    assert float(ours.model.layers[1].mamba.mup_vector[0, 0, -1]) == plain.model.layers[1].mamba.mup_vector[0, 0, -1]
