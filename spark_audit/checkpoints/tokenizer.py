"""The tokenizer of a checkpoint: which one, what it hashes to, which rows it uses."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from spark_audit.checkpoints import untrusted
from spark_audit.errors import CheckpointError, panicked, shown
from spark_audit.files import sha256_file
from spark_audit.provenance import sha256_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Read = tuple["PreTrainedTokenizerFast", str, list[str]]
"""A tokenizer, its hash, and notes of how it was read."""
_GROWTH = 256
_ADDED = 64
_MOST_IDS = 1 << 24
_GIVE = "give the tokenizer that the model was trained with by --tokenizer"
# What a library's error quotes can be a token, which may be text of the data.
_QUOTED = re.compile(r"""([`'"]).*(?:\1|$)""", re.DOTALL)
_ENDLESS = re.compile(r"[*+]|\{\d*,\}")
_TRY_BYTES = 1 << 31
_TRY_SECONDS = 20
# Isolated (-I): what lies in the working directory or is named by variables is not run.
_TRY = """
import contextlib, resource, sys
sys.path.append(sys.argv[2])
from tokenizers import Tokenizer
with contextlib.suppress(Exception):
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[3]),) * 2)
with contextlib.suppress(Exception):
    tokenizer = Tokenizer.from_file(sys.argv[1])
    tokenizer.no_truncation()
    tokenizer.no_padding()
    every_letter = "".join(map(chr, [*range(1, 600), *range(0x2190, 0x2200)]))
    # What a pattern may repeat: words, and one letter many times.
    prose = "the quick brown fox jumps over the lazy dog and waits for an answer "
    mixed = "Mr. O'Neil paid $1,234.50 (20%) on 2004-10-12; call +1 212 555 0147! "
    runs = ("a", "A", "1", " ", "\\n", "-", "aA", "a1", "a ", "a, ", "\\u4e16")
    texts = ["a", " ", every_letter, prose * 20, prose.upper() * 20, mixed * 20]
    texts += [run * 200 for run in runs]
    for text in texts:
        tokenizer.decode(tokenizer.encode(text + "\\u4e16\\U0001f600 </s>").ids)
"""
_tried: set[str] = set()
"""Files of tokenizers that a process of its own has loaded, by their bytes."""
_TOKEN_FILES = ("special_tokens_map.json", "added_tokens.json")
_TOKEN = {
    "content",
    "single_word",
    "lstrip",
    "rstrip",
    "normalized",
    "special",
    "__type",
}


def read_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> Read:
    """Load a fast tokenizer from a local folder.

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

    untrusted.check_folder(folder)
    settings, content, *others = (
        untrusted.read_json(folder / name, most=untrusted.WORDS_BYTES)
        if (folder / name).exists()
        else {}
        for name in ("tokenizer_config.json", "tokenizer.json", *_TOKEN_FILES)
    )
    _check_content(content, settings, *others)
    if content:
        _try_apart(folder / "tokenizer.json")
    if settings.get("auto_map") and not trust_remote_code:
        fix = "read the code, then add --trust-remote-code"
        raise CheckpointError("the tokenizer brings its own code (auto_map)", fix=fix)
    notes: list[str] = []
    try:
        tokenizer: PreTrainedTokenizerFast = transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
        vocabulary = vocabulary_of(content)
        if vocabulary and tokenizer.get_vocab() != vocabulary:
            plain: PreTrainedTokenizerFast = (
                transformers.PreTrainedTokenizerFast.from_pretrained(
                    folder, local_files_only=True
                )
            )
            if plain.get_vocab() == vocabulary:
                kind = type(tokenizer).__name__
                tokenizer = plain
                notes = [f"tokenizer.json as it is: {kind} would change it"]
        if fast := getattr(tokenizer, "is_fast", False):
            # Some settings are looked at with the first text.
            fed = tokenizer("a", return_special_tokens_mask=True)["input_ids"]
            if None in tokenizer.convert_ids_to_tokens(fed):
                raise ValueError("it adds ids that are no tokens")
    except BaseException as error:  # a missing converter, a damaged file, wrong JSON
        if not isinstance(error, Exception) and not panicked(error):
            raise
        raise _unloadable(f"{type(error).__name__}: {error}") from error
    if not fast:
        what = f"{type(tokenizer).__name__} is slow: it gives no character offsets"
        fix = "give a folder that its fast version has saved by --tokenizer"
        raise CheckpointError(what, fix=fix)
    return tokenizer, tokenizer_sha256(tokenizer), notes


def _unloadable(why: str) -> CheckpointError:
    return CheckpointError(
        f"the tokenizer cannot be loaded ({shown(_QUOTED.sub('...', why))})",
        fix="give a folder with tokenizer.json by --tokenizer",
    )


def _try_apart(path: Path) -> None:
    """Load and use tokenizer.json in a process of its own first.

    Some files make the library, which is Rust, end the whole process, take all memory,
    or print what no error can hold back.

    Raises
    ------
    CheckpointError
        If that process does not come to its end. An ordinary error is for later.
    """
    import tokenizers

    home = str(Path(tokenizers.__file__).parents[1])
    if (digest := sha256_file(path)) in _tried or not sys.executable:
        return
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _TRY, str(path), home, str(_TRY_BYTES)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TRY_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise _unloadable(f"it takes more than {_TRY_SECONDS} s") from error
    if done.returncode:
        panic = re.search(r"PanicException: (.*)", done.stderr.decode(errors="replace"))
        why = panic[1] if panic else "it ends the process that loads it"
        raise _unloadable(why)
    _tried.add(digest)


def _check_content(content: dict[str, object], *others: dict[str, object]) -> None:
    """Refuse a tokenizer.json, and the files beside it, that would do harm.

    A token of other fields is refused, as a library prints their names as they stand;
    ids that are none, as every hole below the largest is written out; and steps that
    make a text many times longer, or match without end. A normaliser that writes each
    letter twice, thirty times over, makes one letter a gigabyte; a template can put the
    text in as often.

    Raises
    ------
    CheckpointError
        With what does so.
    """
    odd, endless, growth, added, single = False, False, 1.0, 0, Counter[str]()
    for token in untrusted.objects([*others]):
        odd |= isinstance(token.get("content"), str) and not token.keys() <= _TOKEN
    parts = ("normalizer", "pre_tokenizer", "decoder")
    for step in untrusted.objects([*map(content.get, parts)]):
        endless = endless or ("Regex" in step and _nests(str(step["Regex"])))
        growth *= _factor(step)
    for step in untrusted.objects(content.get("post_processor")):
        put = step.get("ids")
        added += len(put) if isinstance(put, list) else 0
        for inner in untrusted.objects(step.get("single")):
            single.update(inner.keys())
    ids: Iterable[object] = ()
    # What is of another layout, the tokenizer's own loader refuses.
    with contextlib.suppress(AttributeError, LookupError, TypeError, ValueError):
        ids = vocabulary_of(content).values()
    usual = all(type(i) is int and 0 <= i < _MOST_IDS for i in ids)
    for wrong, what in (
        (odd, f"has a token of other fields than {', '.join(sorted(_TOKEN))}"),
        (endless, "repeats what repeats, which may match without end"),
        (growth > _GROWTH, f"makes a text {growth:.3g} times as long"),
        (single["Sequence"] > 1, "repeats the text"),
        (added * single["SpecialToken"] > _ADDED, "adds many tokens"),
        (not usual, "has a vocabulary that cannot be"),
    ):
        if wrong:
            raise CheckpointError(f"the tokenizer {what}", fix=_GIVE)


def _factor(step: dict[str, object]) -> float:
    """How many times as long one step can make a text."""
    put, before = step.get("content"), step.get("prepend")
    if step.get("type") == "Replace" and isinstance(put, str):
        replaced = dict(untrusted.walk(step.get("pattern"))).get("String")
        if isinstance(replaced, str) and replaced:
            return max(1.0, len(put) / len(replaced))
        # An expression may match nothing, before and behind every letter.
        return 1.0 + len(put)
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


def vocabulary_of(content: dict[str, object]) -> dict[str, int]:
    """Token to id as tokenizer.json says, empty when it is of another layout."""
    model = content.get("model")
    listed = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(listed, dict):
        tokens = dict(listed)
    elif isinstance(listed, list):
        tokens = {piece[0]: i for i, piece in enumerate(listed)}
    else:
        return {}
    added_tokens = content.get("added_tokens")
    if isinstance(added_tokens, list):
        tokens |= {token["content"]: token["id"] for token in added_tokens}
    return tokens


def tokenizer_sha256(tokenizer: PreTrainedTokenizerFast) -> str:
    """SHA-256 of the canonical JSON of tokenizer.json without truncation and padding.

    It is taken from the tokenizer as it was loaded, which is what ``save_pretrained``
    would write: a folder that was saved again, or whose tokenizer_config.json changes
    what is put in front of a text, hashes to what the model is really fed by.
    """
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content.pop("truncation", None)
    content.pop("padding", None)
    return sha256_json(content)


def usable_rows(tokenizer: PreTrainedTokenizerFast, rows: int) -> np.ndarray:
    """Shape ``(rows,)`` bool: rows of the output head that are a token.

    Raises
    ------
    CheckpointError
        If the tokenizer has ids beyond the head.
    """
    ids = np.fromiter(set(tokenizer.get_vocab().values()), dtype=np.int64)
    if not len(ids):
        raise CheckpointError("the tokenizer's vocabulary is empty")
    if ids.max() >= rows:
        what = f"the tokenizer has ids up to {ids.max()}, the model's head only {rows}"
        fix = f"{_GIVE}, the adapter's base by --base, or, if its vocabulary has grown "
        fix += "since, an adapter that was saved with save_embedding_layers=True"
        raise CheckpointError(f"{what} rows", fix=fix)
    return np.isin(np.arange(rows), ids)
