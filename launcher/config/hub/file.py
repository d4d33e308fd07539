"""One ``config.json`` while it is read: its values, their errors, and the fate of each key."""

from collections.abc import Iterable, Mapping
from typing import Any

from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.config.hub import keys
from launcher.config.ledger import Ledger, leaves, word_in

_UNSCALED = ("default", "mrope")  # No scaling; ``mrope`` adds positions for images, and those of text are ordinary.
_ROTARY = ("linear", "yarn", "llama3")
"""Supported scalings of rotary positions, which do not depend on the length of a batch."""


class Config:
    """A file's content, its ledger, and its errors (``launcher.estimate.rank.family.ConfigFile``)."""

    def __init__(self, content: Mapping[str, Any], path: str, *, defaults_of: str | None = None) -> None:
        """Take a file's content; ``defaults_of`` is the model type whose defaults apply, if not its own."""
        self.content, self.path = content, path
        self.restart()
        of_class = keys.class_of(defaults_of or self.model_type)
        self._defaults: Mapping[str, Any] = of_class["defaults"]
        # The file's aliases of the class's keys; an alias takes precedence.
        aliases: Mapping[str, str] = of_class.get("aliases", {})
        self._named = {own: name for name, own in aliases.items() if name in content}

    def restart(self) -> None:
        """Discard what was read so far."""
        self.ledger = Ledger(leaves(self.content))
        self.errors: list[ConfigError] = []
        # The key of the file that the family reads for a key of ``model``, whether present or not.
        self.sources: dict[str, str] = {}

    @property
    def model_type(self) -> str:
        """The file's model type."""
        return str(self.content.get("model_type"))

    @property
    def _article(self) -> str:
        return "an" if self.model_type[:1] in "aeio" else "a"

    def has(self, key: str) -> bool:
        """True if the file has the key."""
        return self._name(key) in self._inside(key)

    def _name(self, key: str) -> str:
        return self._named.get(key, key)

    def reads(self, key: str) -> bool:
        """True if the ``transformers`` class accepts the key, under its own name or an older one."""
        return key in self._defaults or key in keys.OLDER_NAMES.get(self.model_type, ())

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value; if the file lacks it, the class's default, else ``default``. An explicit null stays null."""
        return self._inside(key).get(self._name(key), self._defaults.get(key, default))

    def _inside(self, key: str) -> Mapping[str, Any]:
        """The file, or for a key with a dot the nested configuration, with full names."""
        outer, dot, _ = key.partition(".")
        inner = self.content.get(outer)
        if not dot or not isinstance(inner, Mapping):
            return self.content
        return {f"{outer}.{name}": value for name, value in inner.items()}

    def say(self, key: str, *settings: str) -> None:
        """Enter a key, with all leaves below it, as imported into settings of ``model``."""
        self.sources |= dict.fromkeys(settings, self._name(key))
        for leaf in self._below(key):
            self.ledger.say(leaf, *(f"model.{setting}" for setting in settings))

    def leave(self, key: str, effect: str, *, matters: bool = True) -> None:
        """Enter a key, with all leaves below it, as left out."""
        for leaf in self._below(key):
            self.ledger.leave(leaf, effect, matters=matters)

    def default(self, *entered: str) -> None:
        """Enter keys that agree with a default of launch."""
        self.ledger.default(*(leaf for key in entered for leaf in self._below(key)))

    def error(self, key: str, rule: str, *ways: str) -> None:
        """Record an error about a value that is not supported."""
        name = self._name(key)
        self.errors.append(ConfigError(f"{self.path}: {name}", self._inside(name).get(name), rule, ways))

    def size(self, key: str, default: int | None = None, *, null: int | None = None, to: str | None = None) -> int:
        """Return a count of at least 1, or of at least 0 if a default or ``null`` is 0; a wrong value gives 0.

        Args:
            key: Key of the file.
            default: Used if neither the file nor the class's defaults have it; None makes the key mandatory.
            null: Used for null in the file or its class; None refuses null.
            to: The setting of ``model`` that it becomes; None is one of the same name.
        """
        self.say(key, to or key)
        value = self.get(key, default)
        if value is None and null is not None:
            return null
        least = 0 if 0 in (default, null) else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.error(key, f"{self._article} {self.model_type} config.json needs an integer of at least {least}")
            return 0
        return value

    def number(self, key: str, default: float, *, to: str | None = None) -> float:
        """Return a number, or the default."""
        self.say(key, to or key)
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.error(key, "must be a number")
            return default
        return value

    def flag(self, key: str, default: bool, *, to: str | None = None) -> bool:
        """Return true or false (also for null), or the default."""
        self.say(key, to or key)
        value = self.get(key, default)
        if not isinstance(value, bool | None):
            self.error(key, "must be true or false")
        return value is True

    def activation(self, key: str, *, to: str | None = None) -> str:
        """Return launch's name of the activation function."""
        self.say(key, to or key)
        known = word_in(keys.ACTIVATIONS, self.get(key, "silu"))
        if known is None:
            self.error(key, f"no model family supports it; supported are {', '.join(keys.ACTIVATIONS)}")
        return known or "silu"

    def extra(self, keys: Iterable[str]) -> JsonObject:
        """Return the file's own values of some keys, which are passed on to the class."""
        found = {key: self.get(key) for key in keys if self.has(key)}
        self.ledger.keep(*(leaf for key in found for leaf in self._below(key)))
        return found

    def rotary(self) -> JsonObject:
        """Return base and scaling of the rotary angles: ``rope_scaling``, in ``rope_parameters`` since version 5."""
        scaling = self._scaling()
        theta = scaling.pop("rope_theta", None)
        self.say("rope_theta", "rope_theta")
        base = self.number("rope_theta", 1e4) if theta is None or self.has("rope_theta") else theta
        if isinstance(base, bool) or not isinstance(base, int | float):
            self.error("rope_parameters", "its rope_theta must be a number")
            base = 1e4
        return {"rope_theta": float(base), **({"rope_parameters": scaling} if scaling else {})}

    def _scaling(self) -> JsonObject:
        found: JsonObject = {}
        for key in ("rope_scaling", "rope_parameters"):
            value = self.content.get(key)
            if not isinstance(value, Mapping | None):
                self.error(key, "must be a mapping: {rope_type: ..., factor: ...}")
            elif value:
                found |= self._known_scaling(key, value)
            else:
                self.default(key)
        part = self.get("partial_rotary_factor")
        if part is not None and (isinstance(part, bool) or not isinstance(part, int | float)):
            self.error("partial_rotary_factor", "must be a number")
        elif part not in (None, 1):
            found.setdefault("rope_type", "default")
            found.setdefault("partial_rotary_factor", part)
        self.say("partial_rotary_factor", "rope_parameters")
        return found

    def _known_scaling(self, key: str, value: Mapping[str, Any]) -> JsonObject:
        kind = value.get("rope_type", value.get("type", "default"))
        rest = {name: item for name, item in value.items() if name not in ("type", "rope_type") and item is not None}
        if kind in _UNSCALED:
            self.say(key, "rope_parameters", "rope_theta")
            theta = {name: item for name, item in rest.items() if name == "rope_theta"}
            part = rest.get("partial_rotary_factor")
            return theta if part in (None, 1) else theta | {"rope_type": "default", "partial_rotary_factor": part}
        if kind == "dynamic":
            effect = "no effect: it applies beyond max_position_embeddings, and no sequence is longer"
            self.leave(key, effect, matters=False)
        elif kind in _ROTARY:
            self.say(key, "rope_parameters", "rope_theta")
            self.ledger.leave(f"{key}.finetuned", "no effect: its class does not read it", matters=False)
            return {"rope_type": kind, **{name: item for name, item in rest.items() if name != "finetuned"}}
        else:
            self.leave(key, "rotary positions are not scaled")
        self.ledger.say(f"{key}.rope_theta", "model.rope_theta")
        return {name: item for name, item in rest.items() if name == "rope_theta"}

    def _below(self, key: str) -> list[str]:
        key = self._name(key)
        value = self.content.get(key)
        if not isinstance(value, Mapping) or not value:
            return [key]
        return list(leaves(value, f"{key}."))
