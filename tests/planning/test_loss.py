"""Identifiers in the loss, from the ranges that a training supervised."""

from planned_rows import numbered, row

from spark_audit.planning.loss import loss_counts
from spark_audit.planning.rows import RowTraining

TEXT = "user Ann 555 then assistant Bo and Cy"
MARKED = [("Ann", "NAME"), ("555", "PHONE"), ("Bo", "NAME"), ("Cy", "NAME")]


def training(loss_from: int, fed_to: int) -> RowTraining:
    return RowTraining(
        supervised=[(loss_from, len(TEXT))],
        supervised_tokens=[(loss_from, len(TEXT))],
        fed_text=(0, fed_to),
        fed_tokens=(0, fed_to),
        turns=[(5, 12, "user"), (28, len(TEXT), "assistant")],
    )


def test_identifiers_are_counted_by_state_role_and_tokens():
    # Loss begins inside "Bo"; "Cy" lies behind the length limit.
    cut = TEXT.index("Cy")
    inside = TEXT.index("Bo") + 1
    rows = numbered(
        [
            row(TEXT, MARKED, training=training(inside, cut)),
            row(TEXT, MARKED, split="test", training=training(0, cut)),
            row(TEXT, MARKED),
        ]
    )
    counts = loss_counts(rows)
    assert (counts.n_rows, counts.n_unknown) == (2, 1)
    assert counts.by_type == {
        "NAME": {"in the loss": 1, "read only": 1, "cut off": 1},
        "PHONE": {"read only": 1},
    }
    assert counts.by_role == {
        "assistant": {"in the loss": 1, "cut off": 1},
        "user": {"read only": 2},
    }
    # Each character is a token: one of "Bo" had loss, of 3 + 3 + 2 + 2.
    assert (counts.n_tokens_with_loss, counts.n_tokens) == (1, 10)
    assert counts.n_identifiers == 4


def test_a_canary_without_loss_in_any_row_is_counted():
    masked = training(len(TEXT) - 1, len(TEXT))
    learned = training(0, len(TEXT))
    secret = [("555", "PASSWORD")]
    rows = numbered(
        [
            row(TEXT, secret, canary="a", training=masked),
            row(TEXT, secret, canary="b", training=masked),
            row(TEXT, secret, canary="b", training=learned),
            row(TEXT, secret, canary="c", training=learned, split="test"),
        ]
    )
    counts = loss_counts(rows)
    assert (counts.n_canaries, counts.n_canaries_without_loss) == (2, 1)
    assert counts.n_identifiers == 0


def test_without_training_inputs_nothing_is_known():
    counts = loss_counts(numbered([row(TEXT, MARKED)]))
    assert not counts.is_known
    assert counts.n_identifiers == 0
