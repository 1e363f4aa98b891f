"""MTL: all rows in one stage, and figures that it does not have."""

from plain_training import adapted, make_rows, make_stream

from spark_train.methods import METHODS

ROWS = make_rows(a=7, b=5, c=9)


def test_every_row_once_an_epoch_tasks_mixed():
    stream = make_stream(adapted(), ROWS, "epochs=2", "batch_size=4")
    (phase,) = METHODS["mtl"].phases(stream)
    assert (phase.stage, phase.part, phase.steps) == ("1-all", "task", 12)
    assert phase.tasks == ("a", "b", "c")
    epochs = []
    for epoch in (0, 1):
        steps = [phase.choose(6 * epoch + step).rows["task"] for step in range(6)]
        assert [len(rows) for rows in steps] == [4] * 5 + [1]
        epochs.append([row.id for rows in steps for row in rows])
        wanted = [row.id for rows in ROWS.values() for row in rows]
        assert sorted(epochs[-1]) == sorted(wanted)
        assert sum(len({row.task for row in rows}) > 1 for rows in steps) >= 4
    assert epochs[0] != epochs[1]
