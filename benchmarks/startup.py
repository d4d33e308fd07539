"""Time that `launch` takes before training starts: ``python -m benchmarks.startup``.

- a cold `launch check` as a whole process, against a bare Hydra composition of the same configuration, pair by pair in
  processor time, and in wall time with a first run that has nothing cached and with the runs after it;
- the import of the planning core;
- `launch run` up to the worker's first line, against a bare torchrun of the same program.

Bytecode is written, as in an installation, and none of the user's own runs are known.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.reporting import keep, processor_seconds, seconds, spread, takes_no_option
from launcher.base.package import shipped
from launcher.config.catalog import PRIMARY

OVERRIDES = ("model=7b", "parallel=fsdp", "precision=bf16")
BARE_HYDRA = f"""
import sys
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
with initialize_config_dir({str(shipped("conf"))!r}, version_base="1.3"):
    OmegaConf.to_container(compose({PRIMARY!r}, overrides=sys.argv[1:]))
"""
FIRST_LINE = "import os, time; open(os.environ['FIRST_LINE'], 'a').write(f'{time.time()}\\n')\n"


def main() -> None:
    """Measure and write the result."""
    launch = str(Path(sys.executable).with_name("launch"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ |= {"XDG_CACHE_HOME": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state")}
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        check = [launch, "check", *OVERRIDES, "--json"]
        bare_hydra = [sys.executable, "-c", BARE_HYDRA, *OVERRIDES]
        hydra = seconds(bare_hydra, cwd=folder)
        uncached = spread(lambda: _uncached(check, folder), runs=5)
        cached = seconds(check, cwd=folder)
        core = seconds([sys.executable, "-c", "import launcher.preflight.plan"], cwd=folder)
        whole = seconds([sys.executable, "-c", "import launcher.preflight.plan, launcher.config.request"], cwd=folder)
        bare = seconds([sys.executable, "-c", "pass"], cwd=folder)
        pairs = spread(lambda: processor_seconds(check, folder) / processor_seconds(bare_hydra, folder), runs=15)
        torchrun, run = _first_lines(launch, folder)
    keep(
        "startup",
        "python -m benchmarks.startup",
        {
            "bare_hydra_compose_s": hydra,
            "check_with_nothing_cached_s": uncached,
            "check_s": cached,
            "check_over_hydra_by_pairs": pairs,
            "check_over_hydra": cached["median"] / hydra["median"],
            "check_with_nothing_cached_over_hydra": uncached["median"] / hydra["median"],
            "planning_core_import_s": core["median"] - bare["median"],
            "planning_core_and_composition_import_s": whole["median"] - bare["median"],
            "torchrun_to_first_line_s": torchrun,
            "launch_run_to_first_line_s": run,
            "launch_run_overhead_s": run - torchrun,
        },
    )


def _uncached(command: list[str], folder: Path) -> float:
    for path in (folder / "cache").glob("launch/compose/*.json"):
        path.unlink()
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, check=False, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def _first_lines(launch: str, folder: Path, runs: int = 3) -> tuple[float, float]:
    """Median seconds from the start of each command to the first line of a program on both ranks."""
    (folder / "first.py").write_text(FIRST_LINE)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "first.py"]
    bare = [_until_first_line(torchrun, folder) for _ in range(runs)]
    ours = [
        _until_first_line([launch, "model=tiny", "script=first.py", f"run.name=first{n}", "--json"], folder)
        for n in range(runs)
    ]
    return statistics.median(bare), statistics.median(ours)


def _until_first_line(command: list[str], folder: Path) -> float:
    marks = folder / "marks"
    marks.unlink(missing_ok=True)
    start = time.time()
    environment = {**os.environ, "FIRST_LINE": str(marks)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{json.dumps(command)}: {done.stderr}")
    return min(float(line) for line in marks.read_text().splitlines()) - start


if __name__ == "__main__":
    takes_no_option(__doc__)
    main()
