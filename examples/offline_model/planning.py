"""Policies as plans: a generator yields calls and answers, and receives the replies.

Every request contains the whole conversation, so `follow` keeps no state: it reruns the plan from
the beginning.
"""

from collections.abc import Callable, Generator

from .conversation import Call, Conversation, Message, Policy

type Plan = Generator[Call | str, str, str]
"""Yields a call and receives its result, yields an answer and receives the user's next message, and
returns the last answer."""


def follow(plan: Callable[[], Plan]) -> Policy:
    """Returns a policy that follows the steps of `plan`.

    The plan must be deterministic: the same results and messages must lead to the same steps.
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
    """Returns the replies so far: results, and the user's messages after the first one."""
    inputs = [
        turn for turn in conversation.turns if not isinstance(turn, Message) or turn.role == "user"
    ]
    return [turn.text for turn in inputs[1:]]
