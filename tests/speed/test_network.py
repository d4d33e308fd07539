"""The links of a run, and how a group lies on them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.estimate.speed.network import Group, Network, group_of, network_of
from tests.support.helpers import make_spec

NODE = Network("nvlink4", 450e9, 8, 8, 50e9)
RACK = Network("nvlink5", 900e9, 72, 4, 50e9)
PAIRS = Network("nvlink3", 56e9, 2, 8, 6.25e9)


@pytest.mark.parametrize(
    ("ranks", "stride", "network", "found"),
    [
        pytest.param(8, 1, NODE, Group(8, 8), id="tensor=8 fills a node"),
        pytest.param(16, 1, NODE, Group(16, 8), id="tensor=16 lies on two"),
        pytest.param(4, 8, NODE, Group(4, 1), id="data of tensor=8: one rank a node"),
        pytest.param(8, 2, NODE, Group(8, 4), id="data of tensor=2: four ranks a node"),
        pytest.param(12, 1, NODE, Group(12, 6), id="12 ranks lie evenly on two nodes"),
        pytest.param(2, 32, NODE, Group(2, 1), id="pipeline stages on different nodes"),
        pytest.param(64, 1, RACK, Group(64, 64), id="a rack of 18 nodes with 4 GPUs is one domain"),
        pytest.param(128, 1, RACK, Group(128, 64), id="two racks"),
        pytest.param(8, 1, PAIRS, Group(8, 8), id="cards in pairs reach one another in their node"),
    ],
)
def test_ranks_of_a_group_share_a_domain_by_their_stride(
    ranks: int, stride: int, network: Network, found: Group
) -> None:
    assert group_of(ranks, stride, network) == found


@given(ranks=st.integers(1, 512), stride=st.integers(1, 512), network=st.sampled_from([NODE, RACK, PAIRS]))
def test_domains_hold_all_ranks_and_none_more_than_there_is_room_for(ranks: int, stride: int, network: Network) -> None:
    group = group_of(ranks, stride, network)
    assert group.inside * group.domains >= ranks > group.inside * (group.domains - 1)
    assert group.inside == 1 or (group.inside - 1) * stride < network.span


def test_a_cluster_names_its_network_else_it_is_the_cards_usual_one() -> None:
    usual = network_of(make_spec("hardware=h100_80g", "cluster=slurm", "cluster.nodes=2"))
    slower = network_of(
        make_spec("hardware=h100_80g", "cluster=slurm", "cluster.nodes=2", "cluster.network_bandwidth=12.5e9")
    )
    assert usual == Network("nvlink4", 450e9, 8, 8, 50e9, 64e9)
    assert slower == Network("nvlink4", 450e9, 8, 8, 12.5e9, 64e9)


@pytest.mark.parametrize(
    ("card", "links"),
    [
        ("v100_32g", "nvlink3"),
        ("a100_80g", "nvlink3"),
        ("l40s", "nvlink3"),
        ("h200", "nvlink4"),
        ("b200", "nvlink5"),
        ("mi300x", "xgmi"),
    ],
)
def test_a_card_takes_the_table_of_its_generation_and_over_pcie_the_one_without_nvlink_sharp(
    card: str, links: str
) -> None:
    found = network_of(make_spec(f"hardware={card}"))
    assert found is not None
    assert found.links == links


def test_links_that_nobody_stated_are_unknown_and_the_network_only_where_it_is_used() -> None:
    assert network_of(make_spec("hardware=cpu")) is None
    assert network_of(make_spec("hardware=rtx3090", "cluster=slurm", "cluster.nodes=2")) is None
    assert network_of(make_spec("hardware=rtx3090", "cluster=slurm", "cluster.nodes=1")) is not None
