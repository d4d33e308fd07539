"""Runs of a pipeline schedule with a given number of stages, micro-batches and chunks."""

from __future__ import annotations

from dataclasses import replace

from launcher.spec import RunSpec


def scheduled(plain: RunSpec, schedule: str, stages: int, micro_batches: int, chunks: int) -> RunSpec:
    """The run with this schedule on one rank per stage, with one layer in each of a stage's ``chunks``."""
    parallel = replace(plain.parallel, pipeline=stages, virtual_pipeline=chunks, schedule=schedule)  # type: ignore[arg-type]
    return replace(
        plain,
        parallel=parallel,
        model=replace(plain.model, num_hidden_layers=stages * chunks),
        cluster=replace(plain.cluster, nodes=1, gpus_per_node=stages),
        train=replace(plain.train, global_batch_size=micro_batches),
    )
