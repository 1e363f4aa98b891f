"""One base module and the adapters attached to it: put on strictly, switched, seen.

Nothing is merged: merging in half precision shifts logits, and a merged base could
not be shared.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from spark_audit.checkpoints.adapter_config import (
    NOT_TRAINED,
    adapter_config,
    changes_base,
    prepared,
    resolve,
)
from spark_audit.checkpoints.models import (
    check_probe,
    head_rows,
    logits,
    materialise,
    max_positions,
    probe_ids,
    refuse_differences,
    release,
)
from spark_audit.checkpoints.offline import foreign
from spark_audit.checkpoints.quantise import Rounded, swapped
from spark_audit.checkpoints.tokenizer import OTHER_BASE, usable_rows
from spark_audit.checkpoints.weight_files import State
from spark_audit.errors import CheckpointError

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint

PREFIX = "base_model.model."


class AdapterHost:
    """A base module and its adapters; exactly one of them, or none, is on at a time.

    Parameters
    ----------
    model
        The base, in evaluation mode.
    tokenizer
        The base's: on some of its tokens the module is seen to work; ``None`` on the
        meta device, where nothing can be computed.
    """

    def __init__(self, model: Any, tokenizer: Any = None) -> None:
        self.model = model
        self.ids: torch.Tensor | None = None
        if tokenizer is not None:
            usable = usable_rows(tokenizer, head_rows(model))
            longest = max_positions(model.config)
            self.ids = probe_ids(usable, max_positions=longest)
            check_probe(plain := logits(model, self.ids))
            self._plain = plain
        self.peft: Any = None
        self.released = False
        # Before any adapter is among them.
        self.parameters = sum(one.numel() for one in model.parameters())
        self._modules = [name for name, _ in model.named_modules() if name]

    def attach(self, item: Checkpoint) -> tuple[str, dict[str, Any], list[str]]:
        """Attach an adapter; return its name here, its configuration, and notes.

        Where it changes the base's own weights, nothing else may use this host.

        Raises
        ------
        CheckpointError
            As :func:`prepared`, if a tensor is missing, unexpected or of another shape,
            or the adapter changes nothing.
        """
        from peft import PeftModelForCausalLM, set_peft_model_state_dict

        raw, state, notes = prepared(item.config, item.read())
        # Of fixed width: no name is part of another's, nor of a module's.
        name = f"adapter{0 if self.peft is None else len(self.peft.peft_config):04d}"
        meta, replaced = self.ids is None, changes_base(raw)
        # How the base is replaced takes its weights; shapes do not.
        start = {"init_lora_weights": True} if meta and replaced else {}
        config = adapter_config({**raw, **start})
        resolve(config, self._modules)
        unfit = f"the adapter does not fit the base {item.on.source}"
        with (
            foreign(unfit, fix=OTHER_BASE),
            torch.random.fork_rng(devices=[]),
            torch.device("meta") if meta else contextlib.nullcontext(),
        ):
            if self.peft is None:
                self.peft = PeftModelForCausalLM(
                    self.model, config, adapter_name=name, low_cpu_mem_usage=meta
                )
                if config.is_prompt_learning:
                    _align(self.peft)
            else:
                self.peft.add_adapter(name, config, low_cpu_mem_usage=meta)
        self.peft.eval().requires_grad_(False)
        notes += self._leave_copies(name, state)
        refuse_differences(
            {key: tensor.shape for key, tensor in state.items()},
            {key: tensor.shape for key, tensor in self._tensors(name).items()},
            tensor=f"does not fit the base {item.on.source}: adapter tensor",
            fix=f"{OTHER_BASE}, with the adapter_config.json of these weights, or "
            "merge adapter and base where they were trained, and give the result",
        )
        if self.ids is not None:
            materialise(self.peft, name)
            with foreign("PEFT cannot load the adapter"):
                set_peft_model_state_dict(self.peft, state, adapter_name=name)
            for key, tensor in self._tensors(name).items():
                if not torch.equal(tensor, state[key].to(tensor)):
                    what = f"adapter tensor {key} was not taken over by PEFT"
                    raise CheckpointError(what)
            self._check_effect(name, self.ids, replaced)
        return name, raw, notes

    def _tensors(self, name: str) -> State:
        """What PEFT would save of an adapter."""
        from peft import get_peft_model_state_dict

        options: Any = {"adapter_name": name, "save_embedding_layers": False}
        return dict(get_peft_model_state_dict(self.peft, **options))

    def _leave_copies(self, name: str, state: State) -> list[str]:
        """Leave out copies of the base's embeddings, which PEFT may save; notes."""
        notes, own = (
            [],
            {
                key.replace(".base_layer.", "."): tensor
                for key, tensor in self.peft.get_base_model().named_parameters()
            },
        )
        for key in sorted(state.keys() - self._tensors(name)):
            of_base = key.removeprefix(PREFIX).replace(".base_layer.", ".")
            if _same(own.get(of_base), state[key]):
                del state[key]
                notes.append(f"{of_base}: a copy of the base's, unused")
        return notes

    def _check_effect(self, name: str, ids: torch.Tensor, replaced: bool) -> None:
        with self.using(None):
            off = logits(self.model, ids)
        if not (replaced or torch.allclose(off, self._plain, rtol=1e-4, atol=1e-4)):
            what = "attaching the adapter changed the base's own weights"
            raise CheckpointError(what, fix="merge it and give the merged folder")
        with self.using(name):
            on = logits(self.peft, ids)
        if not bool(torch.isfinite(on).all()):
            what = "with the adapter the model gives NaN or infinite logits"
            raise CheckpointError(what)
        if torch.equal(on, self._plain):
            what = "the adapter changes nothing: the model's output is its base's"
            raise CheckpointError(what, fix=NOT_TRAINED)

    @contextlib.contextmanager
    def using(
        self,
        name: str | None,
        *,
        noise: torch.Tensor | None = None,
        weights: Callable[[], Rounded] | None = None,
    ) -> Iterator[None]:
        """Exactly this adapter on, or none: then ``model`` is as without any.

        Parameters
        ----------
        noise
            What is added to input embeddings.
        weights
            What makes those in the place of the module's own, called with all else as
            it will be.
        """
        if self.released:
            msg = "this checkpoint was released when the next one was loaded"
            raise RuntimeError(msg)
        with contextlib.ExitStack() as stack:
            if name is not None:
                self.peft.set_adapter(name, inference_mode=True)
            elif self.peft is not None:
                stack.enter_context(self.peft.disable_adapter())
            if noise is not None:
                stack.enter_context(input_noise(self.model, noise))
            if weights is not None:
                stack.enter_context(swapped(weights()))
            yield

    def release(self) -> None:
        """Free the module, whoever still holds a checkpoint that was opened on it."""
        self.released = True
        release(self.model)


def _same(base: torch.Tensor | None, tensor: torch.Tensor) -> bool:
    """Whether a tensor is the base's; of one on the meta device, by its shape."""
    if base is None or base.shape != tensor.shape:
        return False
    return base.is_meta or torch.equal(base, tensor.to(base))


def _align(peft: Any) -> None:
    """Leave a prompt's virtual tokens out of the logits.

    PEFT puts them in front of the input, and its logits are longer by them; whoever
    scores wants one row per token that was fed, or the positions in a tensor
    ``logits_to_keep``.
    """
    inner = peft.forward

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        config, keep = peft.active_peft_config, kwargs.get("logits_to_keep")
        longer = str(config.peft_type.value) != "PREFIX_TUNING"
        n = int(config.num_virtual_tokens) if longer else 0
        if n and keep is not None:
            # Positions that are counted from the end stay where they are.
            kwargs["logits_to_keep"] = torch.where(keep < 0, keep, keep + n)
        output = inner(*args, **kwargs)
        if n and keep is None:
            output.logits = output.logits[:, n:]
        return output

    peft.forward = forward


@contextlib.contextmanager
def input_noise(
    model: Any, noise: torch.Tensor, *, by_token: bool = True
) -> Iterator[None]:
    """Add noise to *input* embeddings.

    Parameters
    ----------
    noise
        One row a token, shape ``(V, H)``; else one a position, ``(B, T, H)``. It comes
        behind hooks that are there already. Tied output heads do not see it: it is
        added to what the embedding gives, not to its weights. The sum is taken in
        float32 or wider and rounded once.
    """

    def add(module: Any, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        # Only the rows that are asked for: a large vocabulary's noise is gigabytes.
        rows = noise[args[0].to(noise.device)] if by_token else noise
        rows = rows.to(output.device)
        wide = torch.promote_types(output.dtype, rows.dtype)
        return (output.to(wide) + rows).to(output.dtype)

    with model.get_input_embeddings().register_forward_hook(add):
        yield
