"""A browser for tests of pages, and what may be asked of a page that it shows."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

in_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium is installed (apt-get install chromium)"
)


@contextmanager
def started_browser() -> Iterator[Any]:
    """Start Chromium without a window; skip the test where playwright is missing."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()
