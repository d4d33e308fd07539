"""Data sets of the Hugging Face Hub, by the package ``datasets``: from its cache, or fetched.

The Hub is tried for a moment first. Where it does not answer, ``datasets`` would try again for minutes; it is told that
it is offline instead, and then knows at once whether its cache has the data set.
"""

from __future__ import annotations

from typing import Any

from launcher.base import package
from launcher.data.unusable import PackageMissing, Unusable
from launcher.spec import DataSpec

_CONNECT_S = 5.0


def hub_data_set(data: DataSpec) -> Any:
    """The data set that ``data.path`` names, with the rows of ``data.split``.

    Raises:
        Unusable: There is none of that name, it has no such split, or the Hub does not answer.
    """
    try:
        import datasets
    except ImportError:
        rule = "needs datasets, not installed for this Python"
        raise PackageMissing("data.source", data.source, rule, [package.install(package.TRAINING)]) from None
    datasets.disable_progress_bars()
    answers = _answers(datasets.config.HF_ENDPOINT)
    if not answers:
        _stay_offline(datasets)
    try:
        return datasets.load_dataset(data.path, split=data.split)
    except Exception as error:
        said = f"says {type(error).__name__}: {error}" if answers else "does not answer, and its cache has no such data"
        rule = f"no file or folder of this machine; the Hugging Face Hub {said}"
        raise Unusable("data.path", data.path, rule, ["data=text", "data=synthetic"]) from error


def _answers(endpoint: str) -> bool:
    """True if a connection can be made; behind a proxy only the real request can tell."""
    import socket  # Late, as what follows: no other data need it, and planning is quick.
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    if getproxies():
        return True
    place = urlsplit(endpoint)
    try:
        socket.create_connection((place.hostname or "", place.port or 443), timeout=_CONNECT_S).close()
    except OSError:
        return False
    return True


def _stay_offline(datasets: Any) -> None:
    """Set what HF_HUB_OFFLINE sets, which both packages read as they are imported."""
    from huggingface_hub import constants

    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
