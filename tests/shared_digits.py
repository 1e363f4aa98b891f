"""Numbers in files that are made to be shared, and how many digits they have."""

import re
from collections.abc import Iterator
from pathlib import Path

MOST_DIGITS = 6
TEXT = (".csv", ".md", ".html", ".tex", ".svg", ".json", ".xml", ".sarif")

_FLOAT = re.compile(r"(?<![\w.])-?\d+\.\d+(?:e[+-]?\d+)?(?![\w.])", re.IGNORECASE)
_GEOMETRY = re.compile(
    r"<script.*?</script>|<style.*?</style>|<svg.*?</svg>", re.DOTALL
)
"""What a page draws: places on paper, of what the rounded report holds."""
_SVG_WORDS = re.compile(r"<!--(.*?)-->|<text[^>]*>(.*?)</text>", re.DOTALL)


def digits(number: str) -> int:
    """Significant digits of a written number."""
    mantissa = re.split("[eE]", number)[0].lstrip("-").replace(".", "")
    return len(mantissa.lstrip("0"))


def long_numbers(path: Path) -> Iterator[str]:
    """Numbers of a shared file that have more digits than are shared."""
    if path.suffix not in TEXT:
        return
    text = path.read_text("utf-8")
    if path.suffix == ".html":
        text = _GEOMETRY.sub("", text)
    elif path.suffix == ".svg":
        text = " ".join(map(" ".join, _SVG_WORDS.findall(text)))
    for number in _FLOAT.findall(text):
        if digits(number) > MOST_DIGITS:
            yield number
