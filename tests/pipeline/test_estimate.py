"""What a run takes, shown beforehand in words that fit a screen."""

from spark_audit.errors import memory_size
from spark_audit.pipeline.estimate import duration, estimate_lines, stored_passes
from spark_audit.scoring.table import COLUMN_TYPES


def test_words_fit_a_screen():
    facts_of_passes = [
        {"pass": name, "items": 10**6, "tokens": 10**9, "seconds": 10.0**n}
        for n, name in enumerate(COLUMN_TYPES)
    ]
    long = {
        "manifest": "a-name-that-is-longer-than-most-names-of-manifests",
        "rows": 123_456,
        "folder": "reports/small-er",
        "checkpoints": [f"checkpoint-{n}" for n in range(6)],
        "notes": ["base: base as given; the adapter names gpt2-medium"],
        "passes": facts_of_passes,
        "audits": [
            {"audit": f"membership{n}", "tokens": 10**9, "seconds": 1e6}
            for n in range(11)
        ],
        "shared": {"tokens": 10**9, "seconds": 1e6},
        "loading": 1e4,
        "seconds": 1e6,
        "memory_bytes": 3 * 10**10,
        "free_bytes": 10**11,
        "processes": 8,
        "there": (3, 1200, 45),
        "store": "reports/small-er/scores/store",
    }
    lines = list(estimate_lines(long))
    assert len(lines) <= 25
    assert not [line for line in lines if len(line) > 80]


def test_no_memory_is_never_said():
    sizes = [memory_size(n) for n in (0, 4e6, 4e7, 9.9e8, 3.04e9)]
    assert sizes == ["1 kB", "4 MB", "40 MB", "990 MB", "3.0 GB"]


def test_parts_of_passes_are_counted():
    assert stored_passes(0, 8, 3) == "0 of 8 passes, and parts of 3 more,"
    assert stored_passes(8, 8) == "8 of 8 passes"


def test_durations_are_said_in_words():
    durations = [duration(s) for s in (0.2, 42, 600, 7200, 1e6)]
    assert durations == ["1 s", "42 s", "10 min", "2.0 h", "12 days"]
