"""Each of the workers' engines under fake tensors, with its tensors by purpose."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

from launcher.backends.deepspeed import ds_config
from launcher.worker.engine import Context, Engine
from launcher.worker.trace import shims
from launcher.worker.trace.recorder import Recorder


@contextlib.contextmanager
def prepared(context: Context) -> Iterator[Callable[[], Engine]]:
    """Run the preparations that fake tensors do not allow; the function that is yielded makes the engine under them."""
    if context.spec.backend.name == "deepspeed":
        with shims.deepspeed(context):
            from launcher.worker.deepspeed.engine import build

            (context.directory / "ds_config.json").write_text(json.dumps(ds_config.build(context.spec)))
            yield lambda: build(context)
    else:
        with shims.ddp():
            from launcher.worker.fsdp.engine import filled, rank_parts

            model = rank_parts(context)
            yield lambda: filled(context, model)


def label(recorder: Recorder, engine: Engine) -> None:
    """Label what the engine keeps; buffers of collectives are known by their operations."""
    for pile, tensors in engine.piles():
        if pile not in ("gather_buffers", "reduce_buffers"):
            recorder.label(pile, tensors)
