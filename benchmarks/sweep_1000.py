"""How long ``launch -m`` takes to judge and submit 1,000 points: ``python -m benchmarks.sweep_1000`` (root, Linux).

The jobs are held on a development cluster, so that nothing but the launcher and Slurm's commands is measured.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.reporting import keep, takes_no_option
from slurm import dev_cluster

POINTS = 1000
WORDS = (
    *("cluster=slurm", "cluster.nodes=2", "cluster.extra.hold=true", "run.name=sweep"),
    *("model=7b", "parallel=fsdp", "precision=bf16", "hardware=h100_80g"),
    *("train.micro_batch_size=1,2", "train.sequence_length=1024,2048", f"train.seed=range(0,{POINTS // 4})"),
)


def main() -> None:
    """Measure and write the result."""
    launch = str(Path(sys.executable).with_name("launch"))
    with tempfile.TemporaryDirectory(prefix="launch-sweep-") as name:
        cluster = dev_cluster.start(Path(name) / "c")
        try:
            environment = {**os.environ, **cluster.environment, "XDG_CACHE_HOME": f"{name}/cache"}
            began = time.perf_counter()
            subprocess.run([launch, "-m", *WORDS], cwd=name, env=environment, check=True)
            seconds = time.perf_counter() - began
            queued = len(cluster.ask("squeue", "-h", "-r", "-o", "%i").splitlines())
        finally:
            cluster.stop()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
    keep(
        "sweep_1000",
        "python -m benchmarks.sweep_1000",
        {
            "points": POINTS,
            "jobs_queued": queued,
            "judged_and_submitted_s": round(seconds, 2),
            "processor_s": round(used.ru_utime + used.ru_stime, 2),
            "load_average_of_one_minute": os.getloadavg()[0],
        },
    )


if __name__ == "__main__":
    takes_no_option(__doc__)
    main()
