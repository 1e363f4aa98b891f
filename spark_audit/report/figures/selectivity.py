"""Forest plot of Delta_sel per checkpoint and of DiD per contrast."""

from __future__ import annotations

from spark_audit.names import BASE
from spark_audit.report.figures.entries import contrasts_of, estimable, rows_of
from spark_audit.report.figures.forest import Forest
from spark_audit.report.figures.forest_marks import Line, Mark, Section
from spark_audit.report.figures.picture import AREA, Look, looks, wrapped
from spark_audit.results import Report

PHONE = 3.0
"""Inches: on a page a screen of 390 px, letters as large as the page's."""
REGRESSION = "regression to the mean, if all text drifted alike"
CHANGED = {
    "change since the reference": Look(marker="o"),
    "Δₛₑₗ itself": Look(marker="o", size=3.6, width=1.0, alpha=0.55),
    REGRESSION: AREA,
}


def draw(report: Report) -> Forest | None:
    """Delta_sel and its change with intervals, and contrasts between checkpoints."""
    changes = rows_of(report, "matched", "delta_sel", of="change")
    levels = rows_of(report, "matched", "delta_sel")
    if not estimable(changes) and not estimable(levels):
        return None
    if BASE in changes and changes[BASE].value is None:
        # Of the reference itself there is no change to show.
        del changes[BASE]
    bands = rows_of(report, "matched", "rtm_bias", of="change")
    look = looks(report)
    lines = []
    for name in dict.fromkeys([*levels, *changes]):
        change = Mark.of(changes.get(name))
        text = "reference" if name == BASE and change.row is None else change.words()
        marks = [change, Mark.of(levels.get(name), light=True)]
        lines.append(Line(wrapped(name), look[name], marks, bands.get(name), text))
    sections = [
        Section(
            lines,
            "(a) selectivity relative to the reference",
            "Δₛₑₗ, nats per token (higher = identifiers\nless likely than equally hard "
            "text)",
        ),
        *_contrasts(report, look),
    ]
    changed = bool(estimable(changes)) or len(sections) > 1
    return Forest(
        audit="matched",
        title="Selectivity",
        caption="Delta_sel = NLL of identifiers minus NLL of equally hard other text, "
        "its change since the reference (large marks) and itself (small marks); DiD "
        "compares two checkpoints over the same spans. The grey band is the interval "
        "of what one mechanism would give, regression to the mean if all text drifted "
        "alike: other drift gives other values, beyond the band too. Ordinary "
        "fine-tuning moves these figures; they show no memory.",
        shows="Forest plot of "
        + ("the change of Delta_sel since the reference" if changed else "Delta_sel")
        + ", in nats",
        sections=sections,
        keys={k: v for k, v in CHANGED.items() if changed or v.size < 5},
        stacked=True,
        width=PHONE,
    )


def _contrasts(report: Report, look: dict[str, Look]) -> list[Section]:
    contrasts = contrasts_of(report, "matched", "did")
    behind = contrasts_of(report, "matched", "rtm_bias")
    if not estimable(contrasts):
        return []
    baselines = sorted({baseline for _, baseline in contrasts})
    one, lines = len(baselines) == 1, []
    for (name, baseline), row in contrasts.items():
        label = wrapped(name) + ("" if one else f"\nvs {wrapped(baseline)}")
        mark, band = Mark.of(row), behind.get((name, baseline))
        lines.append(Line(label, look[name], [mark], band, mark.words()))
    title = f"(b) paired contrasts with {baselines[0]}" if one else ""
    return [
        Section(
            lines,
            wrapped(title, width=36) or "(b) paired contrasts between checkpoints",
            "DiD, nats per token (higher =\nless likely than with the baseline)",
        )
    ]
