import json
import math
import pickle
from pathlib import Path

import pytest
import torch
from support import Few, devices, python
from torch import nn
from torch.utils.data import TensorDataset

from ddp_tutorial import Config, Net, Ranks, eval_loader, evaluate, load_dataset, process_group, train
from ddp_tutorial.data import Splits


@pytest.mark.parametrize(
    "values",
    [
        {"dataset": "cifar"},
        {"epochs": 0},
        {"epochs": 1.5},
        {"epochs": True},
        {"batch_size": -1},
        {"batch_size": "64"},
        {"lr": -0.1},
        {"lr": float("nan")},
        {"lr": "fast"},
        {"momentum": 1},
        {"dropout": 1.0},
        {"seed": 0.5},
    ],
)
def test_a_value_that_cannot_work_is_named(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        Config(**values)


def test_a_config_is_plain_values(tmp_path):
    config = Config(data=tmp_path, out=tmp_path)
    assert config.data == config.out == str(tmp_path)
    with pytest.raises(AttributeError):
        config.lr = 1.0


def test_the_numbers_of_the_usual_snippet():
    snippet = Config.snippet()
    assert (snippet.dataset, snippet.lr, snippet.momentum, snippet.dropout) == ("mnist", 0.01, 0.5, 0.5)


def test_training_on_all_devices_learns_and_says_the_same_on_each_rank(ranks, data, tmp_path):
    config = Config(data=data, epochs=2, lr=0.05, out=tmp_path)
    first, *others = ranks.run(train, (config,))
    assert all(other == first for other in others)
    assert (first["world_size"], first["device"]) == (ranks.world_size, ranks.device)
    assert first["global_batch"] == 64 * ranks.world_size
    assert first["epochs"][-1]["eval_loss"] < first["epochs"][0]["eval_loss"] < 2.4
    assert first["epochs"][-1]["eval_accuracy"] > 0.5
    weights = torch.load(tmp_path / "model.pt")
    model = Net()
    model.load_state_dict(weights)  # strict: no "module." in front
    assert {tensor.device.type for tensor in weights.values()} == {"cpu"}
    with process_group(device="cpu") as env:
        held_out = eval_loader(load_dataset("digits", data).eval, env, 100)
        assert evaluate(model, held_out, env)[1] == pytest.approx(first["epochs"][-1]["eval_accuracy"], abs=3 / 360)


@pytest.mark.parametrize("device", devices())
def test_a_world_of_one_needs_no_launcher(device, data, monkeypatch):
    monkeypatch.setenv("DDP_TUTORIAL_DEVICE", device)
    history = train(Config(data=data, epochs=1))
    assert history["world_size"] == 1
    assert len(history["steps"]) == -(-1437 // 64)


@pytest.fixture(scope="module")
def four():
    with Ranks(world_size=4, device="cpu", timeout=60) as ranks:
        yield ranks


def train_in(dtype, config, data):
    torch.set_default_dtype(dtype)
    try:
        return train(config, data=data)
    finally:
        torch.set_default_dtype(torch.float32)


# In single precision a ReLU close to 0 may fall to either side, which a large rate makes visible.
@pytest.mark.parametrize(
    ("dtype", "lr", "momentum", "tolerance"), [(torch.float32, 0.01, 0.5, 1e-5), (torch.float64, 0.03, 0.9, 1e-10)]
)
def test_1_2_and_4_ranks_end_with_the_same_weights(dtype, lr, momentum, tolerance, two, four, data, tmp_path):
    """20 steps with the same global batch; only the order is random, and does not depend on the number of ranks."""
    whole = load_dataset("digits", data).train
    inputs, targets = whole.normalise(whole.images).to(dtype), whole.labels
    some = Splits(TensorDataset(inputs[:256], targets[:256]), TensorDataset(inputs[-30:], targets[-30:]))

    def arguments(size):
        out = tmp_path / str(size)
        config = Config(epochs=5, batch_size=64 // size, lr=lr, momentum=momentum, dropout=0, seed=3, out=out)
        return dtype, config, some

    histories = {1: train_in(*arguments(1)), 2: two.run(train_in, arguments(2))[0]}
    histories[4] = four.run(train_in, arguments(4))[0]
    weights = {size: torch.load(tmp_path / str(size) / "model.pt") for size in histories}
    losses = {size: [step["train_loss"] for step in history["steps"]] for size, history in histories.items()}
    assert len(losses[1]) == 20
    assert losses[1][-1] != losses[1][0]
    for size in (2, 4):
        torch.testing.assert_close(weights[size], weights[1], rtol=0, atol=tolerance)
        assert losses[size] == pytest.approx(losses[1], abs=tolerance)
        last, expected = histories[size]["epochs"][-1], histories[1]["epochs"][-1]
        assert last["train_loss"] == pytest.approx(expected["train_loss"], abs=tolerance)
        assert last["eval_loss"] == pytest.approx(expected["eval_loss"], abs=tolerance)


class Spy(nn.Module):
    """Notes the inputs that it gets and the random numbers that are drawn beside them."""

    def __init__(self):
        super().__init__()
        self.linear, self.inputs, self.drawn = nn.Linear(784, 10), [], []

    def forward(self, x):
        if self.training:
            self.inputs.append(x.sum(dim=(1, 2, 3)).tolist())
            self.drawn.append(torch.rand(1).item())
        return self.linear(x.flatten(1))


def test_ranks_differ_in_samples_and_randomness_and_epochs_in_order(two):
    def train_spy():
        model = Spy()
        train(Config(epochs=2, batch_size=4), model, (Few(16), Few(4)))
        return model.inputs, model.drawn

    (first_inputs, first_drawn), (second_inputs, second_drawn) = two.run(train_spy)
    assert not set(first_drawn) & set(second_drawn)
    assert not set(sum(first_inputs[:2], [])) & set(sum(second_inputs[:2], []))
    assert first_inputs[:2] != first_inputs[2:]
    everything = sum(first_inputs[:2] + second_inputs[:2], [])
    assert sorted(everything) == sorted(sum(first_inputs[2:] + second_inputs[2:], []))


def test_weights_start_equal_whatever_the_rank_drew_before(two):
    """The seed of the config decides, not what ran before, so a run can be repeated."""

    def train_after_noise():
        torch.rand(int(torch.randint(1, 50, (1,))))
        return train(Config(epochs=1, batch_size=8, seed=5), None, (Few(16), Few(4)))["steps"]

    assert two.run(train_after_noise) == two.run(train_after_noise)


def test_replicas_that_disagree_at_the_end_are_an_error(two):
    class Drifts(Spy):
        def forward(self, x):
            with torch.no_grad():
                self.linear.bias += torch.rand(1).item()
            return super().forward(x)

    def train_drifting():
        with pytest.raises(AssertionError, match="linear.bias"):
            train(Config(epochs=1, batch_size=4), Drifts(), (Few(16), Few(4)))
        return "noticed"

    assert two.run(train_drifting) == ["noticed"] * 2


@pytest.mark.parametrize("count", [1, 2, 5, 7])
def test_any_pairs_of_input_and_class_can_be_trained_on(count, two):
    """Also fewer samples than ranks: the sampler repeats some to train on, the evaluation none."""
    pairs = [(image, label) for image, label in Few(count)]
    history, _ = two.run(train, (Config(epochs=1, batch_size=2, dropout=0), None, (pairs, pairs)))
    assert len(history["steps"]) == math.ceil(math.ceil(count / 2) / 2)
    assert (history["epochs"][0]["eval_accuracy"] * count) % 1 == pytest.approx(0, abs=1e-9)


def test_an_empty_set_is_refused_on_every_rank(two):
    def train_on_nothing(sizes):
        try:
            train(Config(epochs=1), None, tuple(Few(size) for size in sizes))
        except ValueError as error:
            return str(error)

    assert two.run(train_on_nothing, ([0, 4],)) == ["the data set to train on is empty"] * 2
    assert two.run(train_on_nothing, ([4, 0],)) == ["there is no sample to evaluate on"] * 2


def test_a_training_reports_while_it_runs(two, data):
    events = []
    history, _ = two.run(train, (Config(data=data, epochs=2),), on_event=events.append)
    start, *rest = events
    assert start["total_steps"] == len(history["steps"]) == 2 * 12
    assert {event.pop("rank") for event in events} == {0}
    assert [event for event in rest if "step" in event] == history["steps"]
    assert [event for event in rest if "step" not in event] == history["epochs"]


def types_in(value):
    if isinstance(value, dict):
        return {type(value)}.union(*(types_in(part) for part in [*value, *value.values()]))
    if isinstance(value, list):
        return {type(value)}.union(*(types_in(part) for part in value))
    return {type(value)}


def test_a_history_is_plain_numbers(two, data, tmp_path):
    history, _ = two.run(train, (Config(data=data, epochs=1),))
    assert types_in(history) <= {dict, list, str, int, float, type(None)}
    assert pickle.loads(pickle.dumps(history)) == history
    assert json.loads(json.dumps(history)) == history
    torch.save(history, tmp_path / "history.pt")
    assert torch.load(tmp_path / "history.pt") == history


THREADS_THAT_OUTLIVE_THE_GROUP = """
from pathlib import Path
from ddp_tutorial import Config, process_group, train

names = lambda: [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
with process_group():
    print(sum("gloo" in name for name in names()) > 0)
train(Config(data={data!r}, epochs=1))
print([name for name in names() if "gloo" in name])
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are named in /proc, which Linux has")
def test_the_threads_of_the_group_end_with_the_training(data, tmp_path):
    # One that is left can want a tensor while Python ends, which aborts it: "terminate called without an active
    # exception", exit code -6, after a training in which nothing was wrong.
    result = python("-c", THREADS_THAT_OUTLIVE_THE_GROUP.format(data=str(data)), cwd=tmp_path)
    assert result.stdout.splitlines() == ["True", "[]"], result.stdout + result.stderr
