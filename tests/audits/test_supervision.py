"""Strata of audits: identifiers in the loss, only read, or cut off by training."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from audited import evidence, extract, figure, matched, nll, rank, twins
from masked_training import train_lora
from tiny_models import make_tokenizer
from transformers import AutoModelForCausalLM

from spark_audit.audits.identifiers import identifier_facts
from spark_audit.audits.mia.score_tables import membership_scores
from spark_audit.audits.setup_guards import faults, setup_guards
from spark_audit.audits.supervision import (
    NOT_READ,
    canary_rows_cut,
    canary_supervision,
    trained_identifiers,
)
from spark_audit.audits.supervision_guards import supervision_guards
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.data.encoding import encode_rows
from spark_audit.data.examples import Example, Span
from spark_audit.data.training_input import TrainingInput, Turn
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.content import seal
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.sequences import items_for
from spark_audit.results import Hits
from spark_audit.results.evidence import Evidence
from spark_audit.scoring.score import score
from spark_audit.scoring.table import PLAIN_COLUMNS, Pass, TokenTable

IN_LOSS = "supervision:in the loss"
READ = "supervision:read only"
N_TRAIN = 16
N_TEST = 12
TASK = "chat"


def number(rng):
    return f"555-{rng.integers(1000, 9999)}"


def chat_row(
    key, split, asked_phone, answered, late, *, max_length=None, answered_phone=True
):
    """A number in the question, one in the answer, and one behind what is read."""
    prompt = f"<s>User: my number is {asked_phone}.\nBot: "
    answer = f"call {answered}."
    tail = f"</s>\nUser: or {late}."
    text = prompt + answer + tail
    spans = []
    for string in (asked_phone, answered, late):
        start = text.rindex(string)
        spans.append(Span(start, start + len(string), "PHONE", "injected"))
    end = len(prompt + answer + "</s>")
    training = TrainingInput(
        special_tokens="in_text",
        turns=(Turn(len(prompt), len(prompt + answer), "assistant"),),
        supervised=((len(prompt), end),),
        max_length=max_length,
    )
    return Example(
        id=key,
        task=TASK,
        prompt=prompt,
        response=answer + tail,
        split=split,
        source_id=key,
        spans=tuple(spans),
        training_input=training if answered_phone else None,
    )


@pytest.fixture(scope="module")
def rows():
    """Train rows that end in text that was cut off; their late numbers are read by no
    row, and the first of them stand in test rows, too."""
    rng = np.random.default_rng(0)
    tokenizer = make_tokenizer()
    examples = []
    lates = []
    for i in range(N_TRAIN):
        asked_phone, answered, late = (number(rng) for _ in range(3))
        row = chat_row(f"train-{i:02d}", "train", asked_phone, answered, late)
        (encoding,) = encode_rows(tokenizer, [row])
        length = encoding.first_token_past(row.text.rindex("</s>")) + 1
        examples.append(
            chat_row(
                f"train-{i:02d}",
                "train",
                asked_phone,
                answered,
                late,
                max_length=length,
            )
        )
        lates.append(late)
    for i in range(N_TEST):
        asked_phone = number(rng)
        answered = number(rng)
        late = lates[i] if i < 3 else number(rng)
        examples.append(chat_row(f"test-{i:02d}", "test", asked_phone, answered, late))
    return examples


@pytest.fixture(scope="module")
def manifest(rows, tiny_base):
    loaded = open_checkpoint(str(tiny_base), name="base")
    return build_manifest(rows, loaded, name="m", caliper=5.0)


@pytest.fixture(scope="module")
def trained(rows, tiny_base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    return {
        name: train_lora(
            folder / name,
            rows,
            tiny_base,
            make_tokenizer(),
            is_masked=name == "masked",
        )
        for name in ("masked", "full")
    }


@pytest.fixture(scope="module")
def tables(manifest, tiny_base, trained):
    from spark_audit.audits import NLL, Extraction, Matched, Rank, Twins
    from spark_audit.pipeline.lineup import make_plans, union

    audits = [Matched(), NLL(), Rank(), Twins(), Extraction()]
    plan = union(make_plans(manifest, audits, preset=None)[1])
    tables_by_name = {}
    for name in ("base", *trained):
        if name == "base":
            loaded = open_checkpoint(str(tiny_base), name=name)
        else:
            loaded = open_checkpoint(str(trained[name]), name=name, base=str(tiny_base))
        items = items_for(manifest, loaded, plan)
        tables_by_name[name] = {
            pass_kind: score(loaded, items_of_pass, passes=[pass_kind])[pass_kind]
            for pass_kind, items_of_pass in items.items()
        }
    return tables_by_name


def test_doses_count_rows_that_were_read(manifest, rows):
    trained_on = trained_identifiers(manifest)
    facts = identifier_facts(manifest)
    assert trained_on.is_known
    for row in manifest.examples:
        asked_span, answered, late = row.spans
        doses = [facts[row.id, span.start, span.end].dose for span in row.spans]
        states = [trained_on.supervision_of(row, span) for span in row.spans]
        if row.split == "train":
            assert doses == [1, 1, NOT_READ]
            assert states == ["read only", "in the loss", "cut off"]
        elif row.id in ("test-00", "test-01", "test-02"):
            assert doses == [0, 0, NOT_READ]
        else:
            assert doses == [0, 0, 0]
    # What was cut off has no twins on either side.
    strings = {twin.candidates[twin.true_index] for twin in manifest.twins}
    cut = {row.text[row.spans[2].start : row.spans[2].end] for row in rows[:N_TRAIN]}
    assert strings
    assert not strings & cut


def test_pairs_of_test_rows_leave_out_what_a_trained_row_cut_off(manifest, tables):
    """Three test rows hold a number that training cut off: it is no clean one."""
    trained_on = trained_identifiers(manifest)
    kept_pairs = []
    cut_off = []
    for pair in manifest.pairs:
        row = manifest.by_id[pair.example]
        identifier = pair.pii
        (span,) = (span for span in row.spans if span.start == identifier.char_start)
        if row.split == "test":
            is_cut_off = trained_on.dose_of(row, span) == NOT_READ
            n_tokens = identifier.token_end - identifier.token_start
            (cut_off if is_cut_off else kept_pairs).append(
                (identifier.nll * n_tokens, n_tokens)
            )
    assert cut_off
    result = matched(tables, manifest, placebo_draws=0, rematched=False)
    nll_of_test = figure(result, "base", "nll_pii", group="split:test")
    sums, n_tokens = np.sum(kept_pairs, axis=0)
    assert nll_of_test.value == pytest.approx(sums / n_tokens, abs=1e-4)
    sums, n_tokens = np.sum(kept_pairs + cut_off, axis=0)
    assert nll_of_test.value != pytest.approx(sums / n_tokens, abs=1e-3)


def test_an_identifier_is_what_training_did_most_with_it(tiny_base):
    """A number that one row only reads and another has in its answer."""
    rng = np.random.default_rng(5)
    shared = number(rng)
    rows = [
        chat_row("a", "train", shared, number(rng), number(rng)),
        chat_row("b", "train", number(rng), shared, number(rng)),
        chat_row("c", "test", number(rng), number(rng), number(rng)),
    ]
    loaded = open_checkpoint(str(tiny_base), name="base")
    manifest = build_manifest(rows, loaded, name="m", caliper=5.0)
    trained_on = trained_identifiers(manifest)
    first = manifest.by_id["a"]
    states = [trained_on.supervision_of(first, span) for span in first.spans]
    assert states == ["in the loss", "in the loss", "read only"]
    assert trained_on.dose_of(first, first.spans[0]) == 2


def plain_nll(model_of, row):
    """NLL of every token in float64 by plain transformers."""
    (encoding,) = encode_rows(make_tokenizer(), [row])
    ids = torch.tensor(encoding.ids, dtype=torch.long)[None]
    with torch.no_grad():
        logp = model_of(ids).logits.double().log_softmax(-1)[0]
    return encoding, [
        0.0,
        *(-logp[i, ids[0, i + 1]].item() for i in range(len(logp) - 1)),
    ]


def double_model(base, adapter=None):
    from peft import PeftModel

    model = AutoModelForCausalLM.from_pretrained(base).double()
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter).double()
    return model.eval()


def mean_by_stratum(model, rows):
    """Mean NLL of the numbers in questions and in answers of trained rows."""
    sums = {"asked": [], "answered": []}
    for row in rows:
        if row.split == "train":
            encoding, values = plain_nll(model, row)
            for name, span in zip(sums, row.spans[:2], strict=True):
                tokens = encoding.span(span.start, span.end)
                sums[name] += values[tokens.start : tokens.end]
    return {name: float(np.mean(values)) for name, values in sums.items()}


@pytest.mark.parametrize("name", ["masked", "full"])
def test_strata_are_those_of_plain_transformers(
    name, manifest, tables, rows, trained, tiny_base
):
    result = nll(tables, manifest)
    model = double_model(tiny_base, trained[name])
    expected = mean_by_stratum(model, rows)
    for group, key in ((READ, "asked"), (IN_LOSS, "answered")):
        row = figure(result, name, "nll", "pii", group=group)
        assert row.value == pytest.approx(expected[key], abs=1e-6)
    # Changes since the base, of the same numbers.
    base = mean_by_stratum(double_model(tiny_base), rows)
    result = matched(tables, manifest, placebo_draws=0, rematched=False)
    for group, key in ((READ, "asked"), (IN_LOSS, "answered")):
        row = figure(result, name, "pii_change", "trained", group=group)
        assert row.value == pytest.approx(expected[key] - base[key], abs=2e-6)
        assert figure(result, name, "memory", group=group).n > 0


def test_strata_say_which_identifiers_were_learned(manifest, tables):
    result = matched(tables, manifest, placebo_draws=0, rematched=False)
    masked, full = (
        {
            group: figure(result, name, "memory", group=group)
            for group in (IN_LOSS, READ, "pooled")
        }
        for name in ("masked", "full")
    )
    # Nats per token: what had loss was learned, what was only read was not.
    assert masked[IN_LOSS].high < -0.3
    assert masked[IN_LOSS].high < masked[READ].low
    assert full[IN_LOSS].high < -0.3
    assert full[READ].high < -0.3
    # The pooled claim rests on both.
    n = masked["pooled"].n
    assert n == masked[IN_LOSS].n + masked[READ].n


@pytest.mark.parametrize(
    ("audit", "metric", "variant"),
    [
        (extract, "greedy_rate", ""),
        (twins, "exposure_mean", "trained"),
        (twins, "rise", "trained"),
        (rank, "top1_rate", "pii_all"),
    ],
)
def test_all_audits_of_identifiers_report_both_strata(
    audit, metric, variant, manifest, tables
):
    result = audit(tables, manifest)
    pooled = figure(result, "masked", metric, variant)
    rows_of_strata = [
        figure(result, "masked", metric, variant, group=group)
        for group in (IN_LOSS, READ)
    ]
    assert all(stratum_row.n > 0 for stratum_row in rows_of_strata)
    assert pooled.n == sum(stratum_row.n for stratum_row in rows_of_strata)
    weighted_mean = (
        sum(stratum_row.value * stratum_row.n for stratum_row in rows_of_strata)
        / pooled.n
    )
    assert pooled.value == pytest.approx(weighted_mean)


def test_top1_memory_has_both_strata(manifest, tables):
    result = rank(tables, manifest)
    rises = [
        figure(result, "masked", "top1_memory", "pii_all", group=group).value
        for group in (IN_LOSS, READ)
    ]
    assert rises[0] > rises[1]


def test_rows_without_their_training_have_no_strata(rows, tiny_base):
    plain = []
    for row in rows:
        # The tokenizer adds the BOS itself.
        prompt = row.prompt.removeprefix("<s>")
        spans = tuple(span.moved(len(prompt) - len(row.prompt)) for span in row.spans)
        plain.append(replace(row, prompt=prompt, spans=spans, training_input=None))
    loaded = open_checkpoint(str(tiny_base), name="base")
    manifest = build_manifest(plain, loaded, name="m", caliper=5.0)
    assert not trained_identifiers(manifest).is_known
    facts = identifier_facts(manifest)
    assert {fact.dose for fact in facts.values()} == {0, 1}


def test_the_setup_says_how_much_was_cut_off(manifest, tables):
    (cut_off,) = setup_guards(tables, manifest, names={}, weights={})
    assert (cut_off.name, cut_off.passed) == ("cut_off", False)
    # One of three numbers of each trained row.
    assert cut_off.facts["cut_off"] == Hits(count=N_TRAIN, of=3 * N_TRAIN)
    assert "16 of 48" in cut_off.detail
    assert faults([cut_off], "masked") == []


def test_a_cut_of_under_five_percent_is_not_told(rows, tiny_base):
    # One of 30 identifiers.
    training_inputs = [
        replace(row.training_input, max_length=None) for row in rows[1:10]
    ]
    uncut_rows = [
        replace(row, training_input=training)
        for row, training in zip(rows[1:10], training_inputs, strict=True)
    ]
    loaded = open_checkpoint(str(tiny_base), name="base")
    manifest = build_manifest(
        [rows[0], *uncut_rows, *rows[N_TRAIN:]], loaded, name="m", caliper=5.0
    )
    trained_on = trained_identifiers(manifest)
    assert len(trained_on.cut_off) == 1
    assert supervision_guards(manifest) == []


def unranked(name: str) -> dict[str, object]:
    """The record of a canary in one trained row, without candidates."""
    return {
        "canary_id": name,
        "part": "password",
        "format": "plain",
        "held_out": False,
        "dose": 1,
        "contexts": [],
        "candidates": [],
        "true_index": None,
        "n_tokens": None,
        "reason": "it has no candidates",
    }


def bare(manifest: Manifest) -> TokenTable:
    """Scores of every token of a manifest by which nothing comes back."""
    items = []
    for row in manifest.examples:
        where = np.arange(1, len(row.reference_micronats), dtype=np.int32)
        columns = {
            name: np.full(len(where), 3, dtype) for name, dtype in PLAIN_COLUMNS.items()
        }
        items.append((row.id, where, columns))
    return TokenTable.from_items(items)


def test_a_canary_without_loss_is_told(manifest, tmp_path):
    """Three canaries: one in the loss, one masked, one cut off in its only row."""
    states = {"c1": (True, None), "c2": (False, None), "c3": (True, 6)}
    content = manifest.model_dump(mode="json")
    record = next(
        example for example in content["examples"] if example["split"] == "train"
    )
    rows = []
    for name, (has_loss, max_length) in states.items():
        training = dict(record["training_input"])
        text = record["prompt"] + record["response"]
        training["supervised"] = [[0, len(text)]] if has_loss else []
        training["fed_text"] = [0, len(text)] if max_length is None else [0, 3]
        span = {**record["spans"][1], "part": "password", "type": "PASSWORD"}
        row = {**record, "id": name, "canary_id": name, "spans": [span]}
        rows.append({**row, "training_input": training})
        content["canaries"].append(unranked(name))
    content["examples"] += rows
    changed = seal(content)
    assert canary_supervision(changed) == {
        "c1": "in the loss",
        "c2": "read only",
        "c3": "cut off",
    }
    guards = {guard.name: guard for guard in supervision_guards(changed)}
    facts = guards["canary_without_loss"].facts
    assert facts["without_loss"] == Hits(count=2, of=3)
    assert facts["n_cut_off"] == 1
    assert canary_rows_cut(changed) == {"c1": 0, "c2": 0, "c3": 1}
    # The one that was cut off is neither a trained canary to extract nor held out.
    extract_evidence = evidence(
        "extract", {"ours": {Pass(): bare(changed)}}, changed, prompts="full"
    )
    canaries = extract_evidence.units[extract_evidence.units["set"] == "canary"]
    doses = dict(zip(canaries["canary_id"], canaries["dose"], strict=True))
    assert doses == {"c1": 1, "c2": 1, "c3": NOT_READ}
    # A report of it is read again.
    extract_evidence.write(tmp_path / "extract.parquet")
    read = Evidence.read(tmp_path / "extract.parquet")
    assert read.units["dose"].tolist() == extract_evidence.units["dose"].tolist()


def test_the_score_of_the_response_is_of_tokens_with_loss(manifest, tables):
    ids = [*manifest.by_id]
    table = tables["masked"][Pass()]
    scores = membership_scores(table, manifest, ids)
    for key, response, loss in zip(
        ids, scores["response"], scores["loss"], strict=True
    ):
        row = manifest.by_id[key]
        positions = table.rows(key)
        position = table.position[positions]
        values = -table.columns["nll"][positions].astype(np.float64)
        low, high = row.training_input.supervised_tokens[0]
        is_own = (position >= low) & (position < high)
        assert is_own.any()
        assert not is_own.all()
        assert response == pytest.approx(values[is_own].mean(), abs=1e-9)
        assert loss == pytest.approx(values.mean(), abs=1e-9)
