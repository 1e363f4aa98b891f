"""What an audit of a model trained on a manifest's rows could show, before training.

:func:`training_plan` counts and computes; ``advice.py`` says what to change, and
``shown.py`` how a reader sees it. Nothing of it needs a model. No text of a row, no id
and no identifier stands in a plan: rows are given by their number in the data. Counts
are exact, because a plan is for the owner of the rows.

A further part is a file beside this one, a field of :class:`TrainingPlan`, and perhaps
a sentence of ``advice.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from spark_audit.audits.planned_effects import PlannedEffect
from spark_audit.manifest.schema import Manifest
from spark_audit.planning.canaries import ranked_canaries
from spark_audit.planning.effects import audit_sizes, planned_effects
from spark_audit.planning.epsilon import EpsilonPlan, epsilon_plans
from spark_audit.planning.leftovers import Leftovers, leftovers
from spark_audit.planning.loss import LossCounts, loss_counts
from spark_audit.planning.repeats import Repeats, identifier_doses, repeats
from spark_audit.planning.rows import planned_rows
from spark_audit.report.receipt import WHOLE_CANARY
from spark_audit.stats.power import POWER


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The answer before a training on the rows of a manifest.

    Attributes
    ----------
    name
        Name of the manifest.
    repeats
        How often rows and identifiers stand in trained rows.
    n_near_copies
        Rows with a near copy in the other split, equal ones among them.
    n_rows
        Rows without a canary, of both splits.
    loss
        Identifiers in the loss of the training.
    leftovers
        What a redaction left over; ``None``: no row was redacted, or there is no text.
    effects
        What each audit could detect.
    epsilons
        Which claims of differential privacy the canaries could refute.
    n_canaries, n_canaries_unranked
        Canaries of both sides, and those that cannot be ranked as a whole.
    """

    name: str
    repeats: Repeats
    n_near_copies: int
    n_rows: int
    loss: LossCounts
    leftovers: Leftovers | None
    effects: Sequence[PlannedEffect]
    epsilons: Sequence[EpsilonPlan]
    n_canaries: int
    n_canaries_unranked: int

    @property
    def has_text(self) -> bool:
        """Return whether the manifest has the text of its rows."""
        return self.repeats.texts is not None

    def effect(self, figure: str) -> PlannedEffect | None:
        """Return the planned effect of a figure; ``None``: no audit plans it."""
        for effect in self.effects:
            if effect.figure == figure:
                return effect
        return None

    def record(self) -> dict[str, Any]:
        """Return the plan as JSON has it."""
        record = asdict(self)
        record["power"] = POWER
        return record


def training_plan(manifest: Manifest) -> TrainingPlan:
    """Return what an audit of a model trained on a manifest's rows could show.

    Parameters
    ----------
    manifest
        A redacted copy has no text: then doses and left-overs are not known.
    """
    rows = planned_rows(manifest)
    dose_of = identifier_doses(rows)
    sizes = audit_sizes(manifest, rows, dose_of)

    n_canaries = sum(canary.part == WHOLE_CANARY for canary in manifest.canaries)
    n_ranked = sum(canary.part == WHOLE_CANARY for canary in ranked_canaries(manifest))
    return TrainingPlan(
        name=manifest.name,
        repeats=repeats(rows, dose_of),
        n_near_copies=manifest.counts.get("rows_near_duplicate", 0),
        n_rows=sum(row.canary_id is None for row in rows),
        loss=loss_counts(rows),
        leftovers=leftovers(rows),
        effects=planned_effects(sizes),
        epsilons=epsilon_plans(manifest),
        n_canaries=n_canaries,
        n_canaries_unranked=n_canaries - n_ranked,
    )
