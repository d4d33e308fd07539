"""Seconds of collectives: the figures of their sources, and laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.estimate.speed.collectives import Kind, seconds
from launcher.estimate.speed.network import Group, Network

A100 = Network("nvlink3", 300e9, 8, 8, 25e9)
H100 = Network("nvlink4", 450e9, 8, 8, 50e9)
B200 = Network("nvlink5", 900e9, 8, 8, 50e9)
MI300X = Network("xgmi", 448e9, 8, 8, 50e9)
NODE = Group(8, 8)
MIB = 2**20
RINGS: tuple[Kind, ...] = ("all_gather", "reduce_scatter", "all_reduce")

kinds = st.sampled_from(["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send", "broadcast"])
networks = st.sampled_from([A100, H100, B200, MI300X])
sizes = st.floats(min_value=1, max_value=2.0**36)
groups = st.builds(
    lambda nodes, inside: Group(nodes * inside, inside),
    st.integers(1, 130),
    st.sampled_from([1, 2, 3, 4, 6, 8]),
).filter(lambda group: group.ranks > 1)


def bus(kind: Kind, size: float, group: Group, network: Network) -> float:
    """GB/s in nccl-tests' convention."""
    passes = 2 if kind == "all_reduce" else 1
    return passes * (1 - 1 / group.ranks) * size / seconds(kind, size, group, network) / 1e9


@pytest.mark.parametrize(
    ("network", "gathered", "scattered", "reduced", "exchanged"),
    [
        pytest.param(A100, 205.3, 212.8, 222.3, 203.1, id="A100, NCCL 2.27.3"),
        pytest.param(H100, 335.2, 335.7, 445.1, 315.2, id="H100, NCCL 2.29.2"),
        pytest.param(B200, 617.0, 612.9, 704.0, 563.2, id="B200, NCCL 2.29.2"),
    ],
)
def test_512_mib_on_8_gpus_take_what_aiconfigurators_tables_print(
    network: Network, gathered: float, scattered: float, reduced: float, exchanged: float
) -> None:
    size = 512 * MIB
    assert bus("all_gather", size, NODE, network) == pytest.approx(gathered, rel=0.001)
    assert bus("reduce_scatter", size, NODE, network) == pytest.approx(scattered, rel=0.001)
    assert bus("all_reduce", size, NODE, network) == pytest.approx(reduced, rel=0.001)
    assert bus("all_to_all", size, NODE, network) == pytest.approx(exchanged, rel=0.001)


def test_small_all_reduces_of_8_h100_take_no_less_than_the_measured_latency_of_16_us() -> None:
    assert seconds("all_reduce", 8, NODE, H100) == seconds("all_reduce", 512, NODE, H100)
    assert seconds("all_reduce", 512, NODE, H100) == pytest.approx(15.6e-6, rel=0.05)


def test_between_measured_sizes_the_answer_is_their_geometric_mean() -> None:
    low, high = (seconds("all_gather", size * MIB, NODE, H100) for size in (32, 64))
    assert seconds("all_gather", 32 * MIB * 2**0.5, NODE, H100) == pytest.approx((low * high) ** 0.5)


def test_beyond_512_mib_the_bandwidth_stays() -> None:
    assert bus("all_reduce", 2**34, NODE, H100) == pytest.approx(445.1, rel=0.001)


def test_an_h800_whose_links_have_200e9_of_450e9_bytes_takes_2_25_times_as_long_but_for_the_latency() -> None:
    h800 = H100._replace(link_bandwidth=200e9)
    latency = seconds("all_gather", 1, NODE, H100)
    assert seconds("all_gather", 1, NODE, h800) == latency
    slower, faster = (seconds("all_gather", 512 * MIB, NODE, network) - latency for network in (h800, H100))
    assert slower / faster == pytest.approx(450 / 200)


@pytest.mark.parametrize(("nodes", "share"), [(2, 0.32), (4, 0.24), (8, 0.13)], ids=["2 nodes", "4 nodes", "8 nodes"])
def test_16_mib_across_whole_nodes_reach_about_the_share_of_the_wire_that_simai_measured(
    nodes: int, share: float
) -> None:
    size, group = 16 * MIB, Group(8 * nodes, 8)
    wire = size * (1 - 1 / group.ranks) / (8 * 48.5e9)
    assert wire / seconds("all_gather", size, group, H100) == pytest.approx(share, abs=0.06)


def test_a_group_with_one_gpu_a_node_reaches_the_0_96_of_its_nic_that_simai_gives() -> None:
    assert bus("all_gather", 2**34, Group(16, 1), H100) / 48.5 == pytest.approx(0.96, abs=0.01)


def test_an_all_reduce_over_4_times_8_b200_is_within_a_sixth_of_what_was_measured_on_efa() -> None:
    """stas00/ml-engineering@744d01e1, ``network/README.md``: 382 and 198 GB/s for 16 GiB and 128 MiB."""
    assert bus("all_reduce", 2**34, Group(32, 8), B200) == pytest.approx(382, rel=1 / 6)
    assert bus("all_reduce", 128 * MIB, Group(32, 8), B200) == pytest.approx(198, rel=1 / 6)


def test_nics_of_a_node_work_together_and_a_lone_rank_has_one() -> None:
    whole, lone = (bus("all_gather", 2**34, group, H100) for group in (Group(64, 8), Group(8, 1)))
    assert 6 < whole / lone < 8


def test_a_message_takes_one_hop_and_0_8_of_the_nic() -> None:
    assert seconds("send", 1e9, Group(2, 1), H100) == pytest.approx(22.4e-6 + 1e9 / 40e9)
    assert seconds("send", 1e9, Group(2, 2), H100) < seconds("send", 1e9, Group(2, 1), H100) / 4


def test_an_all_to_all_starts_after_the_latency_that_autoparallel_gives() -> None:
    assert seconds("all_to_all", 1, Group(256, 8), H100) == pytest.approx(290e-6, rel=0.001)
    assert seconds("all_to_all", 1, Group(16, 8), H100) == pytest.approx(37e-6, rel=0.001)


def test_72_gpus_of_a_rack_need_no_network() -> None:
    rack = Network("nvlink5", 900e9, 72, 4, None)
    assert bus("all_gather", 2**32, Group(72, 72), rack) == pytest.approx(617, rel=0.02)
    assert seconds("all_gather", 512, Group(72, 72), rack) < 0.2e-3


def test_a_run_of_one_rank_communicates_nothing() -> None:
    assert seconds("all_reduce", 1e9, Group(1, 1), H100) == 0.0


def test_an_mi300x_group_of_two_has_one_of_seven_links() -> None:
    pair, node = (bus("all_gather", 2**36, Group(ranks, ranks), MI300X) for ranks in (2, 8))
    assert node / pair == pytest.approx(7, rel=0.01)
    assert node == pytest.approx(0.70 * 448, rel=0.01)


@given(kind=kinds, size=sizes, more=st.floats(min_value=1, max_value=8), group=groups, network=networks)
def test_more_bytes_never_take_less_time(kind: Kind, size: float, more: float, group: Group, network: Network) -> None:
    assert seconds(kind, size * more, group, network) >= seconds(kind, size, group, network) * (1 - 1e-9)


@given(kind=kinds, size=sizes, faster=st.floats(min_value=1, max_value=20), group=groups, network=networks)
def test_faster_links_never_take_more_time(
    kind: Kind, size: float, faster: float, group: Group, network: Network
) -> None:
    assert network.network_bandwidth is not None
    inside = network._replace(link_bandwidth=network.link_bandwidth * faster)
    across = network._replace(network_bandwidth=network.network_bandwidth * faster)
    for other in (inside, across):
        assert seconds(kind, size, group, other) <= seconds(kind, size, group, network) * (1 + 1e-9)


@given(kind=kinds, size=sizes, slower=st.floats(min_value=1, max_value=20), group=groups, network=networks)
def test_a_longer_step_between_nodes_never_takes_less_time(
    kind: Kind, size: float, slower: float, group: Group, network: Network
) -> None:
    near, far = (network._replace(network_latency=14e-6 * factor) for factor in (1, slower))
    assert seconds(kind, size, group, far) >= seconds(kind, size, group, near) * (1 - 1e-9)
    assert seconds(kind, size, group, near) >= seconds(kind, size, group, network) * (1 - 1e-9)


@given(kind=st.sampled_from(RINGS), size=sizes, inside=st.sampled_from([1, 2, 4, 8]), network=networks, data=st.data())
def test_more_nodes_never_take_less_time_for_the_same_buffer(
    kind: Kind, size: float, inside: int, network: Network, data: st.DataObject
) -> None:
    nodes = data.draw(st.integers(1 if inside > 1 else 2, 128))
    more = data.draw(st.integers(nodes, 256))
    few, many = (seconds(kind, size, Group(count * inside, inside), network) for count in (nodes, more))
    assert many >= few * 0.98


@given(kind=st.sampled_from(RINGS), size=sizes, network=st.sampled_from([A100, H100, B200]), data=st.data())
def test_more_ranks_of_a_domain_never_take_less_time_but_for_nvlink_sharp(
    kind: Kind, size: float, network: Network, data: st.DataObject
) -> None:
    """An all-reduce of 8 H100 is measured 8% faster than one of 4 from 128 MiB on, of 8 B200 by 16% at 8 MiB."""
    ranks = data.draw(st.integers(2, 72))
    more = data.draw(st.integers(ranks, 72))
    few, many = (seconds(kind, size, Group(count, count), network) for count in (ranks, more))
    allowed = 0.82 if kind == "all_reduce" and network is not A100 else 0.98
    assert many >= few * allowed
