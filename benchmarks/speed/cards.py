"""Names of GPUs and of networks in the files, as options of ``hardware=`` and bytes a second."""

from __future__ import annotations

import re

CARDS = {
    "A100-SXM-80GB": "a100_80g",
    "A100-80GB": "a100_80g",
    "A100-SXM4-80GB": "a100_80g",
    "A100-SXM-40GB": "a100_40g",
    "A100-40GB": "a100_40g",
    "A100-SXM4-40GB": "a100_40g",
    "A6000": "a6000",
    "A10G-24GB": "a10g",
    "A800-SXM-80GB": "a800",
    "B200": "b200",
    "B200-SXM-180GB": "b200",
    "B300-SXM": "b300",
    "GB200 (Blackwell SM100)": "gb200",
    "GB200-NVL72": "gb200",
    "GB300-NVL72": "gb300",
    "GH200-96GB": "gh200",
    "H100-SXM-80GB": "h100_80g",
    "H100-80GB": "h100_80g",
    "H100-96GB HBM2e": "h100_96g",
    "H200": "h200",
    "H200-141GB": "h200",
    "H200-SXM-141GB": "h200",
    "H800-SXM-80GB": "h800",
    "MI300X-192GB": "mi300x",
    "MI300X": "mi300x",
    "MI325X-256GB": "mi325x",
    "MI350X-288GB": "mi350x",
    "MI355X-288GB": "mi355x",
    "RTX3090-24GB": "rtx3090",
    "RTX4090": "rtx4090",
    "V100 (inferred)": "v100_32g",
    "V100-16GB": "v100_16g",
    "V100-32GB": "v100_32g",
    "V100-SXM2-16GB": "v100_16g",
    "V100-SXM2-32GB": "v100_32g",
    "V100-SXM3-32GB (DGX-2)": "v100_sxm3_32g",
}

_NETWORKS = (
    (r"1600 Gb/s per node", 25.0e9),
    (r"NVLink \(8 GPUs\) \+ 800 Gb/s per node", 12.5e9),
    (r"NVLink \+ one 100 Gb/s InfiniBand per node", 1.5625e9),
    (r"4 x 100 Gb RoCE", 6.25e9),
    (r"4 x 200 Gb/s RDMA", 12.5e9),
    (r"Alps Clariden, Slingshot 200 Gb/s a GPU", 25.0e9),
    (r"GCP A3 \(GPUDirect-TCPX", 25.0e9),
    (r"4x ConnectX-7 IB NDR 400 Gb/s", 50.0e9),
    (r"4x ConnectX-8 IB XDR 800 Gb/s", 100.0e9),
    (r"Selene", 25.0e9),
)
"""Bytes a second of one GPU's share, one way, by the beginning of a row's own words."""


_JEAN_ZAY = 50e9
"""Bytes a second of a node of Jean Zay, of four V100 or of eight A100: four Omni-Path links of 100 Gb/s
(huggingface.co/bigscience/bloom, hardware; the wiki of IDRIS)."""


def network_bandwidth(words: str, gpus_per_node: int) -> float | None:
    """The network that a row states; None where it states none, or that of the card's usual machine."""
    if words.startswith("Jean Zay"):
        return _JEAN_ZAY / gpus_per_node
    return next((rate for pattern, rate in _NETWORKS if re.match(pattern, words)), None)
