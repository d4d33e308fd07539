"""accelerate's YAML (``accelerate config``): keys of accelerate 1.15 (``commands/config``, ``utils/dataclasses.py``).

It says ranks, number format and what shards the model; model, data and batch are those of the script that it starts.
"""

from launcher.config.ledger import Ledger
from launcher.importers import Imported, _trainer
from launcher.importers._reading import KeyReader, content_of, flat
from launcher.importers._table import apply, imported, rows


def read(text: str, path: str) -> Imported:
    """Read an accelerate configuration; ``path`` is for messages; raises ConfigErrors where the text is none."""
    content = content_of(text, path, "a configuration of accelerate")
    reading = KeyReader(path=path, lenient=True, file="accelerate's YAML", ledger=Ledger(flat(content)))
    apply(TABLE, reading)
    reading.choose.setdefault("parallel", "ddp")
    if reading.choose["parallel"] == "3d":  # Whose degrees are others.
        reading.settings = {"parallel.tensor": 1, "parallel.pipeline": 1, **reading.settings}
    return imported(reading, str(reading.choose["parallel"]), "accelerate")


def _ranks(reading: KeyReader, key: str) -> None:
    ranks, nodes = reading.count(key, 1), reading.count("num_machines", 1) or 1
    if ranks is not None and ranks % nodes:
        reading.wrong(key, f"is a multiple of num_machines, {nodes}")
    elif ranks is not None:
        reading.say(key, {"cluster.nodes": nodes, "cluster.gpus_per_node": ranks // nodes})
        reading.ledger.say("num_machines", "cluster.nodes")


TABLE = rows("accelerate", _ranks, _trainer.deepspeed, fsdp=_trainer.FSDP)
