"""Links of the documentation lead to what exists; nothing is fetched."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import conf
import nbformat
import pytest
import references
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.anchors.index import slugify

ROOT = Path(__file__).parents[1]
PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("*/*.md"),
    *ROOT.glob("docs/*/*.md"),
    *ROOT.glob("docs/*.ipynb"),
    *ROOT.glob("reports/*/*.md"),
    *ROOT.glob("reports/claims/*/*.md"),
]
SENTENCES = [*ROOT.glob("spark_audit/**/*.toml"), *ROOT.glob("spark_audit/**/*.md")]


def page_text(path: Path) -> str:
    """Return a page as Markdown: cells of a notebook joined, templates filled in."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = nbformat.reads(text, as_version=4).cells
        return "\n\n".join(
            cell.source for cell in cells if cell.cell_type == "markdown"
        )

    name = path.relative_to(ROOT).with_suffix("").as_posix()
    if name in conf.TEMPLATES:
        source = [text]
        conf.rendered(None, name, source)
        return source[0]
    return text


@cache
def tokens_of(path: Path) -> tuple[Token, ...]:
    """Return the blocks of a page and what stands in their lines, in order."""
    blocks = MarkdownIt("commonmark").enable("table").parse(page_text(path))
    return tuple(part for block in blocks for part in (block, *(block.children or ())))


def links_of(path: Path) -> Iterator[str]:
    """Yield the targets of a page's links and pictures."""
    for token in tokens_of(path):
        target = token.attrs.get("href") or token.attrs.get("src")
        if target:
            yield str(target)


@cache
def anchors_of(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them.

    A heading that stands twice on a page gets a number the second time.
    """
    tokens = tokens_of(path)
    anchors: set[str] = set()
    for heading, line in zip(tokens, tokens[1:], strict=False):
        if heading.type != "heading_open":
            continue
        text = "".join(
            part.content
            for part in line.children or ()
            if part.type in ("text", "code_inline")
        )
        anchor = slugify(text)
        n_before = sum(
            re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", a) is not None for a in anchors
        )
        anchors.add(f"{anchor}-{n_before}" if n_before else anchor)
    return anchors


def fault_of(target: str, page: Path) -> str | None:
    """Return what is wrong with a link of a page, ``None`` if nothing is."""
    address = urlsplit(target)
    if address.scheme or address.netloc:
        return fault_of_address(target)

    path = page
    if address.path:
        path = (page.parent / unquote(address.path)).resolve()
    if not path.is_relative_to(ROOT):
        return "leaves the repository"
    if not path.exists():
        return "there is no such file"
    if address.fragment and path.suffix != ".html":
        return None if address.fragment in anchors_of(path) else "there is no such part"
    return None


HOST = re.compile(r"([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}", re.IGNORECASE)


def fault_of_address(target: str) -> str | None:
    """Return what is wrong with the form of an external address."""
    address = urlsplit(target)
    if address.scheme != "https":
        return "is not https"
    if not HOST.fullmatch(address.netloc):
        return "has no valid host"
    if not re.fullmatch(r"[\w./?=&%#~+:@,()!$;*'-]+", target, flags=re.ASCII):
        return "has a character that addresses do not have"
    if re.search(r"[.,;:]$|//", target.removeprefix("https://")):
        return "ends in punctuation or has an empty part"
    return None


@pytest.mark.parametrize(
    "page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_every_link_of_a_page_leads_to_what_exists(page):
    faults = {target: fault_of(target, page) for target in links_of(page)}
    assert {target: fault for target, fault in faults.items() if fault} == {}


def test_links_that_lead_nowhere_are_found():
    page = ROOT / "docs" / "reading.md"
    wrong = (
        *("no-such-page.md", "#no-such-part", "quickstart.md#no-such-part"),
        *("../../outside.md", "http://example.org/a", "https://example/a"),
        *("https://example.org/a.", "https://example.org//a", "ftp://example.org/a"),
    )
    right = (
        "quickstart.md#audit-a-chat-model",
        "https://example.org/a?b=c#d",
        "audits",
    )
    assert [target for target in wrong if not fault_of(target, page)] == []
    assert [target for target in right if fault_of(target, page)] == []
    # Headings of a page that a template makes, and one that stands twice.
    assert "spark-audit-gate" in anchors_of(ROOT / "docs" / "commands.md")


def test_pages_that_code_and_sentences_name_exist():
    texts = dict(references.sources())
    texts |= {path.name: path.read_text(encoding="utf-8") for path in SENTENCES}
    named = {
        (name, target)
        for name, text in texts.items()
        for target in re.findall(r"(?<![\w/])docs/[\w/-]+\.md(?:#[\w-]+)?", text)
    }
    assert named
    assert [one for one in named if fault_of(one[1], ROOT / "README.md")] == []
