"""The check of the final piece tells its mistakes apart, names all of them, and accepts what is right."""

import importlib
import json
import sys
import threading

import pytest
from support import ROOT

from ddp_tutorial.exercises import Hint, capstone

CELLS = json.loads((ROOT / "notebooks" / "11_capstone.ipynb").read_text(encoding="utf-8"))["cells"]
SOURCES = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]
WRITTEN = "%%writefile {ROOT}/runs/capstone/"
PROGRAMS = dict(text[len(WRITTEN) :].split("\n", 1) for text in SOURCES if text.startswith(WRITTEN))
(SOLUTION,) = ("".join(cell["source"]) for cell in CELLS if "solution" in cell["metadata"].get("tags", []))
IMPORTS = next(text for text in SOURCES if "process_group, train_loader, wrap" in text).split("\n\n")

# How each of the three mistakes of the naive program is mended.
MENDED = {
    "samples": [
        ("DataLoader, Subset", "DataLoader, DistributedSampler, Subset"),
        ("    loader = DataLoader(", "    sampler = DistributedSampler(data, seed=seed)\n    loader = DataLoader("),
        ("shuffle=True)", "sampler=sampler)"),
        ("for _ in range(epochs):\n", "for epoch in range(epochs):\n        sampler.set_epoch(epoch)\n"),
    ],
    "gradients": [("model.module(inputs), targets", "model(inputs), targets")],
    "numbers": [("    loss, correct, count = sums", "    dist.all_reduce(sums)\n    loss, correct, count = sums")],
}


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory):
    """The program for one device as a module that the ranks can import too."""
    folder = tmp_path_factory.mktemp("capstone")
    (folder / "alone.py").write_text(PROGRAMS["alone.py"])
    sys.path.insert(0, str(folder))
    yield importlib.import_module("alone")
    sys.path.remove(str(folder))
    del sys.modules["alone"]


def changed(*changes):
    """Return ``train`` of the naive program after ``changes``, pairs of an old and a new text."""
    text = PROGRAMS["naive.py"]
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    names = {"__name__": "a_cell"}
    exec(compile(text, "a cell", "exec"), names)
    return names["train"]


def mended(*areas):
    return [change for area in areas for change in MENDED[area]]


def complaints(train, ranks):
    with pytest.raises(Hint) as caught:
        capstone.check(train, ranks)
    return {line[2:].split(":")[0]: line for line in str(caught.value).splitlines()[1:]}


def test_the_naive_version_is_told_all_three_mistakes(two):
    assert list(complaints(changed(), two)) == ["samples", "gradients", "numbers"]


@pytest.mark.checks
@pytest.mark.parametrize("left", MENDED)
def test_one_mistake_is_told_as_one(left, two):
    assert list(complaints(changed(*mended(*(MENDED.keys() - {left}))), two)) == [left]


def test_all_three_mended_is_right(two, capsys):
    capstone.check(changed(*mended(*MENDED)), two)
    assert capsys.readouterr().out.startswith("right: ")


def test_the_solution_of_the_notebook_is_right(two, alone, capsys):
    names = {"__name__": "a_cell", "build": alone.build}
    exec("\n".join(part for part in IMPORTS if part.startswith(("import torch", "from ddp_tutorial"))), names)
    exec(SOLUTION.split("\n\n\ncapstone.check")[0], names)
    capstone.check(names["train_on_all"], two)
    assert capsys.readouterr().out.startswith("right: ")


def test_the_untouched_cell_is_not_yet_there(two, capsys):
    (skeleton,) = ("".join(cell["source"]) for cell in CELLS if "exercise" in cell["metadata"].get("tags", []))
    names = {}
    exec(skeleton, names)
    capstone.check(names["my_train"], two)
    assert capsys.readouterr().out.startswith("not yet")


OTHERS = {
    "set_epoch forgotten": ("samples", "same order", ("        sampler.set_epoch(epoch)\n", "")),
    "the sum of the gradients": (
        "weights",
        "away from one process",
        ("loss.backward()\n", "(loss * dist.get_world_size()).backward()\n"),
    ),
    "the whole batch on each rank": ("weights", "step of both", ("batch // dist.get_world_size()", "batch")),
    "no step": ("weights", "nothing was learned", ("            optimizer.step()\n", "")),
    "padded evaluation": (
        "numbers",
        "held-out sample 0 was used 2 times",
        ("range(dist.get_rank(), len(held_out), dist.get_world_size())",
         "list(DistributedSampler(held_out, shuffle=False))"),
    ),
    "a mean of means": (
        "numbers",
        "train_loss",
        ("sums += torch.tensor([loss.item() * len(targets), len(targets)])", "sums += torch.tensor([loss.item(), 1])"),
    ),
    "a sampler without the seed": ("samples", "another seed", ("(data, seed=seed)", "(data)")),
    "a rate for two": ("weights", "which rate", ("lr=lr", "lr=lr * dist.get_world_size()")),
    "a group that is not left": ("leftovers", "process group", ("dist.destroy_process_group()", "pass")),
    "a group that is left on a good day alone": (
        "leftovers",
        "after an error in the data the group still has rank 0 and rank 1",
        (
            "    try:\n        return train_in_group(data, held_out, out, epochs, batch, lr, seed)\n    finally:\n"
            "        dist.destroy_process_group()\n",
            "    results = train_in_group(data, held_out, out, epochs, batch, lr, seed)\n"
            "    dist.destroy_process_group()\n    return results\n",
        ),
    ),
    "a file of each rank": (
        "leftovers",
        "rank 1 leaves the file model.pt",
        ("    if dist.get_rank() == 0:\n        torch", "    torch"),
    ),
    "the names of the wrapper": ("leftovers", "'module.", ("model.module.state_dict()", "model.state_dict()")),
    "a variable": (
        "leftovers",
        "the variable RANK_OF_ME",
        ("    history = []\n", "    history = []\n    __import__('os').environ['RANK_OF_ME'] = '1'\n"),
    ),
}  # fmt: skip


@pytest.mark.checks
@pytest.mark.parametrize("name", OTHERS)
def test_other_mistakes_are_told_too(name, two):
    area, words, change = OTHERS[name]
    told = complaints(changed(*mended(*MENDED), change), two)
    assert list(told) == [area] and words in told[area]


def test_a_thread_is_found(two):
    right = changed(*mended(*MENDED))

    def leaves_a_thread(*args):
        threading.Thread(target=threading.Event().wait, args=(2,), name="of mine", daemon=True).start()
        return right(*args)

    told = complaints(leaves_a_thread, two)
    assert list(told) == ["leftovers"] and "of mine" in told["leftovers"]


def test_a_history_of_another_form_is_refused(two):
    right = changed(*mended(*MENDED))
    with pytest.raises(RuntimeError, match="history must be a list"):
        capstone.check(lambda *args: (right(*args)[0], [1.0, 2.0]), two)
