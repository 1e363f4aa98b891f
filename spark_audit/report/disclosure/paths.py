r"""Commands, sources and settings without what they tell of a machine or an account.

Of a path that leaves the working directory only the last name is shown; of the options
in ``FILE_OPTIONS``, of any path. Files of ``HIDDEN_FILE_OPTIONS`` have no name at all,
since one of them may be named after a person. Of an address, neither its user nor what
stands behind its path is shown: queries carry keys and signatures.

A path leaves the working directory if it begins as one of these:

=========================  ==============================================
``/``, ``\``               the root, of this drive on Windows
``\\SERVER\SHARE\``        a folder of another machine
``C:\``, ``C:``            a drive, at its root or where it stands now
``\\?\C:\``, ``/C:/``      a drive, as Windows and ``file:`` spell it
``~/``, ``~NAME/``         somebody's home
``$HOME/``, ``%HOME%\``    what a shell's variable names
``../``, ``runs/../``      a folder above
``file:``                  any of them
=========================  ==============================================

``shared.py`` calls :func:`shareable` and the two functions behind it. A further
beginning of a path is a line of this table and of ``_ROOT``; a further scheme of
addresses is an item of :data:`WEB_SCHEMES`; an audit's option that is a file name, one
of :data:`FILE_OPTIONS` or of :data:`HIDDEN_FILE_OPTIONS`. Pieces such as ``_ROOT`` are
put together in verbose expressions: blanks in them mean nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "..."
"""Replaces omitted values in a command."""

FILE_OPTIONS = ("scores_file", "scores_rows", "by")
"""Options of audits that are file names."""

HIDDEN_FILE_OPTIONS = ("forget",)
"""Options of audits whose files may be named after persons: who asked for erasure."""

SHOWN_VALUES = ("task=", "stage=")
"""Beginnings of values of :data:`HIDDEN_FILE_OPTIONS` that are no files."""

WEB_SCHEMES = ("https?", "wss?", "ftps?", "sftp", "ssh", "git", "hf", "s3", "gs", "az")
"""Schemes, as expressions, of addresses whose path may be shown. Others are none:
``mine://home/anna`` is a path behind a label, ``C://Users`` one of Windows."""

_DRIVE = r"[A-Za-z]:"
"""A drive of Windows, without the separator behind it."""

_VARIABLE = r"(?: %[^%\s/\\]+% | \$\{[^}\n]*\} | \$\([^)\n]*\) | \$[A-Za-z_][\w:]* )"
"""A variable of a shell: ``%NAME%``, ``${NAME}``, ``$(COMMAND)`` or ``$NAME``."""

_ROOT = rf"""(?:
    (?: {_DRIVE} )? [/\\]+ (?: [?.]{{1,2}} [/\\]+ )? (?: {_DRIVE} [/\\]* )?
  | (?: ~[\w.-]* | {_VARIABLE} ) [/\\]+
  | (?: (?!-) [^/\\\s:=,;|"'`<>()\[\]{{}}]* [/\\]+ )* \.\. [/\\]+
)"""
"""The beginning of a path that leaves the working directory, and its separator: a root,
a server or a drive; a home or a variable; a folder above."""

_OTHER_PATH = rf"(?: {_ROOT} | [\w.+-]+= )"
"""The beginning of another path in a list: its root or its label, as ``NAME=``."""

_FOLDER = rf"""(?:
    (?: [^/\\\n:=,;] | [:=,;] (?! {_OTHER_PATH} ) )* [/\\]
)"""
"""A folder's name and a separator. A colon, a comma, a semicolon or an equals sign may
stand in the name, unless another path begins behind it."""

_NOT_INSIDE_A_NAME = r"(?<! [\w./\\~] ) (?<! \w- )"
"""Before a path stands no letter, no other part of a path and no hyphen of a name.
The minus of ``NAME=-FILE`` is none of a name."""

_LABEL_OF_CHECKPOINT = r"(?: [\w.+-]+= [^\\]* $ )"
r"""Behind a name of one letter, as in ``a:CHECKPOINT=runs/x``: that is no drive. Where
a backslash follows, it is read as a folder's name (``C:a=b\x``)."""

_BEHIND_SHORT_OPTION = r"(?: (?<= ^-\w ) | (?<= \s-\w ) )"
"""The value of a short option may follow without a blank: ``-o/srv/out``."""

_OUTSIDE_FOLDERS = re.compile(
    rf"""
    (?: {_NOT_INSIDE_A_NAME} | {_BEHIND_SHORT_OPTION} )
    (?: {_ROOT} {_FOLDER}*
      | {_DRIVE} (?! \s | {_LABEL_OF_CHECKPOINT} ) {_FOLDER}+   # from where it stands
    )
    (?= [^/\\] )                                                # the last name stays
    """,
    re.VERBOSE,
)
"""Folders of a path that leaves the working directory."""

_RELATIVE_FOLDERS = re.compile(
    rf"{_NOT_INSIDE_A_NAME} (?!-) (?: [^/\\\n:=,;]* [/\\] )+ (?= [^/\\] )", re.VERBOSE
)
"""Folders of a path, wherever it begins."""

_FILE_SCHEME = re.compile(r"(?<![\w.+])(?<!\w-)file:(?=[\w/\\~.%$])", re.IGNORECASE)
"""The scheme of an address that is a path. Prose has a blank behind its colon."""

_SCHEME = rf"(?: (?: {'|'.join(WEB_SCHEMES)} ):// )"

_PATH_BEHIND_ADDRESS = rf"""(?:
    [,|"'`<>()\[\]{{}}]+ (?: [\w.+-]+= )? (?: {_ROOT} | {_DRIVE} | file: | {_SCHEME} )
  | (?<! http ) (?<! https ) : (?: {_ROOT} | {_DRIVE} | file: )
)"""
"""A path or an address that follows an address in a list, perhaps with a label."""

_WEB_ADDRESS = re.compile(
    rf"""
    (?P<scheme> \b {_SCHEME} )
    (?= [^\s/\\] )                    # a host: without one it is a path
    (?: [^/\n]*@ )?                   # a user; passwords may hold an @
    (?P<host_and_path> (?: (?! {_PATH_BEHIND_ADDRESS} ) [^\s?#;] )* )
    (?P<rest> [?#;].* )?              # nothing tells where a query ends
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""An address: scheme, perhaps a user, host with path, perhaps a query or a fragment.
All behind the beginning of a query is left out."""

_USER = re.compile(r"(?<=://)[^/\\\s]*@")
"""The user of an address of any other scheme, as ``redis://NAME:PASSWORD@HOST``."""

_QUERY = re.compile(r"\?[^\s?=]*=.*")
"""A query behind anything else, as ``hf:ORG/NAME?token=...``."""


def shareable(text: str) -> str:
    r"""Return text whose paths are names and whose addresses have no user and no query.

    >>> shareable("mine=/home/anna/clinic/runs/mine@2")
    'mine=mine@2'
    >>> shareable(r"mine:C:\Users\anna\mine,\\server\clinic\base,%USERPROFILE%\x")
    'mine:mine,base,x'
    >>> shareable("file:///home/anna/base"), shareable("file:///C:/Users/anna/base")
    ('base', 'base')
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
    """Return text without web addresses, its paths as names, with no user or query."""
    text = _QUERY.sub(f"?{HIDDEN}", text)
    text = _USER.sub("", text)
    # Behind file: every path is absolute, as behind a separator.
    text = _FILE_SCHEME.sub("/", text)
    return _OUTSIDE_FOLDERS.sub("", text)


def shareable_command(words: Iterable[str]) -> list[str]:
    """Return a command in shareable words, without its seed and some names of files.

    The noise of DP-SGD follows from the seed, so knowing it would allow removing the
    noise. Files of :data:`HIDDEN_FILE_OPTIONS` may be named after a person.
    """
    shown = []
    option = ""  # whose values the next words are
    for word in words:
        if option == "--seed":
            shown.append(HIDDEN)
            option = ""
            continue

        if not word.startswith("-"):
            is_hidden = _is_hidden_file(option, word)
            shown.append(HIDDEN if is_hidden else shareable(word))
            continue

        option, equals, value = word.partition("=")
        is_hidden = option == "--seed" or _is_hidden_file(option, value)
        if equals and is_hidden:
            shown.append(f"{option}={HIDDEN}")
        else:
            shown.append(shareable(word))
        if equals:
            option = ""
    return shown


def _is_hidden_file(option: str, value: str) -> bool:
    """Return whether a value of an option is a file whose name is not shown."""
    is_hidden = option.removeprefix("--") in HIDDEN_FILE_OPTIONS
    return is_hidden and not value.startswith(SHOWN_VALUES)


def shareable_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in shareable words, and without the seed.

    Files that an audit reads are named without the folders that they lie in, or not at
    all (:data:`HIDDEN_FILE_OPTIONS`).
    """
    shown = {}
    for key, value in settings.items():
        if key == "seed":
            continue
        _, _, option = key.rpartition(".")
        if option in HIDDEN_FILE_OPTIONS and isinstance(value, list | tuple):
            shown[key] = [
                HIDDEN if _is_hidden_file(option, str(item)) else shareable(str(item))
                for item in value
            ]
        else:
            shown[key] = _shareable_value(value, is_path=option in FILE_OPTIONS)
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
