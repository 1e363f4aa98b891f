"""CONTRIBUTING's worked examples, put into a copy of the packages.

An audit of another package needs no edit of ours: it is listed, ordered, labelled,
gated and written, and goes with its package.
"""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forks import python

from spark_audit.manifest.file import seal, write_manifest
from spark_audit.scoring.table import LAYOUTS, TokenTable

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SAVED = re.compile(
    r"[Ss]aved\s+as\s+`([\w/]+\.py)`.*?^```python\n(.*?)^```$", re.M | re.S
)
EXAMPLES = dict(SAVED.findall(TEXT))
"""Where each worked example goes -> its file."""
EDITED = "spark_audit/audits/vocabulary_rank.py"
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
from spark_audit.manifest.file import load_manifest
from spark_audit.report.assemble import assemble
from spark_audit.report.folder import write_report
from spark_audit.results import CheckpointFacts, ManifestFacts
from spark_audit.scoring.table import Pass, TokenTable

scene, folder, audits, formats = sys.argv[1:]
manifest = load_manifest(Path(scene) / "manifest.json")
names = ("base", "ours")
tables = {n: {Pass(): TokenTable.read(Path(scene) / f"{n}.parquet")} for n in names}
base.replicates = lambda preset: 200
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


@dataclass(frozen=True)
class House:
    """A copy of both packages, and scores for a report without a model."""

    root: Path
    scene: Path

    def python(self, *arguments: str, code: int = 0) -> str:
        """What a Python that sees the copy alone prints, both streams."""
        ended, said = python(
            list(arguments), root=self.root, cwd=self.scene, COLUMNS="200"
        )
        assert ended == code, said
        return said

    def audit(self, *words: str, code: int = 0) -> str:
        return self.python("-m", "spark_audit", *words, code=code)

    def train(self, *words: str) -> str:
        return self.python("-m", "spark_train", *words)

    def report(self, folder: Path, audits: str, formats: str = "csv,md") -> Path:
        self.python("-c", REPORT, str(self.scene), str(folder), audits, formats)
        return folder

    @contextmanager
    def with_file(self, name: str, text: str | None = None) -> Iterator[None]:
        """With one file put in, or another in its place, and then as before."""
        path = self.root / name
        before = path.read_bytes() if path.exists() else None
        assert (before is None) == (text is None)
        path.write_text(EXAMPLES[name] if text is None else text, encoding="utf-8")
        try:
            yield
        finally:
            path.unlink() if before is None else path.write_bytes(before)

    @contextmanager
    def announced(self, entry: str, group: str = "audits") -> Iterator[None]:
        """With a package installed that brings an audit, or a score."""
        place = self.root / "surprise-1.0.dist-info"
        place.mkdir()
        (place / "METADATA").write_text("Name: surprise\nVersion: 1.0\n")
        points = f"[spark_audit.{group}]\n{entry}\n"
        (place / "entry_points.txt").write_text(points)
        try:
            yield
        finally:
            shutil.rmtree(place)


@pytest.fixture(scope="session")
def house(
    tmp_path_factory: pytest.TempPathFactory, make_case: Callable[..., Any]
) -> House:
    root = tmp_path_factory.mktemp("house")
    for package in ("spark_audit", "spark_train"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, root / package, ignore=ignored)
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
            columns = {k: np.ones(len(nll), d) for k, d in LAYOUTS["plain"].items()}
            columns["nll"] = nll.astype(np.float32)
            columns["rank_lo"] = np.ceil(np.exp(nll)).astype(np.int32)
            items.append((key, np.arange(1, len(nll) + 1, dtype=np.int32), columns))
        TokenTable.from_items(items).write(scene / f"{name}.parquet")
    return House(root, scene)


def figures(folder: Path) -> list[dict[str, str]]:
    with (folder / "tables" / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_an_audit(house: House, tmp_path: Path) -> None:
    rule = "surprise.nll_quantile.value > {} except base"
    (house.root / "surprise.en.toml").write_text(SENTENCES)
    with (
        house.with_file("surprise.py"),
        house.announced("surprise = surprise:Surprise"),
    ):
        help_page = house.audit("--help")
        commands = re.findall(r"^\W*(utility|surprise|all) ", help_page, re.M)
        assert commands == ["utility", "surprise", "all"]
        assert "that a given share of identifier tokens exceed" in help_page
        assert "share of tokens, 0 to 1" in house.audit("surprise", "--help")
        folder = house.report(tmp_path / "out", "surprise,nll", "csv,md,html")
        page = (folder / "report.html").read_text()
        for words in (">Surprises</h2>", "proves nothing alone.", "by few tokens."):
            assert words in page
        rows = figures(folder)
        assert list(dict.fromkeys(row["audit"] for row in rows)) == ["nll", "surprise"]
        (own,) = (
            row
            for row in rows
            if (row["audit"], row["checkpoint"]) == ("surprise", "ours")
        )
        assert (own["metric"], own["unit"]) == ("nll_quantile", "nats")
        assert "NLL quantile" in (folder / "report.md").read_text()
        house.audit("gate", str(folder), "--fail-if", rule.format("99"))
        told = house.audit("gate", str(folder), "--fail-if", rule.format("0"), code=1)
        assert "tripped" in told
        house.python(
            "-c",
            "from spark_audit.audits import metric_of\n"
            "assert metric_of('surprise', 'nll_quantile').range[0] == 0",
        )
    with house.announced("surprise = surprise:Nothing"):
        told = house.audit("--help")
        assert "'surprise' (surprise:Nothing) is left out: ModuleNotFound" in told
    assert "surprise" not in house.audit("--help")
    house.audit("report", str(folder), "--format", "md")
    assert "nll_quantile" in (folder / "report.md").read_text()
    told = house.audit("gate", str(folder), "--fail-if", rule.format("0"), code=2)
    assert "unknown audit 'surprise'" in told


def test_a_membership_score(house: House, tmp_path: Path) -> None:
    with house.with_file("median_score.py"):
        with house.announced("median = median_score:median", "scores"):
            rows = figures(house.report(tmp_path / "good", "mia"))
        kept = [r for r in rows if (r["metric"], r["variant"]) == ("auc", "median")]
        assert {row["checkpoint"] for row in kept if row["value"]} == {"base", "ours"}
        with house.announced("median = median_score:nothing", "scores"):
            told = house.python(
                *("-c", REPORT, str(house.scene), str(tmp_path / "bad"), "mia", "csv")
            )
        assert "'median' (median_score:nothing) is left out: AttributeError" in told
    (lost,) = {
        (r["status"], r["note"])
        for r in figures(tmp_path / "bad")
        if (r["metric"], r["variant"]) == ("auc", "median")
    }
    assert lost == ("not_estimable", "nothing was scored")


def test_a_metric_of_an_audit(house: House, tmp_path: Path) -> None:
    source = (ROOT / EDITED).read_text(encoding="utf-8")
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", TEXT, re.M | re.S)
    assert f"`{EDITED}`" in TEXT
    for old, new in re.findall(r"^-(.*\n)\+(.*\n)", diff, re.M):
        assert source.count(old) == 1, f"{EDITED} has no such line any more: {old}"
        source = source.replace(old, new)
    rule = ("--fail-if", "rank.top100_rate.pii.value < 0")
    with house.with_file(EDITED, source):
        folder = house.report(tmp_path / "out", "rank")
        assert "top100_rate" in (folder / "report.md").read_text()
        rows = [row for row in figures(folder) if row["metric"] == "top100_rate"]
        assert {row["variant"] for row in rows} == {"pii", "control", "pii_all"}
        shown = [row for row in rows if row["value"]]
        assert {row["variant"] for row in shown} >= {"pii", "control"}
        assert all(0 <= float(row["low"]) <= float(row["high"]) <= 1 for row in shown)
        house.audit("gate", str(folder), *rule)
