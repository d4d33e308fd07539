"""The model and tokenizer from which a run begins that names none: written once, as ``transformers`` loads them.

TRL's trainers load their model, and for DPO and KTO the reference model, from a folder. Where ``model.weights`` is
null rank 0 writes one, with the values that every other engine of the launcher starts from.
"""

from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from launcher.data import hub
from launcher.data.template import template
from launcher.data.tokenizer import give
from launcher.worker import files
from launcher.worker.engine import Context
from launcher.worker.model import initial
from launcher.worker.model.network import network, retie

_END = "\0"  # A byte that no text holds stands for its end.


def tokenizer(context: Context) -> Any:
    """The tokenizer of ``data.tokenizer``, with the chat template of ``data.template``."""
    data = context.spec.data
    if data.tokenizer == "bytes":
        made = byte_tokenizer()
    else:
        folder = hub.tokenizer_folder(data.tokenizer) or data.tokenizer
        made = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        give(made, data.roles)
    if data.template is not None or made.chat_template is None:
        made.chat_template = template(data).text
    if made.pad_token is None:
        made.pad_token = made.eos_token
    return made


def byte_tokenizer() -> Any:
    """A tokenizer of ``transformers`` with one id for each value of a byte of UTF-8, as ``data.tokenizer=bytes``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = bytes_to_unicode()
    words = Tokenizer(models.BPE(vocab={letter: byte for byte, letter in letters.items()}, merges=[]))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words.decoder = decoders.ByteLevel()
    end = letters[ord(_END)]
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token=end, pad_token=end)


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
