from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from semimetric.training import Run, Silent
from semimetric.training.average import RunningAverage

AVERAGED = {"average": 0.9, "optimizer": "adamw", "lr": 1e-3, "selection": "last"}


def network() -> nn.Sequential:
    """A network with weights, running means of batches and an integer counter."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def take_step(module: nn.Module, seed: int) -> None:
    """Move the weights a little, and what batch normalisation has counted."""
    generator = torch.Generator().manual_seed(seed)
    module(2 * torch.randn(8, 4, generator=generator) + 1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


def follow_steps(average: RunningAverage, module: nn.Module, steps: range) -> None:
    average.swap()
    for seed in steps:
        take_step(module, seed)
        average.follow()
    average.swap()


@pytest.mark.parametrize("keep", [0.5, 0.95])
def test_it_is_the_average_of_a_plain_loop_that_leaves_its_start_quickly(keep: float) -> None:
    module, naive = network(), network()
    average = RunningAverage([module], keep)
    expected = copied(naive)
    for t in range(1, 31):
        take_step(naive, t)
        kept = min(keep, (1 + t) / (10 + t))
        for name, tensor in naive.state_dict().items():
            if tensor.is_floating_point():
                expected[name] = kept * expected[name] + (1 - kept) * tensor
    follow_steps(average, module, range(1, 31))
    found = module.state_dict()
    assert {"1.running_mean", "1.running_var"} <= found.keys()
    for name, tensor in found.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, expected[name])
            assert not torch.equal(tensor, naive.state_dict()[name])
    average.swap()
    assert same(copied(module), copied(naive))


def test_the_first_step_counts_for_nine_elevenths() -> None:
    module = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(module.weight)
    average = RunningAverage([module], 0.999)
    average.swap()
    nn.init.ones_(module.weight)
    average.follow()
    average.swap()
    assert float(module.weight.detach()) == pytest.approx(9 / 11)


def test_without_a_warm_up_it_leaves_its_start_slowly() -> None:
    module, naive = network(), network()
    average = RunningAverage([module], 0.95, warm_up=False)
    expected = copied(naive)
    for t in range(1, 6):
        take_step(naive, t)
        expected = {
            name: 0.95 * tensor + 0.05 * naive.state_dict()[name] if tensor.is_floating_point() else tensor
            for name, tensor in expected.items()
        }
    follow_steps(average, module, range(1, 6))
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, expected[name])


def test_settings_say_whether_it_warms_up(make_trainer) -> None:
    moved = {}
    for warm_up in (True, False):
        trainer = make_trainer(**(AVERAGED | {"average_warmup": warm_up, "epochs": 1, "average": 0.999}))
        start = [tensor.clone() for tensor in trainer.encoder.parameters()]
        trainer.fit()
        gaps = zip(trainer.encoder.parameters(), start, strict=True)
        moved[warm_up] = sum(float((tensor - before).abs().sum().detach()) for tensor, before in gaps)
    assert 0 < 2 * moved[False] < moved[True]


def test_swapping_twice_changes_nothing_and_tensors_stay_in_place() -> None:
    module = network()
    average = RunningAverage([module], 0.9)
    follow_steps(average, module, range(3))
    before, others = copied(module), [tensor.clone() for tensor in average.others]
    places = [tensor.data_ptr() for tensor in (*module.state_dict().values(), *average.changed())]
    average.swap()
    assert not same(before, copied(module))
    average.swap()
    assert same(before, copied(module))
    assert all(torch.equal(a, b) for a, b in zip(average.others, others, strict=True))
    follow_steps(average, module, range(3, 5))
    assert places == [tensor.data_ptr() for tensor in (*module.state_dict().values(), *average.changed())]


def test_integers_are_left_alone() -> None:
    module = network()
    average = RunningAverage([module], 0.9)
    follow_steps(average, module, range(5))
    assert int(module[1].num_batches_tracked) == 5
    average.swap()
    assert int(module[1].num_batches_tracked) == 5
    assert len(average.others) == len(module.state_dict()) - 1


def test_several_modules_and_modules_without_weights() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(3, 1)
    average = RunningAverage([first, nn.ReLU(), second], 0.5)
    assert len(average.others) == 4
    empty = RunningAverage([nn.ReLU()], 0.5)
    empty.swap()
    empty.follow()
    assert int(empty.steps) == 1


def test_of_some_modules_the_parameters_alone_are_averaged() -> None:
    encoder, method = network(), network()
    average = RunningAverage([encoder], 0.9, [method])
    buffers = sum(tensor.is_floating_point() for tensor in method.buffers())
    assert len(average.others) == 2 * len(list(encoder.parameters())) + buffers
    average.begin()
    with torch.no_grad():
        method[1].running_mean.add_(1.0)
        method[0].weight.add_(1.0)
    kept = method[1].running_mean.clone()
    weight = method[0].weight.detach().clone()
    average.follow()
    average.swap()
    assert torch.equal(method[1].running_mean, kept)
    assert not torch.equal(method[0].weight, weight)


def test_averages_by_name_make_another_network_of_the_module() -> None:
    """As a teacher is called: the trained weights and the statistics of batches stay as they are."""
    module, method = network(), nn.Linear(3, 2)
    method.register_buffer("bank", torch.ones(2))
    average = RunningAverage([module], 0.9, [method])
    follow_steps(average, module, range(3))
    expected = network()
    expected.load_state_dict(module.state_dict())  # the averages
    average.swap()
    before, others = copied(module), [tensor.clone() for tensor in average.others]
    inputs = torch.randn(8, 4)
    found = functional_call(module, average.averages(module), (inputs,))
    torch.testing.assert_close(found, expected(inputs))
    assert same(before, copied(module))
    assert all(torch.equal(a, b) for a, b in zip(average.others, others, strict=True))
    assert not torch.equal(found, module(inputs))
    assert average.averages(method).keys() == {"weight", "bias", "bank"}
    assert torch.equal(average.averages(method)["bank"], method.bank)


def test_tied_weights_have_one_average() -> None:
    _, layers = tied(False)
    average = RunningAverage([layers], 0.9)
    assert average.averages(layers).keys() == dict(layers.named_parameters()).keys()
    first = nn.Sequential(*layers)
    inputs = torch.randn(5, 3)
    torch.testing.assert_close(functional_call(first, average.averages(first), (inputs,)), first(inputs))


def test_tensors_without_memory_are_told_apart() -> None:
    module = network().to("meta")
    average = RunningAverage([module], 0.9)
    assert len(average.others) == len(module.state_dict()) - 1
    shapes = {name: tensor.shape for name, tensor in average.averages(module).items()}
    assert shapes == {name: tensor.shape for name, tensor in module.state_dict().items()}


def tied(between: bool) -> tuple[list[nn.Module], nn.ModuleList]:
    """Layers of which two share their weight, in one module or in two, and all of them in one."""
    torch.manual_seed(0)
    first, second, third = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
    second.weight = first.weight
    together = nn.ModuleList([first, second, third])
    return ([first, nn.Sequential(second, third)] if between else [together]), together


@pytest.mark.parametrize("between", [False, True])
def test_tied_weights_are_averaged_once_and_stay_tied(between: bool) -> None:
    modules, layers = tied(between)
    average = RunningAverage(modules, 0.6)
    average.begin()
    last = {name: parameter.detach().clone() for name, parameter in layers.named_parameters()}
    expected = {name: tensor.clone() for name, tensor in last.items()}
    assert "1.weight" not in last  # it is "0.weight"
    generator = torch.Generator().manual_seed(1)
    for t in range(1, 13):
        average.swap() if t % 3 == 1 else None  # three steps in each of four epochs
        kept = min(0.6, (1 + t) / (10 + t))
        for name, parameter in layers.named_parameters():
            move = 0.1 * torch.randn(parameter.shape, generator=generator)
            last[name] += move
            expected[name] = kept * expected[name] + (1 - kept) * last[name]
            with torch.no_grad():
                parameter.add_(move)
        average.follow()
        for name, parameter in layers.named_parameters():
            torch.testing.assert_close(parameter.detach(), last[name])
        if t % 3 == 0:
            average.swap()
            for name, parameter in layers.named_parameters():
                torch.testing.assert_close(parameter.detach(), expected[name])
                assert not torch.allclose(parameter.detach(), last[name])
    assert layers[0].weight is layers[1].weight


def test_it_continues_from_its_state() -> None:
    module, other = network(), network()
    average, again = RunningAverage([module], 0.9), RunningAverage([other], 0.9)
    follow_steps(average, module, range(3))
    state, held = average.state(), copied(module)
    kept = {name: tensor.clone() for name, tensor in state.items()}
    follow_steps(average, module, range(3, 6))
    assert same(state, kept)  # what was written down does not move on with the average
    other.load_state_dict(held)
    again.restore(state)
    follow_steps(again, other, range(3, 6))
    assert same(copied(module), copied(other))
    assert same(average.state(), again.state())


class Interrupt(Silent):
    """Presses Ctrl-C in the middle of an epoch."""

    def __init__(self, epoch: int, batch: int) -> None:
        self.when = (epoch, batch)

    def batch(self, epoch: int, done: int, total: int) -> None:
        if (epoch, done) == self.when:
            raise KeyboardInterrupt


class Follow(Silent):
    """Averages the weights of every step by itself."""

    def __init__(self, encoder: nn.Module, keep: float) -> None:
        self.encoder, self.keep, self.step = encoder, keep, 0
        self.average, self.last = copied(encoder), copied(encoder)

    def batch(self, epoch: int, done: int, total: int) -> None:
        self.step += 1
        self.last = copied(self.encoder)
        kept = min(self.keep, (1 + self.step) / (10 + self.step))
        self.average = {name: kept * old + (1 - kept) * self.last[name] for name, old in self.average.items()}


def test_between_epochs_the_encoder_holds_the_averages_and_they_are_saved(make_trainer, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    trainer = make_trainer(run, **AVERAGED)
    trainer.progress = follow = Follow(trainer.encoder, 0.9)
    seen: list[dict[str, Tensor]] = []
    follow.epoch = lambda record: seen.append(copied(trainer.encoder))
    result = trainer.fit()
    assert follow.step == 20
    assert not same(follow.average, follow.last)
    saved, _ = run.read_tensors("model.safetensors")
    for name, tensor in result.encoder.state_dict().items():
        torch.testing.assert_close(tensor, follow.average[name])
        assert torch.equal(tensor, seen[-1][name])
        assert torch.equal(tensor, saved[f"encoder.{name}"])


def test_between_epochs_the_method_holds_its_averages_too(make_trainer, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    trainer = make_trainer(run, method="consensus", **AVERAGED)
    trainer.progress = follow = Follow(trainer.method.head, 0.9)
    trainer.fit()
    saved, _ = run.read_tensors("model.safetensors")
    for name, tensor in trainer.method.head.state_dict().items():
        torch.testing.assert_close(tensor, follow.average[name])
        assert not torch.allclose(tensor, follow.last[name])
        assert torch.equal(tensor, saved[f"method.head.{name}"])
    trainer.average.swap()
    assert same(copied(trainer.method.head), follow.last)


def test_steps_go_on_from_the_weights_of_the_last_step(make_trainer) -> None:
    """Averaging is watching: the weights that steps work on are those of a run that averages nothing."""
    watched, plain = (make_trainer(**(AVERAGED | {"average": average})) for average in (0.9, 0.0))
    for trainer in (watched, plain):
        torch.manual_seed(0)
        trainer._train_epoch()
    assert plain.average is None
    watched.average.swap()
    assert same(copied(watched.encoder), copied(plain.encoder))


@pytest.mark.parametrize("method", ["affinity-triplets", "consensus"])
def test_an_interrupted_run_resumes_bit_for_bit(make_trainer, tmp_path: Path, method: str) -> None:
    settings = AVERAGED | {"method": method, "lr_schedule": "cosine", "passes": 2}
    settings |= {"hold_back": 0.25} if method == "consensus" else {}
    whole_run, broken_run = Run.create(tmp_path / "whole", {}), Run.create(tmp_path / "broken", {})
    whole = make_trainer(whole_run, **settings).fit()
    trainer = make_trainer(broken_run, **settings)
    trainer.progress = Interrupt(3, 2)
    assert trainer.fit().interrupted
    resumed = make_trainer(broken_run, **settings).fit()
    ends = [run.read_tensors("checkpoint.safetensors")[0] for run in (whole_run, broken_run)]
    assert same(*ends)
    assert "average.steps" in ends[0]
    assert same(copied(whole.encoder), copied(resumed.encoder))
    assert whole.trust == resumed.trust


def test_what_softmax_training_did_is_where_steps_begin(make_trainer) -> None:
    """An encoder may be trained beforehand, after the trainer was made and before ``fit``."""
    trainer = make_trainer(**(AVERAGED | {"lr": 1e-12, "weight_decay": 0.0}))
    with torch.no_grad():
        for parameter in trainer.encoder.parameters():
            parameter.add_(0.3)
    before = copied(trainer.encoder)
    trainer.fit()
    after = copied(trainer.encoder)
    assert all(torch.allclose(before[name], after[name], atol=1e-5) for name in before)


def test_a_learning_rate_of_zero_averages_nothing(make_trainer) -> None:
    assert make_trainer(**(AVERAGED | {"lr": 0.0})).average is None
