"""Refuse secrets in data that is to be written, by their places and never by their text."""

from __future__ import annotations

from collections.abc import Iterable

from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.secret import NOT_SHOWN, Form, places


def refusal(path: str, form: Form, inherited: Iterable[str], removal: str | None = None) -> ConfigError:
    """The error of a setting or a file that holds a secret.

    Args:
        path: The key, or the file and the place in it.
        form: The secret's form.
        inherited: Names of variables that the job has to inherit in its place.
        removal: The override that takes the secret out, where one does.
    """
    inherit = f"cluster.pass_environment=[{','.join(dict.fromkeys(inherited))}]"
    rule = f"it holds {form.title}, and this is kept in files: take it out and let the job inherit it by name"
    return ConfigError(path, NOT_SHOWN, rule, [inherit if removal is None else f"{removal} {inherit}"])


def require_none(content: object, where: str = "") -> None:
    """Refuse plain data that is to be written and holds a secret.

    Args:
        content: The data.
        where: The name of the file, where the keys of the data do not say enough.

    Raises:
        ConfigErrors: It holds one; each place is an error.
    """
    errors = [
        refusal(": ".join(filter(None, (where, place))), form, (form.variable,)) for place, form in places(content)
    ]
    if errors:
        raise ConfigErrors(errors)
