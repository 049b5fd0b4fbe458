import importlib
import json
import re

import pytest
import torch
from support import TORCHRUN, python, write_mnist

from ddp_tutorial import Config, Net
from ddp_tutorial.history import read_history

pytestmark = pytest.mark.launcher

command_line = importlib.import_module("ddp_tutorial.__main__")
SMALL = ("--epochs", "2", "--batch-size", "200", "--seed", "4")


@pytest.fixture(scope="module")
def with_python(data, tmp_path_factory):
    """A run of two CPU ranks from ``python -m``: what it printed, and its folder."""
    cwd = tmp_path_factory.mktemp("python")
    run = ("-m", "ddp_tutorial", *SMALL, "--device", "cpu", "--world-size", "2", "--data", data, "--out", "run")
    return python(*run, cwd=cwd), cwd / "run"


@pytest.fixture(scope="module")
def with_torchrun(data, tmp_path_factory):
    """The same from ``torchrun``."""
    cwd = tmp_path_factory.mktemp("torchrun")
    run = ("-m", "ddp_tutorial", *SMALL, "--device", "cpu", "--data", data, "--out", "run")
    return python(*TORCHRUN, *run, cwd=cwd), cwd / "run"


@pytest.mark.parametrize("how", ["with_python", "with_torchrun"])
def test_a_run_leaves_losses_a_picture_and_weights(how, request):
    result, folder = request.getfixturevalue(how)
    assert result.returncode == 0, result.stderr
    assert sorted(file.name for file in folder.iterdir()) == ["history.jsonl", "loss.png", "model.pt"]
    steps, epochs, _ = read_history(folder / "history.jsonl").values()
    assert [step["step"] for step in steps] == list(range(1, 9))
    assert [len(step["train_loss_by_rank"]) for step in steps] == [2] * 8
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    Net().load_state_dict(torch.load(folder / "model.pt"))
    lines = result.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == ["epoch 1", "epoch 2"]
    assert lines[2].startswith(f"{epochs[-1]['eval_accuracy']:.2%} of the held-out samples")
    assert [line.split("/")[-1] for line in lines[3:]] == ["history.jsonl", "loss.png", "model.pt"]


def test_both_ways_lead_to_the_same_losses(with_python, with_torchrun):
    (steps, epochs, _), (other_steps, other_epochs, _) = (
        read_history(folder / "history.jsonl").values() for _, folder in (with_python, with_torchrun)
    )
    for step, other in zip(steps, other_steps, strict=True):
        assert step["train_loss"] == pytest.approx(other["train_loss"], abs=1e-6)
        assert step["train_loss_by_rank"] == pytest.approx(other["train_loss_by_rank"], abs=1e-6)
    for epoch, other in zip(epochs, other_epochs, strict=True):
        assert epoch["eval_loss"] == pytest.approx(other["eval_loss"], abs=1e-6)
        assert epoch["eval_accuracy"] == other["eval_accuracy"]


def test_nothing_is_said_that_a_reader_could_do_nothing_about(with_python):
    result, _ = with_python
    assert not re.search("warning", result.stdout + result.stderr, re.IGNORECASE)
    assert "\r" not in result.stdout + result.stderr, "no bar where nobody looks"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--epochs", "0"], "epochs must be a whole number from 1 up, not 0"),
        (["--epochs", "many"], "invalid int value: 'many'"),
        (["--batch-size", "-1"], "batch_size"),
        (["--lr", "-0.1"], "lr must be a number"),
        (["--lr", "nan"], "lr must be a number"),
        (["--momentum", "1"], "momentum"),
        (["--dataset", "cifar"], "'cifar'"),
        (["--world-size", "0"], "world_size"),
        (["--device", "gpu"], "'gpu'"),
        (["--device", "cuda", "--world-size", "1000"], "cuda"),
        (["--speed", "9"], "--speed"),
    ],
)
def test_a_value_that_cannot_work_is_named_before_any_process_starts(arguments, named, no_processes, capsys):
    with pytest.raises(SystemExit) as caught:
        command_line.parse(arguments)
    assert caught.value.code == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("python -m ddp_tutorial: error: ") and named in last


def test_a_wrong_value_ends_the_program_with_one_sentence(tmp_path):
    result = python("-m", "ddp_tutorial", "--epochs", "0", cwd=tmp_path)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert result.stderr.endswith("error: epochs must be a whole number from 1 up, not 0\n")
    assert list(tmp_path.iterdir()) == []


def test_the_number_of_processes_is_torchruns_to_choose(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SystemExit):
        command_line.parse(["--world-size", "2"])
    assert "--nproc-per-node" in capsys.readouterr().err


def test_help_says_what_each_option_is_and_its_default(capsys):
    with pytest.raises(SystemExit) as caught:
        command_line.parse(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    options = ("dataset", "data", "epochs", "batch-size", "lr", "momentum", "seed", "world-size", "device", "out")
    for option in options:
        assert re.search(rf"--{option} [A-Z_]+\s+\S+", text)
    assert f"(default: {Config.lr})" in text and "torchrun" in text


def test_without_options_it_is_the_config_of_the_package():
    config, options = command_line.parse([])
    assert config == Config(out=config.out)
    assert re.fullmatch(r"runs/\d{4}-\d\d-\d\d-\d{6}", config.out)
    assert (options.world_size, options.device) == (None, None)


def test_mnist_from_its_own_files(tmp_path):
    write_mnist(tmp_path / "data", train=100, held_out=30)
    run = ("--dataset", "mnist", "--data", "data", "--epochs", "1", "--batch-size", "10", "--out", "run")
    result = python("-m", "ddp_tutorial", *run, "--device", "cpu", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    steps, (epoch,), _ = read_history(tmp_path / "run" / "history.jsonl").values()
    assert len(steps) == 5
    assert epoch["eval_accuracy"] * 30 == pytest.approx(round(epoch["eval_accuracy"] * 30))


def test_missing_mnist_without_a_network_is_one_sentence_before_any_process_starts(tmp_path, monkeypatch):
    nowhere = {f"{kind}_proxy": "http://127.0.0.1:9" for kind in ("http", "https")}
    run = ("--dataset", "mnist", "--data", "data", "--device", "cpu", "--out", "run")
    result = python("-m", "ddp_tutorial", *run, cwd=tmp_path, no_proxy="", **nowhere)
    assert result.returncode == 1
    assert result.stderr.startswith("error: MNIST is not in data/MNIST/raw and could not be downloaded")
    assert "'digits'" in result.stderr and "Traceback" not in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_failure_in_a_rank_is_told_without_the_launchers_own_traceback(data, tmp_path):
    (tmp_path / "run").write_text("a file where the folder should be")
    run = ("--epochs", "1", "--device", "cpu", "--data", data, "--out", "run")
    result = python("-m", "ddp_tutorial", *run, cwd=tmp_path)
    assert result.returncode == 1
    assert re.search(r"^error: rank 0 raised FileExistsError.*run", result.stderr, re.MULTILINE)
    assert "Traceback" not in result.stderr


def test_records_are_json_lines(with_python):
    _, folder = with_python
    for line in (folder / "history.jsonl").read_text().splitlines():
        assert isinstance(json.loads(line), dict)
