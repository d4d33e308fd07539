"""How Megatron-core executes a step: fused projections, norms and activations, with what its arguments overlap."""

from __future__ import annotations

from launcher.backends.megatron.implementation import fsdp, implementation
from launcher.rank.execution import AttentionKernel, Execution
from launcher.spec import RunSpec


def execution(spec: RunSpec) -> Execution:
    """Megatron-core's layers, with Transformer Engine's kernels where they run."""
    how, backend = implementation(spec), spec.backend
    attention: AttentionKernel = "fused_softmax" if how.attention == "unfused" else "flash"
    return Execution(
        framework="Megatron-Core",
        related=("NeMo", "Megatron-Bridge"),
        attention=attention,
        fused_projections=True,
        fused_norm=True,
        fused_rotary=True,
        fused_activation=True,
        fused_residual=True,
        fused_loss=bool(backend.argument("cross-entropy-loss-fusion")),
        graphs=bool(backend.argument("enable-cuda-graph") or backend.argument("cuda-graph-impl")),
        tensor_overlap=0.75 if backend.argument("tp-comm-overlap") else 0.0,
        gradient_overlap=True,
        parameter_overlap=spec.zero.stage > 0,
        reduces_each=fsdp(spec),
        pipeline_overlap=spec.parallel.virtual_pipeline > 1 and not backend.argument("no-overlap-p2p-communication"),
        fused_accumulation=True,
    )
