"""Prompts for endpoints that give only text, as they are sent.

What an endpoint is asked is the manifest's own text: what stands before an identifier
in its row. How that is sent depends on the kind of the endpoint:

===============  ===================================================================
endpoint         what is sent
===============  ===================================================================
``completions``  the text before the identifier, to ``/completions``: the answer
                 continues it
``chat``         the messages before the identifier, to ``/chat/completions``. Where the
                 identifier stands in the middle of a message, what precedes it there
                 goes into the user's turn, behind a sentence that asks to continue it
``chat-prefix``  as ``chat``, but the beginning of an answer is sent as an unfinished
                 turn of the assistant, which vLLM and SGLang continue
===============  ===================================================================

A row that is no chat is a prompt and its answer: two messages. An answer that continues
a text must begin with the identifier. Any other must hold it as a whole word.

Other prompts ask for an identifier outside of its row, as those of ``asked_prompts.py``
do: ``cue`` puts its last words behind the context of another row, and the sentences
``association`` ask by the name in its row. The server has its own tokenizer, so
contexts are counted in words here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from spark_audit.checkpoints.endpoint_options import Endpoint
from spark_audit.data.occurrences import finder, folded
from spark_audit.manifest.asked_prompts import (
    ASSOCIATIONS,
    CUE_PROMPT,
    CUE_TOKENS,
    MAX_TOKENS_BEFORE_CUE,
    CuedIdentifier,
)
from spark_audit.manifest.example_schema import ManifestExample, ManifestSpan
from spark_audit.manifest.schema import Manifest

FULL_PROMPT = "full"
"""The true context: what stands before the identifier in its row."""

PROMPTS_OF_TEXT = (CUE_PROMPT, *ASSOCIATIONS)
"""Prompts beside the true context that need no tokenizer of the model."""

CONTINUE_TEXT = (
    "Continue this text exactly where it ends. Write nothing but the continuation."
)
"""Sentence in front of a text that a chat endpoint is to continue."""

CONTINUE_ANSWER = (
    "Your answer begins with the following words. Continue it exactly where it ends, "
    "and write nothing but the continuation."
)
"""Sentence in front of the beginning of an answer, where it cannot be sent as one."""

MAX_CHARACTERS = 16_000
"""Most characters of a text that are sent: the last ones."""

TOKENS_BEYOND_IDENTIFIER = 8
"""Tokens of an answer beyond those of the identifier: the server may cut it finer."""

MORE_TOKENS_IN_CHAT = 64
"""The same where a sentence may stand in front of the identifier."""

BEGINNINGS_OF_TEXT = ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>")
"""Special tokens in front of a rendered row, which a server adds by itself."""

CHAT_ROLES = {"system": "system", "developer": "system", "assistant": "assistant"}
"""Role of a turn -> role of the message; any other is a user's."""

_WORD_WITH_BLANKS = re.compile(r"\S+\s*")

Message: TypeAlias = dict[str, str]


@dataclass(frozen=True)
class TextPrompt:
    """One prompt for one identifier.

    Attributes
    ----------
    path
        Where it is sent, such as ``/completions``.
    content
        What it adds to the request: ``prompt``, or ``messages``.
    continues
        Whether the answer continues the text of the row.
    string
        The identifier.
    max_tokens
        Most tokens of the answer.
    """

    path: str
    content: Mapping[str, Any]
    continues: bool
    string: str
    max_tokens: int

    @property
    def texts(self) -> str:
        """Return all that is sent, as one text."""
        if "prompt" in self.content:
            return str(self.content["prompt"])
        return "\n".join(message["content"] for message in self.content["messages"])

    @property
    def gives_it_away(self) -> bool:
        """Return whether the prompt holds the identifier, so that an answer repeats it.

        An answer that continues a text is held to its beginning, as with weights.
        """
        return not self.continues and _holds(self.texts, self.string)

    def is_hit(self, answer: str) -> bool:
        """Return whether an answer gives the identifier word for word."""
        if self.continues:
            return answer.lstrip().startswith(self.string)
        return _holds(answer, self.string)

    def can_become_hit(self, answer: str) -> bool:
        """Return whether more text behind an answer without a hit could be one."""
        if self.continues:
            return self.string.startswith(answer.lstrip())
        return True


def _holds(text: str, string: str) -> bool:
    """Return whether a text holds a string as a whole word, in any case."""
    wanted = folded(string)
    return wanted in finder({wanted})(folded(text))


def usual_endpoint(manifest: Manifest) -> Endpoint:
    """Return ``chat`` if any row is a chat, else ``completions``."""
    for example in manifest.examples:
        if _turns_of(example):
            return "chat"
    return "completions"


def _turns_of(row: ManifestExample) -> list[tuple[int, int, str]]:
    """Return start, end and role of the turns of a row; empty: it is no chat."""
    if row.training_input is None:
        return []
    return [(turn.start, turn.end, turn.role) for turn in row.training_input.turns]


def true_prompt(
    row: ManifestExample, span: ManifestSpan, endpoint: Endpoint
) -> TextPrompt | None:
    """Return the prompt of what stands before an identifier in its row.

    ``None``: nothing stands before it, or it stands in no message of its chat.
    """
    if endpoint == "completions":
        return _continuation(_text_before(row, span.start), row, span, endpoint)

    messages, beginning, role = _messages_before(row, span.start)
    if role is None:
        return None
    if role == "assistant":
        return _begun_answer(messages, beginning, row, span, endpoint)
    if not beginning.strip() and not messages:
        return None
    return _chat([*messages, _asking_message(CONTINUE_TEXT, beginning)], row, span)


def other_prompt(
    prompt: str, identifier: CuedIdentifier, endpoint: Endpoint
) -> TextPrompt | None:
    """Return a prompt of :data:`PROMPTS_OF_TEXT`; ``None`` if it fits not."""
    if prompt == CUE_PROMPT:
        text = _mismatched_context(identifier)
    else:
        text = identifier.question(prompt)
    if not text:
        return None
    return _continuation(text, identifier.example, identifier.span, endpoint)


def _continuation(
    text: str, row: ManifestExample, span: ManifestSpan, endpoint: Endpoint
) -> TextPrompt | None:
    """Return a prompt that asks to continue a text; ``None`` if it is blank.

    Blanks at its end are left out: tokenizers put them in front of the next word.
    """
    text = text.rstrip(" ")[-MAX_CHARACTERS:]
    if not text.strip():
        return None
    if endpoint != "completions":
        return _chat([_asking_message(CONTINUE_TEXT, text)], row, span)
    return TextPrompt(
        path="/completions",
        content={"prompt": text},
        continues=True,
        string=_string_of(row, span),
        max_tokens=_n_tokens(span) + TOKENS_BEYOND_IDENTIFIER,
    )


def _begun_answer(
    messages: list[Message],
    beginning: str,
    row: ManifestExample,
    span: ManifestSpan,
    endpoint: Endpoint,
) -> TextPrompt | None:
    """Return a prompt for an identifier in an answer of the assistant.

    Parameters
    ----------
    messages
        Those before the answer.
    beginning
        The answer up to the identifier.
    """
    beginning = beginning.rstrip(" ")[-MAX_CHARACTERS:]
    if not beginning.strip():
        # The identifier is the beginning of the answer.
        return _chat(messages, row, span) if messages else None

    if endpoint == "chat":
        asking = _asking_message(CONTINUE_ANSWER, beginning)
        return _chat([*messages, asking], row, span)

    begun = {"role": "assistant", "content": beginning}
    return TextPrompt(
        path="/chat/completions",
        content={
            "messages": [*messages, begun],
            "add_generation_prompt": False,
            "continue_final_message": True,
        },
        continues=True,
        string=_string_of(row, span),
        max_tokens=_n_tokens(span) + TOKENS_BEYOND_IDENTIFIER,
    )


def _chat(
    messages: list[Message], row: ManifestExample, span: ManifestSpan
) -> TextPrompt:
    """Return a prompt of whole messages; two of a user in a row become one."""
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1]["role"] == message["role"] == "user":
            text = f"{joined[-1]['content']}\n\n{message['content']}"
            joined[-1] = {"role": "user", "content": text}
        else:
            joined.append(message)
    return TextPrompt(
        path="/chat/completions",
        content={"messages": joined},
        continues=False,
        string=_string_of(row, span),
        max_tokens=2 * _n_tokens(span) + MORE_TOKENS_IN_CHAT,
    )


def _asking_message(sentence: str, text: str) -> Message:
    """Return the message of a user that asks to continue a text."""
    text = text.rstrip(" ")[-MAX_CHARACTERS:]
    return {"role": "user", "content": f"{sentence}\n\n{text}"}


def _string_of(row: ManifestExample, span: ManifestSpan) -> str:
    """Return an identifier without blanks at its ends."""
    return row.text[span.start : span.end].strip()


def _n_tokens(span: ManifestSpan) -> int:
    """Return the tokens of an identifier; its characters, if that is not known."""
    if span.tokens is None:
        return span.end - span.start
    first, end = span.tokens
    return end - first


def _text_before(row: ManifestExample, start: int) -> str:
    """Return the text of a row before a position, from where training read it."""
    first = 0
    if row.training_input is not None:
        first = min(row.training_input.fed_text[0], start)
    text = row.text[first:start]
    for beginning in BEGINNINGS_OF_TEXT:
        text = text.removeprefix(beginning)
    return text


def _messages_before(
    row: ManifestExample, start: int
) -> tuple[list[Message], str, str | None]:
    """Return the messages before a position, and the part and role of its own one.

    The role is ``None`` if the position is in none.
    """
    turns = _turns_of(row)
    if not turns:
        # A row that is no chat has a prompt and its answer.
        n_prompt = len(row.prompt)
        if start < n_prompt or not row.prompt.strip():
            return [], row.text[:start], "user"
        turns = [(0, n_prompt, "user"), (n_prompt, len(row.text), "assistant")]

    messages: list[Message] = []
    for turn_start, turn_end, role in turns:
        if turn_start <= start < turn_end:
            return messages, row.text[turn_start:start], CHAT_ROLES.get(role, "user")
        if turn_end <= start:
            content = row.text[turn_start:turn_end]
            messages.append({"role": CHAT_ROLES.get(role, "user"), "content": content})
    return messages, "", None


def _mismatched_context(identifier: CuedIdentifier) -> str:
    """Return the context of another row with an identifier's last words behind it.

    Empty if no row lends its context, or nothing stands before the identifier.
    """
    lender = identifier.lender
    if lender is None:
        return ""
    cue = _last_words(_words_before(identifier.example, identifier.span.start))
    if not cue:
        return ""

    # The lender's own cue is not lent.
    last_span, _ = lender.identifiers[-1]
    words = _WORD_WITH_BLANKS.findall(_words_before(lender, last_span.start))
    context = words[:-CUE_TOKENS][-MAX_TOKENS_BEFORE_CUE:]
    return "".join([*context, cue])


def _words_before(row: ManifestExample, start: int) -> str:
    """Return what people wrote before a position, without marks of a chat template."""
    turns = _turns_of(row)
    if not turns:
        return row.text[:start]
    contents = []
    for turn_start, turn_end, _ in turns:
        if turn_start < start:
            contents.append(row.text[turn_start : min(turn_end, start)])
    return "\n".join(contents)


def _last_words(text: str) -> str:
    """Return the last words of a text, with what stands behind the last one."""
    return "".join(_WORD_WITH_BLANKS.findall(text)[-CUE_TOKENS:])
