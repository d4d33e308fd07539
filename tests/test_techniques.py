"""Some engine runs every option and every value of a key, and docs/techniques.md says which engine."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pytest

from launcher.actions.check import CheckRequest, check_run
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.typed import bare
from launcher.config.catalog import Catalog
from launcher.preflight import findings
from launcher.spec.parse import kinds
from tests.support.helpers import ACCEPT, ROOT, make_spec

_CATALOG = Catalog(folder=ROOT)
_H100 = ("hardware=h100_80g", "cluster.gpus_per_node=8")
_B200 = ("hardware=b200", "cluster.gpus_per_node=8")
_CPU = ("hardware=cpu", "hardware.device=cpu", "cluster.gpus_per_node=2")
_MANY = "train.global_batch_size=64"

_PRESETS = ("fsdp", "ddp", "zero1", "zero3", "tp", "fsdp_pp", "tp_pp", "ep")
_MODELS = ("tiny", "mixtral_8x7b", "gpt2")

_IN_FP4 = ("model.intermediate_size=704",)  # 32 divides it.
_LORA = ("adapter=lora", "model.weights=weights")
_ROTATED = ("task=sft", "parallel=ddp", "model.weights=weights", "adapter.block_size=16")  # What OFT asks for.
_ROWS = ("data=rows", "data.path=rows.jsonl", "train.micro_batch_size=2")
_TASKS = ((), _ROWS, (*_ROWS, "task.rewards=[rewards.length]"))

_BESIDE: dict[str, tuple[tuple[str, ...], ...]] = {
    "adapter": (("model.weights=weights",), _ROTATED),
    "adapter.name": (_ROTATED,),
    "backend": (("task=sft",),),
    "backend.": (("task=sft",),),
    "data": (("data.path=words.txt",), ("task=dpo", "data.path=rows.jsonl")),
    "task": _TASKS,
    "task.": (*_TASKS, *(("task=kto", *each) for each in _TASKS), *(("task=grpo", *each) for each in _TASKS)),
    "parallel": ((_MANY,), (_MANY, "cluster.nodes=2")),
    "hardware": (("precision=fp16",), ("cluster.gpus_per_node=2", "hardware.device=cpu")),
    "adapter.": (_LORA, ("adapter=qlora", "model.weights=weights")),
    "checkpointing.": (("checkpointing=full", "checkpointing.layers=1"), ("checkpointing=selective",)),
    "cluster.": (
        ("cluster=slurm",),
        ("cluster=slurm", "cluster.memory=0"),
        ("cluster=slurm", "cluster.container_image=image.sqsh"),
    ),
    "data.": (("data=synthetic",), ("task=dpo",)),
    "model.": (("model=deepseek_v3",), ("model=gemma2_2b",), ("model.weights=weights",)),
    "model.family": (("model=deepseek_v3_2",),),
    "optimizer.": (("optimizer=adamw_8bit", "parallel=fsdp", "precision.parameters=bf16"),),
    "precision.qat": (("precision.qat_group_size=16",), _IN_FP4, ("precision.qat_group_size=16", *_IN_FP4)),
    "parallel.async_tensor": (("parallel=fsdp_tp", "parallel.sequence=true", "train.compile=true"),),
    "parallel.schedule": (
        ("parallel.pipeline=2", _MANY),
        ("parallel.pipeline=2", "parallel.virtual_pipeline=2", "model.num_hidden_layers=8", _MANY),
    ),
    "precision.": (
        ("precision=fp16",),
        ("precision=fp8",),
        ("precision=nvfp4",),
        ("parallel=zero1", *(f"precision.{each}=bf16" for each in ("compute", "parameters", "optimizer_states"))),
    ),
    "train.on_spike": (("save.every=10",),),
    "zero.": (
        ("parallel=zero3", "zero.nvme_path=/nvme"),
        ("parallel=zero3", "zero.nvme_path=/nvme", "zero.max_reuse_distance=0", "zero.overlap_comm=false"),
        ("parallel=zero3", "cluster.nodes=2"),
        ("parallel=zero3", "precision=fp16", "cluster.nodes=2"),
    ),
}
"""Sets of words that an option of a group, a group's keys, or one key need to have a meaning: one set is enough."""


@cache
def _errors(words: tuple[str, ...]) -> tuple[ConfigError, ...]:
    try:
        return findings.errors(make_spec(*words, folder=ROOT))
    except ConfigErrors as errors:
        return tuple(errors.errors)


def _runs(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Runs of every engine with these words, the likeliest first."""
    groups = {word.partition("=")[0] for word in words}
    if "recipe" in groups:
        yield words
        return
    presets = ((),) if "parallel" in groups else tuple((f"parallel={each}",) for each in _PRESETS)
    models = ((),) if "model" in groups else tuple((f"model={each}",) for each in _MODELS)
    places = (("cluster.gpus_per_node=8",),) if "hardware" in groups else (_H100, _B200, _CPU)
    for place, model, preset in product(places, models, presets):
        yield (*model, *place, *preset, *words)


def _is_run(word: str) -> bool:
    key = word.partition("=")[0]
    group = key.partition(".")[0] + "." if "." in key else ""
    for beside in ((), *_BESIDE.get(key, ()), *_BESIDE.get(group, ())):
        said = {each.partition("=")[0] for each in beside}
        if key not in said and any(not _errors(run) for run in _runs((*beside, word))):
            return True
    return False


@pytest.mark.parametrize("word", [f"{group}={each}" for group, all_ in _CATALOG.groups.items() for each in all_])
def test_some_engine_runs_every_option(word: str) -> None:
    assert _is_run(word)


def _values(kind: Any) -> Iterator[object]:
    """The literal and boolean values that a key of this type takes."""
    kind = bare(kind)
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    elif kind is bool:
        yield from ("true", "false")
    else:
        for each in get_args(kind):
            yield from _values(each)


_REFUSED = {"model.trust_remote_code=true", "zero.gather_16bit_weights_on_save=true"}
"""Settings of other programs that the launcher knows only to refuse them by name, with the reason."""


_READ = {"model.family=observed", "model.family=hybrid"}
"""Settings that only an imported configuration can set: tests/families/test_observed.py trains models of the first, and
tests/importers/test_megatron_hybrids.py reads, checks and translates the second."""


@pytest.mark.parametrize(
    "word",
    [
        word
        for path, kind in kinds().items()
        for word in (f"{path}={value}" for value in dict.fromkeys(_values(kind)))
        if word not in _READ
    ],
)
def test_some_engine_runs_every_value(word: str) -> None:
    assert _is_run(word) != (word in _REFUSED)


_NODE = ("cluster.gpus_per_node=8", "hardware=h100_80g")
_EXTRA = "+backend.extra"
_REFUSED_LINES = (
    "model=7b parallel=tp optimizer=adamw_8bit",
    "model=gpt2_xl parallel=fsdp precision=fp8",
    "model=7b parallel=tp precision=mxfp8",
    "model=7b parallel=fsdp_pp parallel.schedule=dualpipe train.global_batch_size=64",
    "model=7b parallel=fsdp_pp adapter=qlora train.global_batch_size=64",
    "model=7b parallel=tp parallel.ulysses=2",
    "model=7b parallel=tp parallel.async_tensor=true",
    "model=7b parallel=tp checkpointing=full checkpointing.offload=true",
    "model=7b parallel=fsdp checkpointing=full checkpointing.offload=true checkpointing.offload_modules=[core_attn]",
    "model=7b parallel=fsdp_tp train.loss=fused",
    "model=1b parallel=ddp zero=1",
    "model=7b parallel=fsdp train.profile=true",
    f"model=7b parallel=zero3 {_EXTRA}.activation_checkpointing.cpu_checkpointing=true",
    f"model=7b parallel=zero3 {_EXTRA}.zero_optimization.mics_shard_size=8",
    f"model=7b parallel=zero1 {_EXTRA}.optimizer.type=OneBitAdam",
    f"model=7b parallel=zero3 {_EXTRA}.zero_optimization.zenflow.topk_ratio=0.1",
    f"model=7b parallel=tp {_EXTRA}.use-megatron-fsdp=true",
    f"model=7b parallel=tp {_EXTRA}.cpu-offloading-num-layers=4",
    f"model=7b parallel=tp {_EXTRA}.fine-grained-activation-offloading=true",
    f"model=7b parallel=tp {_EXTRA}.recompute-granularity=full",
    f"model=7b parallel=tp {_EXTRA}.cuda-graph-impl=local",
)


def _refused(words: tuple[str, ...]) -> tuple[ConfigError, ...]:
    found = check_run(CheckRequest(overrides=words, native=False, measured=False), ())
    return found.errors if found.assessment is None else found.assessment.errors


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=[pytest.mark.thorough] if number % 3 else [])
        for number, line in enumerate(_REFUSED_LINES)
    ],
)
def test_a_way_out_of_a_refused_technique_passes_when_it_is_typed_behind_the_line(line: str) -> None:
    words = (*line.split(), *_NODE)
    errors = _refused(words)
    assert errors
    for way in [way for error in errors for way in error.way_out]:
        assert not _errors((*words, *way.split())), way


class Engine(NamedTuple):
    """A column of the page."""

    title: str
    words: tuple[str, ...]
    otherwise: tuple[str, ...] = ()  # What its refusals of optimizers ask for.


_ENGINES = (
    Engine("FSDP2", ("parallel=fsdp",)),
    Engine("DDP", ("parallel=ddp",)),
    Engine("ZeRO 2", ("parallel=zero2",)),
    Engine("ZeRO 3", ("parallel=zero3",)),
    Engine("Megatron-LM", ("backend=megatron",), ("zero=0",)),
)

_MOE, _TWO_STAGES = ("model=mixtral_8x7b",), ("parallel.pipeline=2", _MANY)
_V_SHAPED = (*_TWO_STAGES, "parallel.virtual_pipeline=2")
_QLORA = ("adapter=qlora", "model.weights=weights")

_TECHNIQUES: dict[str, tuple[str, ...]] = {
    "AdamW": ("optimizer=adamw",),
    "SGD": ("optimizer=sgd",),
    "AdamW with 8-bit states": ("optimizer=adamw_8bit",),
    "AdamW with 4-bit states": ("optimizer=adamw_4bit",),
    "AdamW with paged 8-bit states": ("optimizer=paged_adamw_8bit",),
    "Adafactor": ("optimizer=adafactor",),
    "Lion": ("optimizer=lion",),
    "Muon": ("optimizer=muon",),
    "LoRA": _LORA,
    "LoRA with tensor parallelism": (*_LORA, "parallel.tensor=2"),
    "DoRA, rsLoRA, LoRA+": (*_LORA, "adapter.dora=true", "adapter.rslora=true", "adapter.lora_plus=16"),
    "PiSSA": ("task=sft", *_LORA, "adapter.pissa=16"),
    "OFT": ("task=sft", "adapter=oft", "model.weights=weights", "adapter.block_size=16"),
    "QOFT": ("task=sft", "adapter=qoft", "model.weights=weights", "adapter.block_size=16"),
    "QLoRA": _QLORA,
    "LoRA on 8-bit weights": (*_QLORA, "adapter.quant_type=int8"),
    "bf16": ("precision=bf16",),
    "fp16 with loss scaling": ("precision=fp16",),
    "fp8": ("precision=fp8",),
    "weights gathered in fp8": ("precision=fp8", "zero.quantized_weights=true"),
    "quantization-aware training": ("precision.qat=int8_int4", "precision.qat_group_size=16"),
    "quantization-aware training in mxfp4": ("precision.qat=mxfp4", *_IN_FP4, "precision.parameters=bf16"),
    "quantization-aware training in nvfp4": (
        *("precision.qat=nvfp4", "precision.qat_group_size=16"),
        *(*_IN_FP4, "precision.parameters=bf16"),
    ),
    "mxfp8": ("precision=mxfp8", *_IN_FP4, "precision.parameters=bf16"),
    "nvfp4": (
        "precision=nvfp4",
        "model.intermediate_size=768",
        "train.sequence_length=128",
        "precision.parameters=bf16",
    ),
    "full recomputation": ("checkpointing=full",),
    "selective recomputation": ("checkpointing=selective",),
    "recomputation of named modules": ("checkpointing=selective", "checkpointing.modules=[mlp]"),
    "recomputation of only the first layers": (
        "checkpointing=full",
        "checkpointing.method=block",
        "checkpointing.layers=1",
    ),
    "activations in host memory": ("checkpointing=full", "checkpointing.offload=true"),
    "optimizer states in host memory": ("zero.offload_optimizer=cpu",),
    "parameters in host memory": ("zero.offload_optimizer=cpu", "zero.offload_parameters=cpu"),
    "states on NVMe": ("zero.offload_optimizer=nvme", "zero.nvme_path=/nvme"),
    "tensor parallelism": ("parallel.tensor=2",),
    "sequence parallelism": ("parallel.tensor=2", "parallel.sequence=true"),
    "context parallelism": ("parallel.context=2",),
    "Ulysses": ("parallel.ulysses=2",),
    "QLoRA of experts": (
        "model=mixtral_8x7b",
        *_QLORA,
        "checkpointing=full",
        "adapter.targets=[q_proj,k_proj,v_proj,o_proj]",
    ),
    "expert parallelism": (*_MOE, "parallel.expert=2"),
    "GPipe": (*_TWO_STAGES, "parallel.schedule=gpipe"),
    "1F1B": _TWO_STAGES,
    "interleaved 1F1B": (*_V_SHAPED, "parallel.schedule=interleaved"),
    "zero bubble": (*_V_SHAPED, "parallel.schedule=zero_bubble"),
    "ZBV": (*_V_SHAPED, "parallel.schedule=zbv"),
    "DualPipeV": (*_V_SHAPED, "parallel.schedule=dualpipe_v"),
    "replicas of shards (HSDP, MiCS)": ("parallel.replicate=2",),
    "second partition in a node (hpZ)": ("zero.hpz=2",),
    "weights gathered in 8 bits (qwZ)": ("zero.quantized_weights=true",),
    "multi-token prediction": ("model.mtp_layers=1",),
    "chunked loss": ("train.loss=chunked",),
    "fused loss": ("train.loss=fused",),
    "Liger's kernels": ("train.kernels=liger",),
    "torch.compile": ("train.compile=true",),
    "supervised fine-tuning": ("task=sft",),
    "profiler": ("train.profile={start:2}",),
}
"""Techniques with the words that request them, including a suitable model."""


_ALL = "all"
_HIDDEN = ("model=", "model.weights=", "model.intermediate_size=", "train.global_batch_size=", "train.sequence_length=")
"""Words that only make a technique's run valid, which the page leaves out."""

_OTHERS_ONLY = "used only by backend="  # A reason that says no more than the row of the table.


def _cell(engine: Engine, words: tuple[str, ...]) -> tuple[str, str]:
    """Where an engine runs a technique (all, CPU, GPU, no), and the reason if it does not run everywhere."""
    groups = {word.partition("=")[0] for word in words}
    model = () if "model" in groups else ("model=tiny",)
    others = ((), engine.otherwise) if engine.otherwise else ((),)
    on_cpu, on_gpu = (
        min((_errors((*model, *place, *engine.words, *more, *words)) for place in places for more in others), key=len)
        for places in ((_CPU,), (_H100, _B200))
    )
    if not on_gpu:
        return ("GPU", on_cpu[0].rule) if on_cpu else (_ALL, "")
    return ("CPU", on_gpu[0].rule) if not on_cpu else ("no", on_gpu[0].rule)


def _page() -> str:
    """docs/techniques.md."""
    rows: list[str] = []
    everywhere: list[str] = []
    reasons: dict[str, dict[str, list[str]]] = {}  # Titles by engines and rule: many share these.
    rules: dict[str, str] = {}
    for title, words in _TECHNIQUES.items():
        cells = {engine.title: _cell(engine, words) for engine in _ENGINES}
        typed = f"`{' '.join(word for word in words if not word.startswith(_HIDDEN))}`"
        if {text for text, _ in cells.values()} == {_ALL}:
            everywhere.append(f"{title} ({typed})")
            continue
        rows.append(f"| {title} | {typed} | {' | '.join(text for text, _ in cells.values())} |")
        for rule in dict.fromkeys(rule for where, rule in cells.values() if where != "GPU"):
            if rule and not rule.startswith(_OTHERS_ONLY):
                names = ", ".join(name for name, (_, said) in cells.items() if said == rule)
                alike = rule.removeprefix(words[-1].partition("=")[2])  # The name of a schedule.
                reasons.setdefault(names, {}).setdefault(alike, []).append(title)
                rules.setdefault(alike, rule)
    lines = [
        line
        for names, by in reasons.items()
        for line in (f"\n### {names}\n", *(_reason(titles, rules[rule]) for rule, titles in by.items()))
    ]
    first = textwrap.fill(f"All engines run: {', '.join(everywhere)}.", 120, break_on_hyphens=False)
    head = f"| technique | words | {' | '.join(engine.title for engine in _ENGINES)} |"
    rule = "|---" * (2 + len(_ENGINES)) + "|"
    return "\n".join([_INTRODUCTION, first, "", head, rule, *rows, "\n## Why a technique does not run", *lines, ""])


def _reason(titles: list[str], rule: str) -> str:
    said = f"- **{'; '.join(titles)}**: {rule}"
    return textwrap.fill(said, 120, subsequent_indent="  ", break_on_hyphens=False)


_INTRODUCTION = """# Techniques and engines

`all`: runs on CPU ranks and GPUs; `GPU`: translated and counted, but refused on CPU ranks: no kernels there, or not for
these sizes; `no`: refused, with the reason below if it is more than that other engines have it. `task=sft` is TRL's.
Add what a technique needs: `model.weights` for adapters, sizes that a format divides, enough micro-batches for a
pipeline.

Generated by `tests/test_techniques.py` from `launch check` of `model=tiny` (`mixtral_8x7b` for experts) with
`parallel=fsdp`, `ddp`, `zero2`, `zero3` or `backend=megatron` (with or without `zero=0`), on two CPU ranks or on eight
H100 or B200.
"""


def test_the_page_of_techniques_says_what_check_answers() -> None:
    path, made = ROOT / "docs" / "techniques.md", _page()
    if os.environ.get(ACCEPT):
        path.write_text(made)
    assert path.read_text() == made, f"make it anew: {ACCEPT}=1 pytest tests/test_techniques.py"
