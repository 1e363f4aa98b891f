"""Identifiers: where each stands, which are audited, and what any tokens cost.

An identifier that stands in a trained row is no held-out one, whatever row it is read
in; its dose is the number of trained rows that it was read in. A model that learned a
form makes all identifiers of this form likelier: held-out ones are a control for
trained ones of the same form and place only, and only where the text alone does not
tell the two sides apart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.base import Plan
from spark_audit.audits.mia.best_guess import characters
from spark_audit.audits.mia.texts import (
    FOLDS,
    dealt,
    enough,
    permuted,
    remembered,
    subsample,
    word_features,
)
from spark_audit.audits.supervision import Trained, is_read, trained_identifiers
from spark_audit.data.injection import FRAMES
from spark_audit.data.occurrences import string_of
from spark_audit.errors import InputError
from spark_audit.manifest.schema import (
    Manifest,
    ManifestExample,
    ManifestSpan,
    TokenRange,
)
from spark_audit.provenance import seed_for
from spark_audit.results import Claim, Row
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.bootstrap import holm
from spark_audit.stats.clustered_roc import Design
from spark_audit.stats.memory_contrast import Sides

TOLD_APART = (
    "the texts of trained and held-out identifiers differ, or too few can be compared"
)


@dataclass(frozen=True)
class Facts:
    """All facts on one occurrence except its scores.

    Attributes
    ----------
    dose
        Trained rows that its string was read in; 0: it is held out, -1: training cut it
        off in all of them.
    form, cue
        Numbers of the format of an injected identifier and of the sentence that it was
        injected with. Of an annotated one 0, and the third of its prompt or response
        that it stands in, from 1.
    stratum, text_auc
        Of an annotated identifier, see :func:`strata`; 0 and NaN for an injected one:
        chance dealt it to its side.
    """

    dose: int
    form: int
    cue: int
    stratum: int = 0
    text_auc: float = np.nan


def identifier_facts(
    manifest: Manifest, trained_on: Trained | None = None
) -> dict[tuple[str, int, int], Facts]:
    """Facts of every annotated span, by example and first and last character.

    Parameters
    ----------
    trained_on
        What training did with the identifiers, if it is known already.
    """
    trained_on = trained_on or trained_identifiers(manifest)
    forms: dict[str, int] = {}
    found, natural = {}, []
    for row in manifest.examples:
        trained = row.split == "train"
        for span in row.spans:
            string = string_of(row, span)
            key = row.id, span.start, span.end
            dose = trained_on.dose_of(row, span)
            form = cue = 0
            if span.origin == "injected":
                marks = re.sub(r"[^\W_]", "", string)  # no letters, no digits
                form = forms.setdefault(f"{span.type} {marks}", len(forms) + 1)
                cue = _cue(row.text, span)
            elif row.canary_id is None and row.text:
                inside = span.start - len(row.prompt)
                at = inside if inside >= 0 else span.start
                cue = 1 + 3 * at // len(row.response if inside >= 0 else row.prompt)
                side = 1 if trained else 0 if dose == 0 else -1
                if not is_read(row, span):
                    side = -1
                place = {
                    "key": key,
                    "type": span.type,
                    "string": row.text[span.start : span.end].strip(),
                    "part": inside >= 0,
                    "later": any(other.end <= span.start for other in row.spans),
                    "context": row.text[: span.start],
                    "cluster": row.cluster,
                    "side": side,
                }
                natural.append(place)
            found[key] = Facts(dose, form, cue)
    if natural:
        spans = pd.DataFrame.from_records(natural, index="key")
        for key, stratum, auc in strata(spans).itertuples(name=None):
            found[key] = replace(found[key], stratum=stratum, text_auc=auc)
    return found


def comparable(spans: pd.DataFrame) -> tuple[pd.DataFrame, bool]:
    """Identifiers that have a control, and whether text alone tells them all apart.

    Annotated ones that text tells apart are left out; where nothing else is left they
    stay, and whatever their figures are is confounded with their text.
    """
    apart = spans["stratum"] < 0
    kept = spans[~apart]
    if set(kept["split"]) == {"train", "test"} or not apart.any():
        return kept, False
    return spans, True


def sides_of(spans: pd.DataFrame) -> Sides:
    """Occurrences on either side, from ``split``, ``cluster``, type, form and place.

    Each weighs by its column ``n_tokens``, without one alike. Annotated identifiers
    are never compared with those of another form.
    """
    kinds = spans[["type", "stratum"]].assign(stratum=spans["stratum"].abs())
    strata = kinds.groupby([*kinds]).ngroup(), spans["form"], spans["cue"]
    codes = [pd.factorize(each)[0] for each in strata]
    trained, tokens = spans["split"] == "train", spans.get("n_tokens")
    return Sides.of(trained, spans["cluster"], codes, tokens)


def _cue(text: str, span: ManifestSpan) -> int:
    """Number of the frame that the identifier was injected with; 0: none of ours."""
    for number, frame in enumerate(FRAMES.get(span.type, ()), start=1):
        head, tail = frame.split("{}")
        if text[: span.start].endswith(head) and text[span.end :].startswith(tail):
            return number
    return 0


MIN_CLUSTERS_OF_STRATUM = 2
"""Held-out clusters that a stratum needs."""
MIN_CLUSTERS_FOR_CLASSIFIER = 10
"""Clusters that each side needs. With fewer, the classifier misses what a checkpoint
knows: that 30 trained dates are of 2010 to 2016 and held-out ones of later years, it
finds in 38% of draws with 5 held-out clusters, in 80% with 6, in all with 8 or 10."""
ROUNDING = 1e-12
"""By which a share of deals may exceed a level that it is equal to."""
CONTEXT_CHARACTERS = 30
"""Characters of the prefix that the classifier reads."""
PERMUTATIONS = 199
"""Deals of the sides that are drawn at least."""
LEVEL = 0.05
"""Share of data of which chance alone dealt the sides that a part drops out of."""
FREE_MAIL = frozenset(
    "aol gmail gmx googlemail hotmail icloud live mail me msn outlook proton "
    "protonmail web yahoo yandex".split()
)
_RUN_OF_FORM = re.compile(r"[^\W_]+|\s+|.", re.DOTALL)


def mask(string: str, kind: str) -> str:
    """Form of an identifier: digits as ``9``, words as ``a``, ``A`` or ``AA``.

    Where there are no letters, runs of three and more digits keep their length, such as
    those of a phone number; in dates, names and addresses lengths vary at random. A
    word with letters and digits is ``x``, and so is every password. Of a mail address
    the top-level domain is kept, or that it is of a free provider.
    """
    if kind == "PASSWORD":
        return "x"
    local, _, domain = string.rpartition("@")
    if local and "." in domain:
        names = domain.lower().split(".")
        ending = "free" if names[-2] in FREE_MAIL else names[-1]
        marks = "".join(c for c in dict.fromkeys(local) if not c.isalnum())
        return f"a{marks}@{ending}"
    exact = not any(c.isalpha() for c in string)
    parts = [_part(run, exact=exact) for run in _RUN_OF_FORM.findall(string.strip())]
    # Of three words and more of one look the number does not matter.
    return re.sub(r"\b(\w+)( \1){2,}\b", r"\1 \1", "".join(parts))


def _part(run: str, *, exact: bool) -> str:
    if run.isspace():
        return " "
    if run.isdigit():
        return "9" * len(run) if exact and len(run) > 2 else "9"
    if not run.isalpha():
        return "x" if run.isalnum() else run
    if run.isupper() and len(run) > 1:
        return "AA"
    return "A" if run[0].isupper() else "a"


@remembered
def strata(spans: pd.DataFrame) -> pd.DataFrame:
    """Comparable occurrences of annotated identifiers, and the test of their texts.

    Types are tested each by itself where both sides have
    :data:`MIN_CLUSTERS_FOR_CLASSIFIER` clusters, the others together, and then all that
    were not told apart. What cannot be tested is no control either. Of several types,
    half of :data:`LEVEL` is for all of these tests together (Holm), so that many types
    drop out no more often than one, and half for what is left.

    Parameters
    ----------
    spans
        A row per occurrence: ``type``, ``string``, ``part`` (prompt or response),
        ``later`` (whether an identifier stands in front of it in its row), ``context``
        (text in front), ``cluster``, and ``side``: 1 trained, 0 held out, -1 neither.

    Returns
    -------
    Same index: ``stratum``, from 1; negative where text alone tells the sides apart or
    that cannot be tested. ``text_auc``: out of fold, within strata; NaN: not tested.
    """
    masks = [mask(*each) for each in zip(spans["string"], spans["type"], strict=True)]
    keys = spans[["type", "part", "later"]].assign(mask=masks)
    found = pd.DataFrame(
        {"stratum": keys.groupby([*keys], sort=False).ngroup() + 1, "text_auc": np.nan},
        index=spans.index,
    )
    used = spans[spans["side"] >= 0].assign(stratum=found["stratum"])
    used = used[counterparts(used)]
    sizes = used.groupby(["type", "side"])["cluster"].nunique().unstack(fill_value=0)
    alone = sizes.index[(sizes >= MIN_CLUSTERS_FOR_CLASSIFIER).all(axis=1)]
    groups = used["type"].where(used["type"].isin(alone), "")
    parts = [part for _, part in used.groupby(groups)]
    level = LEVEL if len(parts) == 1 else LEVEL / 2
    # So many deals that the smallest p can pass the strictest level.
    permutations = max(PERMUTATIONS, math.ceil(len(parts) / level) - 1)

    tests = [told_apart(part, permutations=permutations) for part in parts]
    adjusted = holm([p for _, p in tests if not np.isnan(p)])
    waiting = iter(adjusted)
    is_apart = pd.Series(False, index=used.index)
    for part, (auc, p) in zip(parts, tests, strict=True):
        found.loc[part.index, "text_auc"] = auc
        is_apart[part.index] = np.isnan(p) or next(waiting) <= level + ROUNDING

    rest = used[~is_apart]
    if groups[rest.index].nunique() > 1:
        auc, p = told_apart(rest)
        if np.isnan(p) or p <= level + ROUNDING:
            found.loc[rest.index, "text_auc"] = auc
            is_apart[rest.index] = True
    found.loc[is_apart.index[is_apart], "stratum"] *= -1
    return found


def counterparts(spans: pd.DataFrame) -> np.ndarray:
    """Which occurrences have some of the other side in their stratum.

    A stratum needs a trained occurrence and :data:`MIN_CLUSTERS_OF_STRATUM` held-out
    clusters.

    Parameters
    ----------
    spans
        ``side`` (1 trained, 0 held out), ``cluster``, ``stratum``: a row per
        occurrence.

    Returns
    -------
    Shape ``(s,)`` bool.
    """
    held = spans[spans["side"] == 0].groupby("stratum")["cluster"].nunique()
    enough = set(held.index[held >= MIN_CLUSTERS_OF_STRATUM])
    both = enough & set(spans["stratum"][spans["side"] == 1])
    return np.asarray(spans["stratum"].isin(both))


def told_apart(
    spans: pd.DataFrame, *, permutations: int = PERMUTATIONS
) -> tuple[float, float]:
    """AUC and one-sided p of telling trained identifiers from held-out ones by text.

    The best of three classifiers (ridge regression), by the features of the membership
    audit's: characters of each identifier; words and characters of
    :data:`CONTEXT_CHARACTERS` characters in front of it, and how long its prefix is; or
    both. What stands behind an identifier cannot change its likelihood in a causal
    model. Folds keep clusters whole, identifiers are compared within strata, and whole
    clusters swap sides for the p value, with all fits made anew. NaN where a side has
    too few clusters.
    """
    codes = (pd.factorize(spans[name])[0] for name in ("cluster", "stratum"))
    sides = Design((spans["side"] == 1).to_numpy(), *codes)
    # By the text: with one seed for all, folds that happen to split trained from
    # held-out rows unevenly would do so for every data set of that size.
    rng = np.random.default_rng(seed_for(0, *spans["string"]))
    drawn = subsample(sides, rng)
    used = sides.take(drawn)
    if not enough(used, MIN_CLUSTERS_FOR_CLASSIFIER):
        return np.nan, np.nan
    spans, same = spans.iloc[drawn], np.zeros(len(drawn), np.int64)
    before = spans["context"].str[-CONTEXT_CHARACTERS:].to_list()
    own = characters(spans["string"].to_list(), (1, 4))
    place = np.log1p(spans["context"].str.len().to_numpy())[:, None] / np.log(1000)
    context = [characters(before), word_features(before, same, same), place]
    # Whole clusters swap sides, whatever the strata of their identifiers.
    pool = Design(used.member, used.cluster, same)
    dealt_anew = [permuted(pool, rng) for _ in range(permutations)]
    members = np.stack([used.member, *dealt_anew], axis=1)
    # Folds that know no side, so that those that were dealt anew are no worse off.
    fold = dealt(pool, same, rng.permutation(len(np.unique(used.cluster))))
    tried = []
    for parts in ([own], context, [own, *context]):
        features = scipy.sparse.hstack(parts).tocsr()
        kernel = (features @ features.T).toarray()
        scores = _out_of_fold(kernel, members, used.task, fold)
        tried.append(_areas(scores, members, used.task))
    # The best of each deal too: the choice is no advantage of the sides as they are.
    areas = np.max(tried, axis=0)
    return float(areas[0]), float((areas >= areas[0] - 1e-12).mean())


def _out_of_fold(
    kernel: np.ndarray, members: np.ndarray, stratum: np.ndarray, fold: np.ndarray
) -> np.ndarray:
    """Scores of each deal of sides, shape ``(n, deals)``; the penalty is 1."""
    sizes = np.bincount(stratum)[stratum, None]
    shares = np.stack([np.bincount(stratum, one)[stratum] for one in members.T], 1)
    target = members - shares / sizes
    scores = np.zeros(members.shape)
    for k in range(FOLDS):
        test, train = fold == k, fold != k
        own = kernel[np.ix_(train, train)] + np.eye(int(train.sum()))
        scores[test] = kernel[np.ix_(test, train)] @ np.linalg.solve(own, target[train])
    return scores


def _areas(scores: np.ndarray, members: np.ndarray, stratum: np.ndarray) -> np.ndarray:
    """AUC of each deal, shape ``(deals,)``: mean over strata by pairs of both sides."""
    wins, pairs = np.zeros((2, members.shape[1]))
    for one in np.unique(stratum):
        ours = members[stratum == one]
        count = ours.sum(axis=0)
        ranks = scipy.stats.rankdata(scores[stratum == one], axis=0)
        wins += (ranks * ours).sum(axis=0) - count * (count + 1) / 2
        pairs += count * (len(ours) - count)
    return np.asarray(wins / np.maximum(pairs, 1))


class Sums:
    """Sums over tokens of a manifest's examples of what each of them has.

    Prefix sums over the full tokenisation of every scored example, so that a hundred
    thousand ranges cost one subtraction each.
    """

    def __init__(
        self,
        manifest: Manifest,
        table: TokenTable | None = None,
        values: np.ndarray | None = None,
    ) -> None:
        """Of a checkpoint's NLL in nats; without its scores of the reference model's.

        Sums over an example that the table lacks are refused.

        Parameters
        ----------
        values
            What the table's tokens have instead, shape ``(n,)``.
        """
        lengths = manifest.lengths
        self._first = np.concatenate([[0], np.cumsum(lengths + 1)])
        self._prefix = np.zeros(int(self._first[-1]))
        if table is not None and values is None:
            values = table.columns["nll"]
        # To make an example takes longer than all else.
        for i, key in enumerate(manifest.by_id):
            start, own = self._first[i], np.zeros(lengths[i])
            if table is None or values is None:
                own = np.maximum(manifest.by_id[key].unll, 0) / 1e6
            elif key in table:
                rows = table.rows(key)
                own[table.position[rows]] = values[rows]
            else:
                own[:] = np.nan
            np.cumsum(own, out=self._prefix[start + 1 : start + 1 + len(own)])

    def __call__(
        self, example: np.ndarray | int, start: np.ndarray, length: np.ndarray | int
    ) -> np.ndarray:
        """Sums over ranges of tokens, shape of the arguments; float64.

        Raises
        ------
        InputError
            If an example was not scored.
        """
        first = self._first[example] + start
        found = np.asarray(self._prefix[first + length] - self._prefix[first])
        if np.isnan(found).any():
            raise InputError(
                "the score table lacks an item of the manifest",
                fix="score again with the same manifest",
            )
        return found

    def over(self, sets: Iterable[tuple[int, np.ndarray]]) -> np.ndarray:
        """Sums over sets of tokens, each of one example; float64."""
        return np.array([self(i, tokens, 1).sum() for i, tokens in sets])


def audited_spans(
    manifest: Manifest, splits: Sequence[str] = ("train", "test")
) -> Iterator[tuple[int, ManifestExample, list[tuple[ManifestSpan, TokenRange]]]]:
    """Examples, split by split, with the spans that are audited, and their tokens.

    These are the matched and the unmatched spans; canaries and spans that were cut
    off are no part of the matched audit.
    """
    wanted = {
        (pair.example, pair.pii.char_start, pair.pii.char_end)
        for pair in manifest.pairs
    }
    wanted |= {(s.example, s.char_start, s.char_end) for s in manifest.unmatched}
    for split in splits:
        for i, example in enumerate(manifest.examples):
            if example.split != split:
                continue
            spans = [
                (span, tokens)
                for span, tokens in example.identifiers
                if (example.id, span.start, span.end) in wanted
            ]
            if spans:
                yield i, example, spans


def plan_of_identifiers(manifest: Manifest) -> Plan:
    """All examples with an audited span, for the plain pass."""
    ids = sorted(example.id for _, example, _ in audited_spans(manifest))
    return {Pass(): ids} if ids else {}


REPRODUCED = 1e-3
"""Nats by which scores of the same model may differ from those of the manifest."""


def memory_claim(row: Row) -> Claim:
    """Return what a row of the memory contrast claims by itself.

    The row is a difference of NLL changes: below 0, trained identifiers became
    likelier than held-out ones. ``null_low`` and ``null_high`` are what identifiers
    that were unequally hard on the reference already could give: an interval must
    clear them.
    """
    if row.value is None:
        return "not_tested"
    if row.high is not None and row.high < (row.null_low or 0.0):
        return "memory"
    if row.low is not None and row.low > (row.null_high or 0.0):
        return "betrays"
    return "nothing_shown"
