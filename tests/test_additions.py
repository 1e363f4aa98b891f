"""One file adds one thing: each kind of addition, put into a copy of the packages.

The files are CONTRIBUTING's worked examples, at the places that it names; nothing else
is touched. What is new is listed, ordered, labelled, gated, drawn and written, and goes
with its file.
"""

from __future__ import annotations

import csv
import json
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

from spark_audit.data.examples import Example, write_examples
from spark_audit.manifest.file import seal, write_manifest
from spark_audit.scoring.table import LAYOUTS, TokenTable

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SAVED = re.compile(
    r"[Ss]aved\s+as\s+`([\w/]+\.py)`.*?^```python\n(.*?)^```$", re.M | re.S
)
EXAMPLES = dict(SAVED.findall(TEXT))
"""Where each worked example goes -> its file."""
EDITED = "spark_audit/audits/rank.py"

REPORT = """
import sys
from pathlib import Path
from spark_audit.audits import AUDITS, contract
from spark_audit.manifest.file import load_manifest
from spark_audit.report.assemble import assemble
from spark_audit.report.folder import write_report
from spark_audit.results import CheckpointFacts, ManifestFacts
from spark_audit.scoring.table import Pass, TokenTable

scene, folder, audits, formats = sys.argv[1:]
manifest = load_manifest(Path(scene) / "manifest.json")
names = ("base", "ours")
tables = {n: {Pass(): TokenTable.read(Path(scene) / f"{n}.parquet")} for n in names}
quick = {"blind_permutations": 20}
contract.replicates = lambda preset: 200
runs = {name: AUDITS.get(name).run for name in AUDITS.in_order(audits.split(","))}
report = assemble(
    {n: run(tables, manifest, **contract.taken(run, quick)) for n, run in runs.items()},
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


def test_every_kind_has_its_worked_example() -> None:
    kinds = {str(Path(name).parent) for name in EXAMPLES}
    assert kinds == {
        "spark_audit/audits",
        "spark_audit/checkpoints/formats",
        "spark_audit/report/figures",
        "spark_audit/report/writers",
        "spark_audit/scoring/passes",
        "spark_train/methods",
    }
    assert len(EXAMPLES) == TEXT.count("```python\n")


def test_an_audit(house: House, tmp_path: Path) -> None:
    rule = "surprise.nll_quantile.value > {} except base"
    with house.with_file("spark_audit/audits/surprise.py"):
        help_page = house.audit("--help")
        commands = re.findall(r"^\W*(utility|surprise|all) ", help_page, re.M)
        assert commands == ["utility", "surprise", "all"]
        assert "that a given share of identifier tokens exceed" in help_page
        assert "share of tokens, 0 to 1" in house.audit("surprise", "--help")
        folder = house.report(tmp_path / "out", "surprise,nll")
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
            "from spark_audit.audits import AUDITS\n"
            "assert AUDITS.metric('surprise', 'nll_quantile').range[0] == 0",
        )
    assert "surprise" not in house.audit("--help")
    house.audit("report", str(folder), "--format", "md")
    assert "nll_quantile" in (folder / "report.md").read_text()
    told = house.audit("gate", str(folder), "--fail-if", rule.format("0"), code=2)
    assert "unknown audit 'surprise'" in told


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
        assert "Top-100" in (folder / "report.md").read_text()
        rows = [row for row in figures(folder) if row["metric"] == "top100_rate"]
        assert {row["variant"] for row in rows} == {"pii", "control", "pii_all"}
        shown = [row for row in rows if row["value"]]
        assert {row["variant"] for row in shown} >= {"pii", "control"}
        assert all(0 <= float(row["low"]) <= float(row["high"]) <= 1 for row in shown)
        house.audit("gate", str(folder), *rule)


def test_a_report_writer(house: House, tmp_path: Path) -> None:
    folder = house.report(tmp_path / "out", "nll")
    words = ("report", str(folder), "--format")
    with house.with_file("spark_audit/report/writers/mail_text.py"):
        assert "mail-text" in house.audit(*words, "none", code=2)
        house.audit(*words, "mail-text")
        lines = (folder / "report.txt").read_text().splitlines()
        assert len(lines) == len(figures(folder))
        assert lines[0].startswith("base nll pooled: ")
        files = json.loads((folder / "report.json").read_text())["files"]
        assert files["mail-text"] == ["report.txt"]
    house.audit(*words, "md")
    assert not (folder / "report.txt").exists()
    assert (folder / "tables" / "results.csv").exists()


def test_a_figure(house: House, tmp_path: Path) -> None:
    with house.with_file("spark_audit/report/figures/spread.py"):
        folder = house.report(tmp_path / "out", "nll", "html,figures")
        drawn = {path.suffix for path in (folder / "figures").glob("spread.*")}
        assert drawn == {".png", ".svg", ".pdf"}
        page = (folder / "report.html").read_text()
        assert "Mean NLL of identifiers by PII type." in page
    house.audit("report", str(folder), "--format", "figures,html")
    assert not list((folder / "figures").glob("spread.*"))
    assert "by PII type" not in (folder / "report.html").read_text()


def test_a_pass(house: House, tmp_path: Path) -> None:
    """Listed, scored, stored, and taken from the store the second time."""
    code = f"""
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from spark_audit.manifest.items import _MAKERS
from spark_audit.scoring.items import Item
from spark_audit.scoring.passes import PASSES
from spark_audit.scoring.score import score
from spark_audit.scoring.store import Store
from spark_audit.scoring.table import ITEMS, LAYOUTS, Pass

assert PASSES.summary("length").startswith("The length pass")
assert ITEMS["length"] in ("texts", *_MAKERS) and list(LAYOUTS["length"]) == ["tokens"]
told = {{"usable": np.ones(9, bool), "max_positions": None, "served": None}}
loaded = SimpleNamespace(model_id="m", **told)
ids = np.arange(5, dtype=np.int32)
kind, folder = Pass("length"), Path({str(tmp_path / "scores")!r})
for _ in range(2):
    table = score(loaded, [Item("a", ids, ids)], passes=[kind], store=Store(folder))
    assert table[kind].columns["tokens"].tolist() == [5] * 4
assert len(list(folder.glob("*.parquet"))) == 1 and not Store(folder).notes
"""
    with house.with_file("spark_audit/scoring/passes/length.py"):
        house.python("-c", code)


def test_a_checkpoint_format(house: House, tmp_path: Path, tiny_base: Path) -> None:
    from safetensors.numpy import load_file

    folder = Path(shutil.copytree(tiny_base, tmp_path / "model"))
    weights = folder / "model.safetensors"
    arrays: dict[str, Any] = load_file(weights)
    np.savez(folder / "weights.npz", **arrays)
    weights.unlink()
    words = ("inspect", str(folder / "weights.npz"), "--json")
    with house.with_file("spark_audit/checkpoints/formats/numpy_file.py"):
        facts = json.loads(house.audit(*words))
    assert (facts["format"], facts["would load"]) == ("numpy-file", "yes")
    assert "is no checkpoint" in house.audit(*words, code=3)


def test_a_training_method(house: House, tmp_path: Path, tiny_base: Path) -> None:
    data, out = tmp_path / "rows.jsonl", tmp_path / "run"
    write_examples(
        data,
        [
            Example(
                f"{task}{i}",
                task,
                f"{task} {i}:",
                " yes",
                "test" if i == 3 else "train",
                f"{task}{i}",
            )
            for task in ("fomc", "yelp")
            for i in range(4)
        ],
    )
    with house.with_file("spark_train/methods/twice.py"):
        assert "Every task is learned with its replay" in house.train("methods")
        words = f"run --method twice --base {tiny_base} --data {data} --device cpu"
        words += f" --order fomc,yelp --output {out} --set epochs=1 lora.r=2"
        house.train(*words.split())
        lines = (out / "metrics.jsonl").read_text().splitlines()
        parts = {(one.get("stage"), one.get("part")) for one in map(json.loads, lines)}
        assert {("2-yelp", "task"), ("2-yelp", "priv")} <= parts
