"""Indexed data sets of Megatron-LM: found by their prefix, and of the type that their index says."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from launcher.data import look
from launcher.data.files import data_files
from launcher.data.unusable import Unusable
from tests.support.helpers import make_spec


def written(folder: Path, *, code: int, kind: type[np.generic]) -> Path:
    """A data set of 300 tokens, with the head of an index as ``_IndexWriter`` writes it."""
    prefix = folder / "web.v1_text_document"
    np.arange(300).astype(kind).tofile(f"{prefix}.bin")
    Path(f"{prefix}.idx").write_bytes(b"MMIDIDX\x00\x00" + struct.pack("<QB", 1, code) + struct.pack("<QQ", 1, 1))
    return prefix


@pytest.mark.parametrize(("code", "kind", "dtype"), [(8, np.uint16, "uint16"), (4, np.int32, "uint32")])
def test_a_prefix_stands_for_its_file_of_ids(code: int, kind: type[np.generic], dtype: str, tmp_path: Path) -> None:
    prefix = written(tmp_path, code=code, kind=kind)
    assert data_files(str(prefix)) == [Path(f"{prefix}.bin")]
    found = look.look(make_spec("data=tokens", f"data.path={prefix}", f"data.token_dtype={dtype}").data)
    assert found is not None
    assert (found.tokens, found.largest) == (300, 299)


def test_a_type_that_the_index_does_not_say_is_an_error_with_the_one_that_it_does(tmp_path: Path) -> None:
    prefix = written(tmp_path, code=4, kind=np.int32)
    with pytest.raises(Unusable) as caught:
        look.look(make_spec("data=tokens", f"data.path={prefix}").data)
    finding = caught.value.finding
    assert (finding.path, finding.rule) == ("data.token_dtype", f"{prefix}.idx says uint32")
    assert finding.way_out == ("data.token_dtype=uint32",)


def test_a_file_beside_the_ids_that_is_no_index_is_an_error(tmp_path: Path) -> None:
    prefix = written(tmp_path, code=6, kind=np.float64)
    with pytest.raises(Unusable, match="it is not an index of token ids as written by Megatron-LM"):
        look.look(make_spec("data=tokens", f"data.path={prefix}").data)
