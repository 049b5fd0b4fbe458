import pytest
import torch
import torch.nn.functional as F
from support import Few
from torch import nn

from ddp_tutorial import Config, Net, eval_loader, evaluate, process_group, train


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


@pytest.mark.parametrize("count", [1, 2, 5, 13])
def test_evaluation_is_exact_on_awkward_sizes(count, ranks):
    def score(model):
        with process_group() as env:
            return evaluate(model.to(env.device), eval_loader(Few(count), env, batch_size=3), env)

    torch.manual_seed(0)
    model = Net()
    results = ranks.run(score, (model,))
    inputs, targets = Few(count).inputs, torch.arange(count) % 10
    with torch.no_grad():
        outputs = model.eval()(inputs)
    expected = F.cross_entropy(outputs, targets).item(), (outputs.argmax(1) == targets).double().mean().item()
    for loss, accuracy in results:
        assert loss == pytest.approx(expected[0], rel=1e-5)
        assert accuracy == pytest.approx(expected[1], abs=1e-9)


def test_evaluation_restores_the_mode_and_draws_no_dropout(two):
    def modes():
        with process_group() as env:
            model, seen = Net(dropout=0.9), []
            for training in (True, False):
                model.train(training)
                once = evaluate(model, eval_loader(Few(8), env, 4), env)
                seen += [once == evaluate(model, eval_loader(Few(8), env, 4), env), model.training]
            return seen

    assert two.run(modes) == [[True, True, True, False]] * 2


def test_a_model_with_running_statistics_is_evaluated_as_one(two, tmp_path):
    """Ranks see different samples, so their statistics differ after a step; and rank 0 evaluates one batch more."""

    class Normalised(Spy):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(1)

        def forward(self, x):
            return super().forward(self.norm(x))

    def train_normalised():
        model = Normalised()
        history = train(Config(epochs=1, batch_size=4, out=tmp_path), model, (Few(16), Few(1001)))
        return history["epochs"][0]["eval_loss"], model.norm.state_dict()

    (loss, first), (other_loss, second) = two.run(train_normalised)
    torch.testing.assert_close(second, first, rtol=0, atol=0)
    model = Normalised()
    model.load_state_dict(torch.load(tmp_path / "model.pt"))
    with process_group(device="cpu") as env:
        expected, _ = evaluate(model, eval_loader(Few(1001), env, 100), env)
    assert loss == other_loss == pytest.approx(expected, rel=1e-5)


def test_a_data_set_in_place_of_a_loader_is_refused():
    with pytest.raises(TypeError, match="eval_loader returns it, not Few"), process_group() as env:
        evaluate(Net(), Few(4), env)
