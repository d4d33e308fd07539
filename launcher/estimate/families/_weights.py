"""Weights of the parts that families are built from."""

from launcher.estimate.rank.tensors import Split, Weight
from launcher.spec import ModelSpec


def linear(name: str, outputs: int, inputs: int, *, bias: bool, rows: bool = True, split: bool = True) -> list[Weight]:
    """Weights of a projection; split by outputs (``rows``) it has a split bias, split by inputs a whole one."""
    kind: Split = "tensor" if split else "replicated"
    weights = [Weight(name=f"{name}.weight", shape=(outputs, inputs), split=kind, dimension=0 if rows else 1)]
    if bias:
        weights.append(Weight(name=f"{name}.bias", shape=(outputs,), split=kind if rows else "replicated"))
    return weights


def norm(name: str, size: int, model: ModelSpec) -> list[Weight]:
    """Weights of a norm: RMSNorm has a weight, LayerNorm a weight and a bias."""
    weights = [Weight(name=f"{name}.weight", shape=(size,))]
    if model.normalization == "layernorm":
        weights.append(Weight(name=f"{name}.bias", shape=(size,)))
    return weights


def between_norms(model: ModelSpec, attention: list[Weight], behind: list[Weight]) -> list[Weight]:
    """Weights of a block: attention and the part after it, each with the norm before it."""
    first, second = (norm(f"{name}_layernorm", model.hidden_size, model) for name in ("input", "post_attention"))
    return [*first, *attention, *second, *behind]


def grouped_attention(model: ModelSpec) -> list[Weight]:
    """Weights of (grouped-query) attention: query, key, value and output projections, and the norms of its heads."""
    hidden, bias = model.hidden_size, model.attention_bias
    weights = linear("self_attn.q_proj", model.query_size, hidden, bias=bias)
    weights += linear("self_attn.k_proj", model.key_value_size, hidden, bias=bias)
    weights += linear("self_attn.v_proj", model.key_value_size, hidden, bias=bias)
    # Only as set: of the models of Llama's shape, only Llama itself has this bias.
    output = model.attention_output_bias is True
    weights += linear("self_attn.o_proj", hidden, model.query_size, bias=output, rows=False)
    return weights + (head_norms("self_attn", model) if model.qk_norm else [])


def head_norms(name: str, model: ModelSpec) -> list[Weight]:
    """Weights of the norms of one query head and of one key head."""
    return [Weight(name=f"{name}.{which}.weight", shape=(model.head_size,)) for which in ("q_norm", "k_norm")]


def feed_forward(
    name: str, model: ModelSpec, width: int, *, up: str = "up_proj", down: str = "down_proj"
) -> list[Weight]:
    """Weights of the MLP: up and down, and a gate if the activation is gated."""
    hidden, bias = model.hidden_size, model.mlp_bias
    weights = linear(f"{name}.gate_proj", width, hidden, bias=bias) if model.gated else []
    weights += linear(f"{name}.{up}", width, hidden, bias=bias)
    weights += linear(f"{name}.{down}", hidden, width, bias=bias, rows=False)
    return weights


def experts(model: ModelSpec) -> list[Weight]:
    """Weights of the router, the routed experts of one layer, and the shared experts."""
    hidden, width, count = model.hidden_size, model.moe_intermediate_size, model.num_experts
    inner = 2 * width if model.gated else width
    weights = [
        Weight(name="mlp.gate.weight", shape=(count, hidden)),
        Weight(name="mlp.experts.gate_up_proj", shape=(inner, hidden), split="expert", copies=count),
        Weight(name="mlp.experts.down_proj", shape=(hidden, width), split="expert", copies=count, dimension=1),
    ]
    if model.shared_width:
        weights += feed_forward("mlp.shared_experts", model, model.shared_width)
    return weights


def token_embedding(model: ModelSpec, vocabulary: int) -> list[Weight]:
    """The token embedding, split by vocabulary, and learned positions, whole on every rank."""
    weights = [Weight(name="embed_tokens.weight", shape=(vocabulary, model.hidden_size), split="tensor")]
    if model.position_embedding == "learned":
        shape = (model.max_position_embeddings, model.hidden_size)
        weights.append(Weight(name="embed_positions.weight", shape=shape))
    return weights


def output(model: ModelSpec, vocabulary: int) -> list[Weight]:
    """The last norm and the output projection, which tied models share with the embedding."""
    weights = norm("norm", model.hidden_size, model)
    if not model.tie_word_embeddings:
        weights.append(Weight(name="lm_head.weight", shape=(vocabulary, model.hidden_size), split="tensor"))
    return weights
