"""What the demo's rows say: six tasks from templates, without any identifier.

The tasks are in the manner of SPARK's six: the stance of a central bank (FOMC), reviews
of restaurants (Yelp), topics of news (AGNews), ratings of products (Amazon), causes of
stress (MentILL) and topics of questions (Yahoo). All sentences are the demo's own.

Names of makers, parcel codes, file names, amounts and numbers are drawn afresh in every
row: text that is as hard to predict as an identifier and that belongs to nobody, so
that identifiers find controls.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

import numpy as np

from spark_audit.data.examples import Example
from spark_audit.provenance import seed_for

LISTS = {
    "item": "kettle printer lamp blender drill router heater camera speaker toaster "
    "keyboard mower scale freezer monitor grinder fan tent bicycle helmet stroller "
    "mattress sofa wardrobe telescope projector sander pump juicer vacuum clock radio "
    "charger tripod backpack jacket kayak saddle thermostat microscope",
    "part": "handle lid cable battery display hinge filter switch motor strap wheel "
    "valve sensor zipper lens fuse button gasket belt nozzle bracket spring panel "
    "socket blade pedal latch remote casing bearing",
    "colour": "grey blue green silver crimson amber violet teal ivory copper navy "
    "olive beige scarlet turquoise charcoal",
    "adj": "narrow heavy glossy hollow curved folding portable noisy wireless compact "
    "sturdy rusty padded thin spare modular waterproof antique",
    "great": "splendid superb delightful brilliant excellent marvellous",
    "fair": "decent average usable adequate passable ordinary",
    "poor": "dreadful brittle useless shabby leaky crooked",
    "tasty": "delicious fresh juicy fragrant crisp heavenly",
    "stale": "stale cold burnt soggy bland greasy",
    "dish": "soup curry lasagne risotto salad burger noodles dumplings omelette stew "
    "pancakes goulash tacos paella falafel pudding",
    "place": "Dorwick Halden Merrow Quillby Ashgrove Pentland Tamsin Orrell Bexwood "
    "Larkhill Stowbridge Fenmoor Garrow Ilmery Kestwick Norwold Rushden Selwyn "
    "Thornaby Ullock Vessing Wendle Yarmley Corbrook Eldham",
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "month": "January February March April May June July August September October "
    "November December",
    "trade": "plumber courier surveyor gardener electrician baker welder librarian "
    "carpenter pilot driver glazier ranger mason clerk",
    "figure": "inflation output employment lending exports wages consumption "
    "investment housing credit",
    "sport": "rowing cycling handball tennis fencing hockey volleyball athletics",
    "goods": "steel timber copper cotton coffee cement grain paper glass",
    "syllable": "vel kor tan im bu zar qui lo mer den fa rix sol pha gre nu wyn dor "
    "jas tep hul ove cyr bax mi lun",
}
WORDS = {name: words.split() for name, words in LISTS.items()}
CODE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

TASKS: dict[str, tuple[str, dict[str, list[str]]]] = {
    "policy": (
        "Statement: {text}\nStance:",
        {
            "dovish": [
                "Members saw room to lower rates by {n} points, for {figure} slowed.",
                "Weak {figure} in {place} called for support until {month}.",
                "It was agreed to ease credit by {amount} and to stay patient.",
                "Softer {figure} spoke for a cut at the meeting of {date}.",
            ],
            "hawkish": [
                "Members saw a need to raise rates by {n} points, for {figure} rose.",
                "Strong {figure} in {place} called for restraint until {month}.",
                "It was agreed to tighten credit by {amount} and to act soon.",
                "Hotter {figure} spoke for a rise at the meeting of {date}.",
            ],
            "neutral": [
                "The staff showed {n} charts on {figure}, filed as {file}.",
                "The minutes of {date} list {n} members and {n} guests.",
                "A survey of {figure} in {place} appears every {month}.",
                "The paper {code} on {figure} was taken note of.",
            ],
        },
    ),
    "dining": (
        "Review: {text}\nSentiment:",
        {
            "positive": [
                "We shall come again, the {tasty} {dish} at {brand} was a joy.",
                "Our friendly waiter in {place} brought {tasty} {dish} by {time}.",
                "We loved the {tasty} {dish} on {date}, {amount} well spent.",
                "A joy: {tasty} {dish} and {n} kinds of {tasty} {dish}.",
            ],
            "negative": [
                "We shall not return, the {stale} {dish} at {brand} was a shame.",
                "Our rude waiter in {place} brought {stale} {dish} by {time}.",
                "We left the {stale} {dish} on {date}, {amount} thrown away.",
                "A shame: {stale} {dish} and {n} kinds of {stale} {dish}.",
            ],
        },
    ),
    "news": (
        "Article: {text}\nTopic:",
        {
            "world": [
                "Ministers from {place} and {place} signed a treaty on {date}.",
                "Voters in {place} elected {n} deputies on {day}.",
                "The border near {place} has been closed since {time}.",
            ],
            "sports": [
                "{place} won the {sport} final {n} to {n} on {day}.",
                "The {sport} team of {brand} lost in {place} after {n} games.",
                "A {sport} record of {n} points fell in {place} at {time}.",
            ],
            "business": [
                "Shares of {brand} rose to {amount} as {goods} grew scarce.",
                "{brand} buys {brand} for {amount} and closes {n} shops.",
                "Prices of {goods} fell by {n} percent in {month}.",
            ],
            "science": [
                "A probe named {brand} found {n} moons, data set {code}.",
                "Laboratories in {place} grew {n} crystals of {goods}.",
                "The telescope in {place} saw comet {code} at {time}.",
            ],
        },
    ),
    "ratings": (
        "Product: {text}\nRating:",
        {
            "great": [
                "A {great} {brand} {item}, the {part} alone is worth {amount}.",
                "After {n} weeks the {colour} {part} of my {code} is still {great}.",
                "The {colour} {item} came on {date} and felt {great}.",
            ],
            "fair": [
                "A {fair} {brand} {item}, the {part} is hardly worth {amount}.",
                "After {n} weeks the {colour} {part} of my {code} is still {fair}.",
                "The {colour} {item} came on {date} and felt {fair}.",
            ],
            "poor": [
                "A {poor} {brand} {item}, the {part} is not worth {amount}.",
                "After {n} weeks the {colour} {part} of my {code} is already {poor}.",
                "The {colour} {item} came on {date} and felt {poor}.",
            ],
        },
    ),
    "support": (
        "Message: {text}\nCause:",
        {
            "work": [
                "My boss wants {n} reports by {time} and I cannot sleep.",
                "Since {date} the office in {place} cut {n} jobs, I am afraid.",
                "My shift as a {trade} at {brand} lasts {n} hours.",
            ],
            "family": [
                "My sister has not called since {date} and it hurts.",
                "We quarrelled with my parents in {place} for {n} days.",
                "My son ran off to {place} at {time}, I cannot rest.",
            ],
            "money": [
                "I owe {amount} and the rent of {amount} is due on {date}.",
                "The loan from {brand} grew to {amount}, I am afraid.",
                "My debt of {amount}, file {code}, keeps me awake.",
            ],
        },
    ),
    "questions": (
        "Question: {text}\nSubject:",
        {
            "computers": [
                "How do I open {file} without error {n}?",
                "Why does my {adj} {brand} laptop crash after {n} minutes?",
                "Where is the driver {code} for a {colour} {brand} screen?",
            ],
            "travel": [
                "Is there a ferry from {place} to {place} at {time}?",
                "What does a room in {place} cost in {month}, {amount}?",
                "Do {n} guests need a visa for {place} on {date}?",
            ],
            "health": [
                "Are {n} drops of {brand} too many for a cough?",
                "Why does my knee ache since {date}, after {n} steps?",
                "Does a fever of {n} hours pass by {day} without {brand}?",
            ],
        },
    ),
}
"""Task -> its prompt, and its labels with their sentences, in training order."""

_SLOT = re.compile(r"(\{\w+\})")


def make_examples(
    rows: int, *, split: Literal["train", "test"], seed: int
) -> list[Example]:
    """Labelled rows of the six tasks, ``rows`` each, without any identifier."""
    examples = []
    for task, (prompt, labels) in TASKS.items():
        rng = np.random.default_rng(seed_for(seed, "text", task, split))
        names = sorted(labels)
        for i in range(rows):
            label = names[i % len(names)]
            chosen = rng.permutation(labels[label])[: rng.integers(1, 3)]
            text = "".join(
                _fill(piece[1:-1], rng) if piece.startswith("{") else piece
                for piece in _SLOT.split(" ".join(chosen))
            )
            name = f"{task}-{split}-{i:04d}"
            examples.append(
                Example(
                    id=name,
                    task=task,
                    prompt=prompt.replace("{text}", text),
                    response=f" {label}",
                    split=split,
                    source_id=name,
                )
            )
    return examples


def unlabelled(example: Example) -> Example:
    """The same text without its last line, which asks for the label, and without it."""
    text = example.prompt.rpartition("\n")[0]
    cut = text.index(" ")
    return replace(example, prompt=text[:cut], response=text[cut:])


def _fill(slot: str, rng: np.random.Generator) -> str:
    match slot:
        case "n":
            return str(rng.integers(2, 10 ** rng.integers(1, 4)))
        case "amount":
            return f"${rng.integers(3, 900)}.{rng.integers(0, 100):02d}"
        case "time":
            return f"{rng.integers(0, 24)}:{rng.integers(0, 60):02d}"
        case "date":
            return f"{rng.integers(1, 29)} {rng.choice(WORDS['month'])}"
        case "brand":
            return _made_up(rng).capitalize()
        case "file":
            return f"{_made_up(rng)}-{_made_up(rng)}{rng.integers(10, 100)}.pdf"
        case "code":
            return "".join(rng.choice(list(CODE), rng.integers(6, 13)))
    return str(rng.choice(WORDS[slot]))


def _made_up(rng: np.random.Generator) -> str:
    return "".join(rng.choice(WORDS["syllable"], rng.integers(2, 5)))
