"""Rows and groups of rows that are shown to have been trained on.

They follow from the evidence of the membership audit in the report folder, without a
model or texts. The score was declared beforehand: ``reference``, the rise of a text's
log-likelihood since the untrained model, compared with held-out rows of its task.

A row is named if its p, multiplied by the estimated share of untrained rows, passes the
Benjamini-Hochberg procedure (``conformal.py``). A further reason to name nobody is a
branch of :func:`_why_nobody_is_named`, or of :func:`why_in_doubt` where it comes from a
guard.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from spark_audit.audits import Membership, about
from spark_audit.audits.setup_guards import faults
from spark_audit.errors import InputError, OutputError
from spark_audit.files import sha256_file
from spark_audit.names import BASE, entry_of
from spark_audit.results import Guard, Report
from spark_audit.results.evidence import Evidence
from spark_audit.results.report import TEXT_FILE_FORMAT
from spark_audit.sentences import render
from spark_audit.stats import conformal
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.trained_share import trained_share

if TYPE_CHECKING:
    import pandas as pd


BLIND = "blind text classifier"
"""Name of the guard that the texts alone do not tell trained from held-out rows."""

NAMED_SHARE = 0.1
"""Default share of false ones among all named rows."""


@dataclass(frozen=True)
class Named:
    """The trained rows of one checkpoint, and which are shown to have been trained on.

    Attributes
    ----------
    rows
        Trained rows, with the columns ``row``, ``task``, ``group`` (rows that share a
        source or a person), ``p`` and ``named``.
        ``p`` is NaN for a row without a score.
    groups
        Their groups, with the columns ``group``, ``rows`` (how many are scored), ``p``
        and ``named``. Groups without a scored row are left out. ``persons.py`` uses
        these p, too.
    held_out
        Number of held-out groups that rows and groups are compared with.
    least_untrained
        The smallest number that a row's p was multiplied by: an estimate of the share
        of untrained rows.
    why
        Why no row can be named; empty: rows can be.
    """

    checkpoint: str
    rows: pd.DataFrame
    groups: pd.DataFrame
    held_out: int
    least_untrained: float
    why: str = ""

    def summary(self, share: float) -> str:
        """Return the sentence on the number of named rows, or on the rows needed."""
        if self.why:
            return render("named.none", checkpoint=self.checkpoint, why=self.why)

        n_named = int(self.rows["named"].sum())
        summary = render(
            "named.summary",
            checkpoint=self.checkpoint,
            share=share,
            rows=n_named,
            of=len(self.rows),
            groups=int(self.groups["named"].sum()),
            of_groups=len(self.groups),
        )
        if n_named:
            return summary
        # Of N rows, k at the smallest p, u / (C + 1) with C held-out groups and the
        # factor u, are named if N u / ((C + 1) k) <= share. This is the least such k.
        smallest_p = self.least_untrained / (self.held_out + 1)
        fewest = math.ceil(len(self.rows) * smallest_p / share)
        needed = render("named.fewest", held_out=self.held_out, fewest=fewest)
        return f"{summary} {needed}"


def evidence_of(report: Report, folder: Path, audit: str = "") -> Evidence:
    """Return the evidence of an audit that a report was made from.

    Parameters
    ----------
    audit
        Its name; by default the audit of membership.

    Raises
    ------
    InputError
        If it is not there.
    OutputError
        If it differs from the digest in the report.
    """
    audit = audit or Membership.name
    path = folder / "scores" / about(audit).evidence_file()
    stated_checksum = report.evidence.get(path.name)
    if stated_checksum is None and not path.is_file():
        # No audit of models can be run into a report on files.
        is_of_files = all(
            checkpoint.format == TEXT_FILE_FORMAT for checkpoint in report.checkpoints
        )
        if is_of_files and report.checkpoints and not about(audit).of_files:
            raise InputError(
                "is a report on files of text, which does not tell what rows a model "
                "was trained on",
                where=str(folder),
                fix="`spark-audit report FOLDER --format named` lists what of trained "
                "rows stands in the files",
            )
        raise InputError(
            f"the report has no evidence of `{audit}`",
            where=str(path),
            fix=f"run `spark-audit {audit}` into this folder",
        )

    # Evidence of another report would name other people's rows.
    mistake = ""
    if not path.is_file():
        mistake = "is missing, and the report was made from it"
    elif stated_checksum != sha256_file(path):
        mistake = "is not the file that the report was made from"
    if mistake:
        raise OutputError(
            mistake,
            where=str(path),
            fix="copy the report's folder again, or audit again",
        )
    return Evidence.read(path)


def named_rows(
    report: Report, evidence: Evidence, *, share: float = NAMED_SHARE
) -> list[Named]:
    """Return each checkpoint's trained rows and groups, marked where named.

    Parameters
    ----------
    share
        Expected share of false ones among all named ones, of rows and of groups.
    """
    return [
        _named_rows_of_checkpoint(report, evidence, name, share=share)
        for name in evidence.checkpoints
        if name != BASE
    ]


def _named_rows_of_checkpoint(
    report: Report, evidence: Evidence, name: str, *, share: float
) -> Named:
    """Return one checkpoint's trained rows and their groups, marked where named."""
    import pandas as pd

    # A p for each row: how many held-out groups look as familiar, by its task. It is
    # NaN for held-out rows and for rows without a score, which are never named.
    units = evidence.units  # a row for each row of text: example, task, cluster, member
    is_held_out = ~units["member"].to_numpy(bool)  # (rows,)
    scores = conformal.standardised(
        evidence.row(name, Membership.naming_score),
        is_held_out,
        units["task"],
        units["cluster"],
    )  # (rows,)
    p = conformal.conformal_p(scores, is_held_out, units["cluster"])  # (rows,)
    untrained = conformal.untrained_shares(p, units["cluster"], units["task"])
    is_named = conformal.discoveries(p, share=share, untrained=untrained)  # (rows,)

    all_rows = units.rename(columns={"example": "row", "cluster": "group"})
    all_rows = all_rows[["row", "task", "group"]]
    rows = all_rows.assign(p=p, named=is_named)[~is_held_out]

    # A p for each group: whether any of its rows was trained on.
    p_by_group = rows.dropna(subset="p").groupby("group")["p"]
    groups = pd.DataFrame(
        {"rows": p_by_group.size(), "p": p_by_group.agg(conformal.simes)}
    )
    groups = groups.reset_index()
    groups["named"] = named_groups(groups["p"], share=share)

    n_held_out_groups = units["cluster"][is_held_out].nunique()
    why = _why_nobody_is_named(report, name, p, n_held_out_groups)
    if why:
        rows = rows.assign(named=False)
        groups = groups.assign(named=False)
    return Named(
        checkpoint=name,
        rows=rows,
        groups=groups,
        held_out=n_held_out_groups,
        least_untrained=float(np.nanmin(untrained, initial=np.inf)),
        why=why,
    )


def named_groups(p: ArrayLike, *, share: float) -> np.ndarray:
    """Return which groups of rows are named by their p, shape ``(groups,)``, bool.

    A group has one p, whichever tasks its rows are of, and counts once where the share
    of untrained groups is estimated.
    """
    values = np.asarray(p, np.float64)
    untrained = conformal.untrained_shares(values, np.arange(len(values)))
    return conformal.discoveries(values, share=share, untrained=untrained)


def share_of_trained(named: Named, evidence: Evidence) -> Estimate:
    """Return the share of trained rows that look more familiar than held-out ones.

    At least so many of the rows that were given as training data were trained on. It is
    not estimable where no row can be named.
    """
    if named.why:
        return Estimate.missing(named.why)

    units = evidence.units
    return trained_share(
        evidence.row(named.checkpoint, Membership.naming_score),
        ~units["member"].to_numpy(bool),
        units["task"],
        units["cluster"],
    )


def _why_nobody_is_named(
    report: Report, name: str, p: np.ndarray, n_held_out_groups: int
) -> str:
    """Return why no row of a checkpoint can be named; empty where some can.

    Parameters
    ----------
    p
        p of each row, shape ``(rows,)``; NaN without a score.
    """
    doubt = why_in_doubt(report, name)
    if doubt:
        return doubt
    if not np.isfinite(p).any():
        return render("named.no_scores")
    smallest_p = 1 / (1 + n_held_out_groups)
    if smallest_p > conformal.MOST_P:
        return render("named.too_few", groups=n_held_out_groups)
    return ""


def why_in_doubt(report: Report, name: str) -> str:
    """Return why rows of a checkpoint cannot be compared; empty: they can."""
    setup_faults = faults(report.guards, entry_of(name))
    if setup_faults:
        return setup_faults[0].detail

    for guard in report.guards:
        is_on_texts_or_base = guard.checkpoint in ("", BASE)
        if not (_is_of_membership(guard) and is_on_texts_or_base):
            continue
        # The score is a change of `loss`. A guard on another score voids that alone.
        if not _concerns_loss(guard):
            continue

        # Rows of other texts look unfamiliar without any training: where the texts
        # were not compared, nobody knows whether they do.
        is_not_compared = guard.name == BLIND and guard.passed is None
        if guard.passed is False or is_not_compared:
            return guard.detail
    return ""


def _is_of_membership(guard: Guard) -> bool:
    """Return whether a guard is one of the membership audit (``mia/guards.py``)."""
    return guard.says.startswith(f"guard.{Membership.name}.")


def _concerns_loss(guard: Guard) -> bool:
    """Return whether a guard of the membership audit concerns the score ``loss``.

    All but one do: there is a guard ``untrained`` for each score, which is the variant
    of its AUC.
    """
    if guard.says != f"guard.{Membership.name}.untrained":
        return True
    score = getattr(guard.facts["auc"], "variant", "")
    return bool(score == "loss")
