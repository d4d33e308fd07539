"""A training script in the style of torchrun, for ``launch script=docs/examples/train.py model=tiny -- --epochs 2``.

The launcher starts it on every rank, with its arguments, and reads the lines that rank 0 writes to ``metrics.jsonl``.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
epochs = parser.parse_args().epochs

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
torch.manual_seed(dist.get_rank())
inputs = torch.randn(256, 8, device=device)
targets = inputs.sum(1, keepdim=True)
model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for step in range(1, 20 * epochs + 1):
    begin = time.perf_counter()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    seconds = time.perf_counter() - begin
    if dist.get_rank() == 0:
        line = {"step": step, "loss": loss.item(), "grad_norm": norm.item(), "learning_rate": 0.1}
        line |= {"tokens_per_second": len(inputs) * dist.get_world_size() / seconds, "step_seconds": seconds}
        with (Path(os.environ["LAUNCH_RUN"]) / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
dist.destroy_process_group()
