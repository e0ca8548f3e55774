"""Policies as plans: a generator yields calls and answers, and receives what comes back.

Every request carries the whole conversation, so `follow` keeps no state: it reruns the plan from
its beginning.
"""

from collections.abc import Callable, Generator

from .conversation import Call, Conversation, Message, Policy

type Plan = Generator[Call | str, str, str]
"""Yields a call and receives its result, yields an answer and receives the user's next message, and
returns the last answer."""


def follow(plan: Callable[[], Plan]) -> Policy:
    """Returns the policy that takes the steps of `plan` in turn.

    The plan must take equal steps for equal results and messages.
    """

    def decide(conversation: Conversation) -> Call | str:
        steps = plan()
        try:
            step = next(steps)
            for text in _received(conversation):
                step = steps.send(text)
        except StopIteration as stop:
            return str(stop.value)
        return step

    return decide


def _received(conversation: Conversation) -> list[str]:
    """Returns what has come back so far: results, and messages after the user's first one."""
    inputs = [
        turn for turn in conversation.turns if not isinstance(turn, Message) or turn.role == "user"
    ]
    return [turn.text for turn in inputs[1:]]
