"""A torchrun without torch, which takes seconds to import, for tests of the launcher or of a rank.

Its ranks have torch: each imports it, or is forked from a process that has (:func:`ranks.address`).
``tests/commands/test_run`` and ``tests/slurm`` cover torchrun itself (the rendezvous of nodes, errors of ranks).
"""

from __future__ import annotations

from pathlib import Path

from tests.support import ranks

_RUN = """
import os, signal, socket, subprocess, sys
from multiprocessing.connection import Client
FORKED = {"launcher.worker.fsdp": ADDRESS}


class Forked:
    # A rank that the tests' agent forks: it ends with this process, as the agent sees the connection end.
    def __init__(self, address, argv, environment, folder):
        self.connection = Client(address)
        self.connection.send((argv, environment, os.getcwd(), folder))
        self.pid = self.connection.recv()

    def terminate(self):
        try:
            os.kill(self.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass

    def wait(self):
        return self.connection.recv()


at = sys.argv.index("--")
module = ["-m"] if "-m" in sys.argv[:at] else []
options = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:at] if word != "-m")
options = {name: value for name, value in options.items() if not name.startswith("rdzv-")}
assert not set(options) - {"standalone", "nnodes", "nproc-per-node", "max-restarts", "log-dir", "redirects"}, options
assert options["nnodes"] == "1", "the ranks of several nodes need torch to meet"
own = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
path = os.pathsep.join(each for each in os.environ["PYTHONPATH"].split(os.pathsep) if each != own)
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
count = int(options["nproc-per-node"])
ranks = []
for rank in range(count):
    folder = os.path.join(options["log-dir"], "none", "attempt_0", str(rank))
    os.makedirs(folder, exist_ok=True)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    place |= {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_ERROR_FILE": folder + "/error.json"}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYTHONPATH": path}
    address = FORKED.get(sys.argv[at + 1]) if module and os.environ.get("OMP_NUM_THREADS") == "1" else None
    if address:
        environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
        ranks.append(Forked(address, sys.argv[at + 1 :], environment, folder))
        continue
    with open(folder + "/stdout.log", "ab") as out, open(folder + "/stderr.log", "ab") as err:
        argv = [sys.executable, "-u", *module, *sys.argv[at + 1 :]]
        environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
        ranks.append(subprocess.Popen(argv, stdout=out, stderr=err, env=environment))
told = []
signal.signal(signal.SIGTERM, lambda *_: [*(rank.terminate() for rank in ranks), told.append(True)])
sys.exit(any([rank.wait() for rank in ranks]) or any(told))  # torchrun ends with a SignalException.
"""
"""Source of the part of ``torch.distributed.run`` that single-node jobs on this machine use."""


_OTHERS = """
import os, sys
if "torch.distributed.run" not in sys.orig_argv:  # Another program of the same launch, which is to find torch.
    sys.path.remove(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    del sys.modules["torch"]
    import torch
"""


def without_torch(folder: Path, *, forked: bool = False) -> Path:
    """The folder to put on the ``PYTHONPATH`` of a launch that should find this instead of torch.

    Args:
        folder: The folder, which is created.
        forked: True if ranks of the FSDP worker are forked from an agent that has imported what they need.
    """
    package = folder / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text(_OTHERS)
    (package / "__init__.py").touch()
    (package / "run.py").write_text(_RUN.replace("ADDRESS", repr(ranks.address() if forked else None)))
    return folder
