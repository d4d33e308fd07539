"""Tensor parallelism: the weights of a layer are split by output or input features (arXiv:1909.08053)."""

from collections.abc import Iterator

from launcher.base.errors import ConfigError
from launcher.estimate.rank.view import RankView, part_of
from launcher.spec import RunSpec, edit


def apply(view: RankView, spec: RunSpec) -> RankView:
    """Narrow the rank's share of every split weight; inside an expert by ``parallel.expert_tensor``."""
    if spec.parallel.tensor == 1 and spec.parallel.expert_tensor in (None, 1):
        return view
    return view._replace(
        tensor=part_of(view.tensor, spec.parallel.tensor),
        expert_tensor=part_of(view.expert_tensor, spec.parallel.expert_tensor or spec.parallel.tensor),
    )


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of a degree that leaves no whole heads or no equal parts of the MLP's width."""
    if indivisible := _indivisible(spec):
        degree, path = spec.parallel.tensor, "parallel.tensor"
        rule = f"tensor parallel ranks must divide the model's {' and '.join(indivisible)}"
        candidates = edit.divisors(spec.model.num_attention_heads)
        yield ConfigError(path, degree, rule, edit.nearest(spec, path, candidates, lambda run: not _indivisible(run)))
    inside = spec.parallel.expert_tensor or spec.parallel.tensor
    if spec.model.num_experts and spec.model.moe_intermediate_size % inside:
        path, width = "parallel.expert_tensor", spec.model.moe_intermediate_size
        rule = f"tensor parallel ranks inside an expert must divide its width {width} (model.moe_intermediate_size)"
        candidates = edit.divisors(width)
        legal = edit.nearest(spec, path, candidates, lambda run: width % (run.parallel.expert_tensor or 1) == 0)
        yield ConfigError(path, inside, rule, legal)


def _indivisible(spec: RunSpec) -> list[str]:
    """The sizes that the degree does not divide, in words.

    Key and value heads are repeated if there are fewer of them than ranks, so either number may divide the other.
    """
    model, degree = spec.model, spec.parallel.tensor
    heads, key_value = model.num_attention_heads, model.key_value_heads
    found = [f"{heads} attention heads"] if heads % degree else []
    if not model.kv_lora_rank and key_value != heads and key_value % degree and degree % key_value:
        found.append(f"{key_value} key and value heads (or be a multiple of them)")
    if model.intermediate_size % degree:
        found.append(f"intermediate size {model.intermediate_size}")
    return found


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """A warning of a tensor parallel group that does not fit in one node."""
    degree, per_node = spec.parallel.tensor, spec.cluster.gpus_per_node
    if degree == 1 or spec.cluster.nodes == 1 or per_node % degree == 0:
        return
    rule = (
        f"a tensor parallel group does not fit in one node of {per_node}, and every layer waits for its all-reduce:"
        " the network between nodes is many times slower than the links inside one"
    )
    candidates = [divisor for divisor in edit.divisors(per_node) if divisor > 1]
    legal = edit.nearest(spec, "parallel.tensor", candidates, lambda run: not _indivisible(run))
    yield ConfigError("parallel.tensor", degree, rule, legal)
