"""The audit of NLL levels: identifiers, low-sensitivity text and canaries.

It gives mean NLL in nats per token, by group, next to that of the base model and as
changes from a baseline. It claims no memory, since any fine-tuning moves these levels.

A further kind of tokens is a name of :data:`NLL_SETS` and a function beside
``_low_set`` that ``_token_sets`` calls; its words stand in ``metrics.toml`` and
``nll.toml`` of ``sentences/en/``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from spark_audit.audits import ratio_rows
from spark_audit.audits.base import (
    Audit,
    Context,
    LatexColumn,
    Metric,
    Plan,
    Tables,
    scored,
)
from spark_audit.audits.supervision import (
    COLUMN,
    NOT_READ,
    STRATA,
    Trained,
    canary_supervision,
    is_known,
    trained_identifiers,
)
from spark_audit.audits.token_sums import Sums, TokenSet, TokensOfSets
from spark_audit.manifest.example_schema import ManifestExample
from spark_audit.manifest.schema import Manifest
from spark_audit.results import AuditResult, Contrast, Finding, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass

NLL_SETS = ("pii", "low", "canary")
"""The sets of tokens: identifiers, low-sensitivity text, and canaries."""


class SetFacts(NamedTuple):
    """Facts on a set of tokens, which are columns of the evidence.

    Attributes
    ----------
    variant
        The kind of the tokens, one of :data:`NLL_SETS`.
    split
        Split of the example, ``train`` or ``test``.
    task
        Task of the example; empty for a canary, which may stand in several tasks.
    type
        Type of the identifiers; empty for other tokens.
    cluster
        Cluster of the example; each canary is a cluster of its own.
    supervision
        What training did with the identifiers or the canary, one of the states of
        :mod:`spark_audit.audits.supervision`. Empty where it is not known, and for
        low-sensitivity text.
    """

    variant: str
    split: str
    task: str
    type: str
    cluster: str
    supervision: str


@dataclass(frozen=True, kw_only=True)
class NLL(Audit):
    """Mean NLL of identifiers, other text and canaries, without matching.

    The evidence has one row per set of tokens, with the columns of ``SetFacts``,
    ``num`` and ``den``. The mean NLL of a group of sets is the sum of ``num`` over the
    sum of ``den``:

    ==========  =======================================  ===============  =============
    ``of``      tokens of a set                          ``num``          ``den``
    ==========  =======================================  ===============  =============
    ``pii``     identifiers of one type in a row         summed NLL       tokens
                without a canary
    ``low``     low-sensitivity tokens of such a row     summed NLL       tokens
    ``canary``  one planted string, from its first to    (mean NLL of     1 / s
                its last secret part                     its tokens) / s
    ==========  =======================================  ===============  =============

    ``s`` is the number of strings of the same canary, one per row that holds it. Over
    these strings ``den`` sums to 1, and ``num`` to the mean of their mean NLLs. Every
    canary therefore counts once, however often it was planted.

    Canaries of test rows were held out: their figures are those of ``canary`` in the
    group ``split:test``, and never in ``pooled``.
    """

    name = "nll"
    metrics = (
        Metric(
            "nll",
            "nats",
            bounds=(0.0, np.inf),
            learned=-1,
            variants=NLL_SETS,
            missing=NLL_SETS,  # all have a pooled row, if only with the reason
            headline=("pii",),
        ),
    )
    # The table of ablations: utility first, then levels of NLL.
    latex_table = "ablations"
    latex_place = 1
    latex = (
        LatexColumn("Last ↑", "last", counted="answers", audit="utility"),
        LatexColumn("Avg ↑", "avg", counted="answers", audit="utility"),
        LatexColumn("BWT ↑", "bwt", counted="answers", audit="utility"),
        LatexColumn("PII NLL ↑", "nll", "pii"),
        LatexColumn("Low-sens. NLL ↓", "nll", "low"),
        LatexColumn("Canary NLL ↑", "nll", "canary", "canaries"),
    )
    nothing = "the manifest has no scored token of this kind"

    # What the manifest holds of a kind is scored, so that both have the same reason.
    unscored = nothing

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Return all examples that hold a scored token of any of the three kinds."""
        indices = {token_set.example for token_set in _token_sets(manifest)}
        if not indices:
            return {}
        return {Pass(): sorted(manifest.examples[index].id for index in indices)}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        """Return the sets of tokens with their ``den``, and ``num`` by checkpoint."""
        sets = list(_token_sets(manifest))
        if not sets:
            return Evidence()

        units = pd.DataFrame([token_set.facts for token_set in sets])
        if not is_known(manifest):
            units = units.drop(columns=COLUMN)

        # The strings of a canary are the sets of its cluster, over all rows. Injection
        # puts a canary into train rows only, or into test rows only if it is held out.
        n_tokens = np.array([len(token_set.tokens) for token_set in sets])  # (units,)
        n_strings = units.groupby(["variant", "cluster"])["variant"].transform("size")
        is_canary = units["variant"] == "canary"

        # A canary counts once: the mean over its strings of their mean NLL.
        units["den"] = np.where(is_canary, 1 / n_strings, n_tokens)
        num_scale = np.where(is_canary, 1 / n_strings / n_tokens, 1.0)  # (units,)

        tokens_of_sets = TokensOfSets.of(sets)

        def measured() -> Measured:
            """Yield ``num`` of all sets by each checkpoint, nats."""
            for name, table in scored(tables):
                nll = Sums(manifest, table)
                summed_nll = nll.over(tokens_of_sets)  # (units,), nats
                yield name, {"num": num_scale * summed_nll}

        return Evidence.of(units, measured())

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Return rows and contrasts of the mean NLL, and findings on pooled ones."""
        units = evidence.units

        # Sums of ``num`` over sums of ``den``, by group of units.
        cells = ratio_rows.cells_of_units(
            ratio_rows.groups_of(units),
            evidence,
            "num",
            metrics={"nll": np.asarray},
            variants=units["variant"].to_numpy(),
            denominators=units["den"].to_numpy(),
        )
        rows, contrasts = ratio_rows.ratio_figures(cells, context, NLL)
        findings = list(_findings(rows, contrasts))

        # Add the level of the base to each row, and pooled rows without a figure for
        # the sets that have no pooled row.
        rows_without_figure = self.missing(
            evidence.checkpoints, self.nothing, beside=rows
        )
        rows = [*ratio_rows.beside_base(rows), *rows_without_figure]
        return AuditResult(results=rows, contrasts=contrasts, findings=findings)


def _findings(rows: list[Row], contrasts: list[Contrast]) -> Iterator[Finding]:
    """Yield one finding on the levels of each checkpoint, and one on each change.

    All findings are on pooled train rows, and claim at most that figures moved. A level
    is a mean NLL in nats per token; a change is above 0 where text became less likely
    than under the baseline.
    """
    levels_by_checkpoint: dict[str, list[Row]] = {}
    for row in rows:
        if row.group == "pooled" and row.value is not None:
            levels_by_checkpoint.setdefault(row.checkpoint, []).append(row)

    for levels in levels_by_checkpoint.values():
        yield Finding.on(
            levels[0],
            "moved",
            "nll.levels",
            facts={"levels": levels},
            # The first sentence has two levels; a second one has the others.
            further=["nll.levels_further"] if len(levels) > 2 else [],
        )

    for contrast in contrasts:
        if contrast.group != "pooled":
            continue

        direction = contrast.direction(up="less", down="more")
        yield Finding.on(
            contrast,
            "moved",
            f"nll.change_{direction}",
            facts={"change": contrast},
        )


def _token_sets(manifest: Manifest) -> Iterator[TokenSet[SetFacts]]:
    """Yield the sets of tokens of all examples of a manifest, one after the other.

    An example with a canary has the set of the canary alone. Any other has its
    identifiers, a set per type and state of training, and its low-sensitivity text.
    """
    trained_on = trained_identifiers(manifest) if is_known(manifest) else None
    supervision_by_canary = canary_supervision(manifest)
    for index, example in enumerate(manifest.examples):
        if example.canary_id is not None:
            supervision = supervision_by_canary.get(example.canary_id, "")
            yield from _canary_set(index, example, supervision)
        else:
            yield from _identifier_sets(index, example, trained_on)
            yield from _low_set(index, example)


def _identifier_sets(
    index: int, example: ManifestExample, trained_on: Trained | None
) -> Iterator[TokenSet[SetFacts]]:
    """Yield the tokens of an example's identifiers, by type and by what training did.

    Where training is known, identifiers that it cut off are left out (by
    :func:`_tokens_by_state`).

    Parameters
    ----------
    index
        Index of the example in ``manifest.examples``.
    trained_on
        What training did with the identifiers; ``None``: it is not known.
    """
    types = {span.type for span, _ in example.identifiers}
    for pii_type in sorted(types):
        # Where training is known, tokens in the loss and tokens only read are two sets.
        if trained_on is None:
            tokens_by_supervision = {"": example.identifier_tokens(pii_type)}
        else:
            tokens_by_supervision = _tokens_by_state(example, pii_type, trained_on)

        for supervision, tokens in tokens_by_supervision.items():
            facts = SetFacts(
                variant="pii",
                split=example.split,
                task=example.task,
                type=pii_type,
                cluster=example.cluster,
                supervision=supervision,
            )
            yield TokenSet(example=index, tokens=tokens, facts=facts)


def _tokens_by_state(
    example: ManifestExample, pii_type: str, trained_on: Trained
) -> dict[str, np.ndarray]:
    """Return tokens of identifiers of a type, by what training did with them.

    A token that several identifiers share belongs to the first of them. Identifiers
    that training cut off are left out.

    Returns
    -------
    State (:mod:`spark_audit.audits.supervision`) -> indices of its tokens in the
    example, shape ``(tokens,)``. States without a token are left out.
    """
    # From the last identifier to the first, so that the first one overwrites others.
    n_tokens = len(example.reference_unll)
    states = np.full(n_tokens, "-", object)  # (tokens,), "-": no identifier of the type
    for span, (start, end) in reversed(example.identifiers):
        if span.type == pii_type and trained_on.dose_of(example, span) != NOT_READ:
            states[start:end] = trained_on.supervision_of(example, span)

    by_state: dict[str, np.ndarray] = {}
    for state in ("", *STRATA):
        tokens = np.flatnonzero(states == state)
        if len(tokens):
            by_state[state] = tokens
    return by_state


def _low_set(index: int, example: ManifestExample) -> Iterator[TokenSet[SetFacts]]:
    """Yield the low-sensitivity tokens of an example, if it has any."""
    if not example.low:
        return

    facts = SetFacts(
        variant="low",
        split=example.split,
        task=example.task,
        type="",
        cluster=example.cluster,
        supervision="",
    )
    yield TokenSet(example=index, tokens=np.asarray(example.low), facts=facts)


def _canary_set(
    index: int, example: ManifestExample, supervision: str
) -> Iterator[TokenSet[SetFacts]]:
    """Yield the tokens of a canary, from its first to its last secret part.

    A canary that was cut, or that is partly outside of the context, gives none.
    """
    n_planted_parts = sum(span.part is not None for span in example.spans)
    ranges_of_parts = [
        tokens for span, tokens in example.identifiers if span.part is not None
    ]  # (start, end) of each part that was scored
    if not ranges_of_parts or len(ranges_of_parts) != n_planted_parts:
        return

    # A canary may stand in examples of several tasks, and its parts have several types.
    facts = SetFacts(
        variant="canary",
        split=example.split,
        task="",
        type="",
        cluster=f"canary {example.canary_id}",
        supervision=supervision,
    )
    start = np.min(ranges_of_parts)
    end = np.max(ranges_of_parts)
    yield TokenSet(example=index, tokens=np.arange(start, end), facts=facts)
