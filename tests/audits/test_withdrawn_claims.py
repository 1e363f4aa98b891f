"""Every claim that the correction can take away has words for what remains of it.

A finding whose claim does not hold over all tests of a report says ``KEY.withdrawn``. A
key without it stops the whole report, and only then. So the keys of claims are read
from the code: wherever a claim is an argument, the key of its sentence is the next one,
or ``says``.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jinja2.meta

import spark_audit.audits
from spark_audit.results.findings import DETECTED, SEVERITY, SHOWN_BY_TEST
from spark_audit.sentences import knows
from spark_audit.sentences.renderer import known_templates, template_environment

FOLDER = Path(spark_audit.audits.__file__).parent

CLAIMS = {claim for claim, severity in SEVERITY.items() if severity >= DETECTED}
CLAIMS |= {*SHOWN_BY_TEST}

WITHDRAWN = ".withdrawn"

OF_DATA = {
    "mia.membership",  # a key that is the claim
    "extract.text.canaries_back",  # the finding on canaries with another key
    "erasure.remembered",  # the key follows from what the test is on
    "erasure.remembered_identifiers",
    "erasure.remembered_membership",
    "erasure.remembered_twins",
    "erasure.remembered_verbatim",
    "erasure.before_remembers",  # ... and from which model it is
    "erasure.copy_remembers",
    "erasure.retrained_remembers",
    "matched.group_memory",  # the key follows from the audit that has groups
    "mia.group_membership",
    "extract.group_verbatim",
    "generated.verbatim",  # the key follows from what was found in a file
    "generated.copies",
    "generated.closer",
    "generated.canaries_back",
}
"""Keys of claims that data decide, which cannot be read from the code."""


OTHER_KEYS = ("ending.", "said.")
"""Keys that end so and are none of an audit: a remark, and the one that tests add."""


class ClaimedKeys(NamedTuple):
    """A call with a claim: the keys that it may have, and whether it always claims."""

    place: str
    keys: set[str]
    is_always_claim: bool


def strings(
    node: ast.AST, function: ast.FunctionDef, names: frozenset[str] = frozenset()
) -> set[str]:
    """All strings that an expression can be; empty: they cannot be read.

    ``names`` are those that stand for it: a name in its own value is not followed.
    """
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, str) else set()
    if isinstance(node, ast.IfExp):
        parts = (node.body, node.orelse)
        return set().union(*(strings(part, function, names) for part in parts))
    if isinstance(node, ast.JoinedStr):
        texts = {""}
        for part in node.values:
            is_field = isinstance(part, ast.FormattedValue)
            ends = strings(part.value if is_field else part, function, names)
            texts = {text + end for text in texts for end in ends}
        return texts
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "memory_claim":
        return {"memory", "betrays", "nothing_shown"}
    if not isinstance(node, ast.Name) or node.id in names:
        return set()

    found = set()
    for statement in ast.walk(function):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        if name == node.id:
            found |= strings(value, function, names | {name})
    return found


def pairs_of(call: ast.Call) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield what may be a claim and the key of its sentence."""
    by_name = {keyword.arg: keyword.value for keyword in call.keywords}
    if {"claim", "says"} <= by_name.keys():
        yield by_name["claim"], by_name["says"]
    yield from zip(call.args, call.args[1:], strict=False)


def claimed_keys() -> Iterator[ClaimedKeys]:
    """Yield the keys of all calls of audits that may claim something."""
    for path in sorted(FOLDER.rglob("*.py")):
        place = path.relative_to(FOLDER)
        audit = place.parts[0].removesuffix(".py").removesuffix("_findings")
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            for call in calls:
                for claim, says in pairs_of(call):
                    claims = strings(claim, function)
                    keys = set()
                    for text in strings(says, function):
                        keys |= {key for key in (text, f"{audit}.{text}") if knows(key)}
                    if claims & CLAIMS and keys:
                        where = f"{place}:{call.lineno}"
                        yield ClaimedKeys(where, keys, claims <= CLAIMS)


def test_every_claim_has_words_once_it_is_withdrawn():
    found = set()
    lacking = []
    for claimed in claimed_keys():
        with_words = {key for key in claimed.keys if knows(f"{key}{WITHDRAWN}")}
        found |= with_words
        # Where nothing may be claimed, the other keys are of that.
        is_said = claimed.keys == with_words if claimed.is_always_claim else with_words
        if not is_said:
            lacking.append(claimed)
    assert not lacking

    # All of them were found: else the search, or the list above, is not up to date.
    written = {
        key.removesuffix(WITHDRAWN)
        for key in known_templates()
        if key.endswith(WITHDRAWN) and not key.startswith(OTHER_KEYS)
    }
    assert found | OF_DATA == written


def test_what_is_said_of_a_withdrawn_claim_can_be_rendered():
    """It is a template, and includes none that is missing."""
    environment = template_environment()
    for key, text in known_templates().items():
        if key.endswith(WITHDRAWN):
            environment.get_template(key)
            included = jinja2.meta.find_referenced_templates(environment.parse(text))
            assert all(name is None or knows(name) for name in included), key
