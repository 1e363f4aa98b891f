"""Check whether a report follows from its evidence: ``spark-audit verify``.

``pipeline/verification/`` names the parts of a report and finds differences; here they
are counted and printed. Names of parts begin with a folder (``scores/``) or with words
(``conclusions of AUDIT``), by which :attr:`PartCheck.group` groups them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from spark_audit import options
from spark_audit.cli.report_inputs import Folder, manifest_of, opened
from spark_audit.errors import InputError, choose
from spark_audit.messages import say
from spark_audit.sentences import render
from spark_audit.terminal.console import show_line, show_table, tell_json

if TYPE_CHECKING:
    from spark_audit.results import Report

WEIGHTS_PREFIX = "weights of "
"""Begins the name of a part that compares the weights of a checkpoint."""

COLUMNS_OF_PARTS = ("part", "state", "detail")
"""Message keys of the columns of the parts of a report."""


@dataclass(frozen=True)
class PartCheck:
    """A part of a report, and its difference from the evidence.

    Attributes
    ----------
    name
        A file of the report, ``conclusions of AUDIT``, ``weights of NAME`` ...
    difference
        How it differs; empty if it follows from the evidence.
    """

    name: str
    difference: str

    @property
    def is_verified(self) -> bool:
        """Return whether the part follows from the evidence."""
        return not self.difference

    @property
    def is_stray(self) -> bool:
        """Return whether it is a shared file that the report does not name.

        Evidence that the report does not name is not stray: it may lead to another
        conclusion than the report's.
        """
        from spark_audit.pipeline.verification.checked import NOT_NAMED

        is_evidence = self.name.startswith("scores/")
        return self.difference == NOT_NAMED and not is_evidence

    @property
    def group(self) -> str:
        """Return the group in which it is counted, such as the files of a folder."""
        for folder in ("scores/", "tables/", "figures/"):
            if self.name.startswith(folder):
                return folder
        if self.name.startswith("conclusions of "):
            return render("verify.conclusions")
        if self.name.startswith(WEIGHTS_PREFIX):
            return render("verify.weights")
        return render("verify.others")


def verify(
    folder: Folder,
    /,
    *,
    attestation: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    ckpt: Annotated[tuple[str, ...], Parameter(metavar="[NAME=]PATH...")] = (),
    base: Annotated[str | None, Parameter(metavar="MODEL")] = None,
    manifest: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    json: options.Json = False,
) -> None:
    """Conclude a report anew from its evidence, without model or text; 1 if it differs.

    Every file of evidence is concluded again and compared with all that the report
    says; shared files must be, to the byte, what it gives. What nothing shows is
    listed.

    Parameters
    ----------
    attestation
        A statement of ``gate --attest``: it must be the one that this report gives.
    ckpt
        Checkpoints whose weights must be those of the report.
    base
        Base model of adapters.
    manifest
        The manifest, for its digest, its counts and the dossier.
    """
    from spark_audit.pipeline.verification.trust import taken_on_trust
    from spark_audit.pipeline.verification.verify import verify as verify_report

    folder, report = opened(folder)
    # To conclude again takes a minute, so unknown names are refused first.
    _check_names(ckpt, report)
    loaded_manifest = None
    if manifest is not None:
        loaded_manifest = manifest_of(report, manifest)

    # Printed even without a terminal, because nothing else appears for a minute.
    say(render("verify.begins", folder=folder))
    checks = [
        PartCheck(name, difference)
        for name, difference in verify_report(
            folder,
            attestation=attestation,
            ckpt=ckpt,
            base=base,
            manifest=loaded_manifest,
        )
    ]
    # Compared weights are no longer taken on trust. There are such parts only with
    # --ckpt.
    compared_checkpoints = [
        check.name.removeprefix(WEIGHTS_PREFIX)
        for check in checks
        if check.name.startswith(WEIGHTS_PREFIX)
    ]
    trusted = taken_on_trust(
        report,
        verified=compared_checkpoints,
        with_manifest=loaded_manifest is not None,
    )

    if json:
        checked = [
            {
                "what": check.name,
                "verified": check.is_verified,
                "detail": check.difference,
            }
            for check in checks
        ]
        tell_json({"checked": checked, "taken_on_trust": trusted})
    else:
        _show_verified(checks, trusted)
    # A stray file counts, because it could be mistaken for a part of the report.
    if not all(check.is_verified for check in checks):
        raise SystemExit(1)


def _check_names(ckpt: Sequence[str], report: Report) -> None:
    """Refuse the name of a checkpoint that is not in the report."""
    from spark_audit.checkpoints.specs import parse_specs

    known_names = [checkpoint.name for checkpoint in report.checkpoints]
    for spec in parse_specs(list(ckpt)):
        if spec.name not in known_names:
            raise InputError(
                f"{spec.name!r} is none of the report's checkpoints",
                where="--ckpt",
                fix=f"{choose(spec.name, known_names)}; name it as NAME=PATH",
            )


def _show_verified(checks: Sequence[PartCheck], trusted: Sequence[str]) -> None:
    """Print whether a report follows from its evidence, and which parts do not."""
    from spark_audit.pipeline.verification.files import MENDED_BY_RENDERING

    # Each check is one of the three: a stray file has a difference, so it is never
    # verified.
    strays = [check for check in checks if check.is_stray]
    verified = [check for check in checks if check.is_verified]
    wrong = [check for check in checks if not (check.is_verified or check.is_stray)]

    n_wrong, n_verified, n_strays = len(wrong), len(verified), len(strays)
    show_line(_verdict(n_wrong, n_verified, n_strays), style="bold")
    if wrong and strays:
        show_line(render("verify.strays", count=n_strays), style="bold")

    header = [render(f"verify.column_{name}") for name in COLUMNS_OF_PARTS]
    lines = _lines_of_parts(wrong=wrong, strays=strays, verified=verified)
    show_table("", header, lines, figures=False)

    show_line(render("verify.trusted"))
    for line in trusted:
        show_line(f"- {line}")
    # Then the report follows from its evidence, and its pages are of another version,
    # or were edited: rendering them again mends both.
    if wrong and all(check.difference in MENDED_BY_RENDERING for check in wrong):
        show_line(render("verify.next_of_rendering"))
    elif wrong:
        show_line(render("verify.next"))
    elif strays:
        show_line(render("verify.next_of_strays"))


def _verdict(n_wrong: int, n_verified: int, n_strays: int) -> str:
    """Return the verdict on a report in one line."""
    if n_wrong:
        n_parts = n_wrong + n_verified
        return render("verify.differs", wrong=n_wrong, count=n_parts)
    if n_strays:
        return render("verify.follows_but_strays", count=n_verified, strays=n_strays)
    return render("verify.follows", count=n_verified)


def _lines_of_parts(
    *,
    wrong: Sequence[PartCheck],
    strays: Sequence[PartCheck],
    verified: Sequence[PartCheck],
) -> list[tuple[str, str, str]]:
    """Return a line for each wrong part, and for each group of other parts.

    The columns are :data:`COLUMNS_OF_PARTS`.
    """
    from spark_audit.results import grouped

    # Wrong parts are listed in full, and correct ones are counted.
    lines = []
    for check in wrong:
        lines.append((check.name, render("verify.wrong"), check.difference))

    for group, members in grouped(strays, lambda check: check.group).items():
        detail = render("verify.stray_detail")
        if len(members) > 1:
            detail = render("verify.strays_detail", count=len(members))
        name = _name_of_group(group, members)
        lines.append((name, render("verify.stray"), detail))

    for group, members in grouped(verified, lambda check: check.group).items():
        state = render("verify.held", count=len(members))
        lines.append((_name_of_group(group, members), state, ""))
    return lines


def _name_of_group(group: str, members: Sequence[PartCheck]) -> str:
    """Return the name of a single member, or else of the group."""
    if len(members) == 1:
        return members[0].name
    return group
