"""Needs that the engines with models of ``transformers`` share."""

from __future__ import annotations

from launcher.job.versions import Need

EXPERTS = Need(
    package="transformers",
    since="5.0",
    path="model.num_experts",
    asked=lambda spec: bool(spec.model.num_experts),
    because="holds each expert in a module of its own and cannot train them here",
    way_out="model.num_experts=0",
)
"""Since 5.0 the experts of a layer are one tensor (``MixtralExperts``), as checkpoints and the memory model have them.

With 4.56 two ranks of FSDP abort after some steps.
"""
