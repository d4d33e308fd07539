"""What pages of runs cost to make and to open: ``python -m benchmarks.report``; their pictures: ``--screenshots``.

Both need Chromium (``make chromium``). The measured pages are of runs that are made up, a thousand points
and a hundred thousand steps; the pictures in ``docs/`` are of real runs, which this command trains first, on this
machine's CPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from benchmarks.report import browser as chromium
from benchmarks.report import made, screenshots
from benchmarks.reporting import keep

POINTS, STEPS, RUNS = 1000, 100_000, 3
_OPENED = 5
"""Times that a page is opened; the median is kept."""


def main() -> None:
    """Measure, or take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = "train the runs of these pictures (default: of all) and write docs/report-*.png"
    names = [*screenshots.PICTURES]
    parser.add_argument(
        "--screenshots", nargs="*", choices=names, metavar="PICTURE", help=f"{words}: {', '.join(names)}"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="launch-report-") as name, chromium.started() as browser:
        os.environ["XDG_STATE_HOME"] = f"{name}/state"  # Made runs are none of the user's.
        if options.screenshots is not None:
            screenshots.take(browser, Path(name), options.screenshots or names)
        else:
            keep("report", "python -m benchmarks.report", measured(browser, Path(name)))


def measured(browser: Browser, folder: Path) -> dict[str, Any]:
    """The figures of both pages."""
    from launcher.views.page import many
    from launcher.views.page import sweep as many_sweep

    sweep = made.sweep(folder / "sweep", POINTS)
    runs = [made.run(folder / f"run-{number}", steps=STEPS, scale=1 + number / 10) for number in range(RUNS)]
    return {
        "chromium": browser.version,
        "load_average_of_one_minute": os.getloadavg()[0],
        "sweep": {"points": POINTS, **_page(browser, folder, lambda: many_sweep.swept(sweep), _handled)},
        "several": {"runs": RUNS, "steps_each": STEPS, **_page(browser, folder, lambda: many.several(runs))},
    }


def _page(
    browser: Browser, folder: Path, make: Callable[[], str], handled: Callable[[Page], dict[str, float]] | None = None
) -> dict[str, Any]:
    file, began = folder / "page.html", time.perf_counter()
    file.write_text(make())
    seconds = time.perf_counter() - began
    opened, computed, more = [], [], {}
    for _ in range(_OPENED):
        with chromium.visit(browser, file) as found:
            opened.append(found.page.evaluate("performance.now()") / 1000)
            computed.append(found.processor_seconds())
            more = {} if handled is None else handled(found.page)
            if found.asked or found.said:
                raise AssertionError(f"the page is not quiet: {found.asked} {found.said}")
    return {
        "made_s": round(seconds, 2),
        "bytes": file.stat().st_size,
        "opened_s": _spread(opened),
        "processor_of_its_thread_s": _spread(computed),
        **more,
    }


def _handled(page: Page) -> dict[str, float]:
    """Seconds that the table takes to sort and to filter, including the redraw."""
    painted = "await new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
    sort = "document.querySelector('#points th[data-key=loss] button').click()"
    box = "const box = document.querySelector('#points input')"
    fill = f"{box}; box.value = 'loss<2.7'; box.dispatchEvent(new Event('input'))"
    found = {
        name: page.evaluate(
            f"async () => {{ const began = performance.now(); {act}; {painted}; return performance.now() - began; }}"
        )
        for name, act in (("sorted_ms", sort), ("filtered_ms", fill))
    }
    return {name: round(milliseconds, 1) for name, milliseconds in found.items()}


def _spread(values: list[float]) -> dict[str, float]:
    return {"min": round(min(values), 2), "median": round(statistics.median(values), 2), "max": round(max(values), 2)}


if __name__ == "__main__":
    main()
