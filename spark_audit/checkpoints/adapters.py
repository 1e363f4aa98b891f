"""Adapters on a base: attached strictly, and switched.

Nothing is merged: merging in half precision shifts logits, and a merged base could not
be shared.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from spark_audit.checkpoints import tables, tensor_checks
from spark_audit.checkpoints.adapter_config import (
    NOT_TRAINED,
    adapter_config,
    changes_base,
    prepared,
)
from spark_audit.checkpoints.adapter_modules import resolve
from spark_audit.checkpoints.derived import Rounded, swapped
from spark_audit.checkpoints.layer_names import front_of_decoder, named_as_in_base
from spark_audit.checkpoints.loaded import entry_device, max_positions, offload_hook
from spark_audit.checkpoints.untrusted import foreign
from spark_audit.errors import CheckpointError

if TYPE_CHECKING:
    from peft import PeftConfig
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


@dataclass(frozen=True)
class AttachedAdapter:
    """An adapter on its host.

    Attributes
    ----------
    name
        By which the host switches it.
    config
        Its configuration as it was attached.
    notes
        What a reader of the report must know.
    """

    name: str
    config: dict[str, object]
    notes: list[str]


class AdapterHost:
    """A base module and its adapters; exactly one of them, or none, is on at a time.

    Attributes
    ----------
    ids
        Tokens of the probe, shape ``(2, n)``; ``None`` on the meta device.
    peft
        PEFT's model around the base, once an adapter was attached.
    parameters
        How many numbers the base has.

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

        # Counted and listed before any adapter is among them.
        self.parameters = model.num_parameters()
        modules = dict(model.named_modules())
        self._modules = [name for name in modules if name]
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
        n_rows = len(self.model.get_input_embeddings().weight)
        length = min(PROBE_LENGTH, max_positions(self.model.config) or PROBE_LENGTH)
        ids = torch.linspace(0, n_rows - 1, length).long()  # (n,)
        changed = ids.clone()
        changed[-1] = ids[0] if ids[0] != ids[-1] else n_rows // 2
        self.ids = torch.stack([ids, changed])  # (2, n)
        self._plain = logits(self.model, self.ids)  # (2, n, V)

        # A causal model says the same in front of the token that differs.
        before_change = self._plain[:, :-1]
        if not torch.allclose(before_change[0], before_change[1], rtol=1e-2, atol=1e-2):
            problem = "the model reads ahead: a later token changes earlier predictions"
            raise CheckpointError(problem, fix="give a causal language model")

    def config_of(self, name: str) -> PeftConfig:
        """Return PEFT's configuration of an adapter that is attached."""
        config: PeftConfig = self.peft.peft_config[name]
        return config

    def attach(self, checkpoint: Checkpoint) -> AttachedAdapter:
        """Attach an adapter, and see that it changes what the base computes.

        Where it changes the base's own weights, nothing else may use this host.

        Raises
        ------
        CheckpointError
            As :func:`~spark_audit.checkpoints.adapter_config.prepared`, if a tensor is
            missing, unexpected or of another shape, or the adapter changes nothing.
        """
        adapter = prepared(checkpoint.config, checkpoint.read())
        named = named_as_in_base(
            adapter.config,
            adapter.state,
            modules=self._modules,
            decoder_front=self._decoder_front,
        )
        config = named.config
        notes = [*adapter.notes, *named.notes]
        own_tables = {
            named.new_keys.get(key, key): note
            for key, note in checkpoint.own_tables.items()
        }

        # Of fixed width: no name is part of another's, nor of a module's.
        n_attached = 0 if self.peft is None else len(self.peft.peft_config)
        name = f"adapter{n_attached:04d}"
        base_source = checkpoint.full_weights.source
        unfit = f"the adapter does not fit the base {base_source}"

        # First the base gets the rows that are new, then the adapter its place on it.
        with foreign(unfit, fix=OTHER_BASE), self._undrawn():
            tables.grow(self.model, named.state, own_tables)
        self._inject(name, config, unfit)
        notes += tables.take(self.peft, named.state, self._tensors(name), own_tables)
        with foreign(unfit, fix=OTHER_BASE):
            state = self._converted(name, named.state)
        self._refuse_differences(name, state, base_source)

        if self.ids is not None:
            self._fill(name, state)
            replaces_base = changes_base(config) or bool(own_tables)
            self._check_effect(name, self.ids, replaces_base=replaces_base)
        return AttachedAdapter(name, config, notes)

    @contextlib.contextmanager
    def _undrawn(self) -> Iterator[None]:
        """Make parameters where the module is, and leave random numbers as they are."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            if self.ids is None:
                stack.enter_context(torch.device("meta"))
            yield

    def _inject(self, name: str, raw_config: dict[str, object], unfit: str) -> None:
        """Put an adapter of this configuration on the module; its numbers are open."""
        from peft import PeftModelForCausalLM

        is_meta = self.ids is None
        if is_meta and changes_base(raw_config):
            # How the base is replaced takes its weights; shapes do not.
            raw_config = {**raw_config, "init_lora_weights": True}
        config = adapter_config(raw_config)
        resolve(config, self._modules, self.model)

        # Repeated layers are copied, which PEFT cannot do while it makes empty ones.
        is_empty = is_meta and not raw_config.get("layer_replication")
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

    def _tensors(self, name: str) -> tensor_checks.State:
        """Return what PEFT would save of an adapter."""
        from peft import get_peft_model_state_dict

        # Its types know of no truth value for the embeddings.
        read_state: Any = get_peft_model_state_dict
        state = read_state(self.peft, adapter_name=name, save_embedding_layers=False)
        return dict(state)

    def _converted(self, name: str, state: tensor_checks.State) -> tensor_checks.State:
        """Return the tensors by the names of this version of transformers.

        Up to version 4 each expert was a module of its own; PEFT joins LoRA of experts
        as transformers joins their weights.
        """
        from peft.utils import transformers_weight_conversion as conversion

        convert: Any = conversion.convert_peft_adapter_state_dict_for_transformers
        config = self.config_of(name)
        return dict(convert(self.peft, config, state, adapter_name=name))

    def _refuse_differences(
        self, name: str, state: tensor_checks.State, base_source: str
    ) -> None:
        """Refuse a file whose tensors are not those of the adapter on this base.

        Raises
        ------
        CheckpointError
            With the tensor, and what to give instead.
        """
        file_shapes = {key: tensor.shape for key, tensor in state.items()}
        needed_shapes = {
            key: tensor.shape for key, tensor in self._tensors(name).items()
        }
        remedy = (
            f"{OTHER_BASE}, with the adapter_config.json of these weights, or "
            "merge adapter and base where they were trained, and give the result"
        )
        if is_part(file_shapes, needed_shapes):
            remedy = GATHER
        tensor_checks.refuse_differences(
            file_shapes,
            needed_shapes,
            tensor=f"does not fit the base {base_source}: adapter tensor",
            fix=remedy,
        )

    def _fill(self, name: str, state: tensor_checks.State) -> None:
        """Give an adapter the numbers of its file, and see that it has each of them."""
        from peft import set_peft_model_state_dict

        materialise(self.peft, name)
        with foreign("PEFT cannot load the adapter"):
            set_peft_model_state_dict(self.peft, state, adapter_name=name)
        for key, tensor in self._tensors(name).items():
            if not torch.equal(tensor, state[key].to(tensor)):
                raise CheckpointError(f"PEFT has not loaded the adapter's tensor {key}")

    def _check_effect(
        self, name: str, ids: torch.Tensor, *, replaces_base: bool
    ) -> None:
        """Refuse an adapter that changes nothing, or the base that others share."""
        if not replaces_base:
            with self.using(None):
                logits_off = logits(self.model, ids)  # (2, n, V)
            if not torch.allclose(logits_off, self._plain, rtol=1e-4, atol=1e-4):
                problem = "attaching the adapter changed the base's own weights"
                raise CheckpointError(
                    problem, fix="merge it and give the merged folder"
                )

        with self.using(name):
            logits_on = logits(self.peft, ids, whose="the model with the adapter")
        # A vocabulary that the adapter brings may be larger.
        n_common = min(logits_on.shape[-1], self._plain.shape[-1])
        if torch.equal(logits_on[..., :n_common], self._plain[..., :n_common]):
            problem = "the adapter changes nothing: the model's output is its base's"
            raise CheckpointError(problem, fix=NOT_TRAINED)

    @contextlib.contextmanager
    def using(
        self,
        name: str | None,
        *,
        noise: torch.Tensor | None = None,
        weights: Callable[[], Rounded] | None = None,
    ) -> Iterator[None]:
        """Switch exactly this adapter on, or none: ``model`` is then as without any.

        Parameters
        ----------
        noise
            Added to input embeddings, shape ``(rows, width)``.
        weights
            Makes those in the place of the module's own, called with all else as it
            will be.

        Raises
        ------
        RuntimeError
            If the module was freed.
        """
        if self.released:
            message = "this checkpoint was released when the next one was loaded"
            raise RuntimeError(message)

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
    file_shapes: Mapping[str, Sequence[int]],
    needed_shapes: Mapping[str, Sequence[int]],
) -> bool:
    """Return whether a file holds what one process of several saved of an adapter.

    Parameters
    ----------
    file_shapes, needed_shapes
        Shapes by name: of the file, and of the adapter that it should hold. A part has
        some of the tensors and no other, or an even slice of each in one direction.
    """
    if not file_shapes or not file_shapes.keys() <= needed_shapes.keys():
        return False

    is_sliced = False
    for name, file_shape in file_shapes.items():
        needed_shape = needed_shapes[name]
        if len(file_shape) != len(needed_shape):
            return False
        different = [
            (size, needed)
            for size, needed in zip(file_shape, needed_shape, strict=True)
            if size != needed
        ]
        if not different:
            continue
        if len(different) > 1:
            return False
        ((size, needed),) = different
        if not size or needed % size:
            return False
        is_sliced = True
    return is_sliced or len(file_shapes) < len(needed_shapes)


def _align(peft: Any) -> None:
    """Leave a prompt's virtual tokens out of the logits.

    PEFT puts them in front of the input, and its logits are longer by them; whoever
    scores wants one row per token that was fed, or the positions in a tensor
    ``logits_to_keep``.
    """
    peft_forward = peft.forward

    @functools.wraps(peft_forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        config = peft.active_peft_config
        positions = kwargs.get("logits_to_keep")  # (positions,) or None
        # A prefix is put into the cache, and has no logits of its own.
        n_virtual = 0
        if str(config.peft_type.value) != "PREFIX_TUNING":
            n_virtual = int(config.num_virtual_tokens)
        if n_virtual and positions is not None:
            # Positions that are counted from the end stay where they are.
            kwargs["logits_to_keep"] = torch.where(
                positions < 0, positions, positions + n_virtual
            )

        output = peft_forward(*args, **kwargs)
        if n_virtual and positions is None:
            output.logits = output.logits[:, n_virtual:]
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
        rows = noise
        if by_token:
            # Only the rows that are fed: a large vocabulary's noise is gigabytes.
            rows = noise[args[0].to(noise.device)]  # (B, T, H)
        rows = rows.to(output.device)
        wide = torch.promote_types(output.dtype, rows.dtype)
        return (output.to(wide) + rows).to(output.dtype)

    with model.get_input_embeddings().register_forward_hook(add):
        yield


def logits(
    model: PreTrainedModel, ids: torch.Tensor, *, whose: str = "the model"
) -> torch.Tensor:
    """Return a model's logits on the probe: shape ``(2, n, V)``, float32.

    Raises
    ------
    CheckpointError
        If it cannot be run on token ids alone, or gives NaN or infinity.
    """
    device = entry_device(model)
    with foreign("the model cannot be run"), torch.inference_mode():
        output: torch.Tensor = model(input_ids=ids.to(device), use_cache=False).logits
    if not bool(torch.isfinite(output).all()):
        remedy = None
        if output.dtype != torch.float32:
            remedy = "its dtype may be too narrow: try --dtype float32"
        raise CheckpointError(f"{whose} gives NaN or infinite logits", fix=remedy)
    return output.float().clone()


def materialise(model: PreTrainedModel, adapter: str) -> None:
    """Give an adapter memory where the layers that it is on compute.

    PEFT puts it where their weights are, which is nowhere while they are on disk: these
    layers compute in one place. The numbers are anybody's until the adapter's are
    filled in.
    """
    device: Any = "cpu"
    for layer in model.modules():
        hook = offload_hook(layer)
        if hook is not None and hook.offload:
            device = hook.execution_device
            break

    for path, layer in model.named_modules():
        for name, parameter in layer.named_parameters(recurse=False):
            # The adapter's name is one part of the path, or the parameter's own.
            if parameter.is_meta and adapter in (name, *path.split(".")):
                empty = torch.empty_like(parameter, device=device)
                layer._parameters[name] = torch.nn.Parameter(empty, requires_grad=False)
