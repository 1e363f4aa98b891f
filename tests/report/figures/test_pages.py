"""The page in a browser: nothing overlaps, is cut or too small, at three widths."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from browsers import in_browser, started_browser
from made_reports import many_clean, mixed_cells
from slow_cases import fast_and_slow

from spark_audit.report.prepared import PreparedReport
from spark_audit.report.writers import pages
from spark_audit.report.writers.writer import WriterInput
from spark_audit.results import Report

N_CHECKPOINTS = 4
"""As many as other tests draw, one of them in three replicates."""
WIDTHS = (1280, 768, 390)
MIN_TEXT_PIXELS = 11
MAX_WORDS_OF_FIRST_SCREEN = 180
MAX_PRINTED_PAGES = 12
PRINTABLE_PIXELS = (703, 1009)
"""Width and height of an A4 sheet within its margins."""

TEXTS = """
const hidden = "script, style, .unseen, .skip, .same .word";
const isShown = (element) => element.checkVisibility() && !element.closest(hidden);
const texts = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode;
  const element = node.parentElement;
  if (node.data.trim() && isShown(element)) texts.push({ node, element });
}
"""

SMALLEST_TEXT = f"""() => {{ {TEXTS}
  return Math.min(...texts.map(({{ element }}) => {{
    const matrix = element.getScreenCTM ? element.getScreenCTM() : null;
    const scale = matrix ? Math.hypot(matrix.b, matrix.d) : 1;
    return scale * parseFloat(getComputedStyle(element).fontSize);
  }}));
}}"""

TEXT_OF_FIRST_SCREEN = f"""() => {{ {TEXTS}
  const inView = texts.filter(({{ node }}) => {{
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    return box.width > 0 && box.top < innerHeight && box.bottom > 0;
  }});
  return inView.map(({{ node }}) => node.data).join(" ");
}}"""

FAULTS_OF_FIGURES = """() => {
  const common = (one, other, start, end) =>
    Math.min(one[end], other[end]) - Math.max(one[start], other[start]);
  // A box has room above and below its letters.
  const overlaps = (one, other) =>
    common(one, other, "left", "right") > 1 &&
    common(one, other, "top", "bottom") > 2.5;
  const isInside = (box, frame) =>
    box.left >= frame.left - 1 && box.right <= frame.right + 1 &&
    box.top >= frame.top - 1 && box.bottom <= frame.bottom + 1;

  const faults = [];
  for (const svg of document.querySelectorAll("figure svg")) {
    const frame = svg.getBoundingClientRect();
    if (!svg.checkVisibility() || frame.width === 0) continue;
    const name = svg.closest("figure").id;
    const texts = [...svg.querySelectorAll("text")]
      .filter((text) => text.textContent.trim() && text.checkVisibility())
      .map((text) => [text.textContent.trim(), text.getBoundingClientRect()]);
    texts.forEach(([words, box], place) => {
      if (!isInside(box, frame)) faults.push(`${name}: "${words}" leaves it`);
      for (const [others, other] of texts.slice(place + 1)) {
        if (overlaps(box, other)) faults.push(`${name}: "${words}" on "${others}"`);
      }
    });
  }
  return faults;
}"""


def written(report: Report, path: Path, drawn: Any = list) -> Path:
    """Write the page of a report."""
    prepared = PreparedReport(report)
    (page,) = pages.write_page(prepared, path.parent, WriterInput(drawn))
    path.write_text(str(page.content), "utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def full_page(drawn_report, tmp_path_factory) -> Path:
    """The page of a report with every audit and every figure."""
    report, drawn = drawn_report(N_CHECKPOINTS, False)
    path = tmp_path_factory.mktemp("page") / "report.html"
    return written(report, path, partial(list, drawn.values()))


@pytest.fixture
def opened(browser, request) -> Iterator[Any]:
    contexts = []

    def opened_page(path: Path, width: int, *, scheme: str = "light") -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 800},
            color_scheme=scheme,
            reduced_motion="reduce",
        )
        contexts.append(context)
        page = context.new_page()
        page.goto(path.as_uri())
        return page

    yield opened_page
    for context in contexts:
        context.close()


@in_browser
@pytest.mark.parametrize("width", WIDTHS)
def test_no_text_is_small_and_nothing_is_wider_than_the_page(opened, full_page, width):
    page = opened(full_page, width)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    assert page.evaluate(SMALLEST_TEXT) >= MIN_TEXT_PIXELS - 0.05


@in_browser
@pytest.mark.parametrize("width", WIDTHS)
def test_no_text_of_a_figure_lies_on_another_or_leaves_it(opened, full_page, width):
    page = opened(full_page, width)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate(FAULTS_OF_FIGURES) == []


@in_browser
@pytest.mark.parametrize(
    ("width", "scheme"),
    fast_and_slow(
        [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")],
        fast=[(1280, "light"), (390, "dark")],
    ),
)
def test_axe_finds_nothing_serious(opened, tmp_path, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = opened(
        written(mixed_cells(7), tmp_path / "report.html"), width, scheme=scheme
    )
    violations = axe.run(page).response["violations"]
    serious = [
        violation["id"]
        for violation in violations
        if violation["impact"] in ("serious", "critical")
    ]
    assert serious == []


@in_browser
@pytest.mark.parametrize("scheme", fast_and_slow(["light", "dark"], fast=["dark"]))
def test_axe_finds_nothing_serious_in_figures(opened, full_page, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = opened(full_page, 1280, scheme=scheme)
    violations = axe.run(page, context="figure").response["violations"]
    serious = [
        violation["id"]
        for violation in violations
        if violation["impact"] in ("serious", "critical")
    ]
    assert serious == []


@in_browser
@pytest.mark.parametrize("scene", [many_clean, mixed_cells])
@pytest.mark.parametrize("count", [1, 5, 40])
def test_the_first_screen_has_at_most_180_words(opened, tmp_path, scene, count):
    page = opened(written(scene(count), tmp_path / "report.html"), 1280)
    text = page.evaluate(TEXT_OF_FIRST_SCREEN)
    words = [word for word in text.split() if re.search(r"[^\W_]", word)]
    assert len(words) <= MAX_WORDS_OF_FIRST_SCREEN


@in_browser
def test_a_print_is_short_and_cuts_no_figure(opened, full_page, tmp_path):
    page = opened(full_page, PRINTABLE_PIXELS[0])
    printed = page.pdf(format="A4")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) <= MAX_PRINTED_PAGES

    page.emulate_media(media="print")
    heights = page.evaluate(
        "[...document.querySelectorAll('figure')].map("
        "f => f.getBoundingClientRect().height)"
    )
    assert heights
    assert max(heights) <= PRINTABLE_PIXELS[1]
    assert page.evaluate(
        "[...document.querySelectorAll('figure')].every("
        "f => getComputedStyle(f).breakInside === 'avoid')"
    )
