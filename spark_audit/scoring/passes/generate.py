"""The generate pass: compare greedy answers to prompts with the expected answers.

The generation loop is our own, so that a checkpoint's generation settings (sampling,
repetition penalties, forced tokens) cannot change a figure. It always takes the
likeliest usable token in float32, with the lowest id among equals. Batches are padded
on the left. A self-test on the first prompt checks that padding and cache do not change
the logits. Otherwise prompts of equal length share a batch, or whole sequences are read
again.

:class:`Answer` decides when an answer ends and whether it is the expected one, by the
rules of ``scoring/answers.py``; :class:`Writer` runs the model. A further column is one
of ``COLUMN_TYPES`` and of :meth:`Answer.columns`.

One row a prompt:

``strict``, ``normalised``
    1 if the answer came, exactly or apart from case, punctuation, white space and, for
    tasks with labels, the text behind the label.
``stop``
    0 at the end-of-text token, 1 at a line's end, 2 at the limit.
``n_tokens``
    Tokens that were generated.
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

from spark_audit.checkpoints.checkpoint import end_token_ids, entry_device
from spark_audit.errors import out_of_memory
from spark_audit.scoring.answers import begins_with, normalised
from spark_audit.scoring.batching import Batches, room
from spark_audit.scoring.passes.plain import check_finite, padded, unwrapped
from spark_audit.scoring.table import COLUMN_TYPES, PassSettings

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedTokenizerBase

    from spark_audit.checkpoints.checkpoint import Checkpoint
    from spark_audit.scoring.items import Prompt

EOS = 0
NEWLINE = 1
AT_LIMIT = 2
"""Reasons why an answer ended, in the column ``stop``."""

CPU_TOKENS_FACTOR = 4
"""Factor of a batch's tokens on a CPU: a step reads only one token per row."""

PROBE_TOKENS = 8
"""Tokens of the first prompt that the self-test of cache and padding reads."""

CONTEXT_TOKENS = 8
"""Prompt tokens that are decoded together with an answer, more than a character has."""

Note = Callable[[str], None]
"""Called with a note for readers of the report."""


def run(
    loaded: Checkpoint,
    model: torch.nn.Module,
    items: Sequence[Prompt],
    settings: PassSettings,
) -> Iterator[tuple[Prompt, dict[str, np.ndarray]]]:
    """Continue prompts greedily; yield each prompt with its result.

    An answer ends at an EOS of the model or the tokenizer, after one newline more than
    the expected answer has **[ours]**, or after ``max_new_tokens``. The columns are
    ``strict`` (int8: equal after stripping), ``normalised`` (int8: equal after
    :func:`normalised`, or :func:`begins_with`), ``stop`` (int8: :data:`EOS`,
    :data:`NEWLINE`, :data:`AT_LIMIT`) and ``n_tokens`` (int32: generated tokens without
    an EOS), each of shape ``(1,)``. No text is kept.

    Raises
    ------
    CheckpointError
        If a logit is NaN or infinite. The error names the item.
    """
    writer = Writer(loaded, model, items[0], settings.note)

    # The length of a prompt includes the answer, unless padding must be avoided.
    limits = room(writer.device)
    if writer.device.type == "cpu":
        limits = replace(limits, max_tokens=limits.max_tokens * CPU_TOKENS_FACTOR)
    if not writer.pads:
        # If padding would change the input, all prompts of a batch have one length.
        limits = replace(limits, max_length_ratio=1.0)

    def length(item: Prompt) -> int:
        return item.n_tokens if writer.pads else len(item.ids)

    # A single prompt that does not fit into memory cannot be made smaller.
    batches = Batches(items, length, room=limits, rows=settings.batch_size)
    for batch, answers in batches.run(writer, shrink=lambda: False):
        for item, answer in zip(batch, answers, strict=True):
            yield item, answer.columns()


class Answer:
    """An answer that is being generated.

    Attributes
    ----------
    item
        The prompt with the expected answer.
    stop
        The reason why the answer ended; ``None`` while it goes on.
    new_ids
        Token ids of the answer so far.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, item: Prompt) -> None:
        self._tokenizer = tokenizer
        self.item = item
        self.stop: int | None = None

        self.new_ids: list[int] = []
        self._context_ids: list[int] = item.ids[-CONTEXT_TOKENS:].tolist()
        self._context_text = self._decoded(self._context_ids)
        # An answer ends with the newline behind as many lines as the expected one has.
        self._n_lines = item.target.rstrip().count("\n") + 1

    def take(self, token: int, eos: frozenset[int]) -> None:
        """Append a token, and stop the answer if it ends with this token."""
        if token in eos:
            self.stop = EOS
            return

        self.new_ids.append(token)
        if self._text().count("\n") >= self._n_lines:
            self.stop = NEWLINE
        elif len(self.new_ids) >= self.item.max_new_tokens:
            self.stop = AT_LIMIT

    def columns(self) -> dict[str, np.ndarray]:
        """Compare the answer with the expected one; return the pass's columns."""
        # The last token may contain text behind the newline.
        text = "\n".join(self._text().split("\n")[: self._n_lines])
        target = self.item.target

        is_equal = text.strip() == target.strip()
        # Behind a label, further text is allowed.
        is_equal_normalised = normalised(text) == normalised(target) or (
            begins_with(text, target, self.item.labels)
        )

        types = COLUMN_TYPES["generate"]
        return {
            "strict": np.array([is_equal], types["strict"]),
            "normalised": np.array([is_equal_normalised], types["normalised"]),
            "stop": np.array([self.stop], types["stop"]),
            "n_tokens": np.array([len(self.new_ids)], types["n_tokens"]),
        }

    def _text(self) -> str:
        """Return the text generated so far.

        Decoded alone, a first token would lose its blank or half a character. So the
        end of the prompt is decoded with it, and the common beginning of both texts is
        removed.
        """
        text = self._decoded(self._context_ids + self.new_ids)
        n_shared = len(os.path.commonprefix([self._context_text, text]))
        return text[n_shared:]

    def _decoded(self, ids: list[int]) -> str:
        """Return token ids as text, without special tokens."""
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


class Writer:
    """A loaded model as a function that continues batches of prompts.

    Parameters
    ----------
    first_prompt
        A prompt for the self-tests of cache and padding.
    note
        Called with a note for readers, if a self-test fails.

    Attributes
    ----------
    device
        Device of the token ids.
    pads
        Whether prompts of different lengths may share a batch.
    caches
        Whether keys and values are cached between steps.
    """

    def __init__(
        self,
        loaded: Checkpoint,
        model: torch.nn.Module,
        first_prompt: Prompt,
        note: Note,
    ) -> None:
        self._model = model
        self._tokenizer = loaded.tokenizer
        self.device = entry_device(model)
        self._unusable = torch.from_numpy(~loaded.usable)  # (V,)

        base = unwrapped(model)
        parameters = inspect.signature(base.forward).parameters
        self._can_leave_out = "logits_to_keep" in parameters
        self._takes_positions = "position_ids" in parameters
        self._eos = end_token_ids(base, loaded.tokenizer)

        # The cache is tested first, so that padding is tested in the way it is used.
        # Half precision rounds the two ways differently.
        is_exact = loaded.dtype == "float32"
        bound = 1e-4 if is_exact else 0.05
        self.caches = self._agrees(first_prompt, bound=bound, n_padding=0, caches=True)
        self.pads = self._agrees(
            first_prompt, bound=bound, n_padding=3, caches=self.caches
        )

        if not self.caches:
            note("answers were generated without a cache: it changed the logits")
        if not self.pads:
            note(
                "answers were generated in batches of one length: padding changes them"
            )
        if not is_exact:
            note(
                f"answers come from {loaded.dtype} logits: tokens that are almost "
                "equally likely can change places with the batch"
            )

    def __call__(self, batch: Sequence[Prompt]) -> list[Answer]:
        """Return the finished answers to a batch of prompts."""
        answers = [Answer(self._tokenizer, item) for item in batch]

        # Padding on the left: the reversed prompts are padded on the right, and
        # reversed.
        reversed_ids, reversed_mask = padded([item.ids[::-1] for item in batch])
        if reversed_mask is None:
            reversed_mask = torch.ones_like(reversed_ids)
        ids = reversed_ids.flip(1).to(self.device)  # (B, T)
        mask = reversed_mask.flip(1).to(self.device)  # (B, T)

        rows = list(range(len(batch)))  # row of the model's input -> index in `answers`
        past: Cache | None = None
        while True:
            # B falls when finished rows are dropped, and T rises with each step.
            logits, past = self._step(ids, mask, past, caches=self.caches)
            tokens = self._greedy(logits, [answers[row] for row in rows])  # (B,)
            for row, token in zip(rows, tokens.tolist(), strict=True):
                if answers[row].stop is None:
                    answers[row].take(token, self._eos)

            unfinished = [i for i, row in enumerate(rows) if answers[row].stop is None]
            if not unfinished:
                return answers

            ids = torch.cat([ids, tokens[:, None].to(ids.device)], dim=1)  # (B, T + 1)
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)

            # Finished rows are dropped when they are half of the batch, because each
            # removal copies the cache. Other kinds of caches keep all rows.
            select = getattr(past, "batch_select_indices", None)
            can_drop = past is None or select is not None
            if can_drop and len(unfinished) <= len(rows) // 2:
                rows = [rows[i] for i in unfinished]
                ids = ids[unfinished]
                mask = mask[unfinished]
                if select is not None:
                    select(torch.tensor(unfinished))

    def _greedy(self, logits: torch.Tensor, answers: Sequence[Answer]) -> torch.Tensor:
        """Return each row's likeliest usable token, the first among equals, ``(B,)``.

        Parameters
        ----------
        logits
            Shape ``(B, V)``.
        answers
            Those of the rows, in order: an error names the prompt.
        """
        z = logits.float()
        z[:, self._unusable.to(z.device)] = -torch.inf

        # argmin finds the first row that is not finite; without one, no error names it.
        largest = z.amax(dim=1).cpu().numpy()  # (B,)
        first_bad = answers[int(np.isfinite(largest).argmin())]
        check_finite(largest, where=f"example {first_bad.item.key!r}")

        # With several maxima, torch's argmax returns the first.
        return z.argmax(dim=1).cpu()

    def _step(
        self, ids: torch.Tensor, mask: torch.Tensor, past: Cache | None, *, caches: bool
    ) -> tuple[torch.Tensor, Cache | None]:
        """Return the logits after the last token, ``(B, V)``, and the new cache.

        Parameters
        ----------
        ids, mask
            Shapes ``(B, T)``: all tokens so far, those that were read included.
        past
            Keys and values of all but the last token; ``None``: nothing was read.
        caches
            Whether the model is to keep keys and values for the next step.
        """
        unread = ids if past is None else ids[:, -1:]
        options: dict[str, object] = {"use_cache": caches}
        if past is not None:
            options["past_key_values"] = past
        if self._can_leave_out:
            # A tensor index copies the rows. With a view of the hidden states, frozen
            # weights would be multiplied row by row, with a copy of the head for each.
            last = torch.tensor([unread.shape[1] - 1], device=ids.device)
            options["logits_to_keep"] = last

        # Prompt tuning accepts no positions, so they are given only with padding.
        if not bool(mask.all()):
            options["attention_mask"] = mask
            if self._takes_positions:
                # Padding does not count: the first real token has position 0.
                positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
                options["position_ids"] = positions[:, -unread.shape[1] :]

        output = self._model(input_ids=unread, **options)
        logits = output.logits[:, -1, : len(self._unusable)]  # (B, V)
        cache = getattr(output, "past_key_values", None) if caches else None
        return logits, cache

    def _agrees(
        self, prompt: Prompt, *, bound: float, n_padding: int, caches: bool
    ) -> bool:
        """Return whether two generation steps give the logits of a plain forward.

        Parameters
        ----------
        prompt
            The prompt whose beginning is read.
        bound
            Largest difference of logits, relative to the largest logit.
        n_padding
            Tokens by which the prompt is padded, next to a row that is so much longer;
            0: the prompt alone.
        caches
            Whether the second step uses the cache of the first.
        """
        # The second step reads the prompt's first token once more.
        first_ids = prompt.ids[None, :PROBE_TOKENS].astype(np.int64)
        probe = torch.from_numpy(first_ids)
        ids = torch.cat([probe, probe[:, :1]], dim=1).to(self.device)  # (1, t)
        plain, _ = self._step(ids, torch.ones_like(ids), None, caches=False)  # (1, V)

        rows = ids
        if n_padding:
            more_tokens = ids[:, :1].expand(1, n_padding)
            longer = torch.cat([more_tokens, ids], dim=1)
            padding = torch.zeros_like(more_tokens)
            shorter = torch.cat([padding, ids], dim=1)
            rows = torch.cat([shorter, longer])  # (2, n_padding + t)
        mask = torch.ones_like(rows)
        mask[0, :n_padding] = 0

        try:
            # PEFT warns about prompt tuning.
            with warnings.catch_warnings(action="ignore"):
                _, past = self._step(rows[:, :-1], mask[:, :-1], None, caches=caches)
                if caches and past is None:
                    return False
                stepped, _ = self._step(rows, mask, past, caches=caches)
        # A model without a cache, masks or positions raises one of these errors.
        except (
            TypeError,
            ValueError,
            RuntimeError,
            IndexError,
            AttributeError,
        ) as error:
            if out_of_memory(error):
                raise
            return False

        plain = plain.float()
        largest = max(float(plain.abs().max()), 1.0)
        difference = float((plain - stepped[:1].float()).abs().max())
        # A comparison with NaN is False.
        return difference <= bound * largest
