"""Read chat data of every known format, one conversation per row.

:func:`conversation_of` is the entry. A further format is recognised in
:func:`_without_tools` by a column, and in :func:`is_chat`, so that an import without a
chat template can say what is missing; a function of its own makes a
:class:`Conversation` of it. Cells may hold JSON as text, as CSV files do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from spark_audit.data.examples import bad_field
from spark_audit.json_values import JsonObject

Supervised = Literal["all", "completion", "assistant", "last"]
"""The part of a conversation with loss: all tokens, the completion, every message of
the assistant, or the last of them."""
Message = dict[str, object]
"""A message as chat templates read it: ``role``, ``content``, perhaps more keys."""

ROLES: Mapping[str, str] = {
    **dict.fromkeys(("human", "prompter", "question"), "user"),
    **dict.fromkeys(
        ("gpt", "chatgpt", "bot", "bing", "bard", "model", "answer", "function_call"),
        "assistant",
    ),
    "observation": "tool",
}
"""Role names of chat templates, by the names in ShareGPT files."""
ASSISTANT = "assistant"
TEMPLATE_ROLES = frozenset(
    "system developer user assistant tool function ipython".split()
)
"""Roles that chat templates know."""
MESSAGE_LISTS = ("messages", "conversations", "conversation")
"""Columns that hold a list of messages."""
_UNREAD_KEYS = ("weight", "train", "loss", "from", "value")
"""Keys of a message that a template does not get: marks of loss, and other names of
``role`` and ``content``."""


@dataclass(frozen=True)
class Conversation:
    """A row of chat data.

    Attributes
    ----------
    messages
        Messages in the form that a chat template reads; empty if the row is plain text.
    n_prompt
        Number of messages that are the prompt of a completion; ``None`` if the row has
        no such division.
    prompt, completion
        The text of a row without messages; the prompt may be empty.
    supervised
        The part that the usual trainer of the format has loss on.
    unsupervised
        Numbers of the messages that the row excludes from the loss (``weight``,
        ``train``).
    tools, variables
        Further inputs of the template.
    preferred
        Whether the row also held a rejected answer, which was left out.
    """

    messages: tuple[Message, ...] = ()
    n_prompt: int | None = None
    prompt: str = ""
    completion: str = ""
    supervised: Supervised = "all"
    unsupervised: frozenset[int] = frozenset()
    tools: tuple[object, ...] | None = None
    variables: JsonObject = field(default_factory=dict)
    preferred: bool = False


class UnreadableRowError(Exception):
    """The row holds something besides text, such as an image, and is left out."""


def is_chat(row: JsonObject) -> bool:
    """Return whether a row is of a format that needs a chat template."""
    if any(row.get(key) is not None for key in (*MESSAGE_LISTS, "chosen", "input_ids")):
        return True

    is_completion = "prompt" in row and "completion" in row
    is_instruction = "instruction" in row and "output" in row
    return is_completion or is_instruction


def conversation_of(row: JsonObject) -> Conversation:
    """Return a row as a conversation.

    Raises
    ------
    InputError
        Names the field that does not match its format.
    UnreadableRowError
        If a message holds something besides text.
    """
    tools = _json_field(row, "tools")
    variables = _json_field(row, "chat_template_kwargs") or {}
    if not isinstance(variables, Mapping):
        raise bad_field(
            "chat_template_kwargs",
            "is not an object",
            fix="give the names and values of the template's variables",
        )
    if tools is not None and not isinstance(tools, Sequence):
        raise bad_field(
            "tools", "is not a list", fix="give a list of descriptions of tools"
        )

    return replace(
        _without_tools(row),
        tools=tuple(tools) if tools else None,
        variables=_object_without_nulls(variables),
    )


def _without_tools(row: JsonObject) -> Conversation:
    """Return a row as a conversation, without tools and template variables.

    The first of these columns that the row has determines the format::

        chosen           :func:`_preference`
        MESSAGE_LISTS    :func:`_listed_messages`
        completion       :func:`_completion`
        instruction      :func:`_instruction`, of Alpaca
        text             plain text, all of it with loss
    """
    # A preference may hold its prompt as messages, too.
    if row.get("chosen") is not None:
        return _preference(row)

    for column in MESSAGE_LISTS:
        if row.get(column) is not None:
            return _listed_messages(row, column)

    if "completion" in row:
        return _completion(row, "completion")
    if "instruction" in row:
        return _instruction(row)

    text = row.get("text")
    if isinstance(text, str):
        return Conversation(completion=text, supervised="all")
    raise bad_field(
        "messages",
        "is missing, and so is every other column of chat data",
        fix="name the columns so, or leave out `--chat-template`",
    )


def _listed_messages(row: JsonObject, column: str) -> Conversation:
    """Return the conversation of a column with a list of messages."""
    messages, unsupervised = _messages(row, column)

    # ShareGPT files may hold the system message in a column of its own.
    system = row.get("system")
    if isinstance(system, str) and system and messages[0]["role"] != "system":
        messages = ({"role": "system", "content": system}, *messages)
        unsupervised = frozenset(i + 1 for i in unsupervised)

    # TRL trains on all tokens of `messages`, LLaMA-Factory on what an assistant says.
    supervised: Supervised = "assistant"
    if column == "messages" and not _marks_its_loss(row, column):
        supervised = "all"
    return Conversation(
        messages=messages, supervised=supervised, unsupervised=unsupervised
    )


def _marks_its_loss(row: JsonObject, column: str) -> bool:
    """Return whether a row itself marks which of its messages are in the loss.

    Parameters
    ----------
    column
        A column that :func:`_messages` has read without an error.
    """
    messages = _json_field(row, column)
    assert isinstance(messages, list)  # _messages refuses anything else
    return any(
        "weight" in message or "train" in message or "loss" in message
        for message in messages
    )


def _preference(row: JsonObject) -> Conversation:
    """Return the conversation of ``chosen``; ``rejected`` only shows its prompt."""
    # A preference with its own prompt column is a prompt and a completion.
    chosen = _json_field(row, "chosen")
    if isinstance(chosen, str) or row.get("prompt") is not None:
        return _completion({**row, "chosen": chosen}, "chosen", preferred=True)

    # Otherwise the prompt is the beginning that both answers share.
    messages, _ = _messages(row, "chosen")
    rejected, _ = _messages(row, "rejected")
    n_shared = 0
    for preferred_message, rejected_message in zip(messages, rejected, strict=False):
        if preferred_message != rejected_message:
            break
        n_shared += 1

    # Identical answers are still answers: the last message is the answer.
    return Conversation(
        messages=messages,
        n_prompt=min(n_shared, len(messages) - 1),
        supervised="completion",
        preferred=True,
    )


def _completion(
    row: JsonObject, column: str, *, preferred: bool = False
) -> Conversation:
    """Return the conversation of a prompt and a completion, as texts or messages.

    Parameters
    ----------
    column
        The column of the completion: ``completion`` or ``chosen``.
    """
    # Both are texts, or both are lists of messages, or the row has only a completion.
    prompt = _json_field(row, "prompt")
    completion = _json_field(row, column)
    if isinstance(prompt, str | None) and isinstance(completion, str):
        return Conversation(
            prompt=prompt or "",
            completion=completion,
            supervised="completion",
            preferred=preferred,
        )

    prompt_messages, _ = _messages(row, "prompt")
    n_prompt = len(prompt_messages)
    if isinstance(completion, str):
        answer: tuple[Message, ...] = ({"role": ASSISTANT, "content": completion},)
        unsupervised = frozenset[int]()
    else:
        answer, unsupervised = _messages(row, column)

    return Conversation(
        messages=(*prompt_messages, *answer),
        n_prompt=n_prompt,
        supervised="completion",
        unsupervised=frozenset(n_prompt + i for i in unsupervised),
        preferred=preferred,
    )


def _instruction(row: JsonObject) -> Conversation:
    """Return the conversation of Alpaca's columns as LLaMA-Factory joins them."""
    # The history stands between the system message and the question.
    messages: list[Message] = []
    system = row.get("system")
    if system:
        messages.append({"role": "system", "content": _string(system, "system")})

    history = _json_field(row, "history") or []
    if not isinstance(history, Sequence) or isinstance(history, str):
        raise bad_field(
            "history",
            "is not a list of pairs",
            fix="give a list of [question, answer]",
        )
    for i, pair in enumerate(history):
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise bad_field(
                f"history[{i}]",
                "is not a pair of a question and an answer",
                fix="give a list of [question, answer]",
            )
        question, answer = pair
        messages.append({"role": "user", "content": _string(question, "history")})
        messages.append({"role": ASSISTANT, "content": _string(answer, "history")})

    # LLaMA-Factory puts the input on a line below the instruction.
    question = _string(row["instruction"], "instruction")
    if row.get("input"):
        question += "\n" + _string(row["input"], "input")
    messages.append({"role": "user", "content": question})

    output = _string(row.get("output"), "output")
    messages.append({"role": ASSISTANT, "content": output})
    return Conversation(messages=tuple(messages), supervised="assistant")


def _messages(
    row: JsonObject, column: str
) -> tuple[tuple[Message, ...], frozenset[int]]:
    """Return the messages of a column, and the numbers of those without loss.

    Numbers count from 0.
    """
    value = _json_field(row, column)
    if not isinstance(value, list) or not value:
        advice = "give a list of messages, each with a role and its content"
        if column in ("prompt", "completion"):
            advice = "give prompt and completion both as text, or both as messages"
        raise bad_field(column, "is not a list of messages", fix=advice)

    messages: list[Message] = []
    unsupervised: set[int] = set()
    for i, raw in enumerate(value):
        field_name = f"{column}[{i}]"
        if not isinstance(raw, Mapping):
            raise bad_field(
                field_name,
                "is not a message",
                fix="give an object with `role` and `content`",
            )
        messages.append(_message(raw, field_name))

        # OpenAI's format gives a message a weight of 0 or 1, others a truth value.
        is_excluded = (
            raw.get("weight", 1) in (0, False)
            or raw.get("train") is False
            or raw.get("loss") is False
        )
        if is_excluded:
            unsupervised.add(i)
    return tuple(messages), frozenset(unsupervised)


def _message(raw: JsonObject, field_name: str) -> Message:
    """Return a message of any format in the form that templates read.

    Parameters
    ----------
    raw
        The message as its file has it: with ``role`` and ``content``, or with ``from``
        and ``value``, as ShareGPT files have them.
    field_name
        Its place in the row, such as ``messages[2]``, for errors.
    """
    role = raw.get("role", raw.get("from"))
    if not isinstance(role, str) or not role:
        raise bad_field(
            field_name, "has no role", fix="give it `role`, such as user or assistant"
        )
    if "role" not in raw:
        role = role.lower()  # ShareGPT files write "Human" and "GPT", too
    message: Message = {"role": ROLES.get(role, role)}

    for key, value in raw.items():
        if key not in (*_UNREAD_KEYS, "role") and value is not None:
            message[key] = _without_nulls(value)

    # Only a message with tool calls may lack content.
    content = raw.get("content", raw.get("value"))
    if content is None and not raw.get("tool_calls"):
        content = ""
    if content is not None:
        message["content"] = _content(content, field_name)
    # A CSV file holds tool calls as text.
    if isinstance(message.get("tool_calls"), str):
        message["tool_calls"] = _json_field(message, "tool_calls")
    return message


def _content(content: object, field_name: str) -> str | list[dict[str, str]]:
    """Return a message's content: text, or a list of parts that are all text.

    Raises
    ------
    UnreadableRowError
        If a part is something else, such as an image.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_field(
            f"{field_name}.content",
            "is neither text nor a list of parts",
            fix="give text, or a list of parts with text",
        )

    text_parts: list[dict[str, str]] = []
    for content_part in content:
        text = content_part.get("text") if isinstance(content_part, Mapping) else None
        if not isinstance(text, str):
            raise UnreadableRowError(f"{field_name}.content")
        text_parts.append({"type": "text", "text": text})
    return text_parts


def text_of(message: JsonObject) -> str:
    """Return a message's text, its parts joined."""
    content = message.get("content", "")
    if isinstance(content, list):
        return "".join(text_part["text"] for text_part in content)
    return str(content)


def _json_field(row: JsonObject, column: str) -> object:
    """Return the value of a column; text that holds JSON is parsed.

    Raises
    ------
    InputError
        If text begins like JSON and is none, in a column that cannot hold plain text.
    """
    value = row.get(column)
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value

    # Plain text may begin with a bracket, too: only a list of messages is parsed.
    may_be_text = column in ("prompt", "completion", "chosen", "rejected")
    parsed: object
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        if may_be_text:
            return value
        raise bad_field(
            column, "is not JSON", fix="write the column as JSON, or as a list"
        ) from None

    is_messages = isinstance(parsed, list) and all(
        isinstance(message, dict) for message in parsed
    )
    if may_be_text and not is_messages:
        return value
    return parsed


def _string(value: object, column: str) -> str:
    """Return a cell, which must be text."""
    if value is None:
        raise bad_field(column, "is missing", fix="give it text, or leave the row out")
    if not isinstance(value, str):
        raise bad_field(column, "is not text", fix="give it text, or leave the row out")
    return value


def _without_nulls(value: object) -> object:
    """Return a value without null keys, because tables give every row all keys."""
    if isinstance(value, Mapping):
        return _object_without_nulls(value)
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _object_without_nulls(value: JsonObject) -> dict[str, object]:
    """Return an object without null keys, at every depth."""
    return {
        key: _without_nulls(item) for key, item in value.items() if item is not None
    }
