"""Checks of notebook 07: results, and what travels. Taught in ``notebooks/07_launch_and_plot.ipynb``."""

from __future__ import annotations

import pickle
import threading
import time
from multiprocessing import Pipe, connection

from ..sending import pack
from . import Exercise


class Worker:
    """Stands for a process: sends ``result`` through its pipe and ends. ``join`` gives up where a real one hangs."""

    def __init__(self, result: bytes, late: bool) -> None:
        self.pipe, self._theirs = Pipe()
        self.joined = False
        self._thread = threading.Thread(target=self._speak, args=(result, 0.2 * late), daemon=True)
        self._thread.start()
        if not late:
            self.pipe.poll(5)

    def _speak(self, result: bytes, delay: float) -> None:
        time.sleep(delay)
        self._theirs.send(result)

    def join(self) -> None:
        self._thread.join(1)
        if self._thread.is_alive():
            self.pipe.recv()  # lets the thread go, for the next check
            raise TimeoutError("this join waits for a process that waits for its reader")
        self.joined = True


def _try_collect(answer, sizes):
    workers = [Worker(bytes([rank]) * size, late=rank == 0) for rank, size in enumerate(sizes)]  # rank 0 speaks last
    results = answer(workers, [worker.pipe for worker in workers])
    return [[len(result), result[0]] for result in results], [worker.joined for worker in workers]


def _poll_and_join(workers, pipes):
    results = {}
    while len(results) < len(pipes):
        for rank, pipe in enumerate(pipes):
            if rank not in results and pipe.poll(0.01):
                results[rank] = pipe.recv()
                workers[rank].join()
    return [results[rank] for rank in range(len(pipes))]


def _as_they_come(workers, pipes):
    results, waiting = [], list(pipes)
    while waiting:
        for pipe in connection.wait(waiting):
            results.append(pipe.recv())
            waiting.remove(pipe)
    for worker in workers:
        worker.join()
    return results


def _join_first(workers, pipes):
    for worker in workers:
        worker.join()
    return [pipe.recv() for pipe in pipes]


collect = Exercise(
    run=_try_collect,
    right=_poll_and_join,
    inputs=lambda random: ([random.randint(1, 9), random.randint(1_000_000, 2_000_000), random.randint(1, 9)],),
    mistakes={
        "a process that has put a megabyte into a pipe does not end. What does it wait for?": _join_first,
        "the results are right. Does somebody wait for the processes to end?": lambda _, pipes: [
            p.recv() for p in pipes
        ],
        "these are the results, in the order in which they came. Who is first in the list?": _as_they_come,
        "these are the results as they came. In which order are they wanted, and who waits for the processes to end?": (
            lambda _, pipes: _as_they_come([], pipes)
        ),
    },
    shows="a small and a large result come back, and every process is waited for",
)


def _launch(fn, args=()):
    """Do what ``launch`` does to a function, on two ranks that are no processes: each calls a copy."""
    payload = pack(fn, args)
    calls = [pickle.loads(payload) for _ in range(2)]
    return [call(*arguments) for call, arguments in calls]


def _into_a_dictionary(train, rates, launch):
    found = {}
    for rate in rates:

        def job():
            found[rate] = train(rate)  # noqa: B023

        launch(job)
    return found


def _launched_later(train, rates, launch):
    jobs = {rate: lambda: train(rate) for rate in rates}  # noqa: B023
    return {rate: launch(job)[0] for rate, job in jobs.items()}


sweep = Exercise(
    run=lambda answer, best, rates: answer(lambda rate: (rate - best) ** 2, rates, _launch),
    right=lambda train, rates, _: {rate: train(rate) for rate in rates},
    inputs=lambda random: (random.random(), [0.1, 0.2, random.uniform(0.3, 0.9)]),
    mistakes={
        "a rank fills its own copy of the dictionary. By which way does something come back?": _into_a_dictionary,
        "all jobs mention one variable. Which value has it when the first of them is packed?": _launched_later,
        "launch returns what each rank returned. Which of them is asked for?": lambda train, rates, launch: {
            rate: launch(train, (rate,)) for rate in rates
        },
    },
    shows="what a rank finds comes back as its result, and each job has the rate that was meant for it",
)
