"""A law of the importers: whatever JSON a key holds, the answer is an import or an error that names the file."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.base import registry
from launcher.base.errors import ConfigError, ConfigErrors
from tests.support.foreign_files import DEEPSEEK_V3, GPT2, LLAMA3_8B, MIXTRAL_8X7B, MODEL_ARGS, ZERO3_OFFLOAD
from tests.support.peer_files import PEERS

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 10**12)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "auto", "x", "$X"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "rope_theta"]), inner, max_size=2)
    ),
    max_leaves=3,
)
STARTS: dict[str, list[dict[str, Any]]] = {
    "hf": [LLAMA3_8B, MIXTRAL_8X7B, DEEPSEEK_V3, GPT2, LLAMA3_8B | {"rope_parameters": {}, "layer_types": []}],
    "deepspeed": [
        ZERO3_OFFLOAD,
        ZERO3_OFFLOAD["zero_optimization"],
        ZERO3_OFFLOAD | {"communication_data_type": "fp32", "data_types": {"grad_accum_dtype": "fp32"}},
    ],
    "megatron": [
        MODEL_ARGS
        | {"--use-megatron-fsdp": True, "--data-parallel-sharding-strategy": "optim", "--lr-warmup-fraction": 0.1}
        | {
            "--optimizer": "adam",
            "--lr-decay-style": "cosine",
            "--fp8-recipe": "delayed",
            "--nnodes": 2,
            "--train-iters": 9,
        }
    ],
}


def test_every_importer_has_files_to_start_from() -> None:
    assert {*STARTS, *PEERS} == set(registry.names("importers"))
    assert all(PEERS.values())


@pytest.mark.parametrize("kind", STARTS)
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_any_value_of_any_key_is_imported_or_refused_with_the_files_name(kind: str, data: st.DataObject) -> None:
    import_changed(kind, STARTS[kind], data)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_value_in_a_file_of_a_peer_is_imported_or_refused_with_the_files_name(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(PEERS)))
    import_changed(kind, PEERS[kind], data)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", sorted(PEERS))
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_any_value_in_a_file_of_each_peer_is_imported_or_refused(kind: str, data: st.DataObject) -> None:
    import_changed(kind, PEERS[kind], data)


def import_changed(kind: str, starts: list[dict[str, Any]], data: st.DataObject) -> None:
    """Change one value of a file and read it; an error names the file."""
    content = json.loads(json.dumps(data.draw(st.sampled_from(starts))))
    key = data.draw(st.sampled_from(sorted(content)))
    inside = content[key]
    if isinstance(inside, dict) and inside and data.draw(st.booleans()):
        inside[data.draw(st.sampled_from(sorted(inside)))] = data.draw(ANYTHING)
    else:
        content[key] = data.draw(ANYTHING)
    refused: tuple[ConfigError, ...] = ()
    try:
        registry.load("importers", kind).read(json.dumps(content), "file.json")
    except ConfigErrors as caught:
        refused = caught.errors
    assert all(error.path.startswith("file.json") for error in refused)
