import json
import time

import pytest
import torch
import torch.distributed as dist

from ddp_tutorial import process_group
from ddp_tutorial.cleanup import leave, record_error


@pytest.fixture
def error_file(tmp_path, monkeypatch):
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    return file


def test_the_group_lasts_as_long_as_the_block(error_file):
    for _ in range(2):
        with process_group(device="cpu") as env:
            assert env.world_size == dist.get_world_size() == 1
        assert not dist.is_initialized()
    assert not error_file.exists()


@pytest.mark.parametrize("error", [ValueError("bad batch"), KeyboardInterrupt(), SystemExit(0)])
def test_an_error_passes_unchanged_and_the_group_is_left(error):
    with pytest.raises(type(error)) as caught, process_group(device="cpu"):
        raise error
    assert caught.value is error
    assert not dist.is_initialized()


def test_the_error_is_written_down_before_leaving(error_file, monkeypatch):
    """The moment this rank leaves, the others fail: whoever reads the errors must find the cause already there."""
    written_when_leaving = []
    really_destroy = dist.destroy_process_group

    def destroy():
        written_when_leaving.append(error_file.exists())
        really_destroy()

    monkeypatch.setattr(dist, "destroy_process_group", destroy)
    with pytest.raises(ValueError), process_group(device="cpu"):
        raise ValueError("bad batch")
    assert written_when_leaving == [True]
    assert "bad batch" in json.loads(error_file.read_text())["message"]["message"]


def test_an_error_while_joining_is_written_down(error_file, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="WORLD_SIZE=2"), process_group(device="cpu"):
        pass
    assert "WORLD_SIZE=2" in error_file.read_text()


def test_without_an_error_file_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    try:
        raise ValueError
    except ValueError as error:
        record_error(error)
    assert list(tmp_path.iterdir()) == []


def test_leaving_twice_or_never_having_joined_does_no_harm():
    leave()
    with process_group(device="cpu"):
        leave()
        leave()
    assert not dist.is_initialized()


def test_the_timeout_bounds_a_collective_that_nobody_joins(two, tmp_path):
    def wait(done):
        with process_group(device="cpu", timeout=1) as env:
            if env.rank == 1:
                while not done.exists():
                    time.sleep(0.05)
                return None
            try:
                dist.all_reduce(torch.ones(1))
            except RuntimeError as error:
                return str(error)
            finally:
                done.touch()

    message, _ = two.run(wait, (tmp_path / "done",))
    assert "imed out" in message
