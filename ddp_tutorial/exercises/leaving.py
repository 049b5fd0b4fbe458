"""An exercise on the order of leaving. Taught in ``notebooks/06_cleanup.ipynb``."""

from __future__ import annotations

from contextlib import contextmanager

from . import Exercise

CASES = {
    "good day": (),
    "error in the block": (False, ValueError),
    "sys.exit() in the block": (False, SystemExit),
    "join() fails": (True,),
}


def happenings(answer, name, fails_to_join=False, broken=None):
    seen = []

    def join():
        if fails_to_join:
            raise ValueError(f"{name} could not join")
        return name

    try:
        with answer(join, lambda error: seen.append(f"wrote down: {error}"), lambda: seen.append("left")) as env:
            seen.append(f"joined as {env}")
            if broken:
                raise broken(f"{name} broke")
    except BaseException as error:
        seen.append(f"the caller gets: {error}")
    return seen


def all_cases(answer, name):
    return {case: happenings(answer, name, *trouble) for case, trouble in CASES.items()}


class Group:
    def __init__(self, join, record, leave):
        self.join, self.record, self.leave = join, record, leave

    def __enter__(self):
        try:
            return self.join()
        except BaseException as error:
            self.__exit__(type(error), error)
            raise

    def __exit__(self, kind, error, *_):
        if error is not None:
            self.record(error)
        self.leave()


@contextmanager
def usual_group(join, record, leave, caught=BaseException, swallow=False, before=False, early=False, late=False):
    env = join() if before else None
    try:
        yield env or join()
    except caught as error:
        if early:
            leave()
        record(error)
        if not swallow:
            raise
    finally:
        if not early and not late:
            leave()
    if late:
        leave()


order = Exercise(
    run=all_cases,
    right=Group,
    inputs=lambda random: (f"rank {random.randrange(1000)}",),
    mistakes={
        "On a good day you leave, on a bad day you do not. Which clause of try runs on both?": (
            lambda *steps: usual_group(*steps, late=True)
        ),
        "You leave before the error is written down. What do the other ranks notice first?": (
            lambda *steps: usual_group(*steps, early=True)
        ),
        "The error is written down, and the caller hears nothing of it. What hands it on?": (
            lambda *steps: usual_group(*steps, swallow=True)
        ),
        "sys.exit() goes by unrecorded. Which class do SystemExit and KeyboardInterrupt derive from?": (
            lambda *steps: usual_group(*steps, caught=Exception)
        ),
        "An error of join() itself is not written down. Where does it have to be called?": (
            lambda *steps: usual_group(*steps, before=True)
        ),
        "sys.exit() goes by unrecorded, and so does an error of join(). Which class, and which place?": (
            lambda *steps: usual_group(*steps, before=True, caught=Exception)
        ),
        "Nothing is written down. Which clause sees the error?": (lambda *steps: usual_group(*steps, caught=())),
        "Nothing is written down, and a failed join() leaves nobody. Which clause sees an error, and whose?": (
            lambda *steps: usual_group(*steps, before=True, caught=())
        ),
    },
    shows="written down, left, handed on: for an error in the block, for sys.exit() and for a failed start",
)
