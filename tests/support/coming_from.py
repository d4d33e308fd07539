"""The page docs/coming-from.md, generated from the importers' tables so that the two cannot drift apart."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from launcher.base import registry
from launcher.importers import _trainer
from launcher.importers._table import Row

NAMES = {
    "axolotl": "axolotl",
    "llamafactory": "LLaMA-Factory",
    "trl": "TRL",
    "accelerate": "accelerate",
    "torchtitan": "torchtitan",
    "torchtune": "torchtune",
    "nanotron": "nanotron",
    "megatron_bridge": "Megatron Bridge",
    "deepspeed": "DeepSpeed's ds_config.json",
}
_HEAD = ("| there | here |", "|---|---|")
_REFUSES = "other words are refused"  # The introduction says it of every key.
_SHARED = {*map(id, _trainer.ROWS), *map(id, _trainer.SHARDING)}


INTRODUCTION = """\
# Coming from another program

    launch import axolotl lora.yml                         # prints the words of the same run
    launch import torchtitan config_registry.py --set config=llama3_8b
    launch import trl dpo.yaml --set task=dpo              # a TRL YAML does not name its task
    launch import megatron-bridge llama3.py --recipe mine.yaml

Kinds: `accelerate`, `axolotl`, `llamafactory`, `megatron-bridge`, `nanotron`, `torchtitan`, `torchtune`, `trl` (also
TrainingArguments); the keys of `deepspeed` are last. [own-files.md](own-files.md#other-programs-files) has `hf`,
`megatron` and the four lists in which keys end.

- A key or value without a setting here that changes the maths, the memory or the data is an error, unless `--partial`.
  Keys of logs, files, samples, trackers and kernels with the same maths are left out with "no effect" and the reason.
- A default that differs from ours is set if the file omits its key ("default ...").
- Python is read as text, never run: calls with keywords, assignments, and functions that return a whole configuration,
  from the file or a module next to it. Keep a file that starts from a recipe of its program in that program's tree
  (some torchtitan 0.3.0 recipes are known without it).
- You set the number of GPUs (`cluster.nodes`, `cluster.gpus_per_node`), except for accelerate's files.
- axolotl and LLaMA-Factory files fine-tune on the engines here, which mask, pack and shard; preference tasks use TRL.
- Refused: GaLore, APOLLO, BAdam, images.

The tables (`launcher/importers/tables/`) list the keys with a setting; in parentheses is what differs. A last line has
those that are called the same here.

"""


def page() -> str:
    """The whole of docs/coming-from.md."""
    return INTRODUCTION + tables()


def tables() -> str:
    """Every table with its heading: first the keys that several programs share, then those of each program."""
    parts = ["## Keys of the Trainer (axolotl, LLaMA-Factory, TRL)", table((*_trainer.ROWS, *_trainer.SHARDING))]
    for kind, name in NAMES.items():
        rows: Sequence[Row] = registry.load("importers", kind).TABLE
        parts += [f"## {name}", table(row for row in rows if id(row) not in _SHARED)]
    return "\n\n".join(parts) + "\n"


def table(rows: Iterable[Row]) -> str:
    """A Markdown table of the rows that have a setting here, then the settings that are called as in the program."""
    lines: dict[tuple[str, str], list[str]] = {}
    same: list[str] = []
    for row in rows:
        if row.ours and row.tells:
            if _is_same(row):
                same.append(row.ours)
            else:
                lines.setdefault((row.ours, row.differs), []).extend(row.keys)
    said = "\n".join([*_HEAD, *(_line(keys, *told) for told, keys in lines.items())])
    return f"{said}\n\n{_filled(same)}" if same else said


def _is_same(row: Row) -> bool:
    """True if the last name of the only key is that of the setting, and nothing differs."""
    names = {each.rpartition(".")[2] for each in (*row.keys, row.ours)}
    return len(row.keys) == 1 and len(names) == 1 and row.differs in ("", _REFUSES)


def _filled(same: Sequence[str]) -> str:
    said = f"Called the same here: {', '.join(f'`{each}`' for each in dict.fromkeys(same))}."
    return textwrap.fill(said, 120, break_long_words=False, break_on_hyphens=False)


def _line(keys: Sequence[str], ours: str, differs: str) -> str:
    here = ", ".join(f"`{each}`" for each in ours.split(", "))
    note = "" if differs in ("", _REFUSES) else f" ({differs.replace('|', '/')})"
    return f"| {', '.join(f'`{key}`' for key in dict.fromkeys(keys))} | {here}{note} |"
