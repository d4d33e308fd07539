"""Lists that are refused by what they are: models that no family here describes, and programs that train nothing.

Their sizes are spelt as a GPT's are, so that an estimate would be given, and be of another model or of no run.
"""

import re
from collections.abc import Mapping

from launcher.base.errors import ConfigError
from launcher.importers.megatron.arguments import TABLES, ByName, names_table
from launcher.importers.megatron.reader import ArgumentReader

_HYBRID = "a hybrid of attention and Mamba layers"
_EVALUATION = "an evaluation of a trained model"
ARGUMENTS = names_table("models")  # Arguments that only such a model has; a name that ends in ``*`` is a beginning.
TRAINS_NOTHING = names_table("trains_nothing")
"""Arguments that only such a program has; a name that ends in ``*`` is a beginning."""

_TRAINING = re.compile(r"(pre|post)?train|fine_?tun|sft")
"""How the names of programs begin that train, whatever else they do."""

_PLACE = "the program"
_ORDER = (*TRAINS_NOTHING, *ARGUMENTS)


def refuse(reader: ArgumentReader, *, hybrid: bool = False) -> None:
    """Collect an error where the list is of a model that no family here describes, or of a program that trains nothing.

    The program's name, or the mode of a test, says most of it. A ``hybrid`` whose letters were read is none of them.
    """
    program = reader.parsed.program
    found: dict[str, tuple[str, object]] = {}
    if program is not None and (kind := _of_program(program)) is not None:
        found[kind] = (_PLACE, program)
    mode = reader.parsed.other_keys.get("MODE")
    if isinstance(mode, str) and (kind := _matching(TABLES["modes"], mode.lower())) is not None:
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
    return (None if _TRAINING.match(stem) else _matching(TABLES["modes"], stem)) or _matching(TABLES["programs"], stem)


def _matching(table: Mapping[str, str], text: str) -> str | None:
    return next((kind for pattern, kind in table.items() if re.search(pattern, text)), None)


def _of_argument(reader: ArgumentReader, name: str) -> str | None:
    kind = _KINDS.get(name)
    value = reader.arguments[name].value
    if kind is not None:
        return None if value is False else kind
    if name == "task" and reader.parsed.program in ("main.py", "tasks.main"):  # Of Megatron-LM's tasks.
        return _EVALUATION
    for known, pattern, kind in TABLES["values"]:
        if name == known and re.search(pattern, str(value)):
            return str(kind)
    given = {"merge-file", "tokenizer-type", "vocab-size", "padded-vocab-size"} & set(reader.arguments)
    if name == "vocab-file" and not given:
        return "BERT"  # GPT-2's tokenizer, a GPT's default, has merges beside its vocabulary.
    return None


_KINDS = ByName((name, kind) for kind, names in (*TRAINS_NOTHING.items(), *ARGUMENTS.items()) for name in names)
