"""One device by hand: ``python -m benchmarks.plain.alone RUN`` trains what a run in that directory has trained.

The run's own are the initial weights, the tokens and the settings; the model class, the loss, autocast, AdamW, the
learning rate, clipping and the loop are written as one would. Prints one JSON object.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.nn import functional

from launcher.estimate import families
from launcher.spec import RunSpec
from launcher.spec.parse import parse
from launcher.worker import data, memory
from launcher.worker.data.order import Position
from launcher.worker.engine import Context


def main(name: str) -> None:
    """Train all steps of the run; print losses, seconds of each step and the allocator's peak."""
    directory = Path(name)
    spec = parse(json.loads((directory / "spec.json").read_text()))
    device = torch.device("cuda", 0) if spec.hardware.device == "cuda" else torch.device("cpu")
    # The data's own: ranks agree on where they lie.
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    print(json.dumps(train(spec, directory, device)), flush=True)


def train(spec: RunSpec, directory: Path, device: torch.device) -> dict[str, Any]:
    """The loop."""
    net = _model(spec, device)
    optimizer = _optimizer(spec, net, fused=device.type == "cuda")
    losses, seconds = [], []
    began = time.perf_counter()
    for step, (tokens,) in _steps(spec, directory, device):
        with torch.autocast(device.type, torch.bfloat16, enabled=spec.precision.compute == "bf16"):
            logits = net(input_ids=tokens[:, :-1]).logits
        loss: Any = functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = spec.optimizer.lr * (1 + math.cos(math.pi * (step - 1) / spec.steps)) / 2
        torch.nn.utils.clip_grad_norm_(net.parameters(), spec.optimizer.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return {"losses": losses, "step_seconds": seconds, "peak_allocated_bytes": peak}


def _model(spec: RunSpec, device: torch.device) -> Any:
    import transformers  # Late, because it takes seconds.

    from launcher.worker.model import initial

    found = families.of(spec.model).transformers_config(spec.model)
    if found is None:
        raise AssertionError(f"transformers has no class for the family {spec.model.family}")
    config = getattr(transformers, found.name)(**found.settings)
    with device:
        net: Any = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="sdpa"
        )
    net.config.use_cache = False
    initial.fill(net, spec.train.seed)
    net.train()
    return net


def _optimizer(spec: RunSpec, net: torch.nn.Module, *, fused: bool) -> torch.optim.AdamW:
    settings = spec.optimizer
    matrices = [parameter for parameter in net.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in net.parameters() if parameter.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    betas = (settings.beta1, settings.beta2)
    return torch.optim.AdamW(groups, lr=settings.lr, betas=betas, eps=settings.epsilon, fused=fused)


def _steps(spec: RunSpec, directory: Path, device: torch.device) -> Any:
    context = Context(spec=spec, directory=directory, rank=0, world=1, device=device, memory=memory.tracker(device))
    return data.batches(context).training(Position(), last=spec.steps)


if __name__ == "__main__":
    main(sys.argv[1])
