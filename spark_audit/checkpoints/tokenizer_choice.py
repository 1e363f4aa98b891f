"""Choose the tokenizer of a checkpoint: the given one, its own, or its base's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spark_audit.checkpoints.stored_checkpoint import StoredCheckpoint
from spark_audit.checkpoints.tokenizer import VOCABULARY_FILES, TokenizerRead
from spark_audit.checkpoints.untrusted import locate
from spark_audit.errors import CheckpointError


def choose_tokenizer(
    checkpoint: StoredCheckpoint, read: Callable[[Path], TokenizerRead]
) -> TokenizerRead:
    """Return the tokenizer of a checkpoint, with a note on its source.

    The checkpoint's own comes first, and then the base's. A bare vocabulary, as TRACE
    saves it, is used only if there is nothing else.

    Parameters
    ----------
    read
        :func:`~spark_audit.checkpoints.tokenizer.read_tokenizer`, or a cached form of
        it.

    Raises
    ------
    CheckpointError
        If there is none, or it cannot be loaded.
    """
    tokenizer_source = checkpoint.loading.tokenizer
    if tokenizer_source is not None:
        return _with_note(read(locate(tokenizer_source)), "tokenizer: from --tokenizer")

    # In order of preference; base and checkpoint may share a folder.
    owners = {checkpoint.folder: "the checkpoint's own"}
    if checkpoint.base_folder is not None:
        owners.setdefault(checkpoint.base_folder, "the base's")

    complete_folders: list[Path] = []
    vocabulary_folders: list[Path] = []
    for folder in owners:
        has_vocabulary = any((folder / name).exists() for name in VOCABULARY_FILES)
        has_settings = (folder / "tokenizer_config.json").exists()
        if (has_vocabulary and has_settings) or (folder / "tokenizer.json").exists():
            complete_folders.append(folder)
        elif has_vocabulary:
            vocabulary_folders.append(folder)

    if complete_folders:
        folder = complete_folders[0]
        tokenizer = read(folder)
        note = f"tokenizer: {owners[folder]}"
        if len(complete_folders) > 1:
            base_tokenizer = read(complete_folders[1])
            if base_tokenizer.sha256 != tokenizer.sha256:
                note += ", which is not the base's"
        return _with_note(tokenizer, note)

    if vocabulary_folders:
        note = "tokenizer: made from a bare vocabulary file"
        return _with_note(read(vocabulary_folders[0]), note)

    remedy = "give its base by --base, or a folder with tokenizer.json by --tokenizer"
    raise CheckpointError("has no tokenizer", fix=remedy)


def _with_note(tokenizer: TokenizerRead, note: str) -> TokenizerRead:
    """Return a tokenizer with this note in front of its own."""
    return tokenizer._replace(notes=[note, *tokenizer.notes])
