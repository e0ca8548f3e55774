"""Policies as plans: a generator yields calls, receives their results and returns the answer.

Every request carries the whole conversation, so `follow` keeps no state: it runs the plan anew from
its beginning.
"""

from collections.abc import Callable, Generator

from .conversation import Call, Conversation, Policy

type Plan = Generator[Call, str, str]


def follow(plan: Callable[[], Plan]) -> Policy:
    """Returns the policy that makes the calls of `plan` in turn.

    The plan must make equal calls for equal results.
    """

    def decide(conversation: Conversation) -> Call | str:
        steps = plan()
        try:
            step = next(steps)
            for result in conversation.results:
                step = steps.send(result.text)
        except StopIteration as stop:
            return str(stop.value)
        return step

    return decide
