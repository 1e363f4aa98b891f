from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scored_by_hand import make_items, make_loaded
from tiny_models import make_model

from spark_audit.data.encoding import encode
from spark_audit.errors import InputError
from spark_audit.scoring.drift import drift
from spark_audit.scoring.items import Item
from spark_audit.scoring.passes import plain
from spark_audit.scoring.score import item, score, score_items
from spark_audit.scoring.store import Store
from spark_audit.scoring.table import Pass, TokenTable

LENGTHS = (12, 30, 7, 25, 18, 40, 9, 1)


@pytest.fixture(scope="module")
def loaded():
    return make_loaded(make_model("llama"))


@pytest.fixture(scope="module")
def items():
    return make_items(LENGTHS)


def assert_same(one: TokenTable, two: TokenTable, *, atol: float = 0.0) -> None:
    assert one.ids == two.ids
    np.testing.assert_array_equal(one.position, two.position)
    for name, values in one.columns.items():
        np.testing.assert_allclose(values, two.columns[name], atol=atol, rtol=0)


class Counting:
    """The plain pass, with a list of the items it was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from spark_audit.scoring.passes import plain as engine

        self.seen: list[str] = []
        run = engine.run

        def count(loaded: Any, model: Any, items: Any, task: Any) -> Any:
            self.seen += [one.key for one in items]
            return run(loaded, model, items, task)

        monkeypatch.setattr(plain, "run", count)


def test_positions_index_the_full_tokenisation(loaded, tiny_tokenizer):
    (encoding,) = encode(tiny_tokenizer, ["Customer John Smith paid 42 dollars."])
    start = len(encoding) - 8
    end = len(encoding)
    one = item("x", encoding, (start, end))
    # The BOS is read in front of the cut text; it has no prediction of its own.
    assert one.ids[0] == encoding.ids[0]
    table = score(loaded, [one])[Pass()]
    assert table.position.tolist() == list(range(start, end))


def test_the_same_command_resumes(loaded, items, tmp_path, monkeypatch):
    counting = Counting(monkeypatch)
    whole = score(loaded, items)[Pass()]
    counting.seen.clear()
    first = score(loaded, items[:3], store=Store(tmp_path))[Pass()]
    counting.seen.clear()
    table = score(loaded, items, store=Store(tmp_path))[Pass()]
    assert sorted(counting.seen) == [one.key for one in items[3:]]
    assert_same(table, whole, atol=1e-5)
    for key in first.ids:
        np.testing.assert_array_equal(
            table.columns["nll"][table.rows(key)],
            first.columns["nll"][first.rows(key)],
        )
    counting.seen.clear()
    again = score(loaded, items, store=Store(tmp_path))[Pass()]
    assert counting.seen == []
    assert_same(again, table)


def test_workers_share_the_items_by_hash_and_each_sees_the_others(
    loaded, items, tmp_path, monkeypatch
):
    whole = score(loaded, items)[Pass()]
    counting = Counting(monkeypatch)
    parts = []
    table = None
    for worker in range(3):
        counting.seen.clear()
        store = Store(tmp_path)
        pass_items = store.pass_items(loaded, items, Pass())
        score_items(loaded, pass_items, store=store, shard=(worker, 3))
        table = store.gather(pass_items.store_keys(), scoring_pass=Pass())
        parts.append(set(counting.seen))
    assert sum(map(len, parts)) == len(items)
    assert set().union(*parts) == {one.key for one in items}
    assert_same(table, whole, atol=1e-5)


def test_what_was_interrupted_goes_on_with_the_same_batches(
    loaded, items, tmp_path, monkeypatch
):
    monkeypatch.setattr("spark_audit.scoring.score.WINDOW", 3)
    monkeypatch.setattr("spark_audit.scoring.store.FLUSH_SECONDS", 0.0)
    counting = Counting(monkeypatch)

    def scored(store: Store, stop: int = 10**9) -> TokenTable:
        def tell(done: int, _: int) -> None:
            if done >= stop:
                raise KeyboardInterrupt

        pass_items = store.pass_items(loaded, items, Pass())
        score_items(loaded, pass_items, store=store, whole=True, progress=tell)
        return store.gather(pass_items.store_keys(), scoring_pass=Pass())

    whole = scored(Store(None))
    assert len(counting.seen) == len(items)
    with pytest.raises(KeyboardInterrupt):
        scored(Store(tmp_path), stop=sum(LENGTHS) // 2)
    counting.seen.clear()
    assert_same(scored(Store(tmp_path)), whole)
    # The first three, of the longest, were done.
    assert len(counting.seen) == len(items) - 3
    counting.seen.clear()
    assert_same(scored(Store(tmp_path)), whole)
    assert not counting.seen
    # Of three with one that is stored, all are scored again.
    score(loaded, items[:1], store=Store(tmp_path / "one"))
    counting.seen.clear()
    scored(Store(tmp_path / "one"))
    assert len(counting.seen) == len(items)


def test_items_with_the_same_tokens_are_scored_once(loaded, items, monkeypatch):
    counting = Counting(monkeypatch)
    twin = replace(items[1], key="twin")
    table = score(loaded, [*items, twin])[Pass()]
    assert len(counting.seen) == len(items)
    np.testing.assert_array_equal(
        table.columns["nll"][table.rows("twin")],
        table.columns["nll"][table.rows(items[1].key)],
    )


@pytest.mark.parametrize("shown", [True, False])
def test_progress_is_shown_when_asked_for(loaded, items, shown, capsys):
    tables = score(loaded, items, progress=shown)
    total = sum(item.n_tokens for item in items)
    told = capsys.readouterr().err
    assert (f"{total}/{total}" in told or f"{total:,}" in told) == shown
    assert bool(told) == shown
    assert repr(tables[Pass()]).startswith("TokenTable(8 items, ")
    assert repr(items[0]) == f"Item(key={items[0].key!r})"
    assert len(repr(loaded)) < 1000


def test_progress_counts_tokens_that_are_still_to_do(loaded, items, tmp_path):
    score(loaded, items[:2], store=Store(tmp_path))
    seen: list[tuple[int, int]] = []
    score(
        loaded,
        items,
        store=Store(tmp_path),
        batch_size=1,
        progress=lambda done, total: seen.append((done, total)),
    )
    total = sum(LENGTHS[2:])
    assert {t for _, t in seen} == {total}
    assert seen[-1][0] == total
    assert len(seen) == len(items) - 2
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"ids": np.full(300, 5, np.int32)},
            "300 tokens do not fit the context of 256",
        ),
        ({"ids": np.array([3, 299, 5], np.int32)}, "marked as no token"),
        ({"ids": np.array([3, 300, 5], np.int32)}, "vocabulary does not have"),
        ({"ids": np.array([3, -1, 5], np.int32)}, "vocabulary does not have"),
        ({"key": "t00"}, "the key occurs twice"),
    ],
)
def test_items_that_cannot_be_scored_are_named(change, message, loaded, items):
    usable = np.ones(300, dtype=bool)
    usable[299] = False
    checkpoint = replace(loaded, usable=usable)
    ids = change.get("ids", np.array([3, 4, 5], np.int32))
    positions = np.arange(len(ids), dtype=np.int32)
    bad = Item(change.get("key", "bad-one"), ids, positions)
    with pytest.raises(InputError, match=message) as caught:
        score(checkpoint, [items[0], bad])
    assert f"example {bad.key!r}" in str(caught.value)


def test_wrong_options_are_input_errors(loaded, items):
    with pytest.raises(InputError, match="^batch size: "):
        score(loaded, items, batch_size=0)
    with pytest.raises(InputError, match="'sing'"):
        score(loaded, items, passes=[Pass("sing")])


def test_drift_is_small_and_notices_a_score_that_depends_on_its_batch(
    loaded, items, monkeypatch
):
    assert drift(loaded, items)[0] < 1e-5
    from spark_audit.scoring.passes import plain as engine

    call = engine.Scorer.__call__

    def shifted(self: Any, batch: Any) -> Any:
        found = call(self, batch)
        for columns in found:
            columns["nll"] += np.float32(0.1 * (len(batch) > 1))
        return found

    monkeypatch.setattr(engine.Scorer, "__call__", shifted)
    assert drift(loaded, items)[0] == pytest.approx(0.1, abs=1e-5)


def test_notes_survive_a_resumed_run(loaded, items, tmp_path, monkeypatch):
    from spark_audit.scoring.passes import plain as engine

    monkeypatch.setattr(engine, "PLAIN_HEADS", frozenset())
    first = score(loaded, items, store=Store(tmp_path)).notes
    again = score(loaded, items, store=Store(tmp_path)).notes
    assert first == again
    assert "no head is known" in again[0]
