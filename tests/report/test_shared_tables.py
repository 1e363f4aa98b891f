"""No table of a shared file is exempt: digits, p, counts of tokens, groups of few."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy
from decoding import lines_of
from made_reports import figure, made_report
from shared_digits import digits, long_numbers

from spark_audit.audits.mia.covariates import covariate_table
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.report.folder import write_report
from spark_audit.report.formats import EXACT_FORMATS, FORMATS_ON_REQUEST, WRITERS
from spark_audit.report.writers.table_files import csv_text
from spark_audit.results import Finding, Report
from spark_audit.results.rows import MIN_CLUSTERS_TO_PUBLISH

LONG = 0.12345678901234567
ENDS = ("value", "low", "high")
AUDITS = {
    "mia_covariates": "mia",
    "mia_texts": "mia",
    "mia_roc": "mia",
    "stages_states": "stages",
    "series_stages": "series",
    "series_epsilon": "series",
    "canary_by_dose": "canary",
    "canary_epsilon": "canary",
    "accuracy_matrix": "utility",
    "extract_prompts": "extract",
    "matched_placebo": "matched",
    "noise_draws": "noise",
    "balance": "manifest",
    "somebody_elses": "theirs",
}


def tables() -> dict[str, list[dict[str, Any]]]:
    """Records of all kinds of tables, each number with all of its digits."""
    whose = {"checkpoint": "a"}
    bound = {"part": "full", "dose": 1, "says": "a bound", "epsilon_per_record": LONG}
    return {
        "mia_covariates": [
            {"task": "t", "covariate": "length", "ks": LONG, "p": LONG, "smd": -LONG}
        ],
        "mia_texts": [
            {**whose, "variant": "loss", "score": LONG, "low": LONG, "p": LONG}
        ],
        "mia_roc": [
            {
                **whose,
                "variant": "loss",
                "fpr": k * LONG,
                "tpr": k * LONG,
                "chance_low": LONG,
                "chance_high": 4 * LONG,
            }
            for k in (1, 2, 3)
        ],
        "stages_states": [
            {
                **whose,
                "task": "t",
                "stage": stage,
                "trained_at": 1,
                "state": "remembered",
                "p_adjusted": LONG / 7,
                "likelier_again": False,
                "step_p_adjusted": LONG,
                "clusters": 40,
            }
            for stage in (1, 2)
        ],
        "series_stages": [
            {
                **whose,
                "stage": stage,
                "tasks": stage,
                **{f"{of}_{end}": LONG for of in ("last", "series") for end in ENDS},
            }
            for stage in (1, 2)
        ],
        "series_epsilon": [{**whose, **bound, "significance": LONG}],
        "canary_by_dose": [
            {
                **whose,
                "part": "full",
                "dose": 1,
                "exposure_mean": LONG,
                "p_remembered": LONG,
            }
        ],
        "canary_epsilon": [{**whose, **bound}],
        "accuracy_matrix": [{**whose, "stage": 1, "after": "t", "t": LONG}],
        "extract_prompts": [
            {**whose, "clusters": 40, "spans": 80, "low": LONG, "p_adjusted": LONG / 9}
        ],
        "matched_placebo": [{**whose, "draws": 200, "mean": LONG, "sd": LONG}],
        "noise_draws": [{**whose, "sigma": 0.5, "relative": LONG, "draws": 3}],
        "balance": [{"covariate": "nll_mean", "mean_pii": LONG, "note": ""}],
        "somebody_elses": [{**whose, "value": LONG, "p": LONG, "share_of_all": LONG}],
    }


@pytest.fixture(scope="module")
def report() -> Report:
    rows = [
        figure("a", column, LONG, clusters=40, n=777, interval_level=1 - LONG / 7)
        for column in (
            *("mia|auc|loss", "stages|memory|1", "utility|accuracy|1|task:t"),
            *("canary|exposure_mean|full", "matched|nll_pii", "extract|greedy_rate"),
            *("rank|top1_rate|pii", "series|auc|series", "noise|gap|0.5"),
            *("theirs|value",),
        )
    ]
    change = figure("a", "matched|did", LONG, clusters=40, baseline="b", p=LONG)
    moved_finding = Finding.on(
        change,
        "moved",
        "said",
        facts={"text": "It moved.", "otherwise": ""},
        p=LONG / 3,
        p_adjusted=LONG,
    )
    return made_report(
        *("a", "b"),
        results=rows,
        contrasts=[change],
        findings=[moved_finding],
        tables=tables(),
        origins=AUDITS,
    )


def test_no_number_of_any_format_has_more_than_six_digits(report, tmp_path):
    private = ("json", "named", *EXACT_FORMATS.values())
    formats = [name for name in WRITERS if name not in private]
    written = write_report(report, tmp_path, formats=formats)
    assert {*FORMATS_ON_REQUEST, "html", "md", "csv"} <= {*formats, *private}
    long_by_name = {path.name: [*long_numbers(path)] for path in written}
    assert {name: long for name, long in long_by_name.items() if long} == {}
    assert {f"{name}.csv" for name in tables()} <= long_by_name.keys()
    # Those that are not rounded would be seen.
    (tmp_path / "exact.csv").write_text(f"value\n{LONG}\n")
    assert [*long_numbers(tmp_path / "exact.csv")] == [str(LONG)]


def test_a_number_of_tries_beyond_counting_is_over_its_bound(tmp_path):
    rows = [
        figure("a", f"extract|n50_median|{of}", value, low=value, high=None, **tries)
        for of, value in (("t1", 1e12), ("top40", 3e7))
        for tries in [
            {"unit": "tries", "clusters": 40, "interval_method": "percentile"}
        ]
    ]
    write_report(made_report("a", results=rows), tmp_path, formats=["csv", "md"])

    table = pd.read_csv(tmp_path / "tables" / "results.csv", keep_default_na=False)
    assert [*table["beyond"]] == ["over 1e12", ""]
    assert [*table["value"].astype(float)] == [1e12, 1e7]
    lines = (tmp_path / "tables" / "results.csv").read_text().splitlines()
    assert all("1000000" not in line for line in lines)
    assert not [*long_numbers(tmp_path / "tables" / "results.csv")]


def test_every_p_of_every_table_has_one_digit(report, tmp_path):
    write_report(report, tmp_path, formats=["csv"])
    seen = 0
    for path in (tmp_path / "tables").glob("*.csv"):
        for line in lines_of(path):
            for column, value in line.items():
                if "p" in column.split("_") and value:
                    assert digits(value) <= 1, (path.name, column, value)
                    seen += 1
    assert seen >= 10
    (shared_finding,) = disclosed(report).findings
    assert digits(repr(shared_finding.p)) <= 1
    assert digits(repr(shared_finding.p_adjusted)) <= 1


def test_a_p_is_not_rounded_like_a_share(report):
    """A step of a share would make 0.0137 of it 0.025, or 5 points."""
    shared_records = disclosed(report).tables
    assert shared_records["extract_prompts"][0]["p_adjusted"] == 0.01
    assert shared_records["stages_states"][0]["p_adjusted"] == 0.02


def test_tokens_of_a_table_are_rounded_to_those_of_a_cluster():
    records = [{"clusters": 50, "tokens": 1234, "n": 991}]
    table_report = made_report("a", tables={"of_tokens": records})
    (shared_record,) = disclosed(table_report).tables["of_tokens"]
    # 25 and 20 tokens a cluster; the steps are 30 and 20.
    assert shared_record == {"clusters": 50, "tokens": 1230, "n": 1000}


def test_ranks_are_rounded_as_the_largest_of_them_asks():
    """One token of rank 40,000 among 5,000 moves a mean of 90 by 8."""
    row = figure("a", "rank|rank_mean|pii_all", 91.2345, unit="ranks", clusters=100)
    shared_values = [
        disclosed(made_report("a", results=[each_row])).results[0].value
        for each_row in (row, row.model_copy(update={"value": 91.2345 + 8}))
    ]
    assert shared_values == [90.0, 100.0]


def test_a_count_of_identifiers_is_rounded_to_two_clusters_worth():
    """100 identifiers in 20 clusters: five each, so that counts go by tens."""
    record = {"checkpoint": "a", "clusters": 20, "spans": 100, "tried": 100}
    shared_counts = [
        disclosed(
            made_report("a", tables={"extract_prompts": [record | {"found": count}]})
        ).tables["extract_prompts"][0]["found"]
        for count in (42, 47)
    ]
    assert shared_counts == [40, 50]


def test_how_many_tokens_an_identifier_has_is_in_no_reason():
    reasons = "1 no eligible window of length 17; 2 no eligible window of length 23"
    record = {"type": "SSN", "matched": 9, "unmatched": 4}
    record |= {"reasons": f"{reasons}; 1 none within caliper"}
    table_report = made_report("a", tables={"matching_by_type": [record]})
    (shared_record,) = disclosed(table_report).tables["matching_by_type"]
    assert shared_record["reasons"] == "3 no eligible window; 1 none within caliper"
    assert [shared_record["matched"], shared_record["unmatched"]] == [9, 4]


def test_a_table_of_a_task_is_withheld_where_the_task_has_few_clusters():
    """Whatever the pooled figure has: the record is of the task."""
    rows = [
        figure("a", "mia|auc|loss", clusters=400),
        figure("a", "mia|auc|loss|task:small", clusters=MIN_CLUSTERS_TO_PUBLISH - 1),
        figure("a", "mia|auc|loss|task:large", clusters=200),
    ]
    records = [
        {"task": task, "covariate": "length", "ks": 0.5, "p": 0.013, "smd": 0.4}
        for task in ("small", "large")
    ]
    table_report = made_report("a", results=rows, tables={"mia_covariates": records})
    table_report = table_report.model_copy(
        update={"origins": {"mia_covariates": "mia"}}
    )
    small, large = disclosed(table_report).tables["mia_covariates"]
    assert [small[name] for name in ("ks", "p", "smd")] == [None, None, None]
    assert "withheld" in small["note"]
    assert [large[name] for name in ("ks", "p", "smd")] == [0.5, 0.01, 0.4]


def test_a_state_of_few_is_shown_without_its_p():
    record = {
        "checkpoint": "a",
        "task": "t",
        "stage": 2,
        "trained_at": 1,
        "state": "remembered",
        "p_adjusted": 0.0123,
        "clusters": MIN_CLUSTERS_TO_PUBLISH - 1,
    }
    table_report = made_report("a", tables={"stages_states": [record]})
    (shared_record,) = disclosed(table_report).tables["stages_states"]
    assert shared_record["p_adjusted"] is None
    assert [
        shared_record["state"],
        shared_record["stage"],
        shared_record["trained_at"],
    ] == ["remembered", 2, 1]


def test_the_length_of_one_text_is_not_what_the_covariates_leave_open():
    """The attacker knows all rows but one, and tries each length of that one."""
    import pandas as pd

    rng = np.random.default_rng(0)
    lengths = rng.integers(60, 220, 120)
    facts = pd.DataFrame(
        {
            "task": "t",
            "member": np.arange(120) % 2 == 0,
            "cluster": [f"c{k}" for k in range(120)],
            "length": lengths,
            "zlib_bytes": lengths * 3 // 4,
        }
    )

    def tables_of(length: int) -> tuple[Any, Any]:
        """Return the exact table of a guess, and the one that is shared."""
        changed = facts.assign(length=[length, *lengths[1:]])
        records = [r for r in covariate_table(changed) if r["covariate"] == "length"]
        exact = made_report("a", tables={"mia_covariates": records})
        tables = exact.tables, disclosed(exact).tables
        return tables[0]["mia_covariates"], tables[1]["mia_covariates"]

    exact, shared = tables_of(int(lengths[0]))
    left_by_exact, left_by_shared = [], []
    for length in range(60, 220):
        guessed_exact, guessed_shared = tables_of(length)
        if guessed_exact == exact:
            left_by_exact.append(length)
        if guessed_shared == shared:
            left_by_shared.append(length)
    assert left_by_exact == [lengths[0]]  # the attack works
    assert len(left_by_shared) >= 40


@pytest.mark.parametrize(
    "n_guesses",
    [41, pytest.param(161, marks=pytest.mark.slow)],
    ids=["few", "many"],
)
@pytest.mark.parametrize("clusters", [40, 120, 400])
def test_a_p_leaves_one_score_of_its_rows_open(clusters, n_guesses):
    """The attacker knows all scores but one, and tries what that one could be."""
    guesses = np.linspace(-4, 4, n_guesses)
    guesses_left = []
    for seed in range(10):
        own_scores = np.random.default_rng(seed).normal(-0.3, 1.0, clusters)

        def shown(score: float, others: np.ndarray = own_scores[1:]) -> float:
            p = scipy.stats.ttest_1samp([score, *others], 0.0).pvalue
            record = {"checkpoint": "a", "clusters": clusters, "p_adjusted": float(p)}
            table_report = made_report("a", tables={"shown": [record]})
            shared_p: float = disclosed(table_report).tables["shown"][0]["p_adjusted"]
            return shared_p

        own_p = shown(own_scores[0])
        guesses_left.append(np.mean([shown(guess) == own_p for guess in guesses]))
    # As of a figure that is rounded to one standard deviation of a score.
    assert np.median(guesses_left) > 0.08


@pytest.mark.parametrize(
    ("p", "side"), [(0.0496, True), (0.0504, False), (0.05, False)]
)
def test_a_shared_p_stays_on_its_side_of_the_level(p, side):
    record = {"checkpoint": "a", "clusters": 40, "p": p}
    table_report = made_report("a", tables={"shown": [record]})
    assert (disclosed(table_report).tables["shown"][0]["p"] < 0.05) is side


def test_settings_sources_and_commands_tell_no_folder_and_no_key(tmp_path):
    """As they are typed, they name people, clinics and accounts."""
    secret = "Clinic Berlin"
    typed = [
        *("--scores-file", f"x=/data/{secret}/scores.csv"),
        *("--ckpt", f"a=file:///home/{secret}/runs/a", f"b=~/{secret}/b@2"),
        f"--base=https://anna:{secret}@host/v1?key=abc123&x={secret}",
        f"c=[/data/{secret}/1,/data/{secret}/2]",
        f"hf:ORG/NAME?token={secret}",
        f"../{secret}/d",
        f"-o/srv/{secret}/out",
        f"d=/data/a={secret}, b:{secret}/e",
    ]
    secret_report = made_report(
        "a",
        command=["spark-audit", "all", *typed],
        settings={
            "mia.scores_file": [f"x=data/{secret}/scores.csv"],
            "mia.scores_rows": f"/data/{secret}/rows.csv",
            "reference": f"/models/{secret}/base",
        },
    )
    (facts,) = secret_report.checkpoints
    facts = facts.model_copy(
        update={
            "source": f"file:///home/{secret}/runs/a?key=abc123",
            "base": f"/models/{secret}/base",
            "notes": [f"opened from /models/{secret}/base"],
        }
    )
    secret_report = secret_report.model_copy(update={"checkpoints": [facts]})
    written = write_report(
        secret_report, tmp_path, formats=["html", "md", "dossier", "card"]
    )
    for path in written:
        text = path.read_text()
        assert "Clinic" not in text, path
        assert not re.search(r"abc123|/home/|anna:", text), path
    page = Path(tmp_path / "report.html").read_text()
    assert "x=scores.csv" in page
    assert "https://host/v1?..." in page


def test_a_count_beside_a_gap_stays_a_whole_number_in_csv():
    frame = pd.DataFrame({"found": [0, None], "tries": [3e9, 0.5]}, dtype=object)
    assert csv_text(frame) == "found,tries\n0,3e+09\n,0.5\n"


def test_next_to_a_withheld_group_the_smallest_of_the_others_is_withheld_too():
    """Else the pooled figure less the groups that are shown would be that of a few."""
    sizes = {"A": MIN_CLUSTERS_TO_PUBLISH - 1, "B": 30, "C": 20}
    rows = [
        figure("a", f"matched|nll_pii||type:{type_name}", LONG, clusters=n, n=10 * n)
        for type_name, n in sizes.items()
    ]
    shared_rows = disclosed(made_report("a", results=rows)).results
    assert [
        shared_row.group for shared_row in shared_rows if shared_row.value is None
    ] == ["type:A", "type:C"]
