"""The types of ``report.json``, the truth that every other format is rendered from.

Docstrings of classes and fields are part of its JSON schema, ``schemas/report.json``. A
new field needs a default, so that older reports can still be read, and an entry in the
schema (``tests/report/test_writers.py`` says how it is written).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, ConfigDict, Field, computed_field

from spark_audit import sentences
from spark_audit.cells_html import short_repr
from spark_audit.files import without_examples
from spark_audit.results.findings import Finding, by_severity
from spark_audit.results.guards import Guard
from spark_audit.results.report_checks import (
    RESERVED_TABLES,
    ReportTables,
    checked_files,
    checked_tables,
    with_visible_text,
)
from spark_audit.results.rows import Contrast, Count, Row, Strict, Text
from spark_audit.results.training import TrainingFacts

ReportStatus: TypeAlias = Literal["complete", "partial"]
"""Whether all examples were scored, or some only."""


ENDPOINT_FORMAT = "endpoint"
"""Format of a checkpoint that is an endpoint, which gives only text."""

TEXT_FILE_FORMAT = "text file"
"""Format of a file that a model wrote, which takes the place of a checkpoint."""


class CheckpointFacts(Strict):
    """A checkpoint that was audited."""

    name: Text
    """Name in this report."""
    source: Text
    """Where it was opened from."""
    format: Text
    """Checkpoint format that it was opened by."""
    base: Text | None = None
    """Base model of an adapter."""
    weights_sha256: Text
    """SHA-256 of its weight files."""
    model_id: Text
    """What makes two checkpoints the same model."""
    parameters: Count | None = None
    """Parameters of the model, without those of an adapter; null: not known."""
    dtype: Text
    """Number format that it was scored in."""
    quantised_from: Text | None = None
    """Name of the checkpoint whose weights were rounded."""
    relearned_from: Text | None = None
    """Name of the checkpoint that a short training on other rows made this of."""
    training: TrainingFacts | None = None
    """What it was trained with; null: neither `spark-train` nor a trainer of
    transformers left a record of it."""
    notes: list[Text] = []
    """Remarks on opening and scoring it."""

    @property
    def is_endpoint(self) -> bool:
        """True if it is an endpoint that gives only text."""
        return self.format == ENDPOINT_FORMAT

    @property
    def is_text(self) -> bool:
        """True if there is only text of it: no scores, and no base to compare with."""
        return self.format in (ENDPOINT_FORMAT, TEXT_FILE_FORMAT)

    def __repr__(self) -> str:
        return short_repr(self, self.name, format=self.format, base=self.base)

    def __str__(self) -> str:
        return repr(self)


class ManifestFacts(Strict):
    """The manifest that checkpoints were audited against."""

    name: Text
    """Name of the manifest."""
    digest: Text
    """SHA-256 of its content; in shared files HMAC-SHA256 of that."""
    key: Text = ""
    """Random key of the HMAC: without it, texts can be tried out against the digest.
    Empty in shared files."""
    n_sources: Count
    """Sources of the matched spans trained on."""
    n_clusters: Count
    """Clusters that those sources are in."""
    n_spans: Count
    """Matched spans of rows trained on."""
    n_tokens: Count
    """Tokens of those spans."""

    def __repr__(self) -> str:
        # Neither digest nor key: with both, texts can be tried out.
        return short_repr(self, self.name)

    def __str__(self) -> str:
        return repr(self)


def _describe_schema(schema: dict[str, Any]) -> None:
    """Add the dialect and the name of the schema of reports."""
    without_examples(schema)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["$id"] = "urn:spark-audit:report:5"


class Report(Strict):
    """``report.json``: the truth that every other format is rendered from.

    Examples
    --------
    >>> report = sa.read_report("reports/mine")
    >>> isinstance(report, sa.Report), report.status
    (True, 'complete')
    """

    model_config = ConfigDict(
        # `limitations` is the key `scope` of the file.
        serialize_by_alias=True,
        json_schema_extra=_describe_schema,
    )

    kind: Literal["spark-audit-report"] = "spark-audit-report"
    """What the file is."""
    schema_version: Literal[5] = 5
    """Version of this schema."""
    status: ReportStatus
    """`partial`: only some examples were scored; not for decisions."""
    command: list[Text]
    """Command line that made it, word by word."""
    created: Text
    """When it was made, UTC, as ISO 8601."""
    versions: dict[Text, Text]
    """Versions of program and libraries."""
    settings: Annotated[dict[str, Any], AfterValidator(with_visible_text)] = {}
    """Settings that shaped it; `AUDIT.NAME` is one audit's own."""
    manifest: ManifestFacts
    """What was audited against."""
    checkpoints: list[CheckpointFacts]
    """What was audited."""
    findings: list[Finding] = []
    """The verdict, most severe first."""
    results: list[Row]
    """All figures of single checkpoints."""
    contrasts: list[Contrast]
    """Paired figures against a baseline."""
    guards: list[Guard]
    """Conditions that can void a claim."""
    caveats: list[Text] = []
    """What cannot be concluded from this report alone."""
    tables: Annotated[ReportTables, AfterValidator(checked_tables)] = {}
    """Further tables by name: flat records."""
    origins: dict[Text, Text] = {}
    """Audit that made a table, or `manifest`, or `training`."""
    evidence: dict[Text, Text] = {}
    """SHA-256 of each audit's evidence, by its name in `scores/`."""
    timing: dict[Text, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        default={}, json_schema_extra={"unit": "seconds"}
    )
    """Seconds spent, by stage."""
    files: Annotated[dict[Text, list[str]], AfterValidator(checked_files)] = {}
    """Files beside it, by the writer that they are of: nothing else in the folder is
    ever deleted."""

    @computed_field(alias="scope")  # type: ignore[prop-decorator]
    @property
    def limitations(self) -> list[str]:
        """Sentences on what cannot be concluded."""
        # First the caveats of every report, then of each audit in it, then its own.
        figures = (*self.results, *self.contrasts, *self.findings)
        scopes = ["all", *(figure.audit for figure in figures)]

        caveats = []
        for scope in dict.fromkeys(scopes):  # each once, in this order
            caveats += sentences.under(f"scope.{scope}.")
        return [*caveats, *self.caveats]

    def __eq__(self, other: object) -> bool:
        """Return whether the content is the same: a subclass only adds methods."""
        if not isinstance(other, Report):
            return NotImplemented

        # Compare stored fields only; the computed ones follow from them.
        return all(
            getattr(self, name) == getattr(other, name) for name in Report.model_fields
        )

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield what ``repr`` shows: the manifest, and the length of each list."""
        yield "status", self.status
        yield "manifest", self.manifest.name

        # The records themselves would fill screens.
        for name in ("checkpoints", *RESERVED_TABLES, "findings"):
            records = getattr(self, name)
            yield name, len(records)

    @property
    def verdict(self) -> list[str]:
        """The sentences of the findings, the most severe first."""
        return [finding.sentence for finding in by_severity(self.findings)]
