from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.training import Silent, TrainingSettings
from semimetric.training.optimizer import (
    build_optimizer,
    create_state,
    learning_rate,
    optimizer_tensors,
    restore_optimizer,
    set_learning_rate,
)


def parameters(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((3, 2), (3,))]


def take_steps(optimizer: torch.optim.Optimizer, seeds: range, size: float = 1.0) -> list[Tensor]:
    held = optimizer.param_groups[0]["params"]
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        for parameter in held:
            parameter.grad = size * torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    return [parameter.detach().clone() for parameter in held]


def test_a_half_cosine_from_lr_at_the_first_epoch() -> None:
    settings = TrainingSettings(lr=0.4, lr_schedule="cosine", epochs=10)
    assert learning_rate(settings, 1) == 0.4
    assert learning_rate(settings, 6) == pytest.approx(0.2)
    assert learning_rate(settings, 10) == pytest.approx(0.4 * (1 + math.cos(0.9 * math.pi)) / 2)
    rates = [learning_rate(settings, epoch) for epoch in range(1, 11)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 0
    assert learning_rate(settings, 11) == pytest.approx(0.0, abs=1e-12)


def test_a_single_epoch_is_at_full_rate() -> None:
    assert learning_rate(TrainingSettings(lr=0.4, lr_schedule="cosine", epochs=1), 1) == 0.4


def test_constant_is_constant() -> None:
    settings = TrainingSettings(lr=0.4, epochs=10)
    assert {learning_rate(settings, epoch) for epoch in range(1, 11)} == {0.4}


def test_a_trainer_follows_the_schedule(make_trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(lr_schedule="cosine", epochs=4)
    seen: list[float] = []
    step = trainer.optimizer.step
    monkeypatch.setattr(
        trainer.optimizer, "step", lambda: seen.append(trainer.optimizer.param_groups[0]["lr"]) or step()
    )
    trainer.fit()
    expected = [1e-6 * (1 + math.cos(math.pi * done / 4)) / 2 for done in range(4)]
    assert seen == [pytest.approx(rate) for rate in expected for _ in range(len(seen) // 4)]
    assert len(seen) >= 4


@pytest.mark.parametrize("decay", [0.0, 0.02])
@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("sgd", torch.optim.SGD, {"momentum": 0.0}),
        ("sgd", torch.optim.SGD, {"momentum": 0.7}),
        ("sgd", torch.optim.SGD, {"momentum": 0.7, "nesterov": True}),
        ("adam", torch.optim.Adam, {}),
        ("adamw", torch.optim.AdamW, {}),
    ],
)
def test_on_a_cpu_steps_are_those_of_torch_bit_for_bit(name, kind, options, decay: float) -> None:
    settings = TrainingSettings(optimizer=name, lr=0.1, weight_decay=decay, **options)
    ours, theirs = build_optimizer(settings, parameters()), kind(parameters(), 0.1, weight_decay=decay, **options)
    for optimizer in (ours, theirs):
        take_steps(optimizer, range(3))
        set_learning_rate(optimizer, 0.03)
    again = build_optimizer(settings, parameters())
    restore_optimizer(again, optimizer_tensors(ours))
    for held, parameter in zip(again.param_groups[0]["params"], ours.param_groups[0]["params"], strict=True):
        held.data.copy_(parameter.data)
    set_learning_rate(again, 0.03)
    ends = [take_steps(optimizer, range(3, 6)) for optimizer in (ours, theirs, again)]
    for one, other, resumed in zip(*ends, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, resumed)
    assert {*optimizer_tensors(ours)} == {*optimizer_tensors(theirs)}


def test_an_optimiser_imports_no_compiler() -> None:
    code = "import sys, torch; from semimetric.training import TrainingSettings\n"
    code += "from semimetric.training.optimizer import build_optimizer\n"
    code += "weight = torch.nn.Parameter(torch.ones(2)); weight.grad = torch.ones(2)\n"
    code += "build_optimizer(TrainingSettings(lr=0.1), [weight]).step(); assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_adamw_decays_weights_beside_the_step_and_adam_within_it() -> None:
    lr, decay = 0.1, 0.05
    start = [parameter.detach().clone() for parameter in parameters()]

    def ends(name: str, weight_decay: float) -> list[Tensor]:
        settings = TrainingSettings(optimizer=name, lr=lr, weight_decay=weight_decay)
        return take_steps(build_optimizer(settings, parameters()), range(1))

    for plain, decayed, before in zip(ends("adamw", 0.0), ends("adamw", decay), start, strict=True):
        torch.testing.assert_close(decayed, plain - lr * decay * before)
    for plain, other in zip(ends("adam", 0.0), ends("adamw", 0.0), strict=True):
        torch.testing.assert_close(plain, other)
    assert any(not torch.allclose(a, b) for a, b in zip(ends("adam", decay), ends("adamw", decay), strict=True))


def test_a_learning_rate_that_is_a_tensor_is_set_in_place() -> None:
    rate = torch.tensor(0.1)
    optimizer = torch.optim.SGD(parameters(), lr=rate)
    set_learning_rate(optimizer, 0.025)
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(0.025)
    plain = torch.optim.SGD([{"params": [each]} for each in parameters()], lr=0.1)
    set_learning_rate(plain, 0.025)
    assert [group["lr"] for group in plain.param_groups] == [0.025, 0.025]


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_an_optimiser_continues_from_its_tensors(name: str) -> None:
    settings = TrainingSettings(optimizer=name, lr=0.1, weight_decay=0.02)
    whole = build_optimizer(settings, parameters())
    half = take_steps(whole, range(3))
    tensors = {key: tensor.clone() for key, tensor in optimizer_tensors(whole).items()}
    assert all(key.startswith("optimizer.") for key in tensors)
    end = take_steps(whole, range(3, 6))
    again = build_optimizer(settings, [nn.Parameter(tensor) for tensor in half])
    restore_optimizer(again, tensors)
    assert all(torch.equal(a, b) for a, b in zip(take_steps(again, range(3, 6)), end, strict=True))
    fresh = build_optimizer(settings, [nn.Parameter(tensor) for tensor in half])
    assert any(not torch.equal(a, b) for a, b in zip(take_steps(fresh, range(3, 6)), end, strict=True))


def test_nothing_to_train_is_refused_unless_nothing_is_asked() -> None:
    with pytest.raises(InputError, match=r"no parameters to train\. Set lr to 0"):
        build_optimizer(TrainingSettings(lr=0.1), [])
    nothing = build_optimizer(TrainingSettings(lr=0.0, momentum=0.0), [])
    assert nothing.param_groups
    create_state(nothing)  # before a GPU records steps of the metric alone
    assert not nothing.state


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "lion"}, "optimizer must be one of sgd, adam, adamw, got 'lion'"),
        ({"lr_schedule": "steps"}, "lr_schedule must be one of constant, cosine, slow-cosine, got 'steps'"),
        ({"precision": "float16"}, "precision must be one of float32, bfloat16"),
        ({"average": 1.0}, r"average must be in \[0, 1\), got 1.0"),
        ({"average": -0.1}, r"average must be in \[0, 1\), got -0.1"),
        ({"hold_back": 1.0}, r"hold_back must be in \[0, 1\), got 1.0"),
        ({"passes": 0}, "passes must be at least 1, got 0"),
        ({"weight_decay": -1.0}, "weight_decay must be a finite number of at least 0"),
        ({"epochs": -1}, "epochs must be at least 0, got -1"),
        ({"warmup": -1}, "warmup must be at least 0, got -1"),
        ({"decay": "biases"}, "decay must be one of all, matrices, got 'biases'"),
        ({"nesterov": True, "optimizer": "adam"}, "nesterov is a momentum of SGD, got optimizer 'adam'"),
        ({"nesterov": True, "optimizer": "adamw"}, "got optimizer 'adamw'. Leave nesterov out, or set optimizer to"),
        ({"nesterov": True, "momentum": 0.0}, "nesterov is a momentum of SGD, got momentum 0"),
    ],
)
def test_bad_settings_are_named(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainingSettings(**changes)


def test_passes_go_over_the_constraints_again(make_trainer) -> None:
    class Count(Silent):
        def batch(self, epoch: int, done: int, total: int) -> None:
            seen.append((done, total))

    ends = []
    for passes in (1, 3):
        seen: list[tuple[int, int]] = []
        trainer = make_trainer(passes=passes, metric_every="epoch")
        trainer.progress = Count()
        trainer._train_epoch()
        assert [done for done, _ in seen] == list(range(1, len(seen) + 1))
        assert {total for _, total in seen} == {len(seen)}
        ends.append(len(seen))
    assert ends[1] == 3 * ends[0] > 3
