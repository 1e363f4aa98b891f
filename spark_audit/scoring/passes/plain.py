"""The plain, prompted and nucleus passes: one forward per sequence, token columns.

The plain pass goes through texts and keeps every column but those of nuclei; the
prompted one through strings behind prompts that are not their own rows' beginnings, and
keeps what is said of the string itself; the nucleus pass through texts, for top-p.

Where the architecture is known and a self-test on the first text agrees, the model's
body runs alone and the head is applied here, in float32, to the scored positions
only. Everywhere else the model's own forward gives the logits of a few positions at a
time.

One row a scored token.

``nll`` nats, lower = likelier; ``rank_lo`` = 1 + #(logit > target's), ``ties`` = other
tokens with exactly the target's logit; ``mean_logp`` = E_p[log p] and ``sd_logp`` its
standard deviation under the model's own next-token distribution; ``top1_margin`` =
target's logit minus the largest other logit (positive: the model's first guess);
``top40_logp`` = logsumexp of the 40 largest logits minus logsumexp of all (<= 0);
``top_p90_size`` and ``top_p90_logp`` = number and log of the probability (<= 0) of the
likeliest tokens that have 0.9 of it together.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from spark_audit.checkpoints.loaded import entry_device, offloaded, weight_of
from spark_audit.errors import CheckpointError
from spark_audit.scoring.batching import Batches, room
from spark_audit.scoring.float32_body import widened
from spark_audit.scoring.head import Head, TokenColumns, Transform
from spark_audit.scoring.table import COLUMN_TYPES, PLAIN_COLUMNS, WITH_NUCLEI, Task

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

    from spark_audit.checkpoints.loaded import Loaded
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
"""Classes whose logits are ``lm_head(last hidden state)`` and nothing more."""

CAPPED_HEADS = frozenset(
    """
    Gemma2ForCausalLM Gemma3ForCausalLM NanoChatForCausalLM VaultGemmaForCausalLM
    """.split()
)

MULTIPLIED_HEADS = frozenset({"CohereForCausalLM", "Cohere2ForCausalLM"})

DIVIDED_HEADS = frozenset(
    {"GraniteForCausalLM", "GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"}
)

SELF_TEST_TOKENS = 8

Note = Callable[[str], None]


def run(
    loaded: Loaded, model: torch.nn.Module, items: Sequence[Item], task: Task
) -> Iterator[tuple[Item, dict[str, np.ndarray]]]:
    """Each item with the columns of its scored tokens."""
    names = COLUMN_TYPES[task.kind.kind]
    scorer = Scorer(loaded, model, items[0], task.note)
    if not names.keys() <= PLAIN_COLUMNS.keys():
        scorer.columns.names = WITH_NUCLEI
    batches = Batches(
        items, lambda item: len(item.ids), room=scorer.room, rows=task.batch_size
    )
    for batch, found in batches.run(scorer, shrink=scorer.columns.shrink):
        for item, columns in zip(batch, found, strict=True):
            yield item, {name: columns[name][item.first - 1 :] for name in names}


class Scorer:
    """A checkpoint that is switched on, as a function of batches of items.

    Attributes
    ----------
    device
        Where token ids go.
    room
        What a batch may hold and costs.
    exact
        Whether the model's weights are no coarser than float32.
    columns
        The reduction with its buffers.
    """

    def __init__(
        self, loaded: Loaded, model: torch.nn.Module, first: Item, note: Note
    ) -> None:
        self._model = model
        weight = model.get_input_embeddings().weight  # type: ignore[operator]
        self.device = entry_device(model)
        self.room = room(self.device)
        self.exact = weight.dtype in (torch.float32, torch.float64)
        self._alone = not offloaded(model)
        base = unwrapped(model)
        found = own_head(base, rows=len(loaded.usable))
        if isinstance(found, str):
            self._head, reason = None, found
            self.columns = TokenColumns(loaded.usable, self.device)
        else:
            weight, bias, transform = found
            self.columns = TokenColumns(loaded.usable, weight.device)
            self._head = Head(weight, bias, transform, self.columns)
            self._body = getattr(base, base.base_model_prefix)
            reason = self._self_test(first)
        if reason:
            self._head = None
            self._keep = "logits_to_keep" in inspect.signature(base.forward).parameters
            tokens = min(self.room.tokens, max(self.columns.rows, 1))
            self.room = replace(self.room, tokens=tokens)
            text = f"logits come from the model's own forward: {reason}"
            if loaded.dtype != "float32":
                text += f"; they are rounded to {loaded.dtype}, so ranks can tie"
            if not self._keep:
                text += "; it cannot leave out positions, which costs memory"
            note(text)

    def __call__(self, batch: Sequence[Item]) -> list[dict[str, np.ndarray]]:
        """Columns of each item of a batch.

        Raises
        ------
        CheckpointError
            If a logit is NaN or infinite, naming the item.
        """
        return [
            {
                name: part[:, i].astype(dtype)
                for i, (name, dtype) in enumerate(self.columns.names.items())
            }
            for part in self._items(batch, only_nll=False)
        ]

    def nll(self, batch: Sequence[Item]) -> list[np.ndarray]:
        """NLL alone of each item of a batch, float32; cheaper than all columns."""
        return [part[:, 0] for part in self._items(batch, only_nll=True)]

    def widened(self) -> AbstractContextManager[None] | None:
        """A context of the body in float32; ``None``: it is, or does not run alone."""
        own = self._head is not None and self._alone and not self.exact
        return widened(self._body) if own else None

    def _items(self, batch: Sequence[Item], *, only_nll: bool) -> list[np.ndarray]:
        ids, mask = padded([item.ids for item in batch])
        lengths = torch.tensor([len(item.ids) - 1 for item in batch])
        found = self.read(ids, mask, ids[:, 1:, None], lengths, only_nll=only_nll)
        parts = np.split(found.numpy(), np.cumsum(lengths.numpy())[:-1])
        for item, part in zip(batch, parts, strict=True):
            check_finite(part, where=f"example {item.key!r}")
        return parts

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
        """What the model predicts at some positions of what it reads.

        Parameters
        ----------
        ids, mask
            Shapes ``(B, T)`` and ``(B, T)`` or, behind a cache, as long as both; what
            is fed. ``None``: nothing is padded.
        targets
            Shape ``(B, w, k)``: what is asked for at the positions ``first`` to
            ``first + w``; ``k`` is 1 for all columns.
        lengths
            Shape ``(B,)``: how many of the ``w`` positions count in each row.
        only_nll
            Give the NLL of each target, else all columns of the first.
        cache
            What the model has read before, of transformers' kind; it is extended.

        Returns
        -------
        torch.Tensor
            Shape ``(sum(lengths), k)`` or ``(sum(lengths), len(columns.names))``,
            float32, on the CPU.
        """
        width, every = targets.shape[1], len(self.columns.names)
        goal = targets.flatten(0, 1)[_places(lengths, width)].to(self.columns.device)
        if not only_nll:
            goal = goal[:, 0]
        if not len(goal):
            return torch.empty(0, targets.shape[2] if only_nll else every)
        options: dict[str, object] = {"use_cache": cache is not None}
        if cache is not None:
            options["past_key_values"] = cache
        if mask is not None:
            options["attention_mask"] = mask.to(self.device)
        ids = ids.to(self.device)
        if self._head is not None:
            hidden = self._body(input_ids=ids, **options)[0]
            rows = _places(lengths, ids.shape[1], first).to(hidden.device)
            hidden = hidden.flatten(0, 1).index_select(0, rows).to(self.columns.device)
            return self._head(hidden, goal, only_nll=only_nll).cpu()
        # Through the model's own forward, some positions at a time.
        step, columns = width, self.columns
        if self._keep and cache is None:  # a cache is extended only once
            step = max(columns.rows // len(ids), 1)
        reduce = columns.nll if only_nll else columns.reduce
        ends = [0, *lengths.cumsum(0).tolist()]
        found = torch.empty(len(goal), goal.shape[1] if only_nll else every)
        for start in range(0, width, step):
            stop = min(start + step, width)
            logits = self._logits(ids, first + start, first + stop, options)
            for row, count in enumerate(lengths.tolist()):
                stay = min(count, stop) - start
                for low in range(0, max(stay, 0), columns.rows):
                    high = min(low + columns.rows, stay)
                    z = columns.buffer(high - low)
                    known = logits[row, low:high, : columns.vocabulary]
                    z[:, : columns.vocabulary] = known
                    at = slice(ends[row] + start + low, ends[row] + start + high)
                    found[at] = reduce(z, goal[at]).cpu()
        return found

    def _logits(
        self, ids: torch.Tensor, start: int, stop: int, options: Mapping[str, object]
    ) -> torch.Tensor:
        """The model's own logits of the positions ``start:stop``: ``(B, n, V)``.

        Positions are counted from the end: prompt tuning puts its own in front.
        """
        width = ids.shape[1]
        if self._keep:
            keep = torch.arange(start - width, stop - width, device=ids.device)
            options = {**options, "logits_to_keep": keep}
        logits: torch.Tensor = self._model(input_ids=ids, **options).logits
        if not self._keep:
            logits = logits[:, -width:][:, start:stop]
        return logits.to(self.columns.device)

    def _self_test(self, first: Item) -> str:
        """Why the own head is not to be used; empty when it agrees with the model."""
        ids = torch.from_numpy(first.ids[None, :SELF_TEST_TOKENS].astype(np.int64))
        ids = ids.to(self.device)
        assert self._head is not None
        hidden = self._body(input_ids=ids, use_cache=False)[0][0]
        ours = self._head.logits(hidden.to(self.columns.device))
        theirs = self._model(input_ids=ids, use_cache=False).logits[0]
        theirs = theirs.to(ours.device)[:, : self.columns.vocabulary]
        if theirs.shape != ours.shape:
            return "its forward gives logits of another shape than its head"
        size = float(theirs.float().abs().max())
        # Half precision rounds the model's logits, not ours.
        bound = 1e-4 if theirs.dtype == torch.float32 else 0.02
        apart = float((theirs.float() - ours).abs().max())
        if not np.isfinite(size) or apart <= bound * max(size, 1.0):
            return ""
        return f"its logits differ from its head's by {apart:.2g}"


def unwrapped(model: torch.nn.Module) -> PreTrainedModel:
    """Return the causal LM itself, adapters inside, without PEFT's outer module."""
    inner = getattr(model, "get_base_model", None)
    return inner() if callable(inner) else model


def own_head(
    base: PreTrainedModel, *, rows: int
) -> tuple[torch.Tensor, torch.Tensor | None, Transform] | str:
    """Weight, bias and transform of a head that may be applied here, or why not.

    Parameters
    ----------
    base
        A causal LM of transformers (see :func:`unwrapped`).
    rows
        Rows that its vocabulary has.
    """
    kind = type(base).__name__
    config = base.config
    if kind in PLAIN_HEADS:
        transform = Transform()
    elif kind in CAPPED_HEADS:
        transform = Transform(softcap=config.final_logit_softcapping)
    elif kind in MULTIPLIED_HEADS:
        transform = Transform(float(base.logit_scale))
    elif kind in DIVIDED_HEADS:
        transform = Transform(1 / float(config.logits_scaling))
    else:
        return f"no head is known for {kind}"
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
    """Token ids padded on the right, and their mask where anything was padded."""
    parts = [torch.from_numpy(row.astype(np.int64)) for row in rows]
    ids = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    return ids, None if bool(mask.all()) else mask


def check_finite(values: np.ndarray, *, where: str) -> None:
    """Refuse scores that are NaN or infinite."""
    if not np.isfinite(values).all():
        raise CheckpointError(
            "the model's logits are NaN or infinite",
            where=where,
            fix="load it in float32, or check how it was trained and saved",
        )


def _places(lengths: torch.Tensor, width: int, first: int = 0) -> torch.Tensor:
    """Indices in a flat batch: ``lengths[i]`` positions from ``first`` on of row i."""
    index = torch.arange(width).expand(len(lengths), -1)
    inside = (index >= first) & (index < first + lengths[:, None])
    return inside.flatten().nonzero()[:, 0]
