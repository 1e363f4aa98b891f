"""Names of checkpoints: parsed and written in one place."""

import pytest

from spark_audit.names import CheckpointName, entry_of, original_of, series_of


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("spark", CheckpointName("spark")),
        ("spark[2]", CheckpointName("spark", seed=2)),
        ("a[b][12]", CheckpointName("a[b]", seed=12)),
        ("er@3", CheckpointName("er", stage=3)),
        ("er[1]@3", CheckpointName("er", seed=1, stage=3)),
        ("er[1]@3+int8", CheckpointName("er", 1, 3, "int8")),
        ("run/er+int4", CheckpointName("run/er", derived="int4")),
        ("er@3[1]", CheckpointName("er@3", seed=1)),
        *((name, CheckpointName(name)) for name in ("[1]", "a[0]", "a@x", "a+int2")),
    ],
)
def test_a_name_is_read_and_written_back(name, parts):
    assert CheckpointName.parse(name) == parts
    assert str(parts) == name


def test_whom_a_checkpoint_belongs_to():
    assert [entry_of(n) for n in ("a[2]", "a", "a[2]+int8", "a[2]@1")] == [
        *("a", "a", "a[2]+int8", "a[2]@1")
    ]
    assert [series_of(n) for n in ("a@2", "a", "a[1]@2", "a@2+int8")] == [
        *("a", "a", "a[1]", "a@2+int8")
    ]
    assert [original_of(n) for n in ("a+int8", "a[1]+int4", "a")] == ["a", "a[1]", "a"]
