"""Replaces the model with a rule that looks at the customer's words. It is not an LLM."""

import re

from examples.offline_model import Call, Conversation, Message, Result, embedded_json

from .prompt import TEAS

__all__ = ["answer_customer"]

_ORDER = re.compile(r"\b(order|buy|take|want)\b", re.IGNORECASE)
_GRAMS = re.compile(r"(\d+) ?g")


def answer_customer(conversation: Conversation) -> Call | str:
    """Opens the section that fits the customer's words, calls its tool, and quotes the result."""
    turns = list(conversation.turns)
    start = max(
        i for i, turn in enumerate(turns) if isinstance(turn, Message) and turn.role == "user"
    )
    message = turns[start]
    words = message.text if isinstance(message, Message) else ""
    results = [turn for turn in turns[start:] if isinstance(turn, Result)]
    names = {tool.name for tool in conversation.tools}
    tea = next((tea for tea in TEAS if tea.lower() in words.lower()), "")
    if tea and _ORDER.search(words):
        grams = _GRAMS.search(words)
        arguments = {"tea": tea, "grams": int(grams[1]) if grams else 100}
        step = Call(name="order_tea", arguments=arguments)
        section = "orders"
    else:
        step, section = Call(name="find_teas", arguments={"words": words}), "catalogue"
    if step.name not in names:
        return Call(name="read_section", arguments={"section_key": section})
    if not any(result.call.name == step.name for result in results):
        return step
    if section == "orders":
        return f"{results[-1].text.splitlines()[0]} Is there anything else that you would like?"
    return _recommend(results[-1])


def _recommend(result: Result) -> str:
    _, value = embedded_json(result.text)
    teas = value.get("teas", {}) if isinstance(value, dict) else {}
    if not teas:
        kinds = "black, green or red"
        return f"I have nothing quite like that. Tell me what you enjoy: {kinds}, strong or light?"
    lines = [f"{name} is {about}" for name, about in teas.items()]
    first = "From our shelf I would choose" if len(lines) > 1 else "I would choose"
    return f"{first} {next(iter(teas))}.\n\n" + "\n\n".join(lines)
