"""Makes the pictures of gallery.md and reading.md: ``python docs/gallery.py``.

All are outputs of the program about ``reports/demo``, the kept report of made-up data:
screenshots of its files, and what commands print about it. They stand in
``docs/pictures/``. Pages are opened in Chromium by playwright (the extra ``test``).
"""

from __future__ import annotations

import html
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.text import Text

import spark_audit as sa

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
DEMO = "reports/demo"
PERSON = "dining-train-0003"

FIGURES = ("matched", "canary", "mia", "selectivity")
FIGURE_DPI = 200
TERMINAL_COLUMNS = 100
MAX_COLOURS = 160
"""Colours of a picture: more are not seen, and take twice the bytes."""

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
NOTEBOOK_CELL = """<!DOCTYPE html><meta charset="utf-8"><style>
body {{ font: 14px system-ui, sans-serif; margin: 0; padding: 16px; }}
.cell {{ display: grid; grid-template-columns: 64px 1fr; margin-bottom: 12px; }}
.code {{ background: #f5f5f5; border: 1px solid #e0e0e0; margin: 0; padding: 8px; }}
.number {{ color: #616161; font-family: monospace; padding-top: 8px; }}
</style>
<div class="cell"><div class="number">[1]:</div><pre class="code">{code}</pre></div>
<div class="cell"><div class="number">[1]:</div><div>{output}</div></div>
"""
NOTEBOOK_CODE = f"""import spark_audit as sa

sa.read_report("{DEMO}")"""


def save_picture(name: str, content: bytes) -> None:
    """Write a picture (PNG) with few colours, which takes a third of the bytes."""
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    few = picture.quantize(MAX_COLOURS, dither=Image.Dither.NONE)
    few.save(FOLDER / f"{name}.png", optimize=True)


def save_terminal(name: str, arguments: list[str], *, title: str) -> None:
    """Write what a command prints as a picture of a terminal.

    Parameters
    ----------
    arguments
        Of ``python``.
    title
        The line above the output: what a user types.
    """
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": str(TERMINAL_COLUMNS), "FORCE_COLOR": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    console = Console(record=True, width=TERMINAL_COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(done.stdout))
    picture = console.export_svg(title=title, unique_id=name)

    # The fonts would be loaded from the network where the picture is opened alone.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.S)
    lines = [line.rstrip() for line in picture.splitlines()]
    (FOLDER / f"{name}.svg").write_text("\n".join(lines) + "\n", encoding="utf-8")


def command_line(*words: str) -> list[str]:
    """Return the arguments of ``python`` that run a command of ours."""
    return ["-m", "spark_audit", *words]


def terminals() -> None:
    """What commands print: a report, the gate, a person's sheet."""
    show = "from spark_audit.cli.show import show_report; import spark_audit as sa; "
    show += f"show_report(sa.read_report('{DEMO}'))"
    save_terminal("terminal", ["-c", show], title="spark-audit demo")

    gate = ["gate", DEMO]
    save_terminal("gate", command_line(*gate), title=f"spark-audit {' '.join(gate)}")

    person = ["persons", DEMO, "--person", PERSON]
    title = f"spark-audit {' '.join(person)}"
    save_terminal("person-sheet", command_line(*person), title=title)


def figures() -> None:
    """Figures as ``report.plot`` draws them, each with all checkpoints."""
    report = sa.read_report(ROOT / DEMO)
    for name in FIGURES:
        content = io.BytesIO()
        report.plot(name).figure.savefig(content, format="png", dpi=FIGURE_DPI)
        save_picture(f"demo-{name}", content.getvalue())


def report_page(browser: Browser) -> None:
    """The first screen of the page."""
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.goto((ROOT / DEMO / "report.html").as_uri())
    save_picture("first-screen", page.screenshot())


def dossier(browser: Browser) -> None:
    """The first sheet of the dossier, as a browser prints it."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(ROOT / DEMO / "report.json", folder)
        report = ["report", folder, "--format", "dossier"]
        report += ["--manifest", str(ROOT / "manifests" / "demo.json")]
        subprocess.run([sys.executable, *command_line(*report)], cwd=ROOT, check=True)
        # As wide as A4 at 96 pixels per inch, with the margin of a printed sheet.
        page = browser.new_page(viewport={"width": 794, "height": 1123})
        page.emulate_media(media="print")
        page.goto((Path(folder) / "dossier.html").as_uri())
        page.add_style_tag(content="body { padding: 8mm; }")
        # Up to what was tested: further sections follow on the next sheets.
        next_section = page.locator("h2").nth(1).bounding_box()
        height = next_section["y"] - 8 if next_section else 1123
        clip = {"x": 0, "y": 0, "width": 794, "height": height}
        save_picture("dossier", page.screenshot(clip=clip))


def notebook(browser: Browser) -> None:
    """What a notebook shows below a cell whose last line is a report."""
    report = sa.read_report(ROOT / DEMO)
    page = browser.new_page(viewport={"width": 1000, "height": 560})
    page.set_content(
        NOTEBOOK_CELL.format(
            code=html.escape(NOTEBOOK_CODE), output=report._repr_html_()
        )
    )
    save_picture("notebook", page.locator("body").screenshot())


SCREENSHOTS: tuple[Callable[[Browser], None], ...] = (
    *(report_page, dossier, notebook),
)

if __name__ == "__main__":
    terminals()
    figures()
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        for make in SCREENSHOTS:
            make(browser)
        browser.close()
