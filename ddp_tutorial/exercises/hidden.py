"""An exercise on errors that hide errors. Taught in ``notebooks/06_cleanup.ipynb``."""

from __future__ import annotations

import os
from unittest import mock

import torch
import torch.distributed as dist

from ..cleanup import leave, process_group
from ..environment import init_environment
from . import Exercise


def outcomes(answer, number):
    cases = {"good day": (), "work fails": ("sample 17 has no label",), "joining fails": ("", True)}
    return {case: outcome(answer, number, *details) for case, details in cases.items()}


def outcome(answer, number, broken="", fails_to_join=False):
    def work(env):
        if broken:
            raise ValueError(broken)
        total = torch.tensor(number + env.rank)
        dist.all_reduce(total)
        return total.item()

    with mock.patch.dict(os.environ):  # what is deleted below comes back
        if fails_to_join:
            del os.environ["WORLD_SIZE"]
        try:
            found = f"the caller gets {answer(work)}"
        except Exception as error:
            first = type(error) is ValueError and error.__cause__ is None
            made = type(error) is RuntimeError or error.__cause__ is not None
            text = f"{type(error).__name__}: {error}" if first else "one made of it" if made else type(error).__name__
            found = f"the caller gets the error {text}"
    in_a_group = dist.is_initialized()
    leave()
    return f"{found}{', and is still in the group' * in_a_group}"


def in_a_block(work):
    with process_group() as env:
        return work(env)


def job(work, swallow=False, unbound=False, bare=False, another=False):
    try:
        env = init_environment()
        return work(env)
    except Exception as error:
        if unbound:
            str(env.rank)
        if another:
            raise RuntimeError("this rank failed") from error
        if not swallow:
            raise
    finally:
        dist.destroy_process_group() if bare else leave()


hunt = Exercise(
    run=outcomes,
    right=in_a_block,
    inputs=lambda random: (random.randrange(1000),),
    mistakes={
        "The caller never gets the first error: None when work() fails, another error when joining fails.": (
            lambda work: job(work, swallow=True, unbound=True, bare=True)
        ),
        "When joining fails, finally raises an error of its own. What does it clean up then?": (
            lambda work: job(work, bare=True)
        ),
        "When joining fails, there is no env yet, and the line that tells of the error raises one.": (
            lambda work: job(work, unbound=True)
        ),
        "The error is caught and not handed on: the caller gets None, which looks like success.": (
            lambda work: job(work, swallow=True)
        ),
        "The caller gets an error that you made. It wants the first one, unchanged.": (
            lambda work: job(work, another=True)
        ),
    },
    shows="the caller gets the result, or the very first error, and no rank stays in the group",
    world_size=2,
)
