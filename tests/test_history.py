import json

import pytest
import torch
from torch import nn

from ddp_tutorial import Config, process_group, train
from ddp_tutorial.history import read_history
from ddp_tutorial.recorder import Recorder

SETTINGS = {"batch_size": 2}


def record(batches, every=10, out=None):
    """Record ``batches[step][rank] = (loss, count)`` and return the history."""
    with process_group() as env:
        recorder = Recorder(env, SETTINGS, every, len(batches), out)
        recorder.start_epoch(1)
        for step in batches:
            loss, count = step[env.rank]
            recorder.step(torch.tensor(loss, device=env.device), count)
        recorder.end_training()
        recorder.end_epoch(eval_loss=0.5, eval_accuracy=0.75)
        return recorder.history


def test_losses_are_means_over_samples_not_over_ranks_or_batches(two):
    """Rank 0: three samples of loss 1, then one of 2. Rank 1: one sample of 5, then one of 6."""
    batches = [[(1.0, 3), (5.0, 1)], [(2.0, 1), (6.0, 1)]]
    first, second = two.run(record, (batches,))
    assert [step["train_loss"] for step in first["steps"]] == [2.0, 4.0]
    assert [step["train_loss_by_rank"] for step in first["steps"]] == [[1.0, 5.0], [2.0, 6.0]]
    (epoch,) = first["epochs"]
    assert epoch["train_loss"] == pytest.approx(16 / 6)
    assert epoch["train_loss_by_rank"] == [1.25, 5.5]
    assert (epoch["eval_loss"], epoch["eval_accuracy"]) == (0.5, 0.75)
    assert epoch["samples_per_second"] == pytest.approx(6 / epoch["seconds"])
    assert first == second


@pytest.mark.parametrize("every", [1, 2, 3, 100])
def test_the_interval_of_reports_changes_no_number(every, two):
    batches = [[(float(step), 2), (step + 0.5, 2)] for step in range(5)]
    history, _ = two.run(record, (batches, every))
    assert [step["step"] for step in history["steps"]] == [1, 2, 3, 4, 5]
    assert [step["train_loss"] for step in history["steps"]] == [step + 0.25 for step in range(5)]
    assert history["epochs"][0]["train_loss"] == 2.25


def test_one_step_of_a_large_loss_does_not_reach_the_others(two):
    history, _ = two.run(record, ([[(1.0, 1), (1.0, 1)], [(float("inf"), 1), (1.0, 1)], [(1.0, 1), (1.0, 1)]],))
    assert [step["train_loss"] for step in history["steps"]] == [1.0, float("inf"), 1.0]


def test_records_are_written_by_rank_0_as_they_come(two, tmp_path):
    out = tmp_path / "new" / "folder"
    history, _ = two.run(record, ([[(1.0, 1), (3.0, 1)]] * 3, 2, str(out)))
    assert [file.name for file in out.iterdir()] == ["history.jsonl"]
    assert read_history(out / "history.jsonl") == {name: history[name] for name in ("steps", "epochs", "resumed")}
    assert all(json.loads(line) for line in (out / "history.jsonl").read_text().splitlines())


def test_a_second_run_replaces_the_files_of_the_first(data, tmp_path):
    for _ in range(2):
        history = train(Config(data=data, epochs=1, out=tmp_path))
    assert read_history(tmp_path / "history.jsonl") == {name: history[name] for name in ("steps", "epochs", "resumed")}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["history.jsonl", "model.pt"]


def test_weights_that_cannot_be_saved_leave_the_file_of_the_run_before(tmp_path, monkeypatch):
    with process_group(device="cpu") as env:
        recorder = Recorder(env, SETTINGS, 1, 1, str(tmp_path))
        recorder.save(nn.Linear(1, 1, bias=False))
        before = torch.load(tmp_path / "model.pt")

        def cut_short(weights, path):
            path.write_bytes(b"half a file")
            raise KeyboardInterrupt

        monkeypatch.setattr(torch, "save", cut_short)
        with pytest.raises(KeyboardInterrupt):
            recorder.save(nn.Linear(1, 1, bias=False))
    assert torch.equal(torch.load(tmp_path / "model.pt")["weight"], before["weight"])
