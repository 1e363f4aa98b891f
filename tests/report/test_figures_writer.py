"""The writer of figures: all of them, in every format, and no stale ones."""

from pathlib import Path

from made_reports import made_report

from spark_audit.report.figures import figure_files
from spark_audit.report.folder import write_report
from spark_audit.results import Report

DOSES: list[dict[str, float | str]] = [
    {
        "checkpoint": "x",
        "part": "full",
        "dose": dose,
        "exposure_mean": 1.5 * dose,
        "exposure_most": 7.0,
    }
    for dose in (1, 4)
]
ROC: list[dict[str, float | str]] = [
    dict(zip(("fpr", "tpr", "chance_low", "chance_high"), at, strict=True))
    | {"checkpoint": "x", "variant": "loss"}
    for at in ((0.1, 0.2, 0.0, 0.3), (0.5, 0.6, 0.4, 0.7), (0.9, 1.0, 0.8, 1.0))
]


def report(**tables: list[dict[str, float | str]]) -> Report:
    return made_report(tables=tables)


def written(folder: Path) -> set[str]:
    return {path.name for path in (folder / "figures").iterdir()}


def test_every_drawing_is_written_in_three_formats(tmp_path):
    report_of_two = report(canary_by_dose=DOSES, mia_roc=ROC)
    paths = write_report(report_of_two, tmp_path, formats=["figures"])
    assert {path.name for path in paths} == written(tmp_path)
    assert written(tmp_path) == {
        f"{name}.{form}" for name in ("canary", "mia") for form in ("png", "svg", "pdf")
    }
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    for path in paths:
        assert path.read_bytes().startswith(starts[path.suffix[1:]])


def test_the_bytes_are_the_same_every_time(tmp_path, monkeypatch):
    for folder, epoch in (("a", "1"), ("b", "1000000000")):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
        write_report(
            report(canary_by_dose=DOSES), tmp_path / folder, formats=["figures"]
        )
    for form in figure_files.FIGURE_FORMATS:
        first, second = (
            (tmp_path / folder / "figures" / f"canary.{form}").read_bytes()
            for folder in ("a", "b")
        )
        assert first == second
