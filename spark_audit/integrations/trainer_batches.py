"""Find which identifiers have loss in the batches that a trainer feeds its model.

The first batches of a run are read as the model gets them, and their token ids are
searched for the manifest's identifiers. So a user learns early whether the trainer
masks identifiers, packs rows, or puts two BOS tokens in front.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle

from spark_audit.data.training_input import Supervision
from spark_audit.manifest.encodings import Encodings
from spark_audit.manifest.schema import Manifest

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint

STEPS = 8
"""Steps whose batches are read, unless the training is shorter **[ours]**."""

CONTEXT = 4
"""Tokens before an identifier that must also match in a batch, because a number of two
digits occurs anywhere **[ours]**."""

NO_LOSS = -100
"""Label of tokens without loss."""

HAS_LOSS: dict[Supervision, bool | None] = {
    "in the loss": True,
    "read only": False,
    "cut off": None,
}
"""Supervision of an identifier by the manifest -> whether it has loss; ``None``: the
model does not read it."""


@dataclass
class Seen:
    """Counts from a trainer's batches, which become warnings by :meth:`sentences`.

    A further count is a field here, counted in ``BatchReader._read``, with a sentence
    below.

    Attributes
    ----------
    n_batches, n_rows
        Batches, and rows of token ids in them.
    n_with_loss, n_masked, n_cut_off
        Identifiers of trained rows in the batches, by what the trainer does with them:
        it has loss on them, it masks them, or it cut them off a row of which another
        identifier is there.
    n_otherwise
        Identifiers for which the manifest says something else.
    n_packed, n_two_bos, n_without_loss
        Rows with several texts, rows that begin with two BOS tokens, and rows without
        any label.
    """

    n_batches: int = 0
    n_rows: int = 0
    n_with_loss: int = 0
    n_masked: int = 0
    n_cut_off: int = 0
    n_otherwise: int = 0
    n_packed: int = 0
    n_two_bos: int = 0
    n_without_loss: int = 0

    @property
    def n_identifiers(self) -> int:
        """Return the number of recognised identifiers."""
        return self.n_with_loss + self.n_masked + self.n_cut_off

    def sentences(self) -> Iterator[str]:
        """Yield warnings for the user; none if all is well."""
        if not self.n_batches:
            yield "the trainer hands no labels to the model: its loss was not read"
            return

        batches = f"its first {self.n_batches} batches"
        yield from self._sentences_on_identifiers(batches)

        of_rows = f"of {self.n_rows} rows in {batches}"
        if self.n_packed:
            yield f"rows are packed: {self.n_packed} {of_rows} hold several texts"
        if self.n_two_bos:
            yield f"two BOS tokens begin a text in {self.n_two_bos} {of_rows}"
        if self.n_without_loss:
            yield f"{self.n_without_loss} {of_rows} have no label at all"

    def _sentences_on_identifiers(self, batches: str) -> Iterator[str]:
        """Yield sentences on what the trainer does with the manifest's identifiers.

        Parameters
        ----------
        batches
            The batches that were read, in words.
        """
        if not self.n_identifiers:
            yield (
                f"no identifier of the manifest stands in the first {self.n_rows} rows "
                "of your trainer: are these the rows that the manifest was built from?"
            )
            return

        of_identifiers = f"of {self.n_identifiers} identifiers in {batches}"
        if self.n_masked:
            percent = 100 * self.n_masked / self.n_identifiers
            yield f"your trainer masks {percent:.0f}% {of_identifiers}"
        if self.n_cut_off:
            percent = 100 * self.n_cut_off / self.n_identifiers
            yield f"your trainer cuts off {percent:.0f}% {of_identifiers}"
        if self.n_otherwise:
            yield (
                f"the manifest says otherwise of {self.n_otherwise} {of_identifiers}: "
                "build it from the rows as the trainer prepares them"
            )


@dataclass(frozen=True)
class _Sought:
    """An identifier in a trained row of the manifest, in its form for a batch.

    Attributes
    ----------
    row
        Id of its row.
    n_tokens
        Its tokens, without those before it that must match, too.
    supervision
        Whether training has loss on it by the manifest; ``None``: not recorded.
    """

    row: str
    n_tokens: int
    supervision: Supervision | None


@dataclass
class BatchReader:
    """A reader of training batches, by a hook on the model's forward pass.

    Parameters
    ----------
    sought
        Length in tokens -> token ids, as bytes, of an identifier and the tokens before
        it -> the identifiers.
    n_identifiers_of_row
        Id of a trained row -> how many identifiers are sought in it.
    bos
        Id of the BOS token, if there is one.
    """

    sought: dict[int, dict[bytes, list[_Sought]]]
    n_identifiers_of_row: dict[str, int]
    bos: int | None
    seen: Seen = field(default_factory=Seen)
    _hook: RemovableHandle | None = None

    @classmethod
    def of(cls, manifest: Manifest, loaded: Checkpoint) -> BatchReader:
        """Return a reader for the identifiers of trained rows, canaries included."""
        sought: dict[int, dict[bytes, list[_Sought]]] = defaultdict(dict)
        n_identifiers_of_row: dict[str, int] = defaultdict(int)
        rows = [row.id for row in manifest.examples if row.split == "train"]
        for row, encoding in Encodings(manifest, loaded).encoded_examples(rows):
            for span in row.spans:
                tokens = encoding.span(span.start, span.end)
                # The identifier stands where the row was cut off.
                if tokens is None:
                    continue

                # A trainer may put other special tokens in front than the tokenizer.
                first = max(tokens.start - CONTEXT, encoding.n_leading_special)
                ids = np.asarray(encoding.ids[first : tokens.end], np.int64)
                identifier = _Sought(
                    row=row.id,
                    n_tokens=tokens.end - tokens.start,
                    supervision=row.supervision_of(span.start, span.end),
                )
                sought[len(ids)].setdefault(ids.tobytes(), []).append(identifier)
                n_identifiers_of_row[row.id] += 1

        bos = getattr(loaded.tokenizer, "bos_token_id", None)
        return cls(
            sought=dict(sought),
            n_identifiers_of_row=dict(n_identifiers_of_row),
            bos=bos,
        )

    def attach(self, model: torch.nn.Module) -> None:
        """Start to read the model's training batches."""
        self._hook = model.register_forward_pre_hook(self._forward, with_kwargs=True)

    def detach(self) -> None:
        """Stop to read batches."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    @property
    def is_attached(self) -> bool:
        """Return whether batches are being read."""
        return self._hook is not None

    def _forward(
        self,
        module: torch.nn.Module,
        args: tuple[object, ...],
        inputs: dict[str, torch.Tensor | None],
    ) -> None:
        """Read one call of the model, if it has labels and is in training."""
        ids = inputs.get("input_ids")  # (B, T)
        labels = inputs.get("labels")  # (B, T)
        if not module.training or ids is None or labels is None:
            return

        mask = inputs.get("attention_mask")  # (B, T), or of more axes
        positions = inputs.get("position_ids")  # (B, T), where rows are packed
        self.seen.n_batches += 1
        for i in range(len(ids)):
            is_text = np.ones(ids.shape[1], dtype=bool)  # (T,), what is no padding
            if mask is not None and mask.shape == ids.shape:
                is_text = mask[i].bool().cpu().numpy()

            row_positions = None
            if positions is not None and positions.shape == ids.shape:
                row_positions = positions[i].cpu().numpy()[is_text]
            self._read(
                ids[i].cpu().numpy()[is_text].astype(np.int64),
                labels[i].cpu().numpy()[is_text],
                row_positions,
            )

    def _read(
        self, ids: np.ndarray, labels: np.ndarray, positions: np.ndarray | None
    ) -> None:
        """Count the contents of one row of a batch; arrays have shape ``(T,)``."""
        seen = self.seen
        seen.n_rows += 1
        # Each with the token at which it ends.
        identifiers = [*self._identifiers(ids)]

        # Each text of a packed row begins at position 0.
        n_starts = 1 if positions is None else int(np.count_nonzero(positions == 0))
        # If positions run on, identifiers of several rows show that the row is packed.
        n_rows_mixed = len({identifier.row for identifier, _ in identifiers})
        is_packed = n_starts > 1 or n_rows_mixed > 1
        seen.n_packed += is_packed
        seen.n_two_bos += self._has_two_bos(ids)
        seen.n_without_loss += not (labels != NO_LOSS).any()

        n_found_by_row: dict[str, int] = defaultdict(int)
        for identifier, end in identifiers:
            # A label belongs to its own token, because the model shifts the labels.
            own_labels = labels[end - identifier.n_tokens : end]
            has_loss = bool((own_labels != NO_LOSS).any())

            seen.n_with_loss += has_loss
            seen.n_masked += not has_loss
            if identifier.supervision is not None:
                expected = HAS_LOSS[identifier.supervision]
                seen.n_otherwise += expected != has_loss
            n_found_by_row[identifier.row] += 1

        # In a row that is not packed, missing identifiers were cut off.
        if not is_packed:
            for row, n_found in n_found_by_row.items():
                seen.n_cut_off += max(self.n_identifiers_of_row[row] - n_found, 0)

    def _identifiers(self, ids: np.ndarray) -> Iterator[tuple[_Sought, int]]:
        """Yield the identifiers in a row of a batch, with the token at which each ends.

        An identifier of several rows is assigned to a row of which another one is
        present.
        """
        matches: list[tuple[list[_Sought], int]] = []
        for length, identifiers_by_bytes in self.sought.items():
            for end in range(length, len(ids) + 1):
                # A look-up of token ids as bytes is faster than a comparison.
                candidates = identifiers_by_bytes.get(
                    ids[end - length : end].tobytes(), []
                )
                if candidates:
                    matches.append((candidates, end))

        # A text in only one row of the manifest identifies this row.
        certain_rows: set[str] = set()
        for candidates, _ in matches:
            rows = {candidate.row for candidate in candidates}
            if len(rows) == 1:
                certain_rows |= rows

        for candidates, end in matches:
            certain = []
            for candidate in candidates:
                if candidate.row in certain_rows:
                    certain.append(candidate)
            yield (certain or candidates)[0], end

    def _has_two_bos(self, ids: np.ndarray) -> bool:
        """Return whether a BOS token follows another one."""
        if self.bos is None:
            return False
        is_bos = ids == self.bos
        return bool((is_bos[1:] & is_bos[:-1]).any())
