"""Fetch a recipe or lock from the network: https with a hash, or a git repository at a revision. Nothing else does.

What comes is data from someone else: only https is followed, also after a redirect, never to an address that is not
public, at most a mebibyte, and within a time limit.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import ipaddress
import os
import re
import socket
import ssl
import subprocess
import tempfile
import time
from urllib.parse import urljoin, urlsplit

from launcher.errors import ConfigError, ConfigErrors, SubmitError
from launcher.safe_yaml import MAXIMUM_BYTES

TIMEOUT_S = 20.0
_REDIRECTS = 3
_GIT = re.compile(
    r"^git\+(?P<repository>[^@#]+(?:@[^@#/]+[:/][^@#]*)?)@(?P<revision>[A-Za-z0-9._/-]+)#(?P<path>[^#]+)$"
)


_OTHER_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR")
"""Set inside a hook of git: they would make ours write into the user's repository."""


def fetch(source: str) -> bytes:
    """The bytes of a recipe.

    Args:
        source: ``https://host/path.yaml#sha256=HEX`` or ``git+https://host/repository@revision#path/to/recipe.yaml``.

    Raises:
        ConfigErrors: The source is of no such form, has no hash or another one, or is not public.
        SubmitError: The network or git failed.
    """
    if source.startswith("git+"):
        return _from_git(source)
    url, _, fragment = source.partition("#")
    if not url.startswith("https://"):
        rule = "a recipe is fetched by https://...#sha256=HEX or by git+https://REPOSITORY@REVISION#PATH"
        raise ConfigErrors([ConfigError("SOURCE", source, rule)])
    content = _get(url)
    found = hashlib.sha256(content).hexdigest()
    if fragment != f"sha256={found}":
        said = "without a hash nobody can tell whether it is still the same file" if not fragment else "the file is not"
        rule = f"{said}: this one has sha256={found}; look at it before you trust it"
        raise ConfigErrors([ConfigError("SOURCE", source, rule, [f"launch recipe fetch {url}#sha256={found}"])])
    return content


def _get(url: str) -> bytes:
    deadline = time.monotonic() + TIMEOUT_S
    for _ in range(_REDIRECTS + 1):
        host, port = _address(url)
        try:
            status, location, content = _request(host, port, _target(url), deadline)
        except (OSError, http.client.HTTPException) as error:
            raise SubmitError(f"{url} cannot be fetched: {error}") from None
        if status == 200:
            return content
        if status not in (301, 302, 303, 307, 308) or not location:
            raise SubmitError(f"{url} cannot be fetched: the server answers {status}")
        with contextlib.suppress(ValueError):  # What cannot be joined is refused as it is.
            location = urljoin(url, location)
        url = location
    raise SubmitError(f"{url} cannot be fetched: more than {_REDIRECTS} redirects")


def _address(url: str) -> tuple[str, int]:
    """Host and port of an address.

    Raises:
        ConfigErrors: It is not one of https.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme == "https" and parts.hostname:
            return parts.hostname, parts.port or 443
    except ValueError:  # A port that is no number, or half an IPv6 address.
        pass
    raise ConfigErrors([ConfigError("SOURCE", url, "only https is followed, to a host, also by a redirect")])


def _target(url: str) -> str:
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _request(host: str, port: int, target: str, deadline: float) -> tuple[int, str | None, bytes]:
    """One GET to an address that was checked, so that a second look-up of the name cannot lead elsewhere."""
    address = public_address(host, port)
    with (
        socket.create_connection((address, port), timeout=_left(deadline)) as plain,
        ssl.create_default_context().wrap_socket(plain, server_hostname=host) as secure,
    ):
        named = host if port == 443 else f"{host}:{port}"
        secure.sendall(f"GET {target} HTTP/1.1\r\nHost: {named}\r\nConnection: close\r\n\r\n".encode())
        response = http.client.HTTPResponse(secure)
        response.begin()
        content = b""
        while len(content) <= MAXIMUM_BYTES and (block := _read(secure, response, deadline)):
            content += block
    if len(content) > MAXIMUM_BYTES:
        raise ConfigErrors([ConfigError("SOURCE", target, "it is larger than 1 MiB")])
    return response.status, response.getheader("Location"), content


def _read(connection: socket.socket, response: http.client.HTTPResponse, deadline: float) -> bytes:
    connection.settimeout(_left(deadline))
    return response.read1(1 << 16)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"it takes longer than {TIMEOUT_S:.0f} s")
    return left


def public_address(host: str, port: int) -> str:
    """The address of a host, where all of its addresses are public.

    Raises:
        ConfigErrors: One is loopback, private, link-local or otherwise not of the public internet.
        OSError: The name is not known.
    """
    found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    hidden = [address for address in found if not ipaddress.ip_address(address).is_global]
    if hidden:
        rule = f"it leads to {hidden[0]}, which is not a public address"
        raise ConfigErrors([ConfigError("SOURCE", host, rule)])
    return found[0]


def _from_git(source: str) -> bytes:
    match = _GIT.match(source)
    if match is None or ".." in match["path"].split("/") or match["revision"].startswith("-"):
        rule = "a recipe in a repository is named git+https://REPOSITORY@REVISION#PATH"
        raise ConfigErrors([ConfigError("SOURCE", source, rule)])
    repository = match["repository"]
    if not repository.startswith(("https://", "ssh://", "file://")):
        raise ConfigErrors([ConfigError("SOURCE", source, "git is asked by https, ssh or file alone")])
    if repository.startswith("https://"):
        public_address(*_address(repository))
    with tempfile.TemporaryDirectory() as folder:
        _git(folder, "init", "--quiet")
        _git(folder, "fetch", "--quiet", "--depth=1", "--no-tags", "--", repository, match["revision"])
        size = int(_git(folder, "cat-file", "-s", f"FETCH_HEAD:{match['path']}"))
        if size > MAXIMUM_BYTES:
            raise ConfigErrors([ConfigError("SOURCE", source, "it is larger than 1 MiB")])
        return _git(folder, "cat-file", "blob", f"FETCH_HEAD:{match['path']}")


def _git(folder: str, *words: str) -> bytes:
    """Run git with no prompt, no hooks and no redirect to another place.

    Raises:
        SubmitError: It fails, or takes too long.
    """
    settings = ("-c", "core.hooksPath=/dev/null", "-c", "http.followRedirects=false", "-c", "protocol.ext.allow=never")
    environment = {"GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": "ssh -oBatchMode=yes"}
    try:
        done = subprocess.run(
            ["git", *settings, *words],
            cwd=folder,
            env={name: value for name, value in os.environ.items() if name not in _OTHER_REPOSITORY} | environment,
            capture_output=True,
            timeout=TIMEOUT_S * 3,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SubmitError(f"git {words[0]}: {error}") from None
    if done.returncode != 0:
        raise SubmitError(f"git {words[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
