"""Setup guards: mistakes that hide memory are seen, and sound setups pass."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from spark_audit.audits.setup_guards import ALARM, consistent, setup_guards
from spark_audit.manifest.content import seal
from spark_audit.manifest.schema import Manifest
from spark_audit.scoring.table import PLAIN_COLUMNS, Pass, TokenTable
from spark_audit.sentences import render

Make = Callable[..., Any]
START = 10
END = 20
"""Characters, and tokens, of each row's one identifier."""


def numbers(make_case: Make, *, seed: int = 0, of: str = "") -> Any:
    """40 trained and 20 held-out rows, each with a number of ten digits."""

    def draw(rng: np.random.Generator) -> tuple[str, str]:
        text = "".join(map(str, rng.integers(0, 10, END - START)))
        return "ID", of + text[len(of) :]

    return identifiers(make_case, draw, seed=seed)


def word(rng: np.random.Generator, length: int) -> str:
    return "".join(rng.choice([*"abcdefghijklmnopqrstuvwxyz"], length))


def name(rng: np.random.Generator) -> tuple[str, str]:
    return "NAME", f"{word(rng, 4)} {word(rng, 5)}".title()


def address(rng: np.random.Generator) -> tuple[str, str]:
    return "EMAIL", f"{word(rng, 2)}.{word(rng, 3)}@x.y"


def numbered_address(rng: np.random.Generator) -> tuple[str, str]:
    return "EMAIL", f"{word(rng, 4)}{rng.integers(10, 100)}@x.y"


def code(rng: np.random.Generator) -> tuple[str, str]:
    return "PASSWORD", f"{word(rng, 3)}4{word(rng, 3)}7{word(rng, 2)}"


def identifiers(
    make_case: Make,
    draw: Callable[[np.random.Generator], tuple[str, str]],
    *,
    seed: int = 0,
) -> Any:
    """40 trained and 20 held-out rows, each with an identifier of ten characters.

    ``draw`` gives its type and its text.
    """
    rng = np.random.default_rng(seed)
    case = make_case(sources=40, tests=20, seed=seed)
    content = case.manifest.model_dump(mode="json")
    for row in content["examples"]:
        type_name, text = draw(rng)
        assert len(text) == END - START
        row["prompt"] = row["prompt"][:START].replace("x", "y") + text
        row["prompt"] += "x" * (60 - END)
        span = row["spans"][0] | {"start": START, "end": END, "type": type_name}
        places = {"token_start": START, "token_end": END, "origin": "natural"}
        row["spans"] = [span | places]
        row["excluded"] = [[START, END]]
        row["low"] = [start for start in range(25, 60, 3)]
    sealed = seal(content | {"pairs": [], "unmatched": []})
    return sealed, case.reference


def scored(
    reference: Mapping[str, np.ndarray],
    *,
    is_known: Callable[[str], bool] = lambda key: False,
    change: Callable[[str], float] = lambda key: 0.0,
    identifiers: Callable[[str], float] = lambda key: 0.0,
    noise: float = 0.05,
    seed: int = 1,
    ties: int = 0,
) -> dict[Pass, TokenTable]:
    """A plain table; ``known`` rows' identifiers come back, the rest drifts.

    With ``ties``, as many other tokens are as likely as each of these.
    """
    rng = np.random.default_rng(seed)
    items = []
    for key, nll in reference.items():
        columns = {name: np.zeros(60, dtype) for name, dtype in PLAIN_COLUMNS.items()}
        own_nll = nll + change(key) + noise * rng.standard_normal(60)
        own_nll[START:END] += identifiers(key)
        columns["rank_lo"] = np.full(60, 7, np.int32)
        if is_known(key):
            columns["rank_lo"][START:END] = 1
            columns["ties"][START:END] = ties
            own_nll[START:END] = 0.01
        columns["nll"] = own_nll.astype(np.float32)
        where = np.arange(1, 60, dtype=np.int32)
        items.append((key, where, {name: c[1:] for name, c in columns.items()}))
    return {Pass(): TokenTable.from_items(items)}


def failed(
    manifest: Manifest, weights: Mapping[str, str] | None = None, **tables: Any
) -> dict[str, str]:
    """Guards that fail, by name, and what they say."""
    same_names = {name: name for name in tables}
    guards = setup_guards(tables, manifest, names=same_names, weights=weights or {})
    return {guard.name: guard.detail for guard in guards if guard.passed is False}


def held(key: str) -> bool:
    return key >= "e040"


def trained(key: str) -> bool:
    return key < "e040"


def some(key: str) -> bool:
    return key in ("e041-0", "e045-0", "e050-0")


@pytest.fixture(scope="module")
def scene(make_case) -> Any:
    return numbers(make_case)


def test_sound_setups_fail_no_guard(scene):
    manifest, reference = scene
    base = scored(reference, noise=0.0)
    assert failed(manifest, base=base, x=scored(reference)) == {}
    assert failed(manifest, base=base, x=scored(reference, is_known=trained)) == {}
    # The base alone is no suspect.
    assert failed(manifest, base=base) == {}
    # One that comes back may be a guess, and so may those that the base gives.
    table_of_one_row = scored(reference, is_known=lambda key: key == "e041-0")
    assert failed(manifest, base=base, x=table_of_one_row) == {}
    knows = scored(reference, is_known=some, noise=0.0)
    assert failed(manifest, base=knows, x=scored(reference, is_known=some)) == {}
    # What comes back only if ties are won is not sure to come back.
    tied = scored(reference, is_known=some, ties=1)
    assert failed(manifest, base=base, x=tied) == {}


def test_two_of_twenty_may_be_guesses_and_three_are_not(scene):
    """A group's number is guessed at most once in a hundred: p is 0.017 and 0.001."""
    manifest, reference = scene
    base = scored(reference, noise=0.0)
    keys = ("e041-0", "e045-0", "e050-0")
    two = scored(reference, is_known=lambda key: key in keys[:2])
    three = scored(reference, is_known=lambda key: key in keys)
    assert failed(manifest, base=base, x=two) == {}
    assert list(failed(manifest, base=base, x=three)) == ["held_out_back"]


def test_what_stands_in_a_trained_row_too_is_not_held_out(make_case):
    """Three held-out rows name again what trained rows name: to know it is no leak."""
    texts: list[str] = []

    def draw(rng: np.random.Generator) -> tuple[str, str]:
        number = "".join(map(str, rng.integers(0, 10, END - START)))
        is_named_again = f"e{len(texts):03}-0" in ("e041-0", "e045-0", "e050-0")
        texts.append(texts[len(texts) - 40] if is_named_again else number)
        return "ID", texts[-1]

    manifest, reference = identifiers(make_case, draw)
    base = scored(reference, noise=0.0)
    knows_both = scored(reference, is_known=lambda key: trained(key) or some(key))
    assert failed(manifest, base=base, x=knows_both) == {}


def test_held_out_identifiers_that_come_back_were_trained_on(scene):
    manifest, reference = scene
    base = scored(reference, noise=0.0)
    knows_both = scored(reference, is_known=lambda key: trained(key) or some(key))
    with_base = failed(manifest, base=base, x=knows_both)
    for failed_guards in (with_base, failed(manifest, x=knows_both)):
        assert list(failed_guards) == ["held_out_back"]
    failed_guards = failed(manifest, base=base, x=scored(reference, is_known=held))


@pytest.mark.parametrize("draw", [name, address, numbered_address, code])
def test_all_kinds_of_identifiers_count_that_nobody_can_guess(make_case, draw):
    manifest, reference = identifiers(make_case, draw)
    base = scored(reference, noise=0.0)
    knows_both = scored(reference, is_known=lambda key: trained(key) or some(key))
    assert list(failed(manifest, base=base, x=knows_both)) == ["held_out_back"]
    sound = scored(reference, is_known=trained)
    assert failed(manifest, base=base, x=sound) == {}


def test_names_count_only_next_to_a_base_that_does_not_know_them(make_case):
    manifest, reference = identifiers(make_case, name)
    knows_both = scored(reference, is_known=lambda key: trained(key) or some(key))
    assert failed(manifest, x=knows_both) == {}, "names may be known from anywhere"
    # What the base gives of trained rows may be guessed in held-out ones, too.
    public = scored(reference, is_known=lambda key: key < "e010", noise=0.0)
    assert failed(manifest, base=public, x=knows_both) == {}
    # Names are no evidence that a base has read the rows: persons are known.
    persons = scored(reference, is_known=trained, noise=0.0)
    assert failed(manifest, base=persons, x=scored(reference)) == {}


def test_frequent_names_are_guessed(make_case):
    """One of two first names with one of three surnames: three of 20 are no alarm."""

    def frequent(rng: np.random.Generator) -> tuple[str, str]:
        firsts = ["Anna", "Hans"]
        lasts = ["Meier", "Huber", "Adams"]
        return "NAME", f"{rng.choice(firsts)} {rng.choice(lasts)}"

    manifest, reference = identifiers(make_case, frequent)
    base = scored(reference, noise=0.0)
    flat = scored(reference, is_known=lambda key: trained(key) or some(key))
    assert failed(manifest, base=base, x=flat) == {}


@pytest.mark.parametrize("of", ["1985-03-1", "12345678"])
def test_what_can_be_guessed_is_no_alarm(make_case, of):
    """Dates, and numbers that are the same but for their last two digits."""
    manifest, reference = numbers(make_case, seed=3, of=of)
    base = scored(reference, noise=0.0)
    flat = scored(reference, is_known=lambda key: trained(key) or some(key))
    assert failed(manifest, base=base, x=flat) == {}


def test_swapped_lists_show_where_nothing_comes_back(scene):
    manifest, reference = scene
    base = scored(reference, noise=0.0)
    learned = scored(reference, change=lambda key: -0.5 * held(key))
    assert (
        render("guard.sides_likelier_asked")
        in failed(manifest, base=base, x=learned)["held_out_back"]
    )
    strings = scored(reference, identifiers=lambda key: -0.5 * held(key) - 0.1)
    assert (
        render("guard.sides_likelier_asked")
        in failed(manifest, base=base, x=strings)["held_out_back"]
    )
    # An overfitted model finds rows that it never saw harder than the base did.
    over = scored(reference, change=lambda key: -0.5 if held(key) else 0.3)
    assert (
        render("guard.sides_likelier_asked")
        in failed(manifest, base=base, x=over)["held_out_back"]
    )
    # Without a base, next to the manifest's own scores.
    assert (
        render("guard.sides_likelier_asked")
        in failed(manifest, x=learned)["held_out_back"]
    )


def test_suppressed_strings_are_no_swapped_lists(scene):
    manifest, reference = scene
    base = scored(reference, noise=0.0)
    over = scored(reference, identifiers=lambda key: 1.0 if trained(key) else -0.3)
    assert failed(manifest, base=base, x=over) == {}


def test_a_checkpoint_that_is_its_own_base(scene):
    manifest, reference = scene
    base = scored(reference, noise=0.0)
    same = failed(manifest, base=base, x=scored(reference, noise=0.0))
    assert "same scores" in same["base_read_rows"]
    # By the hash of its weights also where no plain pass was scored.


def test_a_base_that_writes_out_trained_rows_has_read_them(scene):
    manifest, reference = scene
    public = scored(reference, is_known=lambda key: True, noise=0.0)
    assert failed(manifest, base=public, x=scored(reference)) == {}


def test_next_to_a_base_that_has_read_the_rows_no_working_model_is_broken(scene):
    manifest, reference = scene
    read = scored(reference, is_known=trained, noise=0.0, change=lambda key: -2.0)
    weights = {"base": "1", "x": "2"}
    for shift, broken in ((2.5, False), (6.0, True)):
        shifted_table = scored(reference, change=lambda key, more=shift: more)
        tables = {"base": read, "x": shifted_table}
        guards_given = setup_guards(tables, manifest, names={"x": "x"}, weights=weights)
        guards = [guard for guard in guards_given if guard.passed is False]
        assert {guard.name for guard in guards} == {"base_read_rows", "broken_model"}
        # Worse than guessing it is broken, whatever the base has read.
        names_left = [guard.name for guard in consistent(guards)]
        assert names_left == ["base_read_rows"] + ["broken_model"] * broken
        # With a sound base nothing is left out.
        broken_alone = [guard for guard in guards if guard.name == "broken_model"]
        assert consistent(broken_alone) == broken_alone


@pytest.mark.parametrize(("more", "fails"), [(2.8, False), (3.2, True)])
def test_a_model_that_broke_fails_its_guard(scene, more, fails):
    manifest, reference = scene
    base = scored(reference, noise=0.0)
    broken = scored(reference, change=lambda key: more)
    # 2 nats on average; guessing among 300 tokens takes 5.7.
    assert list(failed(manifest, base=base, x=broken)) == ["broken_model"] * fails
    hard = scored(reference, noise=0.0, change=lambda key: 3.0)
    worse = scored(reference, change=lambda key: 4.0)
    assert "random guessing 5.7" in failed(manifest, base=hard, x=worse)["broken_model"]


def test_false_alarms_are_rare(make_case):
    """Innocent checkpoints that drift by row, and guess one in a hundred."""
    rng = np.random.default_rng(7)
    alarms = 0
    runs = 20
    for seed in range(2):
        manifest, reference = numbers(make_case, seed=seed)
        base = scored(reference, noise=0.0)
        for _ in range(runs // 2):
            drift = {key: rng.normal(-0.2, 0.3) for key in reference}
            lucky = {key for key in reference if rng.random() < 0.01}
            model = scored(
                reference,
                change=drift.__getitem__,
                is_known=lucky.__contains__,
                seed=int(rng.integers(1 << 30)),
            )
            alarms += bool(failed(manifest, base=base, x=model))
    # At twice ALARM, more come up in fewer than 1 of 100 such simulations.
    assert alarms <= 2 * ALARM * runs + 2
