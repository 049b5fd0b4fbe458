"""The programs that measure run and compare; what they find is no matter of a test."""

import json
import re

import images
import pytest
from support import ROOT, python

HERE = ROOT / "tests" / "benchmarks"


@pytest.mark.benchmarks
def test_programs_that_do_the_same_work_are_compared(tmp_path):
    images.make(tmp_path / "data", train=1280, held_out=320)
    options = ("--programs=usual,bare,ours", "--rounds=1", "--epochs=2", "--ranks=2", "--device=cpu")
    result = python(HERE / "compare.py", *options, f"--out={tmp_path}", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "ours to bare, samples/s: " in result.stdout
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results) == ["usual", "bare", "ours"]
    for name, (figures,) in results.items():
        assert figures["samples/s"] > 0 and figures["s to first step"] > 0, name
        assert 5 <= figures["% right"] <= 100, name
        assert figures["MB private"] > 1, name


def test_the_images_are_of_the_size_and_the_kind_of_mnist(tmp_path):
    from torchvision.datasets import MNIST

    root = images.make(tmp_path, train=100, held_out=50)
    train, held_out = (MNIST(root, train=part) for part in (True, False))
    assert tuple(train.data.shape) == (100, 28, 28) and len(held_out.targets) == 50
    assert set(train.targets.tolist()) <= set(range(10))
    assert train.data.float().mean() == pytest.approx(33, abs=12), "as dark as MNIST"


@pytest.mark.benchmarks
def test_ways_to_start_are_compared(tmp_path):
    result = python(HERE / "launching.py", "--rounds=1", "--ranks=2", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for way in ("bare spawn, 2 ranks", "launch, 2 ranks", "torchrun, 2 ranks", "warm, 100 MB from each, 2"):
        (line,) = [line for line in result.stdout.splitlines() if line.startswith(way + " ")]
        assert float(line[len(way) :].split()[0]) > 0
    assert "of a bare spawn" in result.stdout


@pytest.mark.benchmarks
def test_watched_steps_are_compared_with_steps_that_are_not(tmp_path):
    images.make(tmp_path / "data", train=1280, held_out=320)
    result = python(
        HERE / "watching.py", "--pairs=3", "--steps=20", f"--data={tmp_path / 'data'}", cwd=tmp_path, timeout=170
    )
    assert result.returncode == 0, result.stderr
    assert "3 pairs of 20 steps" in result.stdout and "watched, beside not watched: " in result.stdout
    assert 0 < float(re.search(r"([\d.]+) % in the thread of rank 0", result.stdout)[1]) < 100
    assert re.search(r"-?[\d.]+ % of one core in the kernel", result.stdout)
