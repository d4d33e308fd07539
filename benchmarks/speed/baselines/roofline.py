"""A plain roofline: FLOPs, bytes of memory and bytes on the wire, each over its rate, and the pipeline's bubble."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.speed.baselines import _run
from benchmarks.speed.row import Row
from launcher.spec import RunSpec

SHARE = 0.70
"""Of peak FLOP/s and of memory bandwidth: what meta-pytorch/autoparallel's compute estimator takes for both."""

SOURCE = (
    "a plain roofline: the larger of FLOPs over 70% of the peak and bytes over 70% of memory bandwidth (the shares of"
    " meta-pytorch/autoparallel's compute estimator), plus every byte of communication over the wire's full bandwidth,"
    " nothing overlapped, times the pipeline's bubble; no latencies, no kernels, no host, no small messages"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What one GPU does in a second: FLOP/s and bytes of memory reached, bytes one way inside and between domains."""

    flops: float
    memory: float
    link: float
    network: float
    link_gpus: int

    def wire(self, ranks: int, stride: int) -> float:
        """Bytes per second of one rank in a group of ``ranks``, every ``stride``-th GPU: a ring over all its NICs."""
        if ranks * stride <= self.link_gpus:
            return self.link
        return min(self.link, self.network * max(1, self.link_gpus // stride))


def predict(row: Row) -> float | None:
    """Tokens per second of one GPU; None for adapters, offload, Ulysses or a card without figures."""
    spec = row.spec
    if spec is None or spec.parallel.ulysses > 1 or not _run.trains_everything(spec):
        return None
    rates = rates_of(spec)
    return None if rates is None else _run.speed(spec, step(spec, rates))


def rates_of(spec: RunSpec) -> Rates | None:
    """The card's figures; None where one that the run needs is unknown."""
    hardware, peak = spec.hardware, _run.peak(spec)
    network = spec.cluster.network_bandwidth or hardware.network_bandwidth
    if peak is None or hardware.memory_bandwidth is None or hardware.link_bandwidth is None:
        return None
    domain = hardware.link_gpus or 1
    if network is None and spec.gpus > domain:
        return None
    return Rates(
        flops=SHARE * peak,
        memory=SHARE * hardware.memory_bandwidth,
        link=hardware.link_bandwidth,
        network=network or hardware.link_bandwidth,
        link_gpus=domain,
    )


def step(spec: RunSpec, rates: Rates) -> float:
    """``(m + (p - 1) / v) x`` one micro-batch on a stage, the data parallel traffic and the optimizer's bytes."""
    parallel = spec.parallel
    slots = spec.gradient_accumulation + (parallel.pipeline - 1) / parallel.virtual_pipeline
    micro_batch = max(flops(spec) / rates.flops, memory_bytes(spec) / rates.memory) + communication(spec, rates)
    # Adam in mixed precision: a 16-bit gradient and value, and read and written master and two moments.
    states = rank_parameters(spec) / (spec.data_degree if _run.zero_stage(spec) >= 1 else 1)
    return slots * micro_batch + data_parallel(spec, rates) + 28 * states / rates.memory


def rank_parameters(spec: RunSpec) -> float:
    """Parameters of one rank before ZeRO: the whole model over tensor, pipeline and, as if all were experts, expert."""
    return _run.parameters(spec) / (spec.parallel.tensor * spec.parallel.pipeline * spec.parallel.expert)


def flops(spec: RunSpec) -> float:
    """FLOPs of one micro-batch on one rank: ``6 N + 6 L a d s`` a token, causal, and what is recomputed."""
    model, mode = spec.model, spec.checkpointing.mode
    scores = 2 * model.num_hidden_layers * model.query_size * spec.sequence_length
    products = 2 * _run.matrix_parameters(spec)
    again = {"none": 0, "selective": scores, "full": products + scores}[mode]
    tokens = spec.micro_batch_size * spec.sequence_length
    return tokens * (3 * (products + scores) + again) / spec.model_parallel


def memory_bytes(spec: RunSpec) -> float:
    """Bytes of one micro-batch on one rank: its weights once a pass, and each kept activation written and read.

    Activations of a layer are ``s b h (10 + 24 / t)`` bytes, ``34 s b h / t`` with sequence parallelism
    (arXiv:2205.05198, table 2, without the scores).
    """
    model, parallel = spec.model, spec.parallel
    passes = 4 if spec.checkpointing.mode == "full" else 3
    shared = 34 / parallel.tensor if parallel.sequence else 10 + 24 / parallel.tensor
    kept = _message(spec) / 2 * shared * model.num_hidden_layers / parallel.pipeline
    weights = 2 * _run.matrix_parameters(spec) / (parallel.tensor * parallel.pipeline)
    return passes * weights + 2 * kept


def communication(spec: RunSpec, rates: Rates) -> float:
    """Seconds on the wire of one micro-batch on one stage: tensor, context, expert and pipeline parallel."""
    model, parallel = spec.model, spec.parallel
    tensor, context, expert = parallel.tensor, parallel.context, parallel.expert
    layers, passes = model.num_hidden_layers / parallel.pipeline, 3 if spec.checkpointing.mode == "full" else 2
    size, around = _message(spec), _around
    seconds = layers * passes * 2 * 2 * around(tensor) * size / rates.wire(tensor, 1)
    # Keys and values go around the ring forward, and with their gradients backward.
    ring = 2 * 2 * spec.micro_batch_size * spec.sequence_length * model.key_value_size / tensor
    seconds += layers * (passes + 1) * around(context) * ring / rates.wire(context, tensor)
    routed = size / (tensor if parallel.sequence else 1) * model.num_experts_per_tok
    seconds += layers * passes * 2 * around(expert) * routed / rates.wire(expert, tensor)
    if parallel.pipeline > 1:
        sent = 2 * parallel.virtual_pipeline * size / (tensor if parallel.sequence else 1)
        seconds += sent / (rates.link if spec.gpus <= rates.link_gpus else rates.network)
    return seconds


def data_parallel(spec: RunSpec, rates: Rates) -> float:
    """Seconds of an all-reduce of 16-bit gradients; at stage 3 two gathers a micro-batch and one reduction of them."""
    size = 2 * rank_parameters(spec)
    rounds = 2 * spec.gradient_accumulation + 1 if _run.zero_stage(spec) == 3 else 2
    wire = rates.wire(spec.data_degree, spec.parallel.tensor * spec.parallel.context)
    return rounds * _around(spec.data_degree) * size / wire


def _message(spec: RunSpec) -> float:
    """Bytes of one micro-batch's 16-bit hidden states."""
    return 2 * spec.micro_batch_size * spec.sequence_length * spec.model.hidden_size / spec.parallel.context


def _around(ranks: int) -> float:
    return (ranks - 1) / ranks
