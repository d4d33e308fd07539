"""One rank as a process: its process group, how its end is reported, how folders appear complete.

A rank that fails writes ``logs/error.rank<r>.json`` and exits at once, without destroying its process group: that would
wait for ranks that no longer answer. Every other rank polls for such files in a thread and exits too. The kernel kills
a rank whose torchrun is gone, and a rank that has finished skips destructors, which may hang or abort.
"""

import argparse
import contextlib
import ctypes
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Literal, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from launcher.base import machine, secret
from launcher.base.errors import LauncherError
from launcher.base.files import load_json, write_atomically
from launcher.base.frozen import dataclass
from launcher.data import token_folder
from launcher.data.look import look
from launcher.job.events import FailureKind
from launcher.spec import RunSpec
from launcher.spec.parse import parse
from launcher.worker import NodeFault, TrainingError, files, out_of_memory, process
from launcher.worker.engine import Context

_PR_SET_PDEATHSIG = 1  # ``linux/prctl.h``.
_LOOK_S = 2.0  # Interval at which a rank polls for other ranks' errors.
_GRACE_S = 5.0  # Delay before exiting because of another rank's error: time for this rank to report its own.
_WATCH_S = 10  # Time for the node's hang watch to take the ranks' stacks before the first collective times out.


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """This process's rank, the world size, and the device that it computes on."""

    rank: int
    world: int
    device: torch.device


@contextlib.contextmanager
def group(spec: RunSpec, backend: str | None = None) -> Iterator[RankPlace]:
    """Join the job's process group: gloo, and on GPUs nccl too; TrainingError if a GPU is missing.

    An engine that passes its own ``backend`` makes dozens of further groups. If a device were bound here, each would
    get a communicator at once, used or not: Megatron-LM's 20 took 388 MiB each on an H100.
    """
    local_rank, world = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    if world != spec.gpus:
        raise TrainingError(
            f"the job has {world} ranks, but the run needs {spec.gpus} (cluster.nodes x cluster.gpus_per_node)"
        )
    device = torch.device("cpu")
    if spec.hardware.device == "cuda":
        if torch.cuda.device_count() <= local_rank:
            raise TrainingError(f"rank {local_rank} of this node has no GPU: {torch.cuda.device_count()} are visible")
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend or ("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"),
        timeout=timedelta(seconds=spec.train.timeout_s + _WATCH_S),
        device_id=None if device.type == "cpu" or backend is not None else device,
    )
    use_host(spec)
    torch.manual_seed(spec.train.seed)
    yield RankPlace(rank=dist.get_rank(), world=world, device=device)
    dist.destroy_process_group()


def use_host(spec: RunSpec) -> None:
    """Let an optimizer that runs on the host use its rank's share of the node's CPUs.

    Ranks start with one thread each (``OMP_NUM_THREADS``), with which an offloaded step of a 1B model took 8.9 s on an
    H100 node. A number that the user sets in ``cluster.environment`` is kept.
    """
    offloaded = {spec.zero.offload_optimizer, spec.zero.offload_parameters} != {"none"}
    if offloaded and spec.hardware.device == "cuda" and "OMP_NUM_THREADS" not in spec.cluster.environment:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // int(os.environ["LOCAL_WORLD_SIZE"])))


@contextlib.contextmanager
def reported(directory: Path) -> Iterator[None]:
    """Write an error to ``logs/error.rank<r>.json`` and one line on stderr, and exit with status 1.

    The process also exits when another rank has written its error: a rank that waits for a GPU does not notice SIGTERM.
    """
    rank, over = int(os.environ.get("RANK", "0")), threading.Event()
    threading.Thread(target=_follow_failures, args=(directory / "logs", rank, over), daemon=True).start()
    try:
        yield
    except (Exception, CheckpointException) as error:
        fail(directory, error)
    finally:
        over.set()


def fail(directory: Path, error: BaseException) -> NoReturn:
    """Report an error and exit at once with status 1, from any thread."""
    rank = int(os.environ.get("RANK", "0"))
    out_of_memory.write(directory, error)
    message = str(error) if isinstance(error, LauncherError) else f"{type(error).__name__}: {error}"
    message, text = secret.redacted(message), secret.redacted("".join(traceback.format_exception(error)))
    content: dict[str, object] = {"type": type(error).__name__, "message": message, "traceback": text}
    content |= {"node": machine.node(), "kind": _kind_of(error)}
    if isinstance(error, NodeFault):
        content["faulty_node"] = error.node
    with contextlib.suppress(OSError):
        (directory / "logs").mkdir(exist_ok=True)
        write_atomically(directory / "logs" / f"error.rank{rank}.json", content)
    print(f"launch: rank {rank}: {message}", file=sys.stderr, flush=True)  # noqa: T201
    sys.stdout.flush()
    os._exit(1)


def _kind_of(error: BaseException) -> FailureKind:
    full = out_of_memory.kind_of(error)
    if full is not None and full[1] == "disk":
        return "disk"
    return error.kind if isinstance(error, TrainingError) else "error"


def _follow_failures(logs: Path, rank: int, over: threading.Event) -> None:
    before = _errors(logs, rank)  # From earlier attempts; file times are no help, since a clock may be set back.
    while not over.wait(_LOOK_S):
        if not _errors(logs, rank) <= before and not over.wait(_GRACE_S):
            os._exit(1)


def _errors(logs: Path, rank: int) -> set[tuple[str, int, int]]:
    found = set()
    with contextlib.suppress(OSError):
        for path in logs.glob("error.rank*.json"):
            if path.name != f"error.rank{rank}.json":
                stat = path.stat()
                found.add((path.name, stat.st_ino, stat.st_mtime_ns))
    return found


def link_logs(directory: Path) -> None:
    """Link ``logs/ranks/rank<r>`` to this rank's torchrun folder, and write the node's name to a file next to it."""
    place, link = Path(os.environ["TORCHELASTIC_ERROR_FILE"]).parent, f"rank{os.environ['RANK']}"
    ranks = directory / "logs" / "ranks"
    if ranks in place.parents:
        temporary = ranks / f".{link}.{os.getpid()}"
        temporary.symlink_to(place.relative_to(ranks))
        temporary.replace(ranks / link)
        place.with_name(f"{place.name}.node").write_text(machine.node())


def die_with_agent() -> None:
    """Have the kernel kill this rank when torchrun, which has another session, is gone (``PR_SET_PDEATHSIG``)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == 1:  # The agent ended before the call.
            os._exit(1)


def exit_at_once(alive: object = None) -> None:
    """Exit with status 0, without running destructors.

    gloo's threads are sometimes destroyed before they are joined, which aborts the process and would make a finished
    run look failed; a framework's helper processes would wait for work forever. ``alive`` holds the run: the destructor
    of DDP's reducer joins gloo's threads while it holds the GIL, which one of them may wait for (seen with torch 2.8).
    """
    for child in multiprocessing.active_children():
        child.terminate()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def write_outcome(directory: Path, state: Literal["finished", "interrupted"], step: int) -> None:
    """Write ``logs/outcome.json`` for the launcher: the job ended in an orderly way after this step."""
    (directory / "logs").mkdir(exist_ok=True)
    write_atomically(directory / "logs" / "outcome.json", {"state": state, "step": step, "time": time.time()})


@contextlib.contextmanager
def whole_directory(context: Context, final: Path) -> Iterator[Path]:
    """A folder that all ranks write as ``<final>.partial``, renamed to its final name once it is on disk."""
    partial = final.with_name(f"{final.name}.partial")
    if context.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    dist.barrier()
    yield partial
    dist.barrier()
    if context.rank == 0:
        files.finish_directory(partial, final)
    dist.barrier()


def main(run: Callable[[RunSpec, Path, list[str]], object], *, arguments: bool = False) -> None:
    """Read the spec of ``--run DIR`` and train it with ``run``, which also gets any further arguments."""
    parser = argparse.ArgumentParser(description="One rank of a recorded run; started by torchrun.", allow_abbrev=False)
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", help="the run directory")
    options, rest = parser.parse_known_args()
    if rest and not arguments:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    directory: Path = options.run
    if "TORCHELASTIC_RUN_ID" in os.environ:  # Unset in ``run --debug``, which starts the rank without an agent.
        process.die_with_agent()
        process.link_logs(directory)
    with process.reported(directory):
        spec = parse(load_json(directory / "spec.json"))
        # Refuse data that cannot be used, unless their token ids exist already: the texts may be gone by now.
        looks = os.environ.get("RANK", "0") == "0" and spec.backend.path is None
        if looks and token_folder.recorded_folder(directory, spec.data) is None:
            look(spec.data, spec.task.name)
        kept = run(spec, directory, rest)
    process.exit_at_once(kept)
