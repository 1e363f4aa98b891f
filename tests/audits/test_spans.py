"""Which spans are audited, and sums over token ranges against plain loops."""

import numpy as np
import pytest
from audited import matched

from spark_audit.audits.identifiers import Sums
from spark_audit.errors import InputError
from spark_audit.scoring.table import Pass, TokenTable


def doubled(key: str, nll: np.ndarray) -> np.ndarray:
    return 2 * nll


def test_a_table_that_lacks_an_example_is_refused(make_case):
    case = make_case(sources=4, seed=2)
    whole = case.table(doubled)
    table = TokenTable.from_items(list(whole.items())[:2])
    sums = Sums.of_table(case.manifest, table)
    assert np.isfinite(sums(np.array([0]), np.array([1]), np.array([1]))).all()
    with pytest.raises(InputError, match="the score table lacks an item"):
        sums(np.array([3]), np.array([1]), np.array([1]))
    with pytest.raises(InputError, match="the score table lacks an item"):
        matched({"a": {Pass(): table}}, case.manifest)
