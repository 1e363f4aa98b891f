"""Many texts in slices: the scores of one go, whatever interrupted it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scored_by_hand import make_items, make_loaded
from tiny_models import make_model

from spark_audit.scoring import slices, store
from spark_audit.scoring.items import Item
from spark_audit.scoring.passes import plain
from spark_audit.scoring.score import score
from spark_audit.scoring.slices import score_slices
from spark_audit.scoring.store import Store
from spark_audit.scoring.table import TokenTable

LENGTHS = (12, 30, 7, 25, 18, 40, 9, 1, 33, 12, 21, 28, 15, 38, 5)


@pytest.fixture(scope="module")
def loaded():
    return make_loaded(make_model("llama"))


@pytest.fixture(scope="module")
def items():
    found: list[Item] = make_items(LENGTHS)
    return [*found, replace(found[3], key="again")]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch):
    """Some batches a slice, and all that was scored is kept at once."""
    monkeypatch.setattr(slices, "SLICE_TOKENS", 60)
    monkeypatch.setattr(store, "FLUSH_SECONDS", 0.0)


class Fed:
    """The plain pass, which counts what it is given and may be interrupted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self.most = 10**9
        before = plain.run

        def run(loaded: Any, model: Any, items: Any, task: Any) -> Any:
            for item, columns in before(loaded, model, items, task):
                if len(self.seen) == self.most:
                    raise KeyboardInterrupt
                self.seen.append(item.key)
                yield item, columns

        monkeypatch.setattr(plain, "run", run)


@pytest.fixture
def fed(monkeypatch):
    return Fed(monkeypatch)


def scored(
    loaded: Any, items: list[Item], folder: Path | None = None, **options: Any
) -> dict[int, Any]:
    """Text -> its columns, of all slices."""
    kept = None if folder is None else Store(folder, own=True)
    found = {}
    for part in score_slices(loaded, items, store=kept, **options):
        for number, key in part.places.items():
            assert number not in found
            found[number] = columns(part.table, key)
    assert sorted(found) == list(range(len(items)))
    return found


def columns(table: TokenTable, key: str) -> dict[str, list[float]]:
    own = table.rows(key)
    found = {name: values[own].tolist() for name, values in table.columns.items()}
    return {**found, "position": table.position[own].tolist()}


def test_progress_is_over_all_texts_and_ends_at_its_total(loaded, items):
    told: list[tuple[int, int]] = []
    scored(loaded, items, progress=lambda *done: told.append(done))
    total = sum(LENGTHS)  # the last text stands twice
    assert {of for _, of in told} == {total}
    assert told[-1] == (total, total)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


@pytest.mark.parametrize("most", range(1, len(LENGTHS), 3))
def test_what_was_interrupted_goes_on_with_the_same_scores(
    loaded, items, fed, tmp_path, most
):
    expected = scored(loaded, items)
    order = fed.seen
    fed.seen, fed.most = [], most
    with pytest.raises(KeyboardInterrupt):
        scored(loaded, items, tmp_path)
    fed.seen, fed.most = [], 10**9
    assert scored(loaded, items, tmp_path) == expected
    # Whole slices are done again, and none that had been finished.
    assert fed.seen == order[len(order) - len(fed.seen) :]
    assert len(fed.seen) < len(order) or most < 4
    fed.seen = []
    assert scored(loaded, items, tmp_path) == expected
    assert fed.seen == []


@pytest.mark.parametrize("other", ["text", "batch size", "model", "versions"])
def test_slices_of_anything_else_are_not_used(
    loaded, items, fed, tmp_path, other, monkeypatch
):
    scored(loaded, items, tmp_path)
    order, fed.seen = fed.seen, []
    changed, model, options = items, loaded, dict[str, Any]()
    if other == "text":
        changed = items[:-2]
    elif other == "batch size":
        options = {"batch_size": 3}
    elif other == "model":
        model = replace(loaded, model_id="d" * 64)
    with monkeypatch.context() as patched:
        if other == "versions":
            patched.setattr(slices, "versions", lambda: {"torch": "0"})
        scored(model, changed, tmp_path, **options)
    assert sorted(fed.seen) == sorted(one.key for one in changed[: len(order)])
    fed.seen = []
    scored(loaded, items, tmp_path)
    assert fed.seen == []


def test_a_store_that_commands_share_is_used_for_any_texts(
    loaded, items, fed, tmp_path
):
    score(loaded, items[:6], store=Store(tmp_path))
    fed.seen = []
    for _ in score_slices(loaded, items[:6], store=Store(tmp_path)):
        pass
    assert fed.seen == []
