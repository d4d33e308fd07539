"""What the FSDP worker does; formats, optimizers, losses, adapters and models that it refuses, with the way out."""

from __future__ import annotations

import pytest

from tests.support.fsdp_specs import found

_EXPERTS = "adapter.parameters=[experts.gate_up_proj]"
LATENT = "q_a_proj, q_b_proj, kv_a_proj_with_mqa, kv_b_proj, o_proj"


@pytest.mark.parametrize(
    "overrides",
    [
        ("model=gpt2",),
        ("model=mixtral_8x7b",),
        ("model=qwen3_30b_a3b",),
        ("model=deepseek_v3",),
        ("model=glm4_5_air",),
        ("model.hidden_act=gelu", "model.gated=true"),
        ("model.attention_bias=true",),
        ("zero=2",),
        ("zero.offload_parameters=cpu",),
        ("zero.offload_parameters=cpu", "zero.offload_optimizer=cpu"),
        ("optimizer=sgd",),
        ("checkpointing=selective",),
        ("checkpointing=full", "checkpointing.method=block", "checkpointing.layers=3"),
        ("checkpointing=full", "checkpointing.layers=3"),
        ("checkpointing=full", "checkpointing.offload=true"),
        ("checkpointing=selective", "checkpointing.modules=[attention,mlp,norm]", "checkpointing.layers=3"),
        ("model=deepseek_v3", "checkpointing=selective", "checkpointing.modules=[experts,mlp]"),
        ("train.loss=chunked",),
        ("adapter=lora",),
        ("precision.reduce=bf16",),
        ("precision.parameters=bf16", "precision.accumulate=bf16", "precision.optimizer_states=bf16"),
        ("precision.parameters=bf16",),
        ("parallel=ddp", "precision.parameters=bf16", "optimizer=lion"),
        ("parallel=ddp", "backend.bucket_cap_mb=50", "backend.bucket_view=false"),
        ("backend.micro_step_sync=false",),
        ("parallel=fsdp_cp",),
        ("parallel=fsdp_cp", "parallel.tensor=2", "parallel.sequence=true", "parallel.replicate=2"),
        ("parallel=ddp", "parallel.context=4"),
        ("parallel=fsdp_cp", "precision=fp32", "hardware=cpu"),
        ("parallel=pp", "backend=fsdp", "script=train.py"),
        ("parallel=fsdp_pp", "train.global_batch_size=8"),
        ("parallel=fsdp_pp", "train.global_batch_size=4", "parallel.schedule=gpipe"),
        ("parallel=fsdp_pp", "train.global_batch_size=8", "parallel.virtual_pipeline=2"),
        ("parallel=fsdp_tp", "parallel.pipeline=2", "train.global_batch_size=8", "model.tie_word_embeddings=true"),
        ("parallel=ddp", "parallel.pipeline=2", "train.global_batch_size=8", "model=mixtral_8x7b"),
    ],
    ids=" ".join,
)
def test_what_the_worker_does_is_accepted(overrides: tuple[str, ...]) -> None:
    assert found(*overrides) == {}


@pytest.mark.parametrize(
    ("overrides", "path", "rule", "way_out"),
    [
        (
            ("+backend.extra.stage=3",),
            "backend.extra",
            "FSDP2 and DDP take no extra settings",
            ("+backend.extra.stage=null",),
        ),
        (
            ("precision=fp16", "precision.parameters=fp16"),
            "precision.parameters",
            "backend=fsdp uses fp32, since torch cannot unscale fp16 gradients",
            ("precision.parameters=fp32",),
        ),
        (
            ("precision=fp8", "precision.recipe=blockwise"),
            "precision.recipe",
            "for fp8 torchao has tensorwise, rowwise, rowwise_with_gw_hp, mxfp8; Transformer Engine, "
            "in Megatron-LM, has others",
            (
                *("precision.recipe=tensorwise", "precision.recipe=rowwise", "precision.recipe=rowwise_with_gw_hp"),
                *("precision.recipe=mxfp8", "parallel=tp"),
            ),
        ),
        (
            ("precision=fp8", "model=gpt2"),
            "precision.compute",
            "this version converts only the family llama to fp8, and this is gpt",
            ("precision=bf16", "parallel=tp"),
        ),
        (
            ("precision=fp8", "adapter=lora"),
            "precision.compute",
            "this version trains no adapter with linear layers in fp8",
            ("precision=bf16", "adapter=none"),
        ),
        (
            ("precision=fp8", "model.intermediate_size=1000"),
            "model.intermediate_size",
            "products in fp8 need dimensions that are multiples of 16, and this gives 1000",
            ("model.intermediate_size=1008", "precision=bf16"),
        ),
        (
            ("precision.parameters=fp16",),
            "precision.parameters",
            "backend=fsdp uses the format of the parameters or of the computation",
            ("precision.parameters=fp32", "precision.parameters=bf16"),
        ),
        (
            ("precision.optimizer_states=bf16",),
            "precision.optimizer_states",
            "backend=fsdp uses the parameters' own format",
            ("precision.optimizer_states=fp32",),
        ),
        (
            ("parallel=ddp", "precision.parameters=bf16", "precision.reduce=fp32"),
            "precision.reduce",
            "backend=fsdp uses bf16",
            ("precision.reduce=bf16",),
        ),
        (
            ("optimizer=lion", "precision.optimizer_states=bf16"),
            "precision.optimizer_states",
            "backend=fsdp uses the format in which bitsandbytes keeps Lion's states",
            ("precision.optimizer_states=fp32",),
        ),
        (
            ("precision.accumulate=bf16",),
            "precision.accumulate",
            "backend=fsdp uses the parameters' own format",
            ("precision.accumulate=fp32",),
        ),
        (
            ("precision.gradients=fp32",),
            "precision.gradients",
            "backend=fsdp uses the format in which backward makes them",
            ("precision.gradients=bf16",),
        ),
        (
            ("precision.reduce=fp16",),
            "precision.reduce",
            "backend=fsdp uses fp32 or bf16",
            ("precision.reduce=fp32", "precision.reduce=bf16"),
        ),
        (
            ("precision.master=fp32",),
            "precision.master",
            "torch's optimizers keep no second copy of the parameters",
            ("precision.master=null", "parallel=zero3"),
        ),
        (
            ("parallel=fsdp_cp", "model=deepseek_v3"),
            "parallel.context",
            "the estimate does not know what multi-head latent attention (model.kv_lora_rank) saves when ranks share"
            " a sequence",
            ("parallel.context=1", "parallel=cp"),
        ),
        (
            ("model=mixtral_8x7b", "optimizer=muon"),
            "optimizer.name",
            "torch.optim.Muon steps only matrices, and transformers keeps all experts of a layer in one tensor",
            ("optimizer=adamw", "model.num_experts=0"),
        ),
        (
            ("optimizer=adafactor", "zero.offload_parameters=cpu"),
            "zero.offload_parameters",
            "adafactor needs its parameters on the device: it gathers each matrix from the ranks",
            ("zero.offload_parameters=none", "optimizer=adamw"),
        ),
        (
            ("checkpointing=full", "checkpointing.layers=2", "checkpointing.method=uniform"),
            "checkpointing.layers",
            "each layer is a group of its own: transformers calls its layers one by one",
            ("checkpointing.layers=1", "checkpointing.method=block"),
        ),
        (
            ("checkpointing=selective", "checkpointing.modules=[core_attn,mlp,layernorm]"),
            "checkpointing.modules",
            "this model can recompute the modules attention, mlp, norm, each named once",
            ("checkpointing.modules=[attention,mlp,norm]",),
        ),
        (
            ("model=mixtral_8x7b", "checkpointing=selective", "checkpointing.modules=[mlp]"),
            "checkpointing.modules",
            "this model can recompute the modules attention, experts, norm, each named once",
            ("checkpointing.modules=[attention]",),
        ),
        (
            ("checkpointing.offload=true",),
            "checkpointing.offload",
            "torch would copy all that autograd saves, weights too and some tensors thrice: recompute blocks instead",
            ("checkpointing=full", "checkpointing.offload=false"),
        ),
        (
            ("checkpointing=full", "checkpointing.offload=true", "checkpointing.offload_modules=[core_attn]"),
            "checkpointing.offload_modules",
            "this backend offloads the inputs of whole blocks; only Megatron-LM offloads single modules",
            ("checkpointing.offload_modules=[]", "parallel=tp"),
        ),
        (
            ("checkpointing=full", "checkpointing.offload=true", "train.compile=true"),
            "train.compile",
            "this version does not compile blocks whose inputs are offloaded to host memory",
            ("train.compile=false", "checkpointing.offload=false"),
        ),
        (
            ("train.loss=fused", "hardware.device=cpu"),
            "train.loss",
            "Liger's kernel is written in Triton and needs a GPU; the chunked loss never holds all logits either",
            ("train.loss=chunked", "train.loss=full"),
        ),
        (
            ("train.loss=fused", "parallel.tensor=2"),
            "train.loss",
            (
                "it reads the whole output projection, which 2 tensor parallel ranks split; the "
                "chunked loss never holds all logits either"
            ),
            ("train.loss=chunked", "train.loss=full"),
        ),
        (
            ("adapter=qlora", "model=mixtral_8x7b", "adapter.targets=[q_proj]"),
            "checkpointing.mode",
            "autograd would save the unpacked experts of every layer, more than they take in 16 bits",
            ("checkpointing=full", "adapter=lora"),
        ),
        (
            ("adapter=qlora", "hardware.device=cpu", "model.intermediate_size=688"),
            "adapter.quant_type",
            "on the CPU bitsandbytes unpacks only rows of whole 64-value blocks; this model has rows of 688",
            ("adapter.quant_type=int8", "adapter=lora"),
        ),
        (
            ("adapter=qlora", "train.compile=true"),
            "train.compile",
            "this version does not compile blocks with quantised weights",
            ("train.compile=false", "adapter=lora"),
        ),
        (
            ("adapter=qlora", "zero.offload_parameters=cpu"),
            "zero.offload_parameters",
            "this version keeps quantised weights on the device",
            ("zero.offload_parameters=none", "adapter=lora"),
        ),
        (
            ("model=deepseek_v3", "adapter=lora", "adapter.targets=[q_proj,o_proj]"),
            "adapter.targets",
            f"the linear layers of this model are {LATENT}; not among them: q_proj",
            ("adapter.targets=[q_b_proj,o_proj]", f"adapter.targets=[{LATENT.replace(' ', '')}]"),
        ),
        *(
            (("adapter=lora", "model=mixtral_8x7b", _EXPERTS, *words), path, rule, (*ways, "adapter.parameters=[]"))
            for words, path, rule, ways in (
                (
                    (),
                    "checkpointing.mode",
                    "autograd would save the sum of weights and adapter for the experts of every layer",
                    ("checkpointing=full",),
                ),
                (
                    ("adapter.dropout=0.1",),
                    "adapter.dropout",
                    "peft adds the adapter to the experts' weights themselves, before any input arrives",
                    ("adapter.dropout=0.0",),
                ),
                (
                    ("train.compile=true",),
                    "train.compile",
                    "peft swaps the experts' weights in Python on each pass",
                    ("train.compile=false",),
                ),
                (
                    ("parallel=fsdp_pp",),
                    "parallel.pipeline",
                    "this version does not split a model with an adapter on experts' weights into pipeline stages",
                    ("parallel.pipeline=1",),
                ),
                (
                    ("adapter.parameters=[experts.w1]",),
                    "adapter.parameters",
                    "the experts' weights of this model are experts.gate_up_proj, experts.down_proj; not among "
                    "them: experts.w1",
                    ("adapter.parameters=[experts.gate_up_proj,experts.down_proj]",),
                ),
                (
                    ("model=llama3_8b",),
                    "adapter.parameters",
                    "the formulas know no experts in this model (family llama)",
                    (),
                ),
            )
        ),
        *(
            (("parallel=fsdp", "parallel.tensor=2", *words), path, rule, (*ways, "parallel.tensor=1"))
            for words, path, rule, ways in (
                (
                    ("adapter=qlora",),
                    "adapter.name",
                    "tensor parallelism cannot split quantised weights, whose codes and constants stay whole",
                    ("adapter=lora",),
                ),
                (
                    ("adapter=lora", "adapter.dora=true"),
                    "adapter.dora",
                    "DoRA needs the norms of whole rows and columns, which tensor parallel ranks split",
                    ("adapter.dora=false",),
                ),
                (
                    ("adapter=lora", "adapter.dropout=0.5"),
                    "adapter.dropout",
                    "each tensor parallel rank would drop different inputs of the adapter matrices that all hold",
                    ("adapter.dropout=0.0",),
                ),
            )
        ),
        (
            ("adapter=lora", "adapter.modules_to_save=[norm]"),
            "adapter.modules_to_save",
            "with an adapter only embed_tokens, lm_head can be trained in full; not among them: norm",
            ("adapter.modules_to_save=[embed_tokens,lm_head]", "adapter.modules_to_save=[]"),
        ),
        (
            ("adapter=lora", "adapter.modules_to_save=[lm_head]", "model.tie_word_embeddings=true"),
            "adapter.modules_to_save",
            "the token table is also the output projection (model.tie_word_embeddings), and peft would train a copy",
            ("adapter.modules_to_save=[]",),
        ),
        (
            ("adapter=lora", "adapter.dora=true", "checkpointing=selective"),
            "checkpointing.mode",
            "selective checkpointing saves every second matrix product and would count DoRA's products of weights",
            ("checkpointing=full", "checkpointing=none", "adapter.dora=false"),
        ),
        (
            ("adapter=lora", "adapter.dora=true", "train.compile=true"),
            "train.compile",
            "this version does not compile blocks with DoRA",
            ("train.compile=false", "adapter.dora=false"),
        ),
        (
            ("adapter=qlora", "adapter.dora=true", "adapter.dropout=0.5"),
            "adapter.dropout",
            "with dropout DoRA multiplies by the unpacked weights once more and saves all of them for backward",
            ("adapter.dropout=0.0", "adapter.dora=false"),
        ),
        (
            ("model.hidden_act=gelu",),
            "model.gated",
            "transformers' llama models have true",
            ("model.gated=true",),
        ),
        (
            ("model.dropout=0.1",),
            "model.dropout",
            "transformers' llama models have 0.0",
            ("model.dropout=0.0",),
        ),
        (
            ("model=gpt2", "model.normalization=rmsnorm"),
            "model.normalization",
            "transformers' gpt models have layernorm",
            ("model.normalization=layernorm",),
        ),
        (
            ("model.qk_norm=true", "model.attention_bias=true"),
            "model.attention_output_bias",
            "transformers' classes with norms of heads (model.qk_norm) have all biases of attention or none",
            ("model.attention_output_bias=true", "model.attention_bias=false"),
        ),
        (
            ("model=gpt2", "model.num_key_value_heads=4"),
            "model.num_key_value_heads",
            "GPT-2 has a key and value head for every attention head",
            ("model.num_key_value_heads=null",),
        ),
        (
            ("model=gpt2", "model.head_dim=32"),
            "model.head_dim",
            "GPT-2's heads divide the hidden size 768",
            ("model.head_dim=null",),
        ),
        (
            ("model.weights=/w", "model.trust_remote_code=true"),
            "model.trust_remote_code",
            "this version does not run code shipped with weights or a tokenizer",
            ("model.trust_remote_code=false",),
        ),
        (
            ("model=gpt2", "adapter=lora", "adapter.targets=[c_attn,q_proj]"),
            "adapter.targets",
            "the linear layers of this model are c_attn, c_proj, c_fc; not among them: q_proj",
            ("adapter.targets=[c_attn,c_proj]", "adapter.targets=[c_attn,c_proj,c_fc]"),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_the_worker_cannot_do_is_refused(
    overrides: tuple[str, ...], path: str, rule: str, way_out: tuple[str, ...]
) -> None:
    errors = found(*overrides)
    assert path in errors, f"only {sorted(errors)} are refused"
    assert errors[path] == (rule, way_out)
