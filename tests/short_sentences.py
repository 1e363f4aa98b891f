"""Checks that what findings and guards say is short, whichever keys they have."""

import re

from spark_audit import sentences
from spark_audit.results import AuditResult, Finding

MAX_WORDS = 25
MAX_NUMBERS = 2

NUMBER = re.compile(r"(?<![\w.])-?\d[\d,.]*%?")


def check_sentences(result: AuditResult) -> set[str]:
    """Return the keys of all that is said, after each sentence was checked.

    A sentence has at most 25 words and two numbers, and no brackets; a remark has at
    most 25 words.
    """
    keys = set()
    for finding in result.findings:
        for shown in (finding, withdrawn(finding)):
            text = shown.text
            assert len(text.split()) <= MAX_WORDS, text
            assert len(NUMBER.findall(text)) <= MAX_NUMBERS, text
            assert not re.search(r"[()\[\]]", text), text
        for key in finding.further:
            remark = sentences.render(key, **finding.facts, finding=finding)
            assert len(remark.split()) <= MAX_WORDS, remark
            assert remark.endswith("."), remark
        keys |= {finding.says, *finding.further}
    for guard in result.guards:
        for key in (guard.says, *guard.further):
            remark = sentences.render(key, **guard.facts)
            assert len(remark.split()) <= MAX_WORDS, remark
        keys |= {guard.says, *guard.further}
    return keys


def withdrawn(finding: Finding) -> Finding:
    """Return the finding once the correction over the report took its claim away."""
    if not finding.detected:
        return finding
    taken = {"claim": "nothing_shown", "p_adjusted": 0.8, "tests": 9}
    return finding.model_copy(update=taken)
