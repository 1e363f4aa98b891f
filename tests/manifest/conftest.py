"""A small corpus of two tasks and a reference model made of arithmetic."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spark_audit.data.canaries import draw_parts, render
from spark_audit.data.examples import Canary, Example, Span
from spark_audit.manifest.covariates import SCORES, Corpus
from spark_audit.manifest.layout import Layout
from spark_audit.manifest.selection import counts_by_task
from spark_audit.scoring.slices import Slice
from spark_audit.scoring.table import TokenTable

NAMES = ("Maria Jones", "John Smith", "Ann Lee", "Peter Brown", "Ruth Hill")
WORDS = (
    "service food cold good fine rate raised basis points news week read again label"
    " positive world sports business technology monday customer paid was and the very"
).split()


def text_of(rng: np.random.Generator, words: int) -> str:
    return " ".join(WORDS[i] for i in rng.integers(len(WORDS), size=words))


@pytest.fixture(scope="session")
def make_example() -> Callable[..., Example]:
    """``make_example(id, text, pii=..., task=..., split=...)``: spans found by text.

    ``pii`` maps a string of the text to its type; the first place counts.
    """

    def make(
        key: str,
        prompt: str,
        response: str = " good",
        *,
        pii: dict[str, str] | None = None,
        task: str = "yelp",
        split: Any = "train",
        source: str | None = None,
        template: Any = None,
    ) -> Example:
        text = prompt + response
        spans = [
            Span(text.index(string), text.index(string) + len(string), kind)
            for string, kind in (pii or {}).items()
        ]
        return Example(
            id=key,
            task=task,
            prompt=prompt,
            response=response,
            split=split,
            source_id=source or key,
            spans=tuple(spans),
            template=template,
        )

    return make


@pytest.fixture(scope="session")
def make_canary_row() -> Callable[..., Example]:
    """``make_canary_row(id, canary="c0", seed=1, split="train")``."""

    def make(
        key: str,
        *,
        canary: str = "c0",
        seed: int = 1,
        dose: int = 1,
        split: Any = "train",
        task: str = "yelp",
        before: str = "The food was fine. ",
    ) -> Example:
        sentence, spans = render("record", draw_parts(seed))
        at = len(before)
        held = Canary(canary, "record", dose, split == "test", seed)
        return Example(
            id=key,
            task=task,
            prompt=f"{before}{sentence} Label:",
            response=" good",
            split=split,
            source_id=key,
            spans=tuple(
                Span(s.start + at, s.end + at, s.type, "injected", s.part)
                for s in spans.values()
            ),
            canary=held,
        )

    return make


@pytest.fixture(scope="session")
def rows(
    make_example: Callable[..., Example], make_canary_row: Callable[..., Example]
) -> list[Example]:
    """Two tasks, 24 rows with names or numbers, 6 without, two canaries."""
    rng = np.random.default_rng(0)
    found = []
    for i in range(30):
        task = ("fomc", "yelp")[i % 2]
        name, number = NAMES[i % 5], f"555-01{i:02d}"
        known = "" if i % 5 == 4 else f" Ask {name} at {number}."
        prompt = f"Text: {text_of(rng, 14)}.{known} {text_of(rng, 10)}\nLabel:"
        pii = {name: "NAME", number: "PHONE"} if known else {}
        split = "test" if i % 3 == 2 else "train"
        found.append(
            make_example(f"{task}-{i:02d}", prompt, pii=pii, task=task, split=split)
        )
    found += [
        make_canary_row("canary-a", task="fomc", before=f"{text_of(rng, 5)}. "),
        make_canary_row("canary-b", before=f"{text_of(rng, 5)}. "),
        make_canary_row(
            "canary-c", canary="c1", seed=2, dose=0, split="test", before="Bad food. "
        ),
    ]
    return found


@pytest.fixture(scope="session")
def reference(tiny_tokenizer: Any) -> Any:
    """What ``build_manifest`` needs of a loaded base."""
    return SimpleNamespace(
        name="base",
        source="arithmetic",
        format="none",
        base=None,
        base_sha256="a" * 64,
        tokenizer=tiny_tokenizer,
        architecture="Arithmetic",
        shape={},
        usable=np.ones(300, dtype=bool),
        max_positions=256,
        dtype="float32",
        weights_sha256="a" * 64,
        tokenizer_sha256="b" * 64,
        model_id="c" * 64,
        notes=(),
    )


@pytest.fixture
def made_scores(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replaces scoring; returns the options of every call.

    A token's NLL follows from its id and position alone.
    """
    calls: list[dict[str, Any]] = []

    def score_slices(loaded: Any, texts: Sequence[Any], **options: Any) -> Any:
        calls.append(options)
        if options.get("progress") is not None:
            options["progress"](len(texts), len(texts))
        places = {i: text.key for i, text in enumerate(texts)}
        return [Slice(places, made_table(texts), ("by arithmetic",))]

    monkeypatch.setattr("spark_audit.manifest.build.score_slices", score_slices)
    return calls


@pytest.fixture(scope="session")
def make_corpus() -> Callable[[Sequence[Layout], TokenTable], Corpus]:
    """``make_corpus(rows, table)``: rows and the scores that a table has of them."""

    def make(rows: Sequence[Layout], table: TokenTable) -> Corpus:
        first = np.cumsum([0, *(len(row.encoding) for row in rows)])
        scores = np.zeros(first[-1], SCORES)
        scores["nll"] = np.nan
        for start, row in zip(first.tolist(), rows, strict=False):
            if row.example.id not in table:
                continue
            own = table.rows(row.example.id)
            for name in SCORES.names or ():
                scores[name][start + table.position[own]] = table.columns[name][own]
        counts = np.asarray(sum(counts_by_task(rows, 300).values()))
        return Corpus(rows, scores, counts=counts)

    return make


def made_nll(token: int, position: int) -> float:
    digest = hashlib.sha256(f"{token} {position}".encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32 * 6


def made_table(items: Sequence[Any]) -> TokenTable:
    parts = []
    for one in items:
        pairs = zip(one.ids[1:].tolist(), one.positions[1:].tolist(), strict=True)
        nll = np.array([made_nll(*pair) for pair in pairs], np.float32)
        columns = {
            "nll": nll,
            "rank_lo": (1 + nll * 7).astype(np.int32),
            "mean_logp": -nll / 2,
        }
        parts.append((one.key, one.positions[1:], columns))
    return TokenTable.from_items(parts)


@pytest.fixture(scope="session")
def make_table() -> Callable[[Sequence[Any]], TokenTable]:
    """``make_table(items)``: their scores by the arithmetic reference."""
    return made_table
