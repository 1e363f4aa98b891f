"""The worked examples for users and contributors, put into a copy of the packages.

An audit of another package needs no edit of ours: it is listed, ordered, labelled,
gated and written, and goes with its package.
"""

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from forks import python

from spark_audit.manifest.content import seal
from spark_audit.manifest.file import write_manifest
from spark_audit.scoring.table import COLUMN_TYPES, TokenTable

ROOT = Path(__file__).parents[1]
PAGES = ("docs/extending.md", "docs/contributing/adding.md")
TEXT = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
SAVED = re.compile(
    r"[Ss]aved\s+as\s+`([\w/]+\.py)`.*?^```python\n(.*?)^```$", re.M | re.S
)
EXAMPLES = dict(SAVED.findall(TEXT))
"""Where each worked example goes -> its file."""
EDITED = "spark_audit/audits/rank.py"
SENTENCES = """
[audit.surprise]
title = "Surprises"
[metric.surprise]
nll_quantile = "NLL quantile"
[scope.surprise]
alone = "A quantile proves nothing alone."
[definition.surprise]
quantile = { term = "NLL quantile", text = "exceeded by {{ 'few' }} tokens." }
"""

REPORT = """
import sys
from pathlib import Path
from spark_audit.audits import base, find, in_order
from spark_audit.manifest.file import read_manifest
from spark_audit.report.assemble import assemble
from spark_audit.report.folder import write_report
from spark_audit.results import CheckpointFacts, ManifestFacts
from spark_audit.scoring.table import Pass, TokenTable

scene, folder, audits, formats = sys.argv[1:]
manifest = read_manifest(Path(scene) / "manifest.json")
names = ("base", "ours")
tables = {n: {Pass(): TokenTable.read(Path(scene) / f"{n}.parquet")} for n in names}
base.Audit.replicates_of = lambda self, preset: 200
report = assemble(
    {n: find(n)()(tables, manifest) for n in in_order(audits.split(","))},
    status="complete",
    command=[],
    manifest=ManifestFacts(
        name="m", digest="d", n_sources=1, n_clusters=1, n_spans=1, n_tokens=1
    ),
    checkpoints=[
        CheckpointFacts(
            name=n, source=n, format="f", weights_sha256="0", model_id=n, dtype="d"
        )
        for n in names
    ],
)
write_report(report, Path(folder), formats=("json", *formats.split(",")))
"""


class House:
    """A copy of the package with the worked examples, and scores to report on."""

    def __init__(self, root: Path, scene: Path) -> None:
        self.root, self.scene = root, scene
        # What is compiled comes along, but no file that is being written.
        skip = shutil.ignore_patterns("*.pyc.*")
        shutil.copytree(ROOT / "spark_audit", root / "spark_audit", ignore=skip)
        for name, text in {**EXAMPLES, "surprise.en.toml": SENTENCES}.items():
            (root / name).write_text(text, encoding="utf-8")
        self.entries = root / "surprise-1.0.dist-info" / "entry_points.txt"
        self.entries.parent.mkdir()
        (self.entries.parent / "METADATA").write_text("Name: surprise\nVersion: 1.0\n")

    def python(self, *arguments: str, code: int = 0) -> str:
        """What a Python that sees the copy alone prints, both streams."""
        words = list(arguments)
        ended, said = python(words, root=self.root, cwd=self.scene, COLUMNS="200")
        assert ended == code, said
        return said

    def audit(self, *words: str, code: int = 0) -> str:
        return self.python("-m", "spark_audit", *words, code=code)

    def report(self, folder: Path, audits: str, formats: str = "csv,md") -> str:
        words = (str(self.scene), str(folder), audits, formats)
        return self.python("-c", REPORT, *words)


@pytest.fixture(scope="session")
def scene(tmp_path_factory, make_case) -> Path:
    scene = tmp_path_factory.mktemp("scene")
    case = make_case(sources=50, tests=50)
    content = case.manifest.model_dump(mode="json")
    content["membership"] = {
        side: [e["id"] for e in content["examples"] if e["split"] == split]
        for side, split in (("members", "train"), ("non_members", "test"))
    }
    write_manifest(seal(content), scene / "manifest.json")
    rng = np.random.default_rng(0)
    for name, noise in (("base", 0.0), ("ours", 0.2)):
        items = []
        for key, reference in case.reference.items():
            nll = np.maximum(reference + rng.normal(0, noise, len(reference)), 0.01)[1:]
            columns = {
                k: np.ones(len(nll), d) for k, d in COLUMN_TYPES["plain"].items()
            }
            columns["nll"] = nll.astype(np.float32)
            columns["rank_lo"] = np.ceil(np.exp(nll)).astype(np.int32)
            items.append((key, np.arange(1, len(nll) + 1, dtype=np.int32), columns))
        TokenTable.from_items(items).write(scene / f"{name}.parquet")
    return scene


@pytest.fixture
def house(tmp_path, scene) -> House:
    return House(tmp_path / "house", scene)


def figures(folder: Path) -> list[dict[str, str]]:
    with (folder / "tables" / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_an_audit_from_outside_is_run_and_reported(house, tmp_path):
    folder = tmp_path / "out"
    rule = ("gate", str(folder), "--fail-if", "surprise.nll_quantile.value > 0")
    house.entries.write_text("[spark_audit.audits]\nsurprise = surprise:Surprise\n")
    help_page = house.audit("--help")
    commands = re.findall(r"^\W*(utility|surprise|all) ", help_page, re.M)
    assert commands == ["utility", "surprise", "all"]
    assert "share of tokens, 0 to 1" in house.audit("surprise", "--help")
    house.report(folder, "surprise,nll", "csv,md,html")
    page = (folder / "report.html").read_text()
    for words in (">Surprises</h2>", "proves nothing alone.", "by few tokens."):
        assert words in page
    rows = {(row["audit"], row["checkpoint"]): row for row in figures(folder)}
    assert [*dict.fromkeys(audit for audit, _ in rows)] == ["nll", "surprise"]
    own = rows["surprise", "ours"]
    assert (own["metric"], own["unit"]) == ("nll_quantile", "nats")
    assert "NLL quantile" in (folder / "report.md").read_text()
    house.audit(*rule, code=1)

    house.entries.write_text("[spark_audit.audits]\nsurprise = surprise:Nothing\n")
    assert "'surprise' (surprise:Nothing) is left out" in house.audit("--help")

    house.entries.unlink()
    assert "surprise" not in house.audit("--help")
    house.audit("report", str(folder), "--format", "md")
    assert "nll_quantile" in (folder / "report.md").read_text()
    house.audit(*rule, code=2)


ATTACK = """
from dataclasses import dataclass, replace

from spark_audit.audits.base import LatexColumn, Metric
from spark_audit.results import Finding, Row
from surprise import Surprise


@dataclass(frozen=True, kw_only=True)
class Echo(Surprise):
    # Rows and tables of two clusters are of few.
    name = "echo"
    metrics = (Metric("nll_quantile", "nats"), Metric("planted", "bits"))
    covers = ("nll_quantile", "clusters")
    attacks_identifiers = True
    strongest_claim = "memory"
    table_rules = {"echo_planted": "digits"}
    latex_table = "echoes"
    latex = (LatexColumn("Echo", "nll_quantile", counted="spans"),)

    @classmethod
    def is_of_nobody(cls, unit):
        return unit == "bits"

    def conclude(self, evidence, context):
        result = super().conclude(evidence, context)
        rows, findings = [], []
        for row in result.results:
            few = row.model_copy(
                update={
                    "group_kind": "type",
                    "group_value": "FEW",
                    "n": 9,
                    "clusters": 2,
                }
            )
            planted = {"metric": "planted", "unit": "bits"}
            rows += [row, few, few.model_copy(update=planted)]
            if row.checkpoint != "base":
                facts = {"quantile": row}
                found = Finding.on(row, "memory", "echo.memory", facts=facts, p=1e-4)
                findings.append(found)
        record = {"checkpoint": "ours", "clusters": 2, "share": 0.123456789}
        tables = {"echo_planted": [record], "echo_few": [record]}
        return replace(result, results=rows, findings=findings, tables=tables)
"""
"""Its figures are of 99 clusters, and of parts of two."""
ATTACK_SENTENCES = """
[audit.echo]
title = "Echoes"
attack = "echoed identifiers"
asks = "Do identifiers echo?"
[echo.memory]
text = "ECHOES at {{ quantile | figure }} nats."
withdrawn = "does not echo"
"""


def states_of(house: House, folder: Path) -> str:
    code = (
        "import sys, spark_audit as sa\n"
        "for one in sa.read_report(sys.argv[1]).states:\n"
        "    found = [tried.shown for tried in one.tally['FOUND']]\n"
        "    print(one.name, one.state, one.led_by.audit, found, one.ships)"
    )
    return house.python("-c", code, str(folder))


def table_of(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / "tables" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_an_attack_stands_wherever_ours_do(house, tmp_path):
    """In the state, the first screen, the gate, CSV, LaTeX and what is shared."""
    folder = tmp_path / "out"
    (house.root / "echo.py").write_text(ATTACK, encoding="utf-8")
    (house.root / "echo.en.toml").write_text(ATTACK_SENTENCES, encoding="utf-8")
    house.entries.write_text("[spark_audit.audits]\necho = echo:Echo\n")
    house.report(folder, "echo", "csv,md,latex")

    states = states_of(house, folder).split("\n")
    assert [line for line in states if line.startswith("ours")] == [
        "ours LEAKS echo ['echoed identifiers'] False"
    ]

    page = (folder / "report.md").read_text()
    first_screen = page.partition("## ")[0]
    assert "ECHOES at" in first_screen
    assert "echoed identifiers" in page
    # A column of its own in the matrix, and a line among the tests.
    matrix = [line for line in first_screen.splitlines() if line.startswith("|")]
    assert "echoed identifiers" in matrix[0].lower()
    assert any("ours" in line and "●" in line for line in matrix)

    assert "ours" in house.audit("gate", str(folder), code=1)
    house.audit("gate", str(folder), "--fail-if", "claim >= verbatim", code=0)
    rule = "echo.nll_quantile[type=FEW].value > 0"
    house.audit("gate", str(folder), "--fail-if", rule, code=1)

    exact = {
        (row["metric"], row["group_kind"], row["group_value"]): row
        for row in json.loads((folder / "report.json").read_text())["results"]
        if row["checkpoint"] == "ours"
    }
    shown = {
        (row["metric"], row["group_kind"], row["group_value"]): row["value"]
        for row in figures(folder)
        if row["checkpoint"] == "ours"
    }
    pooled = exact["nll_quantile", "pooled", ""]
    assert pooled["clusters"] == 99
    step = 0.015  # the next of 1, 1.5, 2, 3, 5 above 1 nat over the clusters
    assert float(shown["nll_quantile", "pooled", ""]) == pytest.approx(
        round(pooled["value"] / step) * step, abs=1e-9
    )
    assert float(shown["nll_quantile", "pooled", ""]) != pooled["value"]
    # Of two clusters nothing is shown, unless they are nobody's.
    assert shown["nll_quantile", "type", "FEW"] == ""
    planted = exact["planted", "type", "FEW"]["value"]
    assert float(shown["planted", "type", "FEW"]) == pytest.approx(planted, rel=1e-5)

    assert [row["share"] for row in table_of(folder, "echo_planted")] == ["0.123457"]
    assert [row["share"] for row in table_of(folder, "echo_few")] == [""]

    tex = (folder / "tables" / "echoes.tex").read_text()
    assert "Echo" in tex
    assert f"{float(shown['nll_quantile', 'pooled', '']):.3f}" in tex
    assert r"\input{echoes}" in (folder / "tables" / "all.tex").read_text()


@pytest.mark.parametrize("function", ["median", "nothing"])
def test_a_membership_score_from_outside_is_run_or_left_out(house, tmp_path, function):
    entry = f"median = median_score:{function}"
    house.entries.write_text(f"[spark_audit.scores]\n{entry}\n")
    said = house.report(tmp_path / "out", "mia")
    left_out = f"'median' (median_score:{function}) is left out: AttributeError"
    assert (left_out in said) == (function == "nothing")
    rows = [
        row
        for row in figures(tmp_path / "out")
        if (row["metric"], row["variant"]) == ("auc", "median")
    ]
    if function == "median":
        assert {row["checkpoint"] for row in rows if row["value"]} == {"base", "ours"}
    else:
        assert {row["status"] for row in rows} == {"not_estimable"}


def test_a_metric_that_is_added_is_computed_and_shown(house, tmp_path):
    edited = house.root / EDITED
    source = edited.read_text(encoding="utf-8")
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", TEXT, re.M | re.S)
    assert f"`{EDITED}`" in TEXT
    for old, new in re.findall(r"^-(.*\n)\+(.*\n)", diff, re.M):
        assert source.count(old) == 1, f"{EDITED} has no such line any more: {old}"
        source = source.replace(old, new)
    edited.write_text(source, encoding="utf-8")
    folder = tmp_path / "out"
    house.report(folder, "rank")
    assert "top100_rate" in (folder / "report.md").read_text()
    rows = [row for row in figures(folder) if row["metric"] == "top100_rate"]
    assert {row["variant"] for row in rows} == {"pii", "control", "pii_all"}
    shown = [row for row in rows if row["value"]]
    assert {row["variant"] for row in shown} >= {"pii", "control"}
    assert all(0 <= float(row["low"]) <= float(row["high"]) <= 1 for row in shown)
    house.audit("gate", str(folder), "--fail-if", "rank.top100_rate.pii.value < 0")
