"""Settings that take effect only together with another one: none is dropped silently.

Each row names a key, when it is used, and the override that makes it so. A key whose default (that of
``conf/<group>/_base.yaml``) is null, false or empty was set on purpose: without its companion it is refused. A key that
always has a value only causes a warning, since a sweep over the companion may include values that leave it unused.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain

from launcher.base import registry
from launcher.base.errors import ConfigError
from launcher.base.frozen import dataclass
from launcher.spec import RunSpec, edit
from launcher.spec.model import OF_ENGINES
from launcher.spec.values import by_identity

type Test = Callable[[RunSpec], bool]


@dataclass(frozen=True, slots=True)
class Dependent:
    """One row: a value of ``path`` other than its default is used only when ``active`` holds.

    ``needs`` is the override that makes it active, and ``because`` completes the sentence "used only ...".
    """

    path: str
    active: Test
    needs: str
    because: str


def _rows(paths: str, active: Test, needs: str, because: str) -> tuple[Dependent, ...]:
    return tuple(Dependent(path, active, needs, because) for path in paths.split())


@dataclass(frozen=True, slots=True)
class OfAnEngine:
    """A row of a key that not every engine uses: a backend's profile lists the ones it does, with the override."""

    path: str

    def active(self, spec: RunSpec) -> bool:
        """True if the run's engine uses it."""
        return self.path in _settings(spec.backend.name)

    @property
    def needs(self) -> str:
        """Overrides that select an engine that uses it."""
        return _settings(_readers(self.path)[0])[self.path]

    @property
    def because(self) -> str:
        """The end of the sentence "used only ..."."""
        *others, last = (f"backend={name}" for name in _readers(self.path))
        return f"by {', '.join(others)} and {last}" if others else f"by {last}"


type Row = Dependent | OfAnEngine


def _settings(backend: str) -> Mapping[str, str]:
    found: Mapping[str, str] = registry.load("backends", backend).profile.settings
    return found


@cache
def _readers(path: str) -> tuple[str, ...]:
    return tuple(name for name in registry.shipped("backends") if path in _settings(name))


_SLURM = (
    "cluster.partition cluster.account cluster.qos cluster.constraint cluster.reservation cluster.nodelist "
    "cluster.dependency cluster.licenses cluster.mail cluster.cpus_per_node cluster.exclusive cluster.gpu_request "
    "cluster.gpu_type cluster.memory cluster.save_margin_s cluster.modules cluster.setup cluster.python "
    "cluster.container cluster.shared_folder cluster.extra"
)
_MOE = (
    "model.num_experts_per_tok model.moe_intermediate_size model.num_shared_experts model.first_dense_layers "
    "model.norm_topk_prob model.routed_scaling_factor model.n_group model.topk_group model.router_aux_loss_coef "
    "parallel.expert_tensor"
)
_MLA = "model.q_lora_rank model.qk_nope_head_dim model.qk_rope_head_dim model.v_head_dim"
_VARIANTS = "adapter.dora adapter.rslora adapter.lora_plus adapter.modules_to_save adapter.parameters adapter.pissa"
_LOW_RANK = "adapter.rank adapter.alpha adapter.dropout"


def _reads_text(spec: RunSpec) -> bool:
    return spec.data.source in ("text", "chat", "huggingface", "rows")


REFUSED: tuple[Row, ...] = (
    *_rows(_SLURM, lambda spec: spec.cluster.kind == "slurm", "cluster=slurm", "by Slurm"),
    *_rows("cluster.requeues", lambda spec: spec.cluster.kind == "slurm" or spec.train.on_hang == "restart",
           "cluster=slurm", "by Slurm, and on this machine with train.on_hang=restart"),
    *_rows("eval.limit eval.num_fewshot",
           lambda spec: bool(spec.eval.tasks), "eval.tasks=[hellaswag]", "when tasks are evaluated"),
    *_rows("cluster.memory_request",
           lambda spec: spec.cluster.memory is not None, "cluster.memory=0", "when cluster.memory is set"),
    *_rows("cluster.container_image cluster.container_mounts",
           lambda spec: spec.cluster.container != "none", "cluster.container=apptainer", "by a container"),
    *_rows(_MOE, lambda spec: spec.model.num_experts > 0, "model.num_experts=8", "when the model has experts"),
    *_rows(_MLA, lambda spec: spec.model.kv_lora_rank > 0, "model.kv_lora_rank=512", "by multi-head latent attention"),
    *(OfAnEngine(path) for path in OF_ENGINES.split()),
    *_rows(_VARIANTS, lambda spec: spec.adapter.low_rank, "adapter=lora", "by LoRA"),
    *_rows("adapter.quant_type", lambda spec: spec.adapter.bits > 0, "adapter=qlora", "by qlora and qoft"),
    *_rows("zero.nvme_path", lambda spec: "nvme" in (spec.zero.offload_optimizer, spec.zero.offload_parameters),
           "zero.offload_optimizer=nvme", "when something is offloaded to NVMe"),
    *_rows("optimizer.adamw_lr",
           lambda spec: spec.optimizer.name == "muon", "optimizer=muon", "with Muon, for the weights that AdamW steps"),
    *_rows("optimizer.stochastic_rounding",
           lambda spec: spec.optimizer.name in ("adamw_8bit", "adamw_4bit") and spec.precision.parameters == "bf16",
           "optimizer=adamw_8bit precision.parameters=bf16",
           "by torchao's 8-bit and 4-bit AdamW, on bf16 parameters"),
    *_rows("precision.recipe", lambda spec: spec.precision.compute in ("fp8", "fp4"),
           "precision.compute=fp8", "by fp8 and fp4 computation"),
    *_rows("precision.qat_after", lambda spec: spec.precision.qat is not None,
           "precision.qat=int8_int4", "by quantization-aware training"),
    *_rows("precision.loss_scale precision.initial_loss_scale precision.loss_scale_window",
           lambda spec: spec.precision.compute == "fp16", "precision.compute=fp16", "by fp16 computation"),
    *_rows("checkpointing.modules", lambda spec: spec.checkpointing.mode == "selective",
           "checkpointing=selective", "by selective activation checkpointing"),
    *_rows("checkpointing.offload_modules",
           lambda spec: spec.checkpointing.offload, "checkpointing.offload=true", "when activations are offloaded"),
    *_rows("checkpointing.layers", lambda spec: spec.checkpointing.mode != "none" or spec.checkpointing.offload,
           "checkpointing=full", "by activation checkpointing"),
    *_rows("checkpointing.method",
           lambda spec: spec.checkpointing.mode == "full", "checkpointing=full", "by full activation checkpointing"),
    *_rows("optimizer.fused optimizer.foreach",
           lambda spec: spec.optimizer.name in ("adamw", "sgd"), "optimizer=adamw", "by torch's adamw and sgd"),
    *_rows("tracking.project tracking.uri",
           lambda spec: spec.tracking.kind in ("wandb", "mlflow"), "tracking=mlflow", "by wandb and mlflow"),
    *_rows("data.revision data.config",
           lambda spec: spec.data.of_the_hub, "data=huggingface", "for a data set on the Hugging Face Hub"),
    *_rows("data.samples", lambda spec: spec.counts_epochs, "train.epochs=1", "when something is counted in epochs"),
    *_rows("data.max_samples data.packing", _reads_text, "data=text", "when data consists of rows or documents"),
    *_rows("data.columns",
           lambda spec: spec.data.source in ("chat", "rows"), "data=chat", "when rows are conversations, or a task's"),
    *_rows("data.path data.mix data.eval_path data.eval_split data.eval_config data.eval_sets",
           lambda spec: spec.data.source != "synthetic", "data=text", "when data has a source"),
    *_rows("data.stages", lambda spec: bool(spec.data.mix), "data=text data.mix=[{path:a},{path:b}]",
           "for the data sets of data.mix"),
    *_rows("model.trust_remote_code", lambda spec: spec.model.weights is not None or spec.data.tokenizer != "bytes",
           "model.weights=path/to/model", "when a folder of weights or a tokenizer is loaded"),
)  # fmt: skip

WARNED: tuple[Row, ...] = (
    *_rows(_LOW_RANK, lambda spec: spec.adapter.low_rank, "adapter=lora", "by LoRA"),
    *_rows("adapter.targets", lambda spec: spec.adapter.name != "none", "adapter=lora", "by an adapter"),
    *_rows("adapter.block_size", lambda spec: spec.adapter.rotates, "adapter=oft", "by OFT"),
    *_rows("adapter.double_quant", lambda spec: spec.adapter.bits == 4, "adapter=qlora adapter.quant_type=nf4",
           "by 4-bit qlora and qoft"),
    *_rows("precision.qat_group_size", lambda spec: spec.precision.qat is not None,
           "precision.qat=int8_int4", "by quantization-aware training"),
    *_rows("train.loss_chunk", lambda spec: spec.train.loss == "chunked", "train.loss=chunked", "by the chunked loss"),
    *_rows("train.eval_steps train.patience data.eval_fraction data.eval_path data.eval_split data.eval_sets",
           lambda spec: spec.evaluates, "train.eval_every=100", "when the run evaluates"),
    *_rows("train.rollbacks", lambda spec: spec.train.on_spike == "rollback",
           "train.on_spike=rollback", "when a loss spike rolls the run back to a checkpoint"),
    *_rows("optimizer.min_lr optimizer.decay_steps", lambda spec: spec.optimizer.schedule != "constant",
           "optimizer.schedule=cosine", "by a schedule that decays"),
    *_rows("optimizer.wsd_decay_steps optimizer.wsd_decay",
           lambda spec: spec.optimizer.schedule == "wsd", "optimizer.schedule=wsd", "by the wsd schedule"),
    *_rows("optimizer.warmup optimizer.warmup_lr",
           lambda spec: spec.warmup_steps > 0, "optimizer.warmup_steps=10", "by a warm-up"),
    *_rows("data.split", lambda spec: spec.data.of_the_hub or (spec.data.source == "text" and "[" in spec.data.split),
           "data=huggingface", "by Hugging Face data sets, by folders that name their files, or as a slice"),
    *_rows("data.train_on data.preview", lambda spec: spec.data.source == "chat", "data=chat", "for conversations"),
    *_rows("data.template data.template_values",
           lambda spec: spec.data.source in ("chat", "rows"), "data=chat", "when messages are rendered as text"),
    *_rows("data.special_tokens", lambda spec: _reads_text(spec) and spec.data.tokenizer != "bytes",
           "data.tokenizer=path/to/tokenizer", "by a tokenizer other than bytes"),
    *_rows("data.column data.on_bad_row", _reads_text, "data=text", "when rows hold text or messages"),
    *_rows("data.token_dtype", lambda spec: spec.data.source == "tokens", "data=tokens", "for token files"),
    *_rows("data.tokenizer", lambda spec: _reads_text(spec) or bool(spec.eval.tasks),
           "data=text", "when text is tokenized"),
    *_rows("model.rope_parameters model.rope_theta", lambda spec: spec.model.position_embedding == "rope",
           "model.position_embedding=rope", "by rotary position embeddings"),
)  # fmt: skip

_ROWS = (*REFUSED, *WARNED)


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Yield errors of keys that are set while nothing uses them."""
    yield from _idle(spec, refused=True)
    if spec.script_args and spec.script is None:
        rule = "arguments after -- belong to a script"
        yield ConfigError("script_args", list(spec.script_args), rule, ["script=path/to/train.py", "script_args=[]"])


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Yield warnings about keys that have no effect with the other settings."""
    yield from _idle(spec, refused=False)


def _idle(spec: RunSpec, *, refused: bool) -> Iterator[ConfigError]:
    for place in sorted(chain.from_iterable(_away(getattr(spec, group), group) for group in _keys())):
        row = _ROWS[place]
        if (place < len(REFUSED)) == refused and not row.active(spec):
            value = edit.value_at(spec, row.path)
            # An override adds to a mapping and cannot empty it.
            back = [] if isinstance(value, dict) else [edit.override(row.path, edit.default(row.path))]
            yield ConfigError(row.path, edit.plain(value), f"used only {row.because}", [row.needs, *back])


@by_identity(most=1024)
def _away(group: object, name: str) -> tuple[int, ...]:
    """Indices of the rows whose keys are in a group and differ from their defaults."""
    return tuple(place for place, key, default in _keys()[name] if getattr(group, key) != default)


@cache
def _keys() -> Mapping[str, Sequence[tuple[int, str, object]]]:
    """The index of each row, the attribute of its key and the default, by group."""
    found: dict[str, list[tuple[int, str, object]]] = {}
    for place, row in enumerate(_ROWS):
        group, _, key = edit.attribute(row.path).partition(".")
        found.setdefault(group, []).append((place, key, edit.default(row.path)))
    return found
