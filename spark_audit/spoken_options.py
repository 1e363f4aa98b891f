"""Name options as the caller writes them: on the command line, or in Python.

Messages are written once, with options of the command line (``--base MODEL``). When
Python called, they are shown with arguments (``base=MODEL``): errors when they become
text (``errors.py``), and messages when they are printed (``messages.py``).

A new option that an error names goes into :data:`ARGUMENTS`. If it is a switch, it also
goes into :data:`SWITCHES`, and if its value is a word in lower case, that word goes
into ``_LOWER_CASE_VALUES``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_command_line: ContextVar[bool] = ContextVar("is_command_line", default=False)
"""Whether a command line is running; without one, Python called."""

ARGUMENTS = {
    "address": "address",
    "against": "against",
    "agree": "agree",
    "base": "base",
    "before": "before",
    "baseline": "baseline",
    "batch-size": "batch_size",
    "by": "by",
    "blind-permutations": "blind_permutations",
    "canaries": "canaries",
    "chat-template": "template",
    "ckpt": "checkpoints",
    "claims": "claims",
    "data": "data",
    "delta": "delta",
    "detector": "detector",
    "device": "device",
    "device-map": "device_map",
    "doses": "doses",
    "dp": "dp",
    "draws": "draws",
    "dtype": "dtype",
    "empty": "empty",
    "encoding": "encoding",
    "endpoint": "endpoint",
    "engine": "engine",
    "exact": "exact",
    "fail-if": "rules",
    "field": "field",
    "forget": "forget",
    "format": "formats",
    "jobs": "jobs",
    "limit": "limit",
    "lora-alpha": "lora_alpha",
    "lora-targets": "lora_targets",
    "manifest": "manifest",
    "map": "columns",
    "margin": "margin",
    "max-length": "max_length",
    "max-requests": "max_requests",
    "method": "method",
    "model": "model",
    "null": "null",
    "offsets": "offsets",
    "order": "order",
    "parallel": "parallel",
    "passage-words": "passage_words",
    "passages": "passages",
    "pattern": "patterns",
    "person": "person",
    "placebo-draws": "placebo_draws",
    "preset": "preset",
    "price-per-1k": "price_per_1k",
    "prompts": "prompts",
    "quantize": "quantize",
    "rate": "rate",
    "relearn": "relearn",
    "relearn-lr": "relearn_lr",
    "relearn-steps": "relearn_steps",
    "replicates": "replicates",
    "retrained": "retrained",
    "revision": "revision",
    "samples": "samples",
    "scorer": "scorer",
    "scores": "scores",
    "scores-file": "scores_file",
    "scores-rows": "scores_rows",
    "seed": "seed",
    "set": "settings",
    "shard": "shard",
    "show-text": "show_text",
    "sigmas": "sigmas",
    "split": "split",
    "stream": "stream",
    "supervised": "supervised",
    "temperature": "temperature",
    "template": "template",
    "through-lr": "lr",
    "tokenizer": "tokenizer",
    "top-p": "top_p",
    "truncation": "truncation",
    "trust-remote-code": "trust_remote_code",
    "yes": "yes",
}
"""Option that an error names -> argument or field in Python."""

SWITCHES = ("exact", "show-text", "stream", "top-p", "trust-remote-code", "yes")
"""Options without a value: ``--show-text`` is ``show_text=True``."""

OUTPUT_OPTION = re.compile(r"(?<= )-o(?=[,;.]|$)")
"""The short name of ``--output``, except with a value: then it is of another tool."""

_LOWER_CASE_VALUES = (
    "ray|dossier|cpu|auto|float32|bfloat16|train|test|rules|presidio|all|drop|keep|"
    "dpsgd|fn"
)
"""Values in lower case that errors name behind an option: other words are prose."""

_VALUE = "|".join(
    [
        r"'[^']*'",  # a quoted value
        rf"(?:{_LOWER_CASE_VALUES})\b",
        r"http[^\s,;]+",  # an address
        r"[A-Z][A-Z|]+\b(?!=)",  # the name of a value, such as MODEL or DIR|DATA
    ]
)

# Longer names come first, so that "device-map" is not taken for "device".
_NAMES_OF_OPTIONS = "|".join(sorted(ARGUMENTS, key=len, reverse=True))
_NOT_INSIDE_A_WORD = r"(?<![\w/.-])"
_NOT_OF_ANOTHER_PROGRAM = r"(?<!mlx_lm.fuse )"  # as in `mlx_lm.fuse --model BASE`
_OPTION_IN_TEXT = re.compile(
    rf"{_NOT_INSIDE_A_WORD}{_NOT_OF_ANOTHER_PROGRAM}"
    rf"--(?P<option>{_NAMES_OF_OPTIONS})(?![\w-])"
    rf"(?: (?P<value>{_VALUE}))?"
)
"""An option in a message, with its value or the value's name if there is one."""

_PAIR = re.compile(r"--(?P<option>ckpt|map) (?P<key>\w+)=(?P<value>[A-Z]+)")
"""An option with ``KEY=VALUE``, which is a mapping in Python."""

_IN_BACKTICKS = re.compile(r"(`[^`]*`)")
"""Text in backticks; a split by it keeps these pieces, between those of prose."""

_PLACE = re.compile(
    r"(?:option )?--(?P<option>[a-z0-9-]+)(?: (?P<value>.+))?", re.DOTALL
)
"""The place of an error that is one option, with the value that was given."""


@contextmanager
def for_command_line(*, is_running: bool = True) -> Iterator[None]:
    """Show options as the command line has them inside the block."""
    token = _is_command_line.set(is_running)
    try:
        yield
    finally:
        _is_command_line.reset(token)


def as_called(text: str) -> str:
    """Return a message with its options as the caller writes them.

    Examples
    --------
    >>> with for_command_line(is_running=False):
    ...     as_called("give --base MODEL, or add --format dossier")
    "give base=MODEL, or add formats='dossier'"
    >>> with for_command_line():
    ...     as_called("give --base MODEL")
    'give --base MODEL'
    """
    if _is_command_line.get():
        return text

    pieces = []
    for piece in _IN_BACKTICKS.split(text):
        # A whole command stays as it is typed in a shell; an option alone does not.
        is_command = piece.startswith("`") and not piece.startswith("`-")
        if not is_command:
            # Pairs come first: a single option would take only their beginning.
            piece = _PAIR.sub(_mapping, piece)
            piece = _OPTION_IN_TEXT.sub(_argument, piece)
            piece = OUTPUT_OPTION.sub("output=", piece)
        pieces.append(piece)
    return "".join(pieces)


def place_as_called(where: str) -> str:
    """Return the place of an error, whose option may have the value that was given.

    Examples
    --------
    >>> with for_command_line(is_running=False):
    ...     place_as_called("--baseline")
    ...     place_as_called("--scores runs/1")
    ...     place_as_called("--map prompt=")
    'baseline'
    "scores='runs/1'"
    "columns['prompt']"
    """
    match = _PLACE.fullmatch(where)
    if _is_command_line.get() or match is None or match["option"] not in ARGUMENTS:
        return as_called(where)

    argument = ARGUMENTS[match["option"]]
    value = match["value"]
    if value is None:
        return argument
    # The key of a pair is an entry of a mapping.
    if value.endswith("="):
        return f"{argument}[{value[:-1]!r}]"
    is_quoted = value.startswith(("'", '"'))
    return f"{argument}={value if is_quoted else repr(value)}"


def _mapping(match: re.Match[str]) -> str:
    """Return an option with ``KEY=VALUE`` as a mapping; a key in capitals is a name."""
    key = match["key"] if match["key"].isupper() else repr(match["key"])
    return f"{ARGUMENTS[match['option']]}={{{key}: {match['value']}}}"


def _argument(match: re.Match[str]) -> str:
    """Return an option of a message as an argument, with its value."""
    option = match["option"]
    value = match["value"] or ""
    is_quoted = value.startswith("'")
    is_text = value.startswith("http") or (value.islower() and not is_quoted)
    if option in SWITCHES:
        value = "True"
    elif is_text:
        value = repr(value)
    # Without a value, the argument ends with "=": "give base=".
    return f"{ARGUMENTS[option]}={value}"
