"""Guards of the canary audit: a positive control, and the ranks at the base.

A guard passes, fails (which voids its figures), or only warns or informs
(``passed=None``). Sentences: ``[guard]`` in
``sentences/en/canary.toml``.
"""

from __future__ import annotations

from spark_audit.audits.canary.ranked_canaries import RankedCanaries
from spark_audit.names import BASE
from spark_audit.results import Guard
from spark_audit.results.guards import guard


def guards(canaries: RankedCanaries) -> list[Guard]:
    """Return the guards that can void figures: the control, and the base's ranks."""
    return [_control_guard(canaries), _base_guard(canaries)]


def _control_guard(canaries: RankedCanaries) -> Guard:
    """Return the positive control: some checkpoint remembers canaries in most rows.

    ==================  ======  ===================================================
    sentence            passed  condition, first match wins
    ==================  ======  ===================================================
    control_missing     False   no fine-tuned checkpoint has a ranked canary
    control_not_found   False   no test is significant
    control_found       None    the control was found for some parts only
    control_found       True    it was found for all parts
    ==================  ======  ===================================================
    """
    name = "positive control"
    tests = canaries.control_tests
    if not tests:
        return guard(name, "control_missing", {}, passed=False)

    # Tests are sorted by p: show the clearest, whether it is significant or not.
    facts = tests[0].facts("exposure_mean")
    detected_in = list(
        dict.fromkeys(test.checkpoint for test in tests if test.is_significant)
    )
    if not detected_in:
        return guard(
            name,
            "control_not_found",
            facts,
            further=["control_p", "control_not_found_do"],
            passed=False,
        )

    # If only some parts have a control, the guard warns and voids no other part.
    facts["checkpoints"] = detected_in
    facts["insensitive"] = canaries.insensitive_parts
    further = ["control_p"]
    if len(detected_in) > 1:
        further.append("control_found_also")
    if canaries.insensitive_parts:
        further.append("control_found_in_part")
    passed = None if canaries.insensitive_parts else True
    return guard(name, "control_found", facts, further=further, passed=passed)


def _base_guard(canaries: RankedCanaries) -> Guard:
    """Return the guard that the base, which saw no canary, ranks them by chance.

    It fails if the base's ranks are not uniform. Without a test of the base it only
    says so.
    """
    name = "base ranks canaries by chance"
    # Without a test of the base, chance rests on the draw of the canaries alone.
    if not canaries.base_tests:
        # Without a test the base was not scored, or all of its canaries are tied.
        is_scored = BASE in set(canaries.frame["checkpoint"])
        says = "canary_base_tied" if is_scored else "canary_base_unscored"
        further = []
        if canaries.is_draw_assumed:
            further.append("canary_other_draw")
        return guard(
            name, says, {"supposed": canaries.is_draw_assumed}, further=further
        )

    facts = canaries.base_tests[0].facts("rank_mean", unit="ranks")
    facts["by_chance"] = canaries.is_base_uniform

    says = "canary_base_ranks"
    further = []
    if not canaries.is_base_uniform:
        says = "canary_base_knows"
        further = ["canary_base_only_changes"]
    return guard(
        name,
        says,
        facts,
        further=further,
        passed=canaries.is_base_uniform,
        checkpoint=BASE,
    )
