"""The protocol between a model family and the rest of the launcher; a family is a module of ``families``.

A family gives the weights of a model's parts and the tensors that its blocks save (for the memory model), the class of
``transformers`` that computes it and the ``config.json`` that describes it (for the workers and the importer), and
facts that hold for all of its models (:class:`FamilyTraits`), so that no other code asks which family a model is of.
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
    """The names of a family's tensors in a Hugging Face folder, for conversion to Megatron-core's layout."""

    embedding: str  # The token embedding.
    positions: str  # The table of learned positions; empty without one.
    norm: str  # The last norm.
    head: str  # The output projection.
    block: str  # A block, with a placeholder for its number.
    modules: Mapping[str, str]  # Modules of a block that map to Megatron-core's one to one, by its names.
    # The projections to queries, keys and values: three, or one that holds all of them.
    attention_inputs: tuple[str, ...]
    mlp_inputs: tuple[str, ...]  # The first projections of the MLP, the gate first.


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTraits:
    """Facts of all models of a family."""

    adapter_targets: tuple[str, ...] = ()  # The linear layers of a block that an adapter may wrap.
    # The weight of attention's output projection, whose input attention always keeps.
    attention_output: str = ""
    experts: bool = False  # True if its models may have routed experts.
    counts: tuple[str, ...] = ()  # The family's own keys of ``model.extra`` that are counts of at least 1.
    balances_experts: bool = False  # True if experts are scored by a sigmoid and balanced by a bias per expert.
    latent_attention: bool = False  # True if its attention is multi-head latent attention.
    # True if attention's output projection has a bias whenever its input projections have.
    output_bias: bool = False
    keeps_embeddings: bool = False  # True if the embeddings are kept throughout the forward pass.
    # True if its checkpoints store projections by columns (``Conv1D``), unlike ``torch.nn.Linear``.
    transposed: bool = False
    # The part of its blocks that is not a ``torch.nn.Linear``, so that code that splits or packs linear layers cannot
    # handle it; None where there is no such part.
    not_linear: str | None = "layers that the launcher does not know"
    # The names of its tensors if Megatron-LM's arguments describe it; None if they do not.
    names: CheckpointNames | None = None
    model_types: tuple[str, ...] = ()  # The ``model_type`` of each ``config.json`` that it reads.
    # Bytes of the masks that blocks read, shared by all sequences; 0 where attention needs none.
    mask: Callable[[ModelSpec, EngineTraits], int] = lambda model, engine: 0
    # True if each block selects the tokens that it masks, so that attention's kernel counts every pair.
    masks_tokens: bool = False
    # Most tokens that a block's attention attends to; None where it attends to all earlier ones.
    window: Callable[[ModelSpec, int], int | None] = lambda model, layer: None
    # True if a block reads the embeddings beside the residual stream; None where none of its models has such a block.
    joins: Callable[[ModelSpec, int], bool] | None = None
    # True if its saved tensors were observed by running blocks on meta tensors, not described by formulas.
    observed: bool = False
    # True if a block has attention, False if it is a layer of another kind only.
    attends: Callable[[ModelSpec, int], bool] = lambda model, layer: True
    # The scan kernels of a block, which multiply no weight and are not attention's, by the bytes of an element.
    scans: Callable[[ModelSpec, int, int], Scans] = lambda model, layer, size: NO_SCANS
    # The packages with the GPU kernels of its layers, and its linear layers that no adapter may wrap.
    packages: Callable[[ModelSpec], tuple[str, ...]] = lambda model: ()
    unwrapped: Callable[[ModelSpec], tuple[str, ...]] = lambda model: ()
    # The model whose products are computed: if each expert processes every token, the model with all experts chosen.
    computed: Callable[[ModelSpec], ModelSpec] = lambda model: model
    # Number of sums with the residual stream in a block.
    sums: Callable[[ModelSpec, int], int] = lambda model, layer: 2
    # True if a router's weights of experts are cast to the compute format.
    narrow_routing: Callable[[ModelSpec], bool] = lambda model: False
    # The letters of its layers, if Megatron-core builds it as a hybrid; None if it is not one.
    pattern: Callable[[ModelSpec], str] | None = None
    kernels: tuple[str, ...] = ()  # The libraries whose kernels can replace its norms, rotation and MLPs.
    # The layer whose block a multi-token prediction layer repeats, and whether all of these share one set of weights.
    predicted_layer: Callable[[ModelSpec], int] = lambda model: model.num_hidden_layers - 1
    shares_predicted: Callable[[ModelSpec], bool] = lambda model: False
    # Errors of ``model.model_type`` and ``model.extra``, if these select one of its models; else None.
    choices: Callable[[RunSpec], Iterable[ConfigError]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersConfig:
    """The configuration of a ``transformers`` model: the name of its class, and the arguments of that."""

    name: str  # The class.
    settings: Mapping[str, Any] = field(default_factory=dict)  # Its arguments.
    own_attention: bool = False  # True if it picks its own attention modules by transformers' attention names.
    logits_factor: float = 1.0  # Factor that the model applies to its logits.
    logits_cap: float | None = None  # Soft cap on its logits, applied with a tanh; None where there is none.


class ConfigFile(Protocol):
    """A Hugging Face ``config.json`` that is being read; errors are collected and raised at the end.

    A key that the file lacks has the default of the ``transformers`` class, else the default given here; an explicit
    null is a value. Every key read is recorded as imported to ``model.<to>``, by default under the same name.
    """

    @property
    def model_type(self) -> str:
        """Its ``model_type``."""

    def has(self, key: str) -> bool:
        """True if the file has the key."""

    def reads(self, key: str) -> bool:
        """True if the class of ``transformers`` takes the key, by this name or an alias."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value of the file without recording it."""

    def size(self, key: str, default: int | None = None, *, null: int | None = None, to: str | None = None) -> int:
        """Return a count of at least 1; required if it has no default; ``null`` replaces an explicit null."""

    def number(self, key: str, default: float, *, to: str | None = None) -> float:
        """Return a number."""

    def flag(self, key: str, default: bool, *, to: str | None = None) -> bool:
        """Return true or false."""

    def activation(self, key: str, *, to: str | None = None) -> str:
        """Return the activation function by our name."""

    def rotary(self) -> JsonObject:
        """Return ``rope_theta`` and, where rotary positions are scaled, ``rope_parameters``."""

    def say(self, key: str, *settings: str) -> None:
        """Record that these settings of ``model`` express a key, or that it is a default if none of them is set."""

    def leave(self, key: str, effect: str, *, matters: bool = True) -> None:
        """Record that a key is left out, with the effect as a clause."""

    def default(self, *entered: str) -> None:
        """Record keys that change nothing for a run here."""

    def error(self, key: str, rule: str, *ways: str) -> None:
        """Record a value that is not supported here."""

    def extra(self, keys: Iterable[str]) -> JsonObject:
        """Return the values of these keys that the file has, unchanged, for the class."""


class Family(Protocol):
    """A module of ``estimate.families``: pure functions, whose results are cached by module and model."""

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
        """Weights after the last block; without the output projection where that is tied to the embedding."""

    @abstractmethod
    def kind(self, model: ModelSpec, layer: int) -> str:
        """The name of a block's kind; blocks of the same kind are equal."""

    @abstractmethod
    def saved(self, model: ModelSpec, layer: int, engine: EngineTraits) -> Sequence[SavedTensor]:
        """Tensors that the forward pass of one block saves."""

    @abstractmethod
    def saves_input(self, model: ModelSpec, engine: EngineTraits) -> bool:
        """True if a block's first norm saves the block's input as it is, so that a checkpoint shares that tensor."""

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
        """The ``transformers`` model that computes it; None if the workers can build none."""
        return None

    def not_computed(self, spec: RunSpec) -> Iterator[ConfigError]:
        """Errors of settings with which no ``transformers`` class computes the model exactly as specified."""
        yield from ()

    def read_config(self, config: ConfigFile) -> JsonObject:
        """The keys of the group ``model`` for a ``config.json`` of one of its model types."""
        raise NotImplementedError


@lru_cache(maxsize=256)
def transformers_config(family: Family, model: ModelSpec) -> TransformersConfig | None:
    """The ``transformers`` model that computes a family's model, cached, since rules and formulas ask repeatedly."""
    return family.transformers_config(model)
