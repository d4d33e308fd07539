"""Fetch a recipe or lock from the network: https with a hash, or a git repository at a revision.

The response is untrusted data: only https is followed, also by redirects, only to public addresses, up to a mebibyte,
and within a time limit. Only ``launch recipe fetch`` does this.
"""

import contextlib
import hashlib
import http.client
import ipaddress
import os
import re
import resource
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from urllib.parse import urljoin, urlsplit

from launcher.base.errors import ConfigError, ConfigErrors, SubmitError
from launcher.base.files import MOST_BYTES

TIMEOUT_S, GIT_TIMEOUT_S = 20.0, 60.0
PACK_BYTES = 64 << 20
"""Limit in compressed bytes of a repository at one revision: recipes are small, and a hostile server may never stop."""

_REDIRECTS = 3
_GIT = re.compile(
    r"git\+(?P<repository>[^@#]+(?:@[^@#/]+[:/][^@#]*)?)@(?P<revision>[A-Za-z0-9._/-]+)#(?P<path>[^#]+)\Z"
)


_OTHER_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR")
"""Variables that git sets inside a hook: they would make this git write into the user's repository."""


def fetch(source: str) -> bytes:
    """Return the bytes of a recipe.

    Args:
        source: ``https://host/path.yaml#sha256=HEX`` or ``git+https://host/repository@revision#path/to/recipe.yaml``.

    Raises:
        ConfigErrors: The source has another form, no hash or a wrong one, or is not public.
        SubmitError: The network or git failed.
    """
    if source.startswith("git+"):
        return _from_git(source)
    url, _, fragment = source.partition("#")
    if not url.startswith("https://"):
        rule = "a recipe is fetched from https://...#sha256=HEX or git+https://REPOSITORY@REVISION#PATH"
        raise ConfigErrors([ConfigError("SOURCE", source, rule)])
    content = _get(url)
    found = hashlib.sha256(content).hexdigest()
    if fragment != f"sha256={found}":
        said = "a hash must show that the file has not changed" if not fragment else "the file does not match the hash"
        rule = f"{said}: this one has sha256={found}; review it before you trust it"
        raise ConfigErrors([ConfigError("SOURCE", source, rule, [f"launch recipe fetch {url}#sha256={found}"])])
    return content


def _get(url: str) -> bytes:
    deadline = time.monotonic() + TIMEOUT_S
    for _ in range(_REDIRECTS + 1):
        host, port = _address(url)
        try:
            parts = urlsplit(url)
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            status, location, content = _request(host, port, target, deadline)
        except (OSError, http.client.HTTPException) as error:
            raise SubmitError(f"{url} cannot be fetched: {error}") from None
        if status == 200:
            return content
        if status not in (301, 302, 303, 307, 308) or not location:
            raise SubmitError(f"{url} cannot be fetched: the server answers {status}")
        with contextlib.suppress(ValueError):  # An invalid location is refused as it is.
            location = urljoin(url, location)
        url = location
    raise SubmitError(f"{url} cannot be fetched: more than {_REDIRECTS} redirects")


def _address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        if parts.scheme == "https" and parts.hostname:
            return parts.hostname, parts.port or 443
    except ValueError:  # A port that is not a number, or a malformed IPv6 address.
        pass
    raise ConfigErrors([ConfigError("SOURCE", url, "only https URLs with a host are followed, also in redirects")])


def _request(host: str, port: int, target: str, deadline: float) -> tuple[int, str | None, bytes]:
    """One GET to a checked address, so that a second DNS lookup cannot lead elsewhere."""
    address = public_address(host, port)
    with (
        socket.create_connection((address, port), timeout=_left(deadline)) as plain,
        _ended_at(deadline, plain),
        _secured(plain, host) as connection,
    ):
        named = host if port == 443 else f"{host}:{port}"
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: {named}\r\nConnection: close\r\n\r\n".encode())
        with contextlib.closing(http.client.HTTPResponse(connection)) as response:  # It holds the connection open.
            response.begin()
            content = response.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ConfigErrors([ConfigError("SOURCE", target, "it is larger than 1 MiB")])
    return response.status, response.getheader("Location"), content


def _secured(plain: socket.socket, host: str) -> socket.socket:
    return ssl.create_default_context().wrap_socket(plain, server_hostname=host)


@contextlib.contextmanager
def _ended_at(deadline: float, connection: socket.socket) -> Iterator[None]:
    """Close a connection at the deadline, whatever it is waiting for: a server may trickle bytes forever.

    Raises TimeoutError: It was closed, which to its reader looks as if the server had closed it.
    """
    same = connection.dup()  # TLS takes over the socket itself.
    timer = threading.Timer(_left(deadline), _end, [same])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        same.close()
        _left(deadline)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _left(deadline: float, limit: float = TIMEOUT_S) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"it takes longer than {limit:.0f} s")
    return left


def public_address(host: str, port: int) -> str:
    """Return an address of a host, all of whose addresses must be public.

    Raises ConfigErrors: One is loopback, private, link-local or otherwise not on the public internet. Raises OSError:
    The name cannot be resolved or is not a valid host name.
    """
    try:
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except (UnicodeError, OverflowError) as error:  # A label of 64 characters, or a port above 65535.
        raise OSError(f"{host}:{port} is not an address: {error}") from None
    hidden = [address for address in found if not ipaddress.ip_address(address).is_global]
    if hidden:
        raise ConfigErrors([ConfigError("SOURCE", host, f"it resolves to {hidden[0]}, which is not a public address")])
    return found[0]


def _from_git(source: str) -> bytes:
    match = _GIT.match(source)
    if match is None or ".." in match["path"].split("/") or match["revision"].startswith("-"):
        rule = "a recipe in a repository has the form git+https://REPOSITORY@REVISION#PATH"
        raise ConfigErrors([ConfigError("SOURCE", source, rule)])
    repository = match["repository"]
    if not repository.startswith(("https://", "ssh://", "file://")):
        raise ConfigErrors([ConfigError("SOURCE", source, "git repositories are reached only by https, ssh or file")])
    if repository.startswith("https://"):
        host, port = _address(repository)
        try:
            public_address(host, port)
        except OSError as error:
            raise SubmitError(f"{repository} cannot be fetched: {error}") from None
    deadline, file = time.monotonic() + GIT_TIMEOUT_S, f"FETCH_HEAD:{match['path']}"
    with tempfile.TemporaryDirectory() as folder:
        _git(folder, deadline, "init", "--quiet")
        _git(folder, deadline, "fetch", "--quiet", "--depth=1", "--no-tags", "--", repository, match["revision"])
        if int(_git(folder, deadline, "cat-file", "-s", file)) > MOST_BYTES:
            raise ConfigErrors([ConfigError("SOURCE", source, "it is larger than 1 MiB")])
        return _git(folder, deadline, "cat-file", "blob", file)


_SETTINGS = {
    "core.hooksPath": "/dev/null",
    "http.followRedirects": "false",
    "protocol.ext.allow": "never",
    "fetch.unpackLimit": "1",  # Keeps what is fetched in one file, so that the file's size limits all of it.
    "core.bigFileThreshold": "1m",  # Git streams larger files instead of loading them.
}


def _git(folder: str, deadline: float, *words: str) -> bytes:
    """Run git with no prompt, hooks or redirect, and no file larger than :data:`PACK_BYTES`; raises SubmitError."""
    settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
    no_name = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true", "SSH_ASKPASS": "true"}  # Prompts end at once.
    environment = {**no_name, "GIT_SSH_COMMAND": "ssh -oBatchMode=yes"}
    try:
        with subprocess.Popen(
            ["git", *settings, *words],
            cwd=folder,
            env={name: value for name, value in os.environ.items() if name not in _OTHER_REPOSITORY} | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (PACK_BYTES, PACK_BYTES)),
        ) as process:
            try:
                out, err = process.communicate(timeout=_left(deadline, GIT_TIMEOUT_S))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # Its helper processes hold the connection.
                _left(deadline, GIT_TIMEOUT_S)
                raise
    except FileNotFoundError:
        raise SubmitError("git is not installed, and is needed to fetch a recipe from a repository") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SubmitError(f"git {words[0]}: {error}") from None
    if process.returncode != 0:
        text, limit = err.decode(errors="replace").strip(), f"the limit of a revision is {PACK_BYTES >> 10:,} KiB"
        raise SubmitError(f"git {words[0]}: {text}{f'; {limit}' if 'index-pack' in text else ''}")
    return out
