"""Models on the Hugging Face Hub: ``config.json`` from the user's cache, else fetched once with ``huggingface_hub``.

The cache is the one that ``huggingface_hub``, ``transformers`` and ``hf download`` share, read without importing them,
so that a model fetched before needs no network and no time. Weights are not fetched here: only their folder is named,
and the user fetches them with ``hf download``.
"""

import os
import re
import shlex
import threading
from importlib.util import find_spec
from pathlib import Path

from launcher.base import package
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.data import hub as in_cache

CONFIG = "config.json"
_PATIENCE_S = 15.0
"""Seconds for the whole answer; ``huggingface_hub`` by itself would try for half a minute without a network."""

_REQUEST_S = 5.0  # Timeout in seconds of each of its two requests.
_SNAPSHOT = re.compile(r"/models--([^/]+?)--([^/]+)/snapshots/([^/]+)/?\Z")


def is_name(text: str) -> bool:
    """True for ``organization/model`` and ``organization/model@revision``."""
    return in_cache.split(text) is not None


def snapshot(name: str) -> Path | None:
    """Return the cached folder of a model with its ``config.json``; None if it was never fetched."""
    named = in_cache.split(name)
    found = None if named is None else in_cache.snapshot("model", *named)
    return found if found is not None and (found / CONFIG).is_file() else None


def command(folder: Path) -> str | None:
    """Return the command that fetches weights and tokenizer of a cached folder; None for any other folder."""
    found = _SNAPSHOT.search(folder.as_posix())
    if found is None:
        return None
    owner, model, revision = found.groups()
    wanted = " ".join(f"--include {shlex.quote(kind)}" for kind in ("*.safetensors*", "*.json", "tokenizer*"))
    return f"hf download {owner}/{model} --revision {revision} {wanted}"


def fetch(name: str) -> Path:
    """Fetch only a model's ``config.json`` into the cache and return its folder; raises ConfigErrors on failure."""
    repository, _, revision = name.partition("@")
    at = f" --revision {revision}" if revision else ""
    ways = [f"hf download {repository}{at} {CONFIG}", "model=./folder"]
    if find_spec("huggingface_hub") is None:
        rule = "fetching from the Hub needs huggingface_hub, which is not installed for this Python"
        raise ConfigErrors([ConfigError("model", name, rule, [package.install(package.TRAINING), "model=./folder"])])
    said: list[str] = []
    # In a thread, because DNS lookups have no timeout; the thread does not outlive the command.
    thread = threading.Thread(target=lambda: said.append(_fetched(repository, revision or None)), daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    problem = said[0] if said else f"the Hub did not answer within {_PATIENCE_S:g} s"
    found = snapshot(name)
    if problem or found is None:
        raise ConfigErrors([ConfigError("model", name, problem or "the Hub sent no config.json", ways)])
    return found


def _fetched(name: str, revision: str | None) -> str:
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.utils.tqdm import disable_progress_bars

    endpoint = os.environ.get("HF_ENDPOINT")
    disable_progress_bars()
    try:
        # One request without retries shows whether the file exists: the download would try six times.
        url = hf_hub_url(name, CONFIG, revision=revision, endpoint=endpoint)
        get_hf_file_metadata(url, timeout=_REQUEST_S, endpoint=endpoint)
        hf_hub_download(
            name, CONFIG, revision=revision, endpoint=endpoint, cache_dir=in_cache.cache(), etag_timeout=_REQUEST_S
        )
    except errors.GatedRepoError:
        return "it is gated: request access on its page on the Hub, then `hf auth login`"
    except errors.RepositoryNotFoundError:
        return "the Hub has no such model, or it is private and `hf auth login` is needed"
    except errors.EntryNotFoundError:
        return "the model on the Hub has no config.json"
    except errors.OfflineModeIsEnabled:
        return "it is not in the cache, and HF_HUB_OFFLINE forbids fetching it"
    except Exception as error:
        return f"the Hub cannot be reached: {' '.join(str(error).split()) or type(error).__name__}"
    return ""
