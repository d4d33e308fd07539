"""DeepSpeed's checkpoint files inside one step's folder, and their conversion between numbers of ranks.

``deepspeed.json`` next to the files describes the layout of the run that saved them. A run with the same layout reads
its ranks' files as they are. For any other layout rank 0 converts them once to DeepSpeed's universal format, in a
separate process (``ds_to_universal``), inside the checkpoint's folder. ``reason_against`` refuses combinations that
DeepSpeed 0.19.8 converts wrongly or not at all, and :func:`_repair` corrects states that DeepSpeed's loading mixes up.
"""

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from launcher.backends.deepspeed.checkpoints import facts, layout_differs, reason_against
from launcher.base import machine
from launcher.base.files import JsonObject, load_json, write_atomically
from launcher.worker import CheckpointError
from launcher.worker.engine import Context

_GROUP_SETTINGS = ("weight_decay", "ratio")  # Settings that differ between groups (``optimizers``, ``adapters``).
TAG = "deepspeed"
FACTS = "deepspeed.json"
UNIVERSAL = "universal"
_NEARLY_FULL_BYTES = 2**24  # With less free, a failed write means a full disk: torch's zip writer does not say so.


def save(context: Context, engine: Any, directory: Path) -> None:
    """Write each rank's share to ``directory``; a frozen base is not saved, since ``model.weights`` determines it."""
    frozen = context.spec.adapter.name != "none"
    try:
        with _delayed_errors(engine):
            engine.save_checkpoint(str(directory), tag=TAG, save_latest=False, exclude_frozen_parameters=frozen)
    except Exception as error:
        if shutil.disk_usage(directory).free < _NEARLY_FULL_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise
    if context.rank == 0:
        write_atomically(directory / FACTS, facts(context.spec))


@contextlib.contextmanager
def _delayed_errors(engine: Any) -> Iterator[None]:
    """Delay a writer's exception until DeepSpeed is done: a rank that left earlier would miss the others' barriers."""
    writer, errors = engine.checkpoint_engine, list[Exception]()

    def late(write: Callable[..., object]) -> Callable[..., None]:
        def written(*arguments: Any, **options: Any) -> None:
            try:
                write(*arguments, **options)
            except (OSError, RuntimeError) as error:
                errors.append(error)

        return written

    writer.save, engine._copy_recovery_script = late(writer.save), late(engine._copy_recovery_script)
    try:
        yield
    finally:
        del writer.save, engine._copy_recovery_script
    if errors:
        raise errors[0]


def load(context: Context, engine: Any, directory: Path) -> None:
    """Load a DeepSpeed checkpoint; CheckpointError if this run cannot read it."""
    if not (directory / FACTS).is_file():
        raise CheckpointError(
            f"{directory} was not written by backend=deepspeed: continue with the backend that wrote it, "
            "or export from that backend (save.export=safetensors) and start this run with model.weights"
        )
    there, here = load_json(directory / FACTS), facts(context.spec)
    if (reason := reason_against(there, here)) is not None:
        raise CheckpointError(f"{directory} {reason[1]}")
    folder, tag = directory, TAG
    if here["stage"] > 0 and layout_differs(there, here):
        universal = _universal(context, directory)
        folder, tag = universal.parent, universal.name
        engine._config.load_universal_checkpoint = True
    if here["nvme"]:
        engine._load_zero_checkpoint = lambda *_, **__: True  # DeepSpeed's own assumes weights in memory, not NVMe.
    settings = [{key: group[key] for key in _GROUP_SETTINGS if key in group} for group in engine.optimizer.param_groups]
    loaded, _ = engine.load_checkpoint(str(folder), tag=tag, load_module_strict=context.spec.adapter.name == "none")
    if loaded is None:
        raise CheckpointError(f"DeepSpeed found no checkpoint to load in {folder / tag}")
    if engine._config.load_universal_checkpoint:
        engine._config.load_universal_checkpoint = False
        _repair(engine.optimizer.optimizer, settings)
    if here["nvme"]:
        _restore_swapped(engine, folder, tag)


@torch.no_grad()
def _restore_swapped(engine: Any, folder: Path, tag: str) -> None:
    """Restore optimizer states that ``load_checkpoint`` leaves out if states or weights are on NVMe.

    DeepSpeed 0.19.8 only copies the files of swapped sub-groups back and updates the weights from them: moments and
    the step count would start from zero. This rank's checkpoint file has the missing states.
    """
    wrapper = engine.optimizer
    read = engine._get_all_zero_checkpoints(str(folder), tag)[dist.get_rank(group=wrapper.dp_process_group)]
    wrapper.loss_scaler, before = read["loss_scaler"], read["optimizer_state_dict"]["state"]
    wrapper.checkpoint_event_prologue()
    masters = zip(wrapper.fp32_partitioned_groups_flat, read["fp32_flat_groups"], strict=True)
    for number, (master, saved) in enumerate(masters):
        state, size = wrapper.optimizer.state[master], wrapper.fp16_partitioned_groups_flat_numel[number]
        swapped = wrapper._swappable_optimizer_subgroup(number)
        for key, value in before[number].items():
            moments = isinstance(value, torch.Tensor) and value.dim() > 0
            if swapped and moments:
                state[key] = value.new_empty(size)  # Its size marks it as swapped; its swap file has the values.
            else:
                state[key] = value.to(master.device) if moments else value
        if swapped:
            wrapper._prepare_sub_group(number, set())
            wrapper._release_sub_group(number, set())
        else:
            master.data.copy_(saved)
            wrapper._reassign_or_swap_out_partitioned_parameters(number)
    wrapper.checkpoint_event_epilogue()


def _repair(optimizer: torch.optim.Optimizer, settings: list[JsonObject]) -> None:
    """Restore each group's own settings and each parameter's own step counter.

    DeepSpeed 0.19.8 (``load_hp_checkpoint_state_from_checkpoint_dir_stage3``) gives all groups the settings of the
    first, and all parameters one shared step counter, which torch's AdamW would advance once per parameter.
    """
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        for key in _GROUP_SETTINGS:
            group.pop(key, None)
        group.update(own)
    for state in optimizer.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].clone()


def _universal(context: Context, directory: Path) -> Path:
    """Have rank 0 convert the checkpoint to DeepSpeed's universal format, once; the others wait for the folder."""
    final = directory / UNIVERSAL
    if context.rank == 0 and not final.is_dir():
        _convert(directory / TAG, final)
    while not final.is_dir():
        time.sleep(0.2)
    dist.barrier()
    return final


def _convert(source: Path, final: Path) -> None:
    partial = final.with_name(f"{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    workers = str(_readers(source))
    command = [
        *(sys.executable, "-P", "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"),
        *("--input_folder", str(source), "--output_folder", str(partial)),
        *("--num_extract_workers", workers, "--num_merge_workers", workers),
    ]
    environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise CheckpointError(f"{source} could not be converted to DeepSpeed's universal format: {lines[-1].strip()}")
    partial.rename(final)


def _readers(source: Path) -> int:
    """At most four processes that fit in free memory; each has a rank's states, one twice (``zero_checkpoint.py``)."""
    states = max((path.stat().st_size for path in source.glob("*_optim_states.pt")), default=1)
    used, total = machine.memory_in_use() or (0, 16 * states)
    return max(1, min(4, os.cpu_count() or 1, 3 * (total - used) // (4 * states)))
