"""The words of a configuration are those of the installed transformers: a key that it does not know it never reads."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from launcher.worker import TrainingError
from launcher.worker.model import initial, network
from launcher.worker.model import network as versions
from tests.support.helpers import make_spec

DEFAULT = {"rope_type": "default", "rope_theta": 5e5}


class Old:
    """A configuration of transformers 4."""

    def __init__(self, hidden_size: int, rope_theta: float = 1e4, rope_scaling: Any = None, **rest: object) -> None: ...


class OldGemma:
    """Gemma 3 there, whose sliding layers have a base of their own."""

    def __init__(self, rope_theta: float = 1e6, rope_local_base_freq: float = 1e4, **rest: object) -> None: ...


class New:
    """A configuration of transformers 5."""

    def __init__(self, hidden_size: int, rope_parameters: Any = None, **rest: object) -> None: ...


def test_the_rotary_base_is_a_key_of_its_own_before_transformers_5() -> None:
    wanted = {"hidden_size": 64, "rope_parameters": DEFAULT}
    assert versions.settings(New, wanted) == wanted
    assert versions.settings(Old, wanted) == {"hidden_size": 64, "rope_theta": 5e5}
    assert versions.settings(Old, {"hidden_size": 64}) == {"hidden_size": 64}


def test_a_scaled_rotary_embedding_keeps_its_scaling() -> None:
    scaled = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    found = versions.settings(Old, {"rope_parameters": scaled})
    assert found == {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}


def test_layers_of_two_kinds_keep_both_bases() -> None:
    kinds = {"full_attention": {**DEFAULT, "rope_theta": 1e6}, "sliding_attention": DEFAULT}
    assert versions.settings(OldGemma, {"rope_parameters": kinds}) == {"rope_theta": 1e6, "rope_local_base_freq": 5e5}
    with pytest.raises(TrainingError, match=r"has no rope_local_base_freq in Old, .* pip install 'transformers>=5.0'"):
        versions.settings(Old, {"rope_parameters": kinds})


@pytest.mark.parametrize("words", [(), ("model.qk_norm=true",), ("model.attention_bias=true",)])
def test_the_angles_of_the_installed_classes_follow_the_base(words: tuple[str, ...]) -> None:
    model = make_spec("model=tiny", "model.rope_theta=500000", *words).model
    made = network.network(model, torch.float32)
    [found] = [value for _, name, value in initial.buffer_values(made) if name == "inv_freq"]
    places = torch.arange(0, model.head_size, 2) / model.head_size
    torch.testing.assert_close(found, 500000.0**-places)
