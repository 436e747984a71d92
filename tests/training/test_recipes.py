"""Training as semi-supervised papers do it: Nesterov's momentum, selective weight decay, slow cosine and warm-up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semimetric.encoders import encode, unit_features
from semimetric.methods import build_method
from semimetric.training import Run, Silent, Trainer, TrainingSettings
from semimetric.training.optimizer import (
    build_optimizer,
    create_state,
    learning_rate,
    optimizer_tensors,
    restore_optimizer,
    set_learning_rate,
)

RECIPES: dict[str, dict[str, Any]] = {
    "nesterov": {"nesterov": True},
    "matrices": {"decay": "matrices"},
    "slow-cosine": {"lr_schedule": "slow-cosine"},
    "warmup": {"warmup": 2},
    "all": {"nesterov": True, "decay": "matrices", "lr_schedule": "slow-cosine", "warmup": 3},
    "adamw": {"optimizer": "adamw", "decay": "matrices", "lr_schedule": "cosine", "warmup": 1, "lr": 1e-3},
    "adam": {"optimizer": "adam", "decay": "matrices", "lr_schedule": "slow-cosine", "lr": 1e-3},
}
RECIPE = pytest.mark.parametrize("recipe", RECIPES)
SHAPES = ((4, 3), (4,), (2, 3, 1, 1), ())


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def gradients(steps: range) -> list[list[Tensor]]:
    """Gradients of each step, in the order of ``parameters``."""
    return [
        [torch.randn(shape, generator=generator) for shape in SHAPES]
        for generator in (torch.Generator().manual_seed(100 + step) for step in steps)
    ]


def take_steps(optimizer: torch.optim.Optimizer, held: list[nn.Parameter], steps: range) -> list[Tensor]:
    for grads in gradients(steps):
        for parameter, grad in zip(held, grads, strict=True):
            parameter.grad = grad.clone()
        optimizer.step()
    return [parameter.detach().clone() for parameter in held]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


# --- learning rates


@pytest.mark.parametrize("epochs", [1, 2, 7, 50, 90])
def test_without_warm_up_the_former_rates_are_what_they_were(epochs: int) -> None:
    for epoch in range(1, epochs + 1):
        for share in (0.0, 0.3, 1.0):
            half_cosine = 0.3 * (1 + math.cos(math.pi * (epoch - 1) / epochs)) / 2
            settings = TrainingSettings(lr=0.3, lr_schedule="cosine", epochs=epochs)
            assert learning_rate(settings, epoch, share) == half_cosine
            assert learning_rate(TrainingSettings(lr=0.3, epochs=epochs), epoch, share) == 0.3


def test_the_slow_cosine_ends_at_a_fifth() -> None:
    settings = TrainingSettings(lr=0.03, lr_schedule="slow-cosine", epochs=8)
    rates = [learning_rate(settings, epoch) for epoch in range(1, 10)]
    assert rates[0] == 0.03
    assert rates == [pytest.approx(0.03 * math.cos(7 * math.pi * t / 16)) for t in torch.arange(9) / 8]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] / 0.03 == pytest.approx(0.195, abs=1e-3)


def test_a_warm_up_rises_with_every_step_to_the_rate_of_the_schedule() -> None:
    settings = TrainingSettings(lr=0.4, warmup=2, epochs=4)
    rates = [learning_rate(settings, epoch, step / 5) for epoch in (1, 2, 3) for step in range(1, 6)]
    assert rates[:10] == [pytest.approx(0.4 * step / 10) for step in range(1, 11)]
    assert rates[9:] == [0.4] * 6
    falling = TrainingSettings(lr=0.4, warmup=2, epochs=4, lr_schedule="slow-cosine")
    assert learning_rate(falling, 2, 0.5) == pytest.approx(0.75 * 0.4 * math.cos(7 * math.pi / 64))
    longer = TrainingSettings(lr=0.4, warmup=8, epochs=4)
    assert learning_rate(longer, 4, 1.0) == pytest.approx(0.2)


# --- optimisers


def naive_steps(settings: TrainingSettings, steps: int) -> list[Tensor]:
    """SGD, Adam and AdamW from their formulas."""
    lr, mu, decay = settings.lr, settings.momentum, settings.weight_decay
    values = [parameter.detach().clone() for parameter in parameters()]
    first, second = ([torch.zeros_like(value) for value in values] for _ in range(2))
    for step, grads in enumerate(gradients(range(steps)), 1):
        for i, (value, grad) in enumerate(zip(values, grads, strict=True)):
            decayed = settings.decay == "all" or value.ndim >= 2
            if settings.optimizer == "adamw":
                value *= 1 - lr * decay * decayed
            else:
                grad = grad + decay * decayed * value
            if settings.optimizer == "sgd":
                first[i] = mu * first[i] + grad
                value -= lr * (grad + mu * first[i] if settings.nesterov else first[i])
                continue
            first[i] = 0.9 * first[i] + 0.1 * grad
            second[i] = 0.999 * second[i] + 0.001 * grad.square()
            value -= lr * (first[i] / (1 - 0.9**step)) / ((second[i] / (1 - 0.999**step)).sqrt() + 1e-8)
    return values


@pytest.mark.parametrize("decay", ["all", "matrices"])
@pytest.mark.parametrize("kind", ["sgd", "nesterov", "adam", "adamw"])
def test_steps_are_those_of_the_formulas(kind: str, decay: str) -> None:
    chosen = {"optimizer": "sgd", "nesterov": True} if kind == "nesterov" else {"optimizer": kind}
    settings = TrainingSettings(lr=0.05, weight_decay=0.1, decay=decay, **chosen)
    held = parameters()
    ends = take_steps(build_optimizer(settings, held[:2], held[2:]), held, range(6))
    for found, expected in zip(ends, naive_steps(settings, 6), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_decay_of_matrices_leaves_out_biases_and_normalisation(name: str) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    head = nn.Linear(2, 3)
    settings = TrainingSettings(optimizer=name, lr=0.1, weight_decay=0.02, decay="matrices")
    optimizer = build_optimizer(settings, list(network.parameters()), list(head.parameters()))
    decayed, free = optimizer.param_groups
    matrices = [network[0].weight, network[3].weight, head.weight]
    assert [id(parameter) for parameter in decayed["params"]] == [id(parameter) for parameter in matrices]
    others = [network[0].bias, network[1].weight, network[1].bias, network[3].bias, head.bias]
    assert [id(parameter) for parameter in free["params"]] == [id(parameter) for parameter in others]
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.02, 0.0)
    assert decayed["lr"] == free["lr"] == 0.1


def test_a_group_without_parameters_is_left_out() -> None:
    settings = TrainingSettings(lr=0.1, decay="matrices")
    assert len(build_optimizer(settings, list(nn.Linear(2, 3, bias=False).parameters())).param_groups) == 1
    (group,) = build_optimizer(settings, list(nn.BatchNorm1d(3).parameters())).param_groups
    assert group["weight_decay"] == 0.0
    assert build_optimizer(TrainingSettings(lr=0.0, decay="matrices"), []).param_groups


@RECIPE
def test_an_optimiser_continues_from_its_tensors(recipe: str) -> None:
    settings = TrainingSettings(**({"lr": 0.1, "weight_decay": 0.02} | RECIPES[recipe]))
    held = parameters()
    whole = build_optimizer(settings, held)
    half = take_steps(whole, held, range(3))
    tensors = {key: tensor.clone() for key, tensor in optimizer_tensors(whole).items()}
    end = take_steps(whole, held, range(3, 6))
    again, fresh = ([nn.Parameter(tensor.clone()) for tensor in half] for _ in range(2))
    optimizer = build_optimizer(settings, again)
    restore_optimizer(optimizer, tensors)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [
        group["weight_decay"] for group in whole.param_groups
    ]
    assert same(take_steps(optimizer, again, range(3, 6)), end)
    assert not same(take_steps(build_optimizer(settings, fresh), fresh, range(3, 6)), end)


@RECIPE
def test_state_made_before_a_recording_leaves_no_trace(recipe: str) -> None:
    settings = TrainingSettings(**({"lr": 0.1, "weight_decay": 0.02} | RECIPES[recipe]))
    held, plain = parameters(), parameters()
    optimizer = build_optimizer(settings, held)
    create_state(optimizer)
    assert same([*held], [*parameters()])
    assert len(optimizer.state) == len(held)
    assert all(not tensor.any() for values in optimizer.state.values() for tensor in values.values())
    assert same(take_steps(optimizer, held, range(4)), take_steps(build_optimizer(settings, plain), plain, range(4)))


def test_a_learning_rate_that_is_a_tensor_reaches_all_groups() -> None:
    rate, held, plain = torch.tensor(0.1), parameters(), parameters()
    groups = [{"params": held[::2], "weight_decay": 0.1}, {"params": held[1::2], "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=rate, momentum=0.9, nesterov=True)
    rates = [group["lr"] for group in optimizer.param_groups]
    set_learning_rate(optimizer, 0.025)
    assert all(group["lr"] is before for group, before in zip(optimizer.param_groups, rates, strict=True))
    assert [float(group["lr"]) for group in optimizer.param_groups] == [pytest.approx(0.025)] * 2
    settings = TrainingSettings(lr=0.025, weight_decay=0.1, decay="matrices", nesterov=True)
    expected = take_steps(build_optimizer(settings, plain), plain, range(3))
    for found, wanted in zip(take_steps(optimizer, held, range(3)), expected, strict=True):
        torch.testing.assert_close(found, wanted)


# --- whole trainings


def plain_loop(
    trainer: Trainer, optimizer: torch.optim.Optimizer, epochs: int, rate: Callable[[float, int], float]
) -> Iterator[list[Tensor]]:
    """Algorithm 1 without the trainer: the weights after each epoch; ``rate`` is a function of epochs done and epoch.

    The trainer lends its encoder, method, data and generator, none of which it has used before.
    """
    encoder, method, metric, data = trainer.encoder, trainer.method, trainer.metric, trainer.data
    held = [*encoder.parameters(), *method.parameters()]
    torch.manual_seed(0)  # dropout
    for epoch in range(1, epochs + 1):
        rows = torch.cat([data.labelled, trainer.schedule.for_epoch(epoch)])
        method.on_epoch_begin(epoch)
        features = encode(encoder, data.inputs[rows])
        constraints = method.constraints(features, data.labels[rows])
        method.statistics(metric, features, constraints)
        metric = method.update_metric(metric, features, constraints)
        size = min(trainer.settings.batch_size, len(constraints))
        steps = len(constraints) // size
        encoder.train()
        for step, batch in enumerate(constraints.minibatches(size, trainer.generator), 1):
            for group in optimizer.param_groups:
                group["lr"] = rate(epoch - 1 + step / steps, epoch)
            optimizer.zero_grad()
            method.loss(metric, unit_features(encoder(data.inputs[rows[batch.nodes]])), batch).backward()
            optimizer.step()
        encoder.eval()
        yield [parameter.detach().clone() for parameter in held]


def trainer_of(make_trainer, settings: TrainingSettings) -> Trainer:
    like = make_trainer()
    torch.manual_seed(0)
    return Trainer(like.encoder, build_method("affinity-triplets", components=4, k=6), like.data, settings)


def trained(make_trainer, settings: TrainingSettings) -> list[Tensor]:
    trainer = trainer_of(make_trainer, settings)
    trainer.fit()
    return [*(p.detach() for p in trainer.encoder.parameters()), *(p.detach() for p in trainer.method.parameters())]


def test_two_epochs_with_the_defaults_are_those_of_a_plain_loop(make_trainer) -> None:
    settings = TrainingSettings(epochs=2, selection="last")
    trainer = trainer_of(make_trainer, settings)
    held = [*trainer.encoder.parameters(), *trainer.method.parameters()]
    start = [parameter.detach().clone() for parameter in held]
    optimizer = torch.optim.SGD(held, lr=1e-7, momentum=0.9, weight_decay=5e-4)
    *_, end = plain_loop(trainer, optimizer, 2, lambda done, epoch: 1e-7)
    assert same(trained(make_trainer, settings), end)
    assert not same(start, end)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_epochs_of_a_half_cosine_are_those_of_a_plain_loop(make_trainer, name: str) -> None:
    settings = TrainingSettings(
        epochs=2, batch_size=20, selection="last", lr_schedule="cosine", optimizer=name, lr=1e-5
    )
    trainer = trainer_of(make_trainer, settings)
    held = [*trainer.encoder.parameters(), *trainer.method.parameters()]
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    momentum = {"momentum": 0.9} if name == "sgd" else {}
    optimizer = kinds[name](held, lr=1e-5, weight_decay=5e-4, **momentum)
    *_, end = plain_loop(
        trainer, optimizer, 2, lambda done, epoch: 1e-5 * (1 + math.cos(math.pi * (epoch - 1) / 2)) / 2
    )
    assert same(trained(make_trainer, settings), end)


class DecaysMatrices(torch.optim.SGD):
    """Nesterov's SGD that adds the decay of matrices to their gradients itself."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            if parameter.ndim >= 2:
                parameter.grad.add_(parameter.detach(), alpha=0.1)
        super().step()


def test_the_whole_recipe_is_that_of_a_plain_loop(make_trainer) -> None:
    recipe = {"nesterov": True, "decay": "matrices", "lr_schedule": "slow-cosine", "warmup": 2}
    settings = TrainingSettings(epochs=4, batch_size=20, lr=1e-5, weight_decay=0.1, selection="last", **recipe)
    trainer = trainer_of(make_trainer, settings)
    optimizer = DecaysMatrices(list(trainer.encoder.parameters()), lr=1.0, momentum=0.9, nesterov=True)

    def rate(done: float, epoch: int) -> float:
        return 1e-5 * min(1.0, done / 2) * math.cos(7 * math.pi * (epoch - 1) / 64)

    *_, end = plain_loop(trainer, optimizer, 4, rate)
    for found, expected in zip(trained(make_trainer, settings), end, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("passes", [1, 2])
def test_a_trainer_warms_up_step_by_step(make_trainer, monkeypatch: pytest.MonkeyPatch, passes: int) -> None:
    trainer = make_trainer(warmup=2, epochs=4, decay="matrices", passes=passes, selection="last")
    seen: list[tuple[float, ...]] = []
    step = trainer.optimizer.step
    rates = lambda: tuple(group["lr"] for group in trainer.optimizer.param_groups)  # noqa: E731
    monkeypatch.setattr(trainer.optimizer, "step", lambda: seen.append(rates()) or step())
    trainer.fit()
    steps = len(seen) // 4
    assert steps >= 4
    expected = [min(1e-6, 1e-6 * (i + 1) / (2 * steps)) for i in range(4 * steps)]
    assert seen == [(pytest.approx(rate), pytest.approx(rate)) for rate in expected]


class Interrupt(Silent):
    """Presses Ctrl-C in the second step of an epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch_of_it = epoch

    def batch(self, epoch: int, done: int, total: int) -> None:
        if (epoch, done) == (self.epoch_of_it, 2):
            raise KeyboardInterrupt


@RECIPE
@pytest.mark.parametrize("stop_in", [2, 3])
@pytest.mark.parametrize("method", ["affinity-triplets", "consensus"])
def test_an_interrupted_run_resumes_bit_for_bit(
    make_trainer, tmp_path: Path, recipe: str, stop_in: int, method: str
) -> None:
    settings = {"method": method, "average": 0.9, "passes": 2, "selection": "last"} | RECIPES[recipe]
    whole_run, broken_run = Run.create(tmp_path / "whole", {}), Run.create(tmp_path / "broken", {})
    make_trainer(whole_run, **settings).fit()
    trainer = make_trainer(broken_run, **settings)
    trainer.progress = Interrupt(stop_in)
    assert trainer.fit().interrupted
    make_trainer(broken_run, **settings).fit()
    whole, broken = (run.read_tensors("checkpoint.safetensors")[0] for run in (whole_run, broken_run))
    assert whole.keys() == broken.keys()
    assert any(name.startswith("optimizer.") for name in whole)
    assert all(torch.equal(whole[name], broken[name]) for name in whole)


@RECIPE
def test_every_recipe_matters(make_trainer, recipe: str) -> None:
    settings = {"lr": 1e-5, "weight_decay": 0.1, "selection": "last"} | RECIPES[recipe]
    plain = {
        name: value for name, value in settings.items() if name in ("lr", "weight_decay", "selection", "optimizer")
    }
    ends = []
    for chosen in (settings, plain):
        trainer = make_trainer(**chosen)
        trainer.fit()
        ends.append([parameter.detach() for parameter in trainer.encoder.parameters()])
    assert not same(*ends)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
@RECIPE
def test_a_recorded_step_trains_what_a_plain_one_trains(make_trainer, recipe: str) -> None:
    settings = {"method": "consensus", "lr": 1e-2, "average": 0.9, "selection": "last", "metric_every": "epoch"}
    settings |= RECIPES[recipe]
    ends = []
    for recorded in (True, False):
        like = make_trainer(**settings)
        encoder = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 8))
        torch.manual_seed(0)
        for parameter in encoder.parameters():
            nn.init.normal_(parameter, std=0.3)
        method = build_method("consensus", k=6, augmentation="none")
        trainer = Trainer(encoder, method, like.data, like.settings, device="cuda")
        assert all(isinstance(group["lr"], Tensor) for group in trainer.optimizer.param_groups)
        assert trainer.step._graphed is not None
        if not recorded:
            trainer.step._graphed = None
        trainer.fit()
        ends.append(trainer.encoder.state_dict())
    for name, tensor in ends[0].items():
        torch.testing.assert_close(tensor, ends[1][name], rtol=2e-2, atol=2e-3, msg=name)
