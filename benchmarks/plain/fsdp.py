"""FSDP2 by hand: ``torchrun --nproc-per-node 2 -m benchmarks.plain.fsdp``; prints tokens a second."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from benchmarks.plain.common import model, speed


def main() -> None:
    """Train and print the speed."""
    dist.init_process_group("gloo")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    net = model()
    for layer in net.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(net, mp_policy=policy)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, weight_decay=0.1)

    def step(ids: torch.Tensor) -> float:
        loss = net(ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    figure = speed(step, dist.get_world_size())
    if dist.get_rank() == 0:
        print(figure, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
