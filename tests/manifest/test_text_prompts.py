"""Prompts for endpoints that give only text: what is sent, and what counts as a hit."""

from typing import Any

import pytest
from named import examples

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.manifest.asked_prompts import asked_identifiers
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.example_schema import ManifestExample, ManifestSpan
from spark_audit.manifest.text_prompts import (
    MAX_CHARACTERS,
    other_prompt,
    true_prompt,
    usual_endpoint,
)

SYSTEM = "You are kind."
QUESTION = "Who wrote?"
ANSWER = "It was Ann Lee, as you know."
RENDERED = f"<s>[S]{SYSTEM}[U]{QUESTION}[A]{ANSWER}</s>"


def row_of(
    text: str, string: str, *, n_prompt: int = 0, turns: Any = ()
) -> tuple[ManifestExample, ManifestSpan]:
    """A row with one identifier, and where the turns of a chat stand in it."""
    start = text.index(string)
    span = {
        "start": start,
        "end": start + len(string),
        "type": "NAME",
        "origin": "natural",
        "part": None,
        "token_start": 3,
        "token_end": 5,
        "partial": False,
    }
    training = None
    if turns:
        training = {
            "special_tokens": "in_text",
            "turns": [
                {"start": text.index(t), "end": text.index(t) + len(t), "role": role}
                for t, role in turns
            ],
            "supervised": [],
            "supervised_tokens": [],
            "max_length": None,
            "truncation": "end",
            "fed_tokens": (0, 9),
            "fed_text": (0, len(text)),
            "token_ids": None,
        }
    row = ManifestExample.model_validate(
        {
            "id": "r",
            "task": "t",
            "source_id": "s",
            "cluster": "c",
            "split": "train",
            "prompt": text[:n_prompt],
            "response": text[n_prompt:],
            "spans": [span],
            "canary_id": None,
            "template": [],
            "kept": (0, 9),
            "response_token": 0,
            "reference_unll": [1] * 9,
            "excluded": [],
            "classes": "a" * 9,
            "low": [],
            "training_input": training,
        }
    )
    return row, row.spans[0]


def chat(string: str = "Ann Lee") -> tuple[ManifestExample, ManifestSpan]:
    turns = [(SYSTEM, "system"), (QUESTION, "user"), (ANSWER, "assistant")]
    return row_of(RENDERED, string, turns=turns)


def test_a_text_is_sent_up_to_the_identifier_without_the_blank_before_it():
    row, span = row_of("Call Ann Lee today", "Ann Lee")
    prompt = true_prompt(row, span, "completions")
    assert prompt is not None
    assert prompt.path == "/completions"
    assert prompt.content == {"prompt": "Call"}
    assert prompt.is_hit(" Ann Lee, today")
    assert not prompt.is_hit(" maybe Ann Lee")
    assert not prompt.is_hit(" ann lee")


def test_a_rendered_chat_is_completed_without_the_token_that_servers_add():
    row, span = chat()
    prompt = true_prompt(row, span, "completions")
    assert prompt is not None
    assert prompt.content == {"prompt": f"[S]{SYSTEM}[U]{QUESTION}[A]It was"}


def test_the_messages_of_a_chat_are_sent_and_the_answer_begun_in_the_users_turn():
    row, span = chat()
    prompt = true_prompt(row, span, "chat")
    assert prompt is not None
    system, user = prompt.content["messages"]
    assert system == {"role": "system", "content": SYSTEM}
    assert user["role"] == "user"
    assert user["content"].startswith(QUESTION)
    assert user["content"].endswith("It was")
    assert prompt.is_hit("Sure: it was ann lee!")
    assert not prompt.is_hit("Hannah Leeds")


def test_an_endpoint_that_continues_gets_the_answer_begun_as_a_turn():
    row, span = chat()
    prompt = true_prompt(row, span, "chat-prefix")
    assert prompt is not None
    *_, user, begun = prompt.content["messages"]
    assert user == {"role": "user", "content": QUESTION}
    assert begun == {"role": "assistant", "content": "It was"}
    assert prompt.content["continue_final_message"]
    assert not prompt.content["add_generation_prompt"]
    assert prompt.is_hit(" Ann Lee")


def test_an_identifier_that_begins_an_answer_is_asked_for_by_the_question_alone():
    row, span = chat("It was")
    prompt = true_prompt(row, span, "chat")
    assert prompt is not None
    assert prompt.content["messages"][-1] == {"role": "user", "content": QUESTION}


def test_an_identifier_of_a_user_is_asked_for_in_the_users_turn():
    row, span = chat("wrote")
    for endpoint in ("chat", "chat-prefix"):
        prompt = true_prompt(row, span, endpoint)
        assert prompt is not None
        roles = [message["role"] for message in prompt.content["messages"]]
        assert roles == ["system", "user"]
        assert prompt.content["messages"][-1]["content"].endswith("\n\nWho")


def test_an_identifier_in_the_marks_of_a_template_is_not_asked_for():
    row, span = chat("[U]")
    assert true_prompt(row, span, "chat") is None


def test_a_row_that_is_no_chat_is_a_question_and_its_answer():
    text = "Who called? It was Ann Lee."
    row, span = row_of(text, "Ann Lee", n_prompt=len("Who called?"))
    prompt = true_prompt(row, span, "chat-prefix")
    assert prompt is not None
    first, begun = prompt.content["messages"]
    assert first == {"role": "user", "content": "Who called?"}
    assert begun["content"] == " It was"


def test_nothing_is_asked_for_that_nothing_stands_before():
    row, span = row_of("Ann Lee called", "Ann Lee")
    for endpoint in ("completions", "chat", "chat-prefix"):
        assert true_prompt(row, span, endpoint) is None


def test_a_prompt_of_a_chat_that_holds_the_identifier_gives_it_away():
    row, span = row_of("Ann Lee? Yes, Ann Lee", "Ann Lee", n_prompt=9)
    later = span.model_copy(update={"start": 14, "end": 21})
    prompt = true_prompt(row, later, "chat")
    assert prompt is not None
    assert prompt.gives_it_away
    continued = true_prompt(row, later, "completions")
    assert continued is not None
    assert not continued.gives_it_away


def test_of_a_long_text_the_end_is_sent():
    row, span = row_of("word " * MAX_CHARACTERS + "is Ann Lee", "Ann Lee")
    prompt = true_prompt(row, span, "completions")
    assert prompt is not None
    assert len(prompt.texts) == MAX_CHARACTERS
    assert prompt.texts.endswith("word is")


@pytest.fixture(scope="module")
def manifest(tiny_base):
    base = open_checkpoint(str(tiny_base), name="base", device="cpu")
    return build_manifest(examples(12), base, name="m")


def test_the_mismatched_context_is_of_another_row_and_ends_with_the_own_cue(manifest):
    assert usual_endpoint(manifest) == "completions"
    identifiers = asked_identifiers(manifest)
    for identifier in identifiers.values():
        prompt = other_prompt("cue", identifier, "completions")
        assert prompt is not None
        assert identifier.lender is not None
        own = identifier.example.text[: identifier.span.start]
        assert prompt.texts.split()[-4:] == own.split()[-4:]
        lent = " ".join(prompt.texts.split()[:4])
        assert lent in " ".join(identifier.lender.text.split())
        assert identifier.text not in prompt.texts
