"""Settings that mean something only beside another one: none may be dropped in silence.

Each row names a key, the value with which it asks for nothing (its default in ``conf/<group>/_base.yaml``; a test
compares them), when it is read, and the override that would make it so. A key whose default is null, false or empty
was set on purpose: without its companion it is refused. A key that always has a value is only warned about, since a
sweep over the companion may pass through states in which it is idle.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import compress
from operator import ne

from launcher.base import registry
from launcher.base.errors import ConfigError
from launcher.base.frozen import dataclass
from launcher.spec import RunSpec, edit
from launcher.spec.model import OF_ENGINES

type Test = Callable[[RunSpec], bool]


@dataclass(frozen=True, slots=True)
class Dependent:
    """One row: ``path`` away from ``neutral`` is read only where ``active`` holds.

    ``needs`` is the override that makes it active, and ``because`` completes the sentence "it is read only ...".
    """

    path: str
    neutral: object
    active: Test
    needs: str
    because: str


def _rows(paths: Mapping[str, object], active: Test, needs: str, because: str) -> tuple[Dependent, ...]:
    return tuple(Dependent(path, neutral, active, needs, because) for path, neutral in paths.items())


@dataclass(frozen=True, slots=True)
class OfAnEngine:
    """A row of a key that not every engine reads: the profile of a backend says whether it does, in what words."""

    path: str
    neutral: object

    def active(self, spec: RunSpec) -> bool:
        """True if the run's engine reads it."""
        return self.path in _settings(spec.backend.name)

    @property
    def needs(self) -> str:
        """The words that choose an engine that reads it."""
        return _settings(_readers(self.path)[0])[self.path]

    @property
    def because(self) -> str:
        """The end of the sentence "it is read only ..."."""
        *others, last = (f"backend={name}" for name in _readers(self.path))
        return f"by {', '.join(others)} and {last}" if others else f"by {last}"


type Row = Dependent | OfAnEngine


def _settings(backend: str) -> Mapping[str, str]:
    found: Mapping[str, str] = registry.load("backends", backend).profile.settings
    return found


@cache
def _readers(path: str) -> tuple[str, ...]:
    return tuple(name for name in registry.shipped("backends") if path in _settings(name))


_SLURM: dict[str, object] = {
    "cluster.partition": None, "cluster.account": None, "cluster.qos": None, "cluster.constraint": None,
    "cluster.reservation": None, "cluster.nodelist": None, "cluster.dependency": None, "cluster.licenses": None,
    "cluster.mail": None, "cluster.cpus_per_node": None, "cluster.exclusive": False,
    "cluster.gpu_request": "gpus_per_node", "cluster.gpu_type": None, "cluster.memory": None,
    "cluster.save_margin_s": 120, "cluster.modules": (), "cluster.setup": (), "cluster.python": None,
    "cluster.container": "none", "cluster.shared_folder": None, "cluster.extra": {},
}  # fmt: skip
_MOE = {
    "model.num_experts_per_tok": 0, "model.moe_intermediate_size": 0, "model.num_shared_experts": 0,
    "model.first_dense_layers": 0, "model.norm_topk_prob": None, "model.routed_scaling_factor": 1.0, "model.n_group": 0,
    "model.topk_group": 0, "model.router_aux_loss_coef": 0.0, "parallel.expert_tensor": None,
}  # fmt: skip
_MLA = {
    "model.q_lora_rank": 0, "model.qk_nope_head_dim": 0, "model.qk_rope_head_dim": 0, "model.v_head_dim": 0,
}  # fmt: skip
_VARIANTS: dict[str, object] = {
    "adapter.dora": False, "adapter.rslora": False, "adapter.lora_plus": None, "adapter.modules_to_save": (),
}  # fmt: skip
_ADAPTER = {"adapter.rank": 16, "adapter.alpha": 32, "adapter.dropout": 0.0, "adapter.targets": ("all-linear",)}


def _offloads_to_nvme(spec: RunSpec) -> bool:
    return "nvme" in (spec.zero.offload_optimizer, spec.zero.offload_parameters)


def _reads_text(spec: RunSpec) -> bool:
    return spec.data.source in ("text", "chat", "huggingface", "rows")


def _counts_epochs(spec: RunSpec) -> bool:
    return spec.train.epochs is not None or spec.train.evals_per_epoch is not None or bool(spec.save.per_epoch)


REFUSED: tuple[Row, ...] = (
    *_rows(_SLURM, lambda spec: spec.cluster.kind == "slurm", "cluster=slurm", "by Slurm"),
    *_rows({"cluster.requeues": 3}, lambda spec: spec.cluster.kind == "slurm" or spec.train.on_hang == "restart",
           "cluster=slurm", "by Slurm, and on this machine with train.on_hang=restart"),
    *_rows({"cluster.memory_request": "mem"},
           lambda spec: spec.cluster.memory is not None, "cluster.memory=0", "where cluster.memory is set"),
    *_rows({"cluster.container_image": None, "cluster.container_mounts": ()},
           lambda spec: spec.cluster.container != "none", "cluster.container=apptainer", "by a container"),
    *_rows(_MOE, lambda spec: spec.model.num_experts > 0, "model.num_experts=8", "where the model has experts"),
    *_rows(_MLA, lambda spec: spec.model.kv_lora_rank > 0, "model.kv_lora_rank=512", "by multi-head latent attention"),
    *(OfAnEngine(path, neutral) for path, neutral in OF_ENGINES.items()),
    *_rows(_VARIANTS, lambda spec: spec.adapter.name != "none", "adapter=lora", "by an adapter"),
    *_rows({"zero.nvme_path": None},
           _offloads_to_nvme, "zero.offload_optimizer=nvme", "where something is offloaded to NVMe"),
    *_rows({"optimizer.adamw_lr": None},
           lambda spec: spec.optimizer.name == "muon", "optimizer=muon", "beside Muon, by what AdamW steps"),
    *_rows({"precision.recipe": None}, lambda spec: spec.precision.compute in ("fp8", "fp4"),
           "precision.compute=fp8", "by computation in fp8 and fp4"),
    *_rows({"precision.loss_scale": None, "precision.initial_loss_scale": None, "precision.loss_scale_window": None},
           lambda spec: spec.precision.compute == "fp16", "precision.compute=fp16", "by fp16 computation"),
    *_rows({"checkpointing.modules": ()}, lambda spec: spec.checkpointing.mode == "selective",
           "checkpointing=selective", "by selective activation checkpointing"),
    *_rows({"checkpointing.offload_modules": ()},
           lambda spec: spec.checkpointing.offload, "checkpointing.offload=true", "where activations are offloaded"),
    *_rows({"checkpointing.layers": None}, lambda spec: spec.checkpointing.mode != "none" or spec.checkpointing.offload,
           "checkpointing=full", "by activation checkpointing"),
    *_rows({"checkpointing.method": None},
           lambda spec: spec.checkpointing.mode == "full", "checkpointing=full", "by full activation checkpointing"),
    *_rows({"optimizer.fused": None, "optimizer.foreach": None},
           lambda spec: spec.optimizer.name in ("adamw", "sgd"), "optimizer=adamw", "by torch's own optimizers"),
    *_rows({"tracking.project": None, "tracking.uri": None},
           lambda spec: spec.tracking.kind in ("wandb", "mlflow"), "tracking=mlflow", "by wandb and mlflow"),
    *_rows({"data.revision": None, "data.config": None},
           lambda spec: spec.data.of_the_hub, "data=huggingface", "of a data set on the Hugging Face Hub"),
    *_rows({"data.samples": None},
           _counts_epochs, "train.epochs=1", "where a number follows from the epoch"),
    *_rows({"data.max_samples": None, "data.packing": None},
           _reads_text, "data=text", "where data are rows or documents"),
    *_rows({"data.path": None, "data.mix": (), "data.eval_path": None, "data.eval_split": None,
            "data.eval_config": None},
           lambda spec: spec.data.source != "synthetic", "data=text", "where data has a source"),
    *_rows({"model.trust_remote_code": False},
           lambda spec: spec.model.weights is not None or spec.data.tokenizer != "bytes",
           "model.weights=path/to/model", "where a folder of weights or a tokenizer is loaded"),
)  # fmt: skip

WARNED: tuple[Row, ...] = (
    *_rows(_ADAPTER, lambda spec: spec.adapter.name != "none", "adapter=lora", "by an adapter"),
    *_rows({"adapter.double_quant": True}, lambda spec: spec.adapter.name == "qlora", "adapter=qlora", "by qlora"),
    *_rows({"train.loss_chunk": 1024},
           lambda spec: spec.train.loss == "chunked", "train.loss=chunked", "by the chunked loss"),
    *_rows({"train.eval_steps": 8, "data.eval_fraction": 0.01, "data.eval_path": None, "data.eval_split": None},
           lambda spec: spec.evaluates, "train.eval_every=100", "where the run evaluates"),
    *_rows({"train.rollbacks": 3}, lambda spec: spec.train.on_spike == "rollback",
           "train.on_spike=rollback", "where a jump of the loss leads back to a checkpoint"),
    *_rows({"optimizer.min_lr": 0.0, "optimizer.decay_steps": None}, lambda spec: spec.optimizer.schedule != "constant",
           "optimizer.schedule=cosine", "by a schedule that ends lower than it starts"),
    *_rows({"optimizer.wsd_decay_steps": None, "optimizer.wsd_decay": "linear"},
           lambda spec: spec.optimizer.schedule == "wsd", "optimizer.schedule=wsd", "by the wsd schedule"),
    *_rows({"optimizer.warmup": "linear", "optimizer.warmup_lr": 0.0},
           lambda spec: spec.warmup_steps > 0, "optimizer.warmup_steps=10", "by a warm-up"),
    *_rows({"data.split": "train"},
           lambda spec: spec.data.of_the_hub or (spec.data.source == "text" and "[" in spec.data.split),
           "data=huggingface", "from a Hugging Face data set or a folder's files by their names, or as a slice"),
    *_rows({"data.template": None, "data.train_on": "assistant", "data.preview": 0},
           lambda spec: spec.data.source == "chat", "data=chat", "from conversations"),
    *_rows({"data.column": "text", "data.on_bad_row": "error"},
           _reads_text, "data=text", "where rows hold text or messages"),
    *_rows({"data.token_dtype": "uint16"},
           lambda spec: spec.data.source == "tokens", "data=tokens", "from a token file"),
    *_rows({"data.tokenizer": "bytes"}, _reads_text, "data=text", "where text becomes tokens"),
    *_rows({"model.rope_parameters": None, "model.rope_theta": 10000.0},
           lambda spec: spec.model.position_embedding == "rope",
           "model.position_embedding=rope", "by rotary position embeddings"),
)  # fmt: skip

type _Table = tuple[tuple[Row, ...], Callable[[RunSpec], tuple[object, ...]], tuple[object, ...]]
"""Rows, the function that reads their keys' values at once, and the values that ask for nothing."""


def _table(rows: tuple[Row, ...]) -> _Table:
    return rows, edit.reader(row.path for row in rows), tuple(row.neutral for row in rows)


_REFUSED, _WARNED = _table(REFUSED), _table(WARNED)


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Keys set beside nothing that reads them."""
    yield from _idle(spec, _REFUSED)
    if spec.script_args and spec.script is None:
        rule = "arguments after -- belong to a script"
        yield ConfigError("script_args", list(spec.script_args), rule, ["script=path/to/train.py", "script_args=[]"])


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Keys that are idle beside the present choices."""
    yield from _idle(spec, _WARNED)


def _idle(spec: RunSpec, table: _Table) -> Iterator[ConfigError]:
    rows, read, neutral = table
    values = read(spec)
    for row, value in compress(zip(rows, values, strict=True), map(ne, values, neutral)):
        if not row.active(spec):
            found = list(value) if isinstance(value, tuple) else value
            back = [] if isinstance(value, dict) else [edit.override(row.path, row.neutral)]  # Mappings only grow.
            yield ConfigError(row.path, found, f"it is read only {row.because}", [row.needs, *back])
