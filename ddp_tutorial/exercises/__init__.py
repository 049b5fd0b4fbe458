"""Exercises that a program checks. Taught in ``notebooks/11_capstone.ipynb``.

An answer is judged by what it does on fresh random input, beside what a right one does. What the usual wrong answers do
is known as well, so that the hint fits the mistake. The folder is for learning only: nothing of the package needs it.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..failures import LaunchError
from ..ranks import Ranks


class Hint(AssertionError):
    """The answer is wrong. The message says where to look, not what to write."""

    def _render_traceback_(self) -> list[str]:
        """Tell a notebook what to show: the hint alone, since the way through the check teaches nothing."""
        because = f" (it came of {type(self.__cause__).__name__}: {self.__cause__})" if self.__cause__ else ""
        return [f"Hint: {self}{because}"]


@dataclass(frozen=True)
class Exercise:
    """What to do with an answer, and what to compare it with.

    ``run(answer, *inputs)`` tries ``answer``, a function or a class, and returns what counts: tensors, numbers,
    strings, lists, tuples or dictionaries of them. ``right`` is an answer that is known to be right, best by another
    way than the reader's. ``inputs(random)`` draws fresh arguments from a ``random.Random``. ``mistakes`` has a hint
    for each usual wrong answer. ``shows`` says what a right answer has proven.
    """

    run: Callable[..., Any]
    right: Any
    inputs: Callable[[random.Random], tuple]
    mistakes: dict[str, Any]
    shows: str
    world_size: int = 0  # how many ranks it is tried on; 0: in this process

    def check(self, answer: Any, ranks: Ranks | None = None, rounds: int = 3) -> None:
        """Try ``answer`` on each of ``ranks``, or in this process if the exercise needs none, ``rounds`` times.

        Prints what was proven, or "not yet" while the line ``raise NotImplementedError`` is still there. Raises
        :class:`Hint` for a wrong answer; an error inside the answer comes through as it is unless it is a usual one.
        """
        __tracebackhide__ = True
        if (ranks.world_size if ranks else 0) != self.world_size:
            wanted = f"Ranks(world_size={self.world_size}, device='cpu')" if self.world_size else "no ranks"
            raise ValueError(
                f"this exercise is checked with {wanted}: check(answer{', ranks' * bool(self.world_size)})"
            )
        if any("NotImplementedError" in code.co_names for code in _codes(answer)):
            print("not yet: put your code in place of the line with NotImplementedError, run that cell, then this one")
            return
        for _ in range(rounds):
            inputs = self.inputs(random.Random())
            found, error = self._outcome(answer, inputs, ranks)
            expected, failure = self._outcome(self.right, inputs, ranks)
            if failure is not None:  # a fault of the exercise, or of the machine: not the reader's
                raise failure
            if error is None and same(found, expected):
                continue
            for hint, mistake in self.mistakes.items():
                usual, failure = self._outcome(mistake, inputs, ranks)
                if (error is None) == (failure is None) and same(found, usual):
                    raise Hint(hint) from error
            if error is not None:
                raise error
            raise Hint(f"for {_short(inputs)} your answer leads to {_short(found)}; right is {_short(expected)}")
        print(f"right: {self.shows}")

    def _outcome(self, answer: Any, inputs: tuple, ranks: Ranks | None) -> tuple[Any, Exception | None]:
        """Return what came of ``answer`` and None, or the kind of its error and the error."""
        try:
            found = self.run(answer, *inputs) if ranks is None else ranks.run(self.run, (answer, *inputs))
        except LaunchError as error:
            return error.failures[0].type, error
        except Exception as error:
            return type(error).__name__, error
        return found, None


def same(one: Any, other: Any) -> bool:
    """Return whether two outcomes are equal, numbers up to rounding."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and torch.allclose(one.double(), other.double(), rtol=1e-4, atol=1e-6)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-6)
    return type(one) is type(other) and one == other


def _codes(answer: Any) -> Iterator[Any]:
    """Yield the code of a function, of one below decorators, or of each method of a class."""
    answer = inspect.unwrap(answer) if callable(answer) else answer
    for part in vars(answer).values() if inspect.isclass(answer) else [answer]:
        if inspect.isfunction(part):
            yield part.__code__


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) < 300 else text[:297] + "..."
