import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from spark_audit.errors import OutputError
from spark_audit.scoring.items import Candidates, Item, Prompt
from spark_audit.scoring.store import Store
from spark_audit.scoring.table import COLUMN_TYPES, PLAIN_COLUMNS, Pass

MODEL: Any = SimpleNamespace(model_id="m1", usable=np.ones(50, dtype=bool))


def make_item(key: str, length: int, seed: int = 0) -> Item:
    ids = np.random.default_rng((seed, length)).integers(0, 50, length)
    return Item(key, ids.astype(np.int32), np.arange(length, dtype=np.int32))


def columns_of(item: Item) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(int(item.ids.sum()))
    return {
        name: rng.integers(0, 100, len(item.row_positions)).astype(dtype)
        for name, dtype in PLAIN_COLUMNS.items()
    }


def fill(store: Store, items: list[Item], kind: Pass = Pass()) -> dict[str, str]:  # noqa: B008
    keys = store.pass_items(MODEL, items, kind).store_keys()
    for item in items:
        store.add(keys[item.key], item.row_positions, columns_of(item))
    store.flush()
    return keys


ITEMS = [make_item("a", 5), make_item("b", 9), make_item("c", 1), make_item("d", 30)]


def assert_holds(store: Store, keys: dict[str, str], items: list[Item]) -> None:
    table = store.gather(keys, scoring_pass=Pass())
    assert table.ids == tuple(sorted(item.key for item in items))
    for item in items:
        rows = table.rows(item.key)
        np.testing.assert_array_equal(table.position[rows], item.row_positions)
        for name, values in columns_of(item).items():
            assert table.columns[name].dtype == PLAIN_COLUMNS[name]
            np.testing.assert_array_equal(table.columns[name][rows], values)


def test_what_is_stored_is_found_again_by_another_store(tmp_path):
    keys = fill(Store(tmp_path), ITEMS)
    other = Store(tmp_path)
    assert other.pass_items(MODEL, ITEMS, Pass()).store_keys() == keys
    assert not other.lacking(keys.values())
    assert_holds(other, keys, ITEMS)
    assert other.notes == []


@pytest.mark.parametrize("folder", [True, False])
def test_passes_that_wait_together_are_never_mixed(folder, tmp_path):
    # Regression: a flush that failed leaves rows of one pass to the next one's shard.
    store = Store(tmp_path if folder else None)
    found = {}
    for kind in COLUMN_TYPES:
        found[kind] = store.pass_items(MODEL, ITEMS, Pass(kind)).store_keys()
        for item in ITEMS:
            columns = {
                k: np.ones(len(item.row_positions), t)
                for k, t in COLUMN_TYPES[kind].items()
            }
            store.add(found[kind][item.key], item.row_positions, columns)
    store.flush()
    assert len(list(tmp_path.glob("*.parquet"))) == folder * len(COLUMN_TYPES)
    for kind, keys in found.items():
        for reader in (store, Store(tmp_path)) if folder else (store,):
            table = reader.gather(keys, scoring_pass=Pass(kind))
            assert {k: v.dtype for k, v in table.columns.items()} == COLUMN_TYPES[kind]
            assert table.ids == tuple("abcd")


def test_keys_of_sets_and_prompts_depend_on_all_they_hold():
    def ids(*numbers: int) -> np.ndarray:
        return np.array(numbers, dtype=np.int32)

    items = [
        Candidates("x", ids(1, 2), (ids(3), ids(4, 5))),
        Candidates("x", ids(1), (ids(2, 3), ids(4, 5))),
        Candidates("x", ids(1, 2), (ids(4, 5), ids(3))),
        Candidates("x", ids(1, 2), (ids(3, 4), ids(5))),
        Prompt("x", ids(1, 2), "yes", 4),
        Prompt("x", ids(1, 2), "no", 4),
        Prompt("x", ids(1, 2), "yes", 5),
        Prompt("x", ids(1), "yes", 4),
        Prompt("x", ids(1, 2), "yes", 4, ("no", "yes")),
    ]
    store = Store(None)
    keys = [
        store.pass_items(MODEL, [one], Pass("candidates")).store_keys()["x"]
        for one in items
    ]
    assert len(set(keys)) == len(items)


@pytest.mark.parametrize(
    "change",
    [
        lambda model, item, kind: (
            SimpleNamespace(model_id="m2", usable=model.usable),
            item,
            kind,
        ),
        lambda model, item, kind: (
            SimpleNamespace(model_id="m1", usable=np.arange(50) < 49),
            item,
            kind,
        ),
        lambda model, item, kind: (model, item, Pass("noise", 0.1)),
        lambda model, item, kind: (model, item, Pass("noise", 0.1, draw=1)),
        lambda model, item, kind: (model, replace(item, ids=item.ids[::-1]), kind),
        lambda model, item, kind: (
            model,
            replace(item, positions=item.positions + 1),
            kind,
        ),
        lambda model, item, kind: (
            model,
            replace(item, ids=item.ids[:-1], positions=item.positions[:-1]),
            kind,
        ),
    ],
    ids=["model", "usable", "pass", "draw", "ids", "positions", "range"],
)
def test_a_key_depends_on_all_that_a_score_depends_on(change, tmp_path):
    # Regression: a peer's cache key leaves out the model and gives the second
    # checkpoint the first one's scores.
    store = Store(tmp_path)
    start = (MODEL, make_item("x", 12), Pass())
    model, item, kind = change(*start)
    first = store.pass_items(MODEL, [start[1]], start[2]).store_keys()["x"]
    assert store.pass_items(model, [item], kind).store_keys()["x"] != first
    same = replace(start[1], key="another name")
    assert store.pass_items(MODEL, [same], Pass()).store_keys()["another name"] == first


def test_keys_of_two_folders_differ_by_their_salt(tmp_path):
    one = Store(tmp_path / "one")
    two = Store(tmp_path / "two")
    assert (
        one.pass_items(MODEL, ITEMS, Pass()).store_keys()
        != two.pass_items(MODEL, ITEMS, Pass()).store_keys()
    )
    assert (tmp_path / "one" / "salt").stat().st_mode & 0o777 == 0o600
    assert len((tmp_path / "one" / "salt").read_bytes()) == 32


def test_workers_that_start_at_once_share_one_salt(tmp_path):
    barrier = threading.Barrier(8)
    keys: list[str] = []

    def open_store() -> None:
        barrier.wait()
        store = Store(tmp_path / "new")
        keys.append(store.pass_items(MODEL, ITEMS, Pass()).store_keys()["a"])

    threads = [threading.Thread(target=open_store) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8
    # A key is hashed with the salt.
    assert len(set(keys)) == 1


def test_another_workers_shards_are_seen_after_a_refresh(tmp_path):
    here = Store(tmp_path)
    there = Store(tmp_path)
    keys = fill(there, ITEMS)
    assert here.lacking([keys["a"]])
    assert_holds(here, keys, ITEMS)  # gather refreshes


def test_items_with_the_same_tokens_share_a_key_and_both_get_rows():
    twins = [ITEMS[0], replace(ITEMS[0], key="twin")]
    store = Store(None)
    keys = fill(store, twins)
    assert keys["a"] == keys["twin"]
    assert_holds(store, keys, twins)


def test_a_shard_that_is_a_link_out_of_the_folder_is_left_out(tmp_path):
    items = [make_item("a", 5)]
    fill(Store(tmp_path / "theirs"), items)
    (shard,) = (tmp_path / "theirs").glob("*.parquet")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / shard.name).symlink_to(shard)
    store = Store(tmp_path / "mine")
    (note,) = store.notes
    assert shard.name in note


def test_shards_tell_nothing_about_the_texts(tmp_path):
    items = [make_item("person-0815", 40), make_item("person-4711", 17)]
    fill(Store(tmp_path), items)
    (path,) = tmp_path.glob("*.parquet")
    table = pq.read_table(path)
    assert set(table.column_names) == {"key", "position", *PLAIN_COLUMNS}
    everything = path.read_bytes() + path.name.encode()
    assert b"person" not in everything
    assert path.stat().st_mode & 0o777 == 0o600


def test_remarks_come_back_with_the_rows(tmp_path):
    store = Store(tmp_path)
    store.remark("the head was adapted")
    store.remark("the head was adapted")
    fill(store, ITEMS[:2])
    fill(store, ITEMS[2:])
    first = store.pass_items(MODEL, ITEMS[:1], Pass())
    assert store.remarks(first) == ["the head was adapted"]
    other = Store(tmp_path)
    assert other.remarks(first) == ["the head was adapted"]
    assert other.remarks(store.pass_items(MODEL, ITEMS[3:], Pass())) == []


def test_rows_are_flushed_by_time_and_by_number(tmp_path, monkeypatch):
    store = Store(tmp_path)
    keys = store.pass_items(MODEL, ITEMS, Pass()).store_keys()

    def add(item: Item) -> int:
        store.add(keys[item.key], item.row_positions, columns_of(item))
        return len(list(tmp_path.glob("*.parquet")))

    assert add(ITEMS[0]) == 0
    monkeypatch.setattr("spark_audit.scoring.store.FLUSH_SECONDS", 0.0)
    assert add(ITEMS[1]) == 1
    monkeypatch.setattr("spark_audit.scoring.store.FLUSH_SECONDS", 1e9)
    assert add(ITEMS[2]) == 1
    monkeypatch.setattr("spark_audit.scoring.store.FLUSH_TOKENS", 20)
    assert add(ITEMS[3]) == 2


def test_a_folder_that_cannot_be_written_is_an_output_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=f"^{tmp_path / 'file'}"):
        Store(tmp_path / "file" / "store").pass_items(MODEL, ITEMS, Pass()).store_keys()


def test_without_its_salt_a_store_begins_anew(tmp_path):
    fill(Store(tmp_path), ITEMS)
    (tmp_path / "salt").unlink()  # as by a removal of the folder that was killed
    store = Store(tmp_path)
    assert (
        store.gather(
            store.pass_items(MODEL, ITEMS, Pass()).store_keys(), scoring_pass=Pass()
        ).ids
        == ()
    )
    assert_holds(store, fill(store, ITEMS), ITEMS)


@pytest.mark.parametrize("salt", [b"short", b"l" * 33])
def test_a_salt_of_the_wrong_size_is_an_output_error(tmp_path, salt):
    fill(Store(tmp_path), ITEMS)
    (tmp_path / "salt").write_bytes(salt)
    with pytest.raises(OutputError, match="salt"):
        Store(tmp_path).pass_items(MODEL, ITEMS, Pass()).store_keys()


def test_a_shard_that_vanishes_is_an_output_error(tmp_path):
    store = Store(tmp_path)
    keys = fill(store, ITEMS)
    for path in tmp_path.glob("*.parquet"):
        path.unlink()
    with pytest.raises(OutputError, match=r"\.parquet: "):
        store.gather(keys, scoring_pass=Pass())


@pytest.mark.parametrize(
    ("name", "of", "found"),
    [("mean_logp", None, True), ("mean_logp", 3, False), ("nll", None, False)],
)
def test_a_column_that_a_server_cannot_tell_is_no_damage(name, of, found, tmp_path):
    store, (one, *_) = Store(tmp_path), ITEMS
    keys = store.pass_items(MODEL, [one], Pass()).store_keys()
    columns = columns_of(one)
    columns[name][:of] = np.nan
    store.add(keys[one.key], one.row_positions, columns)
    store.flush()
    assert (not Store(tmp_path).lacking(keys.values())) == found
