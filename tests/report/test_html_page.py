"""The page holds the report's figures, nothing is loaded, and its controls work."""

import base64
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from browsers import in_browser, started_browser
from made_reports import (
    checkpoint,
    figure,
    guard,
    made_report,
    manifest_facts,
    said,
)

from spark_audit import sentences
from spark_audit.report.figures import drawing
from spark_audit.report.prepared import PreparedReport
from spark_audit.report.writers import pages
from spark_audit.report.writers.writer import WriterInput
from spark_audit.results import (
    Finding,
    Report,
)

NAMES = ("base", "er[1]", "er[2]", "spark+ul")
EVIL = '<script>alert("evil")</script>'
PLACES = (
    "matched|nll_pii||pooled",
    "matched|nll_control||pooled",
    "matched|delta_sel||pooled",
    "matched|delta_sel|change|pooled",
    "matched|delta_sel||type:EMAIL",
    "rank|top1_rate|pii|pooled",
    "rank|top1_rate|control|pooled",
    "rank|top1_rate|pii|task:fomc",
    "canary|exposure_mean|full|pooled",
    "mia|auc|loss|pooled",
    "utility|last||pooled",
)


def a_report(**columns: Any) -> Report:
    rows = [
        figure(name, column, (3 - k) * 0.7 + 1.3 * (k == 1) + 0.01 * j)
        for j, column in enumerate(PLACES)
        for k, name in enumerate(NAMES)
    ]
    rows += [
        figure("er", column, 1.125, interval_over="both", interval_method="percentile")
        for column in ("matched|delta_sel", "matched|nll_pii")
    ]
    void = {"base": "invalid", "er[1]": "not_resolvable", "er[2]": "insensitive"}
    rows += [
        figure(name, "odd|score", 0.5, status=void_name)
        for name, void_name in void.items()
    ]
    rows.append(figure("spark+ul", "odd|score", None, note=f"no span {EVIL}"))
    tested = {"p": 0.0312, "p_adjusted": 0.0456, "mde": 0.21, "family": "primary"}
    contrasts = [
        figure(name, f"matched|did||{group}", value, baseline="er[1]", **tested)
        for name, value in (("er[2]", 0.05), ("spark+ul", 0.92))
        for group in ("pooled", "task:fomc")
    ]
    report_fields: dict[str, Any] = {
        "command": ["spark-audit", "all", f"--x={EVIL}"],
        "versions": {"numpy": "2"},
        "settings": {"baseline": "er[1]", "reference": "base", "limit": None},
        "manifest": manifest_facts(f"m {EVIL}"),
        "checkpoints": [
            checkpoint(name, source="https://example.org/model", notes=["a note", EVIL])
            for name in NAMES
        ],
        "findings": [
            said(audit, name, "moved", text)
            for audit, name, text in (
                *(
                    ("matched", f"er[{k}]", f"found {k / 8} [0, 2] of `x`.")
                    for k in range(1, 9)
                ),
                ("rank", "", f"something {EVIL} was seen."),
                ("gone", "", "an audit without any figure."),
            )
        ],
        "results": rows,
        "contrasts": contrasts,
        "guards": [
            guard("alright", "is well", True),
            guard("doubtful", "is near", None),
            guard("broken", EVIL, of="base"),
        ],
        "caveats": ["Nothing else can be concluded."],
        "tables": {
            "balance": [{"covariate": "length", "smd_before": 1.5, "smd_after": 0.01}],
            "matching_by_type": [
                {"type": "SSN", "matched": 4, "unmatched": 2, "reasons": "2 too far"}
            ],
            "matched_placebo": [{"checkpoint": n, "draws": 7} for n in NAMES],
        },
        "timing": {"loading": 1.25},
    }
    return made_report(**(report_fields | columns))


@pytest.fixture
def report() -> Report:
    return a_report()


def render(report: Report) -> str:
    how = WriterInput(partial(drawing.drawings, report))
    (page_path,) = pages.write_page(PreparedReport(report), Path(), how)
    return str(page_path.content)


@pytest.fixture
def undrawn(monkeypatch) -> None:
    """Drawings are tested by themselves; most tests of the page need none."""
    monkeypatch.setattr(drawing, "drawings", lambda report: [])


@cache
def rendered(report: str) -> str:
    """The page of a report in JSON; drawing takes seconds."""
    return render(Report.model_validate_json(report))


# --- reading the page -----------------------------------------------------------------

VOID = {"meta", "link", "br", "input", "hr", "img"}


class Page(HTMLParser):
    """The page as a browser would refuse to mend it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.comments: list[str] = []
        self.words: list[str] = []
        self._cell: list[str] | None = None
        self._table = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.elements.append((tag, attributes))
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self._table = attributes.get("id", "")
            self.tables[self._table] = []
        if tag == "tr":
            self.tables[self._table].append([])
        if tag in ("td", "th"):
            self._cell = []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"
        if tag in ("td", "th") and self._cell is not None:
            self.tables[self._table][-1].append("".join(self._cell))
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)
        if self._cell is not None:
            self._cell.append(data)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


def test_page_is_well_formed_and_labelled(report):
    page = Page(rendered(report.model_dump_json()))
    assert len(page.ids) == len(set(page.ids))
    named = set(page.ids)
    for tag, attributes in page.elements:
        for key in ("for", "aria-labelledby", "aria-describedby"):
            assert set(attributes.get(key, "").split()) <= named
        if attributes.get("href", "").startswith("#"):
            assert attributes["href"][1:] in named
        if tag == "th":
            assert attributes["scope"] in ("col", "row")
        if attributes.get("role") in ("region", "group"):
            assert "aria-label" in attributes or "aria-labelledby" in attributes
    tags = [tag for tag, _ in page.elements]
    assert tags.count("h1") == tags.count("main") == tags.count("nav") == 1
    assert tags.count("table") == tags.count("caption")
    inputs = [
        attributes["id"]
        for tag, attributes in page.elements
        if tag in ("input", "select")
    ]
    labels = {attributes["for"] for tag, attributes in page.elements if tag == "label"}
    assert set(inputs) == labels


def test_nothing_is_loaded_and_only_the_page_s_own_script_may_run(report):
    text = rendered(report.model_dump_json())
    page = Page(text)
    for _tag, attributes in page.elements:
        for key in ("src", "href", "xlink:href", "srcset", "action", "data"):
            assert (
                attributes.get(key, "#").startswith("#") or attributes[key] == "data:,"
            )
        assert not [key for key in attributes if key.startswith("on")]
        assert "http" not in attributes.get("style", "")
    style = "".join(re.findall(r"<style>(.*?)</style>", text, re.S))
    assert "url(" not in style
    assert "@import" not in style
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = (
        attributes["content"]
        for tag, attributes in page.elements
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}'" in policy
    # A source that looks like an address stays text.
    assert "https://example.org/model" in page.text


def test_what_the_report_says_is_text_never_markup(report):
    table: list[dict[str, Any]] = [{"checkpoint": EVIL, EVIL: EVIL}]
    evil_fields = {"caveats": [EVIL], "tables": report.tables | {"evil": table}}
    text = render(report.model_copy(update=evil_fields))
    assert text.count("<script>") == 1
    assert EVIL not in text
    assert text.count("&lt;script&gt;") > 10
    assert Page(text).text.count(EVIL) > 10


def quiet(k: int) -> Finding:
    name = NAMES[k % len(NAMES)]
    return said("rank", name, "moved", f"nothing {k}.")


@pytest.mark.usefixtures("undrawn")
def test_no_detection_is_ever_folded(report):
    loud = [said("matched", "er", "memory", f"loud {k}") for k in range(12)]
    findings = [*(quiet(k) for k in range(20)), *loud]
    text = render(report.model_copy(update={"findings": findings}))
    folded = re.findall(r"<details.*?</details>", text, re.DOTALL)
    unfolded = re.sub(r"<details.*?</details>", "", text, flags=re.DOTALL)
    for k in range(len(loud)):
        assert f">Loud {k}</dd>" in unfolded
    assert any("Nothing 0." in folded_text for folded_text in folded)
    assert "Nothing 0." not in unfolded


def contrast(one: str, other: str) -> float:
    """Contrast of two colours, WCAG 2.2."""

    def luminance(colour: str) -> float:
        channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        r, g, b = (
            p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4
            for p in channels
        )
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_read():
    templates = files("spark_audit.report.writers").joinpath("templates")
    style = templates.joinpath("page.css").read_text("utf-8")
    themes = re.findall(r"color-scheme: (\w+);(.*?)\}", style, re.S)
    assert [name for name, _ in themes] == ["light", "dark"]
    for name, body in themes:
        colours = dict(re.findall(r"--([\w-]+): (#\w{6})", body))
        papers = [colours["paper"], colours["raised"]]
        for ink in ("ink", "muted", "link", "alarm", "warn"):
            assert all(contrast(colours[ink], paper) >= 4.5 for paper in papers), ink
        assert contrast(colours["alarm"], colours["alarm-paper"]) >= 4.5
        assert contrast(colours["ink"], colours["alarm-paper"]) >= 4.5
        assert contrast(colours["warn"], colours["warn-paper"]) >= 4.5
        light = pages.LIGHT
        dark = pages.DARK
        for series in light if name == "light" else dark:
            assert contrast(series, colours["paper"]) >= 3


@pytest.mark.usefixtures("undrawn")
def test_a_table_that_is_cut_to_nothing_names_its_file_and_shows_no_empty_table():
    records = [{"checkpoint": f"c{k}", "draws": k} for k in range(60)]
    text = render(a_report(tables={"matched_placebo": records}))
    page = Page(text)
    cut_to_nothing = sentences.render("page.cut_all", count=60)
    assert f"{cut_to_nothing} tables/matched_placebo.csv" in page.text
    assert "--format csv" in page.text
    assert "table-matched_placebo" not in page.ids


# --- in a browser ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as chromium:
        yield chromium


class Opened:
    """The page in a browser, and all that it complained of or asked for."""

    def __init__(self, browser: Any, path: Path, **context: Any) -> None:
        self.context = browser.new_context(reduced_motion="reduce", **context)
        self.page = self.context.new_page()
        self.url = path.as_uri()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda m: self.said.append(f"{m.type}: {m.text}"))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.open("")

    def open(self, state: str) -> None:
        # A change of the fragment alone would not load the page again.
        self.page.goto("about:blank")
        self.page.goto(self.url + state)

    def close(self) -> None:
        self.context.close()
        assert self.said == []
        # The address itself, whatever stands behind its "#".
        addresses = {url.partition("#")[0] for url in self.asked} - {"about:blank"}
        assert addresses == {self.url}

    def count(self, selector: str) -> int:
        return int(self.page.locator(f"{selector} >> visible=true").count())


@pytest.fixture
def open_page(browser, report, tmp_path) -> Iterator[Callable[..., Opened]]:
    opened: list[Opened] = []
    path = tmp_path / "a folder#1" / "report.html"

    def open_it(**context: Any) -> Opened:
        if not path.exists():
            os.makedirs(path.parent)
            text = rendered(report.model_dump_json())
            path.write_text(text, "utf-8")
        opened.append(Opened(browser, path, **context))
        return opened[-1]

    yield open_it
    for context in opened:
        context.close()


def unfold(page: Any) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")


def column(page: Any, table: str, number: int) -> list[str]:
    rows = page.locator(f"{table} tbody tr").all()
    return [row.locator("th, td").nth(number - 1).inner_text() for row in rows]


@in_browser
def test_tables_sort_by_mouse_and_keyboard(open_page):
    page = open_page().page
    unfold(page)
    table = "#table-0"
    head = page.locator(f"{table} thead th").nth(2)
    before = column(page, table, 1)
    values = [float(x.split()[0]) for x in column(page, table, 3) if x != "-"]
    assert values != sorted(values)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    found = column(page, table, 3)
    assert found[-1] == "-", "what is missing stands last"
    assert [float(x.split()[0]) for x in found[:-1]] == sorted(values)
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    found = column(page, table, 3)
    assert [float(x.split()[0]) for x in found[:-1]] == sorted(values, reverse=True)
    assert found[-1] == "-"
    page.keyboard.press("Space")
    assert head.get_attribute("aria-sort") is None
    assert column(page, table, 1) == before
    page.locator(f"{table} thead th").first.locator("button").focus()
    page.keyboard.press("Enter")
    assert column(page, table, 1) == sorted(before)
    # Cells are broken around intervals, and lose nothing by it.
    cells = page.locator("table.sortable td").all_text_contents()
    assert "0.050 [-0.075, 0.300], p (primary) adjusted 0.046, MDE 0.210" in cells


@in_browser
def test_checkpoints_are_switched_in_tables_and_drawings(open_page):
    opened = open_page()
    page = opened.page
    unfold(page)
    rows = 'tr[data-checkpoint="er"]'
    marks = 'svg [data-checkpoint^="er"]'
    others = 'tr[data-checkpoint="base"]'
    assert opened.count(rows) > 3
    assert opened.count(marks) > 0
    n_opened = opened.count(others)
    page.locator('#bar input[value="er"]').uncheck()
    assert opened.count(".said [data-checkpoint^=er]") == 0
    assert opened.count(rows) == opened.count(marks) == 0
    assert opened.count(others) == n_opened
    assert page.locator("#status").inner_text() == "2 of 3 checkpoints shown"
    assert "off=er" in page.url
    # The address alone brings it back.
    opened.open(page.url.partition("report.html")[2])
    assert not page.locator('#bar input[value="er"]').is_checked()
    assert opened.count(rows) == 0
    page.locator("#none").click()
    assert opened.count("tr[data-checkpoint]") == 0
    opened.open(page.url.partition("report.html")[2])
    assert opened.count("tr[data-checkpoint]") == 0
    page.locator("#all").click()
    unfold(page)
    assert opened.count(rows) > 3
    assert "off=" not in page.url


@in_browser
def test_a_link_inside_the_page_keeps_what_was_chosen(open_page):
    opened = open_page()
    page = opened.page
    page.locator('#bar input[value="spark+ul"]').uncheck()
    page.locator('.contents a[href="#guards"]').click()
    assert page.url.endswith(f"#guards&off={quote('spark+ul', safe='')}")
    assert page.evaluate("document.activeElement.id") == "guards"
    assert page.evaluate(
        "Math.abs(document.querySelector('#guards').getBoundingClientRect().top) < 120"
    )
    page.locator('.contents a[href="#limits"]').click()
    page.go_back()
    assert "#guards&" in page.url
    # An address that somebody mended by hand does no harm.
    opened.open("#off=%E0%A4&other=pink&off=nobody&=")
    unfold(page)
    assert opened.count("tr[data-checkpoint]") > 10
    # Skipping is the first thing that the keyboard reaches.
    opened.open("")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


@in_browser
def test_the_page_follows_the_colour_scheme_and_prints_on_white(open_page):
    paper = "getComputedStyle(document.body).backgroundColor"
    light, dark = (open_page(color_scheme=scheme).page for scheme in ("light", "dark"))
    assert light.evaluate(paper) == "rgb(255, 255, 255)"
    assert dark.evaluate(paper) != "rgb(255, 255, 255)"
    dark.emulate_media(media="print")
    assert dark.evaluate(paper) == "rgb(255, 255, 255)"


@in_browser
def test_a_phone_never_scrolls_the_page_sideways(open_page):
    opened = open_page(viewport={"width": 360, "height": 740})
    page = opened.page
    width = "document.scrollingElement.scrollWidth"
    assert page.evaluate(width) <= 360
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.locator(".hint").first.wait_for()
    assert page.evaluate(width) <= 360
    # What is wider scrolls in its own box, by keyboard too, and says so.
    wide = page.locator(".scroll[tabindex='0']")
    assert wide.count() > 1
    assert page.locator(".hint").count() == wide.count()
    assert page.evaluate(
        "[...document.querySelectorAll('.scroll')].every("
        "b => (b.scrollWidth > b.clientWidth + 1) === (b.tabIndex === 0))"
    )
    cut = page.evaluate(
        "[...document.querySelectorAll('main *, header *, nav *')].filter(e =>"
        " !e.closest('.scroll, .bar, .contents, svg, .unseen')"
        " && e.getBoundingClientRect().right > innerWidth + 1).length"
    )
    assert cut == 0


@in_browser
def test_without_script_all_is_there(open_page):
    opened = open_page(java_script_enabled=False)
    page = opened.page
    assert page.locator("tr[data-checkpoint]").count() > 10
    assert opened.count("svg") > 0
    for control in ("#bar", ".sort"):
        assert opened.count(control) == 0
    page.locator('.contents a[href="#guards"]').click()
    assert page.url.endswith("#guards")
