"""Every sentence of a report: rendered from typed facts by templates.

The files of ``en/`` hold the templates (Jinja). A key such as ``matched.memory`` is a
table with up to three templates: ``text``, ``withdrawn`` (used if the correction over
the report took the claim away) and ``subject`` (by default the checkpoint). Templates
include one another by their keys, ``{% include "matched.compared" %}``. Line breaks are
spaces.

The functions that write figures come first. Templates call them as filters by their
names (``{{ row | percent }}``). The functions that find and render a template follow.

A new sentence is only a template. A new filter is a function here with an entry in
:data:`ROW_FILTERS`, :data:`NUMBER_FILTERS` or :data:`TEXT_FILTERS`; its words are
templates under ``word`` in ``en/``, so that a translation finds them.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from jinja2 import Environment

RATIO_OF_PERCENT = 2.0
"""Ratios of likelihoods below it are shown in per cent, others as a factor."""

MAX_RATIO = 1000.0
"""Larger ratios are shown as "more than" this value."""

DECIMALS = {"bits": 2, "points": 1, "ranks": 1, "clusters": 1}
"""Number of decimals of the units that do not have :data:`DECIMALS_OF_EFFECT`."""

DECIMALS_OF_EFFECT = 3
"""Number of decimals of an effect in any other unit."""

HUGE = 1e6
"""Figures of at least this size are shown with four digits."""

ROUNDING_ERROR_SHOWN = 1e-9
"""Smaller figures are rounding errors and are shown as 0."""

MIN_SHOWN_P = 0.0001
"""A smaller p is shown only as below this value."""

DIGITS_WITHOUT_FILTER = 3
"""Most decimals of a number that a template shows without a filter."""

MISSING = "-"
"""Shown in place of a missing figure."""

Figure: TypeAlias = Any
"""An object with ``value``, ``low`` and ``high``, each of which may be None: a row, a
contrast, an estimate or a finding. A row may also be ``withheld``."""

Counted: TypeAlias = Any
"""A count out of a total, with its ties: ``Hits`` of ``results/findings.py``."""


def number(value: float | None, digits: int = 3) -> str:
    """Return a number as every sentence, table and page shows it.

    Parameters
    ----------
    digits
        Number of decimals; very small and very large numbers have significant digits.
    """
    if value is None:
        return MISSING

    # A number other than 0 is never shown as 0.
    if ROUNDING_ERROR_SHOWN < abs(value) < 0.5 * 10**-digits:
        return f"{value:.1g}"
    if abs(value) >= HUGE:
        return f"{value:.4g}"
    # Adding 0.0 turns a rounded -0.0 into 0.0.
    return f"{round(value, digits) + 0.0:.{digits}f}"


def limits(
    low: float | None, high: float | None, *, digits: int = 3, scale: float = 1
) -> str:
    """Return ``" [low, high]"``, both times ``scale``; empty without an interval."""
    if low is None or high is None:
        return ""
    return f" [{number(scale * low, digits)}, {number(scale * high, digits)}]"


def figure(
    row: Figure, digits: int = 3, *, sign: int = 1, scale: float = 1, unit: str = ""
) -> str:
    """Return ``value [low, high]``; the unit stands behind the value.

    Parameters
    ----------
    sign
        -1 reverses the sign of the value and of both limits.
    scale
        Factor of the value and of both limits, such as 100 for a share in per cent.
    """
    if row.value is None:
        return _text_without_value(row)

    # With the other sign, the upper limit becomes the lower one.
    low, high = row.low, row.high
    if sign < 0:
        low, high = high, low
    value_text = number(sign * scale * row.value, digits)
    interval = limits(low, high, digits=digits, scale=sign * scale)
    return f"{value_text}{unit}{interval}"


def _text_without_value(row: Figure) -> str:
    """Return the text that stands in place of a withheld or missing figure."""
    # Only a row can be withheld; an estimate has no such attribute.
    if getattr(row, "withheld", False):
        return render("word.withheld")
    return MISSING


def points(row: Figure) -> str:
    """Return a difference of shares: ``value [low, high]`` in percentage points."""
    return figure(row, DECIMALS["points"], scale=100)


def percent(row: Figure) -> str:
    """Return a share with its interval: ``value% [low, high]``.

    :func:`share` shows a single fraction.
    """
    return figure(row, DECIMALS["points"], scale=100, unit="%")


def value(row: Figure, digits: int = 3, *, scale: float = 1) -> str:
    """Return the value without its interval."""
    if row.value is None:
        return _text_without_value(row)
    return number(scale * row.value, digits)


def number_up(row: Figure) -> str:
    """Return how many of a row's units a share from above is, rounded up."""
    if row.value is None:
        return _text_without_value(row)
    return str(math.ceil(row.value * row.n - ROUNDING_ERROR_SHOWN))


def number_down(row: Figure) -> str:
    """Return how many of a row's units a share from below is, rounded down."""
    if row.value is None:
        return _text_without_value(row)
    return str(math.floor(row.value * row.n + ROUNDING_ERROR_SHOWN))


def drifted(row: Figure | None) -> str:
    """Return a drift, nats per token; 0 for the reference, which has no row of it."""
    if row is None:
        return number(0.0)

    # The reference drifts by 0 from itself, so nothing is estimated for it.
    is_withheld = getattr(row, "withheld", False)
    if row.value is None and not is_withheld:
        return number(0.0)
    return value(row)


def likelier(row: Figure, *, sign: int = 1) -> str:
    """Return a change of NLL, nats per token, in words: ``12% more likely``.

    A change below 0 makes the text more likely.

    Parameters
    ----------
    sign
        -1 reverses the sign of the change, as of a margin: it is a size above 0.
    """
    if row.value is None:
        return _text_without_value(row)

    ratio = _ratio(sign * row.value)
    if ratio >= RATIO_OF_PERCENT:
        return render("word.times_as_likely", ratio=_times(ratio))
    percentage = number(100 * abs(ratio - 1), 0)
    if ratio >= 1:
        return render("word.more_likely", percent=percentage)
    return render("word.less_likely", percent=percentage)


def _ratio(change: float) -> float:
    """Return the ratio of likelihoods per token for a change of NLL in nats.

    Above 1 is more likely: ``exp(-change)``.
    """
    # The exponential of a large change overflows, so the change is cut just above the
    # largest ratio that is shown.
    return math.exp(min(-change, math.log(MAX_RATIO) + 1))


def _times(ratio: float) -> str:
    """Return a ratio with one decimal, or "more than MAX_RATIO"."""
    if ratio > MAX_RATIO:
        return render("word.over", most=f"{MAX_RATIO:g}")
    return number(ratio, 1)


def share(fraction: float | None) -> str:
    """Return a single share, 0 to 1, as a number of per cent without the sign %.

    :func:`percent` shows a row, with its interval.
    """
    if fraction is None:
        return MISSING
    return number(100 * fraction, DECIMALS["points"])


def probability(p: float) -> str:
    """Return a probability with two digits; one below 0.0001 as below 0.0001."""
    if p >= MIN_SHOWN_P:
        return f"{p:.2g}"
    return render("word.below", least=f"{MIN_SHOWN_P}")


def p_value(p: float) -> str:
    """Return ``p 0.012``, as :func:`probability` shows it."""
    return f"p {probability(p)}"


def effect(mde: float, unit: str, *, brief: bool = False) -> str:
    """Return an effect with its unit, and one in nats or bits also in words.

    Parameters
    ----------
    mde
        A smallest detectable effect, or another size of at least 0.
    brief
        Return the words only, if there are any.
    """
    # A size of an AUC is shown out of 100 pairs.
    if "AUC" in unit:
        size = number(100 * mde, 1)
    else:
        size = number(mde, DECIMALS.get(unit, DECIMALS_OF_EFFECT))

    words = ""
    if unit == "nats":
        # A negative change of NLL makes the text more likely.
        words = likelier(SimpleNamespace(value=-mde, low=None, high=None))
    elif unit == "bits":
        # A bit of exposure is a rank that is twice as far ahead.
        words = render("word.ahead", times=number(2**mde, 1))
    elif brief and knows(f"word.{unit}"):
        words = render(f"word.{unit}", size=size)

    if words and brief:
        return words
    size_with_unit = f"{size} {unit_name(unit)}".strip()
    if not words:
        return size_with_unit
    return f"{size_with_unit} ({words})"


def unit_name(unit: str) -> str:
    """Return the name of a unit as sentences show it."""
    return optional(f"unit.{unit}") or unit


def listed(names: Sequence[str]) -> str:
    """Return ``a, b and c``."""
    if len(names) < 2:
        return "".join(names)

    first_names = ", ".join(names[:-1])
    return f"{first_names} {render('word.and')} {names[-1]}"


def of_rows(dose: str) -> str:
    """Return the numbers of rows of a group of doses: ``dose:16+`` is "16 or more".

    A dose is the number of train rows that hold a string. A group is one dose
    (``dose:4``), a range (``dose:2-3``), or open at its end.
    """
    numbers = dose.removeprefix("dose:")
    if numbers.endswith("+"):
        return render("word.or_more", least=numbers.removesuffix("+"))

    if "-" not in numbers:
        return numbers
    low, _, high = numbers.partition("-")
    return render("word.from_to", low=low, high=high)


def sure_hits(counted: Counted) -> str:
    """Return the count without ties; in shared files perhaps "some" or "about N"."""
    if counted.vague:
        return render("word.some")
    if counted.rounded:
        return render("word.about", count=counted.count)
    return str(counted.count)


def hits(counted: Counted) -> str:
    """Return the counts without and with ties; approximate in shared files."""
    text = sure_hits(counted)
    if not counted.tied:
        return text
    return render("word.if_tied", hits=text, most=counted.count + counted.tied)


def each(items: Sequence[object], key: str, separator: str = "; ") -> str:
    """Return the sentences of a key, one per item, which templates call ``item``."""
    return separator.join(render(key, item=item) for item in items)


def capitalised(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]


def shown(fact: object) -> object:
    """Return a fact as a template shows it that names no filter.

    A figure, a count and a number with many digits read as with their usual filter.
    """
    if isinstance(fact, float) and round(fact, DIGITS_WITHOUT_FILTER) != fact:
        return number(fact, DIGITS_WITHOUT_FILTER)
    if isinstance(fact, str | int | float | None):
        return fact

    # Rows, contrasts, estimates and findings are figures, `Hits` are counts.
    if hasattr(fact, "value") and hasattr(fact, "low"):
        return figure(fact)
    if hasattr(fact, "count") and hasattr(fact, "tied"):
        return hits(fact)
    return fact


ROW_FILTERS = (
    figure,
    points,
    percent,
    value,
    number_up,
    number_down,
    drifted,
    likelier,
)
"""Filters of templates that show a row, or another :data:`Figure`."""

NUMBER_FILTERS = (
    number,
    share,
    probability,
    p_value,
    effect,
)
"""Filters of templates that show a single number."""

TEXT_FILTERS = (
    unit_name,
    listed,
    of_rows,
    sure_hits,
    hits,
    each,
    capitalised,
)
"""Filters of templates that show names, counts or sentences."""


def knows(key: str) -> bool:
    """Return whether a key has a sentence."""
    return key in known_templates()


def render(key: str, /, **facts: object) -> str:
    """Return the sentence of a key.

    Raises
    ------
    jinja2.TemplateError
        If the key has no sentence, or the sentence needs a missing fact.
    """
    text = known_templates().get(key, "")
    if not text or "{" in text:
        text = template_environment().get_template(key).render(facts)
    # Line breaks of a template file do not belong to the sentence.
    return " ".join(text.split())


def optional(key: str) -> str:
    """Return the sentence of a key that needs no facts; empty if it has none."""
    return render(key) if knows(key) else ""


def translated(kind: str, text: str) -> str:
    """Return the translation of an English sentence that stands in the code.

    Parameters
    ----------
    kind
        The table of the templates whose keys are such sentences.
    """
    return optional(f"{kind}.{text}") or text


def under(prefix: str, **facts: object) -> list[str]:
    """Return all sentences whose keys begin with a prefix, in file order."""
    return [render(key, **facts) for key in known_templates() if key.startswith(prefix)]


def terms(group: str, **facts: object) -> list[tuple[str, str]]:
    """Return the terms of a group and what they mean, in file order.

    The key ``GROUP.NAME.term`` holds a term, and ``GROUP.NAME`` its meaning.
    """
    suffix = ".term"
    terms_and_meanings = []
    for key in known_templates():
        if not key.endswith(suffix):
            continue

        key_of_meaning = key.removesuffix(suffix)
        if key_of_meaning.startswith(f"{group}."):
            terms_and_meanings.append((render(key), render(key_of_meaning, **facts)))
    return terms_and_meanings


@lru_cache
def template_environment() -> Environment:
    """Return the Jinja environment with all templates, strict about missing facts."""
    from jinja2 import DictLoader, Environment, StrictUndefined

    # A report needs more templates than the usual cache has room for.
    environment = Environment(
        loader=DictLoader(known_templates()),
        undefined=StrictUndefined,
        finalize=shown,
        cache_size=-1,
    )
    for function in (*ROW_FILTERS, *NUMBER_FILTERS, *TEXT_FILTERS):
        environment.filters[function.__name__] = function
    return environment


@lru_cache
def known_templates() -> dict[str, str]:
    """Return all templates by their keys; a later file replaces an earlier key."""
    templates: dict[str, str] = {}
    for file in _template_files():
        templates |= flat_templates(tomllib.loads(file.read_text(encoding="utf-8")))
    return templates


def add_templates(table: Mapping[str, object]) -> None:
    """Add the templates of an audit that no package registers, by their keys.

    Parameters
    ----------
    table
        Keys, or nested tables as in a file of sentences, with their templates.
    """
    # This is the cached dict itself, which the loader of the environment reads, too.
    known_templates().update(flat_templates(table))


def _template_files() -> Iterator[Traversable]:
    """Yield the template files of this package, then those of other packages' audits.

    An audit in ``surprise.py`` has its sentences beside it, in ``surprise.en.toml``.
    """
    yield from files("spark_audit.sentences").joinpath("en").iterdir()
    for entry_point in entry_points(group="spark_audit.audits"):
        # An incompletely installed package must not break the reports.
        with suppress(ImportError):
            module = find_spec(entry_point.module)
            if module is None or module.origin is None:
                continue

            sentence_file = Path(module.origin).with_suffix(".en.toml")
            if sentence_file.is_file():
                yield sentence_file


def flat_templates(
    table: Mapping[str, object], prefix: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield each key of nested tables with its template, such as ``matched.memory``.

    A table's entry ``text`` has the key of the table itself.
    """
    for key, entry in table.items():
        if isinstance(entry, str):
            yield f"{prefix}{key}".removesuffix(".text"), entry
        elif isinstance(entry, Mapping):
            yield from flat_templates(entry, f"{prefix}{key}.")
