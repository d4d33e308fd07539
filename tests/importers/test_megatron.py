from __future__ import annotations

import json

import pytest

from launcher.base.errors import ConfigErrors
from launcher.config.recipes import Recipe
from launcher.importers.megatron import read
from tests.support.foreign_files import MODEL_ARGS, SIZES
from tests.support.helpers import make_spec

GPT3_175B = r"""
#!/bin/bash
# Runs the "175B" parameter model
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
# Change for multinode config
NUM_NODES=16
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
CHECKPOINT_PATH=$1 #<Specify path>
VOCAB_FILE=$2 #<Specify path to file>/gpt2-vocab.json

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
)
GPT_MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --attention-backend auto # Can use (flash/fused/unfused/local)
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 1536
    --rampup-batch-size 16 16 5859375
    --train-iters 500000
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.95
    --init-method-std 0.006
    --clip-grad 1.0
    --fp16
    --lr 6.0e-5
    --lr-decay-style cosine
    --min-lr 6.0e-6
    --lr-warmup-fraction .001
    --lr-decay-iters 430000
)
MODEL_PARALLEL_ARGS=(
	--tensor-model-parallel-size 8
	--pipeline-model-parallel-size 16
)
DATA_ARGS=(
    --vocab-file $VOCAB_FILE
    --merge-file ${MERGE_FILE:-gpt2-merges.txt}
    --split 949,50,1
)
EVAL_AND_LOGGING_ARGS=(
    --log-interval 100
    --save-interval 10000
    --save $CHECKPOINT_PATH
    --eval-iters 10
    --tensorboard-dir $TENSORBOARD_LOGS_PATH
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${GPT_MODEL_ARGS[@]} \
    ${TRAINING_ARGS[@]} \
    ${MODEL_PARALLEL_ARGS[@]} \
    ${DATA_ARGS[@]} \
    ${EVAL_AND_LOGGING_ARGS[@]}
"""
"""examples/gpt3/train_gpt3_175b_distributed.sh of Megatron-LM, shortened, with the nodes that it needs."""


DEEPSEEK = {"ENV_VARS": {"NCCL_ALGO": "Ring"}, "TEST_TYPE": "regular", "MODEL_ARGS": MODEL_ARGS}
"""The form of Megatron-LM's functional tests."""


def test_the_gpt3_175b_script_gives_the_model_and_the_degrees_of_its_name() -> None:
    found = read(GPT3_175B, "examples/train_gpt3_175b.sh").overrides
    assert {"train.steps=500000", "optimizer.decay_steps=430000"} <= set(found)
    spec = make_spec(*(text for text in found if not text.startswith("optimizer.decay_steps")))
    shipped = make_spec("model=gpt3_175b").model
    for key in ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"):
        assert getattr(spec.model, key) == getattr(shipped, key), key
    assert (spec.model.family, spec.model.normalization, spec.model.position_embedding) == (
        "gpt",
        "layernorm",
        "learned",
    )
    assert (spec.model.tie_word_embeddings, spec.model.attention_bias, spec.model.dropout) == (True, True, 0.1)
    assert (spec.backend.name, spec.precision.compute, spec.zero.stage) == ("megatron", "fp16", 0)
    assert (spec.parallel.tensor, spec.parallel.pipeline, spec.gpus, spec.data_degree) == (8, 16, 128, 1)
    assert (spec.train.global_batch_size, spec.gradient_accumulation, spec.sequence_length) == (1536, 1536, 2048)
    assert (spec.optimizer.lr, spec.optimizer.warmup_steps, spec.optimizer.schedule) == (6e-5, 430, "cosine")


def test_what_the_engine_alone_acts_on_is_kept_for_it() -> None:
    found = read(GPT3_175B.replace("--clip-grad", "--hysteresis 4 --clip-grad"), "train_gpt3_175b.sh")
    assert found.kept == ("--hysteresis",)
    assert "backend.extra.hysteresis=4" in found.overrides


def test_the_loss_scale_of_fp16_is_a_setting() -> None:
    scale = "--initial-loss-scale 65536 --loss-scale-window 500 --clip-grad"
    found = read(GPT3_175B.replace("--clip-grad", scale), "train_gpt3_175b.sh")
    assert {"precision.initial_loss_scale=65536", "precision.loss_scale_window=500"} <= set(found.overrides)


def test_batches_that_grow_are_left_out_and_matter() -> None:
    found = read(GPT3_175B, "train_gpt3_175b.sh")
    effect = "the data: batches are whole from the first step on here, as in Megatron-LM 0.19.2, which ignores it"
    [left] = [left for left in found.left_out if left.matters]
    assert (left.key, left.effect.partition(";")[0]) == ("--rampup-batch-size", effect)


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_the_files_of_functional_tests_are_read(suffix: str) -> None:
    found = read(json.dumps(DEEPSEEK, indent=2), f"model_config.{suffix}")  # JSON is YAML as well.
    spec = make_spec(*found.overrides)
    assert (spec.model.family, spec.model.num_experts, spec.model.first_dense_layers) == ("deepseek", 64, 3)
    assert (spec.model.q_lora_rank, spec.model.kv_lora_rank, spec.model.qk_rope_head_dim) == (1536, 512, 64)
    assert (spec.model.num_shared_experts, spec.model.qk_norm) == (1, False)
    assert (spec.parallel.expert, spec.parallel.expert_tensor, spec.parallel.sequence) == (16, 1, True)
    assert (spec.zero.stage, spec.data.source) == (1, "synthetic")
    assert (spec.checkpointing.mode, spec.checkpointing.modules) == (
        "selective",
        ("layernorm", "mla_up_proj", "moe_act"),
    )
    assert found.kept == ("--moe-router-score-function", "--moe-permute-fusion")
    assert not any(left.matters for left in found.left_out)
    assert spec.backend.extra == {
        "make-vocab-size-divisible-by": 3232,
        "moe-router-score-function": "sigmoid",
        "moe-permute-fusion": True,
        "moe-token-dispatcher-type": "allgather",
        "rope-type": "yarn",
    }


def test_arguments_in_one_quoted_variable_are_read_and_what_stands_outside_the_file_is_named() -> None:
    text = f"""
    GPT_ARGS="{SIZES} --bf16 \\
        --hidden-dropout $DROPOUT"
    torchrun --standalone --nproc_per_node $GPUS pretrain_gpt.py $GPT_ARGS $EXTRA "$@" --lr=1e-4 # the end
    """
    found = read(text, "run.sh")
    assert found.not_understood == (
        "$EXTRA: arguments that the file does not hold: give them with --set EXTRA=...",
        "$@: arguments that the file does not hold: give them with --set 1=...",
        "$DROPOUT of --hidden-dropout has no value: give it with --set DROPOUT=...",
        "$GPUS of --nproc_per_node has no value: give it with --set GPUS=...",
        "no --data-path: Megatron-LM makes its data up then, and so does data=synthetic here",
        "neither --train-iters nor --train-samples: set train.steps",
    )
    [dropout] = [left for left in found.left_out if left.key == "--hidden-dropout"]
    assert dropout.effect == "$DROPOUT has no value, so that it has the default here; --set DROPOUT=..."
    assert dropout.matters
    assert {"optimizer.lr=0.0001", "precision=bf16"} <= set(found.overrides)
    assert not any(text.startswith("cluster.") for text in found.overrides)


def test_a_json_list_of_words_is_read() -> None:
    words = json.dumps([*SIZES.split(), "--bf16"])
    assert read(words, "args.json").overrides == read(f"{SIZES} --bf16", "args.sh").overrides


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--swiglu --disable-bias-linear --normalization RMSNorm", "model.family=llama"),
        ("--swiglu", "model.intermediate_size=1344"),
        ("--num-experts 8", "model.family=moe"),
        ("--transformer-impl local", "model.attention=eager"),
        ("--transformer-impl local", "optimizer.fused=true"),
        ("--use-flash-attn", "model.attention=flash"),
        ("--squared-relu", "model.hidden_act=squared_relu"),
        ("--group-query-attention --num-query-groups 2", "model.num_key_value_heads=2"),
        ("--num-query-groups 2", "model.num_key_value_heads=null"),
        ("--position-embedding-type none", "model.position_embedding=none"),
        ("--num-layers-per-virtual-pipeline-stage 2 --pipeline-model-parallel-size 2", "parallel.virtual_pipeline=2"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", "zero=2"),
        ("--optimizer-cpu-offload", "zero.offload_optimizer=cpu"),
        ("--bf16 --fp8-format hybrid --fp8-recipe tensorwise", "precision.recipe=tensorwise"),
        ("--bf16 --grad-reduce-in-bf16", "precision.accumulate=bf16"),
        (
            "--use-precision-aware-optimizer --exp-avg-dtype fp8 --exp-avg-sq-dtype fp8",
            "precision.optimizer_states=fp8",
        ),
        ("--recompute-activations", "checkpointing=selective"),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 4", "checkpointing.layers=4"),
        ("--cross-entropy-loss-fusion", "train.loss=fused"),
        ("--global-batch-size 8 --train-samples 80", "train.steps=10"),
        ("--optimizer muon", "optimizer=muon"),
    ],
)
def test_an_argument_becomes_its_setting(arguments: str, expected: str) -> None:
    found = read(f"{SIZES} {arguments}", "args.txt")
    assert expected in found.overrides
    make_spec(*found.overrides)


def test_a_vocabulary_that_only_the_tokenizer_knows_must_be_set() -> None:
    text = SIZES.replace("--vocab-size 1000", "--tokenizer-type Llama2Tokenizer")
    found = read(text, "args.txt")
    [tokenizer] = [left for left in found.left_out if left.matters]
    assert (tokenizer.key, tokenizer.effect) == (
        "--tokenizer-type",
        "it alone knows the size of the vocabulary: set model.vocab_size",
    )
    with pytest.raises(ConfigErrors, match=r"model\.vocab_size=None: must be set"):
        make_spec(*found.overrides)
    assert make_spec(*found.overrides, "model.vocab_size=32000").model.vocab_size == 32000


def test_the_recipe_says_what_the_overrides_say() -> None:
    found = read(GPT3_175B, "train_gpt3_175b.sh")
    recipe = {key: value for key, value in found.recipe.items() if key != "schema"}
    assert tuple(Recipe(name="imported", sweep={}, **recipe).overrides()) == found.overrides
    assert found.recipe["summary"] == "The Megatron-LM run train_gpt3_175b"


def _message(text: str, path: str) -> list[dict[str, object]]:
    with pytest.raises(ConfigErrors) as caught:
        read(text, path)
    return [error.as_dict() for error in caught.value.errors]


@pytest.mark.parametrize(
    ("text", "path", "rule"),
    [
        (
            "{",
            "a.json",
            "this is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        ("a: [", "a.yaml", "it is not valid YAML: while parsing a flow node did not find expected node content"),
        ("--name 'unclosed", "a.sh", "this is not shell text: No closing quotation"),
        ("3", "a.yaml", "an argument list is a mapping of arguments to values, or a list of words"),
        ("ls -l", "a.sh", "it holds no argument; they are spelt --num-layers 32"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error_with_its_path(text: str, path: str, rule: str) -> None:
    [error] = _message(text, path)
    assert error["path"] == path
    assert str(error["rule"]).startswith(rule)


def test_missing_sizes_and_wrong_types_come_at_once() -> None:
    text = "--num-layers 12.5 --num-attention-heads 8 --seq-length 1024 --lr high --vocab-size 10"
    errors = read(text, "args.sh").errors
    assert [(error.path, error.found, error.rule) for error in errors] == [
        ("args.sh: --num-layers", 12.5, "is a whole number"),
        ("args.sh: --hidden-size", None, "the size of the model does not follow without it"),
        ("args.sh: --lr", "high", "is a number"),
    ]


def test_a_number_where_a_word_is_due_is_an_error() -> None:
    [error] = read(f"{SIZES} --normalization 3", "args.sh").errors
    assert (error.path, error.found, error.rule) == ("args.sh: --normalization", 3, "is a word")
