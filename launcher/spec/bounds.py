"""The largest and smallest values of every numeric key that mean anything, each with its reason.

The types of the specification say what a number is, and that a share is at most 1; this table says how large all others
can be, so that a slip of the hand is an answer and not a run. A bound lies far beyond what anybody has trained: it must
never refuse a real run. A key without a line here is bounded by 64 bits alone; ``tests/spec/test_bounds.py`` asks for
the line.
"""

from collections.abc import Iterable, Mapping

from launcher.base.frozen import dataclass

LONGEST_NAME = 200
"""Bytes: Linux takes 255 for a folder (limits.h, NAME_MAX), and a record is written under a longer name first."""

LARGEST_SCALE_POWER = 40  # The largest loss scale, as a power of two, which is how DeepSpeed's own file has it.


@dataclass(frozen=True, slots=True)
class Bound:
    """The ends of a key's values, and the reason in words that follow a colon."""

    most: float | None  # The largest value; None where 64 bits are as good a bound as any.
    why: str  # The reason, or why there is none.
    least: float | None = None  # The smallest value but 0, where it is not the type's own.


_TABLE: tuple[tuple[str, Bound], ...] = (
    # checkpointing.layers and model.num_hidden_layers count the same, as do the stages' own layers.
    (
        "checkpointing.layers model.num_hidden_layers model.first_dense_layers parallel.first_stage_layers "
        "parallel.last_stage_layers parallel.virtual_pipeline model.mtp_layers",
        Bound(10_000, "layers are counted one by one, and the deepest published models have some 1,000"),
    ),
    (
        "model.hidden_size model.q_lora_rank model.kv_lora_rank adapter.rank adapter.alpha",
        Bound(2**20, "the widest published models have a hidden size of some 50,000"),
    ),
    ("model.intermediate_size model.moe_intermediate_size", Bound(2**24, "it is 16 times the largest hidden size")),
    (
        "model.num_attention_heads model.num_key_value_heads model.head_dim model.qk_nope_head_dim "
        "model.qk_rope_head_dim model.v_head_dim",
        Bound(2**16, "the widest published models have 256 heads, and heads of 512 elements"),
    ),
    (
        "model.num_experts model.num_experts_per_tok model.num_shared_experts model.n_group model.topk_group",
        Bound(2**24, "the most experts of a published model are a million"),
    ),
    # Position ids and the offsets of variable-length attention (cu_seqlens) are int32.
    (
        "model.max_position_embeddings model.sliding_window train.sequence_length train.loss_chunk "
        "task.completion_length",
        Bound(2**31 - 1, "kernels count the tokens of a sequence in 32 bits"),
    ),
    ("model.vocab_size", Bound(2**31 - 1, "token ids are 32 bits wide at most")),
    ("model.rope_theta", Bound(1e18, "the longest contexts take some 10^9")),
    # The degrees of a layout; that their product is the number of ranks is a rule of its own.
    (
        "parallel.tensor parallel.pipeline parallel.context parallel.expert parallel.expert_tensor parallel.ulysses "
        "parallel.replicate backend.reshard_after_forward zero.hpz hardware.link_gpus",
        Bound(10_000_000, "the largest machines have some 160,000 nodes, and GPUs in as many"),
    ),
    ("task.beta", Bound(1e6, "published runs take up to some hundreds")),
    (
        "task.desirable_weight task.undesirable_weight task.center_rewards",
        Bound(1e6, "they are weights beside a loss of about 1"),
    ),
    ("train.z_loss", Bound(1e3, "it is a weight beside a loss of about 1")),
    ("train.neftune_alpha", Bound(1e6, "the paper takes 5 to 15")),
    ("task.temperature", Bound(1e3, "at 10 all tokens are nearly as likely as each other")),
    ("task.generations", Bound(10**6, "published runs take up to some thousands for a prompt")),
    ("adapter.lora_plus", Bound(1e6, "the paper tries ratios up to 64")),
    ("backend.bucket_cap_mb", Bound(10**6, "no device has a terabyte for one bucket")),
    # People write 1e9 and more for "all of them".
    (
        "zero.reduce_bucket_size zero.allgather_bucket_size zero.prefetch_bucket_size zero.max_live_parameters "
        "zero.max_reuse_distance zero.param_persistence_threshold zero.sub_group_size",
        Bound(10**18, "no model has so many elements"),
    ),
    (
        "optimizer.lr optimizer.min_lr optimizer.warmup_lr optimizer.adamw_lr",
        Bound(1e3, "any model diverges at such a rate"),
    ),
    # Decoupled decay (Loshchilov and Hutter, 2019): w <- w - lr * weight_decay * w.
    (
        "optimizer.weight_decay",
        Bound(1e4, "a step takes lr x weight_decay of each weight, all of it at a rate of 1e-4"),
    ),
    (
        "precision.loss_scale precision.initial_loss_scale",
        Bound(2.0**LARGEST_SCALE_POWER, "gradients of fp16 end at 65,504, so a larger scale is halved at once"),
    ),
    # 1e-12 of a gradient's norm is below what fp32 resolves of weights near 1; large values mean "never".
    ("optimizer.clip", Bound(1e18, "a gradient's norm is below that in fp32", least=1e-12)),
    ("train.micro_batch_size", Bound(2**20, "it is what one device computes at once, of short sequences some 10,000")),
    (
        "train.global_batch_size train.gradient_accumulation",
        Bound(2**30, "the largest batches in use are some million sequences"),
    ),
    (
        "train.steps train.eval_steps train.rollbacks save.keep",
        Bound(10**9, "that is three years at ten steps a second"),
    ),
    ("train.tokens", Bound(10**18, "the largest sets of training data have some 10^14 tokens")),
    ("train.seed", Bound(None, "torch takes a seed of 64 bits")),
    # People write a large number for "never", also where null says it.
    (
        "optimizer.warmup_steps optimizer.decay_steps optimizer.wsd_decay_steps precision.loss_scale_window "
        "train.eval_every train.log_every train.log_memory_every save.every",
        Bound(10**12, "no run has so many steps"),
    ),
    ("train.timeout_s", Bound(10**8, "that is three years")),
    (
        "train.hang_factor train.spike_deviations model.routed_scaling_factor model.router_aux_loss_coef",
        Bound(10**6, "nothing that is measured of a run varies so much"),
    ),
    # Each is a process beside its rank; the largest nodes have some 1,000 cores for all ranks.
    ("data.workers", Bound(1_024, "they are processes of one rank, and no node has so many cores for it")),
    ("data.samples", Bound(10**15, "an epoch of the largest data sets has some 10^11 samples")),
    ("train.epochs", Bound(10**6, "small data sets are seen some thousand times")),
    ("train.evals_per_epoch save.per_epoch", Bound(10**9, "no epoch has so many steps")),
    ("data.max_samples", Bound(10**12, "the largest data sets have some 10^10 rows")),
    ("data.preview", Bound(10_000, "so many samples are read and printed before the run starts")),
    # Fugaku has 158,976 nodes; the largest cluster of GPUs some 25,000.
    ("cluster.nodes", Bound(10**6, "the largest machine has 158,976 nodes")),
    # 72 GPUs of one NVLink domain count as a node at most; on the CPU they are ranks, of which a core takes one.
    ("cluster.gpus_per_node", Bound(4_096, "no node has so many GPUs, nor cores for ranks on the CPU")),
    ("cluster.cpus_per_node", Bound(2**16, "the largest nodes have some thousand cores")),
    ("cluster.time_limit_min", Bound(5_256_000, "that is ten years; null is the partition's own limit")),
    # The sig_time of sbatch(1), --signal.
    ("cluster.save_margin_s", Bound(65_535, "sbatch takes no more for --signal")),
    # Each attempt waits for nodes and starts Python on them, a minute at least.
    ("cluster.requeues", Bound(10_000, "a job that saves nothing would be tried for a week")),
    (
        "cluster.network_bandwidth cluster.storage_bandwidth hardware.memory_bandwidth hardware.link_bandwidth "
        "hardware.network_bandwidth hardware.pcie_bandwidth hardware.nvme_bandwidth",
        Bound(1e17, "the fastest memories have some 10^13 bytes/s"),
    ),
    ("cluster.network_latency", Bound(60, "no network takes a minute for a message")),
    ("cluster.price_per_gpu_hour", Bound(10**12, "it is no price in any currency")),
    (
        "hardware.memory_bytes hardware.reserved_bytes hardware.host_memory_bytes",
        Bound(2**60, "the largest machines with one memory have 64 TiB"),
    ),
    ("hardware.disk_bytes", Bound(None, "a file system counts its bytes in 64 bits")),
    ("hardware.compute_capability", Bound(99, "it is 9.0 where the compiler says sm_90")),
    (
        "hardware.flops_fp32 hardware.flops_fp16 hardware.flops_bf16 hardware.flops_fp8 hardware.flops_fp4",
        Bound(1e20, "the fastest devices have some 10^16 FLOP/s"),
    ),
    ("hardware.cores", Bound(10**7, "the largest chips have some million cores")),
    ("sweep.budget sweep.parallelism", Bound(10**6, "each point of a sweep is a run with a folder of its own")),
)
"""Keys with blanks between them, and the bound of each."""

BOUNDS: Mapping[str, Bound] = {key: bound for keys, bound in _TABLE for key in keys.split()}
_NAMES = frozenset({"run.name", "model.name", "parallel.name", "hardware.name"})
"""Texts that become names of folders; one with slashes is several."""


def wrong(path: str, value: object) -> tuple[str, list[str]] | None:
    """The rule that a value of the right type breaks by its size, and the nearest that breaks none; else None."""
    if isinstance(value, str):
        too_long = path in _NAMES and any(len(part) > LONGEST_NAME for part in _parts(value))
        rule = f"must be of at most {LONGEST_NAME} bytes, since a folder is called so"
        return (f"{rule}, and file systems take 255 for its name", []) if too_long else None
    if isinstance(value, bool) or not isinstance(value, int | float) or (bound := BOUNDS.get(path)) is None:
        return None
    if bound.most is not None and value > bound.most:
        return f"must be at most {_figure(bound.most)}: {bound.why}", [f"{path}={bound.most}"]
    if bound.least is not None and 0 < value < bound.least:
        rule = f"must be 0 or at least {bound.least:g}: what is smaller leaves nothing that fp32 resolves"
        return rule, [f"{path}={bound.least}"]
    return None


def _parts(name: str) -> Iterable[bytes]:
    return name.encode(errors="surrogateescape").split(b"/")


def _figure(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) and number < 10**10 else f"{number:g}"
