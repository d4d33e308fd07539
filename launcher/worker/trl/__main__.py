"""``python -m launcher.worker.trl --run DIR --config DIR/trl.yaml``: one rank of a TRL trainer, started by torchrun.

It does what ``trl.scripts.<task>.main`` does with that file (``launcher.worker.trl.training``), with the launcher's
samples, checkpoints and metrics (``launcher.worker.trl.follow``).
"""

from importlib.util import find_spec
from pathlib import Path

from launcher.base import package
from launcher.spec import RunSpec
from launcher.worker import TrainingError, loop
from launcher.worker.process import main


def run(spec: RunSpec, directory: Path, arguments: list[str]) -> object:
    """Train one run from its newest checkpoint, or from the start, to its last step."""
    with loop.entered(spec, directory) as context:
        if find_spec("trl") is None:
            raise TrainingError(f"TRL is not installed for this Python: {package.install('trl')}")
        from launcher.worker.trl import training

        return training.run(context, arguments)


if __name__ == "__main__":
    main(run, arguments=True)
