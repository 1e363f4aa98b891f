"""report.md: the report as Markdown that pastes well into an issue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from spark_audit.facts import write_text
from spark_audit.manifest import Manifest, PairSide
from spark_audit.reports import METHODS, WRITERS, Block, blocks, verdict
from spark_audit.results import Report, number

DEFINITIONS: Mapping[str, Sequence[tuple[str, str]]] = {
    "": (
        ("NLL", "mean negative log-likelihood, nats a token; lower = likelier."),
        (
            "MDE",
            "the smallest effect that this many clusters detect with 80% power: "
            "smaller ones cannot be excluded.",
        ),
    ),
    "matched": (
        (
            "Delta_sel",
            "NLL of annotated identifiers minus NLL of their controls: non-PII spans "
            "of the same example, of equal token count and equally difficult for the "
            "reference model (SPARK, Difficulty-Matched Selectivity Evaluation).",
        ),
        (
            "change since reference",
            "Delta_sel minus what matching left over on the reference itself, pair by "
            "pair: this is what the verdict reads.",
        ),
        (
            "RTM alone",
            "regression to the mean: the Delta_sel that matching on the reference "
            "gives without any selective effect, when PII and other text drift alike: "
            "(1 - beta) times the reference gap between them. It can be anything from "
            "0 to this figure, and a Delta_sel is read against that range, not "
            "against 0.",
        ),
        (
            "DiD",
            "Delta_sel of a checkpoint minus that of the baseline, paired by source; "
            "its own regression to the mean stands beside it and is taken out of the "
            "test.",
        ),
    ),
    "rank": (
        (
            "rank",
            "1 + the number of usable vocabulary entries with a strictly greater "
            "logit; `pii` are tokens of matched spans, `control` those of their "
            "controls, `pii_all` those of every annotated identifier.",
        ),
    ),
    "canary": (
        (
            "exposure",
            "log2(N) - log2(rank) of the true string among N candidates, itself "
            "included; `full` etc. rank once over all contexts, `full/annotation` "
            "etc. rank in each context (SPARK's averaging).",
        ),
    ),
    "mia": (
        (
            "AUC, TPR at FPR",
            "every score is higher for a more likely member; the threshold is the "
            "last whose false positive rate stays within the budget.",
        ),
    ),
    "noise": (
        (
            "change under noise",
            "100 (mean p with noise / mean p without - 1); gap = other text minus "
            "PII, in points; `of` is the scale of the Gaussian noise on input "
            "embeddings.",
        ),
    ),
    "utility": (
        (
            "Last, Avg, BWT",
            "mean accuracy after the last stage; mean over stages of the mean over "
            "tasks seen so far; mean change since each task was learned.",
        ),
    ),
    "extract": (
        (
            "verbatim, n_0.5",
            "share of spans that greedy decoding writes after their true prefix; "
            "draws after which a span has come up with probability one half. Both "
            "hold for one tokenisation: lower bounds of what can be extracted.",
        ),
    ),
}


@WRITERS.register()
def write(
    report: Report,
    folder: Path,
    *,
    manifest: Manifest | None = None,
    show_text: bool = False,
) -> list[Path]:
    """Write ``report.md``; identifiers appear only with ``show_text``."""
    path = folder / "report.md"
    shown = manifest if show_text else None
    # With text it is as private as the manifest.
    mode = 0o644 if shown is None else 0o600
    write_text(path, render(report, manifest=shown), mode=mode)
    return [path]


def render(
    report: Report, *, manifest: Manifest | None = None, further: Sequence[str] = ()
) -> str:
    """The report as Markdown.

    Parameters
    ----------
    manifest
        If given, the text of some of its pairs is shown.
    further
        Sections, as Markdown, that stand after the figures.
    """
    facts = report.manifest
    parts = [f"# Privacy audit: {', '.join(c.name for c in report.checkpoints)}"]
    if report.status == "partial":
        parts.append(
            "**Partial report**: only some examples were scored (`--limit`). Its "
            "figures are for trying things out, not for decisions."
        )
    parts.append("## Verdict")
    for audit, lines in verdict(report).items():
        parts += [f"**{audit}**", _bullets(lines)] if audit else [_bullets(lines)]
    parts += ["## What cannot be concluded", _bullets(report.scope)]
    if report.guards:
        words = {True: "passed", False: "**FAILED**", None: "warning"}
        rows = [
            (g.name, g.checkpoint or "-", words[g.passed], g.detail)
            for g in report.guards
        ]
        parts += [
            "## Guards",
            table(("guard", "checkpoint", "state", "detail"), rows),
        ]
    parts.append("## Figures")
    for block in blocks(report):
        parts.append(_block(block))
    for name, records in report.tables.items():
        if records and name != "matching_by_type":
            parts.append(f"### {name.replace('_', ' ')}")
            header = list(dict.fromkeys(key for record in records for key in record))
            parts.append(
                table(header, [[_cell(r.get(key)) for key in header] for r in records])
            )
    if manifest is not None:
        parts += ["## Some pairs, as text", _pairs(manifest)]
    parts += further
    parts += [
        "## Definitions",
        _bullets(f"**{name}**: {text}" for name, text in _definitions(report)),
    ]
    parts += [
        "## What was audited",
        table(
            ("checkpoint", "source", "format", "base", "dtype", "weights", "notes"),
            [
                (
                    c.name,
                    c.source,
                    c.format,
                    c.base or "-",
                    c.dtype,
                    c.weights_sha256[:12],
                    "; ".join(c.notes) or "-",
                )
                for c in report.checkpoints
            ],
        ),
        f"Manifest `{facts.name}`, digest `{facts.digest[:16]}`: {facts.n_spans} "
        f"matched spans, {facts.n_tokens} tokens, {facts.n_sources} sources in "
        f"{facts.n_clusters} clusters.",
        "Versions: " + ", ".join(f"{k} {v}" for k, v in report.versions.items()) + ".",
        f"Made {report.created} with `{' '.join(report.command)}`.",
    ]
    return "\n\n".join(parts) + "\n"


def _definitions(report: Report) -> Iterator[tuple[str, str]]:
    audits = dict.fromkeys(row.audit for row in report.results)
    for audit in ("", *audits):
        yield from DEFINITIONS.get(audit, ())
    yield _intervals(report)


def _intervals(report: Report) -> tuple[str, str]:
    used = {row.interval for row in report.results} - {"none"}
    names = ", ".join(METHODS.get(name, name) for name in sorted(used)) or "none"
    return "intervals", (
        f"95%, over clusters of sources, by {names}. Percentile bootstrap limits stand "
        "in tables/results.csv as parity_low and parity_high."
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; what would end a cell or a line inside one is escaped."""

    def escaped(cell: str) -> str:
        return " ".join(str(cell).split()).replace("|", "\\|").replace("`", "\\`")

    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(escaped, line))} |" for line in lines)


def _block(block: Block) -> str:
    text = f"### {block.title}\n\n{table(block.header, block.rows)}"
    if block.remarks:
        text += "\n\n" + "\n".join(f"*{remark}*" for remark in block.remarks)
    return text


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    return number(value) if isinstance(value, float) else str(value)


def _pairs(manifest: Manifest, limit: int = 20) -> str:
    def text(example: str, side: PairSide) -> str:
        row = manifest.by_id[example]
        return (row.prompt + row.response)[side.char_start : side.char_end]

    return table(
        ("example", "type", "PII", "control", "reference NLL"),
        [
            (
                pair.example,
                pair.pii.type,
                text(pair.example, pair.pii),
                text(pair.example, pair.control),
                f"{number(pair.pii.nll)} / {number(pair.control.nll)}",
            )
            for pair in manifest.pairs[:limit]
        ],
    )
