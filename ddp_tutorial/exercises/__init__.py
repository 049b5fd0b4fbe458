"""Exercises that a program checks. Taught in ``notebooks/11_capstone.ipynb``.

An answer is judged by what it does on fresh random input, beside what a right one does. What the usual wrong answers do
is known as well, so that the hint fits the mistake. The folder is for learning only: nothing of the package needs it.
"""

from __future__ import annotations

import inspect
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ..failures import LaunchError
from ..ranks import Ranks
from .outcomes import first_difference, same, short


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
            where = "the result" if ranks is None else "the result (by rank, then as it comes)"
            raise Hint(f"{first_difference(found, expected, where)}. The input was {short(inputs)}")
        print(f"right: {self.shows}")

    def _outcome(self, answer: Any, inputs: tuple, ranks: Ranks | None) -> tuple[Any, Exception | None]:
        """Return what came of ``answer`` and None, or the kind of its error and the error."""
        try:
            found = self.run(answer, *inputs) if ranks is None else ranks.run(self.run, (answer, *inputs))
        except LaunchError as error:
            return error.failures[0].type, error
        except Exception as error:
            return type(error).__name__, error.with_traceback(_below_the_check(error.__traceback__))
        return found, None


def _below_the_check(trace: TracebackType | None) -> TracebackType | None:
    """Leave out the lines of the checks: they teach nothing, and show what the usual mistakes are."""
    below = trace
    while below is not None and os.path.dirname(below.tb_frame.f_code.co_filename) == os.path.dirname(__file__):
        below = below.tb_next
    return below or trace


def _codes(answer: Any) -> Iterator[Any]:
    """Yield the code of a function, of one below decorators, or of each method of a class."""
    answer = inspect.unwrap(answer) if callable(answer) else answer
    for part in vars(answer).values() if inspect.isclass(answer) else [answer]:
        if inspect.isfunction(part):
            yield part.__code__
