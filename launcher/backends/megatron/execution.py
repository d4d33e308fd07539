"""How Megatron-core executes a step: fused projections, norms and activations, with what its arguments overlap."""

from __future__ import annotations

from launcher.backends.megatron.implementation import fsdp, implementation
from launcher.estimate.rank.execution import EXPERT_OVERLAP, UNEVEN, AttentionKernel, Dispatcher, Execution
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
        fused_norm=how.transformer_engine,
        fused_rotary=not backend.argument("no-rope-fusion"),
        fused_activation=not (backend.argument("no-bias-swiglu-fusion") or backend.argument("no-bias-gelu-fusion")),
        fused_residual=not backend.argument("no-bias-dropout-fusion"),
        fused_loss=spec.train.loss == "fused",
        graphs=bool(backend.argument("enable-cuda-graph") or backend.argument("cuda-graph-impl")),
        tensor_overlap=0.75 if backend.argument("tp-comm-overlap") else 0.0,
        gradient_overlap=bool(backend.argument("overlap-grad-reduce", True)),
        parameter_overlap=spec.zero.stage > 0 and bool(backend.argument("overlap-param-gather", True)),
        bucket_bytes=_bucket_bytes(spec),
        reduces_each=fsdp(spec),
        pipeline_overlap=spec.parallel.virtual_pipeline > 1 and not backend.argument("no-overlap-p2p-communication"),
        fused_accumulation=how.fused_gradients,
        blockwise_experts=not how.grouped,
        dispatcher=_dispatcher(backend),
        uneven_experts=1.0 if backend.argument("moe-router-force-load-balancing") else UNEVEN,
        expert_overlap=EXPERT_OVERLAP if backend.argument("overlap-moe-expert-parallel-comm") else 0.0,
        fused_permutation=bool(backend.argument("moe-permute-fusion")),
    )


def _bucket_bytes(spec: RunSpec) -> float:
    """``--ddp-bucket-size`` parameters, by default 40 million or a million a data rank, the larger, of fp32 gradients.

    ``megatron/core/distributed/distributed_data_parallel.py``.
    """
    parameters = spec.backend.count("ddp-bucket-size") or max(40_000_000, 1_000_000 * spec.data_degree)
    return 4.0 * parameters


def _dispatcher(backend: BackendSpec) -> Dispatcher:
    """The exchange of tokens: ``flex`` is DeepEP's unless it names HybridEP (``megatron/training/arguments.py``)."""
    if backend.argument("moe-token-dispatcher-type") == "flex" or backend.argument("moe-enable-deepep"):
        return "hybridep" if backend.argument("moe-flex-dispatcher-backend") == "hybridep" else "deepep"
    return "all_to_all"
