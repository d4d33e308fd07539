"""DeepSpeed ZeRO-2 by hand: ``torchrun --nproc-per-node 2 -m benchmarks.plain.deepspeed``; prints tokens a second."""

from __future__ import annotations

import os

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import deepspeed.ops
import torch
import torch.distributed as dist

from benchmarks.plain.common import model, speed

CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "weight_decay": 0.1, "torch_adam": True}},
    "steps_per_print": 10**9,
}


def main() -> None:
    """Train and print the speed."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # Otherwise the start compiles it for minutes.
    deepspeed.init_distributed()
    net = model()
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=CONFIG)

    def step(ids: torch.Tensor) -> float:
        loss = engine(ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        return float(loss.item())

    figure = speed(step, dist.get_world_size())
    if dist.get_rank() == 0:
        print(figure, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
