"""The models that the worker builds: those that a class of ``transformers`` computes exactly as specified.

The workers build their networks from ``transformers``' classes, whose maths is fixed: a Llama has no dropout, a GPT-2
has biases. A specification is more general, so each family's classes are listed with the values that they compute, and
any other is refused rather than trained as something else. :func:`computed` answers the same for other readers.
"""

from collections.abc import Iterator

from launcher.base import registry
from launcher.base.errors import ConfigError
from launcher.estimate import families
from launcher.estimate.rank import adapters
from launcher.estimate.rank.adapters import module
from launcher.estimate.rank.family import Family, transformers_config
from launcher.spec import RunSpec, edit
from launcher.spec.parse import closest


def by_megatron(spec: RunSpec) -> list[str]:
    """The way out to Megatron-LM; empty if its arguments cannot describe the run's model family."""
    traits = families.of(spec.model).traits
    return ["parallel=tp"] if traits.names is not None or traits.pattern is not None else []


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for models that no class computes, code shipped with weights, and adapters of missing layers."""
    yield from _network(spec)
    if transformers_config(families.of(spec.model), spec.model) is None:
        return
    rule = "this version does not run code shipped with weights or a tokenizer"
    yield from edit.refused(spec, "model.trust_remote_code", rule)
    yield from check_adapters(spec)


def computed(spec: RunSpec) -> bool:
    """True if a class of ``transformers`` computes the model."""
    return next(_network(spec), None) is None


def shared_latents(spec: RunSpec, path: str) -> Iterator[ConfigError]:
    """Errors for latent attention where ranks share a sequence: no estimate covers it."""
    degree = edit.value_at(spec, path)
    if spec.model.kv_lora_rank and degree != 1:
        rule = (
            "the estimate does not know what multi-head latent attention (model.kv_lora_rank) saves when ranks share"
            " a sequence"
        )
        yield ConfigError(path, degree, rule, [edit.override(path, 1), "parallel=cp"])


def _network(spec: RunSpec) -> Iterator[ConfigError]:
    family = families.of(spec.model)
    if transformers_config(family, spec.model) is not None:
        yield from family.not_computed(spec)
        if family.traits.choices is None and (extra := spec.model.extra):
            rule = "transformers' class gives the shared expert whole widths of the routed ones"
            yield ConfigError("model.extra", extra, rule, ["parallel=tp", edit.override("model.extra", {})])
        return
    rule = f"backend={spec.backend.name} builds the families {', '.join(_built(spec))} in this version"
    yield ConfigError("model.family", spec.model.family, rule, ["parallel=tp", "script=path/to/train.py"])


def _built(spec: RunSpec) -> list[str]:
    found: dict[str, Family] = {name: registry.load("families", name) for name in registry.shipped("families")}
    built = [name for name, family in found.items() if family.transformers_config(spec.model) is not None]
    return sorted(built, key=lambda name: -len(found[name].traits.model_types))


def tensor_degrees(spec: RunSpec) -> Iterator[str]:
    """Ways out: the nearest tensor parallel degrees that divide the world and the key and value heads."""
    degrees = edit.divisors(spec.model.key_value_heads)
    return edit.nearest(spec, "parallel.tensor", degrees, lambda run: run.gpus % run.model_parallel == 0, limit=2)


# Adapters: ``peft`` matches modules by name, so each name must match a module of the model, and only the one meant.


_NF4_BLOCK = 64  # Values that share one scaling constant (QLoRA, arXiv:2305.14314, section 3).


def check_adapters(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for adapters of missing layers, and for LoRA variants with settings they do not support."""
    if spec.adapter.name == "none":
        return
    yield from _targets(spec)
    yield from _modules_to_save(spec)
    if spec.adapter.parameters:
        yield from _parameters(spec)
    if spec.adapter.dora:
        yield from _dora(spec)
    if spec.adapter.bits:
        yield from _quantised(spec)


def _targets(spec: RunSpec) -> Iterator[ConfigError]:
    known = families.linears(spec.model)
    if not known:
        rule = f"this version builds no adapters for the family {spec.model.family}"
        yield ConfigError("adapter.name", spec.adapter.name, rule, ["adapter=none"])
        return
    targets = spec.adapter.targets
    unknown = [target for target in targets if target not in known]
    if unknown:
        rule = f"the linear layers of this model are {', '.join(known)}; not among them: {', '.join(unknown)}"
        meant = dict.fromkeys(near for name in targets for near in (name, *closest(name, known)[:1]) if near in known)
        ways = [edit.override("adapter.targets", [*names]) for names in dict.fromkeys((tuple(meant), known)) if names]
        yield ConfigError("adapter.targets", list(targets), rule, ways)


def _parameters(spec: RunSpec) -> Iterator[ConfigError]:
    """``peft`` adds the product of an adapter's matrices to the weights of all experts of a layer for each pass."""
    path, wanted, known = "adapter.parameters", spec.adapter.parameters, families.experts(spec.model)
    none = edit.override(path, ())
    if unknown := [name for name in wanted if name not in known]:
        rule = f"the formulas know no experts in this model (family {spec.model.family})"
        if known:
            rule = f"the experts' weights of this model are {', '.join(known)}; not among them: {', '.join(unknown)}"
        yield ConfigError(path, list(wanted), rule, [*([edit.override(path, known)] if known else []), none])
    if spec.checkpointing.mode != "full":
        rule = "autograd would save the sum of weights and adapter for the experts of every layer"
        yield ConfigError("checkpointing.mode", spec.checkpointing.mode, rule, ["checkpointing=full", none])
    rule = "peft adds the adapter to the experts' weights themselves, before any input arrives"
    yield from edit.refused(spec, "adapter.dropout adapter.dora", rule, none)
    yield from edit.refused(spec, "train.compile", "peft swaps the experts' weights in Python on each pass", none)
    rule = "this version does not split a model with an adapter on experts' weights into pipeline stages"
    yield from edit.refused(spec, "parallel.pipeline", rule, none)


def _modules_to_save(spec: RunSpec) -> Iterator[ConfigError]:
    """``peft`` copies every module whose name ends this way, so a tied table would become two that diverge."""
    wanted, path = spec.adapter.modules_to_save, "adapter.modules_to_save"
    known = _tables(spec)
    unknown = [name for name in wanted if name not in known]
    if not unknown:
        return
    none = edit.override(path, ())
    if not known:
        rule = "the token table is also the output projection (model.tie_word_embeddings), and peft would train a copy"
        if not spec.model.tie_word_embeddings:
            rule = f"for the family {spec.model.family} this version trains no modules outside the blocks"
        yield ConfigError(path, list(wanted), rule, [none])
        return
    rule = f"with an adapter only {', '.join(known)} can be trained in full; not among them: {', '.join(unknown)}"
    yield ConfigError(path, list(wanted), rule, [edit.override(path, known), none])


def _tables(spec: RunSpec) -> tuple[str, ...]:
    family, model = families.of(spec.model), spec.model
    if model.tie_word_embeddings or family.traits.transposed:
        return ()
    outside = [*family.embedding(model, model.vocab_size), *family.head(model, model.vocab_size)]
    return tuple(module(weight) for weight in outside if len(weight.shape) == 2)


def _dora(spec: RunSpec) -> Iterator[ConfigError]:
    back = "adapter.dora=false"
    if spec.checkpointing.mode == "selective":
        rule = "selective checkpointing saves every second matrix product and would count DoRA's products of weights"
        yield ConfigError("checkpointing.mode", "selective", rule, ["checkpointing=full", "checkpointing=none", back])
    if spec.adapter.bits and spec.adapter.dropout:
        rule = "with dropout DoRA multiplies by the unpacked weights once more and saves all of them for backward"
        yield ConfigError("adapter.dropout", spec.adapter.dropout, rule, ["adapter.dropout=0.0", back])
    yield from edit.refused(spec, "train.compile", "this version does not compile blocks with DoRA", back)


def _quantised(spec: RunSpec) -> Iterator[ConfigError]:
    if spec.model.num_experts and spec.checkpointing.mode != "full":
        rule = "autograd would save the unpacked experts of every layer, more than they take in 16 bits"
        yield ConfigError("checkpointing.mode", spec.checkpointing.mode, rule, ["checkpointing=full", "adapter=lora"])
    yield from edit.refused(
        spec, "train.compile", "this version does not compile blocks with quantised weights", "adapter=lora"
    )
    if spec.hardware.device == "cpu" and spec.adapter.bits == 4:
        yield from _unpacked_on_the_cpu(spec)


def _unpacked_on_the_cpu(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for rows that bitsandbytes 0.50.2 silently unpacks with the wrong constants."""
    model, family, path = spec.model, families.of(spec.model), "adapter.quant_type"
    blocks = (family.block(model, layer) for layer in (0, model.num_hidden_layers - 1))
    packed = (each for block in blocks for each in adapters.weights(block, spec.adapter) if each.quantised)
    if wrong := sorted({str(each.shape[1]) for each in packed if each.shape[1] % _NF4_BLOCK}):
        rule = f"on the CPU bitsandbytes unpacks only rows of whole {_NF4_BLOCK}-value blocks; this model has rows of "
        yield ConfigError(path, spec.adapter.quant_type, rule + ", ".join(wrong), [f"{path}=int8", "adapter=lora"])
