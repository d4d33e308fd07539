"""The page docs/coming-from.md, generated from the importers' tables so that the two cannot drift apart."""

from __future__ import annotations

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
_HEAD = ("| there | here | what differs |", "|---|---|---|")
_SHARED = {*map(id, _trainer.ROWS), *map(id, _trainer.SHARDING)}


INTRODUCTION = """\
# Coming from another program

    launch import axolotl lora.yml                         # prints the words of the same run
    launch import torchtitan config_registry.py --set config=llama3_8b
    launch import trl dpo.yaml --set task=dpo              # a TRL YAML does not name its task
    launch import megatron-bridge llama3.py --recipe mine.yaml

The kinds are `accelerate`, `axolotl`, `llamafactory`, `megatron-bridge`, `nanotron`, `torchtitan`, `torchtune` and
`trl`, which also reads TrainingArguments. The keys of `deepspeed` are at the end of this page;
[own-files.md](own-files.md#other-programs-files) covers `hf` and `megatron`. Python is read as text, never run: calls
with keywords, assignments, and functions that return a whole configuration, from the same file or from a module next to
it as its import says. Keep a file that starts from a recipe of the program in the program's own tree (some torchtitan
0.3.0 recipes are known without it). Every key ends in one of four lists. A key that changes the maths, the memory or
the data and has no setting here is an error, unless `--partial`.

- The tables list the keys that have a setting here. Keys of logs, files, samples, trackers and kernels with the same
  maths are left out with "no effect" and the reason; all others are refused by name.
- A key whose setting `launch show GROUP` does not list is refused by the name of that setting.
- If a file omits a key whose default in its program differs from ours, that default is set ("left out it is ...").
- You set the number of GPUs (`cluster.nodes`, `cluster.gpus_per_node`), except for accelerate's files.
- axolotl and LLaMA-Factory files fine-tune on the engines here, which mask, pack and shard; preference tasks use TRL.
- Frozen 8-bit weights, GaLore, APOLLO, BAdam, adapters other than LoRA, and images are refused by name.

The tables are generated from the importers (`launcher/importers/`).

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
    """A Markdown table of the rows that have a setting here, one line per setting."""
    lines: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.ours and row.tells:
            lines.setdefault((row.ours, row.differs), []).extend(row.keys)
    return "\n".join([*_HEAD, *(_line(keys, *said) for said, keys in lines.items())])


def _line(keys: Sequence[str], ours: str, differs: str) -> str:
    here = ", ".join(f"`{each}`" for each in ours.split(", "))
    return f"| {', '.join(f'`{key}`' for key in dict.fromkeys(keys))} | {here} | {differs.replace('|', '/')} |"
