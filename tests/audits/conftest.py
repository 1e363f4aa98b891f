"""Audits here take few replicates of the bootstrap: nothing rests on its last digit."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _few_replicates() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_audit.audits.base.replicates", lambda _: 200)
        yield
