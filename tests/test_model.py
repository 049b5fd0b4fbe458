import math

import pytest
import torch
import torch.nn.functional as F
from support import devices

from ddp_tutorial import Net


def images(count=8):
    return torch.randn(count, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def test_number_of_parameters():
    assert sum(parameter.numel() for parameter in Net().parameters()) == 21_840


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("count", [0, 1, 5])
def test_shape_of_the_output(count, device):
    assert Net().to(device)(images(count).to(device)).shape == (count, 10)


def test_the_output_is_logits():
    """A softmax in the model and another in the loss would give the same value at twice the price."""
    sums = Net().eval()(images()).exp().sum(dim=1)
    assert not torch.allclose(sums, torch.ones(8), atol=1e-2)


def test_first_loss_is_that_of_a_guess():
    torch.manual_seed(0)
    loss = F.cross_entropy(Net().eval()(images(64)), torch.arange(64) % 10)
    assert loss.item() == pytest.approx(math.log(10), abs=0.15)


def test_channels_last_changes_nothing():
    model = Net().eval()
    expected = model(images())
    model = model.to(memory_format=torch.channels_last)
    torch.testing.assert_close(model(images().to(memory_format=torch.channels_last)), expected)


def test_dropout_is_random_while_training_alone():
    model = Net(dropout=0.5)
    assert not torch.equal(model(images()), model(images()))
    model.eval()
    assert torch.equal(model(images()), model(images()))


def test_dropout_of_0_is_none():
    model = Net(dropout=0)
    assert torch.equal(model.train()(images()), model.eval()(images()))


def test_every_parameter_gets_a_gradient():
    model = Net()
    F.cross_entropy(model(images()), torch.arange(8)).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
