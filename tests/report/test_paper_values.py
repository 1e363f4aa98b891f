"""The paper's values are those that it prints, and mean what the audits measure."""

from __future__ import annotations

import re
from collections import Counter
from decimal import Decimal
from importlib.resources import files
from pathlib import Path

import pytest

from spark_audit.audits import AUDITS
from spark_audit.errors import InputError
from spark_audit.report.paper.values import (
    Figure,
    PaperTable,
    folded,
    methods,
    methods_named,
    orders,
    reference,
    setting,
    table,
    tables,
)

ROOT = Path(__file__).parents[2]
TEXTS = sorted((ROOT.parent / "shared" / "paper").glob("*.txt"))
NUMBER = r"[-+]?\d+(?:\.\d+)?"
LABELS = [one.label for one in tables()]
PROSE = {
    "fig:selectivity_ablation": r"Figure~\ref{fig:selectivity_ablation}",
    "fig:hyperparam": r"Figure~\ref{fig:hyperparam}",
    "fig:case": r"Figure~\ref{fig:case}",
    "fig:efficiency": r"Figure~\ref{fig:efficiency}",
    "app:ptpc_internal_ablation": "final FOMC accuracy",
    "app:matched_selectivity": "FOMC contributes",
}
"""Figures that stand in running text, and what their paragraph holds."""


@pytest.fixture(scope="module")
def paper() -> str:
    if not TEXTS:
        pytest.skip("the paper's text is not beside this checkout (../shared/paper)")
    return TEXTS[0].read_text(encoding="utf-8").replace("$-$", "-").replace("$+$", "+")


def printed(figure: Figure) -> list[str]:
    return [one for one in (figure.text, figure.low_text, figure.high_text) if one]


def body(paper: str, label: str) -> list[tuple[str, str]]:
    """Name and figures of every line of a table that holds figures."""
    start = paper.index(f"\\label{{{label}}}")
    block = paper[start : paper.index("\\end{table", start)]
    block = block[block.index("\\midrule") :].replace("\n", " ")
    # In one table the first cell is the order, and the second the name.
    first = 1 if label == "tab:reorder_full" else 0
    found = []
    for line in block.split("\\\\"):
        cells = line.split("&")
        figures = " & ".join(cells[first + 1 :])
        if re.search(r"\d", figures):
            found.append((cells[first].replace("\\method{}", "SPARK"), figures))
    return found


def rows(one: PaperTable) -> list[list[Figure]]:
    found: dict[tuple[str, str], list[Figure]] = {}
    for figure in one.figures:
        found.setdefault((figure.panel, figure.row), []).append(figure)
    return list(found.values())


NUMERIC = [label for label in LABELS if label not in {*PROSE, "tab:hyperparams"}]


@pytest.mark.parametrize("label", NUMERIC)
def test_every_line_of_a_table_is_here_digit_by_digit(paper: str, label: str) -> None:
    lines, ours = body(paper, label), rows(table(label))
    assert len(lines) == len(ours)
    for (name, line), row in zip(lines, ours, strict=True):
        assert folded(row[0].row) in folded(name)
        numbers = re.findall(NUMBER, line)
        assert numbers == [text for figure in row for text in printed(figure)]


def test_settings_are_those_printed(paper: str) -> None:
    lines = [line for _, line in body(paper, "tab:hyperparams")]
    text = " ".join(lines)
    ours = table("tab:hyperparams").figures
    assert len(re.findall(NUMBER, text)) == sum(
        len(re.findall(NUMBER, one.text)) for one in ours
    )
    for line, one in zip(
        lines, (o for o in ours if re.search(r"\d", o.text)), strict=True
    ):
        assert one.text in line.replace("\\%", "%")


@pytest.mark.parametrize("label", PROSE)
def test_figures_of_running_text_stand_in_their_paragraph(
    paper: str, label: str
) -> None:
    lines = [line for line in paper.splitlines() if PROSE[label] in line]
    numbers = Counter(
        re.findall(rf"(?<![\d.]){NUMBER}", " ".join(lines).replace("--", " to "))
    )
    assert lines
    for one in table(label).figures:
        for text in printed(one):
            assert numbers[text], f"{label} does not print {text}"


def test_every_table_of_the_paper_is_here(paper: str) -> None:
    assert set(re.findall(r"\\label\{(tab:\w+)\}", paper)) == set(LABELS) - set(PROSE)


def test_settings_that_tables_do_not_print_stand_in_the_text(paper: str) -> None:
    for text in ("1,895", "2,700", "51 source", "70 annotated", "261 PII", "300 ann"):
        assert text in paper
    for number, tasks in orders().items():
        line = rf"\textbf{{Order {number}}}: " + r" $\rightarrow$ ".join(tasks)
        assert line in paper
    assert r"\texttt{LLaMA-2-7B}" in paper
    assert r"\texttt{Qwen2.5-1.5B}" in paper


def test_packaged_files_are_those_of_the_index() -> None:
    folder = files("spark_audit.report.paper") / "printed"
    held = {one.name for one in folder.iterdir()}
    text = (folder / "index.toml").read_text(encoding="utf-8")
    assert held == {"index.toml", *re.findall(r'^file = "(.+)"', text, flags=re.M)}
    assert len(LABELS) == len(set(LABELS)) == len(held) - 1


@pytest.mark.parametrize("label", LABELS)
def test_numbers_are_the_text_on_our_scale(label: str) -> None:
    known = {method.name for method in methods()} | {""}
    columns = {column.name for column in table(label).columns}
    for one in table(label).figures:
        assert one.method in known
        assert one.column in columns
        assert one.order in {"", "average", *orders()}
        for text, value in (
            (one.text, one.value),
            (one.low_text, one.low),
            (one.high_text, one.high),
        ):
            if re.fullmatch(NUMBER, text):
                assert value == pytest.approx(float(text) * float(one.scale), rel=1e-12)
            elif not text:
                assert value is None
        if one.low is not None:
            assert one.value is not None
            assert one.high is not None
            assert one.low <= one.value <= one.high
        if one.unit == "%" and one.audit not in ("", "noise"):
            assert one.scale == Decimal("0.01"), "audits measure shares"


def test_every_column_is_a_figure_of_an_audit_or_says_why_not() -> None:
    from spark_audit.report.gate import parse_rule

    found = {(o.audit, o.metric, o.of) for t in tables() for o in t.figures}
    for audit, metric, of in sorted(found):
        if audit:
            assert audit in AUDITS.names()
            # In a report the last stage goes by its number.
            named = "6" if of == "last" else of
            name = ".".join(part for part in (audit, metric, named) if part)
            rule = parse_rule(f"{name}.value > 0")
            assert (rule.audit, rule.metric, rule.of) == (audit, metric, named)
    for one in tables():
        for column in one.columns:
            assert bool(column.audit) == bool(column.metric)
            assert column.audit or column.note


def test_printed_figures_are_consistent_with_each_other() -> None:
    """PeCL's matrix gives its Last and BWT; tasks and tokens add up."""
    last = {(int(o.of), o.group): o.value for o in table("tab:pecl_matrix").figures}
    tasks = [f"task:{task.casefold()}" for task in setting().tasks]
    final = [last[6, task] or 0.0 for task in tasks]
    change = [last[6, t] - last[k, t] for k, t in enumerate(tasks[:5], 1)]  # type: ignore[operator]
    (printed_last,) = (
        one
        for one in reference("utility", "last", method="PeCL (reproduced)")
        if one.table == "tab:main_cl"
    )
    (bwt,) = (
        one
        for one in reference("utility", "bwt", method="PeCL (reproduced)")
        if one.table == "tab:main_cl"
    )
    assert printed_last.value == pytest.approx(sum(final) / 6, abs=6e-4)
    assert bwt.value == pytest.approx(sum(change) / 5, abs=6e-4)
    coverage = table("app:matched_selectivity").figures
    totals = {
        name: sum(one.value or 0 for one in coverage if one.column == name)
        for name in ("Sources", "Spans", "Token pieces")
    }
    assert totals == {"Sources": 51, "Spans": 70, "Token pieces": 261}
    assert table("tab:matched_full").n == "261 tokens"
    assert table("tab:matched_full").clusters == "51 sources"
    for figure in table("tab:matched_full").figures[::3]:
        method = figure.method
        pii, control, delta = (
            reference("matched", metric, method=method)[0].value or 0.0
            for metric in ("nll_pii", "nll_control", "delta_sel")
        )
        assert delta == pytest.approx(pii - control, abs=2e-4)


def test_reference_finds_values_with_their_place() -> None:
    found = reference("matched", "delta_sel", method="SPARK")
    assert [(one.table, one.text) for one in found] == [
        ("tab:matched_full", "0.7464"),
        ("fig:selectivity_ablation", "0.746"),
    ]
    assert (found[0].low, found[0].high) == (0.3853, 1.1692)
    top = reference("rank", "top1_rate", of="pii", method="SPARK w/o dKL")[0]
    assert top.shown() == "0.0153 [0.0000, 0.0375] (printed 1.53 %)"
    assert top.place == "tab:pii_rank_full"
    noise = reference("noise", "gap", of="0.1", method="ER")
    assert [(one.method, one.text) for one in noise] == [("", "0.01")]
    task = reference("utility", "accuracy", of="last", group="task:FOMC")
    assert {one.method for one in task} >= {"SPARK", "SPARK w/o old anchor", "ER"}
    assert len(reference("matched", "delta_sel")) == 8 + 2
    assert reference("extract", "greedy_rate") == []


def test_rounds_is_the_same_value_with_fewer_digits() -> None:
    def one(text: str, scale: str = "1") -> Figure:
        known = reference("matched", "delta_sel", method="SPARK")[0]
        return Figure(**{**vars(known), "text": text, "scale": Decimal(scale)})

    assert one("0.812").rounds(one("0.8125"))
    assert not one("0.8125").rounds(one("0.812"))
    assert not one("0.811").rounds(one("0.8125"))
    assert one("0.797").rounds(one("79.67", "0.01"))
    assert one("+0.009").rounds(one("0.009"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("spark", ["SPARK"]),
        ("ER", ["ER"]),
        ("er-ptpc", ["ER+PTPC"]),
        ("sd_replay", ["SPARK w/o PTPC"]),
        ("w/o PTPC", ["SPARK w/o PTPC"]),
        ("spark-without-ul", ["SPARK w/o UL"]),
        ("pecl", ["PeCL (cited)", "PeCL (reproduced)"]),
        ("PeCL (cited)", ["PeCL (cited)"]),
        ("base", ["Pretrained"]),
        ("seqft-dpsgd", ["SeqFT + DPSGD"]),
        ("olora", ["O-LoRA"]),
        ("run-3", []),
        ("...", []),
    ],
)
def test_names_that_stand_for_a_method(name: str, expected: list[str]) -> None:
    assert list(methods_named(name)) == expected


def test_methods_of_the_trainer_are_methods_of_the_paper() -> None:
    folder = ROOT / "spark_train" / "methods"
    names = {path.stem for path in folder.glob("[!_]*.py")}
    assert {"spark", "er", "sd_replay"} <= names
    known = [name for name in names if methods_named(name)]
    assert sorted(known) == sorted(names - {"mtl"}), folded(str(names))


def test_unknown_table_lists_the_known() -> None:
    with pytest.raises(InputError, match=r"no table 'tab:x'; choose one of: tab:main"):
        table("tab:x")
