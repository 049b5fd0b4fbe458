import struct

import pytest
import torch
from support import write_mnist

from ddp_tutorial import load_dataset

SIZES = [1, 2, 3, 7, 10, 64]
WORLDS = [1, 2, 3, 4]


@pytest.fixture
def no_network(monkeypatch):
    """Send every download to a port where nobody listens."""
    import torchvision

    monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", ["http://127.0.0.1:9/"])
    monkeypatch.setenv("no_proxy", "*")


def test_mnist_is_read_from_its_own_files(tmp_path, no_network):
    write_mnist(tmp_path, train=64, held_out=32)
    train, held_out = load_dataset("mnist", tmp_path)
    assert train.images.shape == (64, 1, 28, 28) and held_out.images.shape == (32, 1, 28, 28)
    assert train.images.dtype == torch.uint8
    assert train.labels.tolist() == [number % 10 for number in range(64)]
    assert train.normalise(torch.full((1,), 255, dtype=torch.uint8)).item() == pytest.approx((1 - 0.1307) / 0.3081)


@pytest.mark.parametrize("present", [None, "train-images-idx3-ubyte"])
def test_missing_mnist_names_the_set_that_needs_no_network(present, tmp_path, no_network):
    if present:
        for file in write_mnist(tmp_path).iterdir():
            if file.name != present:
                file.unlink()
    with pytest.raises(RuntimeError, match="(?s)could not be downloaded.*'digits'") as caught:
        load_dataset("mnist", tmp_path)
    assert "raw" in str(caught.value)
    assert not (tmp_path / "mnist.pt").exists()


def fewer_labels(content):
    return struct.pack(">II", 2049, 10) + content[8:18]


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        pytest.param("train-images-idx3-ubyte", lambda content: content[:-100], id="cut"),
        pytest.param("train-images-idx3-ubyte", lambda content: content[:16], id="no pixels"),
        pytest.param("t10k-images-idx3-ubyte", lambda content: b"", id="empty"),
        pytest.param("t10k-labels-idx1-ubyte", lambda content: content[:20], id="labels cut"),
        pytest.param("train-labels-idx1-ubyte", fewer_labels, id="fewer labels than images"),
        pytest.param("train-images-idx3-ubyte", lambda content: b"<html>not found</html>" * 9, id="another format"),
    ],
)
def test_damaged_mnist_files_are_reported_as_such(file, damage, tmp_path, no_network):
    raw = write_mnist(tmp_path)
    whole = (raw / file).read_bytes()
    (raw / file).write_bytes(damage(whole))
    with pytest.raises(RuntimeError, match="(?s)damaged.*delete them"):
        load_dataset("mnist", tmp_path)
    (raw / file).write_bytes(whole)  # mended: nothing of the failure is left
    assert len(load_dataset("mnist", tmp_path).train) == 64
