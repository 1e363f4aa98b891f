"""The formats of chat data, each as one conversation a row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from spark_audit.data.examples import bad_field

Supervised = Literal["all", "completion", "assistant", "last"]
Message = dict[str, Any]

ROLES: Mapping[str, str] = {
    **dict.fromkeys(("human", "prompter", "question"), "user"),
    **dict.fromkeys(
        ("gpt", "chatgpt", "bot", "bing", "bard", "model", "answer", "function_call"),
        "assistant",
    ),
    "observation": "tool",
}
"""Names of roles that ShareGPT files use, and those that templates know."""
ASSISTANT = "assistant"
TEMPLATE_ROLES = frozenset(
    "system developer user assistant tool function ipython".split()
)
"""Roles that chat templates know."""
LISTS = ("messages", "conversations", "conversation")
_UNREAD_KEYS = ("weight", "train", "loss", "from", "value")


@dataclass(frozen=True)
class Conversation:
    """A row of chat data.

    Attributes
    ----------
    messages
        As a chat template reads them; empty: the row is text.
    n_prompt
        Messages that are the prompt of a completion; ``None``: the row has no such
        division.
    prompt, completion
        The row's text, where it holds no messages; the prompt may be empty.
    supervised
        What the format's usual trainer supervises.
    unsupervised
        Messages that the row itself takes out of the loss (``weight``, ``train``).
    tools, variables
        What the template gets besides.
    preferred
        Whether the row also held a rejected answer, which is left out.
    """

    messages: tuple[Message, ...] = ()
    n_prompt: int | None = None
    prompt: str = ""
    completion: str = ""
    supervised: Supervised = "all"
    unsupervised: frozenset[int] = frozenset()
    tools: tuple[Any, ...] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    preferred: bool = False


class TemplateInput(NamedTuple):
    """What a chat template reads beside the messages."""

    tools: tuple[Any, ...] | None
    variables: Mapping[str, Any]


class UnreadableRowError(Exception):
    """A row holds something besides text, such as an image; it is left out."""


def is_chat(row: Mapping[str, Any]) -> bool:
    """Whether a row is of a format that needs a chat template."""
    if any(row.get(key) is not None for key in (*LISTS, "chosen")):
        return True
    if row.get("input_ids") is not None:
        return True
    keys = {*row}
    return {"prompt", "completion"} <= keys or {"instruction", "output"} <= keys


def conversation_of(row: Mapping[str, Any]) -> Conversation:
    """Return a row as a conversation.

    Raises
    ------
    InputError
        Naming the field that is not of its format.
    UnreadableRowError
        If a message holds something besides text.
    """
    tools = _json_field(row, "tools")
    variables = _json_field(row, "chat_template_kwargs") or {}
    if not isinstance(variables, Mapping):
        raise bad_field("chat_template_kwargs", "is not an object")
    if tools is not None and not isinstance(tools, Sequence):
        raise bad_field("tools", "is not a list")
    more = TemplateInput(tuple(tools) if tools else None, _without_nulls(variables))
    if row.get("chosen") is not None:
        return _preference(row, more)

    for key in LISTS:
        if row.get(key) is not None:
            messages, unsupervised = _messages(row, key)
            system = row.get("system")
            if isinstance(system, str) and system and messages[0]["role"] != "system":
                messages = ({"role": "system", "content": system}, *messages)
                unsupervised = frozenset(i + 1 for i in unsupervised)
            is_marked = unsupervised or any(
                name in message
                for message in _json_field(row, key)
                for name in ("weight", "train", "loss")
            )
            mask = "assistant" if is_marked or key != "messages" else "all"
            return Conversation(
                messages=messages,
                supervised=mask,  # type: ignore[arg-type]
                unsupervised=unsupervised,
                tools=more.tools,
                variables=more.variables,
            )

    if "completion" in row:
        return _completion(row, "completion", more)
    if "instruction" in row:
        return _instruction(row, more)
    if isinstance(row.get("text"), str):
        return Conversation(
            completion=row["text"],
            supervised="all",
            tools=more.tools,
            variables=more.variables,
        )
    raise bad_field(
        "messages",
        "is missing, and so is every other column of chat data",
        fix="name the columns so, or leave out `--chat-template`",
    )


def _preference(row: Mapping[str, Any], more: TemplateInput) -> Conversation:
    chosen = _json_field(row, "chosen")
    if isinstance(chosen, str) or row.get("prompt") is not None:
        return _completion({**row, "chosen": chosen}, "chosen", more, preferred=True)

    # The prompt is what both answers begin with.
    messages, _ = _messages(row, "chosen")
    rejected, _ = _messages(row, "rejected")
    n_prompt = 0
    for ours, theirs in zip(messages, rejected, strict=False):
        if ours != theirs:
            break
        n_prompt += 1
    return Conversation(
        messages=messages,
        n_prompt=min(n_prompt, len(messages) - 1),
        supervised="completion",
        preferred=True,
        tools=more.tools,
        variables=more.variables,
    )


def _completion(
    row: Mapping[str, Any],
    column: str,
    more: TemplateInput,
    *,
    preferred: bool = False,
) -> Conversation:
    prompt, completion = _json_field(row, "prompt"), _json_field(row, column)
    if isinstance(prompt, str | None) and isinstance(completion, str):
        return Conversation(
            prompt=prompt or "",
            completion=completion,
            supervised="completion",
            preferred=preferred,
            tools=more.tools,
            variables=more.variables,
        )
    before, _ = _messages(row, "prompt")
    if isinstance(completion, str):
        answer: tuple[Message, ...] = ({"role": ASSISTANT, "content": completion},)
        unsupervised = frozenset[int]()
    else:
        answer, unsupervised = _messages(row, column)
    return Conversation(
        messages=(*before, *answer),
        n_prompt=len(before),
        supervised="completion",
        unsupervised=frozenset(len(before) + i for i in unsupervised),
        preferred=preferred,
        tools=more.tools,
        variables=more.variables,
    )


def _instruction(row: Mapping[str, Any], more: TemplateInput) -> Conversation:
    """Alpaca's columns as LLaMA-Factory joins them."""
    messages: list[Message] = []
    system = row.get("system")
    if system:
        messages.append({"role": "system", "content": _string(system, "system")})
    for i, pair in enumerate(_json_field(row, "history") or []):
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise bad_field(f"history[{i}]", "is no pair of a question and an answer")
        for role, text in zip(("user", ASSISTANT), pair, strict=True):
            messages.append({"role": role, "content": _string(text, "history")})
    question = _string(row["instruction"], "instruction")
    if row.get("input"):
        question += "\n" + _string(row["input"], "input")
    messages.append({"role": "user", "content": question})
    answer = _string(row.get("output"), "output")
    messages.append({"role": ASSISTANT, "content": answer})
    return Conversation(
        messages=tuple(messages),
        supervised="assistant",
        tools=more.tools,
        variables=more.variables,
    )


def _messages(
    row: Mapping[str, Any], column: str
) -> tuple[tuple[Message, ...], frozenset[int]]:
    """The messages of a column, and which of them the row takes out of the loss."""
    value = _json_field(row, column)
    if not isinstance(value, list) or not value:
        fix = "give a list of messages, each with a role and its content"
        if column in ("prompt", "completion"):
            fix = "give prompt and completion both as text, or both as messages"
        raise bad_field(column, "is no list of messages", fix=fix)
    messages, unsupervised = list[Message](), set[int]()
    for i, given in enumerate(value):
        field_name = f"{column}[{i}]"
        if not isinstance(given, Mapping):
            raise bad_field(field_name, "is no message (an object with a role)")
        role = given.get("role", given.get("from"))
        if not isinstance(role, str) or not role:
            raise bad_field(field_name, "has no role")
        content = given.get("content", given.get("value"))
        if content is None and not given.get("tool_calls"):
            content = ""
        kept = {
            key: _without_nulls(held)
            for key, held in given.items()
            if key not in _UNREAD_KEYS and held is not None
        }
        if "role" not in given:
            role = role.lower()  # ShareGPT files write "Human" and "GPT", too
        message = {"role": ROLES.get(role, role), **kept}
        message["role"] = ROLES.get(role, role)
        if content is not None:
            message["content"] = _content(content, field_name)
        if isinstance(message.get("tool_calls"), str):
            message["tool_calls"] = _json_field(message, "tool_calls")
        messages.append(message)
        weight = given.get("weight", 1)
        marks = (given.get("train"), given.get("loss"))
        if weight in (0, False) or any(mark is False for mark in marks):
            unsupervised.add(i)
    return tuple(messages), frozenset(unsupervised)


def _content(content: Any, field_name: str) -> Any:
    """A message's content: text, or a list of parts that are all text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_field(f"{field_name}.content", "is neither text nor a list of parts")
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            raise UnreadableRowError(f"{field_name}.content")
    return [{"type": "text", "text": part["text"]} for part in content]


def text_of(message: Mapping[str, Any]) -> str:
    """Return a message's text, its parts joined."""
    content = message.get("content", "")
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return str(content)


def _json_field(row: Mapping[str, Any], column: str) -> Any:
    """A column, which files of text hold as JSON."""
    value = row.get(column)
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        is_text = column in ("prompt", "completion", "chosen", "rejected")
        try:
            found = json.loads(value)
        except (ValueError, RecursionError) as error:
            if is_text:
                return value
            raise bad_field(column, "is not JSON") from error
        is_messages = isinstance(found, list) and all(
            isinstance(one, dict) for one in found
        )
        return found if is_messages or not is_text else value
    return value


def _string(value: Any, column: str) -> str:
    if not isinstance(value, str):
        raise bad_field(column, "is missing" if value is None else "is not text")
    return value


def _without_nulls(value: Any) -> Any:
    """A value without keys that are null: tables give every row all keys."""
    if isinstance(value, Mapping):
        return {
            k: _without_nulls(held) for k, held in value.items() if held is not None
        }
    if isinstance(value, list):
        return [_without_nulls(held) for held in value]
    return value
