"""How many identifiers the rules find, and how many of what they find are some.

``python benchmarks/identifiers.py DATA`` (a folder with ``TASK/train.jsonl`` and
``TASK/test.jsonl``) wants ``pip install names phonenumbers``. Names are counted twice:
those that stand in the rows (``names_by_hand.json``: character ranges, read by hand;
``blind`` by somebody who had not seen the rules), and injected ones: names of the US
census by frequency, in sentences without a cue. The other types are injected, in forms
that the project's own injector does not write.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from command_line import benchmark_parser, check_folder, run_benchmark
from faker import Faker

from spark_audit.data.pii import find_identifiers
from spark_audit.errors import InputError

BY_HAND = Path(__file__).with_name("names_by_hand.json")
REGIONS = "US CA GB DE FR ES IT NL IN AU BR JP MX SE PL CN ZA NZ IE CH".split()
FRAMES = (
    "{} was on the note.",
    "It was {} in the end.",
    "Everyone but one wrote down {} that day.",
    "She kept {} to herself.",
    "They said {} again and again.",
)
RULES = random.Random(0)
LOCALES = {
    code: Faker(code) for code in ("en_US", "en_GB", "en_AU", "de_DE", "fr_FR", "it_IT")
}
Range = tuple[int, int]


def person() -> str:
    """Return a name of the US census, in one of several forms."""
    import names as census

    first, last = census.get_first_name(), census.get_last_name()
    initial = RULES.choice("ABCDEFGHJKLM")
    forms = (f"{first} {last}",) * 3
    forms += (
        f"{first} {initial}. {last}",
        f"{initial}. {last}",
        f"{last}, {first}",
        first,
    )
    return RULES.choice(forms)


def email() -> str:
    """Return an address of a name of the US census."""
    import names as census

    first, last = census.get_first_name().lower(), census.get_last_name().lower()
    where = RULES.choice(
        ("mail.example.co.uk", "example.museum", "EXAMPLE.COM", "e-x.io")
    )
    forms = (
        f"{first}+{last}",
        f"{first[0]}.{last}_91",
        f"{last}-{first}",
        f"{first}%x",
    )
    return f"{RULES.choice(forms)}@{where}"


def phone(*, national: bool) -> str:
    """Return a valid number of one of 20 countries."""
    import phonenumbers

    while True:
        region = RULES.choice(REGIONS)
        example = phonenumbers.example_number(region)
        digits = str(example.national_number)
        digits = digits[:-5] + "".join(RULES.choices("0123456789", k=5))
        number = phonenumbers.PhoneNumber(example.country_code, int(digits))
        if phonenumbers.is_valid_number(number):
            break
    style = phonenumbers.PhoneNumberFormat
    forms = [style.NATIONAL] if national else [style.INTERNATIONAL, style.E164]
    return phonenumbers.format_number(number, RULES.choice(forms))


def of(*makers: str) -> Callable[[], str]:
    """One of Faker's own makers, of one of the locales."""

    def make() -> str:
        locale = RULES.choice(list(LOCALES))
        return str(getattr(LOCALES[locale], RULES.choice(makers))()).replace("\n", ", ")

    return make


MAKERS: dict[str, tuple[str, Callable[[], str]]] = {
    "NAME, injected": ("NAME", person),
    "EMAIL": ("EMAIL", email),
    "PHONE, international": ("PHONE", lambda: phone(national=False)),
    "PHONE, national": ("PHONE", lambda: phone(national=True)),
    "SSN": ("SSN", lambda: LOCALES["en_US"].ssn()),
    "CREDIT_CARD": ("CREDIT_CARD", of("credit_card_number")),
    "ID (IBAN, IPv4)": ("ID", of("iban", "ipv4_public")),
    "ADDRESS, United States": ("ADDRESS", lambda: LOCALES["en_US"].street_address()),
    "ADDRESS, six countries": ("ADDRESS", of("street_address")),
}


def hosts(data: Path) -> Iterator[tuple[str, str, list[Range]]]:
    """Yield set, text and names of the rows that were read by hand.

    Raises
    ------
    InputError
        If the folder lacks a row.
    """
    texts = {
        row["id"]: row["text"]
        for path in sorted(data.glob("*/*.jsonl"))
        for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())
    }
    for kind, rows in json.loads(BY_HAND.read_text()).items():
        for key, ranges in rows.items():
            if key not in texts:
                raise InputError(
                    f"has no row with the id {key!r} in TASK/train.jsonl or test.jsonl",
                    where=str(data),
                    fix="give the folder of the rows that names_by_hand.json lists",
                )
            yield kind, texts[key], [(start, end) for start, end in ranges]


def touches(one: Range, others: list[Range]) -> bool:
    return any(one[0] < end and start < one[1] for start, end in others)


def main() -> None:
    """Print the table."""
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument("data", type=Path, metavar="DATA")
    options = parser.parse_args()

    check_folder("DATA", options.data)

    # Of the packages that are installed for this alone, a missing one is named at once:
    # phonenumbers is used in `phone`.
    import names as census
    import phonenumbers  # noqa: F401

    census.random = RULES
    rows = list(hosts(options.data))
    for seed, faker in enumerate(LOCALES.values()):
        faker.seed_instance(seed)
    counts: dict[str, Counter[str]] = {}

    def score(
        label: str, kind: str, text: str, truth: list[Range], own: int = 0
    ) -> None:
        """Truth is the injected one, behind ``own``, or all there are."""
        hits = [(s.start, s.end) for s in find_identifiers(text) if s.type == kind]
        held = [t for t in truth if t[0] >= own]
        count = counts.setdefault(label, Counter())
        count.update(truth=len(held), recalled=sum(touches(t, hits) for t in held))
        count.update(found=len(hits), right=sum(touches(h, truth) for h in hits))

    for kind, text, truth in rows:
        score(f"NAME, natural ({kind})", "NAME", text, truth)
        full = [t for t in truth if " " in text[slice(*t)]]
        score(f"NAME, natural, two words or more ({kind})", "NAME", text, full)
    for label, (kind, make) in MAKERS.items():
        for _, text, natural in rows:
            value, frame = make(), RULES.choice(FRAMES)
            start = len(text) + 1 + frame.index("{}")
            truth = [(start, start + len(value))]
            if kind == "NAME":
                truth += natural
            score(label, kind, f"{text} {frame.format(value)}", truth, own=len(text))
    print("| type | n | recall | precision |\n|---|---|---|---|")
    for label, count in counts.items():
        part = "two words" in label
        right = "" if part else f"{count['right'] / max(count['found'], 1):.2f}"
        recall = count["recalled"] / count["truth"]
        print(f"| {label} | {count['truth']} | {recall:.2f} | {right} |")


if __name__ == "__main__":
    run_benchmark(main)
