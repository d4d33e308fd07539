"""Initial values of parameters, the same however they are sharded: blocks of rows, each drawn from its own seed.

Values that a ``transformers`` class sets in its own code are found by calling its ``_init_weights`` with a copy of the
module whose small tensors are real and hold NaN: any number found afterwards was set. Matrices are drawn like those of
any other class, except those that their parent module draws.
"""

import contextlib
import hashlib
import inspect
import math
import re
import sys
import zlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from launcher.base.frozen import dataclass
from launcher.estimate.rank.shards import DRAWN_ELEMENTS
from launcher.worker import TrainingError

BLOCK_ELEMENTS = DRAWN_ELEMENTS  # Size of one block of rows, which a rank holds besides its shard while drawing.

type Draw = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
"""Fills a block of rows, of shape (rows, *rest)."""


@dataclass(frozen=True, slots=True)
class Local:
    """A rank's part of a parameter: ``tensor`` is at ``offset`` in the whole parameter of shape ``shape``."""

    tensor: torch.Tensor
    shape: tuple[int, ...]
    offset: tuple[int, ...]

    @property
    def region(self) -> tuple[slice, ...]:
        """Slices that select the rank's part from the whole parameter."""
        return tuple(slice(start, start + size) for start, size in zip(self.offset, self.tensor.shape, strict=True))


type Access = Callable[[torch.Tensor], contextlib.AbstractContextManager[torch.Tensor | Local | None]]
"""Opens a parameter that an engine stores in its own format, to be filled; yields None if another rank fills it."""


def local(parameter: torch.Tensor | Local) -> Local:
    """This rank's part of a parameter that may be sharded."""
    if isinstance(parameter, Local):
        return parameter
    if not isinstance(parameter, DTensor):
        return Local(parameter, tuple(parameter.shape), (0,) * parameter.dim())
    _, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return Local(parameter.to_local(), tuple(parameter.shape), tuple(offset))


@torch.no_grad()
def fill(made: nn.Module, seed: int, access: Access = contextlib.nullcontext) -> None:
    """Initialize every parameter and buffer of a network on a real device.

    Raises TrainingError for a buffer whose initial value is not known.
    """
    for name, parameter, draw in draws(made):
        with access(parameter) as opened:
            if opened is not None:
                draw_into(local(opened), name, seed, draw)
        del opened  # Free it before the next one is allocated.
    _fill_buffers(made)


def _fill_buffers(made: Any) -> None:
    others = {id(buffer): name for name, buffer in made.named_buffers() if buffer.is_floating_point()}
    for module, name, value in buffer_values(made):
        others.pop(id(getattr(module, name)), None)
        getattr(module, name).copy_(value)
    own = own_values(made)
    for name, buffer in made.named_buffers():
        if plain(name) in own:
            others.pop(id(buffer), None)
            buffer.copy_(own[plain(name)])
    outer = outer_buffers(made, others.values())
    for name in others.values():
        if name not in outer:
            raise TrainingError(
                f"launch does not know how transformers' {made.config.model_type} computes its buffer {name}, and "
                "does not read it from a checkpoint: train this model by script=path/to/train.py"
            )
        made.get_buffer(name).copy_(outer[name])


def draw_into(part: Local, name: str, seed: int, draw: Draw) -> None:
    """Fill a rank's part of the parameter ``name``, one block of rows at a time."""
    if part.tensor.numel() == 0:
        return
    rows = max(1, BLOCK_ELEMENTS // max(1, math.prod(part.shape[1:])))
    first, end = part.offset[0], part.offset[0] + part.tensor.shape[0]
    generator = torch.Generator(device=part.tensor.device)
    for block in range(first // rows, math.ceil(end / rows)):
        generator.manual_seed(seed_of(seed, name, block))
        _draw_rows(part, range(block * rows, min((block + 1) * rows, part.shape[0])), draw, generator)


def _draw_rows(part: Local, rows: range, draw: Draw, generator: torch.Generator) -> None:
    values = torch.empty((len(rows), *part.shape[1:]), dtype=torch.float32, device=part.tensor.device)
    draw(values, generator)
    first, end = part.offset[0], part.offset[0] + part.tensor.shape[0]
    low, high = max(rows.start, first), min(rows.stop, end)
    wanted = values[(slice(low - rows.start, high - rows.start), *part.region[1:])]
    part.tensor[low - first : high - first].copy_(wanted)


def seed_of(*content: object) -> int:
    """A 63-bit hash of the arguments, the same in every process."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, content)).encode()).digest()[:8], "little") >> 1


def draws(made: Any) -> Iterator[tuple[str, torch.Tensor, Draw]]:
    """The name, the parameter and its initializer, for every parameter of a network."""
    seen: set[int] = set()
    own, drawn = own_values(made), own_draws(made)
    for path, module in made.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                full = f"{path}.{name}"
                draw = _constant(own[plain(full)]) if plain(full) in own else drawn.get(full)
                yield plain(full), parameter, draw or _draw(plain(full), module, name, made.config)


def _constant(value: torch.Tensor) -> Draw:
    return lambda values, _: values.copy_(value)


_WRAPPED = re.compile(r"\.(base_layer|original_module|modules_to_save\.default)(?=\.)")
_PACKED = re.compile(r"\.parametrizations\.(\w+)\.original$")


def plain(name: str) -> str:
    """The name that a parameter has in the model without an adapter (``peft`` wraps modules and renames)."""
    name = _PACKED.sub(r".\1", name)
    return _WRAPPED.sub("", name) if ".lora_" not in name else name


_ACTIVATION = {"alpha_p": math.log(math.expm1(0.8)), "alpha_n": math.log(math.expm1(0.8 - 0.5))}
"""Initial values of xIELU's learned parameters (transformers ``activations.py``, ``XIELUActivation``)."""


def _draw(path: str, module: nn.Module, name: str, config: Any) -> Draw:
    """The initializer of ``transformers`` (``_init_weights``) or, for LoRA, ``peft`` (``reset_lora_parameters``)."""
    kind = type(module).__name__
    if "Norm" in kind and name == "weight":
        start = 0.0 if "Gemma" in kind else 1.0  # Gemma's norms multiply by 1 plus their weight.
        return lambda values, _: values.fill_(start)
    if (name.endswith("bias") and kind != "GptOssTopKRouter") or ".lora_B." in path:
        return lambda values, _: values.zero_()
    if ".lora_A." in path:
        return _uniform_by_inputs
    if ".lora_magnitude_vector." in path:  # ``adapters.set_magnitudes`` follows.
        return lambda values, _: values.fill_(1.0)
    if name in _ACTIVATION:
        return lambda values, _: values.fill_(_ACTIVATION[name])
    deviation = float(getattr(config, "initializer_range", None) or config.init_std)
    if config.model_type in ("gpt2", "gpt_bigcode") and path.endswith("c_proj.weight"):
        deviation /= math.sqrt(2 * config.n_layer)
    return lambda values, generator: values.normal_(0.0, deviation, generator=generator)


def _uniform_by_inputs(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """``kaiming_uniform_(a=sqrt(5))``: uniform within 1 / sqrt(number of inputs) of zero."""
    bound = 1 / math.sqrt(values.shape[1])
    return values.uniform_(-bound, bound, generator=generator)


def buffer_values(made: Any) -> Iterator[tuple[nn.Module, str, torch.Tensor]]:
    """Module, name and CPU value of each buffer that follows from the configuration; checkpoints do not hold these."""
    for module in made.modules():
        for name, _ in module.named_buffers(recurse=False):
            if name in _BY_NAME:
                yield module, name, _BY_NAME[name](module, made.config)
        if any(name not in _BY_NAME for name, _ in module.named_buffers(recurse=False)) and _can_be_made(module):
            for name, value in _rebuilt(module, made.config).named_buffers(recurse=False):
                yield module, name, value


def _can_be_made(module: nn.Module) -> bool:
    """True if a module can be rebuilt for its buffers: it has no parameters, or takes no argument (activations)."""
    wanted = inspect.signature(type(module)).parameters.values()
    return all(each.default is not each.empty for each in wanted) or not any(True for _ in module.parameters())


def _rebuilt(module: nn.Module, config: Any) -> nn.Module:
    """A new module of the same class, which computes its buffers; some modules keep their own configuration."""
    if "config" in inspect.signature(type(module)).parameters:
        return type(module)(config=getattr(module, "config", config))
    return type(module)()


def _rotary_table(module: Any, config: Any) -> torch.Tensor:
    """GPT-J's and CodeGen's rotary table, computed by the function in their modelling file."""
    table: torch.Tensor = sys.modules[type(module).__module__].create_sinusoidal_positions(
        config.max_position_embeddings, config.rotary_dim or config.hidden_size
    )
    return table


def _causal_mask(module: Any, config: Any) -> torch.Tensor:
    longest = config.max_position_embeddings
    seen = torch.tril(torch.ones((longest, longest), dtype=torch.bool))
    if getattr(module, "attention_type", "") == "local":
        seen = torch.bitwise_xor(seen, torch.tril(seen, -config.window_size))
    return seen.view(module.bias.shape)


_BY_NAME: dict[str, Callable[[Any, Any], torch.Tensor]] = {
    "embed_scale": lambda module, _: torch.tensor(module.scalar_embed_scale),  # Gemma.
    "embed_positions": _rotary_table,
    "bias": _causal_mask,
    "weight": lambda module, _: torch.ones(module.weight.shape),  # Falcon-Mamba's untrained norms.
}
"""Values of buffers in modules that also have parameters, or whose class takes more than a configuration."""


_MOST_ELEMENTS = 2**22  # Largest tensor made whole on every rank, in elements.
_MATRICES = frozenset(("weight", "gate_proj", "up_proj", "gate_up_proj", "down_proj"))
_PLAIN = (nn.Linear, nn.Embedding)


def own_values(made: Any) -> dict[str, torch.Tensor]:
    """Values set by a class's own code, by parameter or buffer name; the same on every rank."""
    found: dict[str, torch.Tensor] = {}
    for path, module in reversed([*made.named_modules()]):  # Children first: values set by a parent win.
        if _sets_own_values(module):
            found |= {f"{path}.{name}": value for name, value in _values_set_by(made, path, module)}
    return found


def own_draws(made: Any) -> dict[str, Draw]:
    """Initializers, by parameter name, of linear weights that their parent module draws."""
    found: dict[str, Draw] = {}
    by_class: dict[type, list[str]] = {}
    for path, module in made.named_modules():
        if any(isinstance(getattr(each, "base_layer", each), nn.Linear) for each in module.children()):
            if type(module) not in by_class:
                by_class[type(module)] = _drawn(made, module)
            start = f"{path}." if path else ""
            found |= {start + name: _drawn_rows(made, module, name) for name in by_class[type(module)]}
    return found


def _drawn(made: Any, module: nn.Module) -> list[str]:
    """The linear weights in a module that ``_init_weights`` writes when it is called with that module."""
    twin = _twin(module, depth=-1)
    linears = [path for path, each in twin.named_modules() if path and isinstance(each, nn.Linear)]
    before = {path: twin.get_submodule(path).weight._version for path in linears}
    _initialise(made, twin, 0)
    return [f"{path}.weight" for path in linears if twin.get_submodule(path).weight._version != before[path]]


def _drawn_rows(made: Any, module: nn.Module, name: str) -> Draw:
    def draw(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        twin = _twin(module, depth=-1)
        owner, _, last = name.rpartition(".")
        twin.get_submodule(owner)._parameters[last] = nn.Parameter(values, requires_grad=False)
        _initialise(made, twin, generator.initial_seed(), values.device)
        return values

    return draw


def outer_buffers(made: Any, names: Collection[str]) -> dict[str, torch.Tensor]:
    """Values of the named buffers that ``_init_weights`` sets when it is called with a module that contains theirs."""
    around = {name.rsplit(".", cut)[0] for name in names for cut in range(2, name.count(".") + 1)}
    found: dict[str, torch.Tensor] = {}
    for path in sorted(around, key=lambda each: -each.count(".")):
        twin = _twin(made.get_submodule(path), depth=-1)
        inside = {name: name.removeprefix(f"{path}.") for name in names if name.startswith(f"{path}.")}
        for name, below in inside.items():
            owner, _, last = below.rpartition(".")
            twin.get_submodule(owner)._buffers[last] = _empty(made.get_buffer(name), depth=0)
        _initialise(made, twin, zlib.crc32(path.encode()))
        for name, below in inside.items():
            value = twin.get_buffer(below)
            if value.device.type != "meta" and not bool(value.isnan().any()):
                found[name] = value
    return found


def _sets_own_values(module: nn.Module) -> bool:
    if isinstance(module, _PLAIN):
        return False
    small = any(len(_shape(each)) < 2 or isinstance(module, nn.Conv1d) for each in module.parameters(recurse=False))
    buffers = any(True for _ in module.buffers(recurse=False)) and any(True for _ in module.parameters())
    return small or buffers


def _values_set_by(made: Any, path: str, module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    twin = _twin(module)
    _initialise(made, twin, zlib.crc32(path.encode()))
    for name, value in (*twin.named_parameters(), *twin.named_buffers()):
        owner, _, last = name.rpartition(".")
        matrix = value.dim() > 1 and last in _MATRICES and not isinstance(twin.get_submodule(owner), nn.Conv1d)
        if value.device.type == "meta" or matrix or (value.is_floating_point() and bool(value.isnan().any())):
            continue
        yield name, value.detach()


@torch.no_grad()
def _initialise(made: Any, twin: nn.Module, seed: int, device: torch.device | None = None) -> None:
    """Let the network's class initialize a module from a seed."""
    cuda = (device,) if device is not None and device.type == "cuda" else ()
    with torch.random.fork_rng(devices=cuda):
        for each in (torch.default_generator, *(torch.cuda.default_generators[gpu.index] for gpu in cuda)):
            each.manual_seed(seed)  # Cheaper than ``torch.manual_seed``, which formats a stack for each kind of GPU.
        if isinstance(twin, nn.Conv1d):
            twin.reset_parameters()
        made._init_weights(twin)


def _twin(module: nn.Module, depth: int = 1) -> nn.Module:
    """A copy with new tensors: small ones are real and filled with NaN, others are on the meta device.

    Matrices of linears are on the meta device, since their values come from elsewhere.
    """
    twin: nn.Module = object.__new__(type(module))  # ``__new__`` of a class made by FSDP would build another object.
    twin.__dict__ |= module.__dict__
    twin._parameters = {
        name: None
        if each is None
        else nn.Parameter(_empty(each, -1 if isinstance(module, _PLAIN) and len(_shape(each)) > 1 else depth), False)
        for name, each in module._parameters.items()
    }
    twin._buffers = {name: None if each is None else _empty(each, depth) for name, each in module._buffers.items()}
    twin._modules = {name: None if each is None else _twin(each, depth - 1) for name, each in module._modules.items()}
    return twin


def _empty(like: torch.Tensor, depth: int) -> torch.Tensor:
    shape = _shape(like)
    if depth < 0 or math.prod(shape) > _MOST_ELEMENTS:
        return torch.empty(shape, dtype=torch.float32, device="meta")
    if like.is_floating_point():
        return torch.full(shape, math.nan, dtype=torch.float32, device="cpu")
    return torch.zeros(shape, dtype=like.dtype, device="cpu")


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(getattr(tensor, "ds_shape", tensor.shape))
