"""Speed estimates with fixed numbers, independent of the speed model: those of the contract's example."""

from __future__ import annotations

from launcher.estimate.speed.calibration import Constant
from launcher.estimate.speed.result import SpeedEstimate, StageTime
from launcher.estimate.speed.terms import SpeedTerm, term

CONSTANT = Constant(
    value=0.93, low=0.68, high=1.2, rows=34, whose="PyTorch FSDP on h100_80g", frameworks=("PyTorch FSDP",)
)

_TABLE = "launcher/estimate/speed/gemm.json"


def speed_of(*, gpus: int = 8, step: float = 3.0, constant: Constant = CONSTANT) -> SpeedEstimate:
    """A step of a two-stage pipeline of which 10% is exposed communication."""
    terms = (
        term("matrix_products", "products of both passes", "m * work / rate", _TABLE, m=2, work=6.0, rate=12 / 1.83),
        term("attention", "attention of both passes", "m * work / rate", _TABLE, m=2, work=1.0, rate=2 / 0.27),
        term("memory_bound", "norms, residuals, activations", "m * work / rate", _TABLE, m=2, work=1.0, rate=2 / 0.36),
        term(
            "host",
            "the GPU waits for kernel launches",
            "m * t_host",
            "launcher/estimate/speed/block.py",
            m=2,
            t_host=1e-17,
        ),
        _traffic("tensor", 0.24, 0.24, "tensor parallel"),
        term("bubble", "filling and draining", "idle * t_others / v", "arXiv:2104.04473", idle=1, t_others=0.18, v=1),
        _traffic("data", 0.3, 0.06, "data parallel"),
        term("optimizer", "memory passes of the optimizer", "n * k", "torch.optim", n=6, k=0.01),
    )
    return SpeedEstimate(
        step_seconds=step,
        tokens=32_768 * gpus,
        gpus=gpus,
        model_flops=0.47 * step * gpus * 989e12,
        hardware_flops=0.5 * step * gpus * 989e12,
        peak_flops=989e12,
        bubble=0.06,
        terms=tuple(each.times(step / 3.0) for each in terms),
        stages=tuple(
            StageTime(stage=stage, forward_seconds=0.5, backward_seconds=1.0 + stage / 10, send_seconds=0.001)
            for stage in (0, 1)
        ),
        constant=constant,
    )


def _traffic(part: str, seconds: float, exposed: float, group: str) -> SpeedTerm:
    return term(
        part,  # type: ignore[arg-type]
        f"collectives, {group}",
        "k / reached",
        "launcher/estimate/speed/collectives.json",
        exposed=exposed,
        moved=2**30,
        group=group,
        k=2**30,
        reached=2**30 / seconds,
    )
