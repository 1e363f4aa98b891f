"""One report of one scene, kept as text: what changes in it is reviewed as a diff.

``pytest tests/golden`` compares, ``pytest tests/golden --accept`` writes the files
anew. Scores are planted, so that they are the same on every machine; checkpoints,
manifest, store, audits and writers are real.
"""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from difflib import unified_diff
from functools import partial
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import PLANTED, World, columns_of, luck

from spark_audit.checkpoints.open import OpenCheckpoints, open_checkpoint
from spark_audit.cli.main import run as command_line
from spark_audit.data.injection import inject
from spark_audit.demo_rows import make_examples
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.file import write_manifest
from spark_audit.report.figures.drawing import drawings
from spark_audit.report.folder import read_report
from spark_audit.results import Finding, Report
from spark_audit.results.findings import DETECTED, SEVERITY
from spark_audit.scoring import score as scoring

HERE = Path(__file__).parent
KNOWS = {"ours[1]": -0.4, "ours[2]": -0.6, "leak": 0.9, "leak+int8": 0.5}
"""Share of the trained identifiers that is known by heart, or suppressed."""
RIGHT = {"er@1": {"policy": 0.95}, "er@2": {"policy": 0.6, "dining": 0.95}}
CHECKPOINTS = ("er=er", "ours=[ours-1,ours-2]", "leak", "broken")
"""A series (the baseline), two seeds, a leak, and one that writes no language."""
COMMAND = (
    *("all", "--ckpt", *CHECKPOINTS, "--base", "base", "--manifest", "golden.json"),
    *("--baseline", "er", "--order", "policy,dining", "--also", "noise"),
    *("--quantize", "int8", "--draws", "1", "--sigmas", "0.05,0.5"),
    *("--placebo-draws", "10", "--blind-permutations", "39", "-o", "report"),
    *("--verbose", "--format", "html,md,csv,latex,json,dossier,card"),
)
FURTHER = (
    (0, "manifest", "show", "golden.json"),
    (0, "inspect", "leak", "--base", "base"),
    (1, "gate", "report"),
    (1, "gate", "report", "--fail-if", "matched.memory.value < -1"),
)
"""What else is asked of the folder, with the exit code."""
LOOSE = 1e-6
"""How far a figure may be from the one kept, relative to 1 or its size."""


def rows() -> list[Any]:
    """Names and telephone numbers in the rows of two tasks, and canaries."""
    examples = [
        row
        for split, count in (("train", 80), ("test", 56))
        for row in make_examples(count, split=split, seed=1)  # type: ignore[arg-type]
        if row.task in ("policy", "dining")
    ]
    examples, _ = inject(examples, seed=1, rate=0.8, canaries=8, doses=(1, 4))
    kept_types = {"NAME", "PHONE"}
    return [
        row
        for row in examples
        if row.canary or {span.type for span in row.spans} <= kept_types
    ]


def reference(loaded: Any, model: Any, items: Any, task: Any) -> Any:
    for item in items:
        nll = luck(item.content().hex()).gamma(2.0, 1.0, len(item.row_positions))
        yield item, columns_of(nll.clip(0.01, 5.5))


@pytest.fixture(scope="module")
def scene(tmp_path_factory, tiny_base, make_adapter) -> Path:
    """A folder with the scene and its ``report``; ``terminal.txt`` is what was said."""
    folder = tmp_path_factory.mktemp("golden")
    (folder / "base").symlink_to(tiny_base)
    for seed, name in enumerate(("ours-1", "ours-2", "er/1", "er/2", "leak", "broken")):
        make_adapter(folder / name, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            scoring, "pass_runner", lambda one, _: partial(reference, one, None)
        )
        base = open_checkpoint(str(tiny_base), name="base")
        manifest = build_manifest(rows(), base, name="golden", n_candidates=32)
    write_manifest(manifest, folder / "golden.json")
    world = World(
        manifest.model_dump(mode="json"),
        {
            example.id: np.array([unll or 0 for unll in example.reference_unll]) / 1e6
            for example in manifest.examples
        },
        knows=lambda name: KNOWS.get(name, 0),
        right=lambda name, task: RIGHT.get(name, {}).get(task, 0.5),
    )

    def planted(loaded: Any, model: Any, items: Any, task: Any) -> Any:
        for item in items:
            scoring_pass = task.scoring_pass
            _, columns = PLANTED[scoring_pass.kind](
                world, loaded.name, scoring_pass, item.key
            )
            if loaded.name.startswith("broken") and scoring_pass.kind == "plain":
                columns = columns_of(columns["nll"] + 30)
            yield item, columns

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            scoring, "pass_runner", lambda one, _: partial(planted, one, None)
        )
        # A rounded copy of each would show nothing more, and take twice the time.
        patch.setattr(
            OpenCheckpoints,
            "derived_kinds",
            lambda _, one: ("", *["int8"] * (one.name == "leak")),
        )
        patch.chdir(folder)
        patch.setenv("COLUMNS", "200")
        with redirect_stdout(StringIO()) as output:
            assert command_line(COMMAND) == 0
            for code, *words in FURTHER:
                output.write(f"$ spark-audit {shlex.join(words)}\n")
                assert command_line(words) == code, words
    (folder / "terminal.txt").write_text(output.getvalue(), "utf-8")
    return folder


# --------------------------------------------------------- what is kept of a report

KEY = (
    "audit",
    "metric",
    "variant",
    "group_kind",
    "group_value",
    "checkpoint",
    "baseline",
    "interval_over",
)
POOLED = (
    "no_effect",
    "no_effect_low",
    "no_effect_high",
    "mde",
    "interval_method",
    "n",
    "clusters",
    "family",
)
ROW = ("value", "low", "high", "p", "p_adjusted", "status")
"""What is kept of a row; of pooled ones that of :data:`POOLED` too."""
FINDING = (
    "audit",
    "claim",
    "alone",
    "severity",
    "status",
    "metric",
    "variant",
    "group_kind",
    "group_value",
)
LONG = 15
"""Rows that are kept of a page's table."""


def written(key: Iterable[Any], fields: Mapping[str, Any]) -> str:
    """``key | name=value ...``; what is not there is left out."""
    words = [
        f"{name}={value:.7g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in fields.items()
        if value not in (None, "", "ok", "none", "exploratory", [])
    ]
    return " ".join(str(word or "-") for word in key) + " | " + "\t".join(words)


def figures(report: Mapping[str, Any]) -> Iterator[str]:
    for row in (*report["results"], *report["contrasts"]):
        names = (*ROW, *POOLED) if row["group_kind"] == "pooled" else ROW
        yield written(map(row.get, KEY), {name: row.get(name) for name in names})


def records(report: Mapping[str, Any]) -> Iterator[str]:
    """Lines of tables; of curves, which are drawn, every tenth."""
    for name, lines in report["tables"].items():
        rows = lines[:: 10 if len(lines) > 200 else 1]
        yield from (written((name, str(index)), row) for index, row in enumerate(rows))


def findings(report: Mapping[str, Any]) -> Iterator[str]:
    """Every claim with its sentences, guards, and what was not looked at."""
    for finding_facts in report["findings"]:
        yield " ".join(str(finding_facts.get(name) or "-") for name in FINDING)
        yield f"  {finding_facts['sentence']}"
        finding = Finding.model_validate(finding_facts)
        if finding.family == "primary" and SEVERITY[finding.alone] >= DETECTED:
            # What it says if the correction decides otherwise.
            other_claim = finding.alone if finding.withdrawn else "nothing_shown"
            yield f"  {finding.model_copy(update={'claim': other_claim}).sentence}"
    for guard in report["guards"]:
        yield written((guard["name"], guard["checkpoint"]), {**guard, "facts": None})
    yield from report["scope"]


def drawn(report: Report) -> Iterator[str]:
    """What every drawing says of itself, and where its lines go."""
    for drawing in drawings(report):
        yield f"{drawing.name}: {drawing.title} | alt={drawing.alt}"
        yield f"{drawing.name}: caption | caption={drawing.caption}"
        for panel, axes in enumerate(drawing.figure.axes):
            for index, line in enumerate(axes.lines):
                points = np.ma.filled(np.asarray(line.get_xydata(), float), np.nan)
                texts = (
                    " ".join(f"{value:.6g}" for value in point) for point in points.T
                )
                key = (drawing.name, str(panel), str(index), str(line.get_gid()))
                yield written(key, dict(zip("xy", texts, strict=True)))


class Page(HTMLParser):
    """The text of a page, a line for each paragraph and each row of a table."""

    BLOCKS = frozenset("p li h1 h2 h3 h4 tr dt dd div summary section".split())
    SKIPPED = frozenset({"script", "style", "svg"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._line: list[str] = []
        self._within, self._rows = "", 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._within = self._within or tag * (tag in self.SKIPPED)
        self._rows *= tag != "table"

    def handle_endtag(self, tag: str) -> None:
        if tag == self._within:
            self._within = ""
        self._rows += tag == "tr"
        if tag in self.BLOCKS and self._line:
            if tag != "tr" or self._rows <= LONG:
                self.lines.append(" ".join(self._line))
            self._line = []

    def handle_data(self, data: str) -> None:
        if not self._within and data.strip():
            self._line.append(" ".join(data.split()))


VARYING = {
    r"(?m)^(\W*Versions:? ).*": r"\1...",
    r"\d{4}-\d\d-\d\d([T ][\d:]+(\+00:00)?)?": "DATE",
    r"hmac-sha256:[0-9a-f]+": "DIGEST",
    r"(\.\d{6})\d{6,}": r"\1",
    r"\b[0-9a-f]{12,64}\b": "HASH",
    r"(?m)^tokenising [\d.]+ s, .*": "loading ... s",
    r"differ by at most \S+ nats": "differ by at most DRIFT nats",
    r"free: .* [kMG]B disk": "free: ROOM",
}
"""Dates, times, hashes, digits, and what a machine's own arithmetic gives."""


@pytest.fixture(scope="module")
def made(scene) -> dict[str, str]:
    """Name of a file here -> what the report of the scene makes of it."""
    folder = scene / "report"
    report = json.loads((folder / "report.json").read_text("utf-8"))

    def read(name: str | Path) -> str:
        return (folder / name).read_text("utf-8")

    lines: dict[str, Iterable[str]] = {
        "figures.txt": sorted(figures(report)),
        "tables.txt": records(report),
        "drawings.txt": drawn(read_report(folder)),
        "findings.txt": findings(report),
        "terminal.txt": [(scene / "terminal.txt").read_text("utf-8")],
        "report.md": [read("report.md")],
        "card.md": [read("card.md")],
        "tables.tex": map(read, sorted(folder.glob("tables/*.tex"))),
        "report.html.txt": Page(read("report.html")).lines,
        "dossier.html.txt": Page(read("dossier.html")).lines,
    }
    texts = {name: "\n".join(each).rstrip() + "\n" for name, each in lines.items()}
    for pattern, stands in VARYING.items():
        texts = {name: re.sub(pattern, stands, text) for name, text in texts.items()}
    return texts


# ------------------------------------------------------------------- comparison


def parsed(text: str) -> dict[str, dict[str, str]]:
    """Key -> field -> value, of lines that :func:`written` gave."""
    lines = (line.partition(" | ") for line in text.splitlines())
    return {
        key: dict(field.split("=", 1) for field in fields.split("\t") if field)
        for key, _, fields in lines
    }


def near(line: str, other_line: str) -> bool:
    """Whether texts are the same but for numbers that are apart by rounding alone."""
    if line == other_line:
        return True
    words = line.split()
    others = other_line.split()
    try:
        pairs = [(float(a), float(b)) for a, b in zip(words, others, strict=True)]
    except ValueError:
        return False
    return all(abs(a - b) <= LOOSE * max(1, abs(a)) for a, b in pairs)


def changed(kept: str, now: str) -> list[str]:
    """What is gone, new, or no longer near, by key."""
    old = parsed(kept)
    new = parsed(now)
    differences = [f"gone: {key}" for key in old if key not in new]
    differences += [f"new: {key}" for key in new if key not in old]
    for key in old.keys() & new.keys():
        for name in {**old[key], **new[key]}:
            pair = old[key].get(name, "none"), new[key].get(name, "none")
            if not near(*pair):
                differences.append(f"{key}: {name} {pair[0]} -> {pair[1]}")
    return sorted(differences)


def test_the_report_is_the_one_kept(made, pytestconfig):
    accept = pytestconfig.getoption("accept")
    problems = list[str]()
    for name, content in made.items():
        if accept:
            (HERE / name).write_text(content, "utf-8")
        kept_content = (HERE / name).read_text("utf-8")
        if name in ("figures.txt", "tables.txt", "drawings.txt"):
            differs = changed(kept_content, content)
        else:
            lines = kept_content.splitlines(), content.splitlines()
            differs = list(unified_diff(*lines, n=0, lineterm=""))[2:]
        if differs:
            problems += [f"== {name}: {len(differs)} lines", *differs[:30]]
    assert not problems, "\n".join(["`pytest tests/golden --accept` keeps:", *problems])


def test_a_changed_figure_is_seen():
    kept_line = (
        "matched did - pooled a b sources | value=0.5\tp=0.01\nx | status=invalid\n"
    )
    assert not changed(kept_line, kept_line.replace("0.5", "0.5000004"))
    assert changed(kept_line, kept_line.replace("0.5", "0.500002")) == [
        "matched did - pooled a b sources: value 0.5 -> 0.500002"
    ]
    assert changed(kept_line, kept_line.replace("\tp=0.01", "")) == [
        "matched did - pooled a b sources: p 0.01 -> none"
    ]
    assert changed(kept_line, "x | status=invalid\ny | value=1\n") == [
        "gone: matched did - pooled a b sources",
        "new: y",
    ]
