"""Models that Megatron-LM trains and no family here describes: their lists are refused by the model's name.

Their sizes are spelt as a GPT's are, so that an estimate would be given, and be of another model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from launcher.errors import ConfigError
from launcher.importers._megatron_reader import Reader

_VISION_LANGUAGE = "a model of images and text"
_RETRIEVAL = "a retriever (inverse cloze task)"
_HYBRID = "a hybrid of attention and Mamba layers"
_REINFORCED = "reinforcement learning (GRPO), with a model that generates beside the one that learns"

ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    _VISION_LANGUAGE: (
        "allow-missing-vision-projection-checkpoint", "disable-vision-class-token", "freeze-LM", "freeze-ViT",
        "image-tag-type", "language-model-type", "max-num-tiles", "mrope-section", "pixel-shuffle", "prompt-path",
        "use-image-tag", "use-tiling", "vision-model-type", "vision-language-*",
    ),
    "an image model": (
        "classes-fraction", "data-per-class-fraction", "dino-*", "head-lr-mult", "img-h", "img-w", "iter-per-epoch",
        "mask-factor", "mask-type", "num-channels", "num-classes", "patch-dim", "swin-backbone-type",
        "vision-backbone-type", "vision-pretraining", "vision-pretraining-type",
    ),
    "Retro, which retrieves neighbours of its text": ("retro-*",),
    _RETRIEVAL: (
        "bert-load", "biencoder-*", "block-data-path", "embedding-path", "evidence-data-path", "ict-*", "indexer-*",
        "query-in-block-prob", "retriever-*", "titles-data-path", "use-one-sent-docs",
    ),
    "T5, an encoder and a decoder": (
        "decoder-num-layers", "decoder-seq-length", "encoder-pipeline-model-parallel-size",
        "encoder-tensor-model-parallel-size", "pipeline-model-parallel-split-rank",
    ),
    "BERT": (
        "bert-embedder-type", "bert-no-binary-head", "mask-prob", "output-bert-embeddings", "short-seq-prob",
    ),
    _HYBRID: (
        "disable-mamba-mem-eff-path", "hybrid-attention-ratio", "hybrid-layer-pattern", "hybrid-mlp-ratio",
        "hybrid-override-pattern", "is-hybrid-model", "mamba-*", "mtp-hybrid-override-pattern",
    ),
    "a model with another attention (gated delta net, DeepSeek's sparse attention)": (
        "experimental-attention-variant", "linear-attention-freq", "linear-attention-type",
    ),
    "a model whose layers differ in size": (
        "heterogeneous-layers-config-encoded-json", "heterogeneous-layers-config-path",
    ),
    _REINFORCED: (
        "grpo-*", "langrl-*", "no-rl-*", "perform-rl-step", "refit-method", "rl-*",
    ),
}  # fmt: skip
"""Arguments that only such a model has; a name that ends in ``*`` is a beginning."""

_TRAINS_NOTHING = "a program that trains nothing"
_PROGRAMS = (
    (r"vlm|multimodal|llava|mimo|clip", _VISION_LANGUAGE),
    (r"vision|vit\b|dino|imagenet", "an image model"),
    (r"retro", "Retro, which retrieves neighbours of its text"),
    (r"(^|_)ict|biencoder|realm|retriev", _RETRIEVAL),
    (r"t5", "T5, an encoder and a decoder"),
    (r"bert", "BERT"),
    (r"mamba|hybrid", _HYBRID),
    (r"(^|_)(rl|grpo|ppo|dpo)(_|$)", _REINFORCED),
    (r"inference|generat|preprocess|merge|convert|(^|_)eval|quantize|export|(^|_)server", _TRAINS_NOTHING),
)
"""Programs by a part of their names: ``pretrain_t5.py``, ``pretrain_vision_classify.py``."""

_ORDER = (*ARGUMENTS, _TRAINS_NOTHING)
_RULE = "and launch reads lists of decoders alone (GPT, Llama, mixtures of experts, DeepSeek)"


def refuse(reader: Reader) -> None:
    """Collect an error where the list is of a model that no family here describes; its program says most of it."""
    program = reader.parsed.program
    found: dict[str, tuple[str, object]] = {}
    if program is not None and (kind := _of_program(program)) is not None:
        found[kind] = ("the program", program)
    for name, argument in reader.arguments.items():
        kind = _of_argument(reader, name)
        if kind is not None:
            found.setdefault(kind, (f"--{argument.spelling}", argument.value))
            reader.leave(name, f"the list is of {kind}")
    if found:
        kind = min(found, key=lambda kind: (found[kind][0] != "the program", _ORDER.index(kind)))
        where, value = found[kind]
        way_out = [f"script={program}"] if program is not None and program.endswith(".py") else ["script=FILE.py"]
        reader.errors.append(ConfigError(f"{reader.path}: {where}", value, f"it is of {kind}, {_RULE}", way_out))


def _of_program(program: str) -> str | None:
    stem = program.removesuffix(".py").replace("\\", "/").rpartition("/")[2].rpartition(".")[2].lower()
    return next((kind for pattern, kind in _PROGRAMS if re.search(pattern, stem)), None)


def _of_argument(reader: Reader, name: str) -> str | None:
    for kind, names in ARGUMENTS.items():
        if any(name == known or (known.endswith("*") and name.startswith(known[:-1])) for known in names):
            return kind
    value = reader.arguments[name].value
    if name == "tokenizer-type" and str(value).startswith("BertWordPiece"):
        return "BERT"
    if name == "tokenizer-type" and "Multimodal" in str(value):
        return _VISION_LANGUAGE
    if name == "position-embedding-type" and value == "mrope":
        return _VISION_LANGUAGE
    if name == "spec" and re.search(r"mamba|hybrid", str(value)):
        return _HYBRID
    if name == "vocab-file" and not {"merge-file", "tokenizer-type", "vocab-size", "padded-vocab-size"} & set(
        reader.arguments
    ):
        return "BERT"  # GPT-2's tokenizer, a GPT's default, has merges beside its vocabulary.
    return None
