"""A torchrun without torch, for launches whose subject is what the launcher does with their ends: torch takes seconds.

What torchrun itself does (signals, the rendezvous, errors of ranks) is the matter of ``tests/commands/test_run``.
"""

from __future__ import annotations

from pathlib import Path

_RUN = """
import os, subprocess, sys
at = sys.argv.index("--")
options = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:at])
assert not set(options) - {"standalone", "nnodes", "nproc-per-node", "max-restarts", "log-dir", "redirects"}, options
count = int(options["nproc-per-node"])
ranks = []
for rank in range(count):
    folder = os.path.join(options["log-dir"], "none", "attempt_0", str(rank))
    os.makedirs(folder, exist_ok=True)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    with open(folder + "/stdout.log", "ab") as out, open(folder + "/stderr.log", "ab") as err:
        argv = [sys.executable, "-u", *sys.argv[at + 1 :]]
        environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
        ranks.append(subprocess.Popen(argv, stdout=out, stderr=err, env=environment))
sys.exit(any([rank.wait() for rank in ranks]))
"""
"""``torch.distributed.run``, as far as the jobs of one node on this machine use it."""


def without_torch(folder: Path) -> Path:
    """The folder, for the ``PYTHONPATH`` of a launch that is to find this in place of torch."""
    package = folder / "torch" / "distributed"
    package.mkdir(parents=True)
    for place in (package.parent, package):
        (place / "__init__.py").touch()
    (package / "run.py").write_text(_RUN)
    return folder
