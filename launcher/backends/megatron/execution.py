"""How Megatron-core executes a step: fused projections, norms and activations, with what its arguments overlap."""

from __future__ import annotations

from launcher.backends.megatron.implementation import fsdp, implementation
from launcher.rank.execution import EXPERT_OVERLAP, UNEVEN, AttentionKernel, Dispatcher, Execution
from launcher.spec import BackendSpec, RunSpec


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
        dispatcher=_dispatcher(backend),
        uneven_experts=1.0 if backend.argument("moe-router-force-load-balancing") else UNEVEN,
        expert_overlap=EXPERT_OVERLAP if backend.argument("overlap-moe-expert-parallel-comm") else 0.0,
        fused_permutation=bool(backend.argument("moe-permute-fusion")),
    )


def _dispatcher(backend: BackendSpec) -> Dispatcher:
    """The exchange of tokens: ``flex`` is DeepEP's unless it names HybridEP (``megatron/training/arguments.py``)."""
    if backend.argument("moe-token-dispatcher-type") == "flex" or backend.argument("moe-enable-deepep"):
        return "hybridep" if backend.argument("moe-flex-dispatcher-backend") == "hybridep" else "deepep"
    return "all_to_all"
