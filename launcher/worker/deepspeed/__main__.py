"""``python -m launcher.worker.deepspeed --run DIR``: one rank of DeepSpeed, started by torchrun."""

from importlib.util import find_spec

from launcher.base import package
from launcher.worker import TrainingError, loop
from launcher.worker.engine import Context, Engine
from launcher.worker.process import main


def build(context: Context) -> Engine:
    """The engine of one rank; TrainingError if DeepSpeed is not installed."""
    if find_spec("deepspeed") is None:
        raise TrainingError(f"DeepSpeed is not installed for this Python: {package.install('deepspeed')}")
    from launcher.worker.deepspeed import engine

    return engine.build(context)


if __name__ == "__main__":
    main(lambda spec, directory, _: loop.run(spec, directory, build))
