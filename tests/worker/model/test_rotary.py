"""The rotary base of the specification is the one that the installed transformers turns by."""

from __future__ import annotations

import pytest
import torch

from launcher.worker.model import initial, network
from tests.support.helpers import make_spec


@pytest.mark.parametrize("words", [(), ("model.qk_norm=true",), ("model.attention_bias=true",)])
def test_the_angles_of_the_installed_classes_follow_the_base(words: tuple[str, ...]) -> None:
    model = make_spec("model=tiny", "model.rope_theta=500000", *words).model
    made = network.network(model, torch.float32)
    [found] = [value for _, name, value in initial.buffer_values(made) if name == "inv_freq"]
    places = torch.arange(0, model.head_size, 2) / model.head_size
    torch.testing.assert_close(found, 500000.0**-places)
