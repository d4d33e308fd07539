"""Limits of ring attention (``parallel.context``) in the FSDP worker, each with the way out."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, edit


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Settings that would see one rank's tokens alone, draw other values in backward, or find no kernel."""
    if spec.parallel.context == 1:
        return
    for path, value, rule, way_out in _obstacles(spec):
        yield ConfigError(path, value, rule, [*way_out, "parallel.context=1"])


def _obstacles(spec: RunSpec) -> Iterator[tuple[str, object, str, list[str]]]:
    if spec.model.attention != "sdpa":
        rule = "ring attention is made of torch's own kernels; another would see the tokens of one rank alone"
        yield "model.attention", spec.model.attention, rule, ["model.attention=sdpa"]
    if spec.model.dropout:
        rule = "backward of torch's ring attention does not draw the dropout of forward again"
        yield "model.dropout", spec.model.dropout, rule, ["model.dropout=0.0"]
    if spec.precision.compute == "fp32" and spec.hardware.device == "cuda":
        rule = "on a GPU the kernels of ring attention take 16 bits"
        yield "precision.compute", "fp32", rule, ["precision=bf16"]
    if spec.train.compile:
        rule = "ring attention is not called from compiled blocks in this version"
        yield "train.compile", True, rule, ["train.compile=false"]
    if spec.parallel.pipeline > 1:
        rule = "pipeline stages hand on whole sequences in this version"
        yield "parallel.pipeline", spec.parallel.pipeline, rule, [edit.override("parallel.pipeline", 1)]
