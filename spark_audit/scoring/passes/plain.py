"""The plain, prompted and nucleus passes: one forward per sequence, token columns.

The plain pass reads texts and keeps all columns except nuclei. The prompted pass reads
strings behind prompts other than the beginning of their own rows, and keeps the columns
of the string itself. The nucleus pass reads texts and adds the columns for top-p.

If the architecture is known and a self-test on the first text agrees, only the model's
body runs, and this module applies the head in float32 to the scored positions alone.
Otherwise the model's own forward gives the logits of a few positions at a time.
:class:`Scorer` hides this difference from all passes, including those of other files.

A class of models whose head we may apply goes into :data:`PLAIN_HEADS` or one of the
sets below it; :func:`own_head` gives its formula. A further column: see
``scoring/token_columns.py``.

One row a scored token:

``nll``
    Nats; lower is likelier.
``rank_lo``, ``ties``
    1 + the number of tokens with a logit above the target's, and the number of other
    tokens with exactly the target's logit.
``mean_logp``, ``sd_logp``
    E_p[log p] and its standard deviation under the model's own next-token distribution.
``top1_margin``
    The target's logit minus the largest other logit; positive: the model's first guess.
``top40_logp``
    Logsumexp of the 40 largest logits minus logsumexp of all; at most 0.
``top_p90_size``, ``top_p90_logp``
    Number of the likeliest tokens that reach a probability of 0.9 together, and the log
    of their probability (at most 0); ``top_p95`` alike.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from spark_audit.checkpoints.checkpoint import entry_device, offloaded, weight_of
from spark_audit.errors import CheckpointError
from spark_audit.scoring.batching import Batches, room
from spark_audit.scoring.float32_body import widened
from spark_audit.scoring.head import Head, Transform
from spark_audit.scoring.table import (
    COLUMN_TYPES,
    PLAIN_COLUMNS,
    WITH_NUCLEI,
    PassSettings,
)
from spark_audit.scoring.token_columns import TokenColumns

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

    from spark_audit.checkpoints.checkpoint import Checkpoint
    from spark_audit.scoring.items import Item

PLAIN_HEADS = frozenset(
    """
    ApertusForCausalLM ArceeForCausalLM BloomForCausalLM CodeGenForCausalLM
    CwmForCausalLM DeepseekV2ForCausalLM DeepseekV3ForCausalLM Ernie4_5ForCausalLM
    Exaone4ForCausalLM FalconForCausalLM GPT2LMHeadModel GPTBigCodeForCausalLM
    GPTJForCausalLM GPTNeoForCausalLM GPTNeoXForCausalLM GemmaForCausalLM
    Glm4ForCausalLM GlmForCausalLM GptOssForCausalLM HeliumForCausalLM
    HunYuanDenseV1ForCausalLM Lfm2ForCausalLM LlamaForCausalLM MinistralForCausalLM
    MistralForCausalLM MixtralForCausalLM MptForCausalLM NemotronForCausalLM
    OPTForCausalLM Olmo2ForCausalLM Olmo3ForCausalLM OlmoForCausalLM
    PersimmonForCausalLM Phi3ForCausalLM PhiForCausalLM Qwen2ForCausalLM
    Qwen2MoeForCausalLM Qwen3ForCausalLM Qwen3MoeForCausalLM SeedOssForCausalLM
    SmolLM3ForCausalLM StableLmForCausalLM Starcoder2ForCausalLM XGLMForCausalLM
    """.split()
)
"""Classes whose logits are exactly ``lm_head(last hidden state)``."""

CAPPED_HEADS = frozenset(
    """
    Gemma2ForCausalLM Gemma3ForCausalLM NanoChatForCausalLM VaultGemmaForCausalLM
    """.split()
)
"""Classes with logits ``softcap * tanh(logits / softcap)``."""

MULTIPLIED_HEADS = frozenset({"CohereForCausalLM", "Cohere2ForCausalLM"})
"""Classes that multiply logits by ``logit_scale``."""

DIVIDED_HEADS = frozenset(
    {"GraniteForCausalLM", "GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"}
)
"""Classes that divide logits by ``logits_scaling``."""

SELF_TEST_TOKENS = 8
"""Tokens of the first text on which our head is compared with the model's."""

Note = Callable[[str], None]
"""Called with a note for readers of the report."""


def run(
    loaded: Checkpoint,
    model: torch.nn.Module,
    items: Sequence[Item],
    settings: PassSettings,
) -> Iterator[tuple[Item, dict[str, np.ndarray]]]:
    """Yield each item with the columns of its scored tokens."""
    names = COLUMN_TYPES[settings.scoring_pass.kind]
    scorer = Scorer(loaded, model, items[0], settings.note)
    if not names.keys() <= PLAIN_COLUMNS.keys():
        scorer.columns.names = WITH_NUCLEI

    batches = Batches(
        items, lambda item: len(item.ids), room=scorer.room, rows=settings.batch_size
    )
    for batch, columns_of_batch in batches.run(scorer, shrink=scorer.columns.shrink):
        for item, columns in zip(batch, columns_of_batch, strict=True):
            # Row t of the columns belongs to token t + 1: the first has no prediction.
            first_row = item.first_scored - 1
            yield item, {name: columns[name][first_row:] for name in names}


class Scorer:
    """A loaded model as a function that scores batches of items.

    Parameters
    ----------
    first_item
        A text for the self-test of our head.
    note
        Called with a note for readers, if the model's own forward must be used.

    Attributes
    ----------
    device
        Device of the token ids.
    room
        Limits and fixed cost of a batch.
    exact
        Whether the model's weights are at least as precise as float32.
    columns
        The reduction to columns, with its buffers.
    """

    def __init__(
        self, loaded: Checkpoint, model: torch.nn.Module, first_item: Item, note: Note
    ) -> None:
        self._model = model
        self.device = entry_device(model)
        self.room = room(self.device)
        embeddings = model.get_input_embeddings().weight  # type: ignore[operator]
        self.exact = embeddings.dtype in (torch.float32, torch.float64)
        self._is_offloaded = offloaded(model)

        # Our head is used if the class is known and both agree on a text. Otherwise
        # there is a reason.
        base = unwrapped(model)
        head_or_reason = own_head(base, rows=len(loaded.usable))
        self._head: Head | None = None
        if isinstance(head_or_reason, str):
            reason = head_or_reason
            self.columns = TokenColumns(loaded.usable, self.device)
        else:
            weight, bias, transform = head_or_reason
            self.columns = TokenColumns(loaded.usable, weight.device)
            self._head = Head(weight, bias, transform, self.columns)
            self._body = getattr(base, base.base_model_prefix)
            reason = self._self_test(self._head, first_item)

        if reason:
            self._head = None
            self._prepare_own_forward(base)
            note(self._own_forward_note(loaded, reason))

    def _prepare_own_forward(self, base: PreTrainedModel) -> None:
        """Find out how the model's forward returns logits, and limit batches.

        The logits of a batch, at one position each at least, must fit into the buffer.
        """
        parameters = inspect.signature(base.forward).parameters
        self._can_leave_out = "logits_to_keep" in parameters
        max_tokens = min(self.room.max_tokens, max(self.columns.rows, 1))
        self.room = replace(self.room, max_tokens=max_tokens)

    def _own_forward_note(self, loaded: Checkpoint, reason: str) -> str:
        """Return a note for readers on logits from the model's own forward."""
        text = f"logits come from the model's own forward: {reason}"
        if loaded.dtype != "float32":
            text += f"; they are rounded to {loaded.dtype}, so ranks can tie"
        if not self._can_leave_out:
            text += "; it cannot leave out positions, which costs memory"
        return text

    def __call__(self, batch: Sequence[Item]) -> list[dict[str, np.ndarray]]:
        """Return the columns of each item of a batch, name -> shape ``(n - 1,)``.

        Row t belongs to token t + 1 of the item, of n tokens.

        Raises
        ------
        CheckpointError
            If a logit is NaN or infinite. The error names the item.
        """
        columns_by_item = []
        for figures in self._figures_by_item(batch, only_nll=False):
            columns = {}
            for i, (name, dtype) in enumerate(self.columns.names.items()):
                columns[name] = figures[:, i].astype(dtype)  # (n - 1,)
            columns_by_item.append(columns)
        return columns_by_item

    def nll(self, batch: Sequence[Item]) -> list[np.ndarray]:
        """Return each item's NLL, shape ``(n - 1,)``, float32, in nats.

        This is cheaper than all columns.
        """
        return [
            figures[:, 0] for figures in self._figures_by_item(batch, only_nll=True)
        ]

    def widened(self) -> AbstractContextManager[None] | None:
        """Return a context in which the body computes in float32.

        ``None`` if it already does, or if the body does not run alone.
        """
        if self._head is None or self._is_offloaded or self.exact:
            return None
        return widened(self._body)

    def _figures_by_item(
        self, batch: Sequence[Item], *, only_nll: bool
    ) -> list[np.ndarray]:
        """Return the figures of each item, ``(n - 1, columns)``, float32.

        The first of n tokens has no prediction. ``columns`` is 1 for the NLL alone.
        """
        ids, mask = padded([item.ids for item in batch])  # (B, T)
        lengths = torch.tensor([len(item.ids) - 1 for item in batch])  # (B,)
        targets = ids[:, 1:, None]  # (B, T - 1, 1)
        figures = self.read(ids, mask, targets, lengths, only_nll=only_nll)

        ends = np.cumsum(lengths.numpy())
        figures_by_item = np.split(figures.numpy(), ends[:-1])
        for item, figures_of_item in zip(batch, figures_by_item, strict=True):
            check_finite(figures_of_item, where=f"example {item.key!r}")
        return figures_by_item

    def read(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor | None,
        targets: torch.Tensor,
        lengths: torch.Tensor,
        *,
        first: int = 0,
        only_nll: bool = True,
        cache: Cache | None = None,
    ) -> torch.Tensor:
        r"""Return the model's predictions at some positions of its input.

        Position ``first + j`` predicts ``targets[:, j]``. Nothing is shifted in here:
        the caller gives targets that stand one token further on. A text of six tokens
        (``first=0``, ``w=5``)::

            ids       0 1 2 3 4 5     what the model reads
            logits    0 1 2 3 4       those of position 5 predict nothing
                       \ \ \ \ \
            targets     1 2 3 4 5     ids[:, 1:]

        The continuation 4 5 6 of a prefix 0 1 2 3 (``first=3``, ``w=3``)::

            ids       0 1 2 3 4 5     token 6 is predicted, not read
            logits          3 4 5
                             \ \ \
            targets           4 5 6

        Behind a cache positions count from the first token that is not in it.

        Parameters
        ----------
        ids, mask
            Shape ``(B, T)`` each: the input. With a cache, the mask also covers the
            cached tokens. ``None``: there is no padding.
        targets
            Shape ``(B, w, k)``: token ids to predict at the positions ``first`` to
            ``first + w``; ``k`` is 1 for all columns.
        lengths
            Shape ``(B,)``: how many of the ``w`` positions count in each row. The
            others are padding.
        only_nll
            Whether to return the NLL of each target, or all columns of the first.
        cache
            Cache of transformers with the tokens that were read before; it is extended.

        Returns
        -------
        torch.Tensor
            Shape ``(sum(lengths), k)`` or ``(sum(lengths), len(columns.names))``,
            float32, on the CPU.
        """
        _, width, n_targets = targets.shape
        # Only targets that count, one after the other: n = sum(lengths).
        counted = _flat_positions(lengths, width)  # (n,)
        counted_targets = targets.flatten(0, 1)[counted]  # (n, k)
        counted_targets = counted_targets.to(self.columns.device)
        if not only_nll:
            counted_targets = counted_targets[:, 0]  # (n,)
        if not len(counted_targets):
            n_figures = n_targets if only_nll else len(self.columns.names)
            return torch.empty(0, n_figures)

        ids = ids.to(self.device)
        options: dict[str, object] = {"use_cache": cache is not None}
        if cache is not None:
            options["past_key_values"] = cache
        if mask is not None:
            options["attention_mask"] = mask.to(self.device)

        if self._head is not None:
            hidden = self._body(input_ids=ids, **options)[0]  # (B, T, H)
            predicting = _flat_positions(lengths, ids.shape[1], first)  # (n,)
            hidden = hidden.flatten(0, 1).index_select(0, predicting.to(hidden.device))
            hidden = hidden.to(self.columns.device)  # (n, H)
            return self._head(hidden, counted_targets, only_nll=only_nll).cpu()
        return self._read_by_own_forward(
            ids,
            counted_targets,
            lengths,
            options,
            first=first,
            width=width,
            only_nll=only_nll,
        )

    def _read_by_own_forward(
        self,
        ids: torch.Tensor,
        counted_targets: torch.Tensor,
        lengths: torch.Tensor,
        options: Mapping[str, object],
        *,
        first: int,
        width: int,
        only_nll: bool,
    ) -> torch.Tensor:
        """Do the work of :meth:`read`, with logits of the model's own forward.

        The logits of all positions may not fit into memory. If the model can leave out
        positions, it reads the batch again for every few of them.

        Parameters
        ----------
        ids
            Shape ``(B, T)``.
        counted_targets
            Shape ``(n, k)``, or ``(n,)`` for all columns: targets of counted positions.
        lengths
            Shape ``(B,)``: how many of the ``width`` positions count in each row.
        options
            Further arguments of the forward.
        """
        positions_at_once = width
        # A cache must be extended only once, so one forward gives all positions.
        if self._can_leave_out and not options["use_cache"]:
            positions_at_once = max(self.columns.rows // len(ids), 1)

        n_figures = counted_targets.shape[1] if only_nll else len(self.columns.names)
        figures = torch.empty(len(counted_targets), n_figures)
        for start in range(0, width, positions_at_once):
            stop = min(start + positions_at_once, width)
            logits = self._logits(ids, first + start, first + stop, options)
            self._reduce_logits(
                logits,
                counted_targets,
                lengths,
                start=start,
                only_nll=only_nll,
                out=figures,
            )
        return figures

    def _reduce_logits(
        self,
        logits: torch.Tensor,
        counted_targets: torch.Tensor,
        lengths: torch.Tensor,
        *,
        start: int,
        only_nll: bool,
        out: torch.Tensor,
    ) -> None:
        """Reduce the model's own logits at some positions, a buffer at a time.

        Parameters
        ----------
        logits
            Shape ``(B, s, V)``: logits at the positions ``start`` to ``start + s``.
        counted_targets, out
            Shapes ``(n, k)`` or ``(n,)``, and ``(n, columns)``: targets of all counted
            positions, row after row, and the output for their figures.
        lengths
            Shape ``(B,)``: positions that count in each row.
        """
        columns = self.columns
        to_figures = columns.nll if only_nll else columns.reduce
        stop = start + logits.shape[1]
        # Row of the batch -> index of its first counted position in `out`.
        first_of_row = (lengths.cumsum(0) - lengths).tolist()

        for row, length in enumerate(lengths.tolist()):
            # Of the positions that were read, those up to the row's length count.
            n_counted = max(min(length, stop) - start, 0)
            begin = first_of_row[row] + start  # in `out`
            for low in range(0, n_counted, columns.rows):
                high = min(low + columns.rows, n_counted)
                row_logits = logits[row, low:high, : columns.vocabulary]
                buffer = columns.buffer(high - low)  # (high - low, width)
                buffer[:, : columns.vocabulary] = row_logits
                rows_of_out = slice(begin + low, begin + high)
                out[rows_of_out] = to_figures(
                    buffer, counted_targets[rows_of_out]
                ).cpu()

    def _logits(
        self, ids: torch.Tensor, start: int, stop: int, options: Mapping[str, object]
    ) -> torch.Tensor:
        """Return the model's own logits at the positions ``start:stop``, ``(B, n, V)``.

        Positions are counted from the end, because prompt tuning adds some in front.
        """
        width = ids.shape[1]
        if not self._can_leave_out:
            logits: torch.Tensor = self._model(input_ids=ids, **options).logits
            # The last `width` positions are those of `ids`; the model added any others.
            logits = logits[:, -width:][:, start:stop]
            return logits.to(self.columns.device)

        positions = torch.arange(start - width, stop - width, device=ids.device)
        output = self._model(input_ids=ids, logits_to_keep=positions, **options)
        logits = output.logits
        return logits.to(self.columns.device)

    def _self_test(self, head: Head, first_item: Item) -> str:
        """Return why our head must not be used; empty if the model agrees with it."""
        first_ids = first_item.ids[None, :SELF_TEST_TOKENS].astype(np.int64)
        ids = torch.from_numpy(first_ids).to(self.device)  # (1, t)

        hidden = self._body(input_ids=ids, use_cache=False)[0][0]  # (t, H)
        head_logits = head.logits(hidden.to(self.columns.device))  # (t, V)

        model_logits = self._model(input_ids=ids, use_cache=False).logits[0]
        model_logits = model_logits.to(head_logits.device)
        model_logits = model_logits[:, : self.columns.vocabulary]  # (t, V)
        if model_logits.shape != head_logits.shape:
            return "its forward gives logits of another shape than its head"

        # Half precision rounds the model's logits, but not those of our head.
        bound = 1e-4 if model_logits.dtype == torch.float32 else 0.02
        model_logits = model_logits.float()
        largest = float(model_logits.abs().max())
        difference = float((model_logits - head_logits).abs().max())
        if not np.isfinite(largest) or difference <= bound * max(largest, 1.0):
            return ""
        return f"its logits differ from its head's by {difference:.2g}"


def unwrapped(model: torch.nn.Module) -> PreTrainedModel:
    """Return the causal LM with its adapters, without PEFT's outer module."""
    inner = getattr(model, "get_base_model", None)
    return inner() if callable(inner) else model


def own_head(
    base: PreTrainedModel, *, rows: int
) -> tuple[torch.Tensor, torch.Tensor | None, Transform] | str:
    """Return weight ``(V, H)``, bias ``(V,)`` and transform of a head we may apply.

    If we may not apply it, return the reason, for a note.

    Parameters
    ----------
    base
        A causal LM of transformers (see :func:`unwrapped`).
    rows
        Number of rows of its vocabulary, V.
    """
    class_name = type(base).__name__
    config = base.config

    if class_name in PLAIN_HEADS:
        transform = Transform()
    elif class_name in CAPPED_HEADS:
        transform = Transform(softcap=config.final_logit_softcapping)
    elif class_name in MULTIPLIED_HEADS:
        transform = Transform(float(base.logit_scale))
    elif class_name in DIVIDED_HEADS:
        transform = Transform(1 / float(config.logits_scaling))
    else:
        return f"no head is known for {class_name}"

    head = base.get_output_embeddings()
    if type(head) is not torch.nn.Linear:
        return "its output head is adapted or quantised"
    if head._forward_hooks or head._forward_pre_hooks:
        return "its output head has hooks"
    if not hasattr(base, base.base_model_prefix):
        return "its body is not where its class says"
    if head.weight.shape[0] != rows:
        return "its output head has another number of rows than its vocabulary"

    weight = weight_of(head)
    assert weight is not None
    return weight, weight_of(head, "bias"), transform


def padded(rows: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return token ids, padded on the right, and their mask.

    Parameters
    ----------
    rows
        Token ids of B rows, arrays of shape ``(n_i,)``; T is the largest ``n_i``.

    Returns
    -------
    tuple
        Shapes ``(B, T)``, int64. The mask is 1 at tokens and 0 at padding; ``None``
        without padding.
    """
    tensors = [torch.from_numpy(row.astype(np.int64)) for row in rows]
    ids = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)  # (B, T)
    lengths = torch.tensor([len(row) for row in rows])  # (B,)
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()  # (B, T)
    return ids, None if bool(mask.all()) else mask


def check_finite(values: np.ndarray, *, where: str) -> None:
    """Refuse scores, of any shape, that are NaN or infinite."""
    if not np.isfinite(values).all():
        raise CheckpointError(
            "the model's logits are NaN or infinite",
            where=where,
            fix="load it in float32, or check how it was trained and saved",
        )


def _flat_positions(lengths: torch.Tensor, width: int, first: int = 0) -> torch.Tensor:
    """Return the counted positions as indices into a flattened batch.

    Parameters
    ----------
    lengths
        Shape ``(B,)``: in row i, the positions ``first`` to ``first + lengths[i]``
        count.
    width
        Positions per row of the flattened batch, ``(B * width,)``.

    Returns
    -------
    torch.Tensor
        Shape ``(sum(lengths),)``, int64, row after row.
    """
    position = torch.arange(width).expand(len(lengths), -1)  # (B, width)
    is_counted = (position >= first) & (position < first + lengths[:, None])
    return is_counted.flatten().nonzero()[:, 0]
