"""Parts of both plain loops: the model of ``model=tiny``, random tokens, and the speed of the second half."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import transformers

STEPS, SEQUENCE, VOCABULARY = 60, 256, 256


def model() -> transformers.LlamaForCausalLM:
    """The sizes of conf/model/tiny.yaml."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config)


def speed(step: Callable[[torch.Tensor], object], ranks: int) -> float:
    """Tokens a second of all ranks over the second half of the steps."""
    ids = torch.randint(0, VOCABULARY, (STEPS, 1, SEQUENCE))
    for number in range(STEPS):
        if number == STEPS // 2:
            start = time.perf_counter()
        step(ids[number])
    return (STEPS - STEPS // 2) * SEQUENCE * ranks / (time.perf_counter() - start)
