"""The token table: rows by item and span, and a file that reads back the same."""

import stat

import numpy as np
import pytest

from spark_audit.errors import InputError, OutputError
from spark_audit.scoring.table import COLUMN_TYPES, PLAIN_COLUMNS, TokenTable

Item = tuple[str, np.ndarray, dict[str, np.ndarray]]


def make_item(key: str, positions: list[int], seed: int = 0) -> Item:
    rng = np.random.default_rng(seed)
    columns = {
        name: (rng.normal(size=len(positions)) * 100).astype(dtype)
        for name, dtype in PLAIN_COLUMNS.items()
    }
    return key, np.array(positions, dtype=np.int32), columns


def assert_same(a: TokenTable, b: TokenTable) -> None:
    assert a.ids == b.ids
    np.testing.assert_array_equal(a.offsets, b.offsets)
    np.testing.assert_array_equal(a.position, b.position)
    assert list(a.columns) == list(b.columns)
    for name, values in a.columns.items():
        np.testing.assert_array_equal(values, b.columns[name])
        assert values.dtype == b.columns[name].dtype == PLAIN_COLUMNS[name]


@pytest.mark.parametrize("n_items", [1, 2, 300])
def test_a_table_reads_back_bit_for_bit(tmp_path, n_items):
    items = [make_item(f"x{i:05d}", [1, 2, 5], seed=i) for i in range(n_items)]
    table = TokenTable.from_items(items)
    assert len(table) == 3 * n_items
    table.write(tmp_path / "t.parquet")
    assert_same(TokenTable.read(tmp_path / "t.parquet"), table)
    assert stat.S_IMODE((tmp_path / "t.parquet").stat().st_mode) == 0o600


def test_items_are_ordered_by_key_whatever_the_order_of_arrival():
    items = [make_item(key, [1, 2], seed=i) for i, key in enumerate("cab")]
    table = TokenTable.from_items(items)
    assert table.ids == ("a", "b", "c")
    assert_same(table, TokenTable.from_items(items[::-1]))
    np.testing.assert_array_equal(
        table.columns["nll"][table.rows("c")], items[0][2]["nll"]
    )


@pytest.mark.parametrize("kind", sorted(COLUMN_TYPES))
def test_every_kind_of_pass_keeps_its_columns_and_their_types(kind, tmp_path):
    layout = COLUMN_TYPES[kind]
    items = [
        (
            key,
            np.arange(2, dtype=np.int32),
            {k: np.ones(2, t) for k, t in layout.items()},
        )
        for key in "ab"
    ]
    for table in (
        TokenTable.from_items([], kind=kind),
        TokenTable.from_items(items, kind=kind),
        TokenTable.from_items(items),
    ):
        assert {k: v.dtype for k, v in table.columns.items()} == layout
        table.write(tmp_path / "t.parquet")
        read = TokenTable.read(tmp_path / "t.parquet")
        assert {k: v.dtype for k, v in read.columns.items()} == layout


def test_a_span_is_found_by_position():
    # Positions with a gap: a BOS in front of a text that was cut.
    table = TokenTable.from_items(
        [make_item("a", [1, 2, 3]), make_item("b", [7, 8, 9, 10])]
    )
    assert table.span("b", 8, 10) == slice(4, 6)
    assert table.span("a", 1, 4) == slice(0, 3)
    np.testing.assert_array_equal(table.position[table.span("b", 8, 10)], [8, 9])


@pytest.mark.parametrize(("start", "end"), [(6, 8), (0, 2), (9, 12), (20, 21)])
def test_a_span_that_was_not_wholly_scored_is_an_error(start, end):
    table = TokenTable.from_items([make_item("b", [1, 7, 8, 9, 10])])
    with pytest.raises(InputError, match=rf"^example 'b': .*{start}:{end} "):
        table.span("b", start, end)


def test_an_unknown_item_is_an_error():
    table = TokenTable.from_items([make_item("a", [1])])
    assert "z" not in table
    with pytest.raises(InputError, match="^example 'z': "):
        table.rows("z")


def test_keys_that_are_not_unique_are_refused():
    position = np.arange(3, dtype=np.int32)
    nll = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="keys"):
        TokenTable(("a", "a"), np.array([0, 1, 3]), position, {"nll": nll})


@pytest.mark.parametrize("content", [None, b"", b"PAR1 and no more"])
def test_a_file_that_is_no_table_is_one_line(tmp_path, content):
    path = tmp_path / "t.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OutputError, match=f"^{path}: ") as caught:
        TokenTable.read(path)
    assert "\n" not in str(caught.value)
