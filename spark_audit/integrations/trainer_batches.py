"""What a trainer feeds its model: which identifiers have loss in its own batches.

The first batches of a run are read as the model gets them, and the identifiers of the
manifest are looked for in their token ids. So it is seen before the training is over
that a trainer masks them, packs rows, or puts two BOS tokens in front.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.sequences import Encodings

STEPS = 8
"""Steps whose batches are read, unless all of training is shorter **[ours]**."""
CONTEXT = 4
"""Tokens before an identifier that must stand before it in a batch, too: a number of
two digits is found anywhere **[ours]**."""
NO_LOSS = -100
"""Label of tokens without loss."""


@dataclass
class Seen:
    """What was seen in a trainer's batches.

    Attributes
    ----------
    n_batches, n_rows
        Batches, and rows of token ids in them.
    n_with_loss, n_masked, n_cut_off
        Identifiers of the manifest's trained rows in them, by what the trainer does:
        it has loss on them, masks them, or cut them off a row of which it kept another
        identifier.
    n_otherwise
        Those of which the manifest says otherwise.
    n_packed, n_two_bos, n_without_loss
        Rows that hold several texts, that begin with two BOS tokens, and without any
        label.
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
        """Identifiers that were recognised."""
        return self.n_with_loss + self.n_masked + self.n_cut_off

    def sentences(self) -> Iterator[str]:
        """What a user must know before the training goes on; nothing if all is well."""
        if not self.n_batches:
            yield "the trainer hands no labels to the model: its loss was not read"
            return
        batches = f"its first {self.n_batches} batches"
        of_all = f"of {self.n_identifiers} identifiers in {batches}"
        if not self.n_identifiers:
            yield (
                f"no identifier of the manifest stands in the first {self.n_rows} rows "
                "of your trainer: are these the rows that the manifest was built from?"
            )
        if self.n_masked:
            share = 100 * self.n_masked / self.n_identifiers
            yield f"your trainer masks {share:.0f}% {of_all}"
        if self.n_cut_off:
            share = 100 * self.n_cut_off / self.n_identifiers
            yield f"your trainer cuts off {share:.0f}% {of_all}"
        if self.n_otherwise:
            yield (
                f"the manifest says otherwise of {self.n_otherwise} {of_all}: build it "
                "from the rows as the trainer prepares them"
            )
        of_rows = f"of {self.n_rows} rows in {batches}"
        if self.n_packed:
            yield f"rows are packed: {self.n_packed} {of_rows} hold several texts"
        if self.n_two_bos:
            yield f"two BOS tokens begin a text in {self.n_two_bos} {of_rows}"
        if self.n_without_loss:
            yield f"{self.n_without_loss} {of_rows} have no label at all"


@dataclass(frozen=True)
class _Sought:
    """An identifier in a trained row of the manifest, as it stands in a batch."""

    row: str
    n_tokens: int
    supervision: str | None


@dataclass
class BatchReader:
    """Reads the batches that a model is trained with, by a hook on its forward pass.

    Parameters
    ----------
    sought
        Token ids of an identifier and what stands before it, as bytes, by their
        length -> the identifiers.
    of_row
        Trained row -> its identifiers.
    bos
        Id of the BOS token, if there is one.
    """

    sought: dict[int, dict[bytes, list[_Sought]]]
    of_row: dict[str, int]
    bos: int | None
    seen: Seen = field(default_factory=Seen)
    _hook: Any = None

    @classmethod
    def of(cls, manifest: Manifest, loaded: Any) -> BatchReader:
        """Return a reader of the identifiers of trained rows, canaries' among them."""
        sought: dict[int, dict[bytes, list[_Sought]]] = defaultdict(dict)
        of_row: dict[str, int] = defaultdict(int)
        rows = [row.id for row in manifest.examples if row.split == "train"]
        for row, encoding in Encodings(manifest, loaded).each(rows):
            for span in row.spans:
                tokens = encoding.span(span.start, span.end)
                if tokens is None:
                    continue
                first = max(tokens.start - CONTEXT, encoding.leading)
                ids = np.asarray(encoding.ids[first : tokens.end], np.int64)
                state = row.supervision_of(span.start, span.end)
                one = _Sought(row.id, tokens.end - tokens.start, state)
                sought[len(ids)].setdefault(ids.tobytes(), []).append(one)
                of_row[row.id] += 1
        bos = getattr(loaded.tokenizer, "bos_token_id", None)
        return cls(dict(sought), dict(of_row), bos)

    def attach(self, model: Any) -> None:
        """Begin to read what the model is trained with."""
        self._hook = model.register_forward_pre_hook(self._forward, with_kwargs=True)

    def detach(self) -> None:
        """Read no further batches."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    @property
    def is_attached(self) -> bool:
        """Whether batches are read."""
        return self._hook is not None

    def _forward(self, module: Any, args: Any, given: dict[str, Any]) -> None:
        """Read one call of the model that has labels, in training."""
        ids, labels = given.get("input_ids"), given.get("labels")
        if not module.training or ids is None or labels is None:
            return
        mask, places = given.get("attention_mask"), given.get("position_ids")
        self.seen.n_batches += 1
        for i in range(len(ids)):
            kept = np.ones(ids.shape[1], dtype=bool)
            if mask is not None and mask.shape == ids.shape:
                kept = mask[i].bool().cpu().numpy()
            own = ids[i].cpu().numpy()[kept].astype(np.int64)
            own_labels = labels[i].cpu().numpy()[kept]
            own_places = None
            if places is not None and places.shape == ids.shape:
                own_places = places[i].cpu().numpy()[kept]
            self._read(own, own_labels, own_places)

    def _read(
        self, ids: np.ndarray, labels: np.ndarray, places: np.ndarray | None
    ) -> None:
        """Count what one row of a batch holds; arrays of shape ``(T,)``."""
        seen = self.seen
        seen.n_rows += 1
        found = [*self._identifiers(ids)]
        n_starts = 1 if places is None else int(np.count_nonzero(places == 0))
        # Identifiers of several rows tell it where positions run on.
        is_packed = n_starts > 1 or len({one.row for one, _ in found}) > 1
        seen.n_packed += is_packed
        seen.n_two_bos += self._has_two_bos(ids)
        seen.n_without_loss += not (labels != NO_LOSS).any()

        counts: dict[str, int] = defaultdict(int)
        for one, end in found:
            has_loss = bool((labels[end - one.n_tokens : end] != NO_LOSS).any())
            seen.n_with_loss += has_loss
            seen.n_masked += not has_loss
            told = {"in the loss": True, "read only": False, "cut off": None}
            if one.supervision is not None:
                seen.n_otherwise += told[one.supervision] != has_loss
            counts[one.row] += 1
        if not is_packed:
            for row, count in counts.items():
                seen.n_cut_off += max(self.of_row[row] - count, 0)

    def _identifiers(self, ids: np.ndarray) -> Iterator[tuple[_Sought, int]]:
        """Identifiers in a row of a batch, and the tokens behind which each ends.

        One that several rows hold is taken for that of a row that holds another one.
        """
        found: list[tuple[Sequence[_Sought], int]] = []
        for length, known in self.sought.items():
            for end in range(length, len(ids) + 1):
                if one := known.get(ids[end - length : end].tobytes()):
                    found.append((one, end))
        certain = {own[0].row for own, _ in found if len({one.row for one in own}) == 1}
        for own, end in found:
            yield next((one for one in own if one.row in certain), own[0]), end

    def _has_two_bos(self, ids: np.ndarray) -> bool:
        """Whether a BOS token follows another one."""
        if self.bos is None:
            return False
        is_bos = ids == self.bos
        return bool((is_bos[1:] & is_bos[:-1]).any())
