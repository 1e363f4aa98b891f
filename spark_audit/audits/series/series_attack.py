"""What all stages of a run give away about a row beyond its last checkpoint.

Who has every stage sees each row at the stage that knew it best. The score, declared
beforehand: by how much the row's NLL fell since the untrained model, nats per token, at
its best stage since its own task was trained on. A held-out row takes the best of the
same stages of its task, so that without training both sides are alike. That of the last
stage alone stands beside it, and the fall by the stage of the row's own task ("step":
sequential membership inference, arXiv 2602.16596), which no claim rests on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pandas as pd

from spark_audit.audits.base import Audit, Context, Plan, Tables
from spark_audit.audits.metric import Metric
from spark_audit.audits.mia.scores import NO_ROWS, reference_table, scored_text
from spark_audit.audits.series.coins import coin_nll, coin_units, coins_of
from spark_audit.audits.series.series_scores import FPRS, OFS, SERIES
from spark_audit.audits.spans import plan_of_identifiers
from spark_audit.audits.utility.task_accuracy import check_order, places_of_tasks
from spark_audit.manifest.schema import Manifest
from spark_audit.names import BASE
from spark_audit.results import AuditResult
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass, TokenTable

CANDIDATES = Pass("candidates")
METRICS = (
    Metric(
        "auc", bounds=(0.0, 1.0), learned=1, variants=OFS, null=0.5, glance=(SERIES,)
    ),
    *(Metric(name, bounds=(0.0, 1.0), learned=1, variants=OFS) for name in FPRS),
    Metric("auc_gain", bounds=(-1.0, 1.0)),
    *(Metric(f"{name}_gain", bounds=(-1.0, 1.0)) for name in FPRS),
)


@dataclass(frozen=True, kw_only=True)
class SeriesAttack(Audit):
    """Membership by all stages of a series, beside its last checkpoint.

    The evidence is one row per stage and text: its mean NLL, and as ``place`` the stage
    that trained on its task, 0 if the order of tasks is not known. ``texts`` is the
    cross-validated score of the best guess without any audited checkpoint. Two rows
    with a ``dose`` are a canary and what could have been planted in its place.
    """

    name = "series"
    metrics = METRICS
    nothing = NO_ROWS
    unscored = ""
    alone = "no series of several stages was given"
    over = "trained rows compared with held-out rows"
    chance = True
    of_series = True
    covers = ("auc", "n")
    unit = "of AUC"
    frameworks = "AITG-MOD-04, AISVS v1.0-11.2.5"
    on_request = True
    public = ("series_epsilon",)

    order: Annotated[
        str | None,
        "tasks in training order: t1,t2; default: the order of the training runs",
    ] = None
    all_rows: Annotated[
        bool, "score every row at every stage, not only rows with an identifier"
    ] = False

    def __post_init__(self) -> None:
        check_order(self.order)

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Rows of both sides, and canaries, each with one of its candidates.

        ``stages`` scores the rows with an identifier; no other audit the canaries.
        """
        sides = manifest.membership
        rows = {*sides.members, *sides.non_members}
        if not self.all_rows:
            rows &= {*plan_of_identifiers(manifest).get(Pass(), ())}
        passes = {Pass(): sorted(rows), CANDIDATES: sorted(coins_of(manifest))}
        return {wanted: keys for wanted, keys in passes.items() if keys and rows}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        from spark_audit.audits.mia.competitor import best_guess
        from spark_audit.audits.mia.texts import without_model
        from spark_audit.provenance import seed_for
        from spark_audit.stats.roc import Design

        places = places_of_tasks(tables, manifest, self.order)
        ids = self.plan(manifest).get(Pass(), [])
        if not ids or not places:
            return Evidence()
        texts = [scored_text(manifest.by_id[key]) for key in ids]
        units, *_ = without_model(
            manifest, texts, ids, seed=context.seed, permutations=0
        )
        scored = tables.get(BASE, {}).get(Pass())
        base = _means(reference_table(manifest, ids) if scored is None else scored, ids)
        guess = best_guess(
            texts if all(texts) else None,
            units["label"].to_numpy(np.int64),
            {"loss": -base},
            Design.of(units["member"], units["cluster"], units["task"]),
            seed=seed_for(context.seed, "series", "texts"),
        )
        coins = coins_of(manifest)
        rows = units[["example", "task", "cluster", "member"]].assign(dose=0)
        every = pd.concat([rows, coin_units(manifest, coins)], ignore_index=True)
        unknown = np.full(len(every), np.nan)
        guessed = unknown.copy()
        if guess is not None:
            guessed[: len(ids)] = guess

        def measured() -> Measured:
            nll = [base, coin_nll(coins, tables.get(BASE, {}).get(CANDIDATES))]
            values = {"nll": np.concatenate(nll), "place": unknown, "texts": guessed}
            yield BASE, values
            for name, own in places.items():
                scores = tables[name]
                nll = [_means(scores[Pass()], ids)]
                nll += [coin_nll(coins, scores.get(CANDIDATES))]
                place = every["task"].map(own).fillna(0)
                both = np.concatenate(nll)
                yield name, {"nll": both, "place": place, "texts": unknown}

        return Evidence.of(every, measured())

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        from spark_audit.audits.series.series_findings import conclude

        return conclude(evidence, context)


def _means(table: TokenTable, ids: list[str]) -> np.ndarray:
    """Mean NLL of each text, nats per token, NaN where it was not scored."""
    nll = table.columns["nll"]
    found = np.full(len(ids), np.nan)
    for i, key in enumerate(ids):
        if key in table and len(values := nll[table.rows(key)]):
            found[i] = values.mean(dtype=np.float64)
    return found
