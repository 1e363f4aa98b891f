"""Options of audits that are refused before anything is scored."""

import pytest
from audited import check

from spark_audit.errors import InputError


@pytest.mark.parametrize(
    ("audit", "options", "why"),
    [
        ("matched", {"replicates": 1}, "--replicates: 1 replicates give no interval"),
        ("matched", {"placebo_draws": -1}, "--placebo-draws: must not be negative"),
        ("mia", {"blind_permutations": 19}, "--blind-permutations: 19 permutations"),
        ("extract", {"prompts": "full,last9"}, "--prompts: 'last9' is unknown"),
        *(
            ("noise", {"sigmas": sigmas}, "--sigmas: must be positive numbers")
            for sigmas in ("", "a", "0.1,,0.2", "0", "-1", "nan", "inf")
        ),
        ("noise", {"draws": 0}, "--draws: 0 draws are too few"),
        ("utility", {"scorer": "f1"}, "--scorer: 'f1' is unknown.*likelihood"),
        *(
            (audit, {"order": order}, "--order: names a task twice, or has an empty")
            for audit in ("utility", "stages", "series")
            for order in ("a,b,a", "a,,b")
        ),
    ],
)
def test_options_are_refused_before_anything_is_scored(audit, options, why):
    with pytest.raises(InputError, match=why):
        check(audit, **options)
