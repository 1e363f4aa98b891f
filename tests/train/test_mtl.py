"""MTL: all rows in one stage, and figures that it does not have."""

import csv
import re

from plain_training import adapted, make_rows, make_stream
from run_training import write_stream

from spark_audit.audits import Utility
from spark_audit.checkpoints.detect import series
from spark_audit.checkpoints.specs import Loading
from spark_audit.pipeline.run import Request
from spark_audit.pipeline.run import run as audit
from spark_train.cli import run as command
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


def test_one_stage_is_measured_on_all_tasks_and_has_no_transfer(
    tiny_base, tmp_path, capsys
):
    data = write_stream(tmp_path / "rows.jsonl", train=8, test=6)
    line = ["run", "--quiet", "--method", "mtl", "--base", str(tiny_base)]
    line += ["--data", str(data), "--order", "yelp,fomc", "--device", "cpu"]
    line += ["-o", str(tmp_path / "run"), "--set", "epochs=12", "lr=0.02", "lora.r=4"]
    assert command(line) == 0
    out, _ = capsys.readouterr()
    assert "Last " in out
    assert "BWT" not in out
    assert "Avg" not in out
    assert re.search(r"^\W*all\b", out, re.MULTILINE)  # the one row's name

    text = (tmp_path / "run" / "accuracy.csv").read_text()
    rows = list(csv.reader(text.splitlines()))
    assert rows[0] == ["after", "yelp", "fomc"]
    ((name, *cells),) = rows[1:]
    assert name == "all"
    measured = [float(cell) for cell in cells]
    assert len(series(str(tmp_path / "run"))) == 1

    report = audit(
        Request(
            audits=(Utility(order="yelp,fomc"),),
            ckpt=(f"mtl={tmp_path / 'run'}",),
            data=(data,),
            base=str(tiny_base),
            output=tmp_path / "report",
            loading=Loading(device="cpu"),
        )
    ).report
    own = {
        row.metric: row
        for row in report.results
        if row.checkpoint == "mtl" and row.group == "pooled"
    }
    last = own["last"]
    assert abs(last.value - sum(measured) / 2) < 1e-12
    for metric in ("avg", "bwt", "forgetting", "learning_accuracy"):
        assert own[metric].status == "not_estimable"
        assert "there is one stage only" in own[metric].note
    (matrix,) = [
        row for row in report.tables["accuracy_matrix"] if row["checkpoint"] == "mtl"
    ]
    assert [matrix[task] for task in ("yelp", "fomc")] == measured
