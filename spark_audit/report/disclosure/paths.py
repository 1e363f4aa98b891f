"""Commands, sources and settings without what they tell of a machine or an account.

Of a path only its last name is shown. Of an address, neither its user nor what stands
behind its path is shown: queries carry keys and signatures.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "..."
"""Stands for what is left out of a command."""

PATHS = ("scores_file", "scores_rows")
"""Options of audits that name files."""

_WEB_ADDRESS = re.compile(
    r"(?P<scheme>\b(?!file:)[A-Za-z][\w+.-]*://)(?:[^/\n@]*@)?"
    r"(?P<host_and_path>[^\s?#;]*)(?P<rest>[?#;].*)?"
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
    pieces: list[str] = []
    end_of_last = 0
    for address in _WEB_ADDRESS.finditer(text):
        pieces.append(_without_folders(text[end_of_last : address.start()]))

        query = f"?{HIDDEN}" if address["rest"] else ""
        pieces.append(f"{address['scheme']}{address['host_and_path']}{query}")
        end_of_last = address.end()
    pieces.append(_without_folders(text[end_of_last:]))
    return "".join(pieces)


def _without_folders(text: str) -> str:
    """Return text without web addresses whose paths are names."""
    text = _QUERY.sub(f"?{HIDDEN}", text)
    text = _FILE_SCHEME.sub("", text)
    return _ABSOLUTE_FOLDERS.sub("", text)


def shareable_command(words: Iterable[str]) -> list[str]:
    """Return a command in shareable words, and without its seed.

    The noise of DP-SGD follows from the seed: who knows it could take the noise out.
    """
    shown = []
    is_seed = False
    for word in words:
        option, equals, _ = word.partition("=")
        if is_seed:
            shown.append(HIDDEN)
        elif option == "--seed" and equals:
            shown.append(f"--seed={HIDDEN}")
        else:
            shown.append(shareable(word))
        # The value of the option is the next word.
        is_seed = word == "--seed"
    return shown


def shareable_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in shareable words, and without the seed.

    Files that an audit reads are named without the folders that they lie in.
    """
    shown = {}
    for key, value in settings.items():
        if key != "seed":
            _, _, option = key.rpartition(".")
            shown[key] = _shareable_value(value, is_path=option in PATHS)
    return shown


def _shareable_value(value: Any, *, is_path: bool) -> Any:
    """Return a value of a setting in shareable words, with all that is inside it.

    Parameters
    ----------
    is_path
        Whether text is a path, so that relative folders are left out, too.
    """
    if isinstance(value, str):
        text = shareable(value)
        return _RELATIVE_FOLDERS.sub("", text) if is_path else text
    if isinstance(value, Mapping):
        shown = {}
        for key, content in value.items():
            shown[shareable(str(key))] = _shareable_value(content, is_path=is_path)
        return shown
    if isinstance(value, list | tuple):
        return [_shareable_value(item, is_path=is_path) for item in value]
    return value
