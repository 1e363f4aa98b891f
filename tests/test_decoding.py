"""What is made to be shared gives no text back to whoever has the base model."""

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from audited import conclude, matched, of_frame
from decoding import Attacker, Figure, figure, left_over, lines_of
from made_reports import group_fields, made_report, manifest_facts

from spark_audit.audits import Extraction, Matched, Membership
from spark_audit.audits.base import Context
from spark_audit.audits.extract.both_sides import figures_of_both_sides
from spark_audit.audits.ratio_rows import groups_of
from spark_audit.checkpoints.specs import Loading
from spark_audit.cli.main import run as command_line
from spark_audit.data.examples import Example, Span, write_examples
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.file import read_manifest, write_manifest
from spark_audit.manifest.schema import Manifest
from spark_audit.pipeline.run import Request, run
from spark_audit.report.disclosure.rounding import MIN_STEP_TIMES_CLUSTERS
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.report.folder import read_report, write_files, write_report
from spark_audit.report.prepared import PreparedReport
from spark_audit.report.writers import table_files
from spark_audit.report.writers.writer import WriterInput
from spark_audit.results import Finding, Report, Row, number
from spark_audit.results.evidence import Evidence
from spark_audit.results.findings import Hits
from spark_audit.results.rows import MIN_CLUSTERS_TO_PUBLISH, WITHHELD, WITHHELD_NOTE
from spark_audit.stats.estimate import Bound
from spark_train.cli import run as training_line

FIRST = ("Maria", "John", "Peter", "Alice")
LAST = ("Jones", "Smith", "Brown", "Green")
TEXTS = (
    "It was the best of times, it was the worst of times, and {} of Dover knew both.",
    "Call me {}. Some years ago, never mind how long, I thought I would sail a little.",
    "Happy families are all alike; that of {} was unhappy in its own way.",
    "Dear {}, the food was cold and the service slow, but the label is positive.",
    "You don't know about {} without you have read a book; that ain't no matter.",
    "The clocks were striking thirteen. {} slipped quickly through the glass doors.",
)


def rows() -> list[Example]:
    """Natural text with a name each; none stands twice, or rows were one cluster."""
    rows_made = []
    for i in range(16):
        name = f"{FIRST[i % 4]} {LAST[i // 4]}"
        task = ("news", "books")[i % 2]
        prompt = TEXTS[i % 6].format(name) + f" Text {i}. Label:"
        start = prompt.index(name)
        rows_made.append(
            Example(
                id=f"row-{i:02d}",
                task=task,
                prompt=prompt,
                response=" good" if i % 3 else " cold",
                split="test" if i % 4 == 3 else "train",
                source_id=f"source-{i:02d}",
                spans=(Span(start, start + len(name), "NAME"),),
            )
        )
    return rows_made


@pytest.fixture(scope="module")
def attacker(tiny_base) -> Attacker:
    return Attacker(tiny_base)


@pytest.fixture(scope="module")
def audited(tmp_path_factory, tiny_base, make_adapter) -> Path:
    """``data.jsonl``, ``m.json`` of the tiny base, and ``report`` of two audits."""
    from spark_audit.checkpoints.open import open_checkpoint

    folder = tmp_path_factory.mktemp("audited")
    make_adapter(folder / "lora")
    write_examples(folder / "data.jsonl", rows())
    manifest = build_manifest(
        rows(), open_checkpoint(str(tiny_base), name="base"), name="m", caliper=2.0
    )
    assert manifest.pairs
    write_manifest(manifest, folder / "m.json")
    run(
        Request(
            audits=(
                Matched(placebo_draws=2),
                *("rank", "nll"),
                Membership(blind_permutations=0),
            ),
            checkpoints=(f"ours={folder / 'lora'}",),
            base=str(tiny_base),
            manifest=folder / "m.json",
            output=folder / "report",
            loading=Loading(device="cpu"),
            formats=("json",),
        )
    )
    return folder


def texts_of(manifest: Manifest) -> list[str]:
    return [example.prompt + example.response for example in manifest.examples]


def test_the_attack_reads_texts_from_the_files_that_are_kept_private(audited, attacker):
    """Else the tests below would show nothing."""
    manifest = read_manifest(audited / "m.json")
    texts = texts_of(manifest)[:6]
    assert attacker.recovered(audited / "m.json", texts) >= set(texts)
    scores = audited / "report" / "scores"

    def decoded(nll: Iterable[float]) -> str:
        # Four decimals, and the last of two alike is enough for a whole text.
        read = attacker.decode([figure(f"{value:.4f}") for value in nll])
        return str(attacker.tokenizer.decode(read))

    frames = [pd.read_parquet(path) for path in (scores / "store").glob("*.parquet")]
    plain = [
        frame["nll"] for frame in frames if "rank_lo" in frame and "mean_logp" in frame
    ]
    assert {decoded(nll) for nll in pd.concat(plain)} >= set(texts)
    for path in scores.rglob("*"):
        assert path.is_dir() or path.stat().st_mode & 0o077 == 0, path


def test_nothing_that_can_be_shared_gives_text_back(audited, attacker):
    texts = texts_of(read_manifest(audited / "m.json"))
    redacted = audited / "redacted.json"
    folder = audited / "report"
    call = ["manifest", "export", str(audited / "m.json"), "--redact"]
    assert command_line([*call, "-o", str(redacted)]) == 0
    assert command_line(["report", str(folder)]) == 0
    further = "figures,dossier,latex"
    assert command_line(["report", str(folder), "--format", further]) == 0
    files = {p for p in folder.rglob("*") if p.is_file() and "scores" not in p.parts}
    private_files = {p for p in files if p.stat().st_mode & 0o077 == 0}
    assert private_files == {folder / "report.json"}
    read = [p for p in files if p.suffix not in (".png", ".pdf")]
    forms = {".json", ".csv", ".html", ".md", ".tex", ".svg"}
    assert {p.suffix for p in read} == forms
    for path in (redacted, *read):
        assert attacker.recovered(path, texts) == set(), path
    # Nor is anything left that is told of a single span.
    content = json.loads(redacted.read_bytes())
    assert not any("sha256" in entry for entry in content["data"])
    for example in content["examples"]:
        assert example["reference_unll"] == example["low"] == []
        assert example["classes"] == ""
    for pair in content["pairs"]:
        figures_found = pair["distance"], pair["pii"]["nll"], pair["control"]["nll"]
        assert figures_found == (None, None, None)


def singled_out(
    attacker: Attacker, manifest: Manifest, key: str, figures: list[Figure]
) -> bool:
    """Whether the figures of a text's tokens tell its identifier."""
    example = manifest.by_id[key]
    ids = attacker.tokenizer(example.prompt + example.response)["input_ids"]
    # In training an EOS stands behind the text.
    ids += [attacker.tokenizer.eos_token_id] * (len(figures) - len(ids))
    (span,) = example.spans
    assert span.token_start is not None
    assert span.token_end is not None
    hidden = range(span.token_start, span.token_end)
    return attacker.singled_out(ids, hidden, figures)


def test_hidden_words_cannot_be_tried_out_against_printed_scores(
    audited, attacker, tiny_base, capsys
):
    manifest = read_manifest(audited / "m.json")
    call = ["score", str(audited / "data.jsonl"), "--base", str(tiny_base), "--json"]
    for shows_text in (False, True):
        assert training_line([*call, "--show-text"] if shows_text else call) == 0
        for example in json.loads(capsys.readouterr().out)["examples"]:
            tokens = example["tokens"]
            figures = [figure(token["nll"]) for token in tokens]
            assert (
                singled_out(attacker, manifest, example["example"], figures)
                is shows_text
            )
            kinds = [token["kind"] for token in tokens]
            end = len(tokens) if shows_text else kinds.index("pii") - 1
            for index, token in enumerate(tokens):
                assert (token["score"] is not None) == (index < end)
                assert (token["nll"] is not None) == (0 < index < end)


# --- small groups ---------------------------------------------------------------------

NEAR = 0.05
"""Nats a token: nearer than this a span's mean NLL tells a guess from others."""


@pytest.fixture
def small(make_case) -> tuple[Report, pd.DataFrame]:
    """Many clusters, of which one alone has an SSN; and the spans of ``ours``."""
    case = make_case(sources=40, tests=12)
    rng = np.random.default_rng(1)
    tables = case.tables(
        base=lambda key, nll: nll, ours=lambda key, nll: nll * rng.uniform(0.8, 1.3)
    )
    result = matched(tables, case.manifest, replicates=100, placebo_draws=2)
    units = result.evidence.frame()
    spans = units[units["split"] != ""]
    train = spans[(spans["split"] == "train") & (spans["role"] == "pii")]
    train = train[train["checkpoint"] == "ours"]
    sizes = train["cluster"].value_counts()
    is_alone = spans["cluster"] == sizes[sizes == 1].index[0]
    spans = spans.assign(type=spans["type"].where(~is_alone, "SSN"))
    small_evidence = of_frame(spans, "nll_sum", rematched=False, placebo=False)
    again = conclude("matched", small_evidence, Context(replicates=100))
    report = made_report(
        command=["spark-audit", "demo", "--seed", "4711"],
        settings={"seed": 4711},
        manifest=manifest_facts(
            n_sources=40,
            n_clusters=train["cluster"].nunique(),
            n_spans=len(train),
            n_tokens=int(train["n_tokens"].sum()),
        ),
        findings=again.findings,
        results=again.results,
        guards=again.guards,
        tables=result.tables | again.tables,
    )
    return report, spans[spans["checkpoint"] == "ours"]


def own_rows(folder: Path, metric: str = "nll_pii") -> list[dict[str, str]]:
    lines = lines_of(folder / "tables" / "results.csv")
    key = {"checkpoint": "ours", "metric": metric, "variant": ""}
    return [row for row in lines if key.items() <= row.items()]


def test_a_small_group_is_not_what_the_pooled_figure_leaves(small, tmp_path):
    report, spans = small
    (ssn,) = spans[(spans["type"] == "SSN") & (spans["role"] == "pii")].itertuples()
    truth = ssn.nll_sum / ssn.n_tokens
    raw_folder = tmp_path / "raw"
    prepared = PreparedReport(report)
    assert write_files(
        table_files.write_csv(prepared, raw_folder, WriterInput()), raw_folder
    )
    raw = [row for row in own_rows(tmp_path / "raw") if row["group"] != "type:SSN"]
    left = left_over(raw, "type")
    assert left[0] == pytest.approx(truth, abs=1e-9)  # the attack works
    write_report(report, tmp_path, formats=("json", "csv", "md"))
    rows = own_rows(tmp_path)
    states = {row["group"]: row for row in rows}
    assert states["type:SSN"]["value"] == ""
    assert states["type:SSN"]["status"] == "not_estimable"
    assert states["type:SSN"]["note"] in (
        WITHHELD,
        "only 1 cluster holds data, an interval needs 2",
    )
    left = left_over(rows, "type")
    assert left[2] >= MIN_CLUSTERS_TO_PUBLISH + 1
    assert abs(left[0] - truth) > NEAR
    page = (tmp_path / "report.md").read_text()
    assert WITHHELD_NOTE in page
    assert "| withheld |" in page
    # What is private tells all, and what is decided is of it.
    report_kept = read_report(tmp_path)
    assert report_kept.results == report.results
    assert report_kept.findings == report.findings


def test_no_cluster_is_what_two_pools_differ_by(small):
    """Of any two pools rounding leaves a guess."""
    report, _ = small
    rng = np.random.default_rng(0)
    near = []
    for _ in range(300):
        size = int(rng.integers(MIN_CLUSTERS_TO_PUBLISH + 1, 200))
        nll = rng.gamma(2.0, 1.5, size)
        length = rng.integers(2, 9, size)
        pools = [nll * length, (nll * length)[1:]], [length, length[1:]]
        disclosed_values = [
            disclosed_value(float(x.sum() / n.sum()), len(n), report)
            for x, n in zip(*pools, strict=True)
        ]
        sum_of_one, rest = (
            v * n.sum() for v, n in zip(disclosed_values, pools[1], strict=True)
        )
        near.append(abs((sum_of_one - rest) / length[0] - nll[0]) < NEAR)
    # As many as fall there by chance: a tenth of a nat of what is open by one.
    assert np.mean(near) < 0.2


def test_what_could_still_be_there_gives_no_cluster_of_two_pools_either(small):
    """Whoever knows the reach of an interval has a second rounding of each mean."""
    report, _ = small
    rng = np.random.default_rng(0)
    near = []
    nearer = []
    for _ in range(300):
        size = int(rng.integers(MIN_CLUSTERS_TO_PUBLISH + 1, 200))
        nll = rng.gamma(2.0, 1.5, size)
        length = rng.integers(2, 9, size)
        reach = float(rng.uniform(0.05, 1.0))
        values_told = []
        values_of_both = []
        for skipped in (0, 1):
            x = (nll * length)[skipped:]
            n = length[skipped:]
            value = float(x.sum() / n.sum())
            row = report.results[0].model_copy(
                update={
                    "value": value,
                    "low": value,
                    "high": value,
                    "at_most": value - reach,
                    "clusters": len(n),
                }
            )
            full_report = report.model_copy(update={"results": [row], "findings": []})
            (shared_row,) = disclosed(full_report).results
            assert shared_row.value is not None
            assert shared_row.at_most is not None
            values_told.append((shared_row.at_most + reach) * n.sum())
            values_of_both.append(
                (shared_row.at_most + reach + shared_row.value) / 2 * n.sum()
            )
        for guesses, means in ((near, values_told), (nearer, values_of_both)):
            guesses.append(abs((means[0] - means[1]) / length[0] - nll[0]) < NEAR)
    # As for the means alone, and for both roundings together.
    assert np.mean(near) < 0.2
    assert np.mean(nearer) < 0.2


def disclosed_value(value: float, clusters: int, report: Report) -> float:
    """A pooled figure as files tell it that had an interval of no width."""
    row = report.results[0].model_copy(
        update={"value": value, "low": value, "high": value, "clusters": clusters}
    )
    shared = disclosed(report.model_copy(update={"results": [row], "findings": []}))
    assert shared.results[0].value is not None
    return shared.results[0].value


def test_a_sentence_shows_its_rows_figure_where_another_is_written_alike(small):
    # The others' grids differ: of 40 and of 13 clusters.
    like = {"value": 0.0412, "low": None, "high": None, "interval_method": "none"}
    first_row = small[0].results[0].model_copy(update=like | {"clusters": 13})
    second_row = first_row.model_copy(
        update={"metric": "rise", "unit": "bits", "clusters": 400, "value": 0.0411}
    )
    facts = {"delta_sel": second_row, "seeds": False}
    finding = Finding.on(second_row, "memory", "matched.reference", facts=facts)
    report = small[0].model_copy(
        update={"results": [first_row, second_row], "findings": [finding]}
    )
    shared = disclosed(report)
    shared_number = number(shared.results[1].value)
    assert shared_number != number(shared.results[0].value)
    assert f"Delta_sel of {shared_number} nats" in shared.findings[0].sentence


@pytest.mark.parametrize("clusters", [MIN_CLUSTERS_TO_PUBLISH - 1, 40])
def test_a_difference_that_is_claimed_of_a_few_is_withheld_with_its_row(
    clusters, small
):
    where = {"audit": "extract", "checkpoint": "x", "metric": "greedy_rate"}
    figures_told = {
        "value": 10.0,
        "low": 4.0,
        "high": 16.0,
        "no_effect": 0.0,
        "mde": 5.7,
    }
    figures_told["at_most"] = 19.3
    exact = Row(**where, value=0.1, low=0.04, high=0.16, clusters=clusters)
    finding = Finding(
        **where,
        **figures_told,
        unit="points",
        claim="nothing_shown",
        says="utility.transfer_gained",
        facts={"transfer": exact},
        bounds=[Bound(test="t", value=10.0, se=3.06)],
    )
    # A rate of none has the value of no difference: its figures are others.
    for value in (0.1, 10.0):
        row = Row(**where, value=value, unit="", clusters=clusters)
        report_of_one = small[0].model_copy(
            update={"results": [row], "findings": [finding]}
        )
        (shared_finding,) = disclosed(report_of_one).findings
        few = clusters < MIN_CLUSTERS_TO_PUBLISH
        for name, exact in figures_told.items():
            figure = getattr(shared_finding, name)
            if few:
                assert figure is None
            elif name == "mde":
                assert exact <= figure <= exact + 5.0
            else:  # of 40 in or out a step is two, 5 points
                assert figure == pytest.approx(exact, abs=2.5)
        assert shared_finding.bounds == []
        assert ("withheld" in shared_finding.sentence) == few
        assert "16.0" not in shared_finding.sentence


def test_one_pair_tells_nothing_but_that_it_is_there(small, tmp_path):
    report, _ = small
    facts = report.manifest.model_copy(update={"n_clusters": 1, "n_spans": 1})
    tables = {
        "balance": [
            {
                "covariate": "nll_mean",
                "mean_pii": 3.14159265,
                "mean_control": 3.14271828,
                "smd_after": None,
                "note": "",
            }
        ],
        "matched_sensitivity": [
            {"variant": "x", "clusters": 1, "delta_sel": 0.00112563, "note": ""}
        ],
    }
    row = report.results[0].model_copy(
        update={"value": 3.14159265, "low": 3.141, "high": 3.149, "clusters": 1}
    )
    facts_of_pair = {"delta_sel": row, "seeds": False}
    finding = Finding.on(row, "moved", "matched.reference", facts=facts_of_pair)
    report_of_pair = report.model_copy(
        update={
            "manifest": facts,
            "tables": tables,
            "findings": [finding.model_copy(update={"metric": ""})],
            "results": [r.model_copy(update={"clusters": 1}) for r in report.results],
        }
    )
    write_report(report_of_pair, tmp_path)
    files_shared = [
        p for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".png"
    ]
    for path in files_shared:
        text = path.read_bytes()
        if path.name != "report.json":
            assert not re.search(rb"3\.14\d|0\.001\d|--seed 4711|seed 4711", text), path
    (line,) = lines_of(tmp_path / "tables" / "balance.csv")
    assert line["note"] == WITHHELD
    assert line["mean_pii"] == line["mean_control"] == ""
    assert "Delta_sel of [withheld] nats" in (tmp_path / "report.md").read_text()


def test_a_usual_report_loses_nothing_but_digits(make_case, small):
    report, _ = small
    few = ("type:SSN", "type:NAME", "type:EMAIL")
    results = [row for row in report.results if row.group not in few]
    usual = report.model_copy(update={"results": results})
    shared = disclosed(usual)
    assert len(shared.results) == len(results)
    for before, after in zip(results, shared.results, strict=True):
        for name in ("status", "interval_method", "clusters"):
            assert getattr(after, name) == getattr(before, name)
        # Tokens, to what an average cluster has.
        assert abs(after.n - before.n) <= before.n / max(before.clusters, 1)
        for name in ("value", "low", "high", "no_effect", "mde", "at_most"):
            old = getattr(before, name)
            new = getattr(after, name)
            assert (old is None) == (new is None)
            if old is not None and before.low is not None and before.high is not None:
                # Half a step, and steps are at most 5 / 3 of what is asked.
                spread = (before.high - before.low) / 4 / math.sqrt(before.clusters)
                step_allowed = max(MIN_STEP_TIMES_CLUSTERS / before.clusters, spread)
                if name == "mde":  # the step above: no smaller one was detectable
                    assert old - 1e-9 <= new <= old + 1.68 * step_allowed
                else:
                    assert abs(old - new) <= 0.84 * step_allowed
                # Nothing is concluded from an interval that is shown to hold zero.
                assert name not in ("low", "high") or np.sign(old) == np.sign(new)
    assert [f.claim for f in shared.findings] == [f.claim for f in usual.findings]
    # A type of few rows that is left out is named, and its share is withheld.
    sentences = [f.sentence for f in shared.findings if "left_out_types" not in f.facts]
    assert not any("withheld" in sentence for sentence in sentences)
    for name, records in usual.tables.items():
        shared_records = shared.tables[name]
        assert len(shared_records) == len(records)
        for before_, after_ in zip(records, shared_records, strict=True):
            nothing = [k for k, v in before_.items() if v is None]
            assert nothing == [k for k, v in after_.items() if v is None]


@pytest.mark.parametrize(
    ("audit", "trained_rows", "held_out_rows"),
    [("matched", "kind", "specific"), ("twins", "beyond", "rise")],
)
def test_of_two_sides_and_their_difference_none_follows_from_the_others(
    small, audit, trained_rows, held_out_rows
):
    """Kind is the change of Delta_sel minus what is specific: both are withheld."""

    def row(metric: str, group: str, clusters: int) -> Row:
        return Row(
            audit=audit,
            checkpoint="ours",
            metric=metric,
            **group_fields(group),
            unit="nats",
            value=0.5,
            clusters=clusters,
        )

    rows = [
        *(
            row(trained_rows, f"type:{name}", n)
            for name, n in (("A", 3), ("B", 9), ("C", 7))
        ),
        *(row(held_out_rows, f"type:{name}", 30) for name in "ABC"),
        *(row(name, "pooled", 30) for name in (trained_rows, held_out_rows)),
    ]
    shared = disclosed(small[0].model_copy(update={"results": rows, "findings": []}))
    seen = {(r.metric, r.group) for r in shared.results if r.value is not None}
    # Of type A neither is shown, nor of the smallest other, or the pool would tell A.
    assert seen == {
        (m, g) for m in (trained_rows, held_out_rows) for g in ("pooled", "type:B")
    }


@pytest.mark.parametrize(("matched_tokens", "shown"), [(98, False), (80, True)])
def test_what_few_without_a_control_make_apart_is_withheld(
    small, matched_tokens, shown
):
    """Of 40 clusters: a hundred tokens of all, nearly all of them with a control."""
    like = {"checkpoint": "ours", "unit": "nats", "value": 3.0, "clusters": 40}
    rows = [
        Row(audit="nll", metric="nll", variant="pii", n=100, **like),
        Row(audit="matched", metric="nll_pii", n=matched_tokens, **like),
    ]
    report_of_few = small[0].model_copy(update={"results": rows, "findings": []})
    all_identifiers, with_control = disclosed(report_of_few).results
    assert (all_identifiers.value is not None) is shown
    assert with_control.value is not None


def test_a_single_row_is_rarely_seen_in_a_table_or_a_count():
    """One cluster of 50 moves a share by 0.02 at most, and a count of 100 by a few."""
    rng = np.random.default_rng(0)
    seen = []
    counted = []
    for _ in range(100):
        share = rng.uniform(0.1, 0.9)
        count = int(rng.integers(10, 90))
        shared_reports = [
            disclosed(
                made_report(
                    "a",
                    tables={"shares": [{"clusters": 50, "share": share + moved}]},
                    results=[Row(**AT, value=0.5, n=100, clusters=50)],
                    findings=[
                        Finding(
                            **AT,
                            claim="nothing_shown",
                            says="extract.nothing",
                            facts={"hits": Hits(count=count + hits_of_one, of=100)},
                        )
                    ],
                )
            )
            for moved, hits_of_one in ((0.0, 0), (0.004, 1))
        ]
        before, after = (
            shared.tables["shares"][0]["share"] for shared in shared_reports
        )
        seen.append(before != after)
        fewer, more_hits = (
            shared.findings[0].facts["hits"] for shared in shared_reports
        )
        counted.append(fewer.count != more_hits.count)
    assert np.mean(seen) <= 0.4
    assert np.mean(counted) <= 0.5


AT = {"audit": "extract", "checkpoint": "a", "metric": "greedy_rate"}


# --- bounds of extraction ------------------------------------------------------------


def both_sides(bits: np.ndarray, kinds: Iterable[str] = ()) -> list[Row]:
    """The figures of identifiers, each a source of its own, from above and below.

    Parameters
    ----------
    bits
        What bounds each from above; below it are 3 bits more.
    kinds
        Type of each; by default all are names.
    """
    units = pd.DataFrame({"cluster": [f"c{i:03d}" for i in range(len(bits))]})
    units = units.assign(split="train", task="t", type=[*kinds] or "NAME", dose=1)
    values = {
        "bits": bits[None],
        "greedy_sure": np.zeros((1, len(bits))),
        "logp_t1": -(bits + 3)[None] * math.log(2),
    }
    evidence = Evidence(units, ("ours",), values)
    groups = [*groups_of(units)] if kinds else [next(groups_of(units))]
    return figures_of_both_sides(
        groups, evidence, Context(replicates=9), audit=Extraction
    )


def shared_rows(rows: list[Row], report: Report) -> list[Row]:
    full_report = report.model_copy(update={"results": rows, "findings": []})
    return disclosed(full_report).results


def chosen_row(
    rows: list[Row], metric: str, variant: str, group: str = "pooled"
) -> Row:
    (row,) = (
        r for r in rows if (r.metric, r.variant, r.group) == (metric, variant, group)
    )
    return row


def drawn_bits(rng: np.random.Generator, size: int) -> np.ndarray:
    """Whether they come out in a million draws is open for most."""
    return np.asarray(rng.normal(20, 4, size).clip(0))


def test_no_identifier_is_what_two_reports_bound_differently(small):
    """Of the same identifiers without one: its chance is the difference of the sums."""
    report, _ = small
    rng = np.random.default_rng(0)
    near: dict[str, list[bool]] = {"raw": [], "shared": []}
    for _ in range(40):
        size = int(rng.integers(MIN_CLUSTERS_TO_PUBLISH + 1, 120))
        bits = drawn_bits(rng, size)
        truth = -math.expm1(1e6 * math.log1p(-(2 ** -bits[0])))
        sums: dict[str, list[float]] = {"raw": [], "shared": []}
        for part in (bits, bits[1:]):
            rows = both_sides(part)
            forms = {"raw": rows, "shared": shared_rows(rows, report)}
            for form, form_rows in forms.items():
                row = chosen_row(form_rows, "drawn_at_most", "1000000")
                assert row.value is not None
                sums[form].append(row.value * len(part))
        for form, (whole, rest) in sums.items():
            near[form].append(abs(whole - rest - truth) < 0.1)
    assert np.mean(near["raw"]) == 1  # the attack works
    assert np.mean(near["shared"]) < 0.2


def test_whoever_knows_all_identifiers_but_one_cannot_single_it_out(small):
    """All figures of both sides, with their limits, fit many guesses of the last."""
    report, _ = small
    rng = np.random.default_rng(1)

    def told(rows: list[Row]) -> list[tuple[Any, ...]]:
        return [(r.metric, r.variant, r.group, r.value, r.low, r.high) for r in rows]

    fitting_exact = []
    fitting_shared = []
    for size in (12, 25, 50, 110):
        bits = drawn_bits(rng, size)
        rows = both_sides(bits)
        seen = shared_rows(rows, report)
        for guess in drawn_bits(rng, 9):
            guessed_rows = both_sides(np.append(bits[:-1], guess))
            guessed_seen = shared_rows(guessed_rows, report)
            fitting_exact.append(told(guessed_rows) == told(rows))
            fitting_shared.append(told(guessed_seen) == told(seen))
    assert not any(fitting_exact)  # the attack works
    # As many as fit a rounded p, or a rounded mean.
    assert np.mean(fitting_shared) >= 0.1


def test_no_quantile_of_few_identifiers_is_the_bits_of_one_of_them(small):
    report, _ = small
    rng = np.random.default_rng(2)
    near = []
    for size in (*range(3, 30, 2), 60, *range(100, 180, 10)):
        bits = drawn_bits(rng, size)
        rows = both_sides(bits)
        for row in shared_rows(rows, report):
            if row.metric != "bits_bound":
                continue
            if size < MIN_CLUSTERS_TO_PUBLISH:
                assert row.value is None
            if row.value is None:
                continue
            # So many at least are as easy as the quantile says, or it tells of a few.
            exact = chosen_row(rows, "bits_bound", row.variant, row.group).value
            assert exact is not None
            assert (bits <= exact).sum() >= MIN_CLUSTERS_TO_PUBLISH
            assert row.value <= exact  # no bound is promised that does not hold
            near.append(abs(row.value - exact) < 0.25)
    assert len(near) > 30
    assert np.mean(near) < 0.2


def test_a_type_of_few_identifiers_is_not_what_the_others_leave_of_a_bound(small):
    report, _ = small
    rng = np.random.default_rng(3)
    kinds = ["SSN"] * 2 + ["EMAIL"] * 9 + ["NAME"] * 29
    rows = both_sides(drawn_bits(rng, 40), kinds=kinds)
    seen = shared_rows(rows, report)
    for metric in ("drawn_at_most", "drawn_at_least"):
        for draws in ("1", "1000", "1000000"):
            exact = chosen_row(rows, metric, draws, "type:SSN")
            assert exact.value is not None
            # Of the small type nothing is shown, nor of the smallest other.
            for kind, is_shown in (("SSN", False), ("EMAIL", False), ("NAME", True)):
                row = chosen_row(seen, metric, draws, f"type:{kind}")
                assert (row.value is not None) is is_shown


def test_no_form_of_a_report_counts_what_another_one_rounds(small, tmp_path):
    """The sentence on a bound counts identifiers by the rounded share everywhere."""
    report, _ = small
    rows = both_sides(np.repeat([10.0, 60.0], [7, 33]))
    at_most = chosen_row(rows, "drawn_at_most", "1000000")
    at_least = chosen_row(rows, "drawn_at_least", "1000000")
    rate = Row(
        audit="extract",
        checkpoint="ours",
        metric="greedy_rate",
        value=0.0,
        n=40,
        clusters=40,
    )
    facts = {"at_most": at_most, "at_least": at_least}
    finding = Finding.on(
        rate,
        "nothing_shown",
        "extract.counts",
        facts={**facts, "rate": rate, "back": Hits(count=0, of=40)},
        further=["extract.both_sides"],
        status="ok",
    )
    full_report = report.model_copy(
        update={"results": [rate, *rows], "findings": [finding]}
    )
    (exact,) = full_report.findings[0].remarks
    (shown,) = disclosed(full_report).findings[0].remarks
    assert exact != shown
    write_report(full_report, tmp_path, formats=("json", "csv", "md", "html", "latex"))
    pages = [p for p in tmp_path.rglob("*") if p.suffix in (".md", ".html", ".csv")]
    assert any(shown in page.read_text() for page in pages)
    for page in pages:
        assert exact not in page.read_text(), page
