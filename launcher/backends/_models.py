"""The models that the worker builds: those that a class of ``transformers`` computes exactly as specified.

The workers build their networks from ``transformers``' classes, whose maths is fixed: a Llama has no dropout, a GPT-2
has biases. A specification is more general, so each family's classes are listed with the values that they compute, and
any other is refused rather than trained as something else. :func:`computed` asks the same for other readers.
"""

from collections.abc import Iterator

from launcher.base import registry
from launcher.base.errors import ConfigError
from launcher.estimate import families
from launcher.estimate.rank import adapters
from launcher.estimate.rank.adapters import module
from launcher.estimate.rank.family import Family, transformers_config
from launcher.spec import RunSpec, edit


def by_megatron(spec: RunSpec) -> list[str]:
    """The way out to Megatron-LM; none where its arguments describe no model of the run's family."""
    traits = families.of(spec.model).traits
    return ["parallel=tp"] if traits.names is not None or traits.pattern is not None else []


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Models that no class computes, folders that cannot be read, adapters of layers that do not exist."""
    yield from _network(spec)
    if transformers_config(families.of(spec.model), spec.model) is None:
        return
    yield from _folders(spec)
    yield from check_adapters(spec)


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


def _folders(spec: RunSpec) -> Iterator[ConfigError]:
    rule = "this version runs no code that comes with weights or a tokenizer"
    yield from edit.refused(spec, "model.trust_remote_code", rule)


def tensor_degrees(spec: RunSpec) -> Iterator[str]:
    """Ways out to tensor parallel degrees that divide the world and the key and value heads."""
    degrees = edit.divisors(spec.model.key_value_heads)
    return edit.nearest(spec, "parallel.tensor", degrees, lambda run: run.gpus % run.model_parallel == 0, limit=2)


# Adapters: ``peft`` finds modules by their names, so each name must be one of the model's, and of no module that is not
# meant.


_NF4_BLOCK = 64  # Values with a constant of their own (QLoRA, arXiv:2305.14314, section 3).


def check_adapters(spec: RunSpec) -> Iterator[ConfigError]:
    """Adapters of layers that do not exist, and variants of LoRA beside what they do not go with."""
    if spec.adapter.name == "none":
        return
    yield from _targets(spec)
    yield from _modules_to_save(spec)
    if spec.adapter.parameters:
        yield from _parameters(spec)
    if spec.adapter.dora:
        yield from _dora(spec)
    if spec.adapter.name == "qlora":
        yield from _quantised(spec)


def _targets(spec: RunSpec) -> Iterator[ConfigError]:
    known = families.linears(spec.model)
    if not known:
        rule = f"no adapter of the layers of the family {spec.model.family} is built in this version"
        yield ConfigError("adapter.name", spec.adapter.name, rule, ["adapter=none"])
        return
    unknown = [target for target in spec.adapter.targets if target not in known]
    if unknown:
        rule = f"the linear layers of this model are {', '.join(known)}; {', '.join(unknown)} are not among them"
        way_out = [edit.override("adapter.targets", known)]
        yield ConfigError("adapter.targets", list(spec.adapter.targets), rule, way_out)


def _parameters(spec: RunSpec) -> Iterator[ConfigError]:
    """``peft`` adds the product of an adapter's matrices to the weights of all experts of a layer for each pass."""
    path, wanted, known = "adapter.parameters", spec.adapter.parameters, families.experts(spec.model)
    none = edit.override(path, ())
    if unknown := [name for name in wanted if name not in known]:
        rule = f"no experts of this model are known by formulas (family {spec.model.family})"
        if known:
            rule = f"the experts' weights of this model are {', '.join(known)}; {', '.join(unknown)} are not among them"
        yield ConfigError(path, list(wanted), rule, [*([edit.override(path, known)] if known else []), none])
    if spec.checkpointing.mode != "full":
        rule = "autograd would keep a sum of weights and adapter for the experts of all layers"
        yield ConfigError("checkpointing.mode", spec.checkpointing.mode, rule, ["checkpointing=full", none])
    rule = "peft adds matrices to the experts' weights themselves, before any input is there"
    yield from edit.refused(spec, "adapter.dropout adapter.dora", rule, none)
    yield from edit.refused(spec, "train.compile", "peft exchanges the experts' weights in each pass, in Python", none)
    rule = "this version cuts no model into stages whose experts' weights have an adapter"
    yield from edit.refused(spec, "parallel.pipeline", rule, none)


def _modules_to_save(spec: RunSpec) -> Iterator[ConfigError]:
    """``peft`` takes every module whose name ends so; a tied table would become two that are no longer equal."""
    wanted, path = spec.adapter.modules_to_save, "adapter.modules_to_save"
    known = _tables(spec)
    unknown = [name for name in wanted if name not in known]
    if not unknown:
        return
    none = edit.override(path, ())
    if not known:
        rule = "the token table is the output projection, too (model.tie_word_embeddings), and peft would train a copy"
        if not spec.model.tie_word_embeddings:
            rule = f"this version trains no modules outside the blocks of the family {spec.model.family}"
        yield ConfigError(path, list(wanted), rule, [none])
        return
    rule = f"beside an adapter {', '.join(known)} may be trained whole, and {', '.join(unknown)} are not among them"
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
        rule = "DoRA's products of weights would count among those of which selective checkpointing keeps every second"
        yield ConfigError("checkpointing.mode", "selective", rule, ["checkpointing=full", "checkpointing=none", back])
    if spec.adapter.name == "qlora" and spec.adapter.dropout:
        rule = "with dropout DoRA multiplies by unpacked weights once more, and keeps all of them until backward"
        yield ConfigError("adapter.dropout", spec.adapter.dropout, rule, ["adapter.dropout=0.0", back])
    yield from edit.refused(spec, "train.compile", "this version compiles no blocks with DoRA", back)


def _quantised(spec: RunSpec) -> Iterator[ConfigError]:
    if spec.model.num_experts and spec.checkpointing.mode != "full":
        rule = "autograd would keep the experts of all layers unpacked, more than they take in 16 bits"
        yield ConfigError("checkpointing.mode", spec.checkpointing.mode, rule, ["checkpointing=full", "adapter=lora"])
    yield from edit.refused(
        spec, "train.compile", "this version compiles no blocks with quantised weights", "adapter=lora"
    )
    if spec.hardware.device == "cpu" and spec.adapter.bits == 4:
        yield from _unpacked_on_the_cpu(spec)


def _unpacked_on_the_cpu(spec: RunSpec) -> Iterator[ConfigError]:
    """Rows that bitsandbytes 0.50.2 silently unpacks wrongly, since it mistakes their constants."""
    model, family, path = spec.model, families.of(spec.model), "adapter.quant_type"
    blocks = (family.block(model, layer) for layer in (0, model.num_hidden_layers - 1))
    packed = (each for block in blocks for each in adapters.weights(block, spec.adapter) if each.quantised)
    if wrong := sorted({str(each.shape[1]) for each in packed if each.shape[1] % _NF4_BLOCK}):
        rule = f"on the CPU bitsandbytes unpacks rows of whole blocks of {_NF4_BLOCK} values, and some have "
        yield ConfigError(path, spec.adapter.quant_type, rule + ", ".join(wrong), [f"{path}=int8", "adapter=lora"])
