import signal

import pytest

from kvtrace_cli.capture.signals import (
    deferred_termination,
    forwarded_termination,
    orderly_termination,
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_polite_signal_is_an_interrupt(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), orderly_termination():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_what_must_not_be_torn_is_finished_first():
    done = []

    def work():
        with orderly_termination(), deferred_termination():
            signal.raise_signal(signal.SIGTERM)
            done.append("work")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["work"]


def test_what_is_for_another_program_does_not_stop_us():
    heard = []
    with orderly_termination():
        with forwarded_termination(heard.append):
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert heard == [signal.SIGTERM, signal.SIGINT]
