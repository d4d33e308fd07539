"""Memory of schedules that run the weights' part of a backward pass apart from that of the inputs.

The inputs' part frees nothing: it runs with ``retain_graph=True``, and what a block has saved is needed again. For each
weight it leaves the gradient that its part starts from (``torch/distributed/pipelining/_backward.py``). The first chunk
of the model has no inputs' part, so that its weights' part is a whole backward pass. Under FSDP2 all chunks of a rank
are gathered for all passes of a step, and their gradients stay whole until the last (``schedules.py``).
"""

from collections.abc import Iterator
from functools import lru_cache
from math import ceil

from launcher.backends.fsdp.autocast import TRACE_OF_STAGES, copies_in_flight
from launcher.base.formula import Value
from launcher.estimate.memory.activations import block_input, content, running_blocks
from launcher.estimate.memory.moments import PASSES, ROOT_BACKWARD, UNTIL_FIRST_GRADIENTS, Moments
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank import adapters
from launcher.estimate.rank.counts import block_weights
from launcher.estimate.rank.family import Family
from launcher.estimate.rank.model import RankModel
from launcher.estimate.rank.recomputed import BLOCK
from launcher.estimate.rank.stages import FOLDED
from launcher.estimate.rank.tensors import SavedTensor, Share, Weight
from launcher.spec import AdapterSpec, ModelSpec

_SOURCE = "torch/distributed/pipelining/_backward.py, trace of the live tensors, torch 2.15"
_SENDS = "_add_wait_send of torch/distributed/pipelining/schedules.py"
_FSDP = "_add_unshard_reshard and _add_reduce_grad of torch/distributed/pipelining/schedules.py"
_FULLEST: Moments = frozenset(("block_backward",))  # The end of the inputs' part: nothing is freed by then.
_BEFORE: Moments = UNTIL_FIRST_GRADIENTS - _FULLEST


def waiting(rank: RankModel) -> tuple[tuple[int, int], ...]:
    """Chunks that a rank holds less than most at the end of an inputs' part, and those of them that wait.

    A chunk waits from the inputs' part of its backward pass to that of its weights, which zero bubble runs ``r`` chunks
    later and ZBV at once, but for the last micro-batches: ``2 r + 1`` of the last ``p + r`` chunks wait together.
    DualPipeV holds most in backward passes that are whole. All of it stands in torch's tables (``schedules.py``).
    """
    parallel, stage, count = rank.spec.parallel, rank.view.stage, rank.spec.gradient_accumulation
    stages, chunks = parallel.pipeline, parallel.virtual_pipeline
    if parallel.schedule == "dualpipe_v":
        return ((1, 1 if stage < stages - 1 else 0),)
    if parallel.schedule == "zero_bubble":
        return ((0, min(stage + 1, chunks * count) if chunks > 1 or stage else 0),)
    held, left = int(rank.view.in_flight * 2), stages + stage - 2 * max(0, 2 * stages - 1 - count)
    if stage == 0 or left < 1:
        return ((0, 1),)
    return (0, 1), (held - left, min(2 * stage + 1, left))


def overheads(rank: RankModel) -> Iterator[MemoryTerm]:
    """Memory of split backward passes: the tensors kept for the weights' part, and under FSDP2 a whole stage."""
    yield from _starts(rank)
    yield from _last_chunk(rank)
    yield _messages(rank, "gradients that sends keep", sent_gradients(rank), _SENDS)
    for moments, kind in running_blocks(rank):
        yield content(rank, kind, moments).at("weight gradient")
        what, w, z = "gradient of one weight", rank.elements.largest_trained, rank.engine.size
        yield term("temporary", moments, what, "z * w", _SOURCE, z=z, w=w).at("weight gradient")
    if rank.spec.parallel.shard:
        yield from _whole(rank)


def sent_gradients(rank: RankModel) -> int:
    """Gradients that a rank of several chunks has sent by its last forward pass, when memory is fullest.

    Their sends keep them to the end of the step. The first chunk of the model sends none, and of a rank's chunks it
    runs backward last; where the order of chunks is folded, the last rank hands one chunk's to its other chunk. Beside
    them stand those of zero bubble's chunks that wait for their weights' part.
    """
    parallel, stage, count = rank.spec.parallel, rank.view.stage, rank.spec.gradient_accumulation
    v, stages = parallel.virtual_pipeline, parallel.pipeline
    done = count * v - ceil(rank.view.in_flight * v)
    if parallel.schedule in FOLDED:
        return done // 2 if stage in (0, stages - 1) else done
    if parallel.schedule == "zero_bubble":
        done += min(stage, count * v - 1)
    rounds, rest = divmod(done, stages * v)
    return rounds * stages * (v - 1) + min(rest, stages * (v - 1)) if stage == 0 else done


def _starts(rank: RankModel) -> Iterator[MemoryTerm]:
    """The gradients that the weights' parts of all blocks start from, of the chunks that wait.

    Beside them stand the output of each chunk in flight and, of the chunk whose pass runs, three sums of gradients in
    each block, where paths meet.
    """
    v, tok, size = rank.spec.parallel.virtual_pipeline, rank.tokens, rank.engine.size
    spec, row = rank.spec, rank.token_bytes([block_input(rank)])
    saved = sum(kind.count * rank.token_bytes(kind.saved) for kind in rank.blocks)
    every = sum(
        alike.count * rank.token_bytes(_outputs(rank.family, spec.model, spec.adapter, alike.layer, size))
        for alike in rank.counts.blocks
    )
    gone, w = max(waiting(rank), key=lambda pair: pair[1] * every - pair[0] * saved)
    what = "gradients that weights' passes start from"
    if w * every > gone * saved:
        values = {"w": w, "k": every, "gone": gone, "k_saved": saved, "tok": tok, "v": v}
        yield term("activations", _FULLEST, what, "ceil((w * k - gone * k_saved) * tok / v)", _SOURCE, **values)
        if w > 1 and not gone:
            expression = "ceil((w - 1) * k * tok / v)"
            yield term("activations", _BEFORE, what, expression, _SOURCE, w=w, k=every, tok=tok, v=v)
        what, expression = "sums of gradients inside one chunk", "ceil(3 * h * L * tok / v)"
        yield term("activations", _FULLEST, what, expression, _SOURCE, h=row, L=rank.layers, tok=tok, v=v)
    what, f = "outputs of chunks in flight", rank.view.in_flight
    yield term("activations", UNTIL_FIRST_GRADIENTS, what, "ceil(f * v * h * tok)", _SOURCE, f=f, v=v, h=row, tok=tok)


def _last_chunk(rank: RankModel) -> Iterator[MemoryTerm]:
    """The loss: log-softmax to the end of the inputs' part, and each waiting chunk's gradient of the logits."""
    w = waiting(rank)[0][1]
    if not rank.view.head or not w:
        return
    z, entries, tok = rank.engine.size, rank.vocabulary, rank.tokens
    k = rank.token_bytes(rank.after_blocks)
    what, expression = "log-softmax, and gradients of the logits that wait", "(w * (k + z * V) + 4 * V) * tok"
    yield term("logits", _FULLEST, what, expression, _SOURCE, w=w, k=k, z=z, V=entries, tok=tok)
    if w > 1:
        what, expression = "gradients of the logits that wait", "(w - 1) * (k + z * V) * tok"
        yield term("logits", _BEFORE, what, expression, _SOURCE, w=w, k=k, z=z, V=entries, tok=tok)


@lru_cache(maxsize=256)
def _outputs(family: Family, model: ModelSpec, adapter: AdapterSpec, layer: int, size: int) -> tuple[SavedTensor, ...]:
    """The outputs of a block's trained weights, as rows of one token; a bias's gradient starts from its weight's."""
    weights = adapters.weights(block_weights(family, model, layer), adapter)
    with_own = (weight for weight in weights if not weight.frozen and not weight.name.endswith(".bias"))
    return tuple(_output(weight, model, size) for weight in with_own)


def _output(weight: Weight, model: ModelSpec, size: int) -> SavedTensor:
    """A linear's output features, those of one expert's, or of a norm what it scales: its rows or all of its heads."""
    rows = {"q_norm": model.query_size, "k_norm": model.key_value_size}.get(adapters.module(weight), weight.shape[0])
    share: Share = "token"
    if weight.split == "expert":
        share = "routed"
    elif len(weight.shape) == 1:
        share = "residual"
    elif weight.split == "tensor" and weight.dimension == 0:
        share = "tensor"
    return SavedTensor(name=weight.name, bytes=size * rows, share=share, part="input")


def _whole(rank: RankModel) -> Iterator[MemoryTerm]:
    """Gathered parameters and whole gradients of all chunks, and at the end the reduction of the largest group."""
    z, z_red, trained = rank.engine.size, rank.dtypes.size("reduce"), rank.elements.trained
    gathered = rank.compute_parameters(rank.all_blocks) + rank.compute_parameters(rank.root)
    yield term("gather_buffers", PASSES, "gathered parameters", "z * P", _FSDP, z=z, P=gathered)
    yield term("gradients", PASSES, "unreduced gradients", "z_red * trained", _FSDP, z_red=z_red, trained=trained)
    if z != z_red:
        what, v = "gradients of the last weights' pass", rank.spec.parallel.virtual_pipeline
        late: Moments = PASSES - UNTIL_FIRST_GRADIENTS | _FULLEST
        yield term("gradients", late, what, "ceil(z * trained / v)", _FSDP, z=z, trained=trained, v=v)
    largest = max(rank.largest_block.trained, rank.root.trained)
    what = "input of a reduction"
    yield term("reduce_buffers", ROOT_BACKWARD, what, "z_red * P", _FSDP, z_red=z_red, P=largest)


def stage_overheads(rank: RankModel, *, ddp: bool) -> Iterator[MemoryTerm]:
    """All terms of a pipeline stage; ``ddp``: whether DistributedDataParallel wraps the stage."""
    if rank.view.stages > 1:
        yield from waiting_losses(rank)
        yield received(rank)
        yield from copies_in_flight(rank)
        if rank.spec.parallel.schedule == "interleaved":
            yield from sent(rank)
        elif ddp:
            yield from outputs(rank)


def received(rank: RankModel) -> MemoryTerm:
    """Inputs that a stage has received, without those of micro-batches in flight that blocks save themselves.

    The last stage holds those of all micro-batches to the end of a step: the losses that the schedule keeps lead to
    them (``_internal_losses``, ``AccumulateGrad``). Other stages hold those in flight (``_forward_chunk_states``).
    """
    f, v = int(rank.view.in_flight), rank.spec.parallel.virtual_pipeline
    n = rank.spec.gradient_accumulation if rank.view.head else 0 if rank.view.embedding or v > 1 else f
    if rank.family.saves_input(rank.spec.model, rank.engine) or any(BLOCK in kind.recomputed for kind in rank.blocks):
        n -= min(n, f)
    return _messages(rank, "received inputs", n)


def waiting_losses(rank: RankModel) -> Iterator[MemoryTerm]:
    """Losses of the other micro-batches that wait on GPipe's last stage, with what their backward passes need.

    ``(m - 1) (k + 4 V) tok``: the input of the output projection and, of the full loss, log-softmax in fp32.
    """
    if not rank.view.head or rank.spec.parallel.schedule != "gpipe":
        return
    k, m = rank.token_bytes(rank.after_blocks), rank.spec.gradient_accumulation
    what, entries = "losses of micro-batches that wait", rank.vocabulary if rank.spec.train.loss == "full" else 0
    expression, values = "(m - 1) * (k + 4 * V) * tok", {"m": m, "k": k, "V": entries, "tok": rank.tokens}
    yield term("logits", PASSES, what, expression, TRACE_OF_STAGES, **values)


def outputs(rank: RankModel) -> Iterator[MemoryTerm]:
    """Outputs that a DDP stage has sent, kept until backward, because DDP's hooks start from them (``stage.py``)."""
    if not rank.view.head:
        yield _messages(rank, "outputs of micro-batches in flight", rank.view.in_flight)


def sent(rank: RankModel) -> Iterator[MemoryTerm]:
    """Messages of interleaved chunks, kept by their sends: outputs until backward, gradients to the end of the step.

    ``_add_wait_send`` of ``schedules.py`` waits for a forward send after its own backward pass and for a gradient's at
    the end, so that memory is fullest at the last forward pass. The last chunk of the model sends no output.
    """
    held = ceil(rank.view.in_flight * rank.spec.parallel.virtual_pipeline)
    yield _messages(rank, "messages that sends keep", held - rank.view.head + sent_gradients(rank))


def _messages(rank: RankModel, what: str, n: Value, source: str = TRACE_OF_STAGES) -> MemoryTerm:
    h, z_res = rank.spec.model.hidden_size * rank.view.residual, rank.engine.residual_size
    return term("activations", PASSES, what, "n * z_res * h * tok", source, n=n, z_res=z_res, h=h, tok=rank.tokens)
