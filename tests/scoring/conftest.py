"""What tests of scoring share."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_garbage_is_looked_for() -> Iterator[None]:
    """Look for no garbage where memory ends.

    It takes a second each time beside all that was imported, and frees nothing here.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gc.collect", lambda *generation: 0)
        yield
