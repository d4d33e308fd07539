"""Variables that are not the user's to set."""

from __future__ import annotations

import pytest

from launcher.rules import variables
from tests.support.helpers import make_spec


@pytest.mark.parametrize(
    "name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "LAUNCH_RUN", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"]
)
def test_what_torchrun_slurm_and_the_launcher_set_is_not_the_users_to_set_or_pass_on(name: str) -> None:
    (set_,) = variables.check(make_spec("model=tiny", f"cluster.environment.{name}=3"))
    assert set_.path == f"cluster.environment.{name}"
    assert set_.rule == "the launcher, torchrun or Slurm sets it for each process: take it out"
    (passed,) = variables.check(make_spec("model=tiny", f"cluster.pass_environment=[HOME,{name}]"))
    assert passed.rule == f"the launcher, torchrun or Slurm sets {name} for each process: take it out"
    assert passed.way_out == ("cluster.pass_environment=[HOME]",)


def test_the_folder_of_token_ids_and_what_only_begins_alike_are_the_users() -> None:
    words = ("cluster.environment.LAUNCH_CACHE=/shared", "cluster.environment.RANKS=3", "cluster.environment.WORLD=3")
    assert list(variables.check(make_spec("model=tiny", *words))) == []
