import os
import random
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import python
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DistributedSampler, TensorDataset

from ddp_tutorial import Checkpoints, Config, LaunchError, Net, launch, process_group, train, train_loader, wrap
from ddp_tutorial.environment import Environment
from ddp_tutorial.history import read_history
from ddp_tutorial.resuming import random_state, rest_of_epoch, set_random_state
from ddp_tutorial.storage import newest_checkpoint, write_checkpoint

CPU = torch.device("cpu")
STEPS = 12  # of an epoch of the digits on two ranks, batch 64 each


def at_step(number, act, rank=None):
    """Have ``act()`` called in this process at the end of step ``number``, on ``rank`` alone or on all."""
    count = 0

    def stepped(*_):
        nonlocal count
        count += 1
        if count == number and rank in (None, int(os.environ.get("RANK", "0"))):
            act()

    return register_optimizer_step_post_hook(stepped)


def train_and(config, number, number_of_signal, rank=None):
    """Train, and send this process a signal at the end of step ``number``."""
    hook = at_step(number, lambda: os.kill(os.getpid(), number_of_signal), rank)
    try:
        return train(config)
    finally:
        hook.remove()


def same_but_for_time(history):
    """Return what two runs must share: all but seconds and the samples a second."""
    epochs = [{name: value for name, value in epoch.items() if "second" not in name} for epoch in history["epochs"]]
    return history["steps"], epochs


def same_run(one, other):
    """True if two folders hold the same weights, to the bit, and the same history."""
    first, second = (torch.load(Path(folder) / "model.pt") for folder in (one, other))
    assert first.keys() == second.keys()
    equal = all(torch.equal(first[name], second[name]) for name in first)
    histories = [same_but_for_time(read_history(Path(folder) / "history.jsonl")) for folder in (one, other)]
    return equal and histories[0] == histories[1]


@pytest.fixture(scope="module")
def config(data, tmp_path_factory):
    """A training of three epochs that ran through, and its folder."""
    return Config(data=data, epochs=3, out=tmp_path_factory.mktemp("through"))


@pytest.fixture(scope="module")
def through(config, two):
    two.run(train, (config,))
    return config.out


def interrupted(config, two, folder, step, signal_number=signal.SIGKILL, rank=None, every=5):
    """Interrupt ``config`` at the end of ``step`` on ``rank``, None for all, go on, and return the folder."""
    config = replace(config, out=folder, checkpoint=folder / "checkpoints", checkpoint_every=every)
    with pytest.raises(LaunchError):
        two.run(train_and, (config, step, signal_number, rank))
    two.run(train, (config,))
    return folder


@pytest.mark.parametrize(("step", "rank"), [(STEPS + 7, 1), (2 * STEPS, 0)])
def test_a_run_whose_rank_was_killed_goes_on_to_the_same_weights_and_history(
    config, through, two, tmp_path, step, rank
):
    folder = interrupted(config, two, tmp_path, step, rank=rank)
    assert same_run(through, folder)
    assert read_history(folder / "history.jsonl")["resumed"] == [(step - 1) // 5 * 5]


@pytest.mark.cluster
def test_ten_random_moments(config, through, two, tmp_path):
    chance = random.Random(6)
    for number in range(10):
        step, rank, every = chance.randint(1, 3 * STEPS), chance.choice([0, 1, None]), chance.randint(1, 15)
        folder = interrupted(config, two, tmp_path / str(number), step, rank=rank, every=every)
        assert same_run(through, folder), f"step {step}, rank {rank}, every {every}"


def test_a_run_that_is_over_is_not_trained_further(config, through, two, tmp_path):
    config = replace(config, out=tmp_path, checkpoint=tmp_path)
    first, _ = two.run(train, (config,))
    second, _ = two.run(train, (config,))
    assert same_but_for_time(first) == same_but_for_time(second)
    assert second["resumed"] == [3 * STEPS]
    assert same_run(through, tmp_path)


def test_more_epochs_go_on_where_fewer_ended(config, through, two, tmp_path):
    config = replace(config, out=tmp_path, checkpoint=tmp_path, checkpoint_every=1000)
    two.run(train, (replace(config, epochs=2),))
    two.run(train, (config,))
    assert same_run(through, tmp_path)


@pytest.mark.parametrize("ranks_before", [1, 2, 3])
@pytest.mark.parametrize("ranks_after", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("samples", [5, 64, 101])
def test_no_sample_is_taken_twice_or_left_out(ranks_before, ranks_after, samples):
    """Each sample once over the interruption, but for the padding at the end, which DistributedSampler adds as well."""
    dataset = TensorDataset(torch.arange(samples), torch.arange(samples))

    def loaders(ranks):
        environments = [Environment(rank, rank, ranks, CPU, "gloo") for rank in range(ranks)]
        made = [(train_loader(dataset, env, batch_size=2, seed=3), env) for env in environments]
        for loader, _ in made:
            loader.sampler.set_epoch(4)
        return made

    steps = len(loaders(ranks_before)[0][0])
    for interruption in range(steps + 1):
        before = [list(loader)[:interruption] for loader, _ in loaders(ranks_before)]
        taken = [int(sample) for batches in before for inputs, _ in batches for sample in inputs]
        rests = [rest_of_epoch(loader, env, len(taken)) for loader, env in loaders(ranks_after)]
        assert len({len(rest.sampler) for rest in rests}) == 1  # equal steps on all ranks
        left = [int(sample) for rest in rests for inputs, _ in rest for sample in inputs]
        assert set(taken) | set(left) == set(range(samples))
        padding = len(taken) + len(left) - samples
        assert 0 <= padding < max(ranks_before, ranks_after)
        if ranks_before == ranks_after and interruption < steps:
            whole = [list(loader)[interruption:] for loader, _ in loaders(ranks_before)]
            rest = [list(rest) for rest in rests]
            assert str(whole) == str(rest)


def test_the_rest_of_an_epoch_leaves_the_ranks_own_random_numbers_alone():
    env = Environment(0, 0, 1, CPU, "gloo")
    loader = train_loader(TensorDataset(torch.arange(9), torch.arange(9)), env, batch_size=2)
    before = torch.get_rng_state()
    assert len(list(rest_of_epoch(loader, env, 4))) == 3
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.launcher
@pytest.mark.parametrize("ranks", [1, 3])
def test_another_number_of_ranks_goes_on_from_the_same_weights_with_the_samples_that_are_left(
    config, two, tmp_path, ranks
):
    config = replace(config, out=tmp_path, checkpoint=tmp_path, checkpoint_every=1000)
    with pytest.raises(LaunchError):
        two.run(train_and, (replace(config, checkpoint_every=7), STEPS + 9, signal.SIGKILL, 1))
    history = launch(train, (config,), world_size=ranks, device="cpu")[0]
    samples = 1437
    left = samples - (14 - STEPS) * 128  # of the second epoch, after step 14
    steps = [step for step in history["steps"] if step["epoch"] == 2]
    assert len(steps) == 2 + -(-left // (64 * ranks))
    assert [len(step["train_loss_by_rank"]) for step in steps] == [2, 2] + [ranks] * (len(steps) - 2)
    assert history["resumed"] == [14]
    assert history["epochs"][-1]["eval_accuracy"] > 0.8
    newest = newest_checkpoint(tmp_path)[1]
    assert newest["parts"]["history"]["steps"] == history["steps"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:3000]), "PytorchStreamReader"),
        (lambda file: file.write_bytes(b""), "EOFError"),
        (lambda file: file.write_text("not a checkpoint"), "something else than tensors and plain values"),
        (lambda file: torch.save({"model": torch.ones(2)}, file), "it was not written by Checkpoints"),
        (lambda file: torch.save(nn.Linear(1, 1), file), "something else than tensors and plain values"),
    ],
)
def test_a_file_that_is_damaged_or_foreign_is_passed_over_with_a_line(tmp_path, damage, said):
    first = write_checkpoint(tmp_path, 10, {"step": 10}, keep=3)
    second = write_checkpoint(tmp_path, 20, {"step": 20, "weights": torch.ones(5000)}, keep=3)
    damage(second)
    path, state, lines = newest_checkpoint(tmp_path)
    assert (path, state["step"]) == (first, 10)
    (line,) = lines
    assert "step-00000020.pt is damaged or not a checkpoint, and is passed over" in line
    assert said in line


@pytest.mark.launcher
def test_a_damaged_newest_checkpoint_costs_the_steps_since_the_one_before_and_nothing_else(
    config, through, two, tmp_path, capfd
):
    config = replace(config, out=tmp_path, checkpoint=tmp_path, checkpoint_every=5)
    with pytest.raises(LaunchError):
        two.run(train_and, (config, 9 + STEPS, signal.SIGKILL, 0))
    newest = max(tmp_path.glob("step-*.pt"))
    newest.write_bytes(newest.read_bytes()[:-100])
    capfd.readouterr()
    two.run(train, (config,))
    said = capfd.readouterr().out
    assert f"{newest.name} is damaged or not a checkpoint" in said
    assert "step-00000015.pt: step 15, epoch 2" in said
    assert same_run(through, tmp_path)


def test_only_the_last_files_are_kept_and_half_a_file_of_a_killed_run_goes(tmp_path):
    (tmp_path / "step-00000001.new").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    for step in (5, 10, 15):
        write_checkpoint(tmp_path, step, {}, keep=2)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["notes.txt", "step-00000010.pt", "step-00000015.pt"]


def test_a_full_disk_leaves_the_files_that_are_there(tmp_path, monkeypatch):
    write_checkpoint(tmp_path, 5, {"step": 5}, keep=1)

    def full(state, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        write_checkpoint(tmp_path, 10, {"step": 10}, keep=1)
    monkeypatch.undo()
    assert [file.name for file in tmp_path.iterdir()] == ["step-00000005.pt"]


def test_a_checkpoint_of_another_run_is_refused_on_every_rank(config, two, tmp_path):
    config = replace(config, epochs=1, out=None, checkpoint=tmp_path)
    two.run(train, (config,))
    with pytest.raises(LaunchError, match=r"from a run with lr=0.03, and this one has lr=0.1") as caught:
        two.run(train, (replace(config, lr=0.1),))
    assert [failure.type for failure in caught.value.failures] == ["ValueError"] * 2


def test_torch_load_reads_it_as_it_is_and_it_holds_plain_things(config, two, tmp_path):
    two.run(train, (replace(config, epochs=1, out=None, checkpoint=tmp_path),))
    state = torch.load(tmp_path / "step-00000012.pt")
    Net().load_state_dict(state["parts"]["model"])
    assert (state["epoch"], state["done"], state["step"]) == (2, 0, 12)
    assert len(state["random"]) == 2
    assert not torch.equal(state["random"][0]["torch"], state["random"][1]["torch"])
    assert [file.name for file in tmp_path.iterdir()] == ["step-00000012.pt"]


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="there is no SIGUSR1 here")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_any_rank_saves_a_checkpoint_and_the_run_goes_on(config, through, two, tmp_path, rank):
    config = replace(config, out=tmp_path, checkpoint=tmp_path / "checkpoints", checkpoint_every=1000)
    two.run(train_and, (config, STEPS + 3, signal.SIGUSR1, rank))
    names = sorted(file.name for file in (tmp_path / "checkpoints").iterdir())
    assert "step-00000020.pt" in names  # the next tenth step
    assert same_run(through, tmp_path)


class Doubled(nn.Module):
    """Something with buffers, dropout and a scheduler, for a loop of one's own."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, inputs):
        return self.layers(inputs)


def own_loop(folder, until):
    with process_group() as env:
        torch.manual_seed(1)
        generator = torch.Generator().manual_seed(2)
        dataset = TensorDataset(torch.randn(40, 3, generator=generator), torch.randn(40, 1, generator=generator))
        model = wrap(Doubled(), env)
        torch.manual_seed(3 + env.rank)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3)
        scaler = torch.amp.GradScaler(env.device.type, init_scale=8.0, growth_interval=4)
        parts = {"model": model.module, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
        loader = train_loader(dataset, env, batch_size=4)
        checkpoints = Checkpoints(folder, env, parts, {"lr": 0.1}, every=2)
        checkpoints.load()
        for epoch in range(checkpoints.epoch, 4):
            loader.sampler.set_epoch(epoch)
            for inputs, targets in checkpoints.rest_of_epoch(loader):
                optimizer.zero_grad()
                inputs = inputs + 0.1 * random.random()
                loss = (model(inputs.to(env.device)) - targets.to(env.device)).square().mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                scheduler.step()
                checkpoints.end_step(len(targets))
                if checkpoints.step == until:
                    return None
            checkpoints.end_epoch()
        state = model.module.state_dict() | {"scale": torch.tensor(scaler.get_scale())}
        return {name: value.cpu().clone() for name, value in state.items()}


def seeded(folder, until, seed):
    random.seed(seed + int(os.environ["RANK"]))
    return own_loop(folder, until)


@pytest.mark.parametrize("until", [2, 5, 8, 10])
def test_a_loop_of_ones_own_with_scheduler_scaler_buffers_and_pythons_random_goes_on_the_same(two, tmp_path, until):
    whole = two.run(seeded, (None, None, 7))
    two.run(seeded, (tmp_path, until, 7))
    rest = two.run(seeded, (tmp_path, None, 99))
    for before, after in zip(whole, rest):
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_random_numbers_of_torch_python_and_numpy_go_on_after_a_file(tmp_path):
    import numpy

    def draw():
        return torch.rand(2).tolist(), random.random(), random.gauss(0, 1), numpy.random.rand(), numpy.random.randn()

    numpy.random.randn()  # has one more in hand
    torch.save(random_state(CPU), tmp_path / "state.pt")
    first = draw()
    assert draw() != first
    set_random_state(torch.load(tmp_path / "state.pt"), CPU)
    assert draw() == first


def test_ranks_without_a_folder_save_nothing_and_count_all_the_same(two):
    def count():
        with process_group() as env:
            checkpoints = Checkpoints(None, env, {}, {})
            found = checkpoints.load()
            checkpoints.end_step(3)
            here = found, checkpoints.epoch, checkpoints.done, checkpoints.step
            checkpoints.end_epoch()
            return here, (checkpoints.epoch, checkpoints.done, checkpoints.step)

    assert two.run(count) == [((False, 1, 6, 1), (2, 0, 1))] * 2


def test_the_order_is_that_of_the_usual_sampler():
    """``rest_of_epoch`` leaves the choice of the order to DistributedSampler."""
    dataset = TensorDataset(torch.arange(10), torch.arange(10))
    env = Environment(1, 1, 2, CPU, "gloo")
    loader = train_loader(dataset, env, batch_size=1, seed=5)
    loader.sampler.set_epoch(2)
    usual = DistributedSampler(dataset, num_replicas=2, rank=1, seed=5)
    usual.set_epoch(2)
    assert list(rest_of_epoch(loader, env, 4).sampler) == list(usual)[2:]


@pytest.mark.launcher
def test_from_a_shell_a_second_call_goes_on(data, tmp_path):
    call = ("-m", "ddp_tutorial", "--device", "cpu", "--world-size", "2", "--batch-size", "200", "--data", data)
    call += ("--checkpoint", "run")
    first = python(*call, "--epochs", "1", cwd=tmp_path)
    second = python(*call, "--epochs", "2", cwd=tmp_path)
    third = python(*call, "--epochs", "2", cwd=tmp_path)
    assert [run.returncode for run in (first, second, third)] == [0, 0, 0], second.stderr + third.stderr
    assert "going on from run/step-00000004.pt: step 4, epoch 2" in second.stdout
    assert [line[:7] for line in second.stdout.splitlines() if line.startswith("epoch")] == ["epoch 2"]
    history = read_history(tmp_path / "run" / "history.jsonl")
    assert [step["step"] for step in history["steps"]] == list(range(1, 9))
    assert history["resumed"] == [4, 8]
    names = {file.name for file in (tmp_path / "run").iterdir()}
    assert names == {"history.jsonl", "loss.png", "model.pt", "step-00000004.pt", "step-00000008.pt"}
    assert third.stdout.count("of the held-out samples are right") == 1


@pytest.mark.parametrize("value", [0, -1, 2.5, True])
def test_an_interval_that_cannot_be_is_refused(value):
    with pytest.raises(ValueError, match="checkpoint_every must be a whole number"):
        Config(checkpoint_every=value)


def test_a_run_that_is_refused_leaves_the_history_of_the_other_one(config, two, tmp_path):
    config = replace(config, epochs=1, out=tmp_path, checkpoint=tmp_path)
    two.run(train, (config,))
    before = (tmp_path / "history.jsonl").read_text()
    with pytest.raises(LaunchError, match="seed=0, and this one has seed=5"):
        two.run(train, (replace(config, seed=5),))
    assert (tmp_path / "history.jsonl").read_text() == before


def test_damaged_files_of_later_steps_do_not_push_out_those_that_are_whole(tmp_path):
    for step in (90, 95):
        (tmp_path / f"step-{step:08d}.pt").write_bytes(b"damaged")
    for step in (5, 10, 15):
        write_checkpoint(tmp_path, step, {"step": step}, keep=2)
    path, state, passed_over = newest_checkpoint(tmp_path)
    assert (path.name, state["step"], len(passed_over)) == ("step-00000015.pt", 15, 2)
    assert (tmp_path / "step-00000010.pt").exists() and not (tmp_path / "step-00000005.pt").exists()


@pytest.mark.parametrize("launched", [True, False])
def test_a_rank_whose_launcher_is_gone_saves_no_more_and_one_without_a_launcher_does(launched, tmp_path, monkeypatch):
    if launched:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    with process_group(device="cpu") as env:
        checkpoints = Checkpoints(tmp_path, env, {}, {}, every=1)
        checkpoints.end_step(1)
        monkeypatch.setattr(os, "getppid", lambda: 1)  # torchrun was killed, or the shell has ended
        if launched:
            with pytest.raises(RuntimeError, match="the process that started this rank is gone"):
                checkpoints.end_step(1)
        else:
            checkpoints.end_step(1)
    assert len(list(tmp_path.iterdir())) == (1 if launched else 2)
