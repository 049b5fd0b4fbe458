import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_tutorial import Net, assert_replicas_agree, process_group, wrap


def weights(model):
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


def test_all_start_from_the_weights_of_rank_0(ranks):
    def start():
        with process_group() as env:
            torch.manual_seed(env.rank)
            model = Net()
            before = weights(model)
            return before, weights(wrap(model, env).module)

    (expected, _), *_ = results = ranks.run(start)
    for _, after in results:
        torch.testing.assert_close(after, expected, rtol=0, atol=0)


def test_gradients_are_the_mean_when_backward_returns(two):
    def gradient():
        with process_group() as env:
            model = wrap(nn.Linear(1, 1, bias=False), env)
            model(torch.tensor([[1.0 + env.rank]])).sum().backward()
            return model.module.weight.grad.item()

    assert two.run(gradient) == [1.5, 1.5]


def batch(count=16):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 1, 28, 28, generator=generator), torch.arange(count) % 10


def gradients(model):
    return {name: parameter.grad.cpu() for name, parameter in model.named_parameters()}


def test_gradients_equal_those_of_one_process_with_the_global_batch(ranks):
    def backward(model):
        with process_group() as env:
            wrapped = wrap(model, env)
            inputs, targets = (part[env.rank :: env.world_size].to(env.device) for part in batch())
            F.cross_entropy(wrapped(inputs), targets).backward()
            return gradients(wrapped.module)

    model = Net(dropout=0)
    results = ranks.run(backward, (model,))
    inputs, targets = batch()
    F.cross_entropy(model(inputs), targets).backward()
    for result in results:
        torch.testing.assert_close(result, gradients(model), rtol=1e-4, atol=1e-6)


def test_the_wrapper_is_on_the_device_of_its_rank(ranks):
    def place():
        with process_group() as env:
            model = wrap(Net(), env)
            kernel = model.module.conv2.weight
            return (
                isinstance(model, DistributedDataParallel),
                kernel.device == env.device,
                kernel.is_contiguous(memory_format=torch.channels_last),
            )

    assert ranks.run(place) == [(True, True, True)] * ranks.world_size


def test_options_reach_ddp(two):
    class OneUnused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(1, 1), nn.Linear(1, 1)

        def forward(self, x):
            return self.used(x)

    def two_steps(**options):
        with process_group() as env:
            model = wrap(OneUnused(), env, **options)
            for _ in range(2):
                model(torch.ones(1, 1)).sum().backward()
            return model.find_unused_parameters, model.gradient_as_bucket_view

    def with_flag():
        try:
            two_steps()
        except RuntimeError as error:
            return "Expected to have finished reduction" in str(error), two_steps(find_unused_parameters=True)

    assert two.run(with_flag) == [(True, (True, True))] * 2


def test_a_model_with_nothing_to_train_is_refused(two):
    def wrap_frozen():
        with process_group() as env, pytest.raises(RuntimeError, match="requires a? ?gradient"):
            wrap(nn.Linear(1, 1).requires_grad_(False), env)
        return "refused"

    assert two.run(wrap_frozen) == ["refused"] * 2


@pytest.mark.parametrize("how", ["weights", "buffers", "nan", "whole numbers"])
def test_replicas_that_differ_are_found_on_every_rank(how, two):
    def compare(different):
        with process_group() as env:
            model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
            for tensor in model.state_dict().values():
                nn.init.constant_(tensor, 1)
            if how == "nan":  # the same nan everywhere is no difference
                nn.init.constant_(model[0].weight, float("nan"))
            if different and env.rank == 1:
                tensor = {"buffers": model[1].running_var, "whole numbers": model[1].num_batches_tracked}
                with torch.no_grad():
                    tensor.get(how, model[0].bias).add_(1)
            try:
                assert_replicas_agree(model)
            except AssertionError as error:
                return str(error)

    name = {"buffers": "1.running_var", "whole numbers": "1.num_batches_tracked"}.get(how, "0.bias")
    assert two.run(compare, (False,)) == [None, None]
    assert all(f"'{name}'" in message for message in two.run(compare, (True,)))


def test_a_forward_through_the_module_is_found(two):
    """It exchanges no gradients, and nothing in torch says so."""

    def one_step(through_module):
        with process_group() as env:
            model = wrap(nn.Linear(1, 1), env)
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            (model.module if through_module else model)(torch.tensor([[1.0 + env.rank]])).sum().backward()
            optimizer.step()
            try:
                assert_replicas_agree(model)
            except AssertionError as error:
                return "model.module(x)" in str(error)

    assert two.run(one_step, (False,)) == [None, None]
    assert two.run(one_step, (True,)) == [True, True]
