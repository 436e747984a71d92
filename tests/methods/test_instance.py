from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from helpers.draws import draws
from helpers.networks import tiny_cnn
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.encoders import unit_features
from semimetric.evaluation import recall_at_k
from semimetric.losses import instance_loss, noise_contrastive_loss, scaled_cosines
from semimetric.methods import instance
from semimetric.methods.baseline import Targets
from semimetric.methods.instance import Instance, InstanceSettings
from semimetric.metric import GraphedFunction, Metric
from semimetric.training import Run, Trainer, TrainingData, TrainingSettings
from semimetric.training.optimizer import create_state

COUNT, WIDTH = 30, 6
EUCLID = Metric.identity(WIDTH)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def unit(rows: int, columns: int = WIDTH, seed: int = 0) -> Tensor:
    return unit_features(torch.randn(rows, columns, generator=seeded(seed), dtype=torch.float64))


def prepared(count: int = COUNT, **values) -> Instance:
    """In float64, so that its numbers can be compared with loops."""
    method = Instance(InstanceSettings(**values))
    method.on_fit_begin(torch.randn(count, 4, generator=seeded()), torch.full((count,), -1), WIDTH, seeded())
    return method.double()


def batch(*nodes: int) -> Targets:
    return Targets(torch.tensor(nodes), torch.tensor(nodes))


def softmax_loss(points: Tensor, bank: Tensor, targets: list[int], temperature: float) -> float:
    """The definition, number by number."""
    total = 0.0
    for point, target in zip(points.tolist(), targets, strict=True):
        masses = [math.exp(sum(a * b for a, b in zip(row, point, strict=True)) / temperature) for row in bank.tolist()]
        total -= math.log(masses[target] / sum(masses))
    return total / len(points)


@given(st.integers(0, 10_000), st.sampled_from([0.07, 0.1, 1.0]), st.integers(1, 5))
@draws(20)
def test_exact_loss_equals_a_brute_force_softmax(seed: int, temperature: float, size: int) -> None:
    points, bank = unit(size, seed=seed), unit(9, seed=seed + 1)
    targets = torch.randint(9, (size,), generator=seeded(seed))
    found = instance_loss(points, bank, targets, temperature)
    assert float(found) == pytest.approx(softmax_loss(points, bank, targets.tolist(), temperature), rel=1e-9)


def test_the_method_looks_for_each_example_in_the_whole_bank() -> None:
    method = prepared(temperature=0.2).eval()
    features = unit(4, seed=3)
    loss = method.loss(EUCLID, 5.0 * features, batch(7, 0, 29, 12))
    assert float(loss) == pytest.approx(softmax_loss(features, method.bank, [7, 0, 29, 12], 0.2), rel=1e-9)


def test_a_bank_of_equal_rows_knows_nothing() -> None:
    method = prepared()
    method.bank.copy_(unit(1).expand(COUNT, WIDTH))
    assert float(method.loss(EUCLID, unit(3, seed=5), batch(0, 1, 2))) == pytest.approx(math.log(COUNT))


@pytest.mark.parametrize("components", [0, 3])
def test_the_bank_starts_with_unit_rows_of_the_embedding(components: int) -> None:
    method = prepared(components=components)
    assert method.bank.shape == (COUNT, components or WIDTH)
    assert torch.allclose(method.bank.norm(dim=1), torch.ones(COUNT).double())
    bound = math.sqrt(3 / method.bank.shape[1])
    drawn = torch.empty(COUNT, method.bank.shape[1]).uniform_(-bound, bound, generator=seeded())
    assert torch.allclose(method.bank, unit_features(drawn).double())
    metric = method.initial_metric(WIDTH, seeded())
    assert torch.isfinite(method.loss(metric, unit(2), batch(4, 5)))


@pytest.mark.parametrize("noise", [0, 20])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_rows_move_towards_the_points_and_stay_of_unit_length(noise: int, momentum: float) -> None:
    method = prepared(noise=noise, bank_momentum=momentum)
    before, features, nodes = method.bank.clone(), unit(3, seed=2), [20, 4, 11]
    address = method.bank.data_ptr()
    method.loss(EUCLID, features, batch(*nodes))
    for position, node in enumerate(nodes):
        mixed = momentum * before[node] + (1 - momentum) * features[position]
        assert torch.allclose(method.bank[node], mixed / mixed.norm())
    others = [node for node in range(COUNT) if node not in nodes]
    assert torch.equal(method.bank[others], before[others])
    for seed in range(50):
        method.loss(EUCLID, unit(COUNT, seed=seed), batch(*range(COUNT)))
    assert torch.allclose(method.bank.norm(dim=1), torch.ones(COUNT).double(), atol=1e-12)
    assert method.bank.data_ptr() == address  # where a recorded step expects it


@pytest.mark.parametrize("noise", [0, 20])
def test_nothing_is_remembered_outside_of_training(noise: int) -> None:
    method = prepared(noise=noise).eval()
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    method.loss(EUCLID, unit(3), batch(0, 1, 2))
    assert all(torch.equal(tensor, before[name]) for name, tensor in method.state_dict().items())


def gradient(method: Instance, features: Tensor, nodes: Targets) -> Tensor:
    leaf = features.clone().requires_grad_()
    torch.manual_seed(0)
    method.loss(EUCLID, leaf, nodes).backward()
    return leaf.grad


@pytest.mark.parametrize("noise", [0, 20])
def test_the_gradient_is_that_of_the_rows_before_the_step(noise: int) -> None:
    method, features, nodes = prepared(noise=noise), unit(5, seed=1), batch(3, 1, 4, 15, 9)
    expected = gradient(method.eval(), features, nodes)
    before = method.bank.clone()
    assert torch.allclose(gradient(method.train(), features, nodes), expected, atol=1e-12)
    assert not torch.equal(method.bank, before)


def test_the_gradient_reaches_the_points_and_never_the_bank() -> None:
    points, bank = unit(3).requires_grad_(), unit(8, seed=1).requires_grad_()
    instance_loss(points, bank, torch.tensor([1, 2, 3])).backward()
    assert bank.grad is None
    assert float(points.grad.abs().sum()) > 0
    method = prepared()
    gradient(method, unit(3), batch(0, 1, 2))
    assert not method.bank.requires_grad
    assert list(method.parameters()) == []


def noise_loss(points: Tensor, bank: Tensor, targets: list[int], draws: list[int], temperature: float, z: float):
    """The definition, number by number."""
    share = len(draws) / len(bank)

    def is_own(row: int, point: Tensor) -> float:
        p = math.exp(float(bank[row] @ point) / temperature) / z
        return p / (p + share)

    total = 0.0
    for point, target in zip(points, targets, strict=True):
        total -= math.log(is_own(target, point)) + sum(math.log(1 - is_own(row, point)) for row in draws)
    return total / len(points)


@pytest.mark.parametrize(("count", "noise"), [(30, 7), (5, 64)])  # 64 draws from 5 rows are mostly the own row
def test_noise_contrastive_loss_equals_a_literal_loop(count: int, noise: int) -> None:
    method, features = prepared(count, noise=noise, temperature=0.3).eval(), unit(4, seed=8)
    nodes = [3, 0, 2, 4]
    torch.manual_seed(5)
    found = float(method.loss(EUCLID, features, batch(*nodes)))
    torch.manual_seed(5)
    draws = torch.randint(count, (noise,)).tolist()
    cosines = (features @ method.bank[draws].T).flatten().tolist()
    z = count * sum(math.exp(cosine / 0.3) for cosine in cosines) / len(cosines)
    assert found == pytest.approx(noise_loss(features, method.bank, nodes, draws, 0.3, z), rel=1e-9)


def test_the_normaliser_is_estimated_once_from_enough_draws_and_then_kept() -> None:
    """300 draws a batch: four batches are needed, and no more are looked at."""
    method = prepared(noise=300, temperature=0.3)
    seen: list[Tensor] = []
    for step in range(7):
        bank, features = method.bank.clone(), unit(5, seed=step)
        torch.manual_seed(step)
        method.loss(EUCLID, features, batch(0, 1, 2, 3, 4))
        torch.manual_seed(step)
        seen.append((features @ bank[torch.randint(COUNT, (300,))].T / 0.3).exp().mean())
        used = torch.stack(seen[:4]).mean()
        assert float(method.log_mean) == pytest.approx(math.log(used), rel=1e-9)
        assert int(method.drawn) == 300 * min(step + 1, 4)


def test_one_batch_is_enough_with_a_thousand_draws() -> None:
    method = prepared(noise=1000)
    method.loss(EUCLID, unit(1), batch(3))
    first = method.log_mean.clone()
    assert float(first) != 0.0
    method.bank.copy_(unit(1).expand(COUNT, WIDTH))
    method.loss(EUCLID, unit(1), batch(3))
    assert torch.equal(method.log_mean, first)


def test_with_many_draws_and_the_true_normaliser_the_gradient_is_that_of_the_softmax() -> None:
    points, bank, targets = unit(3).requires_grad_(), unit(12, seed=1), torch.tensor([2, 5, 11])
    (exact,) = torch.autograd.grad(instance_loss(points, bank, targets, 0.5), points)
    draws = torch.randint(12, (200_000,), generator=seeded())
    total = torch.zeros_like(points)
    for row in range(3):  # every example has a normaliser of its own
        one = points[row : row + 1]
        cosines = scaled_cosines(one, bank, 0.5)
        loss = noise_contrastive_loss(cosines[:, targets[row]], cosines[:, draws], cosines.logsumexp(1)[0], 12)
        total += torch.autograd.grad(loss, points)[0] / 3
    assert torch.allclose(total, exact, atol=0.01 * float(exact.abs().max()))


@pytest.mark.parametrize("noise", [0, 1, 50])
@pytest.mark.parametrize("temperature", [1e-3, 0.07])
def test_a_batch_of_one_and_tiny_temperatures_are_finite(noise: int, temperature: float) -> None:
    method = prepared(noise=noise, temperature=temperature).float()
    features = unit(1).float().requires_grad_()
    for _ in range(5):
        loss = method.loss(EUCLID, features, batch(17))
        (slope,) = torch.autograd.grad(loss, features)
        assert torch.isfinite(loss)
        assert torch.isfinite(slope).all()
    assert torch.isfinite(method.bank).all()
    assert torch.isfinite(method.log_mean)


@pytest.mark.parametrize("noise", [0, 20])
def test_a_dead_network_leaves_everything_finite(noise: int) -> None:
    method = prepared(noise=noise)
    features = torch.zeros(3, WIDTH, dtype=torch.float64, requires_grad=True)
    method.loss(EUCLID, features, batch(0, 1, 2)).backward()
    assert torch.isfinite(features.grad).all()
    assert torch.allclose(method.bank.norm(dim=1), torch.ones(COUNT).double())


def test_statistics_look_examples_up_in_the_bank() -> None:
    method = prepared(temperature=0.2)
    features = unit(COUNT, seed=4)
    found = method.statistics(EUCLID, features, method.constraints(features, torch.full((COUNT,), -1)))
    cosines = features @ method.bank.T
    own = cosines.diagonal()
    assert found["own_probability"] == pytest.approx(float((cosines / 0.2).softmax(1).diagonal().mean()))
    assert found["own_cosine"] == pytest.approx(float(own.mean()))
    assert found["own_first"] == pytest.approx(float((cosines.argmax(1) == torch.arange(COUNT)).double().mean()))
    method.bank.copy_(features)
    assert method.statistics(EUCLID, features, method.constraints(features, features[:, 0]))["own_first"] == 1.0


def test_statistics_of_many_examples_take_little_memory(largest_tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "MOST_COSINES", 50_000)
    method, features = prepared(5000), unit(5000, seed=1)
    with largest_tensor() as largest:
        found = method.statistics(EUCLID, features, method.constraints(features, features[:, 0]))
    assert largest.entries <= 50_000
    judged = torch.arange(0, 5000, 3)  # at most 2000, evenly spaced
    assert found["own_cosine"] == pytest.approx(float((features * method.bank).sum(1)[judged].mean()))


def trainer_of(images: Tensor, classes: Tensor, run: Run | None = None, values: dict | None = None, **changes):
    torch.manual_seed(0)
    encoder = tiny_cnn()
    quick = {"epochs": 2, "batch_size": 64, "optimizer": "adamw", "lr": 1e-3, "selection": "last"} | changes
    data = TrainingData(images, torch.full_like(classes, -1))
    return Trainer(encoder, Instance(InstanceSettings(**(values or {}))), data, TrainingSettings(**quick), run=run)


def tinted(seed: int, each: int = 40) -> tuple[Tensor, Tensor]:
    """Noisy patterns of 8 classes, each image lighter or darker than the next by more than its pattern is."""
    generator = seeded(seed)
    classes = torch.arange(8 * each) % 8
    patterns = nn.functional.interpolate(torch.randn(8, 3, 4, 4, generator=generator), 8)
    noise = 1.5 * torch.randn(len(classes), 3, 8, 8, generator=generator)
    return patterns[classes] + noise + 3.0 * torch.randn(len(classes), 1, 1, 1, generator=generator), classes


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
def test_training_without_labels_raises_recall() -> None:
    images, classes = tinted(0)
    trainer = trainer_of(images, classes, epochs=30)
    rows = torch.arange(len(images))
    before = recall_at_k(trainer._embed(rows), classes, (1,))[1]
    trainer.fit()
    assert recall_at_k(trainer._embed(rows), classes, (1,))[1] > before + 0.08


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
@pytest.mark.parametrize("average", [0.0, 0.9])
def test_a_resumed_run_has_the_same_bank_and_normaliser(tmp_path: Path, average: float) -> None:
    images, classes = tinted(1, each=20)
    values = {"values": {"noise": 300}, "average": average}
    whole = trainer_of(images, classes, epochs=3, **values)
    whole.fit()
    run = Run.create(tmp_path / "run", {})
    trainer_of(images, classes, run, epochs=1, **values).fit()
    resumed = trainer_of(images, classes, run, epochs=3, **values)
    resumed.fit()
    for name, tensor in whole.method.state_dict().items():
        assert torch.equal(tensor, resumed.method.state_dict()[name]), name
    with whole._weights_of_steps():
        assert torch.allclose(whole.method.bank.norm(dim=1), torch.ones(len(images)))
        assert int(whole.method.drawn) == 1200


@pytest.mark.parametrize("noise", [0, 20])
def test_a_rehearsed_step_leaves_no_trace(noise: int) -> None:
    """What a GPU does before it records a step, on the CPU."""
    images, classes = tinted(2, each=10)
    trainer = trainer_of(images, classes, values={"noise": noise})
    nodes = torch.arange(10)
    views = trainer.step.views(trainer.step.inputs[nodes], 1)[0]
    create_state(trainer.optimizer)
    trainer.step._batch_type = Targets
    before = {name: tensor.clone() for name, tensor in trainer.method.state_dict().items()}
    with trainer._weights_of_steps():
        recorded = GraphedFunction(trainer.step._on_tensors, trainer.step._changed_by_a_step)
        recorded.rehearse(trainer.metric.factor, views, nodes, nodes)
        assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.method.state_dict().items())
        trainer.step(trainer.metric, views, Targets(nodes, nodes))
    assert not torch.equal(trainer.method.bank, before["bank"])
    assert int(trainer.method.drawn) == noise


def test_noise_is_drawn_without_reading_a_value_on_the_host() -> None:
    method = prepared(noise=20).to("meta")
    nodes = torch.arange(5, device="meta")
    features = torch.empty(5, WIDTH, dtype=torch.float64, device="meta", requires_grad=True)
    method.loss(EUCLID.to("meta"), features, Targets(nodes, nodes)).backward()
    assert features.grad.shape == features.shape


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"noise": -1}, "noise"),
        ({"bank_momentum": 1.0}, "bank_momentum"),
        ({"augmentation": "magic"}, "augmentation"),
        ({"components": -1}, "components"),
    ],
)
def test_impossible_settings_are_refused(values: dict, word: str) -> None:
    with pytest.raises(InputError, match=word):
        InstanceSettings(**values)


def test_losses_refuse_shapes_that_do_not_fit() -> None:
    with pytest.raises(InputError, match="as many columns"):
        instance_loss(unit(3), unit(3, WIDTH + 1), torch.arange(3))
    with pytest.raises(InputError, match="temperature"):
        scaled_cosines(unit(3), unit(3), 0.0)
    for own, noise in ((torch.zeros(3), torch.zeros(2, 5)), (torch.zeros(3), torch.zeros(3, 0))):
        with pytest.raises(InputError, match="at least 1 draw"):
            noise_contrastive_loss(own, noise, torch.tensor(0.0), 9)
