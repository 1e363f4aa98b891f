"""The plain pass: one forward per sequence, every token column from it.

Where the architecture is known and a self-test on the first text agrees, the model's
body runs alone and the head is applied here, in float32, to the scored positions
only. Everywhere else the model's own forward gives the logits of a few positions at a
time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from spark_audit.errors import CheckpointError
from spark_audit.scoring.batching import Batches, token_budget
from spark_audit.scoring.head import Columns, Head, Transform
from spark_audit.table import COLUMNS, Pass

if TYPE_CHECKING:
    from spark_audit.checkpoints import Loaded
    from spark_audit.scoring import Item

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

Emit = Callable[["Item", dict[str, np.ndarray]], None]
Note = Callable[[str], None]


def run(
    loaded: Loaded,
    items: Sequence[Item],
    settings: Pass,
    *,
    batch_size: int | None,
    emit: Emit,
    note: Note,
) -> None:
    """Score items and hand each one's columns over as soon as they are known.

    Parameters
    ----------
    settings
        The pass; ``plain`` has nothing to set.
    batch_size
        Items a batch, at most; ``None``: by tokens.
    emit
        Called once an item with arrays of shape ``(len(item.ids) - 1,)``.
    note
        Called with what a reader of the report must know.
    """
    del settings
    if not items:
        return
    with loaded.active() as model:
        scorer = Scorer(loaded, model, items[0], note)
        batches = Batches(
            items, lambda item: len(item.ids), tokens=scorer.tokens, rows=batch_size
        )
        for batch, found in batches.run(scorer, shrink=scorer.columns.shrink):
            for item, columns in zip(batch, found, strict=True):
                emit(item, columns)


class Scorer:
    """A checkpoint that is switched on, as a function of batches of items.

    Attributes
    ----------
    tokens
        Padded tokens that a batch may have.
    columns
        The reduction with its buffers.
    """

    def __init__(
        self, loaded: Loaded, model: torch.nn.Module, first: Item, note: Note
    ) -> None:
        self._model = model
        self.device = model.get_input_embeddings().weight.device  # type: ignore[operator]
        self.tokens = token_budget(self.device)
        base = _unwrapped(model)
        found = _own_head(base, loaded)
        if isinstance(found, str):
            self._head, reason = None, found
            self.columns = Columns(loaded.usable, self.device)
        else:
            weight, bias, transform = found
            self.columns = Columns(loaded.usable, weight.device)
            self._head = Head(weight, bias, transform, self.columns)
            self._body = getattr(base, base.base_model_prefix)
            reason = self._self_test(first)
        if reason:
            self._head = None
            self._keep = "logits_to_keep" in inspect.signature(base.forward).parameters
            self.tokens = min(self.tokens, max(self.columns.rows, 1))
            note(_generic_note(reason, loaded.dtype, self._keep))

    def __call__(self, batch: Sequence[Item]) -> list[dict[str, np.ndarray]]:
        """Columns of each item of a batch.

        Raises
        ------
        CheckpointError
            If a logit is NaN or infinite, naming the item.
        """
        ids, mask = _padded(batch, self.device)
        lengths = torch.tensor([len(item.ids) - 1 for item in batch])
        if self._head is None:
            found = self._generic(ids, mask, lengths)
        else:
            inputs = {"attention_mask": mask} if mask is not None else {}
            hidden = self._body(input_ids=ids, use_cache=False, **inputs)[0]
            rows = _rows(lengths, ids.shape[1]).to(hidden.device)
            targets = ids.flatten()[rows.to(ids.device) + 1].to(self.columns.device)
            hidden = hidden.flatten(0, 1).index_select(0, rows)
            found = self._head(hidden.to(self.columns.device), targets)
        table = found.cpu().numpy()
        ends = np.cumsum(lengths.numpy())
        parts = np.split(table, ends[:-1])
        for item, part in zip(batch, parts, strict=True):
            if not np.isfinite(part).all():
                raise CheckpointError(
                    "the model's logits are NaN or infinite",
                    where=f"example {item.key!r}",
                    fix="load it in float32, or check how it was trained and saved",
                )
        return [
            {
                name: part[:, i].astype(dtype)
                for i, (name, dtype) in enumerate(COLUMNS.items())
            }
            for part in parts
        ]

    def _generic(
        self, ids: torch.Tensor, mask: torch.Tensor | None, lengths: torch.Tensor
    ) -> torch.Tensor:
        """Columns through the model's own forward, some positions at a time."""
        count, width = ids.shape
        if width < 2:
            return torch.empty(0, len(COLUMNS))
        step = max(self.columns.rows // count, 1) if self._keep else width - 1
        found = torch.empty(count, width - 1, len(COLUMNS))
        for start in range(0, width - 1, step):
            stop = min(start + step, width - 1)
            logits = self._logits(ids, mask, start, stop)
            targets = ids[:, start + 1 : stop + 1].to(self.columns.device)
            for row in range(count):
                stay = int(lengths[row].clamp(max=stop)) - start
                for low in range(0, max(stay, 0), self.columns.rows):
                    high = min(low + self.columns.rows, stay)
                    z = self.columns.buffer(high - low)
                    z[:, : self.columns.vocabulary] = logits[
                        row, low:high, : self.columns.vocabulary
                    ]
                    found[row, start + low : start + high] = self.columns.reduce(
                        z, targets[row, low:high]
                    ).cpu()
        return found.flatten(0, 1)[_rows(lengths, width - 1)]

    def _logits(
        self, ids: torch.Tensor, mask: torch.Tensor | None, start: int, stop: int
    ) -> torch.Tensor:
        """The model's own logits of the positions ``start:stop``: ``(B, n, V)``.

        Positions are counted from the end: prompt tuning puts its own in front.
        """
        width = ids.shape[1]
        options: dict[str, Any] = {"use_cache": False}
        if mask is not None:
            options["attention_mask"] = mask
        if self._keep:
            keep = torch.arange(start - width, stop - width, device=ids.device)
            options["logits_to_keep"] = keep
        logits: torch.Tensor = self._model(input_ids=ids, **options).logits
        if not self._keep:
            logits = logits[:, -width:][:, start:stop]
        return logits.to(self.columns.device)

    def _self_test(self, first: Item) -> str:
        """Why the own head is not to be used; empty when it agrees with the model."""
        ids, _ = _padded([first], self.device)
        ids = ids[:, :SELF_TEST_TOKENS]
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


def memory_bytes(loaded: Loaded, longest: int, tokens: int) -> int:
    """An estimate of the peak memory beside the weights, in bytes.

    The logits buffer, the working buffers and one layer's activations of a batch.
    """
    base = _unwrapped(loaded.model)
    weight: torch.Tensor = base.get_input_embeddings().weight
    columns = Columns(loaded.usable, weight.device)
    batch = min(max(token_budget(weight.device), longest), max(tokens, 1))
    config = base.config.get_text_config()
    hidden = int(config.hidden_size)
    inner = int(getattr(config, "intermediate_size", None) or 4 * hidden)
    activations = batch * (8 * hidden + 3 * inner) * weight.element_size()
    copied = len(loaded.usable) * hidden
    if weight.dtype == torch.float32 or weight.is_cuda or copied > Head.COPIED:
        copied = 0
    return columns.memory_bytes(batch) + activations + 4 * (batch * hidden + copied)


def _unwrapped(model: torch.nn.Module) -> Any:
    """The causal LM itself, adapters inside, without PEFT's outer module."""
    inner = getattr(model, "get_base_model", None)
    return inner() if callable(inner) else model


def _own_head(
    base: Any, loaded: Loaded
) -> tuple[torch.Tensor, torch.Tensor | None, Transform] | str:
    """Weight, bias and transform of a head that may be applied here, or why not."""
    kind = type(base).__name__
    config = base.config
    if kind in PLAIN_HEADS:
        transform = Transform()
    elif kind in CAPPED_HEADS:
        transform = Transform(softcap=config.final_logit_softcapping)
    elif kind in MULTIPLIED_HEADS:
        transform = Transform(multiply=float(base.logit_scale))
    elif kind in DIVIDED_HEADS:
        transform = Transform(divide=float(config.logits_scaling))
    else:
        return f"no head is known for {kind}"
    head = base.get_output_embeddings()
    if type(head) is not torch.nn.Linear or hasattr(head, "_hf_hook"):
        return "its output head is adapted, quantised or offloaded"
    if head._forward_hooks or head._forward_pre_hooks:
        return "its output head has hooks"
    if not hasattr(base, base.base_model_prefix):
        return "its body is not where its class says"
    if len(head.weight) != len(loaded.usable):
        return "its output head has another number of rows than its vocabulary"
    return head.weight.detach(), _detached(head.bias), transform


def _detached(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach()


def _padded(
    batch: Sequence[Item], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Ids padded on the right, and their mask where anything was padded."""
    width = max(len(item.ids) for item in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.int64)
    mask = torch.zeros(len(batch), width, dtype=torch.int64)
    for row, item in enumerate(batch):
        ids[row, : len(item.ids)] = torch.from_numpy(item.ids.astype(np.int64))
        mask[row, : len(item.ids)] = 1
    return ids.to(device), None if bool(mask.all()) else mask.to(device)


def _rows(lengths: torch.Tensor, width: int) -> torch.Tensor:
    """Indices of the first ``lengths[i]`` positions of each row of a flat batch."""
    index = torch.arange(width).expand(len(lengths), -1)
    return (index < lengths[:, None]).flatten().nonzero()[:, 0]


def _generic_note(reason: str, dtype: str, keep: bool) -> str:
    text = f"logits come from the model's own forward: {reason}"
    if dtype != "float32":
        text += f"; they are rounded to {dtype}, so ranks can tie"
    if not keep:
        text += "; it cannot leave out positions, which costs memory"
    return text
