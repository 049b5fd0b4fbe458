import json
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ddp_tutorial import Config, exchange, process_group, train
from ddp_tutorial.history import read_history
from ddp_tutorial.recorder import Recorder

SETTINGS = {"batch_size": 2}


def record(batches, out=None, pause=exchange.PAUSE, between=lambda rank, step: None):
    """Record ``batches[step][rank] = (loss, count)``; return the history and the number of exchanges."""
    sent, send = [], dist.all_gather

    def all_gather(*args, **kwargs):
        sent.append(args)
        return send(*args, **kwargs)

    with process_group() as env, pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "PAUSE", pause)
        patch.setattr(dist, "all_gather", all_gather)
        recorder = Recorder(env, SETTINGS, len(batches), out)
        recorder.start_epoch(1)
        for number, step in enumerate(batches, start=1):
            loss, count = step[env.rank]
            between(env.rank, number)
            recorder.step(torch.tensor(loss, device=env.device), count)
        recorder.end_training()
        recorder.end_epoch(eval_loss=0.5, eval_accuracy=0.75)
        return recorder.history, len(sent)


def test_losses_are_means_over_samples_not_over_ranks_or_batches(two):
    """Rank 0: three samples of loss 1, then one of 2. Rank 1: one sample of 5, then one of 6."""
    batches = [[(1.0, 3), (5.0, 1)], [(2.0, 1), (6.0, 1)]]
    (first, _), (second, _) = two.run(record, (batches,))
    assert [step["train_loss"] for step in first["steps"]] == [2.0, 4.0]
    assert [step["train_loss_by_rank"] for step in first["steps"]] == [[1.0, 5.0], [2.0, 6.0]]
    (epoch,) = first["epochs"]
    assert epoch["train_loss"] == pytest.approx(16 / 6)
    assert epoch["train_loss_by_rank"] == [1.25, 5.5]
    assert (epoch["eval_loss"], epoch["eval_accuracy"]) == (0.5, 0.75)
    assert epoch["samples_per_second"] == pytest.approx(6 / epoch["seconds"])
    assert first == second


@pytest.mark.parametrize(("pause", "exchanges"), [(0, 250), (10**9, 3)])
def test_how_often_ranks_exchange_changes_no_number(pause, exchanges, two):
    """Rarely: after the first step, whose pace is all they know; at most 200 steps later; and what is left."""
    batches = [[(float(step), 2), (step + 0.5, 2)] for step in range(250)]
    (history, sent), _ = two.run(record, (batches, None, pause))
    assert sent == exchanges
    assert [step["step"] for step in history["steps"]] == list(range(1, 251))
    assert [step["train_loss"] for step in history["steps"]] == [step + 0.25 for step in range(250)]
    assert history["epochs"][0]["train_loss"] == 124.75


def test_the_slowest_rank_says_how_often_all_of_them_exchange(two):
    """By the clock of each rank alone, rank 0 would wait for more steps than rank 1, and they would hang."""

    def slow(rank, step):
        time.sleep(0.02 * rank)

    (_, first), (_, second) = two.run(record, ([[(1.0, 1), (1.0, 1)]] * 30, None, 0.1, slow))
    assert first == second and 5 <= first < 30, "at 20 ms a step, every fifth, or more often on a busy machine"


def test_records_arrive_while_the_ranks_train(two, tmp_path):
    def waits_for_the_answer(rank, step):
        if step == 20:
            while not (tmp_path / "answer").exists():  # made by whoever hears of the tenth step
                time.sleep(0.01)
        time.sleep(0.05)

    def hear(event):
        if event.get("step") == 10:
            (tmp_path / "answer").touch()

    (history, _), _ = two.run(record, ([[(1.0, 1), (1.0, 1)]] * 20, None, 0.25, waits_for_the_answer), on_event=hear)
    assert len(history["steps"]) == 20


def test_a_rank_without_samples_spoils_no_mean(two):
    """The mean of an empty batch is nan."""
    nan = pytest.approx(float("nan"), nan_ok=True)
    (history, _), _ = two.run(record, ([[(2.0, 3), (float("nan"), 0)], [(float("nan"), 0), (float("nan"), 0)]],))
    assert [step["train_loss"] for step in history["steps"]] == [2.0, nan]
    assert history["steps"][0]["train_loss_by_rank"] == [2.0, nan]
    assert history["epochs"][0]["train_loss"] == 2.0


def test_one_step_of_a_large_loss_does_not_reach_the_others(two):
    (history, _), _ = two.run(record, ([[(1.0, 1), (1.0, 1)], [(float("inf"), 1), (1.0, 1)], [(1.0, 1), (1.0, 1)]],))
    assert [step["train_loss"] for step in history["steps"]] == [1.0, float("inf"), 1.0]


def test_records_are_written_by_rank_0_as_they_come(two, tmp_path):
    out = tmp_path / "new" / "folder"
    (history, _), _ = two.run(record, ([[(1.0, 1), (3.0, 1)]] * 3, str(out)))
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
        recorder = Recorder(env, SETTINGS, 1, str(tmp_path))
        recorder.save(nn.Linear(1, 1, bias=False))
        before = torch.load(tmp_path / "model.pt")

        def cut_short(weights, path):
            path.write_bytes(b"half a file")
            raise KeyboardInterrupt

        monkeypatch.setattr(torch, "save", cut_short)
        with pytest.raises(KeyboardInterrupt):
            recorder.save(nn.Linear(1, 1, bias=False))
    assert torch.equal(torch.load(tmp_path / "model.pt")["weight"], before["weight"])
