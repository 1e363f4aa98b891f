"""The membership audit: what it finds, what it doubts, and that it invents nothing."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from audited import change, conclude, evidence, figure, mia, the_one

from spark_audit.audits.base import Context
from spark_audit.audits.mia import audit as mia_audit
from spark_audit.audits.mia import guards as mia_guards
from spark_audit.audits.mia import texts
from spark_audit.audits.mia.above_texts import AboveTexts
from spark_audit.audits.mia.guards import SIDES_DIFFER, TEXTS_DIFFER, UNGUARDED
from spark_audit.audits.mia.peer_rows import peer_rows
from spark_audit.cli.main import run as command_line
from spark_audit.errors import InputError
from spark_audit.manifest.content import seal
from spark_audit.manifest.file import write_manifest
from spark_audit.manifest.redaction import redact
from spark_audit.manifest.schema import Manifest
from spark_audit.results import AuditResult, Contrast, Finding, Row
from spark_audit.results.evidence import Evidence
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.clustered_roc import Design, auc_difference
from spark_audit.stats.estimate import Estimate

PLAIN = Pass()
WORDS = np.array([f"word{i}" for i in range(400)])
TOKENS = 20
Make = Callable[..., Any]


@dataclass(frozen=True)
class World:
    """A manifest of random texts and the untrained model's token scores."""

    manifest: Manifest
    logp: dict[str, np.ndarray]
    members: set[str]
    seed: int = 0

    def table(
        self, *, gain: float = 0.0, seed: int = 1, noise: float = 0.3
    ) -> TokenTable:
        """A checkpoint: members' tokens ``gain`` nats likelier, everything noisy."""
        rng = np.random.default_rng([self.seed, seed])
        items = []
        for key, logp in self.logp.items():
            own_logp = logp + rng.normal(0, noise, len(logp)) if noise else logp
            own_logp = own_logp + gain * (key in self.members)
            columns = {
                "nll": -own_logp.astype(np.float32),
                "rank_lo": np.where(own_logp < -0.5, 2, 1).astype(np.int32),
                "mean_logp": np.full(len(own_logp), -2.0, np.float32),
                "sd_logp": np.full(len(own_logp), 1.0, np.float32),
            }
            items.append(
                (key, np.arange(1, len(own_logp) + 1, dtype=np.int32), columns)
            )
        return TokenTable.from_items(items)

    def tables(self, *, base: bool = True, noise: float = 0.3, **gains: float) -> Any:
        scored = {"base": {PLAIN: self.table(noise=0)}} if base else {}
        for i, (name, gain) in enumerate(gains.items()):
            scored[name] = {PLAIN: self.table(gain=gain, seed=i + 1, noise=noise)}
        return scored


@pytest.fixture
def make_world(make_case) -> Make:
    """``make_world(members=120, others=80, tasks=("t",), seed=0, ...)``."""
    blank = make_case(sources=1).manifest.model_dump(mode="json")

    def make(
        *,
        members: int = 120,
        others: int = 80,
        tasks: tuple[str, ...] = ("t",),
        seed: int = 0,
        marked: float = 0.0,
        shifted: float = 0.0,
        copies: int = 0,
    ) -> World:
        """``marked``: share of members whose text holds a word of their own."""
        rng = np.random.default_rng(seed)
        examples: list[dict[str, Any]] = []
        logp: dict[str, np.ndarray] = {}
        sides: dict[str, list[str]] = {"members": [], "non_members": []}
        for i in range((members + others) * len(tasks)):
            which, task = divmod(i, len(tasks))
            member = which < members
            key = f"e{i:04d}-0"
            source = f"s{i:04d}"
            common = rng.normal(0, 0.3)
            text = " ".join(rng.choice(WORDS, 15))
            if member and rng.random() < marked:
                text += " secretword anotherword"
            label = ["good", "bad"][int(rng.integers(2))]
            values = -rng.gamma(2, 1, TOKENS) + common
            logp[key] = np.minimum(values, -1e-3) + shifted * member
            reference_micronats = np.maximum(np.rint(-logp[key] * 1e6), 0).astype(int)
            sides["members" if member else "non_members"].append(key)
            examples.append(
                {
                    **blank["examples"][0],
                    **{"id": key, "source_id": source, "cluster": source},
                    "task": tasks[task],
                    "split": "train" if member else "test",
                    "prompt": text,
                    "response": f" {label}",
                    "spans": [],
                    "kept": [0, TOKENS + 1],
                    "response_token": TOKENS - 1,
                    "low": [],
                    "reference_unll": [None, *reference_micronats.tolist()],
                    "excluded": [],
                    "classes": "a" * (TOKENS + 1),
                }
            )
        for i in range(copies):
            examples[-1 - i]["prompt"] = examples[i]["prompt"]
        manifest = seal(
            {
                **blank,
                "examples": examples,
                "pairs": [],
                "unmatched": [],
                "membership": sides,
                "counts": {"rows_near_duplicate": 7},
            }
        )
        return World(manifest, logp, set(sides["members"]), seed)

    return make


def run(world: World, /, *, base: bool = True, **options: Any) -> AuditResult:
    gains = {k: v for k, v in options.items() if isinstance(v, float)}
    rest = {k: v for k, v in options.items() if k not in gains}
    rest.setdefault("blind_permutations", 0)
    return mia(world.tables(base=base, **gains), world.manifest, **rest)


def row_of(result: AuditResult, name: str, variant: str, **where: str) -> Row:
    return figure(result, name, "auc", variant, **where)


def change_of(
    result: AuditResult, name: str, baseline: str, variant: str, metric: str = "auc"
) -> Contrast:
    return change(result, name, metric, variant, baseline=baseline)


def guard(result: AuditResult, name: str, detail: str = "") -> Any:
    (guard_found,) = (g for g in result.guards if g.name == name and detail in g.detail)
    return guard_found


def test_without_base_the_manifests_own_reference_scores_stand_in(make_world):
    world = make_world(seed=6)
    without_base = run(world, base=False, ours=0.5)
    beside = run(world, ours=0.5)
    for attack in ("loss", "response", "mink10", "zlib"):
        value_without_base, value_with_base = (
            row_of(r, "base", attack) for r in (without_base, beside)
        )
        assert value_without_base.value == pytest.approx(value_with_base.value)
    value_without_base, value_with_base = (
        row_of(r, "ours", "reference") for r in (without_base, beside)
    )
    assert value_without_base.value == pytest.approx(value_with_base.value, abs=1e-3)
    assert row_of(without_base, "base", "minkpp10").status == "not_estimable"
    assert change_of(without_base, "ours", "base", "loss").low > 0
    assert finding_of(without_base, "ours").claim == "membership"


def test_small_tasks_are_left_out(make_world):
    world = make_world(members=60, others=45, tasks=("a", "b"), seed=9)
    keep = [
        e
        for e in world.manifest.examples
        if e.task == "a" or e.split == "train" or int(e.id[1:5]) % 20 == 1
    ]
    ids = {e.id for e in keep}
    sides = world.manifest.membership
    manifest = world.manifest.model_copy(
        update={
            "examples": keep,
            "membership": sides.model_copy(
                update={"non_members": [i for i in sides.non_members if i in ids]}
            ),
        }
    )
    manifest.__dict__.pop("by_id", None)
    result = mia(world.tables(ours=0.4), manifest, blind_permutations=0)
    small = row_of(result, "ours", "loss", group="task:b")
    assert small.status == "not_estimable"
    assert row_of(result, "ours", "loss").value == (
        row_of(result, "ours", "loss", group="task:a").value
    )


def test_too_few_rows_everywhere_leave_nothing_estimable(make_world):
    result = run(make_world(members=30, others=10), ours=0.5)
    assert {row.status for row in result.results} == {"not_estimable"}
    assert guard(result, "rows").passed is False


# --- guards ---------------------------------------------------------------------------


def finding_of(result: AuditResult, name: str) -> Finding:
    finding: Finding = the_one(result.findings, checkpoint=name)
    return finding


def test_texts_that_differ_stand_beside_every_figure(make_world):
    """What is beyond the texts is claimed, what is not is confounded."""
    world = make_world(marked=0.6)
    result = run(world, ours=0.6, weak=0.06, other=0.0, blind_permutations=39)
    assert guard(result, "blind text classifier").passed is False
    for row in result.results:
        if row.variant != "blind" and row.value is not None:
            assert row.status == "ok"
            assert TEXTS_DIFFER in row.note
            assert row.metric != "auc" or row.low is not None
    sure, weak, none = (finding_of(result, name) for name in ("ours", "weak", "other"))
    assert (sure.claim, sure.variant) == ("membership", "combined")
    blind = row_of(result, "ours", "blind")
    own_row = row_of(result, "ours", "combined")
    (beside,) = (
        record
        for record in result.tables["mia_texts"]
        if (record["checkpoint"], record["variant"]) == ("ours", "combined")
        and record["metric"] == "auc"
    )
    assert beside["says"] == "detected"
    assert sure.facts["score"].value == own_row.value
    assert sure.facts["texts"].value == pytest.approx(beside["texts"])
    design = Design.of(
        [key in world.members for key in sorted(world.logp)],
        [key[:5] for key in sorted(world.logp)],
    )
    stored_evidence = result.evidence
    order = np.argsort(stored_evidence.units["example"])
    combined = stored_evidence.row("ours", "combined")
    texts_alone = stored_evidence.row("base", "texts")
    excess, _ = auc_difference(design, combined[order], texts_alone[order])
    beyond_texts = sure.facts["beyond"]
    assert (beyond_texts.value, beyond_texts.low, beyond_texts.high) == (
        pytest.approx(excess.value),
        pytest.approx(excess.low),
        pytest.approx(excess.high),
    )
    assert weak.claim == "confounded"
    assert row_of(result, "weak", weak.variant).low > 0.5
    assert none.claim == "nothing_shown"
    assert blind.value > blind.no_effect_high


@pytest.mark.parametrize("gain", [0.0, 0.2])
def test_a_guess_that_is_worse_than_chance_is_no_bar(make_world, monkeypatch, gain):
    """Value, interval, p and largest effect are then all measured from chance."""
    world = make_world(seed=3)

    def worse(texts: Any, *given: Any, **options: Any) -> np.ndarray:
        rng = np.random.default_rng(0)
        member = np.array([key in world.members for key in sorted(world.logp)])
        return np.asarray(rng.normal(size=len(texts)) - 0.8 * member)

    monkeypatch.setattr(mia_audit, "best_guess", worse)
    result = run(world, ours=gain)
    finding = finding_of(result, "ours")
    texts = finding.facts["texts"]
    score = finding.facts["score"]
    assert texts.value < 0.35
    assert finding.facts["is_bar_chance"] is True

    # The same by counting pairs.
    values = result.evidence.row("ours", finding.variant)
    member = result.evidence.units["member"].to_numpy(bool)
    above = values[member][:, None] > values[~member]
    area = max(above.mean(), 1 - above.mean())
    assert score.value == pytest.approx(area)
    assert finding.value == pytest.approx(area - 0.5)
    # Beside a null of 0 it is no AUC.
    assert (finding.metric, finding.row_metric) == ("auc_excess", "auc")
    assert finding.no_effect == 0
    assert 1 - score.value <= finding.power[-1].largest_effect <= 0.5

    is_shown = finding.low > 0
    assert is_shown == (finding.claim == "membership") == bool(gain)
    for record in result.tables["mia_texts"]:
        assert record["bar"] >= record["texts"]
        assert record["difference"] == pytest.approx(record["score"] - record["bar"])
        if record["metric"] != "auc":
            chance = figure(
                result, "ours", record["metric"], record["variant"]
            ).no_effect
            assert record["bar"] >= chance


def test_a_guard_that_fails_by_chance_hides_no_memory(make_world, monkeypatch):
    """Of random splits one in twenty looks unlike: certain memory is still told."""
    real = texts.blind_classifier

    def unlucky(*given: Any, **options: Any) -> Any:
        blind_figures, scores = real(*given, **options)
        return blind_figures | {"blind_p": 0.03}, scores

    monkeypatch.setattr(texts, "blind_classifier", unlucky)
    result = run(make_world(seed=7), ours=0.5, still=0.0, blind_permutations=20)
    assert guard(result, "blind text classifier").passed is False
    assert finding_of(result, "ours").claim == "membership"
    assert finding_of(result, "ours").facts["beyond"].value > 0
    assert finding_of(result, "still").claim == "nothing_shown"


@pytest.mark.parametrize("base", [True, False])
def test_help_for_a_topic_is_no_membership(make_world, base):
    """Members are of one topic, known better before, and trained on."""
    result = run(make_world(shifted=0.8, seed=2), base=base, ours=0.6, plain=0.0)
    before = row_of(result, "base", "loss")
    assert not before.low <= 0.5 <= before.high
    reference = row_of(result, "ours", "reference")
    assert reference.value > 0.9
    assert reference.status == "ok"
    assert UNGUARDED in reference.note
    assert change_of(result, "ours", "base", "loss").p < 0.01
    finding = finding_of(result, "ours")
    assert finding.claim == "confounded"
    assert finding.facts["differ_before"]
    assert finding.facts["texts"].value > 0.8
    if not base:
        # It has no figure of the untrained model.
        row = row_of(result, "ours", "minkpp10")
        assert UNGUARDED in row.note


def test_a_base_that_has_read_the_rows_fails_its_guard(make_world):
    result = run(make_world(shifted=0.8, seed=2), ours=0.6, blind_permutations=20)
    read = guard(result, "base_read_rows")
    assert (read.passed, read.checkpoint) == (False, "base")
    before = row_of(result, "base", "loss").value
    assert read.facts["score"].value == pytest.approx(before)
    assert read.facts["texts"].value < before
    assert read.says == "guard.mia.base_read"


def test_a_weak_score_claims_nothing_where_loss_tells_the_sides(make_world):
    """`response` is of few tokens: its own guard passes although the sides differ."""
    result = run(make_world(shifted=0.3, seed=4), ours=0.3)
    assert guard(result, "untrained model", "loss:").passed is False
    assert guard(result, "untrained model", "response:").passed is True
    change = change_of(result, "ours", "base", "response")
    assert change.p < 0.001
    assert change.status == "ok"
    assert SIDES_DIFFER in change.note
    assert row_of(result, "ours", "response").status == "ok"
    says = {r["variant"]: r["says"] for r in result.tables["mia_texts"]}
    assert says["response"] == "confounded"


def test_perfect_separation_is_tested_and_the_declared_score_is_told(make_world):
    """Many p values are tiny: what is told was declared before, not chosen by them."""
    result = run(make_world(members=40, others=30), ours=1.0)
    perfect = row_of(result, "ours", "reference")
    assert (perfect.value, perfect.interval_method) == (1.0, "clopper-pearson")
    finding = finding_of(result, "ours")
    assert (finding.claim, finding.variant) == ("membership", "combined")
    surer = change_of(result, "ours", "base", "minkpp10")
    assert surer.p < 2 * 0.5**30, "more significant than the exact test can be"
    assert surer.value < 0.5
    assert finding.facts["score"].value == 1
    assert not finding.facts.get("void")
    assert not finding.facts.get("untested")


@pytest.mark.parametrize(("p", "passed"), [(0.005, False), (0.03, None), (0.2, True)])
def test_labels_void_the_response_score_below_one_per_cent(
    p, passed, make_world, monkeypatch
):
    monkeypatch.setattr(mia_guards, "label_test", lambda *_, **__: p)
    result = run(make_world(members=40, others=40, seed=4), ours=0.3)
    assert guard(result, "label balance").passed is passed
    status = row_of(result, "ours", "response").status
    assert status == ("invalid" if passed is False else "ok")


def test_near_duplicates_across_the_split(make_world):
    clean = run(make_world(), ours=0.0)
    near_duplicates = guard(clean, "near-duplicates")
    assert near_duplicates.passed is True
    result = run(make_world(copies=20), ours=0.0)
    assert guard(result, "near-duplicates").passed is False
    assert row_of(result, "ours", "loss").status == "insensitive"


def test_near_duplicates_of_tasks_that_are_too_small_do_not_count(make_world):
    """Their examples are not judged, so they cannot void those that are."""
    world = make_world(members=25, others=45, tasks=("a", "b"), copies=20)
    sides = world.manifest.membership
    small = [e.id for e in world.manifest.examples if e.task == "b"]
    edge_ids = {*small[:19], *small[-19:]}
    examples = [e for e in world.manifest.examples if e.task == "a" or e.id in edge_ids]
    ids = {e.id for e in examples}
    manifest = world.manifest.model_copy(
        update={
            "examples": [
                # All of the small task say the same; those of the other differ.
                e.model_copy(
                    update={"prompt": "one text" if e.task == "b" else f"{e.id} says"}
                )
                for e in examples
            ],
            "membership": sides.model_copy(
                update={
                    "members": [i for i in sides.members if i in ids],
                    "non_members": [i for i in sides.non_members if i in ids],
                }
            ),
        }
    )
    manifest.__dict__.pop("by_id", None)
    result = mia(world.tables(ours=0.4), manifest, blind_permutations=0)
    assert row_of(result, "ours", "loss", group="task:b").status == "not_estimable"
    assert row_of(result, "ours", "loss").status == "ok"
    assert guard(result, "near-duplicates").passed is True


@pytest.mark.parametrize("earlier_first", [True, False])
def test_evidence_without_a_later_column_is_of_the_same_examples(
    earlier_first, make_world
):
    """An earlier version did not say which examples have a near-duplicate."""
    world = make_world(copies=20)
    later = evidence("mia", world.tables(a=0.4), world.manifest, blind_permutations=0)
    full_evidence = evidence(
        "mia", world.tables(b=0.0), world.manifest, blind_permutations=0
    )
    earlier = replace(
        full_evidence, units=full_evidence.units.drop(columns="is_crossing")
    )
    evidence_parts = [earlier, later] if earlier_first else [later, earlier]
    united = Evidence.united(evidence_parts)
    assert len(united.units) == len(later.units)
    context = Context(replicates=200)
    result_alone = conclude("mia", later, context, blind_permutations=0)
    result = conclude("mia", united, context, blind_permutations=0)
    assert row_of(result, "a", "loss").value == row_of(result_alone, "a", "loss").value
    assert guard(result, "near-duplicates").passed is False


def test_without_the_blind_classifier_nothing_is_validated(make_world):
    result = run(make_world(), ours=0.0)
    assert guard(result, "blind text classifier").passed is None
    assert row_of(result, "ours", "blind").status == "not_estimable"


def test_a_redacted_manifest_is_refused(make_world):
    world = make_world(members=40, others=30)
    with pytest.raises(InputError, match="was redacted: .* give the original"):
        mia(world.tables(ours=0.5), redact(world.manifest))


def test_scores_of_another_tool_are_judged_beside_ours(make_world, tmp_path):
    world = make_world()
    ids = list(world.logp)
    texts = [world.manifest.by_id[key].text.encode() for key in ids]
    hashes = [hashlib.sha256(text).hexdigest() for text in texts]
    member = np.isin(ids, sorted(world.members))
    frame = pd.DataFrame({"text_sha256": hashes, "score": -1.0 * member})
    frame.to_parquet(tmp_path / "a.parquet")
    tables = world.tables(mine=0.0)
    result = mia(tables, world.manifest, scores_file=f"peer=-{tmp_path / 'a.parquet'}")
    (record,) = result.tables["mia_outside"]
    assert (record["checkpoint"], record["variant"]) == ("mine", "peer")
    assert (record["score"], record["says"]) == (1.0, "detected")
    rows = {(row.checkpoint, row.variant, row.metric): row for row in result.results}
    assert rows["mine", "peer", "auc"].value == 1.0
    assert rows["base", "peer", "auc"].value is None
    # Our own claim rests on our scores.
    assert finding_of(result, "mine").claim == "nothing_shown"
    (tmp_path / "b.csv").write_text("id,score\nnobody,1\n")
    with pytest.raises(InputError, match="holds no score of any row"):
        mia(tables, world.manifest, scores_file=f"peer={tmp_path / 'b.csv'}")


def test_infinite_scores_are_the_ends_of_the_order(make_world, tmp_path):
    world = make_world()
    ids = list(world.logp)
    member = np.isin(ids, sorted(world.members))
    scores = np.random.default_rng(0).normal(size=len(ids)) + 0.8 * member
    extreme = np.where(scores > 1.6, np.inf, np.where(scores < -1.2, -np.inf, scores))
    assert {np.inf, -np.inf} < {*extreme}
    path = tmp_path / "a.csv"
    pd.DataFrame({"id": ids, "score": extreme}).to_csv(path, index=False)
    tables = world.tables(mine=0.0)
    result = mia(tables, world.manifest, scores_file=f"peer={path}")
    row = row_of(result, "mine", "peer")
    finite = np.clip(extreme, -1e6, 1e6)
    above = np.sign(finite[member][:, None] - finite[~member])
    assert row.n == len(ids)
    assert row.value == pytest.approx((above.mean() + 1) / 2)


def test_a_score_that_is_lower_of_trained_rows_is_hinted_at(make_world, tmp_path):
    world = make_world()
    ids = list(world.logp)
    member = np.isin(ids, sorted(world.members))
    noise = np.random.default_rng(0).normal(size=len(ids))
    frame = pd.DataFrame({"id": ids, "score": noise - 2 * member})
    frame.to_csv(tmp_path / "a.csv", index=False)
    tables, path = world.tables(mine=0.0), tmp_path / "a.csv"
    result = mia(tables, world.manifest, scores_file=f"peer={path}")
    (record,) = result.tables["mia_outside"]
    assert record["says"] == "not shown"
    assert "peer=-FILE" in record["note"]
    hint = guard(result, "scores of other tools")
    assert (hint.passed, hint.checkpoint) == (None, "mine")
    assert "peer=-FILE" in hint.detail
    turned = mia(tables, world.manifest, scores_file=f"peer=-{path}")
    (record,) = turned.tables["mia_outside"]
    assert record["says"] == "detected"
    assert "note" not in record
    assert not [g for g in turned.guards if g.name == "scores of other tools"]


def test_scores_by_place_are_judged_with_the_rows_that_were_scored(
    make_world, tmp_path
):
    world = make_world()
    rows = tmp_path / "peer" / "rows.jsonl"
    write_manifest(world.manifest, tmp_path / "m.json")
    call = ["manifest", "rows", str(tmp_path / "m.json"), "-o", str(rows.parent)]
    assert command_line(call) == 0
    assert {path.stat().st_mode & 0o077 for path in rows.parent.iterdir()} == {0}
    files = [rows.parent / f"{name}.jsonl" for name in ("members", "non_members")]
    sides = [path.read_text() for path in files]
    assert rows.read_text() == "".join(sides)
    given_rows = [json.loads(line) for line in rows.read_text().splitlines()]
    assert given_rows == list(peer_rows(world.manifest))
    assert {row["id"] for row in given_rows if row["label"]} == world.members
    assert [row["label"] for row in given_rows] == [1] * 132 + [0] * 92
    own_scores = dict(
        zip(world.logp, np.random.default_rng(1).random(200), strict=True)
    )
    scores = np.array([own_scores[row["id"]] + 2 * row["label"] for row in given_rows])
    np.savez(tmp_path / "mine.npz", train_scores=scores[:132], test_scores=scores[132:])
    np.save(tmp_path / "base.npy", [own_scores[row["id"]] for row in given_rows])
    spec = f"peer:mine={tmp_path / 'mine.npz'},peer:base={tmp_path / 'base.npy'}"
    audit = partial(mia, world.tables(mine=0.0), world.manifest, scores_file=spec)
    result = audit(scores_rows=rows)
    (record,) = result.tables["mia_outside"]
    assert (record["checkpoint"], record["says"]) == ("mine", "detected")
    assert row_of(result, "mine", "peer").value == 1.0
    member = np.isin(list(own_scores), sorted(world.members))
    values = np.array(list(own_scores.values()))
    auc = (values[member][:, None] > values[~member]).mean()
    assert row_of(result, "base", "peer").value == pytest.approx(auc)
    first, *others = map(json.dumps, given_rows)
    for wrong in ({"text": "other"}, {"label": 0}):
        changed = json.dumps({**given_rows[0], **wrong})
        rows.write_text("\n".join([changed, *others]))
        with pytest.raises(InputError, match="other rows than the manifest|label"):
            audit(scores_rows=rows)
    rows.write_text("\n".join([first, *others]))
    with pytest.raises(InputError, match="does not say which rows"):
        audit()


@pytest.mark.parametrize(("df", "expected"), [(8.0, 2 * 0.01062225), (None, 0.0042745)])
def test_the_margin_above_texts_is_tested_by_t_where_clusters_are_few(df, expected):
    """An excess of 0.1 with a standard error of 0.035, by tables of t and normal."""
    texts = 0.8
    margin = (1 - texts) / 2
    excess = Estimate(value=margin + 0.1, se=0.035, df=df, n=40, clusters=10)
    above = AboveTexts(
        excess, score=0.99, texts=texts, larger_p=0.001, sides_differ=True
    )
    assert above.margin == pytest.approx(margin)
    assert above.p == pytest.approx(expected, rel=1e-3)
