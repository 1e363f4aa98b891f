"""The attack on token scores: with the model, a token's NLL is as good as its word.

Whoever has the base model goes through a text from left to right, and keeps at each
place the few tokens whose NLL is the figure that a file holds.
"""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

Figure = tuple[float, float] | None
"""The least and the largest NLL that a figure can stand for; none: unknown."""

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
ENOUGH = 4
"""Tokens in a row from which a text counts as recovered: by chance one has two."""


def figure(text: object) -> Figure:
    """What a written number stands for, to its last digit; whole: micro-nats."""
    text_found = str(text).strip()
    if not _NUMBER.fullmatch(text_found):
        return None
    value = float(text_found)
    digits = len(text_found.partition(".")[2])
    if not digits:
        if value < 100:
            return None
        value, digits = value / 1e6, 6
    # Beyond some digits it is the machine's rounding that limits; some are rounded
    # twice.
    slack = 0.5 * 10.0 ** -min(digits, 4) + 6e-5
    return value - slack, value + slack


class Attacker:
    """Has the model with its tokenizer, and nothing else."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.model = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.start = tuple(self.tokenizer("")["input_ids"])
        first = self.nlls([self.start])[0]
        self._first, self._second = (
            first,
            self.nlls([(*self.start, token) for token in range(len(first))]),
        )

    def nlls(self, texts: Sequence[tuple[int, ...]]) -> np.ndarray:
        """NLL of every token after each of some texts of one length."""
        import torch

        with torch.inference_mode():
            logits = self.model(torch.tensor(texts)).logits[:, -1].double()
            return np.asarray(-torch.log_softmax(logits, -1))

    def decode(
        self, figures: Sequence[Figure], *, known: Sequence[int] = (), beam: int = 16
    ) -> tuple[int, ...]:
        """The likeliest text with these figures, as far as there is any.

        Parameters
        ----------
        figures
            Of the tokens after ``known``, which stand behind the start of a text.
        """
        before = (*self.start, *known)
        candidates: list[tuple[float, tuple[int, ...]]] = [(0.0, before)]
        for figure_range in figures:
            low, high = (0.0, np.inf) if figure_range is None else figure_range
            nll = self.nlls([ids for _, ids in candidates])
            rows, tokens = np.nonzero((nll >= low) & (nll <= high))
            if not len(rows):
                break
            total = np.array([cost for cost, _ in candidates])[rows] + nll[rows, tokens]
            best = np.argsort(total, kind="stable")[:beam]
            candidates = [
                (float(total[k]), (*candidates[rows[k]][1], int(tokens[k])))
                for k in best
            ]
        return candidates[0][1][len(before) :]

    def beginnings(self, figures: Sequence[Figure]) -> Iterator[int]:
        """Places where figures begin that could be those of a text, by two tokens."""
        for index, (one, two) in enumerate(zip(figures, figures[1:], strict=False)):
            if one is None or two is None:
                continue
            first = (self._first >= one[0]) & (self._first <= one[1])
            rest = self._second[first]
            if ((rest >= two[0]) & (rest <= two[1])).any():
                yield index

    def recovered(self, path: Path, texts: Sequence[str]) -> set[str]:
        """Those of some texts whose beginning a file gives back."""
        ids = {text: self._ids(text) for text in texts}
        found: set[str] = set()
        for figures in sequences(path):
            for index in self.beginnings(figures):
                read = self.decode(figures[index : index + 12])
                found |= {
                    text
                    for text, own_ids in ids.items()
                    if len(read) >= ENOUGH and own_ids[:ENOUGH] == read[:ENOUGH]
                }
        return found

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text)["input_ids"])[len(self.start) :]

    def fits(self, ids: Sequence[int], figures: Sequence[Figure]) -> bool:
        """Whether a whole text, from its start on, could have these figures."""
        import torch

        with torch.inference_mode():
            logits = self.model(torch.tensor([list(ids)])).logits[0, :-1].double()
            nll = -torch.log_softmax(logits, -1)
        for index, figure_range in enumerate(figures[1:]):
            if (
                figure_range is not None
                and not figure_range[0]
                <= float(nll[index, ids[index + 1]])
                <= figure_range[1]
            ):
                return False
        return True

    def singled_out(
        self, ids: Sequence[int], hidden: Sequence[int], figures: Sequence[Figure]
    ) -> bool:
        """Whether figures tell what stands at hidden places from something else."""
        assert self.fits(ids, figures)
        rng = np.random.default_rng(0)
        for _ in range(20):
            other_ids = list(ids)
            for position in hidden:
                other_ids[position] = int(rng.integers(3, len(self._first)))
            if not self.fits(other_ids, figures):
                return True
        return False


# --- figures of a file ----------------------------------------------------------------


def sequences(path: Path) -> Iterator[list[Figure]]:
    """Every row of numbers that a file could be read as: columns, lists, all of it."""
    if path.suffix == ".parquet":
        known = pq.read_table(path).to_pydict()
        yield from ([figure(v) for v in column] for column in known.values())
        return
    text = path.read_text("utf-8")
    if path.suffix == ".json":
        columns: dict[str, list[Any]] = {}
        _walk(json.loads(text), "", columns)
        yield from ([figure(v) for v in column] for column in columns.values())
        return
    if path.suffix == ".csv":
        tables = [list(csv.reader(text.splitlines()))]
    elif path.suffix == ".html":
        tables = tables_of(text)
    else:
        lines = [re.split(r"\s*[|&]\s*", line) for line in text.splitlines()]
        tables = [[line for line in lines if len(line) > 1]]
    for table in tables:
        yield from ([figure(v) for v in column] for column in zip_longest(*table))
    yield [figure(number) for number in _NUMBER.findall(text)]


def _walk(value: Any, name: str, columns: dict[str, list[Any]]) -> None:
    """Values by the names above them, whatever the place in a list."""
    if isinstance(value, dict):
        for key, item in value.items():
            _walk(item, f"{name}/{key}", columns)
    elif isinstance(value, list):
        for item in value:
            _walk(item, f"{name}/*", columns)
    else:
        columns.setdefault(name, []).append(value)


def tables_of(page: str) -> list[list[list[str]]]:
    """Cells of a page's tables by row; titles and data attributes as one more table."""
    return _Tables(page).found


class _Tables(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[list[list[str]]] = []
        self._attributes: list[list[str]] = []
        self._open = False
        self.feed(text)
        self.found.append(self._attributes)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = [str(value) for name, value in attrs if name[:5] in ("title", "data-")]
        self._attributes += [_NUMBER.findall(value) for value in values]
        if tag == "table":
            self.found.append([])
        elif tag == "tr" and self.found:
            self.found[-1].append([])
        elif tag in ("td", "th") and self.found:
            self.found[-1][-1].append("")
            self._open = True

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._open:
            self.found[-1][-1][-1] += data


# --- differences of figures -----------------------------------------------------------


def lines_of(path: Path) -> list[dict[str, str]]:
    """A CSV's lines by column; its parts as ``report.json`` names them."""
    lines = list(csv.DictReader(path.read_text("utf-8").splitlines()))
    for line in lines:
        if "group_kind" in line:
            line["group"] = f"{line['group_kind']}:{line['group_value']}".rstrip(":")
    return lines


def left_over(
    rows: Sequence[dict[str, str]], kind: str
) -> tuple[float, int, int] | None:
    """What the pooled figure leaves of a partition whose shown groups are taken off.

    Returns
    -------
    tuple
        Mean NLL of the rest, its tokens, and the clusters that it is of; none where
        nothing is left.
    """
    groups = [row for row in rows if row["group"].startswith(f"{kind}:")]
    (pooled,) = (row for row in rows if row["group"] == "pooled")
    shown_rows = [row for row in groups if row["value"]]
    tokens = int(pooled["n"]) - sum(int(row["n"]) for row in shown_rows)
    if not tokens or not pooled["value"]:
        return None
    total = float(pooled["value"]) * int(pooled["n"])
    total -= sum(float(row["value"]) * int(row["n"]) for row in shown_rows)
    clusters = sum(int(row["clusters"]) for row in groups if not row["value"])
    return total / tokens, tokens, clusters
