"""The model in training: LoRA on a causal LM, frozen copies of it, a streamed head."""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from spark_audit.checkpoints.weight_files import NOISE_FILE
from spark_audit.errors import InputError
from spark_audit.files import (
    BLANK_DIGEST,
    alone,
    cannot_write,
    fact,
    sealed,
    sha256_file,
    write_atomically,
    write_text,
)
from spark_audit.scoring.passes.plain import own_head, unwrapped
from spark_train.losses import wide
from spark_train.training_rows import Batch

_ATTENTION = re.compile(r"(attn|attention).*\.")


def projections(model: torch.nn.Module, targets: Sequence[str] = ()) -> list[str]:
    """Full names of the linear layers that get LoRA: q, k, v and o of attention blocks.

    Parameters
    ----------
    targets
        Last names of the linear layers that get it instead.

    Raises
    ------
    InputError
        If there is no such layer, with the names of those there are, or if one is the
        output head.
    """
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (torch.nn.Linear, Conv1D))
    }
    head = getattr(model, "get_output_embeddings", lambda: None)()
    leaves = dict.fromkeys(_leaf(n) for n, layer in layers.items() if layer is not head)
    missing = sorted({*targets} - {*map(_leaf, layers)})
    names = [
        name
        for name in layers
        if (_leaf(name) in targets if targets else _ATTENTION.search(name))
    ]
    if missing or not names:
        what = f"linear layer {missing[0]!r}" if missing else "attention projections"
        raise InputError(
            f"has no {what}; its linear layers are: {', '.join(leaves) or 'none'}",
            where=type(model).__name__,
            fix="name some with --lora-targets" if leaves else "choose a transformer",
        )
    if heads := [name for name in names if layers[name] is head]:
        raise InputError(
            f"{_leaf(heads[0])!r} is the output head, which stays as it is",
            where="--lora-targets",
        )
    return names


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


def add_lora(
    model: Any,
    *,
    r: int = 16,
    alpha: float = 32,
    seed: int = 0,
    targets: Sequence[str] = (),
) -> Any:
    """Put a fresh LoRA adapter on q, k, v and o (SPARK: r=16, alpha=32).

    Parameters
    ----------
    model
        A transformers causal LM; it is changed in place and frozen but for the
        adapter.
    seed
        Of the random half (``lora_A``); ``lora_B`` starts at 0, so that the model's
        output does not change yet.
    targets
        Last names of linear layers to put it on instead.

    Returns
    -------
    PeftModel
        ``save_pretrained(folder)`` writes a PEFT adapter folder.
    """
    names = projections(model, targets)
    config = LoraConfig(
        r=r,
        lora_alpha=alpha,  # type: ignore[arg-type]  # any number does
        lora_dropout=0.0,
        target_modules=names,  # PEFT shortens a long list
        fan_in_fan_out=isinstance(model.get_submodule(names[0]), Conv1D),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # PEFT 0.21 reads this attribute of transformers 5.23 by its old name.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing")
        torch.manual_seed(seed)
        return get_peft_model(model, config)


# --- copies ---------------------------------------------------------------------------

ADAPTER_NAME = "default"
"""PEFT's name of the adapter in training: its folder has no name of its own."""


def copy_adapter(model: Any, source: str, name: str) -> None:
    """Give an adapter's weights to another of the same model, added where missing.

    Which adapter is switched on, and what is trained, is the caller's to say.
    """
    if name not in model.peft_config:
        config = replace(model.peft_config[source], inference_mode=False)
        model.add_adapter(name, config)
    set_peft_model_state_dict(model, _state(model, source), adapter_name=name)


def _state(model: Any, name: str) -> dict[str, torch.Tensor]:
    """The tensors of an adapter by PEFT's names in a file."""
    return dict(
        get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    )


# --- earlier adapters -----------------------------------------------------------------

EARLIER = "earlier"
"""PEFT's name of the adapter that is switched on beside the one in training, frozen:
those of earlier tasks, as one of their ranks together (O-LoRA)."""


def switch(model: Any, name: str = ADAPTER_NAME) -> None:
    """Switch on an adapter, and beside it the earlier one where there is one."""
    if EARLIER not in model.peft_config:
        model.set_adapter(name)
        return
    model.base_model.set_adapter([EARLIER, name])
    model.set_requires_grad(EARLIER, requires_grad=False)


def set_aside(model: Any, *, seed: int) -> None:
    """Freeze what was trained so far, and go on with a fresh adapter beside it.

    The model's output stays the same; the weights in training are the same tensors with
    other values.

    Parameters
    ----------
    seed
        Of the fresh ``lora_A``, as in :func:`add_lora`.
    """
    _set_earlier(model, _whole(model))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in _layers(model):
            module.reset_lora_parameters(ADAPTER_NAME, True)


def old_and_new(model: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """``lora_A`` of earlier tasks ``(R, n)`` and in training ``(r, n)``, by layer."""
    return [
        (module.lora_A[EARLIER].weight, module.lora_A[ADAPTER_NAME].weight)
        for module in _layers(model)
        if EARLIER in module.lora_A
    ]


def _layers(model: Any) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, LoraLayer)]


def _set_earlier(model: Any, state: dict[str, torch.Tensor]) -> None:
    """Make tensors of :func:`_whole` the earlier adapter."""
    with torch.random.fork_rng(devices=[]):
        if EARLIER in model.peft_config:
            model.set_adapter(ADAPTER_NAME)
            model.delete_adapter(EARLIER)
        own = model.peft_config[ADAPTER_NAME]
        rank = _rank(state)
        alpha = own.lora_alpha * (rank / own.r)
        config = replace(own, r=rank, lora_alpha=alpha, inference_mode=False)
        model.add_adapter(EARLIER, config)
    set_peft_model_state_dict(model, state, adapter_name=EARLIER)
    switch(model)


def _whole(model: Any) -> dict[str, torch.Tensor]:
    """The tensors of the adapter that acts as all that are switched on do.

    Low-rank parts stand one below the other: ``A = [A_1; A_2]``, ``B = [B_1 B_2]``, so
    that ``B A = B_1 A_1 + B_2 A_2``.
    """
    own = _state(model, ADAPTER_NAME)
    if EARLIER not in model.peft_config:
        return own
    old = _state(model, EARLIER)
    return {n: torch.cat([old[n], new], dim=_axis(n)) for n, new in own.items()}


def _axis(name: str) -> int:
    """Along which ranks are counted."""
    return 0 if ".lora_A." in name else 1


def _rank(state: dict[str, torch.Tensor]) -> int:
    return next(len(weight) for name, weight in state.items() if _axis(name) == 0)


# --- adapter folders ------------------------------------------------------------------

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
LAST = (CONFIG, "config.json")
TRAINED_ON = "trained_on.json"
"""Beside an adapter: the hash of the base whose weights it was trained on, of the
frozen noise that belongs to it, and of the adapter's own files."""


def save_adapter(
    model: Any,
    folder: Path,
    *,
    base: str,
    base_sha256: str | None = None,
    noise: Path | None = None,
) -> None:
    """Write the adapter in training as a PEFT folder.

    The same weights give the same bytes. With an earlier adapter beside it both are
    written as one: of their ranks together, with ``lora_alpha`` as much larger, so that
    the scale ``lora_alpha / r`` stays.

    Parameters
    ----------
    model
        A ``PeftModel``; of its adapters ``default`` is written, with ``earlier``.
    base
        What the folder names as its base model.
    base_sha256
        ``weights_sha256`` of that base as it was opened, where it is known, for
        ``trained_on.json``: it tells another model of the same name apart.
    noise
        A file of frozen noise that belongs to the adapter: it is put beside it, as
        another name of the same file where the file system can do that, and
        ``trained_on.json`` and the weights' header hold its hash.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    config = model.peft_config[ADAPTER_NAME].to_dict()
    config |= {"base_model_name_or_path": base, "inference_mode": True}
    # PEFT keeps sets, whose order is another one in each process.
    plain = {k: sorted(v) if isinstance(v, set) else v for k, v in config.items()}
    if EARLIER in model.peft_config:
        earlier = model.peft_config[EARLIER]
        plain["r"] += earlier.r
        plain["lora_alpha"] += earlier.lora_alpha
    state = {
        name: weight.detach().cpu().contiguous()
        for name, weight in sorted(_whole(model).items())
    }
    text = json.dumps(plain, indent=2, sort_keys=True, default=str) + "\n"
    write_text(folder / CONFIG, text)
    data = save(state, metadata={"format": "pt"})
    trained_on: dict[str, str | None] = {"base_sha256": base_sha256}
    if noise is not None:
        # Of large vocabularies it is a gigabyte: a second name will do.
        try:
            os.link(noise, folder / NOISE_FILE)
        except OSError:
            shutil.copyfile(noise, folder / NOISE_FILE)
        about = {"noise_sha256": sha256_file(noise)}
        # In the weights' own header, too: they are often copied without the rest.
        data = _saying(data, about)
        trained_on.update(about)
    write_atomically(folder / WEIGHTS, lambda file: file.write(data))
    files = {CONFIG: fact(text.encode()), WEIGHTS: fact(data)}
    record = json.dumps({**trained_on, "files": files, "seal": BLANK_DIGEST}) + "\n"
    data = sealed(record.encode())
    write_atomically(folder / TRAINED_ON, lambda file: file.write(data))


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of ``folder`` when all is written.

    An empty folder stays the one it is: it may be where the user stands, or a mount.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    place = folder.resolve()  # "." has no name of its own, a link another folder
    stays = place.is_dir() and not any(place.glob("[!.]*"))
    part = (place if stays else place.parent) / f".{place.name}.part"
    # Of the same command at once, one writes after the other.
    with alone(part.with_suffix(".lock")):
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            yield part
            if stays:
                # What makes the folder a checkpoint comes last.
                for file in sorted(part.iterdir(), key=lambda path: path.name in LAST):
                    os.replace(file, place / file.name)
            else:
                shutil.rmtree(place, ignore_errors=True)
                os.replace(part, place)
        except (OSError, SafetensorError) as error:
            # Another library's own text may name a machine's paths.
            why = getattr(error, "strerror", None) or type(error).__name__
            raise cannot_write(folder, OSError(None, why)) from error
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _saying(data: bytes, more: dict[str, str]) -> bytes:
    """A safetensors file whose header says more, always in the same order.

    The library itself writes several entries in any order.
    """
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] |= more
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def load_adapter(model: Any, folder: Path) -> None:
    """Put the weights of :func:`save_adapter` into the adapter in training.

    Of an adapter of a larger rank the last part is the one in training, what comes
    before it the earlier one. The folder is the run's own, and was checked.
    """
    state = load_file(folder / WEIGHTS)
    own = model.peft_config[ADAPTER_NAME].r
    if earlier := _rank(state) - own:
        parts = {
            name: torch.split(weight, [earlier, own], dim=_axis(name))
            for name, weight in state.items()
        }
        _set_earlier(model, {name: old for name, (old, _) in parts.items()})
        state = {name: new for name, (_, new) in parts.items()}
    set_peft_model_state_dict(model, state, adapter_name=ADAPTER_NAME)


# --- the student ----------------------------------------------------------------------

CPU_LOGITS, GPU_LOGITS = 2**22, 2**27
"""Logits that exist at a time, by device."""

CPU_TOKENS, GPU_TOKENS = 2048, 16384
"""Padded tokens of a forward pass, by device."""

Value = Callable[..., Tensor]
Loss = Callable[..., Tensor]


class Student:
    """A model in training.

    Parameters
    ----------
    model
        A ``PeftModel`` with the adapter ``default``, or any transformers causal LM,
        whose trainable weights are then trained themselves (no teachers).
    tokens
        Padded tokens that a forward pass may have; 0: by device.

    Attributes
    ----------
    trainable
        Name -> weight of everything that an optimizer changes.
    budget
        Logits that may exist at a time.
    note
        Why the head is not streamed; empty when it is.
    """

    def __init__(self, model: Any, *, tokens: int = 0) -> None:
        self.model = model
        self._base: Any = unwrapped(model)
        self.trainable: dict[str, Tensor] = {
            name: weight
            for name, weight in model.named_parameters()
            if weight.requires_grad
        }
        weight = self._base.get_input_embeddings().weight
        self.device: torch.device = weight.device
        self.vocabulary = len(self._base.get_output_embeddings().weight)
        on_cpu = self.device.type == "cpu"
        self.tokens = tokens or (CPU_TOKENS if on_cpu else GPU_TOKENS)
        self.budget = CPU_LOGITS if on_cpu else GPU_LOGITS
        self.rows = max(self.budget // self.vocabulary, 8)
        head = own_head(self._base, rows=self.vocabulary)
        if self._base.get_output_embeddings().weight.requires_grad:
            head = "the output head is trained"
        self._head = None
        model.eval()  # a fresh adapter's wrapper and its base may be of two minds
        if not isinstance(head, str):
            # Of a head in half precision a float32 copy: V x H numbers more.
            weight, bias, transform = head
            self._head = wide(weight), None if bias is None else wide(bias), transform
            if not self._agrees():
                head, self._head = "the model's own logits differ from its head's", None
        held = "the logits of whole batches are held in memory"
        self.note = f"{held}: {head}" if isinstance(head, str) else ""

    def _agrees(self) -> bool:
        """Whether body and head give the model's own logits."""
        ids = torch.arange(1, 9, device=self.device)[None] % self.vocabulary
        batch = Batch(ids, *(torch.ones_like(ids, dtype=torch.bool) for _ in range(3)))
        with torch.no_grad():
            ours = self.logits(self.hidden(batch, batch.attention))
            theirs = self.model(input_ids=ids, use_cache=False).logits[0, :-1]
        theirs = wide(theirs)
        bound = 1e-3 if next(self._base.parameters()).dtype.itemsize >= 4 else 0.05
        size = max(float(theirs.abs().max()), 1.0)
        return bool((ours - theirs).abs().max() <= bound * size)

    # --- forward --------------------------------------------------------------------

    def hidden(self, batch: Batch, mask: Tensor) -> Tensor:
        """What the head reads to predict the masked tokens.

        Parameters
        ----------
        mask
            Shape ``(B, T)``, bool over the *predicted* tokens: token ``t`` is
            predicted at ``t - 1``; the first of a row has no prediction.

        Returns
        -------
        Tensor
            Shape ``(n, H)``, row by row; ``(n, V)`` logits where the head is not ours.
        """
        options = {"attention_mask": batch.attention.long(), "use_cache": False}
        if self._head is not None:
            body = getattr(self._base, self._base.base_model_prefix)
            states: Tensor = body(input_ids=batch.ids, **options)[0]
        else:
            states = self.model(input_ids=batch.ids, **options).logits
        return states[:, :-1][mask[:, 1:]]

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits ``(n, V)`` of hidden states ``(n, H)``, computed in float32 or wider.

        A body of half precision loses little; logits rounded to it would bury small
        divergences in noise.
        """
        if self._head is None:
            return wide(hidden)
        weight, bias, transform = self._head
        return transform(torch.nn.functional.linear(wide(hidden), weight, bias))

    def logits_at(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """Logits ``(n, K)`` of the tokens ``(n, K)`` alone."""
        if self._head is None:
            return wide(hidden).gather(1, ids)
        weight, bias, transform = self._head
        z = torch.einsum("nh,nkh->nk", wide(hidden), weight[ids])
        return transform(z if bias is None else z + bias[ids])

    def chunks(self, count: int, *, rows: int | None = None) -> list[slice]:
        """Slices of positions whose logits may exist at a time; none of 0."""
        size = rows or self.rows
        return [slice(at, min(at + size, count)) for at in range(0, count, size)]

    def total(self, hidden: Tensor, value: Value, *, rows: int | None = None) -> Tensor:
        """Sum of per-position values, a bounded number of positions at a time.

        The gradient with respect to ``hidden`` is taken chunk by chunk on the way, so
        that no more than one chunk of logits exists, and nothing is computed twice.

        Parameters
        ----------
        hidden
            Shape ``(n, H)``.
        value
            ``value(hidden[chunk], chunk)`` gives the values ``(m,)`` of a slice.
        rows
            Positions at a time.

        Returns
        -------
        Tensor
            Scalar, float32 or wider; 0 for no positions.
        """
        chunks = self.chunks(len(hidden), rows=rows)
        total: Tensor = _Total.apply(hidden, value, chunks)  # type: ignore[no-untyped-call]
        return total

    def summed(
        self,
        hidden: Tensor,
        batch: Batch,
        mask: Tensor,
        part: Tensor,
        loss: Loss,
        *,
        teacher: Tensor | None = None,
    ) -> Tensor:
        """Sum of a loss of logits and tokens over the masked tokens in a part.

        Parameters
        ----------
        hidden
            Of :meth:`hidden` for the mask.
        mask, part
            Shape ``(B, T)``, bool over the predicted tokens.
        teacher
            Another model's hidden states for the mask: the loss then takes their
            logits, too, before the student's.
        """
        inside = part[:, 1:][mask[:, 1:]]
        ids = targets(batch, mask)[inside]
        before = None if teacher is None else teacher[inside]

        def value(some: Tensor, at: slice) -> Tensor:
            known = [] if before is None else [self.logits(before[at])]
            return loss(*known, self.logits(some), ids[at])

        return self.total(hidden[inside], value)

    # --- adapters -------------------------------------------------------------------

    def freeze(self, name: str) -> None:
        """Keep a frozen copy of the adapter as it is now, under a name."""
        copy_adapter(self.model, ADAPTER_NAME, name)
        switch(self.model)
        self.model.set_requires_grad(name, requires_grad=False)

    @contextmanager
    def teacher(self, name: str) -> Iterator[None]:
        """The frozen copy in place of the student, without gradients or dropout."""
        training = self.model.training
        self.model.eval()
        switch(self.model, name)
        try:
            with torch.no_grad():
                yield
        finally:
            switch(self.model)
            self.model.train(training)


class _Total(torch.autograd.Function):
    """Sum over chunks, whose gradient is ready when the sum is."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, value: Value, chunks: list[slice]) -> Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        total = torch.zeros((), dtype=wide, device=hidden.device)
        gradient = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        for chunk in chunks:
            part = hidden[chunk].detach()
            if gradient is None:
                total += value(part, chunk).sum()
                continue
            with torch.enable_grad():
                part.requires_grad_()
                some = value(part, chunk).sum()
            (gradient[chunk],) = torch.autograd.grad(some, part)
            total += some.detach()
        ctx.save_for_backward(*([] if gradient is None else [gradient]))
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return (gradient * outer[0]).to(gradient.dtype), None, None


def targets(batch: Batch, mask: Tensor) -> Tensor:
    """The masked tokens that are predicted: ``(n,)``, in the order of ``hidden``."""
    return batch.ids[:, 1:][mask[:, 1:]]
