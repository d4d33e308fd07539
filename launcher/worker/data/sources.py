"""From ``data.*`` to a corpus: files of token ids, which all ranks map.

Texts are tokenised before the job's ranks start (``launcher.worker.prepare``), and ``tokens.json`` of the run directory
names the folder. Where ranks are started without a launcher rank 0 makes it; the others then wait in a broadcast, in
which rank 0 sends the path or the error, so that all of them end alike.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch.distributed as dist

from launcher.base.errors import LauncherError
from launcher.data import token_folder
from launcher.data.documents import files_of
from launcher.data.prepare import prepared
from launcher.data.token_folder import CACHE, TOKENS, TokenFolder
from launcher.worker.data.corpus import Conversations, Corpus, Synthetic, TokenFiles
from launcher.worker.engine import Context


def corpus(context: Context) -> Corpus:
    """The run's corpus; called by all ranks together.

    Raises:
        DataError: The data are missing, empty, no text, or outside of the model's vocabulary.
    """
    spec = context.spec
    length, vocabulary = spec.sequence_length, spec.model.vocab_size
    if spec.data.source == "synthetic":
        return Synthetic(vocabulary, length, spec.train.seed)
    if spec.data.source == "tokens":
        return TokenFiles(files_of(spec.data), spec.data.token_dtype, length=length, vocabulary=vocabulary)
    found = _tokenised(context)
    if found.marked:
        return Conversations(found.path, found.dtype, length=length, vocabulary=vocabulary, sha256=found.sha256)
    paths = [found.path / TOKENS]
    return TokenFiles(paths, found.dtype, length=length, vocabulary=vocabulary, sha256=found.sha256)


def _tokenised(context: Context) -> TokenFolder:
    """The folder of token ids: as the run directory says, else made by rank 0 while the other ranks wait."""
    answer: list[TokenFolder | LauncherError | None] = [None]
    if context.rank == 0:
        data = context.spec.data
        try:
            answer = [token_folder.pointed(context.directory, data) or prepared(data, _root(context.directory))]
        except LauncherError as error:
            answer = [error]
    dist.broadcast_object_list(answer, src=0)
    if isinstance(answer[0], LauncherError):
        raise answer[0]
    if answer[0] is None:
        raise AssertionError("rank 0 answers with a folder or an error")
    return answer[0]


def _root(directory: Path) -> Path:
    return Path(os.environ[CACHE]) / "tokens" if os.environ.get(CACHE) else directory / "cache"
