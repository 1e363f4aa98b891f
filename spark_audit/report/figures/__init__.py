"""Figures: what a report shows as pictures, each drawn from the report alone.

A figure is one file that registers ``draw(report)``, which declares a forest or curves;
it returns ``None`` where the report has nothing for it, for an empty axis says nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.registry import Registry

if TYPE_CHECKING:
    from spark_audit.report.figures.picture import Draw

FIGURES: Registry[Draw] = Registry(
    "spark_audit.report.figures", kind="figure", folder=Path(__file__).parent
)
