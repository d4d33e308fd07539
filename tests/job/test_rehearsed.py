"""What a rehearsed rank measured is read as it was written."""

import json

from launcher.base import typed
from launcher.job.memory import Rehearsed, RehearsedPhase


def test_a_rehearsed_rank_is_read_as_it_was_written() -> None:
    found = Rehearsed(
        rank=3,
        world=8,
        stage=1,
        layers=2,
        device="cpu",
        device_name="a processor",
        method="counted",
        static_bytes=10,
        phases={"forward": RehearsedPhase(allocated_bytes=20, piles={"activations": 10, "parameters": 10})},
        step_seconds=(0.5, 0.4),
        ran_out=False,
        versions={"torch": "2.8.0"},
    )
    assert typed.read(Rehearsed, json.loads(json.dumps(found.as_dict()))) == found
