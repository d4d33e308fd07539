"""Refuse to write data that holds secrets; errors name the place of a secret and never show its text."""

from collections.abc import Iterable

from launcher.base.errors import ConfigError, raise_any
from launcher.base.secret import NOT_SHOWN, TokenForm, find_all


def refusal(path: str, form: TokenForm, inherited: Iterable[str], removal: str | None = None) -> ConfigError:
    """Return the error about a setting, or a place in a file, that holds a secret.

    ``inherited`` are the variables that the job must inherit instead; ``removal`` is an override that removes it.
    """
    inherit = f"cluster.pass_environment=[{','.join(dict.fromkeys(inherited))}]"
    rule = f"it holds {form.title}, and would be written to files: remove it and let the job inherit it by name"
    return ConfigError(path, NOT_SHOWN, rule, [inherit if removal is None else f"{removal} {inherit}"])


def require_none(content: object, where: str = "") -> None:
    """Raise ConfigErrors, one for each place, if plain data to be written holds secrets.

    ``where`` names the file, if the keys of the data do not identify it.
    """
    errors = [
        refusal(": ".join(filter(None, (where, place))), form, (form.variable,)) for place, form in find_all(content)
    ]
    raise_any(errors)
