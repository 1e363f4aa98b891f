"""GPT-2's layers shared among processes: transformers plans linear ones only."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor
from transformers.distributed import tensor_parallel
from transformers.distributed.tensor_parallel import TensorParallelLayer

STYLE = "conv1d_gather_output"
LAYERS = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
PLANS = {"gpt2": {f"transformer.h.*.{name}": STYLE for name in LAYERS}}
"""Type of model -> which of its layers are shared, as transformers writes plans."""


class _Outputs(TensorParallelLayer):
    """Each process computes some outputs of a ``Conv1D``, and all get all of them.

    What goes in and comes out is whole: neither heads nor adapters need to know.
    """

    def shard_param(self, module: Any, param: str, mesh: Any) -> None:
        whole = module._parameters[param]
        own = distribute_tensor(
            whole, mesh, [Shard(whole.ndim - 1)], src_data_rank=None
        )
        module._parameters[param] = torch.nn.Parameter(own, whole.requires_grad)

    def install_forward(self, module: Any, mesh: Any) -> Any:
        def forward(hidden: torch.Tensor) -> torch.Tensor:
            weight, bias = (one.to_local() for one in (module.weight, module.bias))
            rows = hidden.reshape(-1, hidden.shape[-1])
            own = torch.addmm(bias, rows, weight)
            parts = [torch.empty_like(own) for _ in range(mesh.size())]
            dist.all_gather(parts, own, group=mesh.get_group())
            return torch.cat(parts, 1).view(*hidden.shape[:-1], module.nf)

        module.forward = forward
        return module


def plan_of(config: Any) -> dict[str, str] | None:
    """Our plan for a model; ``None`` where there is none."""
    return PLANS.get(config.model_type)


def odd_outputs(model: torch.nn.Module, count: int) -> bool:
    """Whether some layer's outputs cannot be dealt to processes evenly."""
    return any(getattr(layer, "nf", count) % count for layer in model.modules())


# Defined in one module by some versions and in another by others; here in all.
_styles: Any = tensor_parallel
_styles.ALL_PARALLEL_STYLES.register(STYLE, _Outputs())
