"""Commands, sources and settings without what they tell of a machine or an account.

Of a path its last name is shown, of an address neither its user nor what stands behind
its path: queries carry keys and signatures.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

HIDDEN = "..."
"""Stands for what is left out of a command."""

PATHS = ("scores_file", "scores_rows")
"""Options of audits that name files."""

_WEB_ADDRESS = re.compile(
    r"(?P<scheme>\b(?!file:)[A-Za-z][\w+.-]*://)(?:[^/\n@]*@)?"
    r"(?P<place>[^\s?#;]*)(?P<rest>[?#;].*)?"
)
"""An address: scheme, perhaps a user, host with path, perhaps a query or a fragment.
Nothing tells where a query ends: all behind it is left out."""

_QUERY = re.compile(r"\?[^\s?=]*=.*")
"""A query behind anything else, as ``hf:ORG/NAME?token=...``."""

_FILE_SCHEME = re.compile(r"\bfile:(?://[^/\\\s]*)?(?=[/\\])", re.IGNORECASE)
"""The scheme of an address that is a path."""

_PATH_BEGINS = r"(?:[A-Za-z]:)?[/\\]|~[\w.-]*[/\\]|\.\.[/\\]|[\w.+-]+="

_ABSOLUTE_FOLDERS = re.compile(
    r"(?:(?<![\w./:\\~-])|(?<=^-\w))(?:(?:[A-Za-z]:)?[/\\]|~[\w.-]*[/\\]|\.\.[/\\])"
    rf"(?:(?:[^/\\\n:=,]|[:=,](?!{_PATH_BEGINS}))*[/\\])*(?=[^/\\])"
)
"""Folders of a path that begins at the root, at somebody's home or outside of the
working directory. A colon, a comma or an equals sign may stand in a folder's name,
unless another path begins behind it."""

_RELATIVE_FOLDERS = re.compile(r"(?<![\w./:\\~-])(?:[^/\\\n:=,]*[/\\])+(?=[^/\\])")
"""Folders of a path, wherever it begins."""


def shareable(text: str) -> str:
    """Return text whose paths are names and whose addresses have no user and no query.

    >>> shareable("mine=/home/anna/clinic/runs/mine@2")
    'mine=mine@2'
    >>> shareable("file:///home/anna/base")
    'base'
    >>> shareable("https://anna:secret@host/v1/models?key=123")
    'https://host/v1/models?...'
    >>> shareable("hf:ORG/NAME runs/mine")
    'hf:ORG/NAME runs/mine'
    """
    parts: list[str] = []
    end = 0
    for address in _WEB_ADDRESS.finditer(text):
        parts.append(_without_folders(text[end : address.start()]))
        rest = "?" + HIDDEN if address["rest"] else ""
        parts.append(f"{address['scheme']}{address['place']}{rest}")
        end = address.end()
    parts.append(_without_folders(text[end:]))
    return "".join(parts)


def _without_folders(text: str) -> str:
    without_query = _QUERY.sub("?" + HIDDEN, text)
    return _ABSOLUTE_FOLDERS.sub("", _FILE_SCHEME.sub("", without_query))


def command_line(words: Iterable[str]) -> Iterator[str]:
    """Return a command in shareable words, and without its seed.

    The noise of DP-SGD follows from the seed.
    """
    is_seed = False
    for word in words:
        option, equals, _ = word.partition("=")
        if is_seed:
            yield HIDDEN
        elif option == "--seed" and equals:
            yield f"--seed={HIDDEN}"
        else:
            yield shareable(word)
        is_seed = word == "--seed"


def shareable_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in shareable words, and without the seed.

    Files that an audit reads are named without the folders that they lie in.
    """
    return {
        key: _shareable_value(value, is_path=key.rpartition(".")[2] in PATHS)
        for key, value in settings.items()
        if key != "seed"
    }


def _shareable_value(value: Any, *, is_path: bool) -> Any:
    if isinstance(value, str):
        text = shareable(value)
        return _RELATIVE_FOLDERS.sub("", text) if is_path else text
    if isinstance(value, Mapping):
        return {
            shareable(str(key)): _shareable_value(one, is_path=is_path)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_shareable_value(one, is_path=is_path) for one in value]
    return value
