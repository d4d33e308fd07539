"""The installed megatron-core, and what this machine lacks to run a valid job."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from launcher.backends.megatron.translate import SCRIPT, arguments
from launcher.base import package
from launcher.base.errors import ConfigError
from launcher.job import versions
from launcher.spec import RunSpec

FRAMEWORK = "megatron-core"
RANGE = versions.span(FRAMEWORK)
"""Versions that this backend supports, in words: it knows their arguments and drives their ``pretrain``."""

NEWEST = "0.19"  # The version of the checkout that an error proposes.
INSTALL = package.install("megatron")


def found_version() -> str | None:
    """The installed version; None without one."""
    return versions.installed(FRAMEWORK)


def is_supported(found: str) -> bool:
    """True if its arguments are the ones that this backend knows."""
    return versions.is_driven(FRAMEWORK, found)


def obstacles(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for a missing megatron-core, Transformer Engine, checkout, tokenizer or data set."""
    if spec.script is not None:
        return
    yield from _packages(spec)
    yield from _checkout(spec)
    tokenizer = arguments(spec).get("tokenizer-model")
    if isinstance(tokenizer, str) and not Path(tokenizer).exists():
        rule = "no such file or folder: name a tokenizer that is on this machine"
        key = next(key for key in spec.backend.extra if key.replace("_", "-").endswith("tokenizer-model"))
        yield ConfigError(f"backend.extra.{key}", tokenizer, rule, [f"+backend.extra.{key}=path/to/tokenizer"])


def _packages(spec: RunSpec) -> Iterator[ConfigError]:
    found, named = found_version(), spec.backend.name
    if spec.backend.path is None and found is None:
        yield ConfigError("backend.name", named, "megatron-core is not installed for this Python", [INSTALL])
    elif spec.backend.path is None and found is not None and not is_supported(found):
        rule = f"megatron-core {found} is installed; this version of launch supports {FRAMEWORK} {RANGE}"
        yield ConfigError("backend.name", named, rule, [INSTALL, "backend.path=path/to/Megatron-LM"])
    local = arguments(spec).get("transformer-impl") == "local"
    if spec.optimizer.fused and not any(map(find_spec, ("transformer_engine", "apex"))):
        rule = "Megatron-LM's fused AdamW needs Transformer Engine or Apex, and neither is installed for this Python"
        yield ConfigError("optimizer.fused", True, rule, ["optimizer.fused=null"])
    if spec.hardware.device == "cuda" and not local and find_spec("transformer_engine") is None:
        rule = "Megatron-LM's GPU modules need Transformer Engine, which is not installed for this Python"
        way_out = ['pip install "transformer_engine[pytorch]"', "+backend.extra.transformer-impl=local"]
        yield ConfigError("backend.name", named, rule, way_out)


def _checkout(spec: RunSpec) -> Iterator[ConfigError]:
    path, data = spec.backend.path, spec.data
    if path is None:
        return
    if not (Path(path) / SCRIPT).is_file():
        rule = f"it has no {SCRIPT}: set it to a checkout of Megatron-LM"
        clone = f"git clone --branch core_v{NEWEST}.0 https://github.com/NVIDIA/Megatron-LM {path}"
        yield ConfigError("backend.path", path, rule, [clone, "backend.path=null"])
    for each in data.sets if data.source == "tokens" else ():
        if each.path is not None and not Path(f"{each.path}.idx").is_file():
            rule = f"{SCRIPT} reads PREFIX.bin and PREFIX.idx, and {each.path}.idx does not exist"
            yield ConfigError("data.path", each.path, rule, ["data=synthetic", "backend.path=null"])
