"""Loss and accuracy over all samples of all ranks. Taught in ``notebooks/05_training_loop.ipynb``."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Subset

from .environment import Environment


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, env: Environment) -> tuple[float, float]:
    """Return mean loss and accuracy (0 to 1) over all samples of all ranks, exact for any number of them.

    A collective: every rank calls it with its own :func:`eval_loader`. Raises ``ValueError`` if there is no sample,
    ``TypeError`` for a data set in place of a loader.
    """
    if not isinstance(loader, DataLoader):
        raise TypeError(f"evaluate takes a loader, as eval_loader returns it, not {type(loader).__name__}")
    # The module itself: a forward through the wrapper broadcasts BatchNorm's buffers, and a rank whose share is empty
    # would not be there to take part.
    module = getattr(model, "module", model)
    was_training = module.training
    module.eval()
    for buffer in module.buffers():
        # BatchNorm's statistics are each rank's own since the last step. Rank 0's count, as in DDP's next forward.
        dist.broadcast(buffer, src=0)
    sums = torch.zeros(3, dtype=torch.float64, device=env.device)
    for inputs, targets in loader:
        inputs, targets = to_device(inputs, targets, loader, env)
        outputs = module(inputs)
        correct = (outputs.argmax(dim=1) == targets).sum()
        sums += torch.stack([F.cross_entropy(outputs, targets, reduction="sum"), correct, len(targets) + 0 * correct])
    module.train(was_training)
    dist.all_reduce(sums)  # sums first, one division at the end: a mean of means is wrong for unequal shares
    loss, correct, count = sums.tolist()
    if not count:
        raise ValueError("there is no sample to evaluate on")
    return loss / count, correct / count


def to_device(
    inputs: torch.Tensor, targets: torch.Tensor, loader: DataLoader, env: Environment
) -> tuple[torch.Tensor, torch.Tensor]:
    """Move a batch of ``loader`` to the rank's device, where bytes become normalised floats."""
    inputs = inputs.to(env.device, non_blocking=True)
    # Images travel as bytes, a quarter of the floats they become; other data sets hand out floats themselves.
    dataset = loader.dataset
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    normalise = getattr(dataset, "normalise", None)
    return inputs if normalise is None else normalise(inputs), targets.to(env.device, non_blocking=True)
