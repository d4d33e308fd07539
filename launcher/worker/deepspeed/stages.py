"""Pipeline stages by DeepSpeed's PipelineModule and its 1F1B schedule: each stage is one layer of that module."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from deepspeed.pipe import PipelineModule
from torch import nn

from launcher.estimate.rank.stages import stage_layers
from launcher.worker.engine import Context
from launcher.worker.model import LanguageModel, network

_TABLE = "embedding"


class Stage(nn.Module):
    """One stage's layers: from tokens, or the hidden states of the stage before, to hidden states."""

    def __init__(self, model: LanguageModel, *, first: bool) -> None:
        super().__init__()
        self.model, self._first = model, first

    def forward(self, entering: torch.Tensor) -> torch.Tensor:
        """The states that leave the stage."""
        if self._first:
            return self.model.states(entering)
        batch, length = entering.shape[:2]
        tokens = torch.empty(
            (batch, length + 1), dtype=torch.long, device=entering.device
        )  # Their number alone counts.
        return self.model.states(tokens, entering)


class Stages(PipelineModule):  # type: ignore[misc]  # DeepSpeed has no types.
    """This rank's stage among the others.

    A tied token table, which the first and the last stage hold, is tied as ``TiedLayerSpec`` would tie it.
    """

    def __init__(self, model: LanguageModel, context: Context) -> None:
        self._ties = context.spec.model.tie_word_embeddings
        stage, count = stage_of(context), context.spec.parallel.pipeline
        layers = [Stage(model, first=stage == 0)] * count  # Each rank builds its own alone.
        super().__init__(layers=layers, num_stages=count, loss_fn=model.loss, partition_method="uniform")
        for parameter in self.parameters():
            # Else clip_grad_norm_ (runtime/utils.py) takes the first stage's gradients for all of them without ZeRO.
            parameter.model_parallel = not parameter.ds_pipe_replicated

    @property
    def model(self) -> LanguageModel:
        """This rank's part."""
        part: LanguageModel = self.forward_funcs[0].model
        return part

    def _index_tied_modules(self) -> dict[str, Any]:
        """The groups of first and last stages, and this rank's table, in the form of ``PipelineModule``'s own."""
        if not self._ties:
            return {}
        found: dict[str, Any] = {}
        for data in range(self._grid.data_parallel_size):
            ranks = [self._grid.stage_to_global(stage_id=stage, data=data) for stage in (0, self.num_stages - 1)]
            group = dist.new_group(ranks)
            if self.global_rank in ranks:
                table = self.model.network.get_input_embeddings()
                self.tied_modules[_TABLE] = table
                table.weight.ds_pipe_replicated = self.global_rank != ranks[0]
                found[_TABLE] = {"ranks": ranks, "group": group, "weight_attr": ["weight"], "module": table}
        return found


def stage_of(context: Context) -> int:
    """Stages are far apart among the ranks, as ``PipeDataParallelTopology`` puts them."""
    return context.rank // (context.world // context.spec.parallel.pipeline)


def cut(made: Any, context: Context) -> None:
    """Remove from a network on the meta device all layers but those of this rank's stage."""
    spec, stage = context.spec, stage_of(context)
    network.cut(made, stage_layers(spec, stage), first=stage == 0, last=stage == spec.parallel.pipeline - 1)
