"""Adapters on a base: attached strictly, and switched.

Nothing is merged: merging in half precision shifts logits, and a merged base could not
be shared.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from spark_audit.checkpoints import tables, weight_files
from spark_audit.checkpoints.adapter_config import (
    NOT_TRAINED,
    adapter_config,
    changes_base,
    prepared,
    resolve,
)
from spark_audit.checkpoints.derived import Rounded, swapped
from spark_audit.checkpoints.layer_names import front_of_decoder, named_as_in_base
from spark_audit.checkpoints.loaded import entry_device, max_positions, offload_hook
from spark_audit.checkpoints.untrusted import foreign
from spark_audit.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from spark_audit.checkpoints.checkpoint import Checkpoint

PROBE_LENGTH = 12
OTHER_BASE = "give the model that it was trained on by --base"
GATHER = (
    "if it is the part of one process, save it whole: "
    "accelerator.unwrap_model(model).save_pretrained(FOLDER, "
    "state_dict=accelerator.get_state_dict(model)); else give the model that it was "
    "trained on by --base"
)


class AdapterHost:
    """A base module and its adapters; exactly one of them, or none, is on at a time.

    Parameters
    ----------
    model
        The base, in evaluation mode.
    runs
        Whether it computes, as none does on the meta device: then it is seen to work.
    """

    def __init__(self, model: PreTrainedModel, *, runs: bool = True) -> None:
        self.model = model
        self.ids: torch.Tensor | None = None
        self.peft: Any = None
        self.released = False
        # Before any adapter is among them.
        self.parameters = model.num_parameters()
        modules = dict(model.named_modules())
        # The first is the model itself, which has no name.
        _, *self._modules = modules
        self._decoder_front = front_of_decoder(modules, model.get_input_embeddings())
        if runs:
            self._probe()

    def _probe(self) -> None:
        """Run the module on two rows of tokens that differ in the last one.

        Raises
        ------
        CheckpointError
            If it reads ahead, or as :func:`logits`.
        """
        rows = len(self.model.get_input_embeddings().weight)
        n = min(PROBE_LENGTH, max_positions(self.model.config) or PROBE_LENGTH)
        row = torch.linspace(0, rows - 1, n).long()
        other = row.clone()
        other[-1] = row[0] if row[0] != row[-1] else rows // 2
        self.ids = torch.stack([row, other])
        self._plain = plain = logits(self.model, self.ids)
        if not torch.allclose(plain[0, :-1], plain[1, :-1], rtol=1e-2, atol=1e-2):
            what = "the model reads ahead: a later token changes earlier predictions"
            raise CheckpointError(what, fix="give a causal language model")

    def attach(self, item: Checkpoint) -> tuple[str, dict[str, object], list[str]]:
        """Attach an adapter; return its name here, its configuration, and notes.

        Where it changes the base's own weights, nothing else may use this host.

        Raises
        ------
        CheckpointError
            As :func:`prepared`, if a tensor is missing, unexpected or of another shape,
            or the adapter changes nothing.
        """
        from peft import set_peft_model_state_dict

        raw, state, notes = prepared(item.config, item.read())
        named = named_as_in_base(
            raw, state, modules=self._modules, decoder_front=self._decoder_front
        )
        raw, state = named.raw, named.state
        notes += named.notes
        own_tables = {
            named.new_keys.get(key, key): note for key, note in item.own_tables.items()
        }
        # Of fixed width: no name is part of another's, nor of a module's.
        name = f"adapter{0 if self.peft is None else len(self.peft.peft_config):04d}"
        replaced = changes_base(raw) or bool(own_tables)
        unfit = f"the adapter does not fit the base {item.on.source}"
        with foreign(unfit, fix=OTHER_BASE), self._undrawn():
            tables.grow(self.model, state, own_tables)
        self._inject(name, raw, unfit)
        notes += tables.take(self.peft, state, self._tensors(name), own_tables)
        with foreign(unfit, fix=OTHER_BASE):
            state = self._converted(name, state)
        theirs = {key: tensor.shape for key, tensor in state.items()}
        ours = {key: tensor.shape for key, tensor in self._tensors(name).items()}
        fix = f"{OTHER_BASE}, with the adapter_config.json of these weights, or "
        fix += "merge adapter and base where they were trained, and give the result"
        weight_files.refuse_differences(
            theirs,
            ours,
            tensor=f"does not fit the base {item.on.source}: adapter tensor",
            fix=GATHER if is_part(theirs, ours) else fix,
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

    @contextlib.contextmanager
    def _undrawn(self) -> Iterator[None]:
        """Make parameters where the module is, and leave random numbers as they are."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            if self.ids is None:
                stack.enter_context(torch.device("meta"))
            yield

    def _inject(self, name: str, raw: dict[str, object], unfit: str) -> None:
        """Put an adapter of this configuration on the module; its numbers are open."""
        from peft import PeftModelForCausalLM

        is_meta = self.ids is None
        if is_meta and changes_base(raw):
            # How the base is replaced takes its weights; shapes do not.
            raw = {**raw, "init_lora_weights": True}
        config = adapter_config(raw)
        resolve(config, self._modules, self.model)
        # Repeated layers are copied, which PEFT cannot do while it makes empty ones.
        is_empty = is_meta and not raw.get("layer_replication")
        with foreign(unfit, fix=OTHER_BASE), self._undrawn():
            if self.peft is None:
                self.peft = PeftModelForCausalLM(
                    self.model, config, adapter_name=name, low_cpu_mem_usage=is_empty
                )
                if config.is_prompt_learning:
                    _align(self.peft)
            else:
                self.peft.add_adapter(name, config, low_cpu_mem_usage=is_meta)
        self.peft.eval().requires_grad_(False)

    def _tensors(self, name: str) -> weight_files.State:
        """What PEFT would save of an adapter."""
        from peft import get_peft_model_state_dict

        # Its types know of no truth value for the embeddings.
        read_state: Any = get_peft_model_state_dict
        state = read_state(self.peft, adapter_name=name, save_embedding_layers=False)
        return dict(state)

    def _converted(self, name: str, state: weight_files.State) -> weight_files.State:
        """The tensors by the names of this version of transformers.

        Up to version 4 each expert was a module of its own; PEFT joins LoRA of experts
        as transformers joins their weights.
        """
        from peft.utils import transformers_weight_conversion as conversion

        convert: Any = conversion.convert_peft_adapter_state_dict_for_transformers
        config = self.peft.peft_config[name]
        return dict(convert(self.peft, config, state, adapter_name=name))

    def _check_effect(self, name: str, ids: torch.Tensor, replaced: bool) -> None:
        if not replaced:
            with self.using(None):
                off = logits(self.model, ids)
            if not torch.allclose(off, self._plain, rtol=1e-4, atol=1e-4):
                what = "attaching the adapter changed the base's own weights"
                raise CheckpointError(what, fix="merge it and give the merged folder")
        with self.using(name):
            on = logits(self.peft, ids, whose="the model with the adapter")
        common = min(on.shape[-1], self._plain.shape[-1])
        if torch.equal(on[..., :common], self._plain[..., :common]):
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
        for layer in self.model.modules():
            hook = offload_hook(layer)
            if hook is not None and getattr(hook, "weights_map", None) is not None:
                hook.weights_map = None
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)


def is_part(
    theirs: Mapping[str, Sequence[int]], ours: Mapping[str, Sequence[int]]
) -> bool:
    """Whether a file holds what one process of several saved of an adapter.

    Parameters
    ----------
    theirs, ours
        Shapes by name: of the file, and of the adapter that it should hold. A part has
        some of the tensors and no other, or an even slice of each in one direction.
    """
    if not theirs or not theirs.keys() <= ours.keys():
        return False
    is_sliced = False
    for name, shape in theirs.items():
        there, whole = tuple(shape), tuple(ours[name])
        if len(there) != len(whole):
            return False
        apart = [(a, b) for a, b in zip(there, whole, strict=True) if a != b]
        if not apart:
            continue
        if len(apart) > 1 or not apart[0][0] or apart[0][1] % apart[0][0]:
            return False
        is_sliced = True
    return is_sliced or len(theirs) < len(ours)


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
    model: PreTrainedModel, noise: torch.Tensor, *, by_token: bool = True
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

    def add(
        module: torch.nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> torch.Tensor:
        # Only the rows that are asked for: a large vocabulary's noise is gigabytes.
        rows = noise[args[0].to(noise.device)] if by_token else noise
        rows = rows.to(output.device)
        wide = torch.promote_types(output.dtype, rows.dtype)
        return (output.to(wide) + rows).to(output.dtype)

    with model.get_input_embeddings().register_forward_hook(add):
        yield


def logits(
    model: PreTrainedModel, ids: torch.Tensor, *, whose: str = "the model"
) -> torch.Tensor:
    """Shape ``(2, n, V)`` float32: what a model says on the probe.

    Raises
    ------
    CheckpointError
        If it cannot be run on token ids alone, or gives NaN or infinity.
    """
    device = entry_device(model)
    with foreign("the model cannot be run"), torch.inference_mode():
        out: torch.Tensor = model(input_ids=ids.to(device), use_cache=False).logits
    if not bool(torch.isfinite(out).all()):
        narrow = out.dtype != torch.float32
        fix = "its dtype may be too narrow: try --dtype float32" if narrow else None
        raise CheckpointError(f"{whose} gives NaN or infinite logits", fix=fix)
    return out.float().clone()


def materialise(model: PreTrainedModel, adapter: str) -> None:
    """Give an adapter memory where the layers that it is on compute.

    PEFT puts it where their weights are, which is nowhere while they are on disk: these
    layers compute in one place. The numbers are anybody's until the adapter's are
    filled in.
    """
    hooks = [hook for layer in model.modules() if (hook := offload_hook(layer))]
    device = next((one.execution_device for one in hooks if one.offload), "cpu")
    for path, layer in model.named_modules():
        for name, parameter in layer.named_parameters(recurse=False):
            if parameter.is_meta and adapter in (name, *path.split(".")):
                empty = torch.empty_like(parameter, device=device)
                layer._parameters[name] = torch.nn.Parameter(empty, requires_grad=False)
