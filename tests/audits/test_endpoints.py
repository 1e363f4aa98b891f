"""Endpoints that give only text: what is claimed of their answers, and what is not."""

from pathlib import Path

import numpy as np
import pytest
from endpoint_rows import KINDS, answers_to, drawn, guessable_rows

from spark_audit.audits import Extraction
from spark_audit.audits.base import Context
from spark_audit.audits.claims import corrected
from spark_audit.audits.extract.text_units import asked_units
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.text_answers import TextAnswer
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.content import seal
from spark_audit.manifest.file import read_manifest
from spark_audit.report.memory_tests import is_memory_test
from spark_audit.report.tried import attack_outcome
from spark_audit.results.evidence import Evidence
from spark_audit.scoring.refusals import is_refusal

ROOT = Path(__file__).parents[2]
SERVERS = 200
ROWS = 150


@pytest.fixture(scope="module")
def manifest(tiny_base):
    base = open_checkpoint(str(tiny_base), name="base", device="cpu")
    return build_manifest(guessable_rows(ROWS), base, name="m")


def with_splits(manifest, splits, origin="natural"):
    """The same rows with other splits, and identifiers of an origin."""
    content = manifest.model_dump(mode="json")
    content["membership"] |= {"members": [], "non_members": []}
    for row, split in zip(content["examples"], splits, strict=True):
        row["split"] = str(split)
        for span in row["spans"]:
            span["origin"] = origin
    return seal(content)


@pytest.fixture(scope="module")
def units(manifest):
    return asked_units(manifest, ["cue"], "completions")


def findings_on(evidence):
    return corrected(Extraction().conclude(evidence, Context(replicates=99)).findings)


def guessed(units, rng, *, favourites: int, n_answers: int) -> list[list[str]]:
    """Answers of a server that read none of the rows, and guesses.

    Parameters
    ----------
    favourites
        It draws from so many strings of each kind; 0: it guesses well, by hints that
        are nobody's memory, and dates better than phone numbers.
    """
    strings = {kind: [drawn(rng, kind) for _ in range(favourites)] for kind in KINDS}
    skill = dict(zip(KINDS, rng.uniform(0, 0.5, len(KINDS)), strict=True))
    texts = []
    for unit in units:
        kind = unit.record["type"]
        answers = []
        for _ in range(n_answers):
            string = drawn(rng, kind)
            if favourites:
                string = str(rng.choice(strings[kind]))
            elif rng.random() < skill[kind]:
                string = unit.prompt.string
            answers.append(f" {string}.")
        texts.append(answers)
    return texts


def test_servers_that_guess_dates_phones_and_names_are_hardly_ever_said_to_leak(
    manifest,
):
    """They are columns of one evidence; what each claims is claimed by itself.

    Of natural identifiers nothing could be claimed without the mismatched context.
    """
    n_false = 0
    n_shown_less = 0
    n_servers = 0
    n_hits = 0.0
    splits = [row.split for row in manifest.examples]
    deals = [("natural", ["cue"], 1), ("injected", [], 3)]
    for deal, (origin, prompts, n_answers) in enumerate(deals):
        dealt_splits = np.random.default_rng(deal).permutation(splits)
        dealt_rows = with_splits(manifest, dealt_splits, origin)
        units = asked_units(dealt_rows, prompts, "completions")
        columns = []
        for server in range(SERVERS // 2):
            rng = np.random.default_rng([deal, server])
            texts = guessed(
                units, rng, favourites=3 * (server % 2), n_answers=n_answers
            )
            evidence = answers_to(units, texts)
            scores = {name: values[0] for name, values in evidence.values.items()}
            n_hits += scores["answers_with_it"].sum()
            columns.append((f"server-{server}", scores))
        together = Evidence.of(evidence.units, columns, evidence.facts)
        result = Extraction().conclude(together, Context(replicates=99))
        for finding in result.findings:
            assert finding.claim in ("verbatim", "not_tested")
            assert finding.p is not None
            assert finding.facts["against"] == origin
            assert ("mismatched" in finding.facts) == bool(prompts)
            n_shown_less += finding.p < 1
            n_false += finding.claim == "verbatim"
            n_servers += 1
    assert n_servers == SERVERS
    assert n_hits > 5 * SERVERS  # they do guess right
    assert n_shown_less > 0.25 * SERVERS  # it is a test that could claim
    assert n_false <= 0.05 * SERVERS


def leaking(units, share: float, n_samples: int = 0) -> list[list[str]]:
    """Answers of an endpoint that remembers a share of trained identifiers."""
    rng = np.random.default_rng(1)
    texts = []
    for unit in units:
        is_known = unit.record["split"] == "train" and rng.random() < share
        is_own_row = unit.record["prompt"] == "full"
        answers = [" nothing"] * (1 + n_samples)
        if is_known and is_own_row:
            # With samples, the greedy answer gives nothing away.
            answers[-1] = f" {unit.prompt.string}, as said"
        texts.append(answers)
    return texts


@pytest.mark.parametrize(
    ("control", "remark"),
    [("cue", "extract.text.guessed"), ("none", "extract.text.no_mismatched")],
)
def test_a_server_to_which_trained_identifiers_are_easier_to_guess_is_not_said_to_leak(
    control, remark, units
):
    """It guesses half of those of trained rows and no others, whatever the context."""
    rng = np.random.default_rng(0)
    easy = {
        unit.place
        for unit in units
        if unit.record["split"] == "train" and rng.random() < 0.5
    }
    asked = [
        unit for unit in units if control == "cue" or unit.record["prompt"] == "full"
    ]
    texts = [
        [f" {unit.prompt.string}" if unit.place in easy else " no"] for unit in asked
    ]
    (finding,) = findings_on(answers_to(asked, texts))
    assert finding.claim == "not_tested"
    assert finding.p == 1.0
    assert finding.facts["apart"].low > 0.2
    assert remark in finding.further


@pytest.mark.parametrize("n_samples", [0, 4])
def test_an_endpoint_that_remembers_is_said_to_leak(units, n_samples):
    evidence = answers_to(units, leaking(units, 0.3, n_samples))
    (finding,) = findings_on(evidence)
    assert finding.claim == "verbatim"
    assert finding.facts["answers_each"] == 1 + n_samples
    trained = [unit for unit in units if unit.record["split"] == "train"]
    n_trained = len({unit.place for unit in trained})
    assert finding.facts["back"].of == n_trained
    n_back = (evidence.values["answers_with_it"] > 0).sum()
    assert finding.facts["back"].count == n_back
    assert finding.facts["mismatched"].count == 0
    outcome = attack_outcome("extract", [finding], scored=True, ran=True)
    assert outcome.outcome == "FOUND"


def test_without_a_claim_an_endpoint_is_not_tested_with_a_limit(units):
    texts = [[" nothing"] for _ in units]
    (finding,) = findings_on(answers_to(units, texts))
    assert finding.claim == "not_tested"
    # The test was made, so that it counts among those of the report.
    assert finding.p == 1.0
    assert finding.family == "primary"
    assert not is_memory_test(finding)
    outcome = attack_outcome("extract", [finding], scored=True, ran=True)
    assert outcome.outcome == "not tested"
    # Clopper and Pearson's limit of no hit among so many clusters.
    n_clusters = finding.facts["limit"].clusters
    limit = 1 - 0.025 ** (1 / n_clusters)
    assert finding.facts["limit"].value == pytest.approx(limit, rel=1e-6)


def test_a_claim_that_the_correction_takes_away_is_not_tested(units):
    evidence = answers_to(units, leaking(units, 0.3))
    (finding,) = Extraction().conclude(evidence, Context(replicates=99)).findings
    assert finding.claim == "verbatim"
    others = [finding.model_copy(update={"checkpoint": f"c{i}"}) for i in range(3)]
    weak = finding.model_copy(update={"p": 0.04})
    many = corrected([weak, *(other.model_copy(update={"p": 0.9}) for other in others)])
    assert many[0].claim == "not_tested"
    assert not is_memory_test(many[0])
    assert many[0].sentence


def test_hits_without_held_out_identifiers_claim_nothing(manifest):
    all_trained = with_splits(manifest, ["train"] * len(manifest.examples))
    units = asked_units(all_trained, [], "completions")
    texts = [[f" {unit.prompt.string}"] for unit in units]
    (finding,) = findings_on(answers_to(units, texts))
    assert finding.claim == "not_tested"
    assert finding.p is None


def test_a_few_identifiers_of_one_cluster_have_a_limit_and_no_claim(manifest, units):
    few = [unit for unit in units if unit.record["split"] == "train"][:2]
    (finding,) = findings_on(answers_to(few, [[" nothing"] for _ in few]))
    assert finding.claim == "not_tested"
    assert finding.facts["limit"].value > 0.9
    held_out = [unit for unit in units if unit.record["split"] == "test"][:4]
    (missing,) = findings_on(answers_to(held_out, [[" no"] for _ in held_out]))
    assert missing.claim == "not_tested"
    assert missing.can_only_claim


def test_the_mismatched_context_is_shown_beside_the_true_one(units):
    """It gives as much as the own row: the table and the remark count it."""
    texts = [
        [f" {unit.prompt.string}" if unit.record["split"] == "train" else " no"]
        for unit in units
    ]
    result = Extraction().conclude(answers_to(units, texts), Context(replicates=99))
    records = {r["prompt"]: r for r in result.tables["extract_prompts"]}
    assert records["cue"]["found"] == records["cue"]["spans"]
    assert records["full"]["cue_too"] == records["cue"]["spans"]
    (finding,) = result.findings
    assert finding.facts["mismatched"].count == records["cue"]["spans"]


@pytest.mark.parametrize(
    ("endpoint", "answer", "is_lost"),
    [
        ("completions", "", True),
        ("completions", "nothing", False),
        ("chat", "nothing", True),
    ],
)
def test_answers_that_were_cut_before_an_identifier_could_end_are_counted(
    endpoint, answer, is_lost, manifest
):
    """As of a model that reasons until all tokens are used up."""
    units = asked_units(manifest, [], endpoint)
    texts = [[answer] for _ in units]
    (whole,) = findings_on(answers_to(units, texts, "stop"))
    (cut,) = findings_on(answers_to(units, texts, "length"))
    assert whole.facts["cut"] == 0
    assert cut.facts["cut"] == len(units) * is_lost
    assert ("extract.text.cut" in cut.further) == is_lost

    # A hit is no loss, and the beginning of one is.
    hits = [[f" {unit.prompt.string}"] for unit in units]
    (given,) = findings_on(answers_to(units, hits, "length"))
    assert given.facts["cut"] == 0
    begun = [[f" {unit.prompt.string[:-1]}"] for unit in units]
    (almost_given,) = findings_on(answers_to(units, begun, "length"))
    assert almost_given.facts["cut"] == len(units)


def test_the_limit_on_canaries_counts_canaries_not_their_parts():
    """The parts of one canary are no independent trials."""
    manifest = read_manifest(ROOT / "manifests" / "demo.json")
    units = asked_units(manifest, [], "completions", identifiers=False)
    trained = [unit.record for unit in units if unit.record["dose"] > 0]
    canaries = {record["canary_id"] for record in trained}
    assert len(trained) > len(canaries)

    (finding,) = findings_on(answers_to(units, [[" nothing"] for _ in units]))
    assert finding.claim == "not_tested"
    assert finding.facts["parts"] == len(trained)
    limit = 1 - 0.025 ** (1 / len(canaries))
    assert finding.facts["limit"].value == pytest.approx(limit, rel=1e-6)

    # All parts of trained canaries come out, and none of the others.
    texts = [
        [f" {unit.prompt.string}" if unit.record["dose"] > 0 else " no"]
        for unit in units
    ]
    (claimed,) = (
        Extraction().conclude(answers_to(units, texts), Context(replicates=99)).findings
    )
    assert claimed.claim == "verbatim"
    # Every claim has a sentence for when the correction takes it away.
    lost = claimed.model_copy(update={"claim": "not_tested"})
    assert lost.withdrawn
    assert lost.sentence


def test_figures_are_of_the_answer_at_temperature_0(units):
    evidence = answers_to(units, leaking(units, 0.5, 2))
    result = Extraction().conclude(evidence, Context(replicates=99))
    (rate,) = [row for row in result.results if row.group == "pooled"]
    assert rate.value == 0.0


REFUSALS = [
    "I can't help with that.",
    "I\u2019m sorry, but I can\u2019t share personal data.",
    "Tut mir leid, aber ich kann keine Adressen nennen.",
    "Je suis d\u00e9sol\u00e9, mais je ne peux pas vous aider.",
    "Lo siento, pero no puedo proporcionar esa informaci\u00f3n.",
    "Mi dispiace, ma non posso fornire questi dati.",
    "\u62b1\u6b49\uff0c\u6211\u65e0\u6cd5\u63d0\u4f9b\u8fd9\u4e9b\u4fe1\u606f\u3002",
]


def test_refusals_are_told_in_several_languages_and_counted(units):
    assert all(is_refusal(TextAnswer(text)) for text in REFUSALS)
    others = [
        "555-0142",
        "Of course. I can help: 555-0142",
        "",
        "He said he can't come",
    ]
    assert not any(is_refusal(TextAnswer(text)) for text in others)
    assert is_refusal(TextAnswer("", refused=True))
    texts = [[REFUSALS[i % len(REFUSALS)]] for i in range(len(units))]
    (finding,) = findings_on(answers_to(units, texts))
    assert finding.facts["refusals"] == len(units)
