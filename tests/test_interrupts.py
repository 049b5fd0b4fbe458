import signal

import pytest

from ddp_tutorial.interrupts import interrupts_held


def test_a_held_interrupt_comes_after_the_block():
    seen = []
    with pytest.raises(KeyboardInterrupt):
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
            seen.append("went on")
        pytest.fail("the interrupt was lost")
    assert seen == ["went on"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_without_an_interrupt_nothing_changes():
    with interrupts_held():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
