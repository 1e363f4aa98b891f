"""The tokenizer of a checkpoint: which one, what it hashes to, which rows it uses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from spark_audit.errors import CheckpointError
from spark_audit.facts import read_regular, sha256_json

_VOCABULARIES = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")


def has_tokenizer(folder: Path | None) -> bool:
    """Whether a folder holds a whole tokenizer (a bare vocabulary is none)."""
    if folder is None or not folder.is_dir():
        return False
    if (folder / "tokenizer.json").exists():
        return True
    return (folder / "tokenizer_config.json").exists() and has_vocabulary(folder)


def has_vocabulary(folder: Path | None) -> bool:
    """Whether a folder holds vocabulary files, as TRACE saves them."""
    return folder is not None and any((folder / n).exists() for n in _VOCABULARIES)


def read_tokenizer(
    folder: Path, *, trust_remote_code: bool, where: str
) -> tuple[Any, list[str]]:
    """Load a fast tokenizer from a local folder, with notes.

    It is what ``AutoTokenizer`` gives, as in training; but some of its classes rebuild
    the tokenizer and add tokens that tokenizer.json does not have (transformers 5 does
    so for a Qwen2 model with a vocabulary of its own): then the file is read as it is.

    Raises
    ------
    CheckpointError
        If it brings code, cannot be loaded, or gives no character offsets.
    """
    import transformers

    settings = _json(folder / "tokenizer_config.json", where=where)
    if settings.get("auto_map") and not trust_remote_code:
        raise CheckpointError(
            "the tokenizer brings its own code (auto_map)",
            where=where,
            fix="read the code, then add --trust-remote-code",
        )
    try:
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
        vocabulary = _vocabulary(_json(folder / "tokenizer.json", where=where))
        if vocabulary and tokenizer.get_vocab() != vocabulary:
            plain: Any = transformers.PreTrainedTokenizerFast.from_pretrained(
                folder, local_files_only=True
            )
            if plain.get_vocab() == vocabulary:
                kind = type(tokenizer).__name__
                return plain, [f"tokenizer.json as it is: {kind} would change it"]
    except CheckpointError:
        raise
    except Exception as error:  # a missing converter, a damaged file, wrong JSON
        first = " ".join(str(error).split("\n", 1)[0].split())[:160]
        raise CheckpointError(
            f"the tokenizer cannot be loaded ({type(error).__name__}: {first})",
            where=where,
            fix="give a folder with tokenizer.json by --tokenizer",
        ) from error
    if not getattr(tokenizer, "is_fast", False):
        raise CheckpointError(
            f"{type(tokenizer).__name__} is a slow tokenizer without character offsets",
            where=where,
            fix="convert it (save_pretrained of its fast version writes "
            "tokenizer.json) and give that folder by --tokenizer",
        )
    return tokenizer, []


def _json(path: Path, *, where: str) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(read_regular(path).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name} is no JSON", where=where) from error
    return content if isinstance(content, dict) else {}


def _vocabulary(content: dict[str, Any]) -> dict[str, int]:
    """Token to id as tokenizer.json says, empty when it is of another layout."""
    listed = content.get("model", {}).get("vocab")
    if isinstance(listed, dict):
        tokens = dict(listed)
    elif isinstance(listed, list):
        tokens = {piece[0]: i for i, piece in enumerate(listed)}
    else:
        return {}
    return tokens | {t["content"]: t["id"] for t in content.get("added_tokens", ())}


def tokenizer_sha256(tokenizer: Any) -> str:
    """SHA-256 of the canonical JSON of tokenizer.json without truncation and padding.

    It is taken from the tokenizer as it was loaded, which is what ``save_pretrained``
    would write: a folder that was saved again, or whose tokenizer_config.json changes
    what is put in front of a text, hashes to what the model is really fed by.
    """
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content.pop("truncation", None)
    content.pop("padding", None)
    return sha256_json(content)


def usable_rows(tokenizer: Any, rows: int, *, where: str) -> np.ndarray:
    """Shape ``(rows,)`` bool: rows of the output head that are a token.

    Raises
    ------
    CheckpointError
        If the tokenizer has ids beyond the head.
    """
    ids = np.fromiter(set(tokenizer.get_vocab().values()), dtype=np.int64)
    if not len(ids):
        raise CheckpointError("the tokenizer's vocabulary is empty", where=where)
    if ids.max() >= rows:
        raise CheckpointError(
            f"the tokenizer has ids up to {ids.max()}, the model's head only {rows} "
            f"rows",
            where=where,
            fix="give the tokenizer the model was trained with by --tokenizer",
        )
    usable = np.zeros(rows, dtype=bool)
    usable[ids] = True
    return usable


def policy(tokenizer: Any, *, bos: int | None) -> str:
    """What ``tokenizer(text)`` adds to a text, in words.

    Parameters
    ----------
    bos
        The id that the model's configuration calls its BOS.
    """
    out = tokenizer("a", return_special_tokens_mask=True)
    fed, special = out["input_ids"], out["special_tokens_mask"]
    text_at = [i for i, added in enumerate(special) if not added] or [len(fed)]
    start, end = text_at[0], text_at[-1] + 1
    names = tokenizer.convert_ids_to_tokens
    front = " ".join(names(fed[:start])) or "nothing"
    behind = " ".join(names(fed[end:])) or "nothing"
    text = f"special tokens: {front} before a text, {behind} after it"
    if bos is not None and bos not in fed[:start]:
        text += f" (the configuration names id {bos} as BOS; the tokenizer adds none)"
    return text
