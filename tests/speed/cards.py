"""Cards as ``conf/hardware`` has them, for the tests of kernels."""

from __future__ import annotations

from dataclasses import replace

from launcher.estimate.speed.card import Card

A100 = Card(
    name="a100_80g",
    capability=8.0,
    cores=108,
    fp32=19.5e12,
    fp16=312e12,
    bf16=312e12,
    fp8=None,
    memory_bandwidth=2039e9,
    pcie_bandwidth=32e9,
)
H100 = Card(
    name="h100_80g",
    capability=9.0,
    cores=132,
    fp32=66.9e12,
    fp16=989.4e12,
    bf16=989.4e12,
    fp8=1978.9e12,
    memory_bandwidth=3352e9,
    pcie_bandwidth=64e9,
)
B200 = replace(
    H100, name="b200", capability=10.0, cores=148, fp16=2250e12, bf16=2250e12, fp8=4500e12, memory_bandwidth=8000e9
)
MI300X = replace(H100, name="mi300x", capability=9.4, cores=304, bf16=1307.4e12, memory_bandwidth=5300e9)
V100 = replace(A100, name="v100_32g", capability=7.0, cores=80, fp16=125e12, bf16=15.7e12, memory_bandwidth=900e9)
RTX4090 = replace(H100, name="rtx4090", capability=8.9, cores=128, bf16=165e12, fp8=330e12, memory_bandwidth=1008e9)
