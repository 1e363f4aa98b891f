"""The generate pass: greedy answers to prompts, compared with what was expected.

The loop is our own, so that a checkpoint's generation settings (sampling, repetition
penalties, forced tokens) cannot change a figure: always the likeliest usable token, in
float32, the lowest id among equals. Batches are padded on the left; a self-test on the
first prompt shows that padding and cache leave the logits as they are, else prompts of
equal length run together, or whole sequences are read again.

One row a prompt.

``strict`` and ``normalised`` are 1 where the answer came, as it is or but for case,
punctuation, white space and, where the task has labels, what follows the label;
``stop`` 0 at the end-of-text token, 1 at a line's end, 2 at the limit; ``n_tokens``
written.
"""

from __future__ import annotations

import inspect
import os.path
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from spark_audit.checkpoints.loaded import end_token_ids, entry_device
from spark_audit.errors import out_of_memory
from spark_audit.scoring.answers import begins_with, normalised
from spark_audit.scoring.batching import Batches, room
from spark_audit.scoring.passes.plain import check_finite, padded, unwrapped
from spark_audit.scoring.table import COLUMN_TYPES, Task

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedTokenizerBase

    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.scoring.items import Prompt

EOS, NEWLINE, LENGTH = 0, 1, 2
"""Why an answer ended: the column ``stop``."""

MORE = 4
"""Times as many tokens a batch on CPU as for scoring: a step reads one token a row."""

PROBE_TOKENS = 8
CONTEXT_TOKENS = 8
"""Prompt tokens that an answer is decoded behind: more than one character has."""

Note = Callable[[str], None]


def run(
    loaded: Loaded, model: torch.nn.Module, items: Sequence[Prompt], task: Task
) -> Iterator[tuple[Prompt, dict[str, np.ndarray]]]:
    """Continue prompts greedily: each with what became of it.

    An answer ends at an EOS of the model or the tokenizer, at a newline more than the
    expected answer has **[ours]**, or after ``max_new_tokens``. The columns are
    ``strict`` (int8: equal after stripping), ``normalised`` (int8: equal after
    :func:`normalised`, or :func:`begins_with`), ``stop`` (int8: :data:`EOS`,
    :data:`NEWLINE`, :data:`LENGTH`) and ``n_tokens`` (int32: tokens written, an EOS not
    counted), each of shape ``(1,)``. No text is kept.

    Raises
    ------
    CheckpointError
        If a logit is NaN or infinite, naming the item.
    """
    writer = Writer(loaded, model, items[0], task.note)
    space = room(writer.device)
    if writer.device.type == "cpu":
        space = replace(space, tokens=space.tokens * MORE)
    if not writer.pads:
        # Of one length where padding would change what the model reads.
        space = replace(space, ratio=1.0)
    batches = Batches(
        items,
        lambda item: item.tokens if writer.pads else len(item.ids),
        room=space,
        rows=task.batch_size,
    )
    for batch, answers in batches.run(writer, shrink=lambda: False):
        for item, answer in zip(batch, answers, strict=True):
            yield item, answer.columns()


class Answer:
    """What a model has written so far behind one prompt."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, item: Prompt) -> None:
        self._tokenizer, self.item = tokenizer, item
        self._new: list[int] = []
        self._context: list[int] = item.ids[-CONTEXT_TOKENS:].tolist()
        self._before = self._decoded(self._context)
        self._lines = item.target.rstrip().count("\n") + 1
        self.stop: int | None = None

    def take(self, token: int, eos: frozenset[int]) -> None:
        """Append a token, and see whether the answer ends with it."""
        if token in eos:
            self.stop = EOS
            return
        self._new.append(token)
        if self._text().count("\n") >= self._lines:
            self.stop = NEWLINE
        elif len(self._new) >= self.item.max_new_tokens:
            self.stop = LENGTH

    def columns(self) -> dict[str, np.ndarray]:
        """The pass's columns."""
        text = "\n".join(self._text().split("\n")[: self._lines])
        target = self.item.target
        alike = normalised(text) == normalised(target) or (
            begins_with(text, target, self.item.labels)
        )
        values = text.strip() == target.strip(), alike, self.stop, len(self._new)
        layout = COLUMN_TYPES["generate"].items()
        return {
            name: np.array([value], dtype)
            for (name, dtype), value in zip(layout, values, strict=True)
        }

    def _text(self) -> str:
        # Decoded alone, a first token would lose its blank, or half a character.
        text = self._decoded(self._context + self._new)
        return text[len(os.path.commonprefix([self._before, text])) :]

    def _decoded(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


class Writer:
    """A checkpoint that is switched on, as a function of batches of prompts.

    Attributes
    ----------
    pads
        Whether prompts of unequal length may share a batch.
    caches
        Whether keys and values of what was read are kept.
    """

    def __init__(
        self, loaded: Loaded, model: torch.nn.Module, first: Prompt, note: Note
    ) -> None:
        self._model, self._tokenizer = model, loaded.tokenizer
        self.device = entry_device(model)
        base = unwrapped(model)
        taken = inspect.signature(base.forward).parameters
        self._keep = "logits_to_keep" in taken
        self._positions = "position_ids" in taken
        self._unusable = torch.from_numpy(~loaded.usable)
        self.eos = end_token_ids(base, loaded.tokenizer)
        self.bound = 1e-4 if loaded.dtype == "float32" else 0.05
        self.pads = self.caches = False
        self.caches = self._agrees(first, padding=0)
        if not self.caches:
            note("answers were generated without a cache: it changed the logits")
        self.pads = self._agrees(first, padding=3)
        if not self.pads:
            note(
                "answers were generated in batches of one length: padding changes them"
            )
        if loaded.dtype != "float32":
            note(
                f"answers come from {loaded.dtype} logits: tokens that are almost "
                "equally likely can change places with the batch"
            )

    def __call__(self, batch: Sequence[Prompt]) -> list[Answer]:
        """The finished answers to a batch of prompts."""
        answers = [Answer(self._tokenizer, item) for item in batch]
        # On the left: padded on the right from their ends, and turned.
        ids, mask = padded([item.ids[::-1] for item in batch])
        mask = torch.ones_like(ids) if mask is None else mask
        ids, mask = ids.flip(1).to(self.device), mask.flip(1).to(self.device)
        rows, past = list(range(len(batch))), None
        while True:
            logits, past = self._step(ids, mask, past)
            chosen = self._greedy(logits, [answers[row] for row in rows])
            for row, token in zip(rows, chosen.tolist(), strict=True):
                if answers[row].stop is None:
                    answers[row].take(token, self.eos)
            going = [i for i, row in enumerate(rows) if answers[row].stop is None]
            if not going:
                return answers
            ids = torch.cat([ids, chosen[:, None].to(ids.device)], dim=1)
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
            # A cache of another kind keeps all its rows.
            select = getattr(past, "batch_select_indices", None)
            if len(going) <= len(rows) // 2 and (past is None or select is not None):
                rows, ids, mask = [rows[i] for i in going], ids[going], mask[going]
                if select is not None:
                    select(torch.tensor(going))

    def _greedy(self, logits: torch.Tensor, answers: Sequence[Answer]) -> torch.Tensor:
        """The likeliest usable token of each row, the first among equals."""
        z = logits.float()
        z[:, self._unusable.to(z.device)] = -torch.inf
        best = z.amax(dim=1).cpu().numpy()
        first_bad = answers[int(np.isfinite(best).argmin())]
        check_finite(best, where=f"example {first_bad.item.key!r}")
        # Of several maxima torch's argmax gives the first.
        return z.argmax(dim=1).cpu()

    def _step(
        self, ids: torch.Tensor, mask: torch.Tensor, past: Cache | None
    ) -> tuple[torch.Tensor, Cache | None]:
        """Return logits behind the last token, ``(B, V)``, and what to go on with."""
        options: dict[str, object] = {"use_cache": self.caches}
        if past is not None:
            options["past_key_values"] = past
        unread = ids if past is None else ids[:, -1:]
        if self._keep:
            # As an index it is copied out of the hidden states: of a view, frozen
            # weights are multiplied row by row, with a copy of the head for each.
            last = torch.tensor([unread.shape[1] - 1], device=ids.device)
            options["logits_to_keep"] = last
        # Prompt tuning takes no positions: nothing is said where nothing was padded.
        if not bool(mask.all()):
            options["attention_mask"] = mask
            if self._positions:
                places = (mask.cumsum(dim=1) - 1).clamp(min=0)
                options["position_ids"] = places[:, -unread.shape[1] :]
        out = self._model(input_ids=unread, **options)
        kept = getattr(out, "past_key_values", None) if self.caches else None
        return out.logits[:, -1, : len(self._unusable)], kept

    def _agrees(self, first: Prompt, *, padding: int) -> bool:
        """Whether two steps with cache (or padding) give a plain forward's logits."""
        ids = torch.from_numpy(first.ids[None, :PROBE_TOKENS].astype(np.int64))
        ids = torch.cat([ids, ids[:, :1]], dim=1).to(self.device)
        tested, self.caches = self.caches or not padding, False
        plain, _ = self._step(ids, torch.ones_like(ids), None)
        self.caches = tested
        longer = torch.cat([ids[:, :1].expand(1, padding), ids], dim=1)
        shorter = torch.cat([torch.zeros_like(longer[:, :padding]), ids], dim=1)
        both = torch.cat([shorter, longer]) if padding else ids
        mask = torch.ones_like(both)
        mask[0, :padding] = 0
        try:
            with warnings.catch_warnings(action="ignore"):  # PEFT's of prompt tuning
                found, past = self._step(both[:, :-1], mask[:, :-1], None)
                if self.caches and past is None:
                    return False
                found, _ = self._step(both, mask, past)
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as e:
            if out_of_memory(e):
                raise
            return False
        size = max(float(plain.float().abs().max()), 1.0)
        apart = float((plain.float() - found[:1].float()).abs().max())
        # A comparison with NaN is False.
        return apart <= self.bound * size
