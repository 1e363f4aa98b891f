"""Read tokenizers from folders, hash them, and compare them with a head's rows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spark_audit.checkpoints import untrusted
from spark_audit.checkpoints.tokenizer_content import (
    GIVE_TOKENIZER,
    check_content,
    vocabulary_of,
)
from spark_audit.checkpoints.tokenizer_trial import failure_in_trial
from spark_audit.errors import CheckpointError, is_rust_panic, shown
from spark_audit.provenance import sha256_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Settings files beside tokenizer.json that add tokens.
_SETTINGS_FILES = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
VOCABULARY_FILES = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
"""Files that a tokenizer without tokenizer.json is made from."""

# A quoted part of a library's error may be a token, and so text of the data.
_QUOTED = re.compile(r"""([`'"]).*(?:\1|$)""", re.DOTALL)


class TokenizerRead(NamedTuple):
    """A tokenizer, its hash, and notes on how it was read."""

    tokenizer: PreTrainedTokenizerFast
    sha256: str
    notes: list[str]


def read_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> TokenizerRead:
    """Load a fast tokenizer from a local folder.

    The result is that of ``AutoTokenizer``, as in training. But some of its classes
    rebuild the tokenizer and add tokens that tokenizer.json lacks (transformers 5 does
    so for a Qwen2 model with its own vocabulary). Then the file is read as it is.

    Raises
    ------
    CheckpointError
        If it brings code, is a link out of the folder, cannot be loaded, or gives no
        character offsets.
    """
    untrusted.check_folder(folder)
    content = _json_if_there(folder / "tokenizer.json")
    settings_files = [_json_if_there(folder / name) for name in _SETTINGS_FILES]

    # Dangers are looked for before a library opens these files.
    check_content(content, settings_files)
    if content:
        failure = failure_in_trial(folder / "tokenizer.json")
        if failure is not None:
            raise _unloadable(failure)

    names = ("tokenizer.json", *_SETTINGS_FILES, *VOCABULARY_FILES)
    if not any((folder / name).exists() for name in names):
        raise CheckpointError(
            "has no tokenizer", fix="give a folder with tokenizer.json by --tokenizer"
        )

    settings = settings_files[0]
    if settings.get("auto_map") and not trust_remote_code:
        remedy = "read the code, then add --trust-remote-code"
        raise CheckpointError(
            "the tokenizer brings its own code (auto_map)", fix=remedy
        )

    try:
        tokenizer, notes = _load(folder, content, trust_remote_code=trust_remote_code)
    except BaseException as error:  # a missing converter, a damaged file, wrong JSON
        if not isinstance(error, Exception) and not is_rust_panic(error):
            raise
        raise _unloadable(f"{type(error).__name__}: {error}") from error

    if not getattr(tokenizer, "is_fast", False):
        problem = f"{type(tokenizer).__name__} is slow: it gives no character offsets"
        remedy = "give a folder that its fast version has saved by --tokenizer"
        raise CheckpointError(problem, fix=remedy)

    return TokenizerRead(tokenizer, tokenizer_sha256(tokenizer), notes)


def _json_if_there(path: Path) -> dict[str, object]:
    """Return the JSON object of a file; empty if there is no file."""
    if not path.exists():
        return {}
    return untrusted.read_json(path, most=untrusted.WORDS_BYTES)


def _load(
    folder: Path, content: dict[str, object], *, trust_remote_code: bool
) -> tuple[PreTrainedTokenizerFast, list[str]]:
    """Load a tokenizer with transformers; return it with notes.

    Parameters
    ----------
    content
        Content of tokenizer.json.
    """
    import transformers

    notes: list[str] = []
    tokenizer: PreTrainedTokenizerFast = transformers.AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=trust_remote_code
    )
    vocabulary = vocabulary_of(content)
    if vocabulary and tokenizer.get_vocab() != vocabulary:
        # Its class has changed it, while the plain class takes the file as it is.
        plain: PreTrainedTokenizerFast = (
            transformers.PreTrainedTokenizerFast.from_pretrained(
                folder, local_files_only=True
            )
        )
        if plain.get_vocab() == vocabulary:
            class_name = type(tokenizer).__name__
            notes = [f"tokenizer.json as it is: {class_name} would change it"]
            tokenizer = plain

    if getattr(tokenizer, "is_fast", False):
        # Some settings are read only with the first text.
        ids = tokenizer("a", return_special_tokens_mask=True)["input_ids"]
        if None in tokenizer.convert_ids_to_tokens(ids):
            raise ValueError("it adds ids that are no tokens")
    return tokenizer, notes


def _unloadable(reason: str) -> CheckpointError:
    """Return the error about a tokenizer, without quoted parts of its reason."""
    return CheckpointError(
        f"the tokenizer cannot be loaded ({shown(_QUOTED.sub('...', reason))})",
        fix="give a folder with tokenizer.json by --tokenizer",
    )


def tokenizer_sha256(tokenizer: PreTrainedTokenizerFast) -> str:
    """Return SHA-256 of the canonical tokenizer.json, without truncation and padding.

    It is taken from the loaded tokenizer, which ``save_pretrained`` would write. So the
    hash describes the actual input of the model, even if the folder was saved again, or
    if tokenizer_config.json changes what is put in front of a text.
    """
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content.pop("truncation", None)
    content.pop("padding", None)
    return sha256_json(content)


def sha256_without_tokens(tokenizer: PreTrainedTokenizerFast, ids: set[int]) -> str:
    """Return the hash of a tokenizer as :func:`tokenizer_sha256`, without added tokens.

    Parameters
    ----------
    ids
        Ids of the tokens to leave out; those of its own vocabulary stay.
    """
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content.pop("truncation", None)
    content.pop("padding", None)
    listed = content.get("added_tokens") or []
    content["added_tokens"] = [token for token in listed if token["id"] not in ids]
    return sha256_json(content)


def usable_rows(tokenizer: PreTrainedTokenizerFast, rows: int) -> np.ndarray:
    """Return which rows of the output head are tokens: shape ``(rows,)``, bool.

    Raises
    ------
    CheckpointError
        If the tokenizer has ids beyond the head.
    """
    ids = np.fromiter(set(tokenizer.get_vocab().values()), dtype=np.int64)  # (tokens,)
    if not len(ids):
        raise CheckpointError("the tokenizer's vocabulary is empty")

    if ids.max() >= rows:
        problem = (
            f"the tokenizer has ids up to {ids.max()}, the model's head only {rows} "
            "rows"
        )
        remedy = (
            f"{GIVE_TOKENIZER}, the adapter's base by --base, or, if its vocabulary "
            "has grown since, an adapter that was saved with "
            "save_embedding_layers=True"
        )
        raise CheckpointError(problem, fix=remedy)
    return np.isin(np.arange(rows), ids)
