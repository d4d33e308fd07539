"""The decoders of transformers: parameters, configuration and loss of each against the class itself."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

from launcher.backends import _models
from launcher.backends.fsdp import check as fsdp_check
from launcher.config.hub import reading as hugging_face
from launcher.estimate import families
from launcher.estimate.families._decoders import TYPES, checks, values, windows
from launcher.estimate.rank import adapters
from launcher.estimate.rank.counts import block_weights, parameter_counts
from launcher.rules import model as model_rules
from launcher.spec.parse import parse, to_dict
from tests.support import decoder_defaults, decoders
from tests.support.helpers import ROOT, make_spec, needs

torch = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

DBRX: dict[str, Any] = {
    "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352,
    "attn_config": {"kv_n_heads": 8, "clip_qkv": 8},
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
}  # fmt: skip
PUBLISHED = {
    "gemma": ({"num_hidden_layers": 18, "hidden_size": 2048, "intermediate_size": 16384, "num_attention_heads": 8,
               "num_key_value_heads": 1}, 2_506_172_416),
    "gemma2": ({}, 2_614_341_888),
    "gemma3_text": ({"num_hidden_layers": 26, "hidden_size": 1152, "intermediate_size": 6912, "num_attention_heads": 4,
                     "num_key_value_heads": 1, "vocab_size": 262144}, 999_885_952),
    "phi": ({"num_hidden_layers": 32, "hidden_size": 2560, "intermediate_size": 10240}, 2_779_683_840),
    "phi3": ({}, 3_821_079_552),
    "olmo2": ({"vocab_size": 100352}, 7_298_617_344),
    "starcoder2": ({}, 3_030_371_328),
    "falcon": ({}, 6_921_720_704),
    "bloom": ({"n_layer": 24, "hidden_size": 1024, "n_head": 16}, 559_214_592),
    "opt": ({}, 125_239_296),
    "gpt_neox": ({}, 20_554_567_680),
    "gptj": ({}, 6_050_882_784),
    "gpt_oss": ({"num_hidden_layers": 24, "num_local_experts": 32}, 20_914_757_184),
    "olmoe": ({"intermediate_size": 1024}, 6_919_161_856),
    "dbrx": (DBRX, 131_596_523_520),
    "qwen2_moe": ({}, 14_315_784_192),
    "stablelm": ({}, 2_795_443_200),
    "smollm3": ({}, 3_075_098_624),
}  # fmt: skip
"""Differences to the class's defaults, and the parameters of the released model."""


def test_the_defaults_of_a_class_are_those_of_the_installed_transformers() -> None:
    if (version := families.classes()["version"]) != transformers.__version__:
        pytest.skip(f"the table is of transformers {version}")
    for kind, decoder in TYPES.items():
        installed = decoder_defaults.of_class(getattr(transformers, decoder.config))
        assert values.defaults(kind) == json.loads(json.dumps(installed))


@pytest.mark.parametrize("kind", TYPES)
def test_the_defaults_of_a_class_are_counted_as_the_class_counts_them(kind: str) -> None:
    document = {"model_type": kind, **decoders.NEEDED.get(kind, {})}
    spec = decoders.spec_of(document)
    assert list(families.check(spec)) == []
    assert parameter_counts(spec, families.of(spec.model))[0] == decoders.parameters(kind, document)


@pytest.mark.parametrize("kind", TYPES)
def test_the_overrides_of_an_imported_file_describe_the_same_model(kind: str) -> None:
    document = {"model_type": kind, **decoders.NEEDED.get(kind, {})}
    overrides = hugging_face.read(json.dumps(document), "config.json").imported.overrides
    assert make_spec(*overrides).model == decoders.spec_of(document).model


@pytest.mark.parametrize("kind", PUBLISHED)
def test_the_parameters_of_a_released_model_are_counted_exactly(kind: str) -> None:
    sizes, total = PUBLISHED[kind]
    spec = decoders.spec_of({"model_type": kind, **sizes})
    assert parameter_counts(spec, families.of(spec.model))[0] == total


@pytest.mark.parametrize(("kind", "changes"), decoders.VARIANTS)
def test_a_variant_is_counted_as_its_class_counts_it(kind: str, changes: dict[str, Any]) -> None:
    document = decoders.tiny(kind, **changes)
    spec = decoders.spec_of(document)
    assert list(families.check(spec)) == []
    assert parameter_counts(spec, families.of(spec.model))[0] == decoders.parameters(kind, document)


@pytest.mark.parametrize("kind", TYPES)
def test_a_class_is_called_with_all_that_its_file_says(kind: str) -> None:
    document = decoders.tiny(kind)
    spec = decoders.spec_of(document)
    found = families.of(spec.model).transformers_config(spec.model)
    assert found is not None
    made, read = (
        getattr(transformers, found.name)(**found.settings).to_dict(),
        decoders.config(kind, document).to_dict(),
    )
    ours = {"bos_token_id", "eos_token_id", "pad_token_id", "n_inner", "intermediate_size", "num_kv_heads"}  # Derived.
    assert {key: made.get(key) for key in read.keys() - ours} == {key: read[key] for key in read.keys() - ours}


@pytest.mark.parametrize("kind", TYPES)
def test_the_worker_has_the_loss_and_the_gradients_of_the_class(kind: str) -> None:
    """Of sequences longer than a window, with the attention that the class itself takes."""
    ours, plain = decoders.losses(kind)
    assert ours == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "layer"),
    [
        (kind, layer)
        for kind, found in TYPES.items()
        if found.layers
        for layer in range({"nemotron_h": 4, "mamba2": 1, "zamba2": 3}.get(kind, 2))
    ],
)
def test_each_kind_of_layer_saves_what_autograd_keeps_for_it(kind: str, layer: int) -> None:
    measured, predicted = decoders.saved(kind, layer)
    assert predicted == pytest.approx(measured, rel=0.03)


def test_no_adapter_wraps_a_linear_whose_weight_a_kernel_reads() -> None:
    overrides = hugging_face.read(json.dumps(decoders.tiny("nemotron_h")), "config.json").imported.overrides
    spec = make_spec("model=tiny", *overrides, "adapter=lora", "adapter.targets=[in_proj,out_proj]")
    [error] = _models.check_adapters(spec)
    assert error.path == "adapter.targets"
    assert error.rule.endswith("; not among them: out_proj")


@pytest.mark.parametrize("kind", [kind for kind, found in TYPES.items() if found.layers and not found.shared])
def test_the_weights_in_4_bits_are_those_that_the_formula_counts(kind: str) -> None:
    """No convolution, router or linear whose weight a kernel reads is packed."""
    needs("bitsandbytes")
    overrides = hugging_face.read(json.dumps(decoders.tiny(kind)), "config.json").imported.overrides
    spec = make_spec("model=tiny", *overrides, "adapter=qlora")
    made = import_module("launcher.worker.model.network").network(spec.model, torch.float32)
    import_module("launcher.worker.model.adapters").quantise(made, spec, torch.bfloat16)
    packed = [each.numel() * 2 for each in made.parameters() if each.dtype == torch.uint8]
    family, layers = families.of(spec.model), range(spec.model.num_hidden_layers)
    rows = [row for layer in layers for row in adapters.weights(block_weights(family, spec.model, layer), spec.adapter)]
    assert sum(packed) == sum(row.elements for row in rows if row.quantised) > 0


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TYPES)
def test_an_adapter_that_names_no_targets_wraps_linear_layers_of_the_class(kind: str) -> None:
    """By ``peft`` itself, which wraps modules alone that are linear: a name of anything else would be missing."""
    peft: Any = pytest.importorskip("peft")
    model = decoders.spec_of(decoders.tiny(kind)).model
    targets = families.linears(model)
    made = import_module("launcher.worker.model.network").network(model, torch.bfloat16)
    peft.inject_adapter_in_model(peft.LoraConfig(target_modules=list(targets)), made)
    wrapped = {name.rpartition(".")[2] for name, module in made.named_modules() if hasattr(module, "lora_A")}
    assert wrapped == {*targets}


@pytest.mark.parametrize("kind", [kind for kind, found in TYPES.items() if not found.layers])
def test_a_block_saves_what_autograd_keeps_for_it(kind: str) -> None:
    """At this size a few numbers a token, fp32 copies of weights and experts without tokens show."""
    measured, predicted = decoders.saved(kind)
    assert predicted == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("kind", TYPES)
def test_fresh_values_are_spread_as_those_of_the_class(kind: str) -> None:
    for name, (ours, theirs) in decoders.spreads(kind).items():
        assert ours == pytest.approx(theirs, rel=0.25, abs=0.012), name


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        *(
            (kind, {})
            for kind in ("cohere2", "cwm", "exaone4", "gemma2", "gemma3_text", "gpt_oss", "olmo3", "vaultgemma")
        ),
        ("gemma3_text", {"sliding_window_pattern": 3}),
        ("ministral", {"head_dim": 128}),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 9}),
        ("smollm3", {}),
        ("qwen2_moe", {}),
        ("olmo3", {"layer_types": ["full_attention"] * 13 + ["sliding_attention"]}),
    ],
)
def test_the_layers_with_a_window_are_those_of_the_class(kind: str, more: dict[str, Any]) -> None:
    document = {"model_type": kind, "num_hidden_layers": 14, **more}
    made = transformers.CONFIG_MAPPING[kind](**{key: value for key, value in document.items() if key != "model_type"})
    model = decoders.spec_of(document).model
    assert [windows.has_window(model, layer) for layer in range(14)] == [
        kind == "sliding_attention" for kind in made.layer_types
    ]


# Mamba 2 checks that its heads fit its hidden size, and DBRX has sizes in configurations inside its own.
@pytest.mark.parametrize("kind", sorted(set(TYPES) - {"mamba2", "dbrx"}))
def test_any_spelling_of_a_size_is_what_the_class_takes_it_for(kind: str) -> None:
    sizes: dict[str, float] = {
        "num_hidden_layers": 54,  # As Zamba 2's class has, whose layers have names.
        "hidden_size": 64 * 71 * 48 * 26,
        "num_attention_heads": 16,
        "max_position_embeddings": 512,
        "norm_epsilon": 0.25,
        "initializer_range": 0.5,
        "num_experts": 48,
    }
    for key, size in sizes.items():
        own = values.their_key(kind, key)
        for name in values.NAMES[key] if own else ():
            by_layer = kind == "gpt_neo" and name in ("num_layers", "num_hidden_layers")
            more = {"attention_types": [[["global"], size]]} if by_layer else {}
            document = {**decoders.NEEDED.get(kind, {}), **more, name: size}
            model = hugging_face.read(json.dumps({"model_type": kind, **document}), "config.json").model
            assert model[key] == getattr(transformers.CONFIG_MAPPING[kind](**document), str(own)), name


OLDER = {
    "rope_theta": 12345.0,
    "rope_scaling": {"rope_type": "linear", "factor": 3.0},
    "partial_rotary_factor": 0.33,
    "rotary_pct": 0.33,
    "rotary_emb_base": 12345,
    "rope_local_base_freq": 777.0,
    "sliding_window_pattern": 3,
}


@pytest.mark.parametrize("kind", sorted(set(TYPES) - {"phi3"}))  # Which checks what it is given.
def test_an_older_key_is_taken_only_by_a_class_that_it_changes(kind: str) -> None:
    needed, made = decoders.NEEDED.get(kind, {}), transformers.CONFIG_MAPPING[kind]
    before = made(**needed).to_dict()
    for key in OLDER.keys() & {*checks.older(kind)}:
        after = made(**needed, **{key: OLDER[key]}).to_dict()
        assert {name for name in after if name != key and after[name] != before.get(name)}, key


@pytest.mark.parametrize(
    ("kind", "word", "path", "ways"),
    [
        ("gemma2", "model.rope_theta=5e5", "model.rope_theta", ["+model.extra.rope_theta=500000.0"]),
        ("gemma2", "model.sliding_window=64", "model.sliding_window", ["+model.extra.sliding_window=64"]),
        ("ernie4_5", "model.dropout=0.5", "model.dropout", ["model.dropout=0.0"]),
        ("olmo", "model.norm_epsilon=1e-3", "model.norm_epsilon", ["model.norm_epsilon=1e-05"]),
        ("gpt_neox", "+model.extra.rope_theta=5e5", "model.extra.rope_theta", None),
        ("bloom", "+model.extra.attention_layers=[global]", "model.extra.attention_layers", None),
        ("gemma2", "+model.extra.layer_types=[full_attention]", "model.extra.layer_types", None),
        ("gemma2", "+model.extra.layer_types=[foo,bar]", "model.extra.layer_types", ["model.extra.layer_types=null"]),
    ],
)
def test_what_the_class_would_pass_over_is_refused(kind: str, word: str, path: str, ways: list[str] | None) -> None:
    document = decoders.tiny(kind)
    document.pop("layer_types", None)
    overrides = hugging_face.read(json.dumps(document), "config.json").imported.overrides
    [error] = families.check(make_spec("model=tiny", *overrides, word))
    assert error.path == path
    assert ways is None or [*error.way_out] == ways


@pytest.mark.parametrize(
    ("kind", "key", "value", "rule"),
    [
        ("qwen3_next", "linear_num_key_heads", 2.5, "transformers expects an integer of at least 1"),
        ("qwen3_next", "linear_num_key_heads", None, "transformers expects an integer of at least 1"),
        ("qwen3_next", "full_attention_interval", "4", "transformers' qwen3_next cannot tell its layers' kinds"),
        ("jamba", "mamba_dt_rank", -5, "transformers expects auto or an integer of at least 1"),
        ("gemma2", "rope_theta", "1e6", "transformers expects a number"),
        ("granitemoehybrid", "layer_types", "mamba", "transformers expects a list"),
        ("glm4", "rope_scaling", "yarn", "transformers expects a mapping"),
    ],
)
def test_a_value_of_another_kind_than_its_class_reads_is_refused(kind: str, key: str, value: object, rule: str) -> None:
    document = decoders.tiny(kind)
    document.pop("layer_types", None)
    model = hugging_face.read(json.dumps({**document, key: value}), "config.json").model
    spec = parse({**(run := to_dict(make_spec("model=tiny"))), "model": {**run["model"], **model}})  # type: ignore[dict-item]
    assert any(rule in str(error.rule) for error in families.check(spec))


def test_latent_attention_has_heads_that_need_not_divide_the_hidden_size() -> None:
    document = {"model_type": "glm4_moe_lite", "hidden_size": 2048, "num_attention_heads": 20}
    overrides = hugging_face.read(json.dumps(document), "config.json").imported.overrides
    assert [*model_rules.check(make_spec("model=tiny", *overrides))] == []


@pytest.mark.parametrize(("kind", "ways"), [("nemotron_h", []), ("opt", ["parallel.pipeline=1", "parallel=fsdp"])])
def test_a_class_whose_layers_take_hidden_states_alone_is_cut_into_stages(kind: str, ways: list[str]) -> None:
    spec = decoders.spec_of(decoders.tiny(kind))
    staged = replace(spec, parallel=replace(spec.parallel, pipeline=2))
    assert [way for error in checks.splitting(staged) for way in error.way_out] == ways


@pytest.mark.parametrize(
    ("word", "way"),
    [
        ("adapter=qlora", "adapter=lora"),
        ("model.tie_word_embeddings=false", "model.tie_word_embeddings=true"),
        ("model.num_key_value_heads=2", "model.num_key_value_heads=4"),
        ("parallel.pipeline=2", "parallel.pipeline=1"),
    ],
)
def test_what_a_class_with_shared_blocks_does_not_compute_is_refused_with_the_way_out(word: str, way: str) -> None:
    overrides = hugging_face.read(json.dumps(decoders.tiny("zamba2")), "config.json").imported.overrides
    spec = make_spec("model=tiny", *overrides, word, "cluster.gpus_per_node=2")
    assert way in [each for error in families.of(spec.model).not_computed(spec) for each in error.way_out]


def test_an_untied_model_whose_blocks_would_be_shared_is_counted_on_its_class() -> None:
    """As transformers then ties none, by the class itself: the file is none of the description's."""
    found = hugging_face.read(json.dumps(decoders.tiny("zamba2", tie_word_embeddings=False)), "config.json")
    assert found.model["family"] == "observed"
    spec = decoders.spec_of(decoders.tiny("zamba2", tie_word_embeddings=False))
    assert parameter_counts(spec, families.of(spec.model))[0] == decoders.parameters(
        "zamba2", decoders.tiny("zamba2", tie_word_embeddings=False)
    )


_LOOP = (
    *("model=tiny", "model.family=transformers", "model.model_type=dbrx", "model.num_experts=4", "parallel=fsdp"),
    *("model.num_experts_per_tok=2", "model.moe_intermediate_size=48", "model.extra={attn_config.clip_qkv:8}"),
)
_ONE_MATRIX = "transformers' dbrx stacks its experts in one matrix and runs them in a loop"


@pytest.mark.parametrize(
    ("word", "path"),
    [("parallel.expert=2", "parallel.expert"), ("adapter=qlora", "adapter.name"), ("adapter=lora", "")],
)
def test_experts_that_a_loop_computes_are_on_one_rank_and_not_packed(word: str, path: str) -> None:
    spec = make_spec(*_LOOP, word, "cluster.gpus_per_node=2")
    found = [(error.path, error.rule) for error in checks.splitting(spec)]
    assert found == ([(path, _ONE_MATRIX)] if path else [])


def test_experts_that_the_autocast_of_a_cpu_adds_up_in_two_formats_are_refused_there() -> None:
    """The loss in bf16 under autocast: ``index_add_(): self (Float) and source (BFloat16)`` on two CPU ranks."""
    words = (*_LOOP, "parallel=ddp", "precision=bf16", "cluster.gpus_per_node=2")
    found = [error for error in fsdp_check(make_spec(*words, "hardware=cpu")) if error.path == "model.model_type"]
    assert [error.way_out for error in found] == [("precision.parameters=bf16", "parallel=fsdp")]
    for other in ("hardware=h100_80g", "precision=fp32"):
        errors = fsdp_check(make_spec(*words, "hardware=cpu", other))
        assert "model.model_type" not in [error.path for error in errors]


def test_the_page_about_ones_own_models_names_the_types_and_those_that_no_stage_is_cut_from() -> None:
    page = (ROOT / "docs" / "own-files.md").read_text()
    types = page.partition("of transformers of these types:")[2].partition("A `config.json`")[0]
    uncut = page.partition("cuts all into stages but")[2].partition("Refused")[0]
    assert set(re.findall(r"`(\w+)`", types)) == set(TYPES)
    assert set(re.findall(r"`(\w+)`", uncut)) == checks._UNSTAGED
