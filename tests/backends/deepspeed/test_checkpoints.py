"""Which setting a checkpoint that DeepSpeed cannot go on from is refused by, and what is offered for it."""

from __future__ import annotations

import pytest

from launcher.backends.deepspeed.checkpoints import unreadable
from tests.support.helpers import make_spec

OPTIMIZER, PARAMETERS = "zero.offload_optimizer", "zero.offload_parameters"
DISK = "zero.nvme_path=/x"
NO_NVME = (
    "the checkpoint cannot be resumed: DeepSpeed 0.19.8 restores neither weights nor optimizer states where something "
    "is offloaded to NVMe; train without NVMe, or export there (save.export=safetensors) and start here with "
    "model.weights"
)


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ((f"{OPTIMIZER}=nvme",), (f"{OPTIMIZER}=nvme",), (OPTIMIZER, "nvme", ())),
        ((f"{OPTIMIZER}=nvme",), (f"{OPTIMIZER}=nvme", "cluster.gpus_per_node=1"), (OPTIMIZER, "nvme", ())),
        ((f"{OPTIMIZER}=nvme",), (), (OPTIMIZER, "none", ())),
        ((f"{PARAMETERS}=nvme",), (f"{PARAMETERS}=nvme",), (PARAMETERS, "nvme", ())),
        ((), (f"{OPTIMIZER}=nvme",), (OPTIMIZER, "nvme", (f"{OPTIMIZER}=none",))),
        ((), (f"{PARAMETERS}=nvme",), (PARAMETERS, "nvme", (f"{PARAMETERS}=none",))),
    ],
)
def test_no_way_out_of_nvme_leads_back_to_it(
    before: tuple[str, ...], after: tuple[str, ...], found: tuple[str, str, tuple[str, ...]]
) -> None:
    words = ("model=tiny", "parallel=zero3", "cluster.gpus_per_node=2", DISK)
    [error] = unreadable(make_spec(*words, *before), make_spec(*words, *after))
    assert (error.path, error.found, tuple(error.way_out)) == found
    assert error.rule == NO_NVME
