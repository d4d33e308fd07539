"""Refuse secrets in data that is to be written, by their places and never by their text."""

from collections.abc import Iterable

from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.secret import NOT_SHOWN, Form, places


def refusal(path: str, form: Form, inherited: Iterable[str], removal: str | None = None) -> ConfigError:
    """The error of a setting, or of a place in a file, that holds a secret.

    ``inherited`` are variables that the job has to inherit in its place; ``removal`` is an override that takes it out.
    """
    inherit = f"cluster.pass_environment=[{','.join(dict.fromkeys(inherited))}]"
    rule = f"it holds {form.title}, and this is kept in files: take it out and let the job inherit it by name"
    return ConfigError(path, NOT_SHOWN, rule, [inherit if removal is None else f"{removal} {inherit}"])


def require_none(content: object, where: str = "") -> None:
    """Refuse plain data that is to be written and holds a secret: each place is one of the ConfigErrors.

    ``where`` names the file, where the keys of the data do not say enough.
    """
    errors = [
        refusal(": ".join(filter(None, (where, place))), form, (form.variable,)) for place, form in places(content)
    ]
    if errors:
        raise ConfigErrors(errors)
