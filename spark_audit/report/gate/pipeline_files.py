"""JUnit and SARIF of the gate, which tools of a pipeline read."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any
from urllib.parse import quote

from spark_audit.errors import visible
from spark_audit.report.gate.judge import RuleOutcome
from spark_audit.report.writers.page_templates import environment
from spark_audit.results import grouped

SARIF_LEVELS = {"tripped": "error", "missing": "warning"}
"""States that a log names, and as what."""


def junit(found: Sequence[RuleOutcome], *, name: str) -> str:
    """Return one suite per rule and one case per checkpoint: failed where it tripped.

    Cases whose figure is missing, where that may be, and those that a rule leaves out
    are skipped.

    Parameters
    ----------
    name
        Of all suites, such as the report's folder.
    """
    template = environment(visible=visible).get_template("junit.xml")
    return template.render(
        name=name, found=found, rules=grouped(found, attrgetter("rule"))
    )


def sarif(found: Sequence[RuleOutcome], *, name: str) -> dict[str, Any]:
    """Return a log of what tripped or lacks a figure, in SARIF 2.1.0 (OASIS, 2020).

    ``name`` is that of the report's folder. GitHub's code scanning asks for both
    descriptions, help and a line as well.
    """
    place = {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(f"{name}/report.json")},
            "region": {"startLine": 1},
        }
    }
    texts = list(dict.fromkeys(visible(one.rule) for one in found))
    help = {"text": "Rules are explained by `spark-audit gate --help`."}
    words = ("shortDescription", "fullDescription")
    rules = [
        {"id": f"gate/{k}", "help": help, **dict.fromkeys(words, {"text": text})}
        for k, text in enumerate(texts)
    ]
    results = [
        {
            "ruleId": f"gate/{texts.index(visible(one.rule))}",
            "level": SARIF_LEVELS[one.state],
            "message": {"text": visible(f"{one.whom}: {one.rule}: {one.detail}")},
            "locations": [place | {"logicalLocations": [{"name": one.whom}]}],
        }
        for one in found
        if one.state in SARIF_LEVELS
    ]
    driver = {"name": "spark-audit", "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
