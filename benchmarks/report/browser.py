"""A headless Chromium, in which pages are opened from the disk as their readers open them.

It is the system's own, of Debian's packages; ``make chromium`` installs it (``python -m benchmarks.report.browser``),
and Playwright drives it. Nothing but the page's own file is let through, and what a page asks for, says and throws is
kept.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urldefrag

from playwright._impl._driver import compute_driver_executable
from playwright.sync_api import Browser, CDPSession, ConsoleMessage, Page, Route, sync_playwright

from benchmarks.reporting import takes_no_option
from slurm.dev_cluster import ClusterError, packages

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PACKAGES = ("chromium", "fonts-dejavu-core", "libatomic1")
"""Chromium's own asks for no font, and without one a page has no text; Playwright's Node.js is linked with the last."""

_TIMEOUT_MS = 20_000
_VIEWS = """window.views = {};
document.addEventListener("drawn", ({ detail: { view, chart } }) => { window.views[chart.id] = view; });"""
"""Vega's views by the ids of their charts: what is in a canvas is asked of them."""


type Scheme = Literal["light", "dark"]


class NoBrowser(Exception):
    """There is no Chromium, and it cannot be installed."""


@dataclass(slots=True)
class Visit:
    """One page, open.

    Attributes:
        page: Playwright's.
        asked: Addresses that the page has asked for beside its own file; none of them got an answer.
        said: Errors and warnings on its console, and exceptions that nothing caught.
        devtools: Chromium's own protocol, which counts since before the page was opened.
    """

    page: Page
    devtools: CDPSession
    asked: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def processor_seconds(self) -> float:
        """CPU seconds of the page's own thread so far, which a busy machine does not lengthen."""
        metrics = self.devtools.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


def program() -> str:
    """The path of Chromium's executable, where Playwright can drive it.

    Raises:
        NoBrowser: It is not installed, or Playwright does not start.
    """
    found = next((path for name in _PROGRAMS if (path := shutil.which(name)) is not None), None)
    if found is None:
        raise NoBrowser(f"there is no Chromium; {_way()}")
    driver = subprocess.run([compute_driver_executable()[0], "--version"], capture_output=True, text=True, check=False)
    if driver.returncode:
        raise NoBrowser(f"Playwright does not start: {driver.stderr.strip()}; {_way()}")
    return str(Path(found).absolute())


def _way() -> str:
    """Commands that install Chromium and its dependencies on this machine."""
    if shutil.which("apt-get") is None:
        return f"`make chromium` installs {', '.join(_PACKAGES)} by apt-get, which is not here: install them by hand"
    return "as root, `make chromium` installs it" if os.geteuid() else "`make chromium` installs it, or says why not"


def install() -> str:
    """The path of Chromium's executable; what is missing is installed first.

    Raises:
        NoBrowser: It cannot be installed.
    """
    with contextlib.suppress(NoBrowser):
        return program()
    if os.geteuid() == 0:
        try:
            packages.fetch(_PACKAGES, still=_lacking)
        except ClusterError as error:
            raise NoBrowser(str(error)) from None
    return program()


def _lacking() -> Sequence[str]:
    try:
        program()
    except NoBrowser:
        return _PACKAGES
    return ()


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    """A browser without windows.

    Raises:
        NoBrowser: There is none.
    """
    path = program()
    with sync_playwright() as playwright:
        # Chromium's sandbox does not work for root; the pages are ours, and no address is let through.
        browser = playwright.chromium.launch(executable_path=path, chromium_sandbox=os.geteuid() != 0)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def visit(
    browser: Browser, file: Path, *, scheme: Scheme = "light", width: int = 1200, height: int = 900, **more: Any
) -> Iterator[Visit]:
    """Open a page from the disk, until its charts are drawn.

    Args:
        browser: Of :func:`started`.
        file: The page.
        scheme: Which colours the reader's system asks for.
        width: Of the window, in CSS pixels.
        height: The same.
        more: Options of Playwright's ``new_context``.
    """
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **more)
    context.set_default_timeout(_TIMEOUT_MS)
    page = context.new_page()
    found = Visit(page=page, devtools=context.new_cdp_session(page))
    found.devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    address = file.absolute().as_uri()

    def decide(route: Route) -> None:
        if urldefrag(route.request.url)[0] == address:
            route.continue_()
        else:
            found.asked.append(route.request.url)
            route.abort()

    def heard(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            found.said.append(f"{message.type}: {message.text}")

    context.add_init_script(_VIEWS)
    context.route("**/*", decide)
    found.page.on("console", heard)
    found.page.on("pageerror", lambda error: found.said.append(f"thrown: {error}"))
    try:
        found.page.goto(address)
        if more.get("java_script_enabled", True) and found.page.locator("#charts").count():
            found.page.wait_for_selector("html[data-drawn=true]", state="attached")
        yield found
    finally:
        context.close()


def until(page: Page, condition: str, argument: object = None) -> None:
    """Wait for something that is asked of a page as an expression, or as a function of ``argument``.

    Playwright's own ``wait_for_function`` asks by ``eval``, which the policy of our pages forbids.

    Raises:
        TimeoutError: It does not come about.
    """
    end = time.monotonic() + _TIMEOUT_MS / 1000
    while not page.evaluate(condition, argument):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {_TIMEOUT_MS / 1000:.0f} s: {condition}")
        page.wait_for_timeout(20)


def main() -> None:
    """Install Chromium; where that cannot be, say why, and that the tests in a browser are left out."""
    try:
        print(f"Chromium is {install()}")
    except NoBrowser as error:
        print(f"pages are not opened in a browser, and tests/browser is skipped: {error}")


if __name__ == "__main__":
    takes_no_option(__doc__)
    main()
