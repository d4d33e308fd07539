"""A run as a Megatron-LM job: torchrun, the worker or a checkout's ``pretrain_gpt.py``, and the argument list."""

import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath

from launcher.backends.megatron import layout, network, training
from launcher.backends.megatron.implementation import fsdp, implementation
from launcher.backends.megatron.network import Arguments, Value
from launcher.backends.megatron.options import SETTINGS
from launcher.estimate import families
from launcher.job import RUN, Job, torchrun
from launcher.spec import RunSpec
from launcher.spec.hardware import BLACKWELL

PROGRAM = ("-m", "launcher.worker.megatron")
SCRIPT, HYBRID_SCRIPT = "pretrain_gpt.py", "pretrain_hybrid.py"
"""The entry points of a Megatron-LM checkout, ``backend.path``; the wheel of megatron-core has none."""

_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


def translate(spec: RunSpec, python: str) -> Job:
    """The job of a valid run: the worker, or the program of a checkout."""
    words = argument_list(spec)
    if spec.backend.path is None:
        argv = torchrun.command(spec, python, PROGRAM, ("--run", RUN, *words))
    else:
        script = SCRIPT if families.of(spec.model).traits.pattern is None else HYBRID_SCRIPT
        argv = torchrun.command(spec, python, (str(PurePosixPath(spec.backend.path) / script),), words)
    return Job(
        argv=argv,
        worker_argv=words,
        environment=environment(spec),
        nodes=spec.cluster.nodes,
        gpus_per_node=spec.cluster.gpus_per_node,
        files={"megatron_arguments.txt": _lines(words)},
    )


def environment(spec: RunSpec) -> dict[str, str]:
    """Environment variables of the job, among them one queue where tensor or context parallel ranks overlap traffic.

    ``validate_args`` requires that below compute capability 10, and the opposite for Megatron-FSDP.
    """
    found = {}
    if spec.hardware.device == "cuda" and spec.train.allocator == "expandable":
        found["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        if spec.train.cuda_graphs != "none":
            found["NCCL_GRAPH_REGISTER"] = "0"  # ``validate_args``: for graphs with such segments.
    if spec.checkpointing.offload_modules:
        found["NVTE_CPU_OFFLOAD_V1"] = "1"  # ``validate_args`` requires it with Transformer Engine from 2.10 on.
    if spec.tracking.kind == "wandb" and spec.tracking.uri is not None:
        found["WANDB_BASE_URL"] = spec.tracking.uri
    split = spec.parallel.tensor > 1 or spec.parallel.context > 1
    older = spec.hardware.device == "cpu" or spec.hardware.effective_capability < BLACKWELL
    if split and older and not fsdp(spec):
        found[_CONNECTIONS] = "1"
    return found


def _lines(words: tuple[str, ...]) -> str:
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(word)
    return " \\\n".join(shlex.join(line) for line in lines) + "\n"


_LOCAL: Arguments = {
    "transformer-impl": "local",
    "no-gradient-accumulation-fusion": True,
    "no-masked-softmax-fusion": True,
    "no-persist-layer-norm": True,
    "no-rope-fusion": True,
}
"""Megatron-core's own modules instead of Transformer Engine's and Apex's kernels."""

_CPU: Arguments = {
    **_LOCAL,
    "use-cpu-initialization": True,
    "no-bias-swiglu-fusion": True,
    "no-bias-dropout-fusion": True,
    "disable-jit-fuser": True,
}
"""Arguments for the CPU, which also turn off everything compiled only for GPUs."""


def arguments(spec: RunSpec) -> Arguments:
    """All arguments by name; ``backend.extra`` replaces, adds, and removes with ``false`` or ``null``."""
    found = {**network.arguments(spec), **layout.arguments(spec), **training.arguments(spec)}
    if not implementation(spec).transformer_engine:
        found |= _LOCAL if spec.hardware.device == "cuda" else _CPU
    more = {name(key): _value(value) for key, value in spec.backend.extra.items()}
    found |= {key: value for key, value in more.items() if value is not None or key not in SETTINGS}
    return {key: value for key, value in found.items() if value is not None and value is not False}


def argument_list(spec: RunSpec) -> tuple[str, ...]:
    """The words of the command line."""
    return tuple(_words(arguments(spec)))


def name(key: str) -> str:
    """An argument's name as Megatron-LM spells it: with dashes, without the leading two."""
    return key.lstrip("-").replace("_", "-")


def _value(value: object) -> Value:
    if isinstance(value, list | tuple):
        return tuple(item if isinstance(item, int) and not isinstance(item, bool) else str(item) for item in value)
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _words(found: Arguments) -> Iterator[str]:
    for key, value in found.items():
        yield f"--{key}"
        if isinstance(value, tuple):
            yield from map(str, value)
        elif value is not True:
            yield str(value)
