"""One headless Chromium for the tests of a process, of Debian's packages; where it cannot be had they are left out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from benchmarks.report import browser as chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(chromium.started())
        except chromium.NoBrowser as error:
            pytest.skip(f"pages are not opened in a browser: {error}")
