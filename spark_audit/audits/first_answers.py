"""What an audit answers in words on the first screen, with a figure to draw."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FirstAnswer:
    """A sentence with a label, and perhaps an interval next to a band.

    Attributes
    ----------
    label
        A checkpoint, or what the sentence is about.
    text
        The sentence.
    low, value, high
        An estimate with its interval, in the unit of the audit; all ``None``: there is
        none. 0 is no effect.
    band
        How far from 0 an estimate may be, in the same unit.
    verdict
        The word of the audit for what it concludes of the checkpoint; empty: the
        sentence is on the whole report.
    """

    label: str
    text: str
    low: float | None = None
    value: float | None = None
    high: float | None = None
    band: float = 0.0
    verdict: str = ""

    @property
    def is_drawn(self) -> bool:
        """True if there is an interval to draw."""
        return None not in (self.low, self.value, self.high) and self.band > 0
