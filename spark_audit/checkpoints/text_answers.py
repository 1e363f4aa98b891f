"""Read answers of the OpenAI protocol: one JSON object, or a stream of events.

``text_server.py`` sends the requests. An answer that broke off is no answer:
:func:`read_answer` returns ``None`` for it, so that it is asked for again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spark_audit.errors import InputError
from spark_audit.files import parse_json

EVENT = "data:"
"""Beginning of a line of a stream that holds a piece of the answer."""
END_OF_LINE = re.compile(r"\r\n|\n|\r")
"""The ends of lines of a stream. Others that Python knows, such as U+2028, may stand in
an answer."""
END_OF_STREAM = "[DONE]"
"""The last event of a whole stream."""
CUT = "length"
"""Reason of an answer's end where its tokens were used up."""
TOO_LONG = "too long"
"""Reason of ours: the prompt was longer than the model's context there."""
FILTERED = "content_filter"
"""Reason of an answer's end where the server's filter held it back."""


@dataclass(frozen=True)
class TextAnswer:
    """One whole answer.

    Attributes
    ----------
    text
        What the model wrote.
    finish
        Why it ended, such as ``stop`` or ``length``; empty: not said.
    model, fingerprint
        The name by which the server says that it answered, and its
        ``system_fingerprint``; empty: not said.
    refused
        Whether the server marks it as a refusal: of its filter, or of the model.
    prompt_tokens, answer_tokens
        Tokens that the server counted; ``None``: not said.
    """

    text: str
    finish: str = ""
    model: str = ""
    fingerprint: str = ""
    refused: bool = False
    prompt_tokens: int | None = None
    answer_tokens: int | None = None

    @property
    def is_cut(self) -> bool:
        """Return whether more would have followed, had there been tokens left."""
        return self.finish == CUT

    @property
    def is_too_long(self) -> bool:
        """Return whether the prompt was longer than the model's context."""
        return self.finish == TOO_LONG


def read_answer(content: bytes) -> TextAnswer | None:
    """Return the answer in the body of a response; ``None``: it is none, or broke off.

    Parameters
    ----------
    content
        A JSON object, or the events of a stream.
    """
    text = content.decode("utf-8", errors="replace")
    if text.lstrip().startswith((EVENT, ":", "event:")):
        return _streamed_answer(text)

    try:
        answer = parse_json(content, place="the answer", finite=False)
    except InputError:
        return None
    if not isinstance(answer, dict):
        return None
    return _answer_of_pieces([answer], is_whole=True)


def _streamed_answer(text: str) -> TextAnswer | None:
    """Return the answer of a stream of events; ``None`` if it broke off."""
    pieces = []
    is_whole = False
    for line in END_OF_LINE.split(text):
        if not line.startswith(EVENT):
            continue
        data = line.removeprefix(EVENT).strip()
        if data == END_OF_STREAM:
            is_whole = True
            break
        try:
            piece = json.loads(data)
        except ValueError:
            return None
        # A server tells of a failure in the middle by an event of its own.
        if not isinstance(piece, dict) or "error" in piece:
            return None
        pieces.append(piece)
    return _answer_of_pieces(pieces, is_whole=is_whole)


def _answer_of_pieces(
    pieces: list[dict[str, Any]], *, is_whole: bool
) -> TextAnswer | None:
    """Return the answer that some objects of the protocol hold together.

    Parameters
    ----------
    pieces
        The only object of an answer, or those of a stream, in order.
    is_whole
        Whether nothing is missing; a stream may also say so by its ``finish_reason``.
    """
    texts = []
    finish = ""
    refused = False
    has_choice = False
    for piece in pieces:
        for choice in _first_choices(piece):
            has_choice = True
            finish = _text_or_empty(choice.get("finish_reason")) or finish
            # Pieces of a stream have `delta`, whole chat answers `message`.
            message = choice.get("message") or choice.get("delta") or {}
            if not isinstance(message, dict):
                return None
            texts.append(_text_of(choice.get("text")))
            texts.append(_text_of(message.get("content")))
            refusal = _text_of(message.get("refusal"))
            texts.append(refusal)
            refused = refused or bool(refusal)

    if not has_choice or not (is_whole or finish):
        return None
    usage = _last_of(pieces, "usage")
    if not isinstance(usage, dict):
        usage = {}
    return TextAnswer(
        text="".join(texts),
        finish=finish,
        model=_text_or_empty(_last_of(pieces, "model")),
        fingerprint=_text_or_empty(_last_of(pieces, "system_fingerprint")),
        refused=refused or finish == FILTERED,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        answer_tokens=_count(usage.get("completion_tokens")),
    )


def _first_choices(piece: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the first choice of an object; its last event may have none."""
    choices = piece.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        yield choices[0]


def _text_of(content: object) -> str:
    """Return the text of a message; of a list of parts that of all its texts."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(_text_or_empty(part) for part in parts)
    return _text_or_empty(content)


def _text_or_empty(value: object) -> str:
    """Return a text; empty if it is none."""
    return value if isinstance(value, str) else ""


def _last_of(pieces: list[dict[str, Any]], name: str) -> object:
    """Return the last value of a field that is not null; ``None`` if there is none."""
    for piece in reversed(pieces):
        if piece.get(name) is not None:
            return piece[name]
    return None


def _count(value: object) -> int | None:
    """Return a number of tokens; ``None`` if it is none."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if value >= 0 else None
