"""Audits here take few replicates of the bootstrap: nothing rests on its last digit."""

from collections.abc import Iterator

import pytest

from spark_audit.audits.base import Audit


@pytest.fixture(scope="module", autouse=True)
def _few_replicates() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Audit, "replicates_of", lambda *_: 200)
        yield
