from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support import devices
from torch.utils.data import Subset, TensorDataset

from ddp_tutorial import Environment, data, eval_loader, load_dataset, process_group, train_loader
from ddp_tutorial.data import Images

SIZES = [1, 2, 3, 7, 10, 64]
WORLDS = [1, 2, 3, 4]


def place(rank, world_size):
    return Environment(rank, rank, world_size, torch.device("cpu"), "gloo")


def numbered(count):
    return TensorDataset(torch.arange(count))


def seen(loader):
    return [number for (batch,) in loader for number in batch.tolist()]


def shares(make, count, world_size, epoch=0, **options):
    """Return the samples of each rank."""
    loaders = [make(numbered(count), place(rank, world_size), 4, **options) for rank in range(world_size)]
    if make is train_loader:
        for loader in loaders:
            loader.sampler.set_epoch(epoch)
    return [seen(loader) for loader in loaders]


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("count", SIZES)
def test_training_shares_cover_the_set_in_equal_parts(count, world_size):
    parts = shares(train_loader, count, world_size)
    each = -(-count // world_size)
    assert [len(part) for part in parts] == [each] * world_size
    times = Counter(number for part in parts for number in part)
    assert set(times) == set(range(count))
    assert times.total() - count == -count % world_size, "padding repeats as few samples as possible"
    if count >= world_size:
        assert max(times.values()) <= 2


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("count", [0, *SIZES])
def test_evaluation_takes_each_sample_once(count, world_size):
    parts = shares(eval_loader, count, world_size)
    assert sorted(number for part in parts for number in part) == list(range(count))
    lengths = [len(part) for part in parts]
    assert max(lengths) - min(lengths) <= 1


def test_an_epoch_has_an_order_of_its_own_the_same_for_all_ranks():
    first, second = shares(train_loader, 64, 2, epoch=1), shares(train_loader, 64, 2, epoch=2)
    assert first != second
    assert first == shares(train_loader, 64, 2, epoch=1)
    assert not set(first[0]) & set(first[1])


def test_the_seed_changes_the_order():
    assert shares(train_loader, 64, 2, seed=0) != shares(train_loader, 64, 2, seed=1)


def test_together_the_ranks_train_on_the_batches_of_one():
    """Step for step, so that one rank with a batch of 8 and two with 4 each compute the same."""
    alone = seen(train_loader(numbered(32), place(0, 1), 8))
    parts = shares(train_loader, 32, 2)
    for step in range(4):
        together = [number for part in parts for number in part[4 * step : 4 * step + 4]]
        assert sorted(together) == sorted(alone[8 * step : 8 * step + 8])


def test_an_empty_set_cannot_be_trained_on():
    with pytest.raises(ValueError, match="empty"):
        train_loader(numbered(0), place(0, 2), 4)


def images(count=6):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 1, 28, 28), dtype=torch.uint8, generator=generator)
    scaled = pixels.float() / 255
    return Images(pixels, torch.arange(count), scaled.mean().item(), scaled.std().item())


@pytest.mark.parametrize("loader", [train_loader, eval_loader])
@pytest.mark.parametrize("subset", [False, True])
def test_images_come_in_batches_with_their_labels(loader, subset):
    whole = images()
    dataset = Subset(whole, range(len(whole))) if subset else whole
    batches = list(loader(dataset, place(0, 1), 4))
    assert [len(labels) for _, labels in batches] == [4, 2]
    for pixels, labels in batches:
        assert pixels.dtype == torch.uint8
        assert torch.equal(pixels, whole.images[labels])


@pytest.mark.parametrize("device", devices())
def test_normalised_pixels_have_mean_0_and_deviation_1(device):
    dataset = images()
    pixels = dataset.normalise(dataset.images.to(device))
    assert pixels.device.type == device
    assert pixels.mean().item() == pytest.approx(0, abs=1e-4)
    assert pixels.std().item() == pytest.approx(1, abs=1e-4)
    assert dataset.images.max() > 1, "the data set itself stays as it is"


def test_images_and_labels_must_be_as_many():
    with pytest.raises(ValueError, match="2 images and 3 labels"):
        Images(torch.zeros(2, 1, 28, 28, dtype=torch.uint8), torch.arange(3), 0.0, 1.0)


def test_digits(data):
    train, held_out = load_dataset("digits", data)
    assert (len(train), len(held_out)) == (1437, 360)
    for part in (train, held_out):
        assert part.images.dtype == torch.uint8 and part.images.shape[1:] == (1, 28, 28)
        assert part.labels.unique().tolist() == list(range(10))
    normalised = train.normalise(train.images)
    assert normalised.mean().item() == pytest.approx(0, abs=1e-3)
    assert normalised.std().item() == pytest.approx(1, abs=1e-3)


def test_a_prepared_set_is_not_prepared_again(tmp_path, monkeypatch):
    first = load_dataset("digits", tmp_path / "new" / "folder")
    monkeypatch.setattr(data, "prepare_digits", lambda root: pytest.fail("prepared twice"))
    second = load_dataset("digits", tmp_path / "new" / "folder")
    assert torch.equal(first.train.images, second.train.images)
    assert [file.name for file in (tmp_path / "new" / "folder").iterdir()] == ["digits.pt"]


def test_a_preparation_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def fail(root):
        raise KeyboardInterrupt

    monkeypatch.setattr(data, "prepare_digits", fail)
    with pytest.raises(KeyboardInterrupt):
        load_dataset("digits", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_set_is_named():
    with pytest.raises(ValueError, match="'cifar'.*'digits'.*'mnist'"):
        load_dataset("cifar")


def test_several_can_prepare_at_once(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda _: load_dataset("digits", tmp_path), range(4)))
    assert [len(splits.train) for splits in loaded] == [1437] * 4
    assert [file.name for file in tmp_path.iterdir()] == ["digits.pt"]


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux, to count memory")
def test_the_47_mb_of_mnist_are_in_memory_once_for_all_ranks(two, tmp_path):
    """Each rank reads every image, and its own memory grows by less than 10 MB; the measure would see a copy."""
    images = torch.randint(0, 256, (60_000, 1, 28, 28), dtype=torch.uint8)
    part = images, torch.zeros(60_000, dtype=torch.int64)
    torch.save({"train": part, "eval": part, "mean": 0.1307, "std": 0.3081}, tmp_path / "mnist.pt")

    def private():
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1e3

    def grown(folder, copy):
        with process_group():
            few = load_dataset("mnist", folder).train
            for _ in range(20):  # what one batch needs, and the allocator keeps, is not what is asked for here
                few.__getitems__(list(range(60)))[0].sum()
            dist.barrier()
            before = private()
            mapped = load_dataset("mnist", folder).train
            kept = mapped.images.clone() if copy else None
            read = sum(
                mapped.__getitems__(list(range(first, first + 60)))[0].sum().item() for first in range(0, 60_000, 60)
            )
            dist.barrier()  # counted while both have the file open
            after = private()
            dist.barrier()
            del kept
            return after - before, read

    for (megabytes, read), (more, again) in zip(two.run(grown, (tmp_path, False)), two.run(grown, (tmp_path, True))):
        assert read == again == images.sum().item()
        assert megabytes < 10
        assert more > 40
