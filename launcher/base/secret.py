"""Detection of secrets in text, by the well-known forms of tokens and by the names that values are given.

Writing a file to keep or share is refused if :func:`held` finds a secret; messages omit what :func:`hidden` and
:func:`shown` hide, which is more: any value with a secret's name may be one.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import NamedTuple

NOT_SHOWN = "(not shown)"

_SECRET = frozenset({
    *("APIKEY", "BEARER", "CREDENTIAL", "CREDENTIALS", "PASSPHRASE", "PASSWD", "PASSWORD", "PASSWORDS"),
    *("SECRET", "SECRETS"),
})
"""Parts of a name that make any value of it a secret."""

_PERHAPS = frozenset({"PASS", "TOKEN", "KEY", "PAT"})
"""Parts that also occur in other names (a column's key, a padding token, a compiler's pass)."""

_GLUED = ("PASSWD", "PASSWORD", "PASSPHRASE", "PASS", "PWD", "PW")
"""Suffixes of a part in capitals that make the name a secret's: ``PGPASS``, ``SSHPASS``, ``MYSQL_PWD``, ``BINDPW``."""

_NOT_GLUED = frozenset({"ASKPASS", "BYPASS", "COMPASS", "ENCOMPASS", "SURPASS", "TRESPASS", "LOWPASS", "HIGHPASS"})
_FOLDERS = frozenset({"PWD", "OLDPWD"})  # Whole names of variables in which a shell keeps folders.
_KEEPERS = frozenset({"API", "ACCESS", "AUTH", "PRIVATE", "CLIENT", "SIGNING", "ENCRYPTION"})
"""Parts before KEY or TOKEN that make the name unambiguous."""

_NOT_A_SECRET = frozenset(["FILE", "PATH", "DIR", "FOLDER", "TYPE", "DTYPE", "COUNT", "SIZE", "LENGTH"])
"""Last parts of names that tell where a secret is, or how large, and not the secret itself."""

_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_CERTAIN, _LIKELY = 2, 1


class TokenForm(NamedTuple):
    """One well-known form of a token: its name, the variable that usually holds it, and substrings that precede it."""

    title: str
    variable: str
    marks: tuple[str, ...]
    pattern: str


def _form(title: str, variable: str, marks: str, pattern: str) -> TokenForm:
    return TokenForm(title, variable, tuple(marks.split()), rf"(?<![A-Za-z0-9]){pattern}")


_GIVEN = r"(?![\\\"']*[$`<{(%*\s])"  # What follows is a literal value, not a reference to one.
_OPEN = rf"[\\\"']*{_GIVEN}"  # Quotes, escaped or not, before a literal value.

# Forms documented by their issuers: docs.github.com lists most of them under "Supported secret scanning patterns",
# and detect-secrets 1.5.0 and gitleaks 8 look for the same. Minimum lengths are shorter, since issuers change them.
FORMS = (
    _form("a Hugging Face token", "HF_TOKEN", "hf_ api_org_", r"(?:hf|api_org)_[A-Za-z0-9]{20,}"),
    _form("a GitHub token", "GITHUB_TOKEN", "ghp_ gho_ ghu_ ghs_ ghr_", r"gh[pousr]_[A-Za-z0-9]{20,}"),
    _form("a GitHub token", "GITHUB_TOKEN", "github_pat_", r"github_pat_\w{20,}"),
    _form("a GitLab token", "GITLAB_TOKEN", "glpat- gldt- glrt- glptt-", r"gl(?:pat|dt|rt|ptt)-[\w-]{20,}"),
    _form("an API key", "OPENAI_API_KEY", "sk-", r"sk-(?=[\w-]*[0-9])(?=[\w-]*[A-Z])[\w-]{20,}"),
    _form("an API key", "API_KEY", "k_live_", r"[rs]k_live_[A-Za-z0-9]{16,}"),
    _form("a Groq key", "GROQ_API_KEY", "gsk_", r"gsk_[A-Za-z0-9]{30,}"),
    _form("an NVIDIA key", "NGC_API_KEY", "nvapi-", r"nvapi-[\w-]{30,}"),
    _form("a Replicate token", "REPLICATE_API_TOKEN", "r8_", r"r8_[A-Za-z0-9]{30,}"),
    _form(
        "an AWS access key",
        "AWS_ACCESS_KEY_ID",
        "AKIA ASIA ABIA ACCA",
        r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])",
    ),
    _form("a Google key", "GOOGLE_API_KEY", "AIza", r"AIza[\w-]{35}"),
    _form("a Google token", "GOOGLE_TOKEN", "ya29.", r"ya29\.[\w-]{20,}"),
    _form("a Google secret", "GOOGLE_CLIENT_SECRET", "GOCSPX-", r"GOCSPX-[\w-]{20,}"),
    _form("a Slack token", "SLACK_TOKEN", "xox xapp-", r"(?:xox[abeoprs]|xapp-[0-9])-[\w-]{10,}"),
    _form("a Slack address", "SLACK_WEBHOOK", "hooks.slack.com/", r"hooks\.slack\.com/[a-z]+/T\w+/\w+/\w+"),
    _form(
        "a Weights & Biases key",
        "WANDB_API_KEY",
        "wandb WANDB",
        r"(?i:wandb\w*(?:[ \t=:,\"'-]|login|key)+|wandb_v1_)(?:[0-9a-f]{40}(?![0-9a-f])|(?<=_v1_)\w{20,})",
    ),
    _form("a Neptune token", "NEPTUNE_API_TOKEN", "eyJhcGlf", r"eyJhcGlf[\w+/=-]{30,}"),
    _form("a JSON web token", "TOKEN", "eyJ", r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}(?:\.[\w-]*)?"),
    _form("an npm token", "NPM_TOKEN", "npm_", r"npm_[A-Za-z0-9]{36}"),
    _form("a PyPI token", "TWINE_PASSWORD", "pypi-AgEI", r"pypi-AgEI[\w-]{20,}"),
    _form("a Docker token", "DOCKER_PASSWORD", "dckr_", r"dckr_[a-z]+_[\w-]{20,}"),
    _form("a Databricks token", "DATABRICKS_TOKEN", "dapi", r"dapi[0-9a-f]{32}(?![0-9a-f])"),
    _form("a DigitalOcean token", "DIGITALOCEAN_TOKEN", "_v1_", r"do[opr]_v1_[0-9a-f]{40,}"),
    _form("a Vault token", "VAULT_TOKEN", "hvs.", r"hvs\.[\w-]{20,}"),
    _form("a SendGrid key", "SENDGRID_API_KEY", "SG.", r"SG\.[\w-]{16,}\.[\w-]{16,}"),
    _form("an Azure key", "AZURE_STORAGE_KEY", "AccountKey=", r"AccountKey=[A-Za-z0-9+/]{40,}={0,2}"),
    _form(
        "a signed address", "SIGNED_URL", "sig= ignature=", r"(?<=[?&])(?:sig|X-\w+-Signature)=[A-Za-z0-9%+/]{20,}=*"
    ),
    _form(
        "a private key",
        "PRIVATE_KEY",
        "PRIVATE",
        r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----(?s:.*?)(?:-----END [A-Z0-9 ]*-----|\Z)",
    ),
    _form("a bearer token", "TOKEN", "earer", r"(?i:bearer) (?=\S*[0-9])[\w.~+/-]{16,}=*"),
    _form("a password in an address", "PASSWORD", "://", r"(?<=://)[^\s/?#:@'\"]*:(?![${%]|\d+/)[^\s?#@'\"]+(?=@)"),
    _form("a token in an address", "TOKEN", "://", r"(?<=://)(?=[^\s/@]*[0-9])[\w.-]{20,}(?=@)"),
    _form(
        "a password for curl or wget",
        "PASSWORD",
        "curl wget",
        rf"-(?:[a-zA-Z]*[uU]\s*|-(?:proxy-)?user[\s=]+){_OPEN}[^\s:\"'/]+:{_GIVEN}[^\s\"',\])}}]+",
    ),
    _form("a password of a login", "PASSWORD", "login", rf"login\b[^\n|;&]*?\s-p[\s=]*{_OPEN}[^\s\"',\]]+"),
    _form("a password for sshpass", "SSHPASS", "sshpass", rf"sshpass\s+-p\s*{_OPEN}[^\s\"',\]]+"),
    _form("a password for MySQL", "MYSQL_PWD", "mysql", rf"mysql\w*\s(?:[^\n|;&]*?\s)?-p{_GIVEN}[^\s\"',\]]+"),
    _form("a password", "PASSWORD", "-stdin", r"(?:echo|printf)\s[^\n|$`]+\|[^\n|]*--password-stdin"),
    _form(
        "an authorization",
        "AUTHORIZATION",
        "uthorization",
        rf"(?i:authorization\W{{1,4}}(?:basic|token) +){_GIVEN}[\w.~+/=-]{{8,}}",
    ),
)

_SHORT = 4096  # Longest text whose result is cached, in characters: settings and words, but not files.

_NAMED = (
    r"(?<![\w.$-])(?P<flag>--?)?(?P<name>[A-Za-z][\w.-]*)(?P<quote>[\"']?)"
    r"(?P<sign>\s?=\s?|:\s?|(?(flag)\s+|(?!)))"
    r"(?=(?P<value>\"[^\"\n]*\"|'[^'\n]*'|(?![\[{(])(?:[^\s,;&|}\])\"']|,(?![\w.+-]+[=:]))+))"
)
_WORDS = re.compile(r"pass|token|key|pat|secret|credential|bearer|pw", re.IGNORECASE)
_REFERENCE = re.compile(r"[$`%<{\[(*]|\.\.\.")
_PATH = re.compile(r"(?:[~.]{0,2}/)[\w.\-/ @]*")
_TRIVIAL = frozenset({"true", "false", "yes", "no", "on", "off", "none", "null", "value", "auto", ""})
_WORD = r"(?:[a-z]{1,20}|[A-Z][a-z]{1,20}|[A-Z]{1,20})[0-9]{0,3}|[0-9]{1,6}"
_LIKE_WORDS = rf"(?:{_WORD})(?:[_.\-/:](?:{_WORD}))*"
_OF_ANY = re.compile(r"\+?cluster\.environment\b")
"""The node whose values a message never repeats, whatever their names."""

_FEWEST, _BITS = 8, 2.5
"""Minimum characters and bits per character of a value that counts as random (``hunter2`` has 2.8, ``aaaa`` 0)."""


@lru_cache(maxsize=4096)
def of_name(name: str) -> int:
    """Return whether a name is a secret's: 2 with any value, 1 only with a value that looks random, 0 never.

    A name is split at ``_``, ``-``, ``.`` and before capitals that begin a word, so that ``tokenizer``, ``monkey`` and
    ``data.path`` do not match. Parts in capitals, as in names of variables, count anywhere; otherwise ``key`` and the
    like count only at the end.
    """
    whole = {part.upper() for part in _PARTS.findall(name)}
    typed = _PARTS.findall(name.rpartition(".")[2])
    while typed and typed[-1].isdigit():
        typed.pop()
    parts = [part.upper() for part in typed]
    if not parts or parts[-1] in _NOT_A_SECRET:
        return 0
    likely = [at for at, part in enumerate(parts) if part in _PERHAPS and parts[at : at + 2] != ["KEY", "VALUE"]]
    glued = any(part.isupper() and part.endswith(_GLUED) and part not in _NOT_GLUED for part in typed)
    in_capitals = any(typed[at] == parts[at] for at in likely) or (name not in _FOLDERS and glued)
    if _SECRET & whole or in_capitals or any(at and parts[at - 1] in _KEEPERS for at in likely):
        return _CERTAIN
    return _LIKELY if likely and likely[-1] == len(parts) - 1 else 0


def find(text: str) -> TokenForm | None:
    """Return the form of the first secret in a text: a known token, or a value with a secret's name; None if none."""
    return _kept_look(text) if len(text) <= _SHORT else _look(text)


def may_hold_secret(name: str, value: str) -> bool:
    """True if a variable may hold a secret, by its name and a value that is not a flag, a short number or a path."""
    return bool(of_name(name)) and not _is_trivial(value) and not _PATH.fullmatch(value)


def find_all(content: object, path: str = "") -> Iterator[tuple[str, TokenForm]]:
    """Yield every place of a secret in plain data: its keys, joined by dots, and the secret's form."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            if found := find(str(key)):
                yield path or "a key", found
            yield from _at(str(key), value, f"{path}.{key}" if path else str(key))
    elif isinstance(content, list | tuple):
        texts = [item for item in content if isinstance(item, str)]
        for item in content:
            yield from find_all(item, path)
        if (found := find(" ".join(texts))) and not any(map(find, texts)):  # "--api-key", "...": two words.
            yield path, found
    elif isinstance(content, str) and (found := find(content)):
        yield path, found


def _at(name: str, value: object, path: str) -> Iterator[tuple[str, TokenForm]]:
    if isinstance(value, str) and find(value) is None and _is_secret(name, value):
        yield path, _named(name)
    else:
        yield from find_all(value, path)


def redacted(text: str) -> str:
    """Return the text with possible secrets replaced."""
    return _kept_hide(text) if len(text) <= _SHORT else _hide(text)


def shown(value: object, name: str = "") -> object:
    """Return a value as a message may repeat it: without secrets, and nothing of it if its name is a secret's."""
    if isinstance(value, str):
        return NOT_SHOWN if (of_name(name) or _OF_ANY.match(name)) and not _is_trivial(value) else redacted(value)
    if isinstance(value, Mapping):
        return {redacted(str(key)): shown(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        if _in_parts(value):
            return NOT_SHOWN
        return [shown(item, _flag(before) or name) for before, item in zip(["", *value], value, strict=False)]
    return value


def _in_parts(items: list[object] | tuple[object, ...]) -> bool:
    texts = [item for item in items if isinstance(item, str)]
    return known(" ".join(texts)) is not None and not any(map(known, texts))


def without(text: str, value: object, name: str) -> str:
    """Return a text without secrets, and without this value if a message may not repeat it."""
    for part in _hidden_parts(value, name):
        text = text.replace(part, NOT_SHOWN)
    return redacted(text)


def _hidden_parts(value: object, name: str) -> Iterator[str]:
    if isinstance(value, str):
        if value and shown(value, name) == NOT_SHOWN:
            yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _hidden_parts(item, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _hidden_parts(item, name)


def _flag(word: object) -> str:
    return word.lstrip("-") if isinstance(word, str) and word.startswith("-") and "=" not in word else ""


def known(text: str) -> TokenForm | None:
    """Return the first well-known form in a text, whatever names it contains."""
    for form in FORMS:
        if any(mark in text for mark in form.marks) and _compiled(form.pattern).search(text):
            return form
    return None


def _look(text: str) -> TokenForm | None:
    if (found := known(text)) is not None:
        return found
    if _WORDS.search(text):
        for name, value, _ in _given(text):
            if _is_secret(name, value):
                return _named(name)
    return None


def _hide(text: str) -> str:
    for form in FORMS:
        if any(mark in text for mark in form.marks):
            text = _compiled(form.pattern).sub(NOT_SHOWN, text)
    if _WORDS.search(text):
        text = _hide_named(text)
    return text


_kept_look, _kept_hide = lru_cache(maxsize=4096)(_look), lru_cache(maxsize=4096)(_hide)
"""The same, cached."""


def _hide_named(text: str) -> str:
    kept, place = "", 0
    for name, value, (start, end) in _given(text):
        if start >= place and of_name(name) and not _is_trivial(value):  # A value may itself contain names.
            kept, place = f"{kept}{text[place:start]}{NOT_SHOWN}", end
    return kept + text[place:]


def _given(text: str) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Names with their values, from ``NAME=value``, ``NAME: value``, ``--name value``, and each value's position."""
    for match in re.finditer(_NAMED, text):
        name = match["name"]
        if match["sign"] == ": " and name != name.upper() and not match["quote"]:
            continue  # Prose: "must be a key: ...".
        yield name, match["value"].strip("\"'"), match.span("value")


def _is_secret(name: str, value: str) -> bool:
    return may_hold_secret(name, value) and (of_name(name) == _CERTAIN or _is_random(value))


def _is_trivial(value: str) -> bool:
    known = value.lower() in _TRIVIAL or (value.isdigit() and len(value) <= 3)
    return known or bool(_REFERENCE.match(value)) or value == NOT_SHOWN


def _is_random(value: str) -> bool:
    if len(value) < _FEWEST or re.fullmatch(_LIKE_WORDS, value) or re.search(r"\s", value):
        return False
    bits = -sum(count / len(value) * math.log2(count / len(value)) for count in Counter(value).values())
    return bits >= _BITS and any(map(str.isdigit, value)) and any(map(str.isalpha, value))


def _named(name: str) -> TokenForm:
    variable = re.sub(r"[^A-Za-z0-9]", "_", name.rpartition(".")[2]).strip("_").upper() or "TOKEN"
    return TokenForm(f"the value of {name}, a secret by its name", variable, (), "")


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern, compiled only when a text contains its mark: compiling all takes longer than a check."""
    return re.compile(pattern)
