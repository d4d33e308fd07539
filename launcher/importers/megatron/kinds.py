"""Lists that are refused by what they are: models that no family here describes, and programs that train nothing.

Their sizes are spelt as a GPT's are, so that an estimate would be given, and be of another model or of no run.
"""

import re
from collections.abc import Iterable

from launcher.base.errors import ConfigError
from launcher.importers.megatron.arguments import ByName, names_table
from launcher.importers.megatron.reader import Reader

_VISION_LANGUAGE = "a model of images and text"
_RETRIEVAL = "a retriever (inverse cloze task)"
_HYBRID = "a hybrid of attention and Mamba layers"
_REINFORCED = "reinforcement learning (GRPO), with a model that generates beside the one that learns"
ARGUMENTS = names_table("models")  # Arguments that only such a model has; a name that ends in ``*`` is a beginning.
_INFERENCE = "inference, which generates text"
_EVALUATION = "an evaluation of a trained model"
_CONVERSION = "a conversion of a checkpoint"
_PREPARATION = "a preparation of data"
TRAINS_NOTHING = names_table("trains_nothing")
"""Arguments that only such a program has; a name that ends in ``*`` is a beginning."""

_MODES = (
    (r"infer|generat|(^|_)(server|serve|serving|sample|chat|decode)(_|$)", _INFERENCE),
    (r"(^|_)eval|zero_?shot|(^|_)(mmlu|lambada)(_|$)", _EVALUATION),
    (r"merge|conver(t|sion)|quantize|export|to_universal|checkpoint_util", _CONVERSION),
    (r"preprocess|tokenize_", _PREPARATION),
)
"""Programs that train nothing, and what ``MODE`` of a functional test says, by a part of their names."""

_PROGRAMS = (
    (r"vlm|multimodal|llava|mimo|clip", _VISION_LANGUAGE),
    (r"vision|vit\b|dino|imagenet", "an image model"),
    (r"retro", "Retro, which retrieves neighbours of its text"),
    (r"(^|_)ict|biencoder|realm|retriev", _RETRIEVAL),
    (r"t5", "T5, an encoder and a decoder"),
    (r"bert", "BERT"),
    (r"mamba|hybrid", _HYBRID),
    (r"(^|_)(rl|grpo|ppo|dpo)(_|$)", _REINFORCED),
)
"""Programs by a part of their names: ``pretrain_t5.py``, ``pretrain_vision_classify.py``."""

_VALUES = (
    ("tokenizer-type", r"\ABertWordPiece", "BERT"),
    ("tokenizer-type", r"Multimodal", _VISION_LANGUAGE),
    ("position-embedding-type", r"\Amrope\Z", _VISION_LANGUAGE),
    ("spec", r"mamba|hybrid", _HYBRID),
)
"""Arguments whose value says the model."""

_TRAINING = re.compile(r"(pre|post)?train|fine_?tun|sft")
"""How the names of programs begin that train, whatever else they do."""

_PLACE = "the program"
_ORDER = (*TRAINS_NOTHING, *ARGUMENTS)


def refuse(reader: Reader, *, hybrid: bool = False) -> None:
    """Collect an error where the list is of a model that no family here describes, or of a program that trains nothing.

    The program's name, or the mode of a test, says most of it. A ``hybrid`` whose letters were read is none of them.
    """
    program = reader.parsed.program
    found: dict[str, tuple[str, object]] = {}
    if program is not None and (kind := _of_program(program)) is not None:
        found[kind] = (_PLACE, program)
    mode = reader.parsed.other_keys.get("MODE")
    if isinstance(mode, str) and (kind := _matching(_MODES, mode.lower())) is not None:
        found.setdefault(kind, ("MODE", mode))
        reader.ledger.leave("MODE", f"the list is of {kind}")
    for name, argument in reader.arguments.items():
        kind = _of_argument(reader, name)
        if kind is not None and not (hybrid and kind == _HYBRID):
            found.setdefault(kind, (f"--{argument.spelling}", argument.value))
            reader.leave(name, f"the list is of {kind}")
    if hybrid:
        found.pop(_HYBRID, None)
    if found:
        kind = min(found, key=lambda kind: (found[kind][0] != _PLACE, _ORDER.index(kind)))
        where, value = found[kind]
        way_out = [f"script={program}"] if program is not None and program.endswith(".py") else ["script=FILE.py"]
        reader.errors.append(ConfigError(f"{reader.path}: {where}", value, _rule(kind), way_out))


def _rule(kind: str) -> str:
    if kind in TRAINS_NOTHING:
        return f"it is {kind}: nothing is trained there, and launch reads lists of trainings alone"
    return f"it is of {kind}, and launch reads lists of decoders alone (GPT, Llama, mixtures of experts, DeepSeek)"


def _of_program(program: str) -> str | None:
    stem = program.removesuffix(".py").replace("\\", "/").rpartition("/")[2].rpartition(".")[2].lower()
    return (None if _TRAINING.match(stem) else _matching(_MODES, stem)) or _matching(_PROGRAMS, stem)


def _matching(table: Iterable[tuple[str, str]], text: str) -> str | None:
    return next((kind for pattern, kind in table if re.search(pattern, text)), None)


def _of_argument(reader: Reader, name: str) -> str | None:
    kind = _KINDS.get(name)
    value = reader.arguments[name].value
    if kind is not None:
        return None if value is False else kind
    if name == "task" and reader.parsed.program in ("main.py", "tasks.main"):  # Of Megatron-LM's tasks.
        return _EVALUATION
    for known, pattern, kind in _VALUES:
        if name == known and re.search(pattern, str(value)):
            return kind
    given = {"merge-file", "tokenizer-type", "vocab-size", "padded-vocab-size"} & set(reader.arguments)
    if name == "vocab-file" and not given:
        return "BERT"  # GPT-2's tokenizer, a GPT's default, has merges beside its vocabulary.
    return None


_KINDS = ByName((name, kind) for kind, names in (*TRAINS_NOTHING.items(), *ARGUMENTS.items()) for name in names)
