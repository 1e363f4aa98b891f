"""Findings as pages show them: tests as sentences, the rest as a table, each once."""

from made_reports import TEST, figure, made_report, said

from spark_audit.report.figures_line import plain_figures
from spark_audit.report.finding_groups import groups_of_tests, table_of_the_rest
from spark_audit.report.prepared import PreparedReport
from spark_audit.report.writers import markdown
from spark_audit.results import Finding, Hits


def rank(name: str, value: float | None, text: str = "the first guess."):
    fields = {"metric": "top1_rate", "value": value}
    if value is not None:
        fields |= {"low": value - 0.125, "high": value + 0.25}
    return said("rank", name, "moved", text, **fields)


def test_what_is_exploratory_is_a_row_and_what_is_tested_a_sentence():
    tested = said("matched", "a", "nothing_shown", "nothing found.", **TEST)
    memory_finding = said("matched", "b", "memory", "remembered.", **TEST)
    explored = said("matched", "a", "moved", "moved.", metric="delta_sel", value=0.5)
    findings = [memory_finding, tested, explored]

    groups = groups_of_tests(findings)
    assert [group.text for group in groups] == ["Remembered.", "Nothing found."]
    assert [group.is_detected for group in groups] == [True, False]

    table = table_of_the_rest(findings, "matched")
    assert table is not None
    assert [line.texts for line in table.rows] == [("a", "Moved.", "0.500")]


def test_a_detection_is_no_row_of_a_table_even_if_it_is_exploratory():
    betrayal = said("stages", "a", "betrays", "betrays.", metric="x", value=0.5)
    assert [group.text for group in groups_of_tests([betrayal])] == ["Betrays."]
    assert table_of_the_rest([betrayal], "stages") is None


def test_equal_results_are_said_once_with_the_figures_of_each():
    table = table_of_the_rest([rank("a", 0.25), rank("b", 0.5)], "rank")
    assert table is not None
    (line,) = table.rows
    subjects, text, figures = line.texts
    assert (subjects, text) == ("a and b", "The first guess.")
    assert figures == "a: 0.250 [0.125, 0.500]; b: 0.500 [0.375, 0.750]"


def test_what_is_said_of_one_checkpoint_alone_stands_with_its_name():
    """Else nobody knows whose bound it is."""
    findings = []
    for name, at_most in (("a", 0.25), ("b", 0.5)):
        rate, bound = (
            figure(name, f"extract|{metric}", value, n=40, clusters=40)
            for metric, value in (
                ("greedy_rate", 0.0),
                ("drawn_at_most|1000000", at_most),
            )
        )
        finding = Finding.on(
            rate,
            "nothing_shown",
            "extract.counts",
            facts={"at_least": rate, "at_most": bound, "back": Hits(count=0, of=40)},
            further=["extract.both_sides"],
        )
        findings.append(finding)
    (of_first,), (of_second,) = (finding.remarks for finding in findings)
    assert of_first != of_second

    table = table_of_the_rest(findings, "extract")
    assert table is not None
    (line,) = table.rows
    _, text, figures = line.texts
    assert of_first not in text
    places = [figures.index(words) for words in ("a: ", of_first[:-1], "b: ")]
    assert places == sorted(places)
    assert figures.index("b: ") < figures.index(of_second[:-1])

    # What is said of all of them is said once, behind the sentence.
    table = table_of_the_rest([findings[0], findings[0]], "extract")
    assert table is not None
    assert table.rows[0].texts[1].count(of_first) == 1


def test_a_finding_without_a_figure_has_none_in_its_row():
    assert plain_figures(rank("a", None)) == ""
    table = table_of_the_rest([rank("a", None)], "rank")
    assert table is not None
    assert table.rows[0].texts[2] == ""


def test_markdown_has_each_finding_once():
    findings = [
        said("matched", "a", "memory", "remembered.", **TEST),
        rank("a", 0.25),
        rank("b", 0.5),
    ]
    rows = [figure("a", "rank|top1_rate|pii")]
    text = markdown.render(
        PreparedReport(made_report("a", "b", results=rows, findings=findings))
    )
    _, _, results = text.partition("## Every finding")
    assert results.count("Remembered.") == 1
    assert results.count("The first guess.") == 1
