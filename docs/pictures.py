"""Draws the schematic pictures of concepts.md: ``python docs/pictures.py``.

All numbers are made up. The files stand in ``docs/pictures/``; ``gallery.py`` makes the
other ones there, of the demo's report.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from scipy import stats

FOLDER = Path(__file__).parent / "pictures"
BLUE, RED, GREY = "#0072b2", "#9b1c1c", "#8a8f98"


def memory(ax: Axes, rng: np.random.Generator) -> None:
    """Two groups that both became more likely; memory is the difference."""
    groups = {"trained": (1.0, RED), "never trained": (0.4, BLUE)}
    for place, (mean, colour) in enumerate(groups.values()):
        values = rng.normal(mean, 0.22, 40)
        ax.scatter(rng.normal(place, 0.06, 40), values, color=colour, alpha=0.5, s=18)
        ax.hlines(mean, place - 0.3, place + 0.3, color=colour, linewidth=3)
    ax.annotate(
        "", (0.5, 1.0), (0.5, 0.4), arrowprops={"arrowstyle": "<->", "color": "black"}
    )
    ax.text(0.53, 0.7, "memory", va="center")
    ax.axhline(0, color=GREY, linestyle=":")
    ax.text(1.55, 0.02, "base model", color=GREY, ha="right", va="bottom")
    ax.set_xticks([0, 1], [f"identifiers: {name}" for name in groups])
    ax.set(ylabel="change of log-likelihood\n(nats per token)", xlim=(-0.6, 1.6))


def controls(ax: Axes, rng: np.random.Generator) -> None:
    """One row of text: the identifier and other text that is as hard for the base."""
    text = "She returned oak chair legs . Reach her at 555 - 0142".split()
    nll = [3.9, 5.0, 5.1, 1.2, 5.4, 0.4, 4.2, 1.2, 0.7, 4.8, 1.0, 5.6]
    colours = ["#d5d8dc"] * 2 + [BLUE] * 3 + ["#d5d8dc"] * 4 + [RED] * 3
    ax.bar(range(len(text)), nll, color=colours)
    ax.set_xticks(range(len(text)), text, rotation=45, ha="right")
    ax.text(10, 6.2, "identifier:\nmean 3.8", color=RED, ha="center")
    ax.text(3, 6.2, "control:\nmean 3.9", color=BLUE, ha="center")
    ax.set(ylabel="NLL on the base model\n(nats per token)", ylim=(0, 8))


def clusters(ax: Axes, rng: np.random.Generator) -> None:
    """Rows of one person resemble each other: intervals over rows are too narrow."""
    means = rng.normal(0.3, 0.5, 8)
    values = [rng.normal(mean, 0.12, 9) for mean in means]
    for place, one in enumerate(values):
        ax.scatter(one, np.full(9, place), color=GREY, s=14)
    rows = np.concatenate(values)
    names = {"over rows": (rows, BLUE, -1.5), "over clusters": (means, RED, -2.6)}
    for name, (units, colour, place) in names.items():
        draws = rng.choice(units, (4000, len(units))).mean(axis=1)
        low, high = np.quantile(draws, [0.025, 0.975])
        ax.plot([low, high], [place, place], color=colour, linewidth=3)
        ax.plot(rows.mean(), place, "o", color=colour)
        ax.text(high + 0.05, place, f"95% interval {name}", color=colour, va="center")
    ax.axvline(0, color=GREY, linestyle=":")
    ax.set_yticks([0, 7], ["person 1", "person 8"])
    ax.set(xlabel="change (nats per token), one point per row", ylim=(-3.4, 8))
    ax.set_xlim(-0.8, 1.8)


def canary(ax: Axes, rng: np.random.Generator) -> None:
    """The canary among its candidates, in order of NLL."""
    nll = np.sort(rng.normal(40, 6, 512))
    ax.plot(np.arange(1, 513), nll, color=GREY)
    ax.plot(3, nll[2], "o", color=RED)
    note = "planted canary: rank 3 of 512,\nexposure log2(512 / 3) = 7.4 bits"
    ax.annotate(note, (3, nll[2]), (60, nll[2]), color=RED, va="center")
    ax.text(
        300,
        nll[300] + 2,
        "511 strings that were\nequally likely to be drawn",
        ha="right",
    )
    ax.set(xlabel="rank (1: most likely)", ylabel="NLL of the string (nats)")


def membership(ax: Axes, rng: np.random.Generator) -> None:
    """Scores of trained and of held-out rows."""
    grid = np.linspace(-7, 7, 200)
    sides = {"held-out rows": (0.0, BLUE), "trained rows": (1.0, RED)}
    for name, (mean, colour) in sides.items():
        density = stats.norm.pdf(grid, mean)
        ax.plot(grid, density, color=colour)
        ax.fill_between(grid, density, color=colour, alpha=0.15)
        ax.text(
            2 * mean - 0.2, 0.42, name, color=colour, ha="right" if mean < 1 else "left"
        )
    limit = stats.norm.ppf(0.95)
    ax.axvline(limit, color=GREY, linestyle="--")
    note = "above this threshold:\n5% of held-out rows,\n26% of trained rows"
    ax.text(3.2, 0.24, note)
    note = "AUC 0.76: of 100 pairs,\nthe trained row scores\nhigher in 76"
    ax.text(-2.3, 0.24, note, ha="right")
    ax.set(xlabel="membership score (higher: more familiar)", ylim=(0, 0.46))
    ax.set_yticks([])


def effect(ax: Axes, rng: np.random.Generator) -> None:
    """Estimates without an effect, and with the smallest detectable one."""
    grid = np.linspace(-3.5, 6.5, 200)
    limit = stats.norm.ppf(0.975)
    smallest = limit + stats.norm.ppf(0.8)
    names = {
        "no effect (null)": (0.0, BLUE),
        "smallest detectable effect": (smallest, RED),
    }
    for name, (mean, colour) in names.items():
        density = stats.norm.pdf(grid, mean)
        ax.plot(grid, density, color=colour)
        ax.fill_between(grid, density, where=grid > limit, color=colour, alpha=0.3)
        ax.text(mean, 0.41, name, color=colour, ha="center", va="bottom")
    ax.axvline(limit, color=GREY, linestyle="--")
    ax.text(limit, 0.5, "detected from here on \u2192", color=GREY, ha="left")
    ax.text(smallest + 0.3, 0.1, "80% of audits", color=RED, ha="center")
    ax.set_xticks([0, smallest], ["0", f"{smallest:.1f} standard errors"])
    ax.set(xlabel="estimate", ylim=(0, 0.55))
    ax.set_yticks([])


PICTURES: tuple[Callable[[Axes, np.random.Generator], None], ...] = (
    *(memory, controls, clusters, canary, membership, effect),
)

if __name__ == "__main__":
    sns.set_theme(style="ticks", rc={"svg.fonttype": "none", "svg.hashsalt": "docs"})
    for draw in PICTURES:
        figure, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
        draw(ax, np.random.default_rng(1))
        ax.set_title("schematic, made-up numbers", fontsize=9, color=GREY, loc="right")
        sns.despine(figure)
        figure.savefig(FOLDER / f"{draw.__name__}.svg", metadata={"Date": None})
