"""nanotron's training steps on the first stage, played through torch's allocator: ``max_memory_reserved``."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.memory.frameworks.nanotron.device_memory import DeviceMemory
from benchmarks.memory.frameworks.nanotron.micro_batch import FirstStage, SavedForward
from benchmarks.memory.frameworks.nanotron.sizes import Sizes, sizes
from launcher.base.units import MIB
from launcher.estimate.memory.reserved import OutOfMemory
from launcher.spec import RunSpec

_CUBLAS = 32 * MIB  # torch aten/src/ATen/cuda/CublasHandlePool.cpp, Hopper; one for the thread of each pass.
_BUCKET = 25 * MIB  # nanotron config/config.py, ddp_bucket_cap_mb.
_STEADY = 2
"""Micro-batches that are followed after the pipeline is full: the others repeat them."""

_OUTLASTING = 4e-3 * 400e12
"""Floating-point operations of a block's forward pass from which the GPU takes longer than the host takes to launch it.

Fitted: runs of two models hold buffers from 5.1 ms at 400 TFLOP/s on, and none up to 2.7 ms.
"""

_PASS_LAUNCHES = 20
"""Launches of a stage's pass outside of its blocks: ids and masks of the token table, the message and its metadata
(nanotron ``p2p.py``, ``_send_meta``).

Fitted: the number is inferred from the rows that it scores; no source counts them."""


def reserved(spec: RunSpec, *, run_ahead: bool, capacity: int) -> int:
    """Bytes that the allocator of the first stage's ranks has reserved at the end of the second step.

    The first step makes Adam's moments, in memory that its activations have left; the second finds them there.
    Peaks are counted anew from the end of each backward pass (nanotron ``logging.py``, ``log_memory``).

    Args:
        spec: The run.
        run_ahead: Whether the host does not wait for the GPU between the stages of a pipeline: its repair.
        capacity: Bytes that the allocator may reserve; a run that does not get by with them has them all.
    """
    training = _Training(spec=spec, memory=DeviceMemory(capacity), sizes=sizes(spec), run_ahead=run_ahead)
    try:
        training.load()
        stage = training.stage()
        training.step(stage, first=True)
        training.step(stage, first=False)
    except OutOfMemory:
        return capacity
    return training.memory.peak_reserved


@dataclass(slots=True)
class _Training:
    spec: RunSpec
    memory: DeviceMemory
    sizes: Sizes
    run_ahead: bool

    @property
    def layers(self) -> int:
        """Blocks of the first stage."""
        return self.spec.parallel.first_stage_layers or self.spec.model.num_hidden_layers

    @property
    def only(self) -> bool:
        """True if there is no other stage."""
        return self.spec.parallel.pipeline == 1

    def stage(self) -> FirstStage:
        """The model's part on the first stage."""
        model = self.spec.model
        return FirstStage(
            memory=self.memory,
            sizes=self.sizes,
            layers=self.layers,
            split=self.spec.parallel.tensor > 1,
            last=self.only,
            tied=model.tie_word_embeddings,
        )

    def weights(self) -> list[int]:
        """Elements of every matrix in the order of the model; norms are left out."""
        ends = [self.sizes.table // 2] * (2 if self.only and not self.spec.model.tie_word_embeddings else 1)
        block = [size // 2 for size in self.sizes.weights.values()]
        return [ends[0], *block * self.layers, *ends[1:]]

    def shard(self, elements: int) -> int:
        """The part of a weight that the rank's optimizer steps."""
        return -(-elements // self.spec.data_degree) if self.spec.zero.stage else elements

    def load(self) -> None:
        """Parameters, DDP's buckets without ZeRO, fp32 gradients and master weights in one piece each, rotations."""
        memory, weights = self.memory, self.weights()
        for elements in weights:
            memory.new(2 * elements)
        if self.spec.data_degree > 1 and not self.spec.zero.stage:
            for size in _buckets([2 * elements for elements in reversed(weights)]):
                memory.new(size)
        memory.new(4 * sum(weights))
        memory.new(4 * sum(self.shard(elements) for elements in weights))
        memory.empty_cache()
        for _ in range(2 * self.layers):
            memory.new(self.spec.sequence_length * self.spec.model.head_size)
        memory.new(_CUBLAS)

    def step(self, stage: FirstStage, *, first: bool) -> None:
        """1F1B over the micro-batches, and the optimizer."""
        count = self.spec.gradient_accumulation
        warm_up = min(self.spec.parallel.pipeline - 1, count)
        waiting: list[SavedForward] = []
        for number in range(min(count, warm_up + _STEADY)):
            self.memory.ahead = self._ahead(number, warm_up, first=first)
            self.memory.launch(0 if self.only else _PASS_LAUNCHES)
            waiting.append(stage.forward())
            if number >= warm_up:
                self._backward(stage, waiting.pop(0))
        while waiting:
            self._backward(stage, waiting.pop(0))
        self.memory.reset_peak()
        if first:
            self.memory.new(_CUBLAS)
            for elements in self.weights():
                self.memory.new(4 * self.shard(elements))
                self.memory.new(4 * self.shard(elements))
        self._gather_parameters()
        self.memory.wait()

    def _ahead(self, number: int, warm_up: int, *, first: bool) -> bool:
        """True if the host runs ahead of the GPU in the forward pass of this micro-batch.

        Not in the first step, in which kernels are compiled. Without stages it does in every other one before the
        repair of the pipeline, and after it where the GPU outlasts it. Between stages it waits for the metadata of each
        gradient that it receives (nanotron ``p2p.py``), so that it runs ahead only while the pipeline fills, once the
        next stage is busy and lets a transfer wait: in all but the first two passes, and on up to four stages in these
        too where the GPU outlasts it [inferred: runs on four and more stages hold the buffers of ``(p - 2) L`` blocks].

        Left out: twelve runs that hold none, several times slower a block than others of their size.
        """
        if first or self.spec.parallel.tensor == 1:
            return False
        if self.only:
            return self._outlasted() if self.run_ahead else not self._slow()
        early = self.spec.parallel.pipeline <= 4 and self._outlasted()
        return self.run_ahead and (0 if early else 2) <= number <= warm_up

    def _outlasted(self) -> bool:
        """True if the GPU takes longer for a block than the host takes to launch it, with tensor ranks in one node.

        Across nodes the host waits for NCCL's proxies [inferred: such runs after the repair hold nothing].
        """
        spec, tokens = self.spec, self.spec.micro_batch_size * self.spec.sequence_length
        products = sum(self.sizes.weights.values()) * tokens
        scores = 2 * spec.sequence_length * tokens * spec.model.query_size // spec.parallel.tensor
        return spec.parallel.tensor <= spec.cluster.gpus_per_node and products + scores >= _OUTLASTING

    def _slow(self) -> bool:
        """True for 32 copies and more on 512 GPUs, several times slower than others, whose hosts are never ahead.

        Fitted: no source says why they are slow; the bounds are those of the runs that were.
        """
        return self.spec.gpus >= 512 and self.spec.data_degree >= 32

    def _backward(self, stage: FirstStage, saved: SavedForward) -> None:
        if not self.only:
            self.memory.wait()
        stage.backward(saved)

    def _gather_parameters(self) -> None:
        """ZeRO 1: the stepped shards, a flat tensor for every rank, and NCCL's own flat tensor of them all.

        nanotron ``distributed.py``, ``all_gather_coalesced``; torch ``ProcessGroupNCCL.cpp``, ``allgather``.
        """
        copies, weights = self.spec.data_degree, self.weights()
        if not self.spec.zero.stage or copies == 1:
            return
        own = self.memory.new(2 * sum(self.shard(elements) for elements in weights))
        each = [self.memory.new(2 * sum(weights) // copies) for _ in range(copies)]
        self.memory.free(self.memory.new(2 * sum(weights)), *each, own)


def _buckets(gradients: list[int]) -> list[int]:
    """DDP's buckets: 1 MiB for the first, then as configured; a bucket is closed by the gradient that exceeds it."""
    sizes, size, limit = [], 0, MIB
    for gradient in gradients:
        size += gradient
        if size >= limit:
            sizes.append(size)
            size, limit = 0, _BUCKET
    return [*sizes, size] if size else sizes
