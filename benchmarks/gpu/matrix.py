"""The runs to measure, as overrides: one rank alone, or one rank of a larger world.

They come in the order of their worth, since a machine may be taken back before the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.gpu.steps import STEPS

_SMALL = ("model=1b", "train.sequence_length=2048", "train.micro_batch_size=2", "precision=bf16")
_EIGHT = ("model=llama3_8b", "train.sequence_length=4096", "precision=bf16")
_WHOLE = (
    "model=llama3_8b", "model.max_position_embeddings=32768", "train.sequence_length=32768", "precision=bf16"
)  # fmt: skip
_LONG = (*_WHOLE, "model.num_hidden_layers=2")
_SEVEN = ("model=7b", "train.sequence_length=4096", "precision=bf16")
_FEW = "model.num_hidden_layers=4"
TORCHS = "optimizer.fused=true"
"""DeepSpeed compiles a kernel of its own for Adam otherwise: a minute at its first use, for which one row is enough."""

_LOCAL = "+backend.extra.transformer-impl=local"
"""Transformer Engine is built against one torch, so no wheel of it fits the machine's."""


_PROFILED = f"train.profile={{start:{STEPS},steps:1,ranks:[0]}}"
"""Megatron-LM's own loop steps, so its last step is recorded as a user's is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run.

    Attributes:
        name: What sets it apart.
        overrides: The run, less its world.
        world: Ranks; rank 0 is measured. Of more than one, the others do not exist.
        seconds: What it may cost on an H100, its imports apart, which pass while the run before is measured.
        needs: Modules without which it cannot be measured.
    """

    name: str
    overrides: tuple[str, ...]
    world: int = 1
    seconds: float = 5.0
    needs: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """The whole command line: up to eight ranks per node, with this machine's GPU."""
        nodes = max(1, self.world // 8)
        cluster = ("cluster=local", f"cluster.nodes={nodes}", f"cluster.gpus_per_node={self.world // nodes}")
        return ("data=synthetic", f"train.steps={STEPS}", "save.last=false", *self.overrides, *cluster)


def first() -> tuple[Point, ...]:
    """The small model in every engine, measured first."""
    return tuple(_engines())


def rest() -> tuple[Point, ...]:
    """All other runs; those that take a minute or more come last."""
    made = (_few_layers(), _shared(), _changes(), _techniques(), _families(), _more_shared(), _combined(), _rare())
    return tuple(sorted((point for points in made for point in points), key=lambda point: point.seconds >= 60.0))


def _engines() -> Iterator[Point]:
    """The same small model in every engine."""
    for name, words in {
        "ddp": ("parallel=ddp",),
        "fsdp": ("parallel=fsdp",),
        "zero 2": ("parallel=zero2", TORCHS),
        "zero 3": ("parallel=zero3", TORCHS),
        "zero 0": ("parallel=zero0", TORCHS),
        "zero 1": ("parallel=zero1", TORCHS),
    }.items():
        yield Point(name=f"1b alone, {name}", overrides=(*_SMALL, *words), needs=_needs(name))
    for mode in ("none", "selective", "full"):
        megatron = (*_SMALL, "backend=megatron", _LOCAL, _PROFILED, f"checkpointing={mode}")
        yield Point(
            name=f"1b alone, megatron, checkpointing {mode}", overrides=megatron, seconds=9, needs=("megatron",)
        )


def _few_layers() -> Iterator[Point]:
    """Layers of full width, as many as fit on one card."""
    few = (*_EIGHT, _FEW)
    for preset in ("ddp", "fsdp", "zero2", "zero3"):
        words = (*few, *_preset(preset))
        yield Point(name=f"8b of 4 layers alone, {preset}", overrides=words, needs=_needs(preset))
    full = (*few, "parallel=ddp", "checkpointing=full")
    yield Point(name="8b of 4 layers alone, ddp, checkpointing full", overrides=full)
    megatron = (*few, "backend=megatron", _LOCAL, _PROFILED)
    yield Point(name="8b of 4 layers alone, megatron", overrides=megatron, seconds=9, needs=("megatron",))
    lora = (*_SEVEN, "parallel=ddp", "adapter=lora", "checkpointing=full")
    yield Point(name="7b alone, lora, checkpointing full", overrides=lora, seconds=10, needs=("peft",))
    qlora = (*_SEVEN, "parallel=ddp", "adapter=qlora")
    yield Point(name="7b alone, qlora", overrides=qlora, seconds=12, needs=("peft", "bitsandbytes"))
    moe = ("model=mixtral_8x7b", "model.num_hidden_layers=1", "train.sequence_length=4096", "precision=bf16")
    yield Point(name="mixtral of 1 layer alone, ddp", overrides=(*moe, "parallel=ddp"))


def _shared() -> Iterator[Point]:
    """One rank of eight."""
    for preset in ("fsdp", "ddp", "zero1", "zero2", "zero3"):
        words = (*_SMALL, *_preset(preset))
        yield Point(name=f"1b, {preset} over 8", world=8, overrides=words, needs=_needs(preset))
    for preset in ("fsdp", "zero3"):
        words, name = (*_SEVEN, *_preset(preset), "checkpointing=full"), f"7b, {preset} over 8, checkpointing full"
        yield Point(name=name, world=8, overrides=words, seconds=9, needs=_needs(preset))


def _changes() -> Iterator[Point]:
    """Runs of the small model on one rank, with one change each."""
    ddp = (*_SMALL, "parallel=ddp")
    for name, words in {
        "checkpointing selective": ("checkpointing=selective",),
        "checkpointing full": ("checkpointing=full",),
        "fp32": ("precision=fp32",),
        "chunked loss": ("train.loss=chunked",),
        "two micro-batches": ("train.global_batch_size=4",),
        "expandable segments": ("train.allocator=expandable",),
        "eager attention": ("model.attention=eager",),
        "foreach": ("optimizer.fused=false", "optimizer.foreach=true"),
        "sgd": ("optimizer=sgd",),
    }.items():
        yield Point(name=f"1b alone, {name}", overrides=(*ddp, *words))
    yield Point(name="1b alone, lora", overrides=(*ddp, "adapter=lora"), needs=("peft",))
    compiled = (*ddp, "train.compile=true")
    yield Point(name="1b alone, compiled", overrides=compiled, seconds=25, needs=("triton",))
    fp16 = (*_SMALL, *_preset("zero2"), "precision=fp16")
    yield Point(name="1b alone, zero 2, fp16", overrides=fp16, needs=("deepspeed",))


def _techniques() -> Iterator[Point]:
    """Formats, kernels and optimizers that only a GPU runs, or that may use other memory there than on a CPU."""
    ddp, fsdp = (*_SMALL, "parallel=ddp"), (*_SMALL, "parallel=fsdp")
    fp8 = (*_SMALL[:-1], "precision=fp8", "parallel=fsdp")
    rowwise = (*fp8, "precision.recipe=rowwise", "train.compile=true")
    gathered = (*fp8, "zero.quantized_weights=true")
    for name, words, more in (
        ("1b alone, fsdp, fp8", fp8, {"needs": ("torchao",)}),
        ("1b alone, fsdp, fp8 by rows, compiled", rowwise, {"needs": ("torchao", "triton"), "seconds": 30.0}),
        ("1b, fsdp over 8, fp8 all-gather", gathered, {"needs": ("torchao",), "world": 8}),
        ("1b alone, Liger's kernels", (*ddp, "train.kernels=liger"), {"needs": ("liger_kernel",)}),
        ("1b, fsdp over 8, Liger's kernels", (*fsdp, "train.kernels=liger"), {"needs": ("liger_kernel",), "world": 8}),
        ("1b alone, 8-bit AdamW", (*ddp, "optimizer=adamw_8bit"), {"needs": ("torchao",)}),
        ("1b alone, paged 8-bit AdamW", (*ddp, "optimizer=paged_adamw_8bit"), {"needs": ("bitsandbytes",)}),
        ("1b alone, Adafactor", (*ddp, "optimizer=adafactor"), {}),
        ("1b alone, Lion", (*ddp, "optimizer=lion"), {"needs": ("bitsandbytes",)}),
        ("1b alone, Muon", (*ddp, "optimizer=muon"), {}),
        ("1b, fsdp over 8, Muon", (*fsdp, "optimizer=muon"), {"world": 8}),
        ("1b alone, fsdp, fp16", (*_SMALL[:-1], "precision=fp16", "parallel=fsdp"), {}),
        ("1b alone, parameters in bf16", (*ddp, "precision.parameters=bf16"), {}),
        ("1b alone, recomputed inputs in host memory", (*ddp, "checkpointing=full", "checkpointing.offload=true"), {}),
        ("1b alone, 4-bit AdamW", (*ddp, "optimizer=adamw_4bit"), {"needs": ("torchao",)}),
        ("1b alone, fsdp, compiled", (*fsdp, "train.compile=true"), {"needs": ("triton",), "seconds": 25.0}),
        ("1b alone, dora", (*ddp, "adapter=lora", "adapter.dora=true"), {"needs": ("peft",)}),
        (
            "7b alone, 8-bit base weights",
            (*_SEVEN, "parallel=ddp", "adapter=qlora", "adapter.quant_type=int8"),
            {"needs": ("peft", "bitsandbytes"), "seconds": 14.0},
        ),
        (
            "8b of 2 layers alone, 32,768 tokens, Liger's loss",
            (*_LONG, "parallel=fsdp", "train.loss=fused", "checkpointing=full"),
            {"needs": ("liger_kernel",), "seconds": 8.0},
        ),
        ("7b, qlora, fsdp over 8", (*_SEVEN, "parallel=fsdp", "adapter=qlora"), {"needs": ("peft",), "world": 8}),
    ):
        yield Point(name=name, overrides=words, **more)


def _families() -> Iterator[Point]:
    """A few layers of other families, whose attention and experts have kernels of their own on a GPU."""
    few = ("precision=bf16", "parallel=fsdp", "train.sequence_length=4096")
    gemma = ("model=gemma2_2b", "checkpointing=full")
    for name, words in {
        "gemma2_2b alone, checkpointing full": gemma,
        "qwen3_8b of 4 layers alone": ("model=qwen3_8b", _FEW),
        "qwen3_30b_a3b of 2 layers alone": ("model=qwen3_30b_a3b", "model.num_hidden_layers=2"),
        "deepseek_v3 of 2 layers with 16 experts alone": (
            "model=deepseek_v3",
            "model.num_hidden_layers=2",
            "model.first_dense_layers=1",
            "model.num_experts=16",
            "model.n_group=2",
            "model.topk_group=1",
        ),
        "granite4_h_tiny of 2 layers alone": (
            "model=granite4_h_tiny",
            "model.num_hidden_layers=2",
            "model.extra.layer_types=[mamba,attention]",
        ),
        "qwen3_next_80b_a3b of 4 layers with 32 experts alone": (
            "model=qwen3_next_80b_a3b",
            "model.num_hidden_layers=4",
            "model.num_experts=32",
        ),
        "nemotron3_nano_30b_a3b of 6 layers with 16 experts alone": (
            "model=nemotron3_nano_30b_a3b",
            "model.num_hidden_layers=6",
            "model.num_experts=16",
            "model.extra.hybrid_override_pattern=MEMEM*",
        ),
        "deepseek_v3_2 of 2 layers with 16 experts alone": (
            "model=deepseek_v3_2",
            "model.num_hidden_layers=2",
            "model.first_dense_layers=1",
            "model.num_experts=16",
            "model.n_group=2",
            "model.topk_group=1",
        ),
        "jamba_mini of 6 layers with 2 experts alone": (
            "model=jamba_mini",
            "model.num_hidden_layers=6",
            "model.num_experts=2",
        ),
        "llama4_scout of 2 layers with 4 experts alone": (
            "model=llama4_scout",
            "model.num_hidden_layers=2",
            "model.num_experts=4",
        ),
        "glm4_5_air of 2 layers with 16 experts alone": (
            "model=glm4_5_air",
            "model.num_hidden_layers=2",
            "model.num_experts=16",
        ),
        "minimax_m2 of 2 layers with 16 experts alone": (
            "model=minimax_m2",
            "model.num_hidden_layers=2",
            "model.num_experts=16",
        ),
    }.items():
        needs = _mixers(words[0])
        yield Point(name=name, overrides=(*words, *few), seconds=85 if needs else 8, needs=needs)  # Triton tunes them.
    gpt2 = ("model=gpt2_medium", "train.sequence_length=1024", "train.micro_batch_size=4", *few[:2])
    yield Point(name="gpt2_medium alone", overrides=gpt2)


def _more_shared() -> Iterator[Point]:
    """Further world sizes and sharding methods."""
    seven = (*_SEVEN, "checkpointing=full")
    for name, world, words in (
        ("7b, fsdp over 8", 8, (*_SEVEN, "parallel=fsdp")),
        ("7b, fsdp over 64", 64, (*seven, "parallel=fsdp")),
        ("7b, hsdp over 16", 16, (*seven, "parallel=hsdp", "parallel.replicate=2")),
        (
            "7b, fsdp over 8, gathered from forward to backward",
            8,
            (*seven, "parallel=fsdp", "backend.reshard_after_forward=false"),
        ),
        ("8b, fsdp over 8", 8, (*_EIGHT, "parallel=fsdp", "checkpointing=full")),
        ("1b, fsdp over 2", 2, (*_SMALL, "parallel=fsdp")),
        ("1b, tensor parallel by 2, fsdp over 4", 8, (*_SMALL, "parallel=fsdp", "parallel.tensor=2")),
        ("8b, 32,768 tokens over 8", 8, (*_WHOLE, "parallel=fsdp", "parallel.context=8", "checkpointing=full")),
    ):
        yield Point(name=name, world=world, overrides=words, seconds=8)
    moe = ("model=mixtral_8x7b", "model.num_hidden_layers=4", "train.sequence_length=4096", "precision=bf16")
    yield Point(name="mixtral of 4 layers, fsdp over 8", world=8, overrides=(*moe, "parallel=fsdp"), seconds=8)


def _combined() -> Iterator[Point]:
    """Combined techniques, and adapters of sharded or routed weights."""
    ddp, fsdp = (*_SMALL, "parallel=ddp"), (*_SMALL, "parallel=fsdp")
    tuned = (*_SEVEN, "adapter=lora", "checkpointing=full")
    compiled = ("train.compile=true", "checkpointing=full")
    experts = (
        "model=mixtral_8x7b",
        "model.num_hidden_layers=2",
        "train.sequence_length=4096",
        "precision=bf16",
        "parallel=ddp",
        "adapter=lora",
        "checkpointing=full",
        "adapter.parameters=[experts.gate_up_proj,experts.down_proj]",
    )
    triton = {"needs": ("triton",), "seconds": 25.0}
    in_24_gb = (*_SEVEN, "parallel=ddp", "adapter=qlora", "optimizer=paged_adamw_8bit", "checkpointing=full")
    shared_experts = ("model=qwen3_30b_a3b", _FEW, *_EIGHT[1:], "parallel=fsdp", "parallel.expert=8")
    rounded = (*ddp, "precision.parameters=bf16", "optimizer=adamw_8bit", "optimizer.stochastic_rounding=true")
    for name, words, more in (
        ("7b alone, qlora, paged 8-bit AdamW, checkpointing full", in_24_gb, {"needs": ("peft", "bitsandbytes")}),
        ("qwen3_30b_a3b of 4 layers, expert parallel by 8", shared_experts, {"world": 8, "seconds": 8.0}),
        ("1b alone, 8-bit AdamW, parameters in bf16, rounded at random", rounded, {"needs": ("torchao",)}),
        ("7b, lora, fsdp over 8", (*tuned, "parallel=fsdp"), {"needs": ("peft",), "world": 8}),
        ("7b, lora, zero 3 over 8", (*tuned, *_preset("zero3")), {"needs": ("peft", "deepspeed"), "world": 8}),
        ("mixtral of 2 layers alone, lora on experts", experts, {"needs": ("peft",)}),
        ("1b alone, fp8", (*_SMALL[:-1], "precision=fp8", "parallel=ddp"), {"needs": ("torchao",)}),
        ("1b alone, checkpointing half of the layers", (*fsdp, "checkpointing=full", "checkpointing.layers=8"), {}),
        ("1b alone, compiled, checkpointing full", (*fsdp, *compiled), triton),
        ("qwen3_8b of 4 layers alone, compiled", ("model=qwen3_8b", _FEW, *_EIGHT[1:], *ddp[-1:], compiled[0]), triton),
        ("1b alone, compiled, lora", (*ddp, "adapter=lora", compiled[0]), {**triton, "needs": ("triton", "peft")}),
    ):
        yield Point(name=name, overrides=words, **more)


def _rare() -> Iterator[Point]:
    """Slow or rare configurations, last."""
    small = (*_SMALL, "parallel=fsdp")
    offload = (*small, "zero.offload_optimizer=cpu", "zero.offload_parameters=cpu")
    yield Point(name="1b alone, fsdp, offloaded to the host", overrides=offload, seconds=15)
    zero = (*_SMALL, "parallel=zero2")
    for name, words in {
        "DeepSpeed's own Adam": (),
        "optimizer offloaded": ("zero.offload_optimizer=cpu",),
    }.items():  # Each compiles a kernel.
        yield Point(name=f"1b alone, zero 2, {name}", overrides=(*zero, *words), seconds=40, needs=("deepspeed",))


def _mixers(model: str) -> tuple[str, ...]:
    """Modules of the kernels without which a run of a hybrid is refused on a GPU."""
    kernels = {"model=granite4_h_tiny": "mamba_ssm", "model=nemotron3_nano_30b_a3b": "mamba_ssm"}
    kernels |= {"model=qwen3_next_80b_a3b": "fla", "model=jamba_mini": "mamba_ssm"}
    return (kernels[model], "causal_conv1d") if model in kernels else ()


def _preset(name: str) -> tuple[str, ...]:
    return (f"parallel={name}", TORCHS) if name.startswith("zero") else (f"parallel={name}",)


def _needs(name: str) -> tuple[str, ...]:
    return ("deepspeed",) if name.startswith("zero") else ()
