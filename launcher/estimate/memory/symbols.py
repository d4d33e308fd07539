"""The legend: what each symbol of a formula stands for, once for all formula files.

Single letters are those of the field (arXiv:2205.05198, arXiv:1910.02054); where it has none a word is used. Sizes in
bytes are of one element and begin with ``z``; words such as ``shard`` count elements, and ``k`` counts bytes.
"""

from __future__ import annotations

SYMBOLS: dict[str, str] = {
    # Sizes of the model and of a step.
    "b": "sequences of a micro-batch",
    "s": "tokens of a sequence",
    "h": "hidden size, or this rank's part of it",
    "a": "attention heads",
    "kv": "key and value heads",
    "q": "elements of all queries of a token",
    "kv_size": "elements of all keys and values of a token",
    "L": "blocks on this rank",
    "V": "entries of the vocabulary whose logits are here, padding included",
    "r": "rank of the adapter",
    "m": "micro-batches of an optimizer step",
    "tok": "tokens of a micro-batch on this rank, or of a chunk of the loss",
    "f": "micro-batches in flight",
    # Parallel degrees.
    "t": "tensor parallel ranks",
    "p": "pipeline stages",
    "c": "context parallel ranks",
    "d": "ranks that share the model states",
    "e": "expert parallel ranks",
    # Bytes of an element.
    "z": "bytes of an element of the compute format",
    "z_res": "bytes of an element of the residual stream",
    "z_par": "bytes of an element of the parameters",
    "z_grad": "bytes of an element of the gradients that backward makes",
    "z_acc": "bytes of an element of the gradients that micro-batches are added to",
    "z_red": "bytes of an element of the reduction",
    "z_master": "bytes of an element of the master weights",
    "z_opt": "bytes of an element of the optimizer states",
    "bits": "bits of a quantised parameter, its constants included",
    # Parameters and shards, counted in elements.
    "P": "parameters of this rank before sharding",
    "shard": "elements of this rank's shard",
    "root": "parameters outside the blocks, before sharding",
    "root_trained": "those of them that receive gradients",
    "trained": "parameters of this rank that receive gradients, before sharding",
    "touched": "elements of the weights that a shard touches, each whole",
    "queue": "elements whose reduction may wait",
    "group": "values that share a scale",
    "block": "parameters of the largest block, before sharding",
    "blocks": "parameters of all blocks, before sharding",
    "head": "parameters of the last norm and the output projection",
    "table": "parameters of the token embedding",
    "w": "elements of one weight",
    "w_next": "elements of the weight whose gradient comes after it",
    "rows": "elements of a block of rows that is drawn at once",
    "sums": "sums of rows and of columns of the weights",
    "bucket": "elements of a communication bucket",
    "window": "elements that are gathered at once",
    "n": "how many there are",
    "n_root": "how many there are of parameters outside the blocks",
    # Activations, counted in bytes.
    "k": "bytes of a token, of what one block keeps or holds",
    "k_entry": "bytes of one entry of the vocabulary, of a token",
    "k_sum": "bytes of a token, of what several blocks keep",
    "k_all": "bytes of a token, of what all blocks keep",
    "k_kept": "bytes of a token, of what a checkpointed block keeps",
    "k_there": "bytes of a token that are counted elsewhere already",
    "inside": "bytes of a token, of the gradients inside the MLP",
    "size": "bytes of one of them",
    "lost": "share of what is allocated",
    "n_pairs": "how many pairs there are",
    "size_pair": "bytes of one pair",
    "counted": "bytes that the estimate counts elsewhere",
    "limit": "bytes at most",
    # Of a node.
    "ahead": "steps that a reader of the data has ready, and on GPUs their pinned copies",
}
