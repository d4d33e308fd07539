"""Where each argument of a Megatron-LM list ends: said, default, kept for the engine, or left out with its effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.backends.megatron import extra, options
from launcher.importers import UNKNOWN, Imported
from launcher.importers.megatron import read
from launcher.importers.megatron.arguments import DEFAULTS, KEPT, MATTERS, NO_EFFECT
from tests.support.foreign_files import SIZES

FOLDER = Path(__file__).parent / "files" / "megatron"
WHOLE = f"{SIZES} --mock-data --micro-batch-size 1 --global-batch-size 8 --train-iters 100 --bf16"


def imported(arguments: str) -> Imported:
    return read(f"{WHOLE} {arguments}", "args.txt")


def left(found: Imported) -> dict[str, tuple[str, bool]]:
    return {each.key: (each.effect, each.matters) for each in found.left_out}


def settings(found: Imported) -> dict[str, Any]:
    return {**found.recipe["choose"], **found.recipe["set"]}


def words_of(found: Imported, key: str) -> tuple[str, ...]:
    return next(said.overrides for said in found.said if said.key == key)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--lr-decay-iters 70", {"optimizer.decay_steps": 70}),
        ("--lr-decay-samples 400", {"optimizer.decay_steps": 50}),
        ("--lr-warmup-samples 80", {"optimizer.warmup_steps": 10}),
        ("--lr-decay-iters 60 --lr-warmup-fraction 0.1", {"optimizer.warmup_steps": 6}),
        ("--lr-warmup-init 1e-6", {"optimizer.warmup_lr": 1e-6}),
        ("--exit-interval 30", {"train.steps": 30, "optimizer.decay_steps": 100}),
        ("--lr-decay-style WSD", {"optimizer.schedule": "wsd", "optimizer.wsd_decay": "exponential"}),
        ("--lr-decay-style WSD --lr-wsd-decay-samples 160", {"optimizer.wsd_decay_steps": 20}),
        ("--lr-decay-style WSD --lr-wsd-decay-style minus_sqrt", {"optimizer.wsd_decay": "minus_sqrt"}),
        ("--lr-decay-style inverse-square-root", {"optimizer.schedule": "inverse_sqrt"}),
        ("--optimizer lion --lion-beta1 0.9", {"optimizer.beta1": 0.9, "optimizer.beta2": 0.98}),
        ("--optimizer dist_muon", {"optimizer": "muon", "zero": "1"}),
        ("--cpu-optimizer", {"zero.offload_optimizer": "cpu"}),
        ("--group-query-attention", {"model.num_key_value_heads": 1}),
        ("--num-key-value-heads 4", {"model.num_key_value_heads": 4}),
        ("--normalization rmsnorm", {"model.normalization": "rmsnorm"}),
        ("--quick-geglu --disable-bias-linear", {"model.family": "llama", "model.intermediate_size": 1344}),
        ("--position-embedding-type yarn", {"model.position_embedding": "rope"}),
        ("--attention-dropout 0.2", {"model.dropout": 0.1, "backend.extra.attention-dropout": 0.2}),
        ("--spec local", {"backend.extra.transformer-impl": "local", "model.attention": "eager"}),
        (
            "--moe-layer-recompute --num-experts 4",
            {"checkpointing": "selective", "checkpointing.modules": ["core_attn", "moe"]},
        ),
        (
            "--moe-layer-recompute --recompute-granularity selective --recompute-modules layernorm --num-experts 4",
            {"checkpointing": "selective", "checkpointing.modules": ["layernorm", "moe"]},
        ),
        (
            "--num-experts 2 --moe-ffn-hidden-size 512 --moe-shared-expert-intermediate-size 256",
            {"model.num_shared_experts": 0, "model.extra": {"shared_width": 256}},
        ),
        ("--expert-tensor-parallel-size 2 --num-experts 4", {"parallel.expert_tensor": 2}),
        ("--expert-tensor-parallel-size 2", {"parallel.expert_tensor": None}),
        ("--checkpoint-activations --checkpoint-num-layers 2", {"checkpointing": "full", "checkpointing.layers": 2}),
        ("--padded-vocab-size 1003", {"model.vocab_size": 1003, "backend.extra.make-vocab-size-divisible-by": 1}),
        ("--wandb-project 7 --tensorboard-dir logs", {"tracking": "wandb", "tracking.project": "7"}),
        ("--tensorboard-dir logs", {"tracking": "tensorboard"}),
        ("--num-workers 2", {"data.workers": 2}),
        ("--moe-aux-loss-coeff 0.1 0.2 --num-experts 2", {"backend.extra.moe-aux-loss-coeff": [0.1, 0.2]}),
        ("--fp8-format e4m3", {"precision": "fp8", "backend.extra.fp8-format": "e4m3"}),
        ("--mtp-num-layers 1", {"model.mtp_layers": 1}),
        (
            r"--mtp-num-layers 1 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et\|tL",
            {"parallel.layout": ["Et", "tmL"]},
        ),
        ("--cuda-graph-impl transformer_engine --cuda-graph-scope attn", {"train.cuda_graphs": "attention"}),
        (
            r"--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*3\|\(tt\|\)*2tL",
            {"parallel.layout": ["Et*3|(tt|)*2tL"], "parallel.virtual_pipeline": 2},
        ),
    ],
)
def test_an_argument_becomes_what_the_run_has_for_it(arguments: str, expected: dict[str, Any]) -> None:
    found = imported(arguments)
    assert {key: settings(found).get(key) for key in expected} == expected
    assert not any(each.effect == UNKNOWN for each in found.left_out)


@pytest.mark.parametrize(
    ("arguments", "key", "effect"),
    [
        ("--embed-layernorm", "--embed-layernorm", "the model there is another: parameters"),
        ("--freeze-all-layers", "--freeze-all-layers", "the model there is another: no layer is frozen here"),
        ("--position-embedding-type alibi", "--position-embedding-type", "the maths: no alibi positions here"),
        ("--no-such-argument", "--no-such-argument", UNKNOWN),
        ("--tensor-model 2", "--tensor-model", UNKNOWN),  # The parser of Megatron-LM takes no abbreviations.
        ("--num-experts 2 --moe-layer-freq 2", "--moe-layer-freq", "the model there is another"),
        ("--fp32-residual-connection", "--fp32-residual-connection", "memory: it takes buffers that nothing here"),
        ("--cuda-graph-impl local", "--cuda-graph-impl", "memory: the pools of CUDA graphs"),
        ("--moe-expert-capacity-factor 2.0", "--moe-expert-capacity-factor", "memory: experts take more tokens"),
        ("--optimizer-offload-fraction 0.5", "--optimizer-offload-fraction", "memory: a part of the optimizer's"),
        ("--use-precision-aware-optimizer --exp-avg-dtype bf16", "--exp-avg-dtype", "memory: bf16 and fp32 there"),
        ("--optimizer soap", "--optimizer", "memory and maths: adamw here"),
        ("--reset-attention-mask", "--reset-attention-mask", "the maths: here every token of a sample is a label"),
        ("--fim-data --fim-rate 0.5", "--fim-data", "the data: fill in the middle"),
        ("--sft", "--sft", "the data: conversations there; data=chat reads them here"),
        ("--iterations-to-skip 3 4", "--iterations-to-skip", "the data: the order or the choice of samples"),
        ("--load /models/base", "--load", "the weights that training starts from: here they are new ones"),
        ("--load $BASE", "--load", "the weights that training starts from: here they are new ones; --set BASE=..."),
        ("--save a --load b --finetune", "--load", "the weights that training starts from"),
        ("--init-method-xavier-uniform", "--init-method-xavier-uniform", "the weights that training starts from"),
        ("--deepspeed --zero-stage 3", "--zero-stage", "memory: DeepSpeed shards gradients and parameters there"),
        (
            "--deepspeed_config ds.json",
            "--deepspeed_config",
            "batches, ZeRO and formats of that file are not read here",
        ),
        ("--use-bnb-optimizer", "--use-bnb-optimizer", "memory: the states of its optimizer are in 8 bits there"),
        ("--use-torch-fsdp2", "--use-torch-fsdp2", "memory: torch's FSDP2 shards there"),
        ("--spec my.layers make", "--spec", "the model there is another: its layers are those of a module"),
        ("--use-checkpoint-args", "--use-checkpoint-args", "the model there is another: its sizes are those of the"),
    ],
)
def test_what_changes_maths_memory_or_data_and_is_not_here_is_left_out_and_matters(
    arguments: str, key: str, effect: str
) -> None:
    found = left(imported(arguments))[key]
    assert found[0].startswith(effect)
    assert found[1]


def test_a_default_of_megatron_that_is_another_here_is_said() -> None:
    dispatcher = "backend.extra.moe-token-dispatcher-type"
    assert settings(imported("--num-experts 4 --expert-model-parallel-size 2"))[dispatcher] == "allgather"
    assert dispatcher not in settings(imported("--num-experts 4"))
    latent = imported("--multi-latent-attention --swiglu --disable-bias-linear")
    assert settings(latent)["backend.extra.rope-type"] == "yarn"


def test_latent_attention_without_norms_of_its_latents_is_another_model() -> None:
    found = imported("--multi-latent-attention --swiglu --disable-bias-linear")
    effect, matters = left(found)["--multi-latent-attention"]
    assert matters
    assert "norms of its latents here, as with --qk-layernorm" in effect
    assert settings(found)["model.family"] == "deepseek"
    normed = imported("--multi-latent-attention --qk-layernorm --swiglu --disable-bias-linear")
    assert "--multi-latent-attention" not in left(normed)
    assert "--qk-layernorm" in normed.default


@pytest.mark.parametrize(
    ("tokenizer", "size"),
    [("GPT2BPETokenizer", 50257), ("NullTokenizer", 1000), ("TikTokenizer", 1000), ("Llama2Tokenizer", 1000)],
)
def test_a_vocabulary_is_of_the_size_that_the_tokenizer_takes(tokenizer: str, size: int) -> None:
    found = imported(f"--tokenizer-type {tokenizer}")
    assert settings(found)["model.vocab_size"] == size
    decides = f"--vocab-size 1000 beside {tokenizer}, whose own size decides there: set model.vocab_size if it differs"
    assert found.not_understood == ((decides,) if tokenizer == "Llama2Tokenizer" else ())
    own = ("no effect: GPT2BPETokenizer has a size of its own, 50257", False)
    assert left(found).get("--vocab-size") == (own if size == 50257 else None)


@pytest.mark.parametrize("kind", ["cyclic", "external"])
def test_another_sampler_matters_since_samples_come_in_another_order(kind: str) -> None:
    found = left(imported(f"--dataloader-type {kind} --no-data-sharding"))
    assert found["--dataloader-type"] == ("the data: the order or the choice of samples", True)
    assert not found["--no-data-sharding"][1]
    assert "--dataloader-type" in imported("--dataloader-type single").default


def test_an_end_after_some_minutes_is_said_to_be_none_here() -> None:
    effect = "no effect: the run has no such end here; cluster.time limits a job"
    assert left(imported("--exit-duration-in-mins 30"))["--exit-duration-in-mins"] == (effect, False)


def test_half_precision_with_wide_gradients_is_left_out_since_they_count_as_narrow() -> None:
    found = read(f"{SIZES} --mock-data --fp16 --accumulate-allreduce-grads-in-fp32", "args.txt")
    assert left(found)["--accumulate-allreduce-grads-in-fp32"][1]


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ("--save a --load a", "--load"),
        ("--save a", "--save"),
        ("--wandb-project x --wandb-entity me", "--wandb-entity"),
        ("--profile", "--profile"),
        ("--ckpt-format torch_dist", "--ckpt-format"),
        ("--inference-max-seq-length 64", "--inference-max-seq-length"),
        ("--num-query-groups 2", "--num-query-groups"),
        ("--recompute-num-layers 1", "--recompute-num-layers"),
        ("--fp8-recipe delayed", "--fp8-recipe"),
        ("--adam-beta1 0.8 --optimizer sgd", "--adam-beta1"),
        ("--tokenizer-type NullTokenizer", "--tokenizer-type"),
        ("--eval-iters 0 --eval-interval 10", "--eval-interval"),
        ("--DDP-impl local", "--DDP-impl"),
        ("--log-timers-to-tensorboard", "--log-timers-to-tensorboard"),
        ("--data-cache-path $CACHE", "--data-cache-path"),
    ],
)
def test_what_changes_nothing_of_training_is_left_out_without_effect(arguments: str, key: str) -> None:
    effect, matters = left(imported(arguments))[key]
    assert effect.startswith("no effect: ")
    assert not matters


@pytest.mark.parametrize(
    ("arguments", "sentence", "expected"),
    [
        (
            "--sequence-parallel",
            "--sequence-parallel at tensor degree 1: Megatron-LM switches it off, and so does the import",
            {"parallel.sequence": False},
        ),
        (
            "--recompute-activations",
            "--recompute-activations: --recompute-granularity selective, as in Megatron-LM",
            {"checkpointing": "selective"},
        ),
        (
            "--use-megatron-fsdp",
            "--use-megatron-fsdp without --use-distributed-optimizer: Megatron-LM adds it",
            {"zero": "3"},
        ),
        (
            "--async-save",
            "--async-save without --use-persistent-ckpt-worker: Megatron-LM switches it off",
            {"save.async": False},
        ),
        (
            "--group-query-attention",
            "--group-query-attention without --num-query-groups: one group, as in Megatron-LM",
            {"model.num_key_value_heads": 1},
        ),
    ],
)
def test_where_megatron_repairs_a_setting_the_import_does_and_says_so(
    arguments: str, sentence: str, expected: dict[str, Any]
) -> None:
    found = imported(arguments)
    assert sentence in found.not_understood
    assert {key: settings(found)[key] for key in expected} == expected


def test_states_are_saved_whole_where_an_optimizer_is_sharded() -> None:
    word = "--dist-ckpt-optim-fully-reshardable"
    assert settings(imported(f"--use-distributed-optimizer {word}"))["save.reshardable"] is True
    assert "save.reshardable" not in settings(imported("--use-distributed-optimizer"))
    assert "save.reshardable" not in settings(imported(word))


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ("--fp16", "Megatron-LM takes one of --bf16 and --fp16"),
        ("--normalization GroupNorm", "is one of LayerNorm, RMSNorm"),
        ("--recompute-granularity some", "is full or selective"),
        ("--attention-backend sparse", "is one of auto, fused, flash, unfused, local"),
        ("--lr-decay-style step", "is one of constant, linear, cosine, inverse-square-root, WSD"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy all", "is one of no_shard, optim"),
        ("--moe-layer-recompute --recompute-granularity full --num-experts 2", "Megatron-LM refuses it beside full"),
        ("--num-layers-per-virtual-pipeline-stage 3", "8 layers over 1 stages in chunks of 3 leave a rest"),
        ("--num-layers-per-virtual-pipeline-stage 4", "Megatron-LM interleaves stages, and"),
    ],
)
def test_a_value_that_megatron_refuses_is_an_error_with_the_document(arguments: str, rule: str) -> None:
    found = imported(arguments)
    [error] = found.errors
    assert error.rule.startswith(rule)
    assert len(found.overrides) > 20


def test_a_size_without_a_value_names_its_variable() -> None:
    [error] = read(SIZES.replace("--hidden-size 512", "--hidden-size $WIDTH"), "args.sh").errors
    assert error.rule == "$WIDTH has no value, and the size of the model does not follow without it"
    assert error.way_out == ("--set WIDTH=...",)


def test_what_is_kept_has_no_setting_and_each_argument_is_in_one_table() -> None:
    tables = [*KEPT, *(name for table in (NO_EFFECT, MATTERS) for names in table.values() for name in names)]
    assert sorted(tables) == sorted(set(tables))
    assert not {*KEPT} & {*options.SETTINGS} - {*extra.BEYOND}
    assert not {*DEFAULTS} & {*options.SETTINGS} - {"cross-entropy-fusion-impl", "cuda-graph-impl"}


def test_variables_of_a_functional_test_are_those_of_the_job_and_the_rest_is_of_the_test() -> None:
    found = read((FOLDER / "args_functional_gpt.yaml").read_text(), "args_functional_gpt.yaml")
    assert words_of(found, "ENV_VARS.NCCL_ALGO") == ("cluster.environment.NCCL_ALGO=Ring",)
    assert "ENV_VARS.CUDA_DEVICE_MAX_CONNECTIONS" in found.default
    assert not left(found)["TEST_TYPE"][1]
    expandable = read((FOLDER / "args_functional_moe.yaml").read_text(), "args_functional_moe.yaml")
    assert words_of(expandable, "ENV_VARS.PYTORCH_CUDA_ALLOC_CONF") == ("train.allocator=expandable",)
    off = read((FOLDER / "args_switches_off.yaml").read_text(), "args_switches_off.yaml")
    assert {"--swiglu", "--use-distributed-optimizer", "--fp8-format"} <= set(off.default)


def test_a_tokenizer_whose_folder_is_here_says_its_size(tmp_path: Path) -> None:
    content = {"model": {"vocab": {"a": 0, "b": 7}}, "added_tokens": [{"id": 9, "content": "<end>"}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    sizes = SIZES.replace("--vocab-size 1000", "--tokenizer-type HuggingFaceTokenizer --tokenizer-model")
    assert settings(read(f"{sizes} {tmp_path}", "args.sh"))["model.vocab_size"] == 10
    (tmp_path / "tokenizer.json").write_text("[")
    assert settings(read(f"{sizes} {tmp_path}", "args.sh"))["model.vocab_size"] == "???"


@pytest.mark.parametrize(
    ("tokenizer", "size"),
    [
        ("--tokenizer-type GPT2BPETokenizer", 50257),
        ("--vocab-file vocab.json --merge-file merges.txt", 50257),
        ("--tokenizer-type TikTokenizer --tokenizer-model t.json", 131072),
        ("--tokenizer-type NullTokenizer --vocab-size 77", 77),
        ("--tokenizer-type SentencePieceTokenizer", "???"),
    ],
)
def test_the_size_of_a_vocabulary_is_taken_where_it_is_known(tokenizer: str, size: object) -> None:
    found = read(SIZES.replace("--vocab-size 1000", tokenizer), "args.sh")
    assert settings(found)["model.vocab_size"] == size


def test_the_checkpoint_that_is_certain_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "iter_0000010").mkdir()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("10")
    found = imported(f"--load {tmp_path} --save elsewhere")
    assert words_of(found, "--load") == (f"save.load={tmp_path}",)
    assert "--load" in left(imported(f"--load {tmp_path} --finetune"))


def test_what_is_left_open_is_asked_for_and_no_key_is_said_by_it() -> None:
    text = WHOLE.replace("--vocab-size 1000", "")
    words = "--tokenizer-type HuggingFaceTokenizer --tokenizer-model /none --tensor-model-parallel-size ??? --load ''"
    found = read(f"{text} {words}", "args.txt")
    assert "model.vocab_size='???'" in found.overrides
    assert not [said.key for said in found.said if "???" in " ".join(said.overrides)]
    assert left(found)["--tokenizer-type"] == (
        "it alone knows the size of the vocabulary: set model.vocab_size",
        True,
    )
    asks = "its value is not known, so that it has the default here: set parallel.tensor"
    assert left(found)["--tensor-model-parallel-size"] == (asks, True)
    assert "--tensor-model-parallel-size ???: the file leaves it open" in found.not_understood
    assert left(found)["--load"][1]
