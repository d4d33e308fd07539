"""A rank that is compared with the others before its first step, and may be disturbed meanwhile."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from launcher.spec.parse import parse


def imports() -> None:
    """Import what a rank needs."""
    from launcher.worker import loop

    assert loop


def main(directory: str, port: str, disturbed: str, limit_s: str, slower: str) -> None:
    """Enter the run as every worker does, while rank 1 has slower products (``slow``) or is stopped (``stop``).

    Args:
        directory: The run directory.
        port: Where the ranks meet.
        disturbed: What happens to rank 1; empty: nothing.
        limit_s: Replaces the probe's own limit, in seconds.
        slower: Replaces the probe's own ratio.
    """
    import torch

    from launcher.worker import loop
    from launcher.worker.watch import probe

    torch.set_num_threads(1)
    probe.LIMIT_S, probe.SLOWER = float(limit_s), float(slower)
    os.environ["MASTER_PORT"] = port
    spec = parse(json.loads((Path(directory) / "spec.json").read_text()))
    product = probe._product
    if os.environ["RANK"] == "1" and disturbed:

        def beside(device: torch.device, load: probe.ProbeWork) -> float:
            if disturbed == "stop":
                _stop()
            # 27 times the work of a product: far beyond what a busy machine makes of equal ones.
            return product(device, replace(load, width=3 * load.width, products=max(1, load.products // 9)))

        probe._product = beside
    with loop.entered(spec, Path(directory)):
        pass


def _stop() -> None:
    """Have another process stop this one for good, until it exits."""
    ours = os.getpid()
    if os.fork():
        return
    while os.getppid() == ours:
        os.kill(ours, signal.SIGSTOP)
        time.sleep(0.12)
    os._exit(0)
