"""A manifest in figures, recomputed from its records."""

import re
from typing import Any

import numpy as np
import pytest

from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.overview import describe
from spark_audit.manifest.redaction import redact
from spark_audit.manifest.schema import Manifest
from spark_audit.sentences import render


@pytest.fixture
def manifest(rows, reference, made_scores) -> Manifest:
    return build_manifest(
        rows, reference, name="small", caliper=0.03, n_candidates=4, preset="paper"
    )


def test_what_can_be_judged_is_counted_by_type(manifest):
    found = describe(manifest)
    split = {e.id: e.split for e in manifest.examples}
    train = [p for p in manifest.pairs if split[p.example] == "train"]
    lost = [s for s in manifest.unmatched if split[s.example] == "train"]
    table = found.tables["what can be judged"]
    lines = found.summary
    assert sum(row["with control"] for row in table) == len(train)
    assert sum(row["trained"] for row in table) == len(train) + len(lost)
    held_out = len(manifest.pairs) + len(manifest.unmatched) - len(train) - len(lost)
    assert sum(row["held out"] for row in table) == held_out
    for row in table:
        effect = row["smallest effect, nats"]
        count = row["clusters"]
        assert (effect is None) == (count < 2)
        assert effect is None or effect > 2.8016 * 1.43 / np.sqrt(count)
        if row["trained"]:
            counted = f"{row['with control']} of {row['trained']} with a control"
            assert any(
                line.startswith(row["type"]) and counted in line for line in lines
            )


def test_a_redacted_manifest_tells_all_but_scores(manifest):
    whole = describe(manifest)
    rest = describe(redact(manifest))
    assert rest.facts["redacted from"] == "not shown"
    differ = {k for k in whole.facts if whole.facts[k] != rest.facts[k]}
    assert differ == {"digest", "redacted from"}
    for title in ("what can be judged", "unmatched spans"):
        assert rest.tables[title] == whole.tables[title]
    assert rest.tables["balance"] == []


def test_it_is_said_first_what_can_be_tested_and_whether_to_go_on(manifest):
    split = {example.id: example.split for example in manifest.examples}
    spans = [pair.example for pair in manifest.pairs]
    spans += [span.example for span in manifest.unmatched]
    n_trained = sum(split[example] == "train" for example in spans)
    memory = {"trained": n_trained, "held_out": len(spans) - n_trained}
    rows = {
        "members": len(manifest.membership.members),
        "others": len(manifest.membership.non_members),
    }
    canaries = {
        "planted": len({c.canary_id for c in manifest.canaries if not c.held_out}),
        "held_out": len({c.canary_id for c in manifest.canaries if c.held_out}),
    }
    of_memory = render("overview.of_memory", **memory)
    of_canaries = render("overview.of_canaries", **canaries)

    def said(key: str, tests: list[str], missing: list[str]) -> str:
        return render(f"overview.{key}", name="small", tests=tests, missing=missing)

    of_membership = render("overview.of_membership", **rows)
    whole = describe(manifest).summary[0]
    assert whole == said("go_on", [of_memory, of_membership, of_canaries], [])

    no_members = manifest.membership.model_copy(update={"non_members": []})
    no_membership = render("overview.no_membership", members=rows["members"], others=0)
    part = describe(manifest.with_parts(membership=no_members)).summary[0]
    assert part == said("go_on_in_part", [of_memory, of_canaries], [no_membership])

    nothing = manifest.with_parts(
        pairs=[], unmatched=[], canaries=[], membership=no_members
    )
    no_memory = render("overview.no_memory", trained=0, held_out=0)
    assert describe(nothing).summary[0] == said("stop", [], [no_memory, no_membership])


def test_the_second_line_names_the_types_that_are_hardly_matched(manifest):
    keys = [e.id for e in manifest.examples if e.split == "train"]
    pair = manifest.pairs[0]

    def of(kind: str, count: int, pairs: int) -> tuple[list[Any], list[Any]]:
        side = pair.pii.model_copy(update={"type": kind})
        lost = manifest.unmatched[0].model_copy(
            update={"type": kind, "example": keys[0], "reason": "none within caliper"}
        )
        one = pair.model_copy(update={"pii": side, "example": keys[0]})
        return [one] * pairs, [lost] * (count - pairs)

    emails, lost_emails = of("EMAIL", 220, 17)
    names, lost_names = of("NAME", 220, 200)
    found = describe(
        manifest.with_parts(pairs=emails + names, unmatched=lost_emails + lost_names)
    )
    first = found.summary[1]
    assert {"EMAIL", "17", "220", "8%"} <= {*re.findall(r"[\w%]+", first)}
    assert "NAME" not in first
    of_cause = render("overview.caliper", type="EMAIL", caliper="0.03")
    assert of_cause in found.summary


def test_without_identifiers_membership_takes_held_out_rows(manifest):
    plain = manifest.with_parts(pairs=[], unmatched=[])
    with_rows = render("overview.no_identifier_but_rows", name="small")
    assert describe(plain).summary[1] == with_rows
    alone = plain.membership.model_copy(update={"non_members": []})
    without_rows = render("overview.no_identifier", name="small")
    assert describe(plain.with_parts(membership=alone)).summary[1] == without_rows
