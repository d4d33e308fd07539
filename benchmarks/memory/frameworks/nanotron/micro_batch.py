"""The allocations of one micro-batch on nanotron's first stage, forward and backward, in their order.

Followed: nanotron ``models/llama.py``, ``parallel/tensor_parallel`` and flash-attn. Tensors below 1 MiB are left out.
What a block saves for a token, ``20 h + 8 f`` bytes: input and output of two norms 8 h, queries, keys and values 6 h,
attention's output 2 h and its copy in the order of the sequence 2 h, another tensor of h [inferred: without it the runs
that have no tensor parallelism lie 2 % higher], gate and up 4 f, ``silu`` of the gate 2 f, their product 2 f. Inputs of
the linears of columns are gathered into two buffers that stay [inferred: see ``backend.gathered_sequence``].
"""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.memory.frameworks.nanotron.device_memory import DeviceMemory
from benchmarks.memory.frameworks.nanotron.sizes import Sizes


@dataclass(slots=True)
class SavedForward:
    """Tensors of one micro-batch's forward pass: blocks of every layer by name, and the tensors after them."""

    layers: list[dict[str, int]] = field(default_factory=list)
    after: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class FirstStage:
    """The blocks of the first stage, and all that follows them where it is the only one."""

    memory: DeviceMemory
    sizes: Sizes
    layers: int
    split: bool
    last: bool
    tied: bool
    gradients: dict[str, int] = field(default_factory=dict)
    buffers: set[str] = field(default_factory=set)

    def forward(self) -> SavedForward:
        """The forward pass of one micro-batch; the result of the last block stays until its gradient has come."""
        memory, saved = self.memory, SavedForward()
        stream = self._embedding()
        for _ in range(self.layers):
            layer = {"input": stream}
            output = self._attention(layer)
            self._gate(layer)
            down = self._row_linear()
            stream = memory.new(self.sizes.row)
            memory.free(output, down)
            saved.layers.append(layer)
        saved.after["stream"] = stream
        if self.last:
            self._loss(saved)
        return saved

    def backward(self, saved: SavedForward) -> None:
        """Its backward pass; bf16 gradients of all weights exist until it ends, then their fp32 sums alone."""
        memory = self.memory
        gradient = self._loss_backward(saved) if self.last else memory.new(self.sizes.row)
        memory.free(saved.after.pop("stream"))
        for index in reversed(range(self.layers)):
            gradient = self._mlp_backward(saved.layers[index], gradient, index)
            gradient = self._attention_backward(saved.layers[index], gradient, index)
        self._embedding_backward(gradient)
        # nanotron optim/gradient_accumulator.py, FP32GradientAccumulator.backward.
        memory.free(*self.gradients.values())
        self.gradients.clear()

    def _embedding(self) -> int:
        memory, sizes = self.memory, self.sizes
        if not self.split:
            return memory.new(sizes.row)
        rows = memory.new(sizes.whole)
        masked = memory.new(sizes.whole)
        memory.free(rows)
        stream = memory.new(sizes.row)
        memory.free_late(masked)
        return stream

    def _attention(self, layer: dict[str, int]) -> int:
        """Up to the sum with the residual stream; the output of attention's linear lives to the block's end."""
        memory, sizes = self.memory, self.sizes
        layer["norm"] = memory.new(sizes.row)
        self._gather("gathered")
        made = memory.new(sizes.attention)
        heads = self._heads()
        joined = memory.new(2 * sizes.keys)
        layer["keys"] = memory.new(2 * sizes.keys)
        memory.free(joined)
        layer["queries"] = memory.new(sizes.row)
        memory.free(*heads)
        memory.launch(8)  # Rotation of the keys; the lengths of sequences, summed up anew in every block.
        layer["attended"] = memory.new(sizes.row)
        layer["statistics"] = memory.new(sizes.statistics)
        layer["copy"] = memory.new(sizes.row)
        output = self._row_linear()
        memory.free(made)
        layer["sum"] = memory.new(sizes.row)
        layer["second"] = memory.new(sizes.row)
        return output

    def _heads(self) -> list[int]:
        """Queries, keys and values by heads: one copy of all, or with grouped queries one of each."""
        sizes = self.sizes
        if sizes.keys == sizes.row:
            return [self.memory.new(sizes.attention)]
        return [self.memory.new(size) for size in (sizes.row, sizes.keys, sizes.keys)]

    def _gate(self, layer: dict[str, int]) -> None:
        memory, width = self.memory, self.sizes.width
        layer["second norm"] = memory.new(self.sizes.row)
        self._gather("gathered")
        layer["gate_up"] = memory.new(2 * width)
        layer["silu"] = memory.new(width)
        layer["product"] = memory.new(width)

    def _row_linear(self) -> int:
        """A row's linear makes all tokens and reduces them to the rank's share on NCCL's stream."""
        made = self.memory.new(self.sizes.whole)
        if not self.split:
            return made
        share = self.memory.new(self.sizes.row)
        self.memory.launch()
        self.memory.free_late(made)
        return share

    def _gather(self, name: str) -> None:
        """All tokens before a column's linear, in a buffer that stays (``MemoryBuffer``)."""
        if self.split and name not in self.buffers:
            self.buffers.add(name)
            self.memory.new(self.sizes.whole)
        self.memory.launch(2 if self.split else 0)

    def _loss(self, saved: SavedForward) -> None:
        """Logits in bf16 and fp32; the loss subtracts the maximum into another fp32 tensor and turns it to softmax."""
        memory, sizes = self.memory, self.sizes
        saved.after["norm"] = memory.new(sizes.row)
        self._gather("gathered")
        logits = memory.new(sizes.logits)
        wide = memory.new(2 * sizes.logits)
        memory.free(logits)
        saved.after["softmax"] = memory.new(2 * sizes.logits)
        memory.free(wide)

    def _loss_backward(self, saved: SavedForward) -> int:
        memory, sizes = self.memory, self.sizes
        logits = memory.new(sizes.logits)
        memory.free(saved.after.pop("softmax"))
        gradient = self._column_backward("table" if self.tied else "head", sizes.table)
        memory.free(logits, saved.after.pop("norm"))
        closing = memory.new(sizes.row)
        memory.free(gradient)
        return closing

    def _mlp_backward(self, layer: dict[str, int], gradient: int, index: int) -> int:
        memory, width = self.memory, self.sizes.width
        product = self._row_backward(width, f"down {index}", self.sizes.weights["down"])
        memory.free(layer["product"])
        silu, up = memory.new(width), memory.new(width)
        memory.free(product, layer["silu"])
        gate = memory.new(width)
        memory.free(silu, layer["gate_up"])
        both = memory.new(2 * width)
        memory.free(gate, up)
        inside = self._column_backward(f"gate_up {index}", self.sizes.weights["gate_up"])
        memory.free(both, layer["second norm"])
        normed = memory.new(self.sizes.row)
        memory.free(inside, layer["sum"], layer["second"])
        return self._added(gradient, normed)

    def _attention_backward(self, layer: dict[str, int], gradient: int, index: int) -> int:
        memory, sizes = self.memory, self.sizes
        linear = self._row_backward(sizes.row, f"output {index}", sizes.weights["output"])
        copy = memory.new(sizes.row)
        memory.free(linear, layer["copy"])
        made = self._flash_backward()
        memory.free(copy, layer["attended"], layer["statistics"], layer["queries"], layer["keys"])
        keys = memory.new(2 * sizes.keys)
        memory.free(*made[1:])
        queries = memory.new(sizes.row)
        memory.free(made[0])
        stacked = memory.new(sizes.attention)
        memory.free(keys, queries)
        ordered = memory.new(sizes.attention)
        memory.free(stacked)
        inside = self._column_backward(f"qkv {index}", sizes.weights["qkv"])
        memory.free(ordered, layer["norm"])
        normed = memory.new(sizes.row)
        memory.free(inside, layer["input"])
        return self._added(gradient, normed)

    def _flash_backward(self) -> list[int]:
        """Gradients of queries, keys and values, beside fp32 sums; with grouped queries keys and values for every head.

        flash-attn ``csrc/flash_attn/flash_api.cpp``, ``mha_varlen_bwd``.
        """
        memory, sizes = self.memory, self.sizes
        made = [memory.new(size) for size in (sizes.row, sizes.keys, sizes.keys)]
        passing = [memory.new(sizes.statistics), memory.new(2 * sizes.row)]
        if sizes.keys < sizes.row:
            passing += [memory.new(sizes.row), memory.new(sizes.row)]
        memory.free(*passing)
        return made

    def _row_backward(self, size: int, name: str, weight: int) -> int:
        """All tokens' gradient is gathered; from it come the input's and the weight's."""
        gathered = [self.memory.new(self.sizes.whole)] if self.split else []
        inside = self.memory.new(size)
        self._gradient(name, weight)
        self.memory.free(*gathered)
        return inside

    def _column_backward(self, name: str, weight: int) -> int:
        """The input is gathered again; its gradient is made for all tokens and reduced to the rank's share."""
        self._gather("gathered again")
        self._gradient(name, weight)
        made = self.memory.new(self.sizes.whole)
        if not self.split:
            return made
        share = self.memory.new(self.sizes.row)
        self.memory.free(made)
        return share

    def _gradient(self, name: str, size: int) -> None:
        """A weight's gradient; one that exists already is added to in place."""
        made = self.memory.new(size)
        if name in self.gradients:
            self.memory.free(made)
        else:
            self.gradients[name] = made

    def _added(self, gradient: int, other: int) -> int:
        together = self.memory.new(self.sizes.row)
        self.memory.free(gradient, other)
        return together

    def _embedding_backward(self, gradient: int) -> None:
        memory, sizes = self.memory, self.sizes
        if self.split:
            gathered = memory.new(sizes.whole)
            memory.free(gradient)
            gradient = memory.new(sizes.whole)
            memory.free(gathered)
        self._gradient("table", sizes.table)
        memory.free(memory.new(sizes.table_rows), gradient)
