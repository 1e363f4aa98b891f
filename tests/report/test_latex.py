"""LaTeX tables show the figures of report.json and nothing else, and TeX reads them."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from made_reports import (
    checkpoint,
    figure,
    guard,
    made_report,
    manifest_facts,
    said,
)

from spark_audit.report.assemble import assemble
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.report.folder import read_report, write_report
from spark_audit.report.writers.latex import latex_tables
from spark_audit.results import AuditResult, Report, Row

NAMES = ("base", r"a_b&c%d#e$f^g~h\i{j}", "[run]*", "λ-naïve--模", "<x>|'q'\"`")
SHOWN = (
    "base",
    r"a\_b\&c\%d\#e\$f\textasciicircum g\textasciitilde h\textbackslash i\{j\}",
    "{[run]*}",
    r"\texttt{U+03BB}-na\"{i}ve--\texttt{U+6A21}",
    r"$<$x$>$$|$'q'{\char34}{\char96}",
)
"""Of the names, as LaTeX."""
TASKS = ("task_a", "b&w")
MATCHED = ("memory|", "nll_pii|", "nll_control|", "delta_sel|", "delta_sel|change")
RANKS = ("mean", "median")
SCORES = ("loss", "response", "mink10", "minkpp10", "zlib", "reference", "blind")
RARE = ("response", "reference")
UTILITY = [f"utility|{metric}" for metric in ("last", "avg", "bwt")]
NLL = [f"nll|nll|{kind}" for kind in ("pii", "low", "canary")]
COLUMNS: dict[str, list[str]] = {
    "matched": [f"matched|{place}" for place in MATCHED],
    "rank": [
        *(f"rank|rank_{kind}|pii" for kind in RANKS),
        *(f"rank|top{k}_rate|pii" for k in (1, 5, 10)),
    ],
    "canary_rank": [
        f"canary|{metric}|full"
        for metric in ("rank_mean", "exposure_mean", "top1_rate", "top10_rate")
    ],
    "mia": [
        *(f"mia|auc|{score}" for score in SCORES),
        *(f"mia|tpr_at_fpr_5|{score}" for score in RARE),
    ],
    "canary_nll": [f"canary|nll|{part}" for part in ("full", "password", "ssn")],
    "ablations": [*UTILITY, *NLL],
    "utility": [
        *(f"utility|accuracy|2|task:{task}" for task in TASKS),
        *(UTILITY[k] for k in (2, 0, 1)),
    ],
}
PLACES = list(dict.fromkeys(place for part in COLUMNS.values() for place in part))


def a_report(rows: list[Row], **columns: Any) -> Report:
    facts = [
        checkpoint(name, source=f"runs/{k}", base="models/one_b")
        for k, name in enumerate(NAMES)
    ]
    fields = {"manifest": manifest_facts("m_1"), "checkpoints": facts}
    return made_report(results=rows, **(fields | columns))


@pytest.fixture(scope="module")
def report() -> Report:
    """Every figure of every table, each another number, small and negative too."""
    rows = []
    for i, name in enumerate(NAMES):
        for k, column in enumerate(PLACES):
            value = (-1) ** k * (1.0 + i + k / 16 + 0.000061)
            if (i, k) == (1, 0):
                value = 4.2e7
            if (i, k) == (1, 2):
                value = -3.21e-5
            rows.append(figure(name, column, value))
            if "accuracy" in column:
                rows.append(figure(name, column, 99.0 + k, variant="1"))
    rows.append(figure(NAMES[1], COLUMNS["matched"][3], 0.5, interval_over="seeds"))
    return a_report(rows)


# --- LaTeX read back ------------------------------------------------------------------


def body(text: str) -> dict[str, list[str]]:
    """Cells of figures between the header and the bottom rule, by a line's name."""
    return {name: cells_of_row for name, (_, *cells_of_row) in whole_body(text).items()}


def whole_body(text: str) -> dict[str, list[str]]:
    """The same with the state, which stands before the figures."""
    inner = text.split(r"\midrule", 1)[1].split(r"\bottomrule")[0]
    lines = [line.removesuffix(r" \\") for line in inner.strip().splitlines()]
    cells = [re.split(r" (?<!\\)& ", line) for line in lines]
    return {name: cells_of_row for name, *cells_of_row in cells}


def numbers(cell: str) -> list[float]:
    """Value and limits of a cell as numbers."""
    plain = cell.replace("$-$", "-")
    return [float(number) for number in re.findall(r"-?\d[\d.]*(?:e-?\d+)?", plain)]


@pytest.mark.parametrize("name", COLUMNS)
def test_a_table_holds_the_figures_of_its_rows(report, name):
    numbers_by_table = {
        k: list(map(numbers, v)) for k, v in body(latex_tables(report)[name]).items()
    }
    if name == "matched":
        assert numbers_by_table.pop(SHOWN[1] + ", seeds") == [
            [],
            [],
            [],
            [0.5, 0.375, 0.75],
            [],
        ]
    assert list(numbers_by_table) == list(SHOWN)
    rows = [row for row in report.results if row.interval_over == "sources"]
    row_by_key = {
        (r.audit, r.metric, r.variant, r.group, r.checkpoint): r for r in rows
    }
    for each, label in zip(NAMES, SHOWN, strict=True):
        for column, cell_numbers in zip(
            COLUMNS[name], numbers_by_table[label], strict=True
        ):
            audit, metric, variant, group, *_ = [*column.split("|"), "", ""]
            row = row_by_key[audit, metric, variant, group or "pooled", each]
            # Three decimals; of what is very large or small fewer digits.
            wanted = [row.value, row.low, row.high]
            assert cell_numbers == pytest.approx(wanted, rel=0.05, abs=0.0005), (
                each,
                column,
            )


def test_a_scale_of_noise_has_a_line_of_its_own():
    rows = []
    for k, sigma in enumerate(("0.01", "0.5")):
        for place in ("dp_pii", "dp_nonpii", "gap"):
            rows.append(figure("run", f"noise|{place}|{sigma}", -1.0 - k))
    lines = body(latex_tables(a_report(rows))["noise"])
    assert list(lines) == [r"run, $\sigma$ = 0.01", r"run, $\sigma$ = 0.5"]
    for k, cells in enumerate(lines.values()):
        assert [numbers(cell)[0] for cell in cells] == [-1.0 - k] * 3


def test_the_papers_preset_shows_canaries_by_annotation():
    rows = [figure("run", f"canary|nll|{part}", 1.0) for part in ("full", "ssn")]
    rows += [figure("run", "canary|nll|full/annotation", 3.0)]
    report = a_report(rows)
    for settings, value in (({}, 1.0), ({"preset": "paper"}, 3.0)):
        tables = latex_tables(report.model_copy(update={"settings": settings}))
        assert numbers(body(tables["canary_nll"])["run"][0])[0] == value


def test_exact_tables_of_the_papers_report_have_its_printed_figures():
    """Cells of its tables of ablations, selectivity, canaries and noise."""
    paper = read_report(Path(__file__).parents[2] / "reports" / "paper")
    tables = latex_tables(paper, is_exact=True)
    printed = {
        "ablations": ("spark", [[0.7994], [0.8125], [-0.0093], [4.2028], [2.9031]]),
        "matched": ("spark", [[4.2254, 3.8925, 4.6538], [3.4789, 3.1159, 3.8745]]),
        "canary_nll": (
            "spark",
            [[5.5716, 5.5322, 5.6103], [5.9906, 5.9305, 6.0508]],
        ),
        "canary_rank": ("base", [[239.0, 197.9, 278.69], [1.688, 1.233, 2.199]]),
    }
    for name, (line, figures) in printed.items():
        cells = body(tables[name])[line]
        assert [numbers(cell) for cell in cells][: len(figures)] == figures
    noise = list(body(tables["noise"]).values())
    assert [numbers(cells[0]) for cells in noise] == [
        [-4.01],
        [-96.27],
        [-99.64],
        [-99.66],
    ]


def test_accuracies_by_stage_are_a_table_of_the_records_of_their_audit():
    records = [
        {"checkpoint": "run", "stage": 1, "after": "a", "a": 0.75, "b": 0.25},
        {"checkpoint": "run", "stage": 2, "after": "b", "a": 0.5, "b": 0.875},
    ]
    tables = {"accuracy_matrix": records, "somebody_elses": records}
    origins = {"accuracy_matrix": "utility", "somebody_elses": "theirs"}
    report = a_report([], tables=tables, origins=origins)
    texts = latex_tables(report)
    assert list(texts) == ["accuracy_matrix"]
    lines = texts["accuracy_matrix"].splitlines()
    assert r"run & 2 & b & 0.500 & 0.875 \\" in lines


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ("invalid", "invalid"),
        ("insensitive", "insensitive"),
        ("not_resolvable", "not resolvable"),
    ],
)
def test_a_void_figure_says_so_and_why(status, word):
    column = COLUMNS["mia"][0]
    rows = [
        figure("base", column, 0.5),
        figure("run", column, 0.875, status=status, note="100% of it & more"),
        figure("run2", column, 0.625, status=status),
    ]
    text = latex_tables(a_report(rows))["mia"]
    lines = {name: cells[0] for name, cells in body(text).items()}
    assert lines["base"] == "0.500 [0.375, 0.750]"
    void = f"0.875 [0.750, 1.125] {word.upper()}"
    assert lines["run"] == rf"\sparkvoid{{{void}}}"
    assert rf"run: {word}: 100\% of it \& more." in text
    assert text.count(f": {word}: ") == 2


def test_every_line_has_its_state_and_what_is_void_names_the_check():
    """A model that leaks, or is broken, can have the largest Delta_sel."""
    places = COLUMNS["matched"]
    values = {"clean": (0.0, -0.225), "leak": (-1.9, 0.57), "broken": (0.1, 0.69)}
    rows = [
        figure(name, column, value)
        for name, (memory, delta_sel) in values.items()
        for column, value in zip(
            places, (memory, 2.0, 2.0, delta_sel, 0.1), strict=True
        )
    ]
    family = {"p": 1e-6, "family": "primary"}
    findings = [
        said("matched", "leak", "memory", "s", **family),
        said("matched", "clean", "nothing_shown", "s", **family),
        said("matched", "broken", "nothing_shown", "s", **family),
    ]
    bare = made_report(*values)
    facts = {k: getattr(bare, k) for k in ("status", "command", "manifest")}
    report = assemble(
        {"matched": AuditResult(results=rows, findings=findings)},
        guards=[guard("broken_model", "It failed.", of="broken")],
        checkpoints=bare.checkpoints,
        **facts,
    )
    text = latex_tables(report)["matched"]
    lines = whole_body(text)
    assert {name: cells[0] for name, cells in lines.items()} == {
        "clean": "NO LEAK FOUND",
        "leak": "LEAKS",
        "broken": "NOT TESTED",
    }
    assert all(cell.startswith(r"\sparkvoid{") for cell in lines["broken"][1:])
    assert "sparkvoid" not in "".join(lines["leak"] + lines["clean"])
    assert numbers(lines["leak"][1])[0] == -1.9
    header = text.split(r"\toprule")[1].split(r"\midrule")[0]
    assert r"\uparrow" not in header
    assert r"broken\_model (broken)" in text


def test_only_what_is_shared_says_that_it_is_rounded(report):
    exact = latex_tables(report)["matched"]
    shared = latex_tables(disclosed(report))["matched"]
    assert "are rounded" in shared
    assert "are rounded" not in exact


def test_files_are_ascii_and_their_braces_match(report, tmp_path):
    for path in write_report(report, tmp_path, formats=["latex"]):
        text = path.read_bytes().decode("ascii")
        plain = re.sub(r"\\[\\{}]", "", text)
        assert plain.count("{") == plain.count("}")
        # After the end of a line these would be its options.
        assert not re.search(r"\\\\\s*[\[*]", text)


def test_tex_sets_all_tables(report, tmp_path):
    tex = shutil.which("pdflatex") or shutil.which("tectonic")
    if tex is None:
        pytest.skip("neither pdflatex nor tectonic is installed")
    results = [
        *report.results,
        figure("void", COLUMNS["matched"][0], 1.0, status="invalid"),
        figure("void", COLUMNS["rank"][0], None, note="50% of it_ & more"),
    ]
    write_report(
        report.model_copy(update={"results": results}), tmp_path, formats=["latex"]
    )
    folder = tmp_path / "tables"
    options = []
    if Path(tex).name == "pdflatex":
        options = ["-halt-on-error", "-interaction=nonstopmode", "-no-shell-escape"]
    done = subprocess.run(
        [tex, *options, "all.tex"],
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert (folder / "all.pdf").stat().st_size > 10_000
    output = done.stdout + done.stderr
    assert "Overfull" not in output
    assert "Float too large" not in output
    assert "Missing character" not in output


def test_a_note_on_some_figures_of_a_line_names_their_columns():
    found = figure("a", "mia|auc|loss", 0.99)
    weak = figure("a", "mia|auc|response", 0.51, note="not detected")
    both = [
        figure("b", "mia|auc|loss", 0.51, note="not detected"),
        figure("b", "mia|auc|response", 0.52, note="not detected"),
    ]
    report = made_report("a", "b", results=[found, weak, *both])
    text = latex_tables(report)["mia"]
    notes = [line for line in text.splitlines() if "not detected" in line]
    of_a, of_b = sorted(notes)
    assert of_a.startswith("a (Response AUC)")
    assert of_b.startswith("b: ")
