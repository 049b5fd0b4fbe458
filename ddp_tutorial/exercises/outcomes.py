"""Two outcomes of an exercise, held against each other. Taught in ``notebooks/11_capstone.ipynb``."""

from __future__ import annotations

import math
from typing import Any

import torch


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


def first_difference(one: Any, other: Any, where: str) -> str:
    """Say where two outcomes part first, down to the item of a list or a dictionary."""
    pairs = []
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        pairs = [(key, one[key], other[key]) for key in one]
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        pairs = [(place, *pair) for place, pair in enumerate(zip(one, other))]
    for key, mine, right in pairs:
        if not same(mine, right):
            return first_difference(mine, right, f"{where}[{key!r}]")
    return f"{where} is {short(one)}, right is {short(other)}"


def short(value: Any) -> str:
    """Return ``value`` as text of 300 characters at most."""
    text = " ".join(repr(value).split())
    return text if len(text) < 300 else text[:297] + "..."
