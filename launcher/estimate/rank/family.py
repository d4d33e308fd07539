"""The protocol between a model family and the rest of the launcher; a family is a module of ``families``.

It has the weights of a model's parts and the tensors that its blocks save (for the memory model), the class of
``transformers`` that computes it and the ``config.json`` that describes it (for the workers and the importer), and
facts that hold for all of its models (:class:`FamilyTraits`), so that nobody else has to ask which family it is.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any, Protocol

from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.tensors import NO_SCANS, SavedTensor, Scans, Weight
from launcher.spec import ModelSpec, RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointNames:
    """The names of a family's tensors in a Hugging Face folder, for what Megatron-core holds in other ways."""

    embedding: str  # The token table.
    positions: str  # The table of learned positions; empty without one.
    norm: str  # The last norm.
    head: str  # The output projection.
    block: str  # A block, with a place for its number.
    modules: Mapping[str, str]  # Of the modules of a block that Megatron-core has one by one, by its names.
    # The projections to queries, keys and values: three, or one that holds all of them.
    attention_inputs: tuple[str, ...]
    mlp_inputs: tuple[str, ...]  # The first projections of the MLP, the gate first.


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTraits:
    """Facts of all models of a family."""

    adapter_targets: tuple[str, ...] = ()  # The linear layers of a block that an adapter may wrap.
    # The weight of the output projection of attention, whose input attention keeps in any case.
    attention_output: str = ""
    experts: bool = False  # True if its models may have routed experts.
    counts: tuple[str, ...] = ()  # Keys of ``model.extra`` of its own, each a count of at least 1.
    balances_experts: bool = False  # True if a bias of each expert balances them, which are scored by a sigmoid.
    latent_attention: bool = False  # True if its attention is multi-head latent attention.
    # True if attention's output projection has a bias where the projections to its inputs have.
    output_bias: bool = False
    keeps_embeddings: bool = False  # True if the forward pass keeps the embeddings as long as it runs.
    # True if its checkpoints hold projections by columns (``Conv1D``), not as ``torch.nn.Linear`` does.
    transposed: bool = False
    # The part of its blocks that something else than ``torch.nn.Linear`` computes, so that what replaces linear layers
    # cannot cut or pack it; None where all of it is.
    not_linear: str | None = "layers that the launcher does not know"
    # The names of its tensors, where Megatron-LM's arguments describe it; None where they do not.
    names: CheckpointNames | None = None
    model_types: tuple[str, ...] = ()  # The ``model_type`` of each ``config.json`` that it reads.
    # Bytes of the masks that blocks read, one for all sequences; 0 where attention needs none.
    mask: Callable[[ModelSpec, EngineTraits], int] = lambda model, engine: 0
    # True if each of its blocks masks tokens of its own choice, so that attention's kernel counts every pair.
    masks_tokens: bool = False
    # Tokens that a block's attention sees at most; None where it sees all before.
    window: Callable[[ModelSpec, int], int | None] = lambda model, layer: None
    # True if a block reads the embeddings beside the residual stream; None where none of its models has such a block.
    joins: Callable[[ModelSpec, int], bool] | None = None
    # True if what its blocks save was found by running them without values, not by formulas.
    observed: bool = False
    # True if a block has attention; a layer of another kind alone has none.
    attends: Callable[[ModelSpec, int], bool] = lambda model, layer: True
    # The kernels of a block that multiply no weight and are not attention's, for one token, by the bytes of an element.
    scans: Callable[[ModelSpec, int, int], Scans] = lambda model, layer, size: NO_SCANS
    # The packages whose kernels its layers are on a GPU, and its linears that no adapter may wrap.
    packages: Callable[[ModelSpec], tuple[str, ...]] = lambda model: ()
    unwrapped: Callable[[ModelSpec], tuple[str, ...]] = lambda model: ()
    # The model whose products are computed: where each expert takes every token, that with all of them chosen.
    computed: Callable[[ModelSpec], ModelSpec] = lambda model: model
    # The sums with the residual stream in a block.
    sums: Callable[[ModelSpec, int], int] = lambda model, layer: 2
    # True if a router's weights of experts are cast to the compute format.
    narrow_routing: Callable[[ModelSpec], bool] = lambda model: False
    # The letters of its layers, where Megatron-core builds it as a hybrid; None where it is none.
    pattern: Callable[[ModelSpec], str] | None = None
    kernels: tuple[str, ...] = ()  # The libraries whose kernels can stand for its norms, rotation and MLPs.
    # The layer whose block one of multi-token prediction has, and whether all of these are one.
    predicted_layer: Callable[[ModelSpec], int] = lambda model: model.num_hidden_layers - 1
    shares_predicted: Callable[[ModelSpec], bool] = lambda model: False
    # Errors of ``model.model_type`` and ``model.extra``, where these say which of its models one is; else None.
    choices: Callable[[RunSpec], Iterable[ConfigError]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersConfig:
    """The configuration of a ``transformers`` model: its class by name, and what that is called with."""

    name: str  # The class.
    settings: Mapping[str, Any] = field(default_factory=dict)  # Its arguments.
    own_attention: bool = False  # True if it chooses among modules of its own by transformers' names of attention.
    logits_factor: float = 1.0  # What the model multiplies its logits with.
    logits_cap: float | None = None  # The cap of its logits, beyond which a tanh bends them; None where there is none.


class ConfigFile(Protocol):
    """A Hugging Face ``config.json`` that is being read; errors are collected and raised at the end.

    A key that the file does not have is what the class of ``transformers`` takes for it, then the default that is given
    here; an explicit null is a value. What is read is entered as said by ``model.<to>``, by default of the same name.
    """

    @property
    def model_type(self) -> str:
        """Its ``model_type``."""

    def has(self, key: str) -> bool:
        """True if the file has the key."""

    def reads(self, key: str) -> bool:
        """True if the class of ``transformers`` takes the key, by its own name or by another that it knows."""

    def get(self, key: str, default: Any = None) -> Any:
        """A value of the file; reading it enters nothing."""

    def size(self, key: str, default: int | None = None, *, null: int | None = None, to: str | None = None) -> int:
        """A count of at least 1; without any default the key must be there; ``null`` stands for an explicit null."""

    def number(self, key: str, default: float, *, to: str | None = None) -> float:
        """A number."""

    def flag(self, key: str, default: bool, *, to: str | None = None) -> bool:
        """True or false."""

    def activation(self, key: str, *, to: str | None = None) -> str:
        """The activation function by our name."""

    def rotary(self) -> JsonObject:
        """``rope_theta`` and, where rotary positions are scaled, ``rope_parameters``."""

    def say(self, key: str, *settings: str) -> None:
        """Enter a key as said by these settings of ``model``; default here too where none of them is set."""

    def leave(self, key: str, effect: str, *, matters: bool = True) -> None:
        """Enter a key as left out, with the effect as a clause."""

    def default(self, *entered: str) -> None:
        """Enter keys that change nothing for a run here."""

    def error(self, key: str, rule: str, *ways: str) -> None:
        """A value that cannot be had here."""

    def extra(self, keys: Iterable[str]) -> JsonObject:
        """The values of these keys that the file has, unchanged, and kept for the class."""


class Family(Protocol):
    """A module of ``estimate.families``: pure functions, whose answers are kept by the module and the model."""

    traits: FamilyTraits = FamilyTraits()

    def __hash__(self) -> int:
        return object.__hash__(self)

    @abstractmethod
    def embedding(self, model: ModelSpec, vocabulary: int) -> Sequence[Weight]:
        """Weights before the first block."""

    @abstractmethod
    def block(self, model: ModelSpec, layer: int) -> Sequence[Weight]:
        """Weights of one block."""

    @abstractmethod
    def head(self, model: ModelSpec, vocabulary: int) -> Sequence[Weight]:
        """Weights after the last block; the output projection is absent where it is the embedding."""

    @abstractmethod
    def kind(self, model: ModelSpec, layer: int) -> str:
        """Name of a block's kind: blocks of the same kind are equal."""

    @abstractmethod
    def saved(self, model: ModelSpec, layer: int, engine: EngineTraits) -> Sequence[SavedTensor]:
        """Tensors that the forward pass of one block saves."""

    @abstractmethod
    def saves_input(self, model: ModelSpec, engine: EngineTraits) -> bool:
        """True if the first norm of a block saves the block's input as it is, so that a checkpoint of it is shared."""

    @abstractmethod
    def after_blocks(self, model: ModelSpec, engine: EngineTraits) -> Sequence[SavedTensor]:
        """Tensors saved between the last block and the output projection."""

    @abstractmethod
    def backward_extra(self, model: ModelSpec, layer: int, engine: EngineTraits) -> Sequence[SavedTensor]:
        """Tensors that the backward pass of one block adds at its peak, beyond those that the forward pass saved."""

    @abstractmethod
    def first_norm_backward(self, model: ModelSpec, engine: EngineTraits) -> Sequence[SavedTensor]:
        """Tensors alive at the end of the backward pass of one block, in its first norm."""

    def transformers_config(self, model: ModelSpec) -> TransformersConfig | None:
        """The ``transformers`` model that computes it; None where there is none that the workers build."""
        return None

    def not_computed(self, spec: RunSpec) -> Iterator[ConfigError]:
        """Settings with which no class of ``transformers`` computes the model exactly as specified."""
        yield from ()

    def read_config(self, config: ConfigFile) -> JsonObject:
        """The keys of the group ``model`` that a ``config.json`` of one of its model types stands for."""
        raise NotImplementedError


@lru_cache(maxsize=256)
def transformers_config(family: Family, model: ModelSpec) -> TransformersConfig | None:
    """The ``transformers`` model that computes a family's model, kept, since rules and formulas ask for it again."""
    return family.transformers_config(model)
