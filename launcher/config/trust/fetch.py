"""Fetch a recipe or lock from the network: https with a hash, or a git repository at a revision. Nothing else does.

The answer is data from someone else: only https is followed, also after a redirect, never to an address that is not
public, at most a mebibyte, and within a time limit.
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
"""Bytes of a repository at one revision, compressed: recipes are text, and a hostile server could send for ever."""

_REDIRECTS = 3
_GIT = re.compile(
    r"git\+(?P<repository>[^@#]+(?:@[^@#/]+[:/][^@#]*)?)@(?P<revision>[A-Za-z0-9._/-]+)#(?P<path>[^#]+)\Z"
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
            parts = urlsplit(url)
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            status, location, content = _request(host, port, target, deadline)
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
    try:
        parts = urlsplit(url)
        if parts.scheme == "https" and parts.hostname:
            return parts.hostname, parts.port or 443
    except ValueError:  # A port that is no number, or half an IPv6 address.
        pass
    raise ConfigErrors([ConfigError("SOURCE", url, "only https is followed, to a host, also by a redirect")])


def _request(host: str, port: int, target: str, deadline: float) -> tuple[int, str | None, bytes]:
    """One GET to an address that was checked, so that a second look-up of the name cannot lead elsewhere."""
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
    """End a connection at a time, whatever it is waiting for: a server may send a byte now and then for ever.

    Raises TimeoutError: It was ended, which looks to its reader as if the server had done so.
    """
    same = connection.dup()  # TLS takes the socket itself over.
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
    """The address of a host, where all of its addresses are public.

    Raises ConfigErrors: One is loopback, private, link-local or otherwise not of the public internet. Raises OSError:
    The name is not known, or none that a host can have.
    """
    try:
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except (UnicodeError, OverflowError) as error:  # A part of 64 letters, or a port beyond 65535.
        raise OSError(f"{host}:{port} is no address: {error}") from None
    hidden = [address for address in found if not ipaddress.ip_address(address).is_global]
    if hidden:
        raise ConfigErrors([ConfigError("SOURCE", host, f"it leads to {hidden[0]}, which is not a public address")])
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
    "fetch.unpackLimit": "1",  # What comes stays in one file, whose size is then that of all of it.
    "core.bigFileThreshold": "1m",  # Larger files pass through git's memory in parts.
}


def _git(folder: str, deadline: float, *words: str) -> bytes:
    """Run git with no prompt, hooks or redirect, and no file larger than :data:`PACK_BYTES`; raises SubmitError."""
    settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
    no_name = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true", "SSH_ASKPASS": "true"}  # An empty name, at once.
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
                os.killpg(process.pid, signal.SIGKILL)  # Its helpers hold the connection.
                _left(deadline, GIT_TIMEOUT_S)
                raise
    except FileNotFoundError:
        raise SubmitError("git is not installed, and a recipe in a repository is fetched by it") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SubmitError(f"git {words[0]}: {error}") from None
    if process.returncode != 0:
        text, limit = err.decode(errors="replace").strip(), f"at most {PACK_BYTES >> 10:,} KiB are taken of a revision"
        raise SubmitError(f"git {words[0]}: {text}{f'; {limit}' if 'index-pack' in text else ''}")
    return out
