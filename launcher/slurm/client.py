"""Slurm's own commands: run, waited for while the controller is away, and refused in our words."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from launcher.base.errors import SubmitError

_TIMEOUT_S = 60
"""Seconds for one command: Slurm's own messages time out after 10 (``MessageTimeout`` of slurm.conf(5))."""

_AWAY = ("Unable to contact slurm controller", "Socket timed out", "Connection refused", "slurmctld: connect",
         "Could not establish a configuration source")  # fmt: skip
_BETWEEN_S = 0.5  # Seconds between two tries while the controller is away.

LEAKS = ("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SUBMITIT_")
"""Beginnings of the names of variables that a surrounding Slurm job or submitit sets."""

RANKS = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""Variables that torchrun sets for a rank: a launch from inside a job must not hand them to the next one."""


class SlurmRefused(Exception):
    """A command of Slurm ended with an error that is not about reaching it; the text is Slurm's."""


def ask(*command: str, patience_s: float = 0) -> str:
    """Run one of Slurm's commands and return its output; for ``patience_s`` again while the controller is away.

    SubmitError: there is no Slurm here, or no answer; SlurmRefused: it answered with an error.
    """
    import subprocess  # Late, as `shutil` is, because most commands only ask whether there is a Slurm.

    if not _is_here(command[0]):
        way = "submit from a login node, or use cluster=local"
        raise SubmitError(f"{command[0]} is not found: this machine has no Slurm; {way}")
    deadline = time.monotonic() + patience_s
    while True:
        try:
            done = subprocess.run(
                command, env=environment(os.environ), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise SubmitError(f"Slurm does not answer: {command[0]} took more than {_TIMEOUT_S} s") from None
        if done.returncode == 0:
            # sbatch says on stderr what it would do.
            return f"{done.stdout}{done.stderr}" if "--test-only" in command else done.stdout
        text = " ".join((done.stderr or done.stdout).split())
        if done.returncode < 0:  # Slurm ends what runs in a job that it puts back, this command among it.
            text = f"{command[0]} was ended by {signal.Signals(-done.returncode).name}"
        elif not is_away(text):
            raise SlurmRefused(text)
        if time.monotonic() >= deadline:
            raise SubmitError(f"Slurm does not answer: {text}")
        time.sleep(_BETWEEN_S)


def installed() -> bool:
    """True if this machine has Slurm's commands."""
    return _is_here("scontrol")


def _is_here(program: str) -> bool:
    from shutil import which

    return which(program) is not None


def is_away(text: str) -> bool:
    """True if a command failed because nobody answered."""
    return any(words in text for words in _AWAY)


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment without a surrounding job's variables, which would win over the script's own lines."""
    return {name: value for name, value in variables.items() if not leaks(name)}


def leaks(name: str) -> bool:
    """True if a variable belongs to a surrounding job; ``SLURM_CONF``, which names the cluster, does not."""
    return name != "SLURM_CONF" and (name.startswith(LEAKS) or name in RANKS)
