"""Ctrl-C at random moments: ``python -m benchmarks.interrupts --moments 200``.

Launches on this machine (a run, a sweep, a resumed run) get SIGINT once or twice, SIGTERM or SIGHUP at a random moment;
four of five moments are around the start of the run, where something could be left half done. Each launch must end with
status 130, or as if undisturbed, print no traceback, and leave one of two states: nothing was started and nothing is
left, or a run that has ended, or that continues as the output says and is ended by the printed command. ``--slurm N``
adds launches with ``cluster=slurm`` on the development cluster (root, Linux).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks import signals
from benchmarks.reporting import keep
from launcher.base import files
from launcher.rundir import state, status
from slurm import dev_cluster

LAUNCH = [sys.executable, "-m", "launcher"]
WORDS = ("model=tiny", "script=train.py", "cluster.gpus_per_node=1", "hardware.device=cpu")
SCRIPT = """
import os, signal, time
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
until = time.monotonic() + 1
while time.monotonic() < until and not told:
    time.sleep(0.02)
os.makedirs(os.environ["LAUNCH_CHECKPOINTS"] + "/step-00000001", exist_ok=True)
"""
SIGNALS = {
    "SIGINT": (signal.SIGINT,),
    "SIGINT twice": (signal.SIGINT, signal.SIGINT),
    "SIGTERM": (signal.SIGTERM,),
    "SIGHUP": (signal.SIGHUP,),
}
KINDS = ("run", "sweep", "resume")
LANES = 2
_LIVE = ("queued", "running", "requeued")
_LATER = ("goes on, as was said", "ended before the signal")
"""Ends of a launch that leave a run which may end later."""

_COMMENTS = ("squeue", "-h", "-a", "--states=all", "-o", "%k")

_ABOUT = 1.3
"""The start of a run as a part of the time until it is there."""

_PATIENCE_S = 240.0


@dataclass(frozen=True, slots=True)
class Disturbed:
    """How a launch that was sent signals has ended.

    Attributes:
        kind: Of launch.
        signals: By name.
        moment_s: Seconds after its start.
        end: The state that it left, in words.
        faults: What must not be; none where all is well.
        said: Its stderr.
    """

    kind: str
    signals: str
    moment_s: float
    end: str
    faults: tuple[str, ...]
    said: str


def main() -> None:
    """Disturb launches and keep the figures; status 1 where one has ended otherwise than it should, or was left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--moments", type=int, default=200, help="number of launches on this machine (default %(default)s)"
    )
    parser.add_argument("--minutes", type=float, default=60, help="stop after this many minutes (default %(default)s)")
    parser.add_argument("--slurm", type=int, default=0, help="number of launches on the development cluster")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    signals.hear_in_children()
    with tempfile.TemporaryDirectory(prefix="launch-interrupts-") as name:
        os.environ.update(XDG_STATE_HOME=f"{name}/state", XDG_CACHE_HOME=f"{name}/cache")
        found = _in_lanes(Path(name), options.moments, options.seed, options.minutes) if options.moments else []
        found += _on_slurm(Path(name), options.slurm, options.seed) if options.slurm else []
    faulty = [one for one in found if one.faults]
    wanted = f"--moments {options.moments} --minutes {options.minutes:g} --slurm {options.slurm}"
    figures = {
        "seed": options.seed,
        "moments": len(found),
        "by_launch": Counter(one.kind for one in found),
        "by_signal": Counter(one.signals for one in found),
        "ends": Counter(one.end for one in found),
        "faults": len(faulty),
        "faulty": [dataclasses.asdict(one) for one in faulty],
    }
    keep(
        "interrupts" if options.moments else "interrupts_slurm",
        f"python -m benchmarks.interrupts {wanted} --seed {options.seed}",
        figures,
    )
    sys.exit(1 if faulty or len(found) < options.moments + options.slurm else 0)


def disturbed(
    folder: Path,
    kinds: Sequence[str],
    moments: int,
    seed: int,
    life: tuple[float, float] | None = None,
    until: float = math.inf,
) -> list[Disturbed]:
    """Launches in a folder, each disturbed once.

    Args:
        folder: An empty one.
        kinds: Of launch, in turn.
        moments: How many.
        seed: Of chance.
        life: Seconds until a launch has its run, and until it ends; None to measure them.
        until: Begin no more after this time of ``time.monotonic``.
    """
    chance = random.Random(seed)
    (folder / "train.py").write_text(SCRIPT)
    lives = {kind: life or _life(folder, kind) for kind in kinds}
    found = []
    for number in range(moments):
        if time.monotonic() > until:
            break
        kind = kinds[number % len(kinds)]
        found.append(one := _disturb(folder, kind, number, lives[kind], chance))
        print(f"{number}: {kind}, {one.signals} after {one.moment_s:.3f} s: {one.end}", file=sys.stderr, flush=True)
        if one.faults:
            print(f"{'; '.join(one.faults)}\n{one.said}", file=sys.stderr, flush=True)
    return found


def _in_lanes(folder: Path, moments: int, seed: int, minutes: float) -> list[Disturbed]:
    """The launches on this machine, some at a time, each lane in a folder of its own."""
    until = time.monotonic() + 60 * minutes

    def lane(number: int) -> list[Disturbed]:
        place = folder / str(number)
        place.mkdir()
        return disturbed(place, KINDS, len(range(number, moments, LANES)), LANES * seed + number, until=until)

    with ThreadPoolExecutor(LANES) as pool:
        return [one for found in pool.map(lane, range(LANES)) for one in found]


def _words(kind: str, name: str) -> list[str]:
    if kind == "resume":
        return ["resume", name]
    words = [*WORDS, f"run.name={name}", *(("cluster=slurm",) if kind == "slurm" else ())]
    return ["-m", *words, "train.seed=1,2"] if kind == "sweep" else words


def _name(kind: str, number: int) -> str:
    return "resumed" if kind == "resume" else f"{kind}{number}"


def _life(folder: Path, kind: str, number: int = -1) -> tuple[float, float]:
    """Seconds until an undisturbed launch has its run, and until it ends; of what is resumed the run is made first."""
    if kind == "resume":
        subprocess.run([*LAUNCH, *_words("run", "resumed")], check=True, stderr=subprocess.DEVNULL, cwd=folder)
        state.put(folder / "runs" / "resumed", "cancelled")
    began, there = time.monotonic(), None
    process = subprocess.Popen([*LAUNCH, *_words(kind, _name(kind, number))], stderr=subprocess.DEVNULL, cwd=folder)
    while process.poll() is None:
        if there is None and _is_submitted(folder, _name(kind, number), began):
            there = time.monotonic() - began
        time.sleep(0.01)
    if process.returncode != 0 or there is None:
        raise RuntimeError(f"an undisturbed {kind} ended with status {process.returncode}")
    if kind == "resume":
        state.put(folder / "runs" / "resumed", "cancelled")
    return there, time.monotonic() - began


def _is_submitted(folder: Path, name: str, since: float) -> bool:
    """True once a launch that began then has noted its submission."""
    age = time.monotonic() - since
    paths = [*folder.glob(f"runs/{name}/{state.SUBMISSION}"), *folder.glob(f"runs/{name}/*/{state.SUBMISSION}")]
    with contextlib.suppress(FileNotFoundError):
        return any(time.time() - path.stat().st_mtime < age for path in paths)
    return False


def _disturb(folder: Path, kind: str, number: int, life: tuple[float, float], chance: random.Random) -> Disturbed:
    """One launch that gets its signals at a random moment, and what it has left by its end."""
    name, (signals, sent) = _name(kind, number), chance.choice(list(SIGNALS.items()))
    moment = chance.uniform(0, _ABOUT * life[0] if chance.random() < 0.8 else life[1])
    pause = chance.uniform(0, 0.5)
    with (folder / "said").open("w+") as said:
        process = subprocess.Popen(
            [*LAUNCH, *_words(kind, name)], stderr=said, stdout=said, cwd=folder, start_new_session=True
        )
        time.sleep(moment)
        for each in sent:
            _send(process, each)
            time.sleep(pause if len(sent) > 1 else 0)
        faults = []
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            faults.append(f"it has not ended {_PATIENCE_S:g} s after the signal")
        said.seek(0)
        text = said.read()
    end = _end(folder, name, process.returncode, text)
    faults += _faults(folder, name, end, process.returncode, text)
    return Disturbed(kind, signals, moment, end, tuple(faults), text)


def _send(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """Ctrl-C and a closed terminal reach the whole foreground group, SIGTERM one process."""
    with contextlib.suppress(ProcessLookupError):
        if how == signal.SIGTERM:
            process.send_signal(how)
        else:
            os.killpg(process.pid, how)


def _end(folder: Path, name: str, returncode: int, text: str) -> str:
    """The state that a launch says that it has left."""
    if returncode < 0 or (returncode not in {0, 130} and "/launcher/" not in text):
        return "ended before its first line"  # By the interpreter, which has not come to the program yet.
    if "keeps running" in text and "`launch cancel" in text:
        return "goes on, as was said"
    if "nothing was started" in text:
        return "nothing was started"
    return "ended before the signal" if returncode == 0 else "was told to end"


def _faults(folder: Path, name: str, end: str, returncode: int, text: str) -> Iterator[str]:
    """What must not be."""
    run = folder / "runs" / name
    if end in {"ended before its first line", "nothing was started"} and run.exists() and name != "resumed":
        yield f"{run} is there"
    if end != "ended before its first line":
        yield from _faults_of_ours(folder, run, end, returncode, text)
    if name == "resumed":
        state.put(run, "cancelled")


def _faults_of_ours(folder: Path, run: Path, end: str, returncode: int, text: str) -> Iterator[str]:
    if returncode not in (0, 130):
        yield f"its status is {returncode}"
    if "Traceback" in text or "Exception ignored" in text:
        yield "a traceback"
    if end == "goes on, as was said":
        for line in re.findall(r"`launch cancel (\S+)`", text):
            subprocess.run([*LAUNCH, "cancel", line], check=True, stderr=subprocess.DEVNULL, cwd=folder)
    yield from (f"{path} is left" for path in folder.glob("runs/.*"))
    runs = [path.parent for path in (*run.glob("spec.json"), *run.glob("*/spec.json"))]
    rows = status.read_all(runs)
    deadline = time.monotonic() + _PATIENCE_S
    while end in _LATER and any(row.state in _LIVE for row in rows) and time.monotonic() < deadline:
        time.sleep(0.5)
        rows = status.read_all(runs)
    if left := _processes_left(folder, 20):
        yield f"processes are left: {left}"
    for row in rows:
        waits = "`launch resume" in text if row.id.startswith("sweep") else end == "nothing was started"
        never = row.state == "prepared" and waits
        if row.state not in {"finished", "cancelled"} and not never:
            yield f"{row.id} is {row.state}: {row.reason}"


def _processes_left(folder: Path, seconds: float) -> list[str]:
    """The command lines of processes that still work in the folder after so long; they are ended."""
    deadline = time.monotonic() + seconds
    while (left := _processes(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return list(left.values())


def _processes(folder: Path) -> dict[int, str]:
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cwd").readlink() == folder and int(entry.name) != os.getpid():
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
    return {pid: line for pid, line in found.items() if line}


def _on_slurm(folder: Path, moments: int, seed: int) -> list[Disturbed]:
    """Launches on the development cluster; a submitted job is told by its comment, whatever was noted of it."""
    place = folder / "slurm"
    place.mkdir()
    cluster = dev_cluster.start(folder / "c", lifetime_s=3600)
    try:
        os.environ.update(cluster.environment)
        (place / "train.py").write_text(SCRIPT)
        # Of two, since the first one waits for a cluster that has just begun; the moments after a launch tell nothing.
        life = (min(_life(place, "slurm", -1)[0], _life(place, "slurm", -2)[0]) / _ABOUT,) * 2
        while cluster.ask("squeue", "-h"):
            time.sleep(1)
        before = Counter(cluster.ask(*_COMMENTS).splitlines())
        shutil.rmtree(place / "runs")
        found = disturbed(place, ("slurm",), moments, seed, life)
        jobs = Counter(cluster.ask(*_COMMENTS).splitlines()) - before
    finally:
        cluster.stop()
    known = Counter(str((files.read_json(path) or {}).get("comment")) for path in place.glob("runs/*/submission.json"))
    unknown = [comment for comment, count in jobs.items() if known[comment] < count]
    if unknown:
        raise RuntimeError(f"jobs that no run knows, or that were submitted twice: {json.dumps(unknown)}")
    return found


if __name__ == "__main__":
    main()
