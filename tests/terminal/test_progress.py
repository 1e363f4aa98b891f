"""What a log shows of long work."""

from types import SimpleNamespace

from spark_audit.terminal import console as progress


def test_plain_lines_give_rate_and_time_left(monkeypatch, capsys):
    clock = iter([100.0, 104.0, 112.0, 120.0])
    own = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr(progress, "time", own)
    with progress.progress() as show:
        show("scoring", 0, 400)
        show("scoring", 100, 400)  # 4 s after the last line: nothing is said
        show("scoring", 300, 400)
        show("scoring", 400, 400)
    assert capsys.readouterr().err.splitlines() == [
        "scoring: 0/400",
        "scoring: 300/400 25/s, 4 s left",
        "scoring: 400/400 20/s",
    ]


def test_a_stage_that_begins_again_starts_its_clock_again(monkeypatch, capsys):
    clock = iter([0.0, 10.0, 500.0, 510.0])
    own = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr(progress, "time", own)
    with progress.progress() as show:
        for done in (10, 100, 10, 100):
            show("scoring", done, 100)
    assert capsys.readouterr().err.splitlines() == [
        "scoring: 10/100",
        "scoring: 100/100 10/s",
        "scoring: 10/100",
        "scoring: 100/100 10/s",
    ]


def test_quiet_shows_nothing(capsys):
    with progress.progress(quiet=True) as show:
        show("scoring", 1, 2)
    assert capsys.readouterr() == ("", "")
