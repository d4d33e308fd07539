"""Settings that an optimizer of the FSDP engine does not read, and states that other shards cannot read."""

import pytest

from launcher.backends import fsdp as backend
from launcher.backends.fsdp import warnings
from tests.support.fsdp_specs import GPU
from tests.support.helpers import make_spec


def test_a_second_moment_that_sgd_lacks_is_warned_of() -> None:
    (warning,) = warnings(make_spec(*GPU, "optimizer=sgd", "optimizer.beta2=0.9"))
    assert warning.path == "optimizer.beta2"
    assert warning.rule == "sgd has no second moment; it reads optimizer.beta1 as its momentum"
    assert warning.way_out == ("optimizer=adamw", "optimizer.beta2=0.95")


@pytest.mark.parametrize(
    ("overrides", "path", "rule"),
    [
        (("optimizer=lion", "optimizer.epsilon=1e-6"), "optimizer.epsilon", "lion steps by the sign"),
        (("optimizer=adafactor", "optimizer.beta1=0.8"), "optimizer.beta1", "adafactor has no first moment"),
        (("optimizer=paged_adamw_8bit", "hardware=cpu"), "optimizer.name", "on the CPU nothing is paged"),
    ],
)
def test_what_an_optimizer_does_not_read_is_warned_of(overrides: tuple[str, ...], path: str, rule: str) -> None:
    (warning,) = warnings(make_spec(*GPU, *overrides))
    assert (warning.path, warning.rule.startswith(rule)) == (path, True)


def test_8_bit_states_are_not_read_in_other_shards_but_where_every_row_has_whole_blocks() -> None:
    small = ("model=tiny", "parallel=fsdp", "model.hidden_size=64")
    for name in ("adamw_8bit", "paged_adamw_8bit"):
        before, after = (make_spec(*GPU, *small, f"optimizer={name}", f"cluster.gpus_per_node={n}") for n in (4, 2))
        assert [error.path for error in backend.unreadable(before, after)] == ["cluster.gpus_per_node"]
        assert list(backend.unreadable(before, before)) == []
    before = make_spec(*GPU, *small, "optimizer=adamw_8bit", "cluster.nodes=2")
    for words, way_out in (
        (("parallel=fsdp_tp",), "parallel.tensor=1 parallel.sequence=false"),
        (("parallel=hsdp",), "parallel.replicate=1"),
        (("cluster.nodes=1", "parallel=ddp"), "cluster.nodes=2 parallel.shard=true zero.stage=3"),
    ):
        after = make_spec(*GPU, *small, "optimizer=adamw_8bit", "cluster.nodes=2", *words)
        [error] = backend.unreadable(before, after)
        assert error.way_out == (way_out,), "every setting that changed the shards, and no other"
        back = make_spec(*GPU, *small, "optimizer=adamw_8bit", "cluster.nodes=2", *words, *way_out.split())
        assert list(backend.unreadable(before, back)) == []
        assert list(backend.check(back)) == []
    before, after = (make_spec(*GPU, "optimizer=adamw_8bit", f"cluster.gpus_per_node={n}") for n in (4, 2))
    assert list(backend.unreadable(before, after)) == []


@pytest.mark.parametrize("name", ["adamw_8bit", "adamw_4bit"])
def test_quantised_states_are_not_written_in_the_background(name: str) -> None:
    """torchao's states lack ``aten.new_empty``, with which ``async_save`` copies them: its first save would fail."""
    [error] = backend.check(make_spec(*GPU, f"optimizer={name}", "save.async=true"))
    assert (error.path, error.way_out) == ("save.async", ("save.async=false", "optimizer=adamw"))
    assert list(backend.check(make_spec(*GPU, f"optimizer={name}", "save.every=2"))) == []
    assert list(backend.check(make_spec(*GPU, "save.async=true"))) == []
