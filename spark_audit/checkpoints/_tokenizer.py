"""The tokenizer of a checkpoint: which one, what it hashes to, which rows it uses."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from spark_audit.checkpoints._files import check_folder
from spark_audit.errors import CheckpointError
from spark_audit.facts import read_regular, sha256_json

_GROWTH = 256
_ADDED = 64
_MOST_IDS = 1 << 24
_GIVE = "give the tokenizer that the model was trained with by --tokenizer"
_ENDLESS = re.compile(r"[*+]|\{\d*,\}")
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
        If it brings code, is a link out of the folder, cannot be loaded, or gives no
        character offsets.
    """
    import transformers

    check_folder(folder, where=where)
    settings = _json(folder / "tokenizer_config.json", where=where)
    content = _json(folder / "tokenizer.json", where=where)
    _check_growth(content, where=where)
    _check_ids(content, where=where)
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
        vocabulary = _vocabulary(content)
        if vocabulary and tokenizer.get_vocab() != vocabulary:
            plain: Any = transformers.PreTrainedTokenizerFast.from_pretrained(
                folder, local_files_only=True
            )
            if plain.get_vocab() == vocabulary:
                kind = type(tokenizer).__name__
                return plain, [f"tokenizer.json as it is: {kind} would change it"]
    except CheckpointError:
        raise
    except BaseException as error:  # a missing converter, a damaged file, wrong JSON
        # A panic of Rust is no Exception, so that nobody takes it for an error.
        if not isinstance(error, Exception) and not _panicked(error):
            raise
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


def _check_growth(content: dict[str, Any], *, where: str) -> None:
    """Refuse steps that make a text many times longer, or match without end.

    A normaliser that writes each letter twice, thirty times over, makes one letter a
    gigabyte; a template can put the text in as often.

    Raises
    ------
    CheckpointError
        With the part of tokenizer.json that does so.
    """
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        growth = 1.0
        for step in _steps(content.get(part)):
            growth *= _factor(step)
            pattern = step.get("pattern")
            if isinstance(pattern, dict) and _nests(str(pattern.get("Regex", ""))):
                raise CheckpointError(
                    f"the tokenizer's {part} repeats what repeats, which may match "
                    "without end",
                    where=where,
                    fix=_GIVE,
                )
        if growth > _GROWTH:
            raise CheckpointError(
                f"the tokenizer's {part} makes a text {growth:.3g} times as long",
                where=where,
                fix=_GIVE,
            )
    for step in _steps(content.get("post_processor")):
        pieces = [piece for piece in _items(step.get("single")) if _object(piece)]
        special = step.get("special_tokens")
        added = 0
        for piece in pieces:
            name = str(_object(piece.get("SpecialToken")).get("id"))
            added += len(_items(_object(_object(special).get(name)).get("ids")))
        if sum("Sequence" in piece for piece in pieces) > 1 or added > _ADDED:
            raise CheckpointError(
                "the tokenizer's post_processor repeats the text or adds many tokens",
                where=where,
                fix=_GIVE,
            )


def _check_ids(content: dict[str, Any], *, where: str) -> None:
    """Refuse ids that are none: every hole below the largest is written out.

    Raises
    ------
    CheckpointError
        If one is no whole number from 0, or far beyond any vocabulary.
    """
    # What is of another layout, the tokenizer's own loader refuses.
    ids: list[Any] = []
    with contextlib.suppress(
        AttributeError, IndexError, KeyError, TypeError, ValueError
    ):
        ids = [*_vocabulary(content).values()]
    if not all(type(i) is int and 0 <= i < _MOST_IDS for i in ids):
        raise CheckpointError(
            "tokenizer.json has a vocabulary that cannot be", where=where, fix=_GIVE
        )


def _panicked(error: BaseException) -> bool:
    return type(error).__name__ == "PanicException"


def _steps(part: Any) -> list[dict[str, Any]]:
    """The steps of a part of tokenizer.json, sequences of sequences unfolded."""
    waiting, found = [part], []
    while waiting:
        step = waiting.pop()
        if isinstance(step, dict):
            found.append(step)
            for key in ("normalizers", "pretokenizers", "decoders", "processors"):
                waiting += _items(step.get(key))
    return found


def _factor(step: dict[str, Any]) -> float:
    """How many times as long one step can make a text."""
    put, pattern = step.get("content"), _object(step.get("pattern"))
    if step.get("type") == "Replace" and isinstance(put, str):
        replaced = pattern.get("String")
        if isinstance(replaced, str) and replaced:
            return max(1.0, len(put) / len(replaced))
        # An expression may match nothing, before and behind every letter.
        return 1.0 + len(put)
    before = step.get("prepend")
    return max(1.0, len(before) / 4) if isinstance(before, str) else 1.0


def _nests(pattern: str) -> bool:
    """Whether a group that repeats without limit holds one that does."""
    # What a class or an escape stands for is one letter.
    plain = re.sub(r"\\[pP]\{[^}]*\}|\\.|\[\^?\]?[^\]]*\]", "x", pattern)
    endless = [False]
    for at, letter in enumerate(plain):
        if letter == "(":
            endless.append(False)
            continue
        inner = endless.pop() if letter == ")" and len(endless) > 1 else False
        repeats = _ENDLESS.match(plain, at + 1) is not None
        if inner and repeats:
            return True
        endless[-1] |= inner or (repeats and letter != "(")
    return False


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


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
