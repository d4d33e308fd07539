"""The model and tokenizer from which a run begins that names none: written once, as ``transformers`` loads them.

TRL's trainers load their model, and for DPO and KTO the reference model, from a folder. Where ``model.weights`` is
null rank 0 writes one, with the values that every other engine of the launcher starts from.
"""

from typing import Any

import torch
import torch.distributed as dist

from launcher.data.template import template
from launcher.data.tokenizer import of_transformers
from launcher.worker import files
from launcher.worker.engine import Context
from launcher.worker.model import initial
from launcher.worker.model.network import network, retie


def tokenizer(context: Context) -> Any:
    """The tokenizer of ``data.tokenizer``, with the chat template of ``data.template``."""
    data = context.spec.data
    made = of_transformers(data.tokenizer, data.roles)
    if data.template is not None or made.chat_template is None:
        made.chat_template = template(data).text
    if made.pad_token is None:
        made.pad_token = made.eos_token
    return made


def model(context: Context) -> None:
    """Write ``start/`` of the run directory where the run has no weights of its own; all ranks wait for it."""
    folder = context.directory / "start"
    if context.rank == 0 and context.spec.model.weights is None and not folder.is_dir():
        partial = folder.with_suffix(".partial")
        made = network(context.spec.model, torch.float32)
        made.to_empty(device="cpu")
        retie(made)
        initial.fill(made, context.spec.train.seed)
        made.config.architectures = [type(made).__name__]
        made.save_pretrained(partial)
        tokenizer(context).save_pretrained(partial)
        files.finish_directory(partial, folder)
    dist.barrier()
