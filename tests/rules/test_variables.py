"""Variables that are not the user's to set."""

from __future__ import annotations

import pytest

from launcher.preflight.this_machine import obstacles
from launcher.rules import secrets
from tests.support.helpers import CPU_HOST, make_spec


@pytest.mark.parametrize(
    "name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "LAUNCH_RUN", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"]
)
def test_what_torchrun_slurm_and_the_launcher_set_is_not_the_users_to_set_or_pass_on(name: str) -> None:
    (set_,) = secrets.check(make_spec("model=tiny", f"cluster.environment.{name}=3"))
    assert set_.path == f"cluster.environment.{name}"
    assert set_.rule == "the launcher, torchrun or Slurm sets it for each process: remove it"
    (passed,) = secrets.check(make_spec("model=tiny", f"cluster.pass_environment=[HOME,{name}]"))
    assert passed.rule == f"the launcher, torchrun or Slurm sets {name} for each process: remove it"
    assert passed.way_out == ("cluster.pass_environment=[HOME]",)


def test_the_folder_of_token_ids_and_what_only_begins_alike_are_the_users() -> None:
    words = ("cluster.environment.LAUNCH_CACHE=/shared", "cluster.environment.RANKS=3", "cluster.environment.WORLD=3")
    assert list(secrets.check(make_spec("model=tiny", *words))) == []


def test_readers_beyond_the_cores_of_this_machine_are_an_obstacle_here() -> None:
    spec = make_spec("model=tiny", "data.workers=2", "cluster.gpus_per_node=2")
    rules = [error.rule for error in obstacles(spec, CPU_HOST) if error.path == "data.workers"]
    assert rules == ["this machine has 2 cores, but 2 ranks x 2 workers would start 4 data-loading processes"]
    assert not [
        error for error in obstacles(make_spec("model=tiny", "data.workers=1"), CPU_HOST) if "workers" in error.path
    ]
