"""Softmax pretraining of an encoder on the labelled examples."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from semimetric.core.draws import drawing
from semimetric.core.errors import DivergedError, InputError
from semimetric.data.stored import Inputs
from semimetric.encoders.features import output_width, training_mode
from semimetric.methods.starts import blank_linear
from semimetric.training.progress import Progress, Silent
from semimetric.training.settings import PretrainSettings


def pretrain(
    encoder: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    settings: PretrainSettings,
    seed: int,
    progress: Progress | None = None,
    freeze_norm: bool = False,
) -> float:
    """Train ``encoder`` with a linear softmax head and return the mean loss of the last epoch; the head is discarded.

    The head takes the place of the metric L, on the encoder's unnormalised outputs (Dutta, Harandi and Sekhar, AAAI
    2021). The learning rate falls to zero along a half cosine.
    """
    if settings.pretrain_flip and inputs.ndim != 4:
        raise InputError(f"pretrain_flip mirrors images (N, C, H, W), got inputs of shape {tuple(inputs.shape)}.")
    with drawing(seed, inputs.device, encoder):
        return _pretrain(encoder, inputs, labels, settings, seed, progress or Silent(), freeze_norm)


def _pretrain(
    encoder: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    settings: PretrainSettings,
    seed: int,
    progress: Progress,
    freeze_norm: bool,
) -> float:
    generator = torch.Generator().manual_seed(seed)
    device = inputs.device
    classes, targets = torch.unique(labels, return_inverse=True)
    head = blank_linear(output_width(encoder, inputs), len(classes))
    nn.init.normal_(head.weight, std=0.01, generator=generator)
    nn.init.zeros_(head.bias)
    head.to(device)
    parameters, decay = [*encoder.parameters(), *head.parameters()], settings.pretrain_weight_decay
    optimizer = torch.optim.SGD(parameters, lr=settings.pretrain_lr, momentum=0.9, weight_decay=decay)
    batches = -(-len(inputs) // settings.pretrain_batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.pretrain_epochs * batches)
    training_mode(encoder, freeze_norm)
    mean_loss = float("nan")
    for epoch in range(1, settings.pretrain_epochs + 1):
        losses = []
        for rows in torch.randperm(len(inputs), generator=generator).split(settings.pretrain_batch_size):
            batch = inputs[rows.to(device)]
            if settings.pretrain_flip:
                batch = _flip_some(batch, generator)
            loss = nn.functional.cross_entropy(head(encoder(batch)), targets[rows.to(device)])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
        mean_loss = float(torch.stack(losses).mean())
        progress.stage("softmax training", epoch, settings.pretrain_epochs)
        if not math.isfinite(mean_loss):
            raise DivergedError(
                f"the softmax training diverged in epoch {epoch}: its loss is {mean_loss}. Use a smaller --pretrain-lr."
            )
    encoder.eval()
    return mean_loss


def _flip_some(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each image left-right with probability 1/2."""
    mirrored = (torch.rand(len(images), generator=generator) < 0.5).to(images.device)
    return torch.where(mirrored[:, None, None, None], images.flip(3), images)
