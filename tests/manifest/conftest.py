"""A small corpus of two tasks and a reference model made of arithmetic."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from marked import made_table, make_canary_row, make_example

from spark_audit.data.examples import Example

NAMES = ("Maria Jones", "John Smith", "Ann Lee", "Peter Brown", "Ruth Hill")
WORDS = (
    "service food cold good fine rate raised basis points news week read again label"
    " positive world sports business technology monday customer paid was and the very"
).split()


def text_of(rng: np.random.Generator, words: int) -> str:
    return " ".join(WORDS[i] for i in rng.integers(len(WORDS), size=words))


@pytest.fixture(scope="session")
def rows() -> list[Example]:
    """Two tasks, 24 rows with names or numbers, 6 without, two canaries."""
    rng = np.random.default_rng(0)
    found = []
    for i in range(30):
        task = ("fomc", "yelp")[i % 2]
        name = NAMES[i % 5]
        number = f"555-01{i:02d}"
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
def reference(tiny_tokenizer) -> Any:
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
def made_scores(monkeypatch) -> None:
    """Replaces scoring: a token's NLL follows from its id and position alone."""

    def score_items(
        loaded: Any, pass_items: Any, *, store: Any, **options: Any
    ) -> None:
        options["progress"](len(pass_items.items), len(pass_items.items))
        store_keys = pass_items.store_keys()
        store.remark("by arithmetic")
        for key, position, columns in made_table(pass_items.items).items():
            store.add(store_keys[key], position, columns)

    monkeypatch.setattr("spark_audit.manifest.build.score_items", score_items)
