"""The models that the worker builds: those that a class of ``transformers`` computes exactly as specified.

The workers build their networks from ``transformers``' classes, whose maths is fixed: a Llama has no dropout, a GPT-2
has biases. A specification is more general, so each family's classes are listed with the values that they compute, and
any other is refused rather than trained as something else. :func:`computed` asks the same for other readers.
"""

from __future__ import annotations

from collections.abc import Iterator

from launcher.backends import _adapters
from launcher.base import registry
from launcher.base.errors import ConfigError
from launcher.estimate import families
from launcher.estimate.rank.family import Family, transformers_config
from launcher.spec import RunSpec, edit


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Models that no class computes, folders that cannot be read, adapters of layers that do not exist."""
    yield from _network(spec)
    if transformers_config(families.of(spec.model), spec.model) is None:
        return
    yield from _folders(spec)
    yield from _adapters.check(spec)


def computed(spec: RunSpec) -> bool:
    """True if a class of ``transformers`` computes the model."""
    return next(_network(spec), None) is None


def shared_latents(spec: RunSpec, path: str) -> Iterator[ConfigError]:
    """Latent attention whose sequences ranks share, which the worker's attention over ranks has not met."""
    degree = edit.value_at(spec, path)
    if spec.model.kv_lora_rank and degree != 1:
        rule = (
            "the estimate does not know what multi-head latent attention (model.kv_lora_rank) keeps where ranks share"
            " a sequence"
        )
        yield ConfigError(path, degree, rule, [edit.override(path, 1), "parallel=cp"])


def _network(spec: RunSpec) -> Iterator[ConfigError]:
    family = families.of(spec.model)
    if transformers_config(family, spec.model) is not None:
        yield from family.not_computed(spec)
        return
    rule = f"backend={spec.backend.name} builds the families {', '.join(_built(spec))} in this version"
    yield ConfigError("model.family", spec.model.family, rule, ["parallel=tp", "script=path/to/train.py"])


def _built(spec: RunSpec) -> list[str]:
    """Return the shipped families that a class of ``transformers`` computes, by their number of model types."""
    found: dict[str, Family] = {name: registry.load("families", name) for name in registry.shipped("families")}
    built = [name for name, family in found.items() if family.transformers_config(spec.model) is not None]
    return sorted(built, key=lambda name: -len(found[name].traits.model_types))


def _folders(spec: RunSpec) -> Iterator[ConfigError]:
    model = spec.model
    if model.trust_remote_code:
        rule = "this version runs no code that comes with weights or a tokenizer"
        yield ConfigError("model.trust_remote_code", True, rule, ["model.trust_remote_code=false"])


def tensor_degrees(spec: RunSpec) -> Iterator[str]:
    """Ways out to tensor parallel degrees that divide the world and the key and value heads."""
    degrees = edit.divisors(spec.model.key_value_heads)
    return edit.nearest(spec, "parallel.tensor", degrees, lambda run: run.gpus % run.model_parallel == 0, limit=2)
