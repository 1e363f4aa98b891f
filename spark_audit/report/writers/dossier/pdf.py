"""A page as PDF, by a browser without network or by WeasyPrint, if either is there."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
"""Programs that print a page by themselves, the first that is there."""
SECONDS = 60
"""After which a browser is given up."""
OPTIONS = (
    "--headless",
    "--disable-gpu",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-extensions",
    "--disable-sync",
    "--disable-component-update",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--no-pdf-header-footer",
)


def printed(page: str) -> bytes | None:
    """The page as PDF; none where nothing here can print it."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    made = None if browser is None else _by_browser(browser, page)
    return made or _by_weasyprint(page)


def _by_browser(browser: str, page: str) -> bytes | None:
    """By a browser, in a profile of its own that goes with it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        source, target = Path(place, "page.html"), Path(place, "page.pdf")
        source.write_text(page, encoding="utf-8")
        # As root it starts without its sandbox only; the page has no script.
        root = hasattr(os, "geteuid") and os.geteuid() == 0
        command = [browser, *OPTIONS, *(["--no-sandbox"] * root)]
        command += [f"--user-data-dir={place}/profile", f"--print-to-pdf={target}"]
        try:
            subprocess.run(
                [*command, source.as_uri()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "HOME": place},
                timeout=SECONDS,
                check=False,
            )
            made = target.read_bytes()
        except (OSError, subprocess.TimeoutExpired):
            return None
    return made if made.startswith(b"%PDF") else None


def _by_weasyprint(page: str) -> bytes | None:
    if importlib.util.find_spec("weasyprint") is None:
        return None
    made = importlib.import_module("weasyprint").HTML(string=page).write_pdf()
    return made if isinstance(made, bytes) else None
