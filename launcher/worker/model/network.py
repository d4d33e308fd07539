"""The network of a model spec, built from ``transformers`` classes on the meta device, without hub or memory."""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
import transformers
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from launcher.estimate import families
from launcher.estimate.rank import recomputed
from launcher.spec import ModelSpec, PrecisionSpec, RunSpec
from launcher.worker.engine import Context

# If torchao is installed, transformers imports it with its first model, for weights quantised by torchao, which launch
# never reads: that would cost every rank 0.35 s and two warnings.
_asked = transformers.utils.is_torchao_available
transformers.utils.is_torchao_available = lambda *_, **__: False
try:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
finally:
    transformers.utils.is_torchao_available = _asked

CAUSAL_SDPA = "causal_sdpa"
"""SDPA with only its causal flag. Samples are packed, or padded at their end, which no earlier token sees, so no mask
is needed, and ``transformers`` makes none for an attention function whose name it does not know; for its own function
it would wait for the GPU to find out that none is needed."""

_ROWS = 256  # Rows of a mask computed at once, which bounds the temporary memory.
_DISTRIBUTED = "distributed"  # An attention function that ranks compute together; supplied by an engine.
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, **dict.fromkeys(("bf16", "fp8", "fp4"), torch.bfloat16)}
"""Dtypes by ``precision.compute``; with fp8 and fp4 all but the matrix products of linears is in bf16."""

_LAST_NORMS = (
    "ln_f",
    "norm",
    "norm_f",
    "final_layernorm",
    "final_layer_norm",
)  # Names of the norm after the last layer, by class.
_PAIRS = ("bamba", "falcon_h1")  # Model types whose layers return a tuple, the states first.
_INDEXER = ".indexer."  # The module that selects tokens, which runs without gradients.
_ATTENTION = {"sdpa": CAUSAL_SDPA, "eager": "eager", "flash": "flash_attention_2"}

ALL_ATTENTION_FUNCTIONS.register(CAUSAL_SDPA, sdpa_attention_forward)


def config(model: ModelSpec) -> Any:
    """The ``transformers`` configuration of a model that ``launcher.backends.fsdp.check`` accepted."""
    found = families.of(model).transformers_config(model)
    if found is None:
        raise AssertionError(f"check has let the family {model.family} through, which names no class")
    return getattr(transformers, found.name)(**found.settings)


def use_kernels(made: Any, spec: RunSpec) -> None:
    """Replace the norms, rotary embeddings and MLPs of a network by Liger's kernels, with ``train.kernels=liger``."""
    if spec.train.kernels == "liger":
        from liger_kernel.transformers.monkey_patch import _apply_liger_kernel_to_instance  # Takes seconds.

        ours = {"cross_entropy": False, "fused_linear_cross_entropy": False}
        _apply_liger_kernel_to_instance(model=made, rope=True, rms_norm=True, swiglu=True, **ours)


def network(model: ModelSpec, dtype: torch.dtype, attention: Callable[..., Any] | None = None) -> Any:
    """The network on the meta device; if ranks share a sequence, ``attention`` replaces ``model.attention``."""
    settings, name = config(model), _attention_name(model)
    if attention is not None:
        name = _DISTRIBUTED
        ALL_ATTENTION_FUNCTIONS.register(name, attention)
    with torch.device("meta"):
        made = transformers.AutoModelForCausalLM.from_config(settings, dtype=dtype, attn_implementation=name)
    made.config.use_cache = False
    for name, parameter in made.named_parameters():  # A class may create a few activation parameters in another dtype.
        parameter.data = parameter.data.to(dtype)
        if _INDEXER in name:
            parameter.requires_grad_(False)
    shared_modules(every_block(made, ()))
    return made


def cast_multipliers(made: Any, spec: RunSpec) -> None:
    """Cast Falcon-H1's multipliers of a projection to the projection's dtype, which FSDP does not do for buffers."""
    for module in made.modules():
        if hasattr(module, "mup_vector"):
            module.mup_vector = module.mup_vector.to(DTYPES[spec.precision.compute])


def _attention_name(model: ModelSpec) -> str:
    found = families.of(model).transformers_config(model)
    own = found is not None and found.own_attention
    return model.attention if own and model.attention != "flash" else _ATTENTION[model.attention]


def window_masks(made: Any, length: int, like: torch.Tensor) -> dict[str, Any]:
    """The mask of windowed attention if the kernel does not get the window itself; one mask serves all layers."""
    settings = made.config
    chunk, kinds = getattr(settings, "attention_chunk_size", None), getattr(settings, "layer_types", None)
    window, word = (
        (chunk, "chunked_attention") if chunk else (getattr(settings, "sliding_window", None), "sliding_attention")
    )
    needless = kinds is not None and word not in kinds
    if settings._attn_implementation != CAUSAL_SDPA or not window or length <= window or needless:
        return {}
    band = _band(length, window, like, chunked=bool(chunk))[None, None]
    if kinds is None:
        return {"attention_mask": band}
    return {"attention_mask": {"full_attention": None, word: band}}


def _band(length: int, window: int, like: torch.Tensor, *, chunked: bool) -> torch.Tensor:
    """The additive mask of a query (row) and a key, computed by rows: all pairs at once take many times the memory."""
    band = torch.full((length, length), torch.finfo(like.dtype).min, dtype=like.dtype, device=like.device)
    places = torch.arange(length, device=like.device)
    for first in range(0, length, _ROWS):
        rows = places[first : first + _ROWS, None]
        behind = rows - places[None, :]
        near = rows // window == places[None, :] // window if chunked else behind < window
        band[first : first + _ROWS].masked_fill_((behind >= 0) & near, 0.0)
    return band


def document_mask(places: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The additive mask, from positions in documents, that shows a token only earlier tokens of its document."""
    batch, length = places.shape
    document = (places == 0).cumsum(1)
    mask = torch.full((batch, 1, length, length), torch.finfo(like.dtype).min, dtype=like.dtype, device=like.device)
    rows = torch.arange(length, device=places.device)
    for first in range(0, length, _ROWS):
        some = slice(first, first + _ROWS)
        seen = (document[:, some, None] == document[:, None, :]) & (rows[some, None] >= rows[None, :])
        mask[:, 0, some].masked_fill_(seen, 0.0)
    return mask


class Absent(nn.Module):
    """A stand-in for a module of another pipeline stage: it returns its input."""

    block_type = ""  # Nemotron-H's class reads it from a layer to choose a mask.

    def __init__(self, *, pair: bool = False) -> None:
        super().__init__()
        self._pair = pair  # True if the model takes the first element of what a layer returns.

    def forward(self, hidden: torch.Tensor, *_: object, **__: object) -> Any:
        """Return the first argument."""
        return (hidden, None) if self._pair else hidden


class Nothing(nn.Module):
    """A stand-in for learned positions that another pipeline stage adds."""

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """Return zero, without dimensions."""
        return positions.new_zeros(())


def keep_chunk(made: Any, layers: Collection[int], *, first: bool, last: bool) -> None:
    """Reduce a network on the meta device to the pipeline chunk with these layers; parameters keep their names."""
    if first and last:
        return
    inner, table = base(made), made.get_input_embeddings()
    every: Any = getattr(inner, "h", None) or inner.layers
    for index in range(len(every)):
        if index not in layers:
            every[index] = Absent(pair=made.config.model_type in _PAIRS)
    children = dict(inner.named_children())
    if not first:
        if hasattr(inner, "wpe"):
            inner.wpe, inner.drop = Nothing(), Absent()
        if hasattr(inner, "embedding_multiplier"):
            inner.embedding_multiplier = 1.0
        if not (last and made.config.tie_word_embeddings):
            setattr(inner, next(name for name, child in children.items() if child is table), Absent())
    if not last:
        setattr(inner, next(name for name in _LAST_NORMS if name in children), Absent())
        made.lm_head = Absent()


def blocks(made: Any) -> nn.ModuleList:
    """This rank's transformer blocks, in order."""
    return nn.ModuleList(numbered(made).values())


def base(made: Any) -> Any:
    """The network without its output head; it is ``model`` if the class's prefix does not name it."""
    return made.model if made.base_model is made else made.base_model


def numbered(made: Any) -> dict[int, nn.Module]:
    """This rank's transformer blocks by their index in the whole model, from 0."""
    return {number: block for number, block in enumerate(every_block(made)) if not isinstance(block, Absent)}


def every_block(made: Any, *default: object) -> Any:
    """The list of a network's transformer blocks, absent ones included; the default if no usual attribute has it."""
    inner = base(made)
    inner = getattr(inner, "decoder", inner)
    return next((getattr(inner, name) for name in ("h", "layers", "blocks") if hasattr(inner, name)), *default)


def shared_modules(every: Iterable[nn.Module]) -> list[nn.Module]:
    """The modules that several blocks share (``zamba2``), each once; blocks with tied parameters get one module."""
    first, shared = dict[int, nn.Module](), dict[int, nn.Module]()
    for block in every:
        for name, child in block.named_children():
            key = id(next(child.parameters(), child))
            if key in first:
                shared[key] = first[key]
                setattr(block, name, first[key])
            first.setdefault(key, child)
    return [*shared.values()]


def prepare_blocks(networks: Iterable[Any], context: Context) -> None:
    """Set up a rank's blocks as the run says: recomputation, clock and memory hooks, compilation."""
    found = {number: block for made in networks for number, block in numbered(made).items()}
    recompute(found, context.spec)
    context.clock.follow(found.values(), context.device)
    context.memory.layers.follow(found)
    if context.spec.train.compile:
        for block in found.values():
            block.forward = torch.compile(block.forward)


def retie(made: Any) -> None:
    """Tie the output head to the input embedding again, after parameters were replaced."""
    head = made.get_output_embeddings()
    if made.config.tie_word_embeddings and not isinstance(head, Absent):
        head.weight = made.get_input_embeddings().weight


_aten = torch.ops.aten
_PRODUCTS = frozenset(("aten::mm", "aten::addmm", "bitsandbytes::gemm_4bit"))
_KEPT = frozenset((
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
))
"""Expensive to recompute, cheap to keep: attention and communication (torchtitan, ``activation_checkpoint.py``)."""


def recompute(blocks: Mapping[int, nn.Module], spec: RunSpec) -> None:
    """Wrap the forward functions of the blocks, or modules in them, that are recomputed; parameter names stay."""
    settings, parts = spec.checkpointing, recomputed.recomputed(spec)
    first = None if settings.method == "uniform" else settings.layers
    random = spec.model.dropout > 0 or spec.adapter.dropout > 0
    whole = settings.mode == "selective" and not settings.modules
    contexts = {"context_fn": _selective} if whole else {}
    for number, block in list(blocks.items())[:first]:
        for module in _parts(block, number, spec, parts):
            module.forward = functools.partial(
                checkpoint, module.forward, use_reentrant=False, preserve_rng_state=random, **contexts
            )
            if settings.offload:
                module.forward = functools.partial(_saving_on_cpu, module.forward, spec.hardware.device == "cuda")


def _saving_on_cpu(forward: Callable[..., Any], pinned: bool, *args: Any, **kwargs: Any) -> Any:
    with save_on_cpu(pin_memory=pinned):
        return forward(*args, **kwargs)


def _parts(block: nn.Module, number: int, spec: RunSpec, parts: Collection[str]) -> list[nn.Module]:
    if recomputed.BLOCK in parts:
        return [block]
    words = recomputed.children(families.of(spec.model), spec.model, number)
    return [child for name, child in block.named_children() if words.get(name) in parts]


def _selective() -> Any:
    return create_selective_checkpoint_contexts(_policy())  # type: ignore[no-untyped-call]


def _policy() -> Callable[..., CheckpointPolicy]:
    """Keep attention, communication and every second matrix product, counted the same way in recomputation."""
    counts = {False: 0, True: 0}

    def decide(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        keep = operation in _KEPT
        if operation.name() in _PRODUCTS:
            counts[context.is_recompute] += 1
            keep = counts[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return decide


def fake_quantise(made: Any, spec: RunSpec) -> None:
    """Replace the linears of a network's blocks, except an adapter's, by torchao's, which round as a quantised model.

    Weights do not change, and neither do checkpoints and exports; frozen weights stay frozen.
    """
    if spec.precision.qat is None:
        return
    from torchao.quantization import quantize_  # Late: it takes a second.

    head = made.get_output_embeddings()

    def rounds(module: nn.Module, name: str) -> bool:
        return isinstance(module, nn.Linear) and module is not head and ".lora_" not in name

    quantize_(made, _rounded(spec.precision), rounds)


def _rounded(precision: PrecisionSpec) -> Any:
    """The configuration of ``torchao.quantization.qat``; nvfp4 uses the configuration of torchao's quantised models."""
    from torchao.prototype.mx_formats import NVFP4DynamicActivationNVFP4WeightConfig
    from torchao.prototype.qat import MXFakeQuantizeConfig
    from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig
    from torchao.quantization.qat.fake_quantize_config import Int4WeightFakeQuantizeConfig

    types: Any = torch  # Its annotations lack ``int4``.
    inputs, group = None, precision.qat_group_size
    if precision.qat == "nvfp4":
        return QATConfig(NVFP4DynamicActivationNVFP4WeightConfig(use_triton_kernel=False), step="prepare")
    if precision.qat == "mxfp4":
        both = MXFakeQuantizeConfig(torch.float4_e2m1fn_x2, block_size=group)
        return QATConfig(activation_config=both, weight_config=both, step="prepare")
    if precision.qat != "int4":
        inputs = IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
    if precision.qat == "int8_int4":
        weights = IntxFakeQuantizeConfig(types.int4, group_size=group, is_symmetric=True)
    else:
        weights = Int4WeightFakeQuantizeConfig(group_size=group, activation_dtype=torch.bfloat16)
    return QATConfig(activation_config=inputs, weight_config=weights, step="prepare")


def switch_rounding(made: nn.Module, spec: RunSpec, step: int) -> None:
    """Turn the rounding of quantization-aware training on after ``precision.qat_after`` steps, off before."""
    if not spec.precision.qat_after:
        return
    from torchao.quantization.qat import FakeQuantizerBase  # Late: it takes a second.

    for module in made.modules():
        if isinstance(module, FakeQuantizerBase):
            module.enabled = step > spec.precision.qat_after
