"""The kernels that a GPU would choose where the fake CPU device would choose others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

from launcher.worker.trace.shims import replaced


@contextlib.contextmanager
def of_a_gpu() -> Iterator[None]:
    """Attention by the flash kernel of CUDA, also with dropout, where the CPU would fall back to whole scores.

    The memory-efficient and the cuDNN kernel save the same tensors (query, key, value, output, log-sum-exp). Dropout
    keeps a mask of one byte for each element; the CPU would keep it in the format of the activations.
    """
    with (
        replaced(functional, "scaled_dot_product_attention", _attention(functional.scaled_dot_product_attention)),
        replaced(functional, "dropout", _dropout(functional.dropout)),
    ):
        yield


def _dropout(otherwise: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Torch ``aten/src/ATen/native/Dropout.cpp``, ``is_fused_kernel_acceptable``."""

    def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        if not training or not 0 < p < 1 or inplace:
            return otherwise(input, p, training, inplace)
        return torch.native_dropout(input, p, training)[0]

    return dropout


def _attention(otherwise: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **settings: Any,
    ) -> torch.Tensor:
        if attn_mask is not None:
            return otherwise(query, key, value, attn_mask, dropout_p, is_causal, **settings)
        if torch.is_autocast_enabled("cpu"):
            wanted = torch.get_autocast_dtype("cpu")
            query, key, value = query.to(wanted), key.to(wanted), value.to(wanted)
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        out: torch.Tensor = flash(query, key, value, dropout_p, is_causal, False, scale=settings.get("scale"))[0]
        return out

    return attention
