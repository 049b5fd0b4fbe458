"""Each check accepts what is right and says of each usual wrong answer what is wrong with it."""

import importlib
import json
import pkgutil
import random

import pytest
from support import ROOT

from ddp_tutorial import Ranks, exercises
from ddp_tutorial.exercises import Exercise, Hint, same

MODULES = [
    importlib.import_module(f"{exercises.__name__}.{found.name}") for found in pkgutil.iter_modules(exercises.__path__)
]
ALL = {
    f"{module.__name__.rpartition('.')[2]}.{name}": value
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, Exercise)
}
MISTAKES = [(name, hint) for name, exercise in ALL.items() for hint in exercise.mistakes]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def ranks_of():
    """Return the warm ranks that an exercise is checked with."""
    groups = {0: None}

    def of(exercise):
        if exercise.world_size not in groups:
            groups[exercise.world_size] = Ranks(world_size=exercise.world_size, device="cpu", timeout=30)
        return groups[exercise.world_size]

    yield of
    for group in groups.values():
        if group is not None:
            group.close()


@pytest.mark.parametrize("name", ALL)
def test_a_right_answer_is_accepted(name, ranks_of, capsys):
    exercise = ALL[name]
    exercise.check(exercise.right, ranks_of(exercise))
    assert exercise.shows in capsys.readouterr().out
    assert len(exercise.mistakes) >= 2


@pytest.mark.checks
@pytest.mark.parametrize(("name", "hint"), MISTAKES)
def test_a_usual_mistake_gets_its_own_hint(name, hint, ranks_of):
    exercise = ALL[name]
    with pytest.raises(Hint) as caught:
        exercise.check(exercise.mistakes[hint], ranks_of(exercise))
    assert str(caught.value) == hint


def one_more(number):
    return number + 1


plus_one = Exercise(
    run=lambda answer, number: answer(number),
    right=one_more,
    inputs=lambda random: (random.randint(1, 9),),
    mistakes={"two is one too many": lambda number: number + 2},
    shows="one more",
)


def test_an_untouched_answer_is_not_yet_there(capsys):
    def untouched(number):
        raise NotImplementedError

    plus_one.check(untouched)
    assert capsys.readouterr().out.startswith("not yet")


def test_an_untouched_class_and_a_decorated_function_are_not_yet_there(capsys):
    import contextlib

    class Untouched:
        def __call__(self, number):
            raise NotImplementedError

    @contextlib.contextmanager
    def untouched(number):
        raise NotImplementedError
        yield

    for answer in (Untouched, untouched):
        plus_one.check(answer)
        assert capsys.readouterr().out.startswith("not yet")


def test_another_wrong_answer_is_shown_beside_the_right_one():
    with pytest.raises(Hint, match=r"^the result is 0, right is \d+. The input was \(\d,\)"):
        plus_one.check(lambda number: 0)


def test_the_first_difference_is_named():
    tree = Exercise(
        run=lambda answer, number: [answer(number), {"sum": 1}],
        right=lambda number: {"kept": number, "counts": [1, 2, 3]},
        inputs=plus_one.inputs,
        mistakes={},
        shows="",
    )
    with pytest.raises(Hint, match=r"^the result\[0\]\['counts'\]\[1\] is 7, right is 2\."):
        tree.check(lambda number: {"kept": number, "counts": [1, 7, 8]})


def test_an_error_in_an_answer_comes_through_without_the_lines_of_the_check():
    def broken(*_):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError) as caught:
        ALL["records.curve"].check(broken)
    names = [frame.name for frame in caught.traceback]
    assert names[-2:] == ["check", "broken"], "a line of the check shows what it looks for"


def test_a_notebook_shows_the_hint_alone():
    hint = Hint("look at the count")
    assert hint._render_traceback_() == ["Hint: look at the count"]
    hint.__cause__ = TimeoutError("rank 1 did not come")
    assert hint._render_traceback_() == ["Hint: look at the count (it came of TimeoutError: rank 1 did not come)"]


def test_ranks_that_an_exercise_does_not_want_are_refused(two):
    with pytest.raises(ValueError, match="no ranks"):
        plus_one.check(one_more, two)


def test_inputs_are_fresh_each_time():
    for name, exercise in ALL.items():
        draws = [exercise.inputs(random.Random(seed)) for seed in range(8)]
        assert not all(same(draws[0], other) for other in draws[1:]), name


@pytest.mark.parametrize(
    "path", [path for path in NOTEBOOKS if path.stem[:2] not in ("00", "11")], ids=lambda path: path.stem
)
def test_a_notebook_has_exercises_with_a_check_and_a_folded_solution(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    found = {kind: [cell for cell in cells if kind in cell["metadata"].get("tags", [])] for kind in KINDS}
    assert len(found["exercise"]) == len(found["check"]) == len(found["solution"]) >= 2
    for kind, said in (("check", "not yet"), ("solution", "right: ")):
        for cell in found[kind]:
            assert "".join(cell["outputs"][0]["text"]).startswith(said), "".join(cell["source"])
    for cell in found["solution"] + found["proof"]:  # what they print gives the answer away as well
        assert cell["metadata"]["jupyter"] == {"source_hidden": True, "outputs_hidden": True}
    assert len(found["proof"]) == 3, "three questions, each with the cell that proves the answer"


KINDS = ("exercise", "check", "solution", "proof")
