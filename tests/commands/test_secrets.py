"""Secrets travel by the name of a variable: never in a setting, a message or a record."""

from __future__ import annotations

import pytest

from launcher.cli import main
from launcher.preflight import assess
from tests.support.helpers import make_spec


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "HF_TOKEN", "DB_PASSWORD", "aws_secret_access_key"])
def test_a_secret_given_as_a_setting_is_refused_and_not_repeated(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=tiny", f"cluster.environment.{name}=hunter2"]
    assert main(["check", *words]) == 2
    said = capsys.readouterr()
    assert "hunter2" not in said.out + said.err
    assert f"try  cluster.pass_environment=[{name}]" in said.out + said.err
    (error,) = assess.errors(make_spec(*words))
    assert (error.path, error.found) == (f"cluster.environment.{name}", "(not shown)")


def test_a_name_that_a_shell_would_run_is_no_variable() -> None:
    (error,) = assess.errors(make_spec("model=tiny", "cluster.environment={a b:c}"))
    assert error.rule == "a variable's name is letters, digits and _, and begins with no digit"


def test_an_ordinary_variable_is_no_secret() -> None:
    assert not assess.errors(make_spec("model=tiny", "cluster.environment.NCCL_DEBUG=INFO"))
    assert not assess.errors(make_spec("model=tiny", "cluster.environment.KEYBOARD=us"))
