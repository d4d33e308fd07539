"""Seconds of copies between host and device, and of the optimizer's step on the host."""

from __future__ import annotations

import pytest

from launcher.estimate.speed.calibration import UNCALIBRATED
from launcher.estimate.speed.estimate import estimate, unknown
from launcher.estimate.speed.result import SpeedEstimate
from launcher.estimate.speed.terms import SpeedTerm
from launcher.preflight.assess import parts
from tests.support.helpers import make_spec

RUN = ("model=llama3_8b", "hardware=h100_80g", "cluster=slurm")
HOST_STEP = "the optimizer's step on the host"


def estimated(*words: str) -> SpeedEstimate:
    spec = make_spec(*RUN, *words)
    found = estimate(spec, **parts(spec), measured=UNCALIBRATED)
    assert found is not None
    return found


def offloaded(*words: str) -> dict[str, SpeedTerm]:
    return {term.what: term for term in estimated(*words).terms if term.part == "offload"}


def test_eight_billion_parameters_take_the_host_of_a_node_what_zero_offload_prints() -> None:
    """arXiv:2101.06840, table 4: 2.41 s for 8 B with CPU-Adam; our figure lies between those of 1 and of 10 B."""
    found = offloaded("parallel=zero2", "zero.offload_optimizer=cpu")
    assert found[HOST_STEP].seconds * 8 / 8.03 == pytest.approx(2.41, rel=0.25)


def test_two_nodes_share_the_step_on_the_host() -> None:
    one = offloaded("parallel=zero2", "zero.offload_optimizer=cpu")
    two = offloaded("parallel=zero2", "zero.offload_optimizer=cpu", "cluster.nodes=2")
    assert one[HOST_STEP].seconds == pytest.approx(2 * two[HOST_STEP].seconds, rel=1e-3)


def test_the_sum_of_gradients_goes_out_and_comes_back_with_every_further_micro_batch() -> None:
    words = ("parallel=zero2", "zero.offload_optimizer=cpu")
    once, thrice = (
        offloaded(*words, f"train.global_batch_size={8 * m}")["gradients to the host"].values["k"] for m in (1, 3)
    )
    assert (once, thrice) == (4, 4 + 2 * 5)


def test_weights_on_the_host_come_for_both_passes_of_each_micro_batch() -> None:
    copies = offloaded("parallel=fsdp", "zero.offload_parameters=cpu")["weights from the host, for both passes"]
    assert copies.seconds == pytest.approx(2 * 4 * 8.03e9 / 8 / (0.8 * 64e9), rel=0.01)


def test_an_optimizer_on_the_host_has_no_step_on_the_device() -> None:
    for words in (("parallel=zero2", "zero.offload_optimizer=cpu"), ("parallel=fsdp", "zero.offload_parameters=cpu")):
        assert not [term for term in estimated(*words).terms if term.part == "optimizer"]
    assert not offloaded("parallel=zero2")


def test_offloading_is_slower_than_not() -> None:
    plain, offloads = estimated("parallel=zero2"), estimated("parallel=zero2", "zero.offload_optimizer=cpu")
    assert offloads.step_seconds > plain.step_seconds


NVME = ("parallel=zero3", "zero.offload_optimizer=nvme", "zero.nvme_path=/disk")


def test_the_time_of_nvme_disks_is_unknown_until_their_bandwidth_is_said() -> None:
    spec = make_spec(*RUN, *NVME)
    assert unknown(spec, parts(spec)["backend"]) == (
        "the bandwidth of the nodes' NVMe disks is not known: set hardware.nvme_bandwidth to a node's bytes/s "
        "(zero.offload_optimizer=nvme)"
    )


def test_states_go_to_the_disks_of_a_node_and_back_once_a_step() -> None:
    """Gradients, weights and both moments in fp32, 16 bytes a parameter, written and read; a node has all shards."""
    found = offloaded(*NVME, "hardware.nvme_bandwidth=20e9")["gradients, weights and moments to NVMe and back"]
    assert found.seconds == pytest.approx(2 * 16 * 8.03e9 / 20e9, rel=0.01)
    both = (*NVME, "zero.offload_parameters=nvme", "hardware.nvme_bandwidth=20e9")
    weights = offloaded(*both)["weights from the host, for both passes"]
    assert weights.seconds == pytest.approx(2 * 2 * 8.03e9 / 20e9, rel=0.01)


def quantized(*words: str) -> SpeedTerm:
    words = ("parallel=zero3", "cluster.nodes=4", "precision.reduce=fp16", *words)
    [found] = [term for term in estimated(*words).terms if term.part == "data"]
    return found


def test_weights_in_8_bits_are_gathered_in_half_the_bytes() -> None:
    """Both passes gather 2 bytes a parameter, or 1 and the scales; gradients are 2 in either case."""
    plain, half = quantized(), quantized("zero.quantized_weights=true")
    assert half.bytes / plain.bytes == pytest.approx((2 * 1.0005 + 2) / 6, rel=1e-3)
    assert half.seconds < plain.seconds


def test_gradients_in_4_bits_take_fewer_bytes_between_nodes() -> None:
    """Within nodes of 8 half a byte a parameter, between nodes an eighth of that."""
    plain, less = quantized(), quantized("zero.quantized_gradients=true")
    assert (plain.bytes - less.bytes) / 8.03e9 == pytest.approx(2 - 0.5005 * 9 / 8, rel=0.01)
    assert less.seconds < plain.seconds
