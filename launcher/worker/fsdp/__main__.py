"""``python -m launcher.worker.fsdp --run DIR``: one rank of PyTorch FSDP2 or DDP, started by torchrun."""

from launcher.worker import loop
from launcher.worker.fsdp.engine import build
from launcher.worker.process import main

if __name__ == "__main__":
    main(lambda spec, directory, _: loop.run(spec, directory, build))
