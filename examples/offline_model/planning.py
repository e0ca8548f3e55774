"""Policies as plans: a generator yields calls, is sent what came back, and returns the answer.

Every request carries the whole conversation, so a plan keeps no state: it is followed anew from the
beginning.
"""

from collections.abc import Callable, Generator

from .conversation import Call, Connection, Policy

type Plan = Generator[Call, str, str]


def follow(plan: Callable[[], Plan]) -> Policy:
    """The policy that makes the calls of `plan` one by one.

    Equal results must lead it to equal calls.
    """

    def decide(conversation: Connection) -> Call | str:
        steps = plan()
        try:
            step = next(steps)
            for result in conversation.results:
                step = steps.send(result.text)
        except StopIteration as done:
            return str(done.value)
        return step

    return decide
