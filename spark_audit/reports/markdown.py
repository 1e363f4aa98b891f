"""report.md: the report as Markdown that pastes well into an issue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from spark_audit.facts import write_text
from spark_audit.manifest import Manifest, PairSide
from spark_audit.reports import DRAWN, WRITERS, Block, blocks, entries, glance, verdict
from spark_audit.reports._definitions import definitions
from spark_audit.results import Report, number


@WRITERS.register()
def write(
    report: Report,
    folder: Path,
    *,
    manifest: Manifest | None = None,
    show_text: bool = False,
    further: Sequence[Block] = (),
) -> list[Path]:
    """Write ``report.md``; identifiers appear only with ``show_text``."""
    path = folder / "report.md"
    shown = manifest if show_text else None
    # With text it is as private as the manifest.
    mode = 0o644 if shown is None else 0o600
    write_text(path, render(report, manifest=shown, further=further), mode=mode)
    return [path]


def render(
    report: Report, *, manifest: Manifest | None = None, further: Sequence[Block] = ()
) -> str:
    """The report as Markdown.

    Parameters
    ----------
    manifest
        If given, the text of some of its pairs is shown.
    further
        Tables that stand in sections of their own after the figures.
    """
    facts = report.manifest
    parts = [f"# Privacy audit: {', '.join(entries(report))}"]
    if report.status == "partial":
        parts.append(
            "**Partial report**: only some examples were scored (`--limit`). Its "
            "figures are for trying things out, not for decisions."
        )
    parts.append("## Verdict")
    for audit, lines in verdict(report).items():
        parts += [f"**{audit}**", _bullets(lines)] if audit else [_bullets(lines)]
    if (first := glance(report)) is not None:
        parts.append(_block(first))
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
        if records and name != "matching_by_type" and name not in DRAWN:
            parts.append(f"### {name.replace('_', ' ')}")
            header = list(dict.fromkeys(key for record in records for key in record))
            parts.append(
                table(header, [[_cell(r.get(key)) for key in header] for r in records])
            )
    if manifest is not None:
        parts += ["## Some pairs, as text", _pairs(manifest)]
    parts += [_block(block, level=2) for block in further]
    parts += [
        "## Definitions",
        _bullets(f"**{name}**: {text}" for name, text in definitions(report)),
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


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; what would end a cell or a line inside one is escaped."""

    def escaped(cell: str) -> str:
        return " ".join(str(cell).split()).replace("|", "\\|").replace("`", "\\`")

    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(escaped, line))} |" for line in lines)


def _block(block: Block, *, level: int = 3) -> str:
    parts = [f"{'#' * level} {block.title}"]
    if block.lead:
        parts.append(block.lead)
    parts.append(table(block.header, block.rows))
    if block.remarks:
        parts.append("\n".join(f"*{remark}*" for remark in block.remarks))
    return "\n\n".join(parts)


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
