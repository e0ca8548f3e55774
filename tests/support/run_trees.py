"""Trees of runs for laws: a generator, and the model that plays a tree.

A `Tree` describes the model's actions after each user message: turns of tool calls, of which a
`delegate` runs another prompt. The model finds its place in the tree from the transcript, so it
does the same in every process. `support.cut_runs` runs trees.
"""

import json
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st

from weakincentives.content import Image, MemoryContentStore
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.messages import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from weakincentives.limits import TokenUsage
from weakincentives.testing.scripted import SeenRequest

# ------------------------------------------------------------------------------------------- trees


@dataclass(frozen=True)
class Step:
    """One tool call; `inner` is the run that a `delegate` starts."""

    tool: str
    number: int
    inner: "Script | None" = None


@dataclass(frozen=True)
class Script:
    """The model's turns after one message, and then its answers until one is accepted.

    An answer is `"wrong"` JSON, `"rejected"` by `accept=`, or `"right"`; `"asks"` calls `ask`
    instead of answering. The request of turn `fails_at` fails at the first provider.
    """

    turns: tuple[tuple[Step, ...], ...]
    answers: tuple[str, ...] = ("right",)
    fails_at: int | None = None


@dataclass(frozen=True)
class Tree:
    """The model's actions after each user message, and the configuration of the runs."""

    scripts: tuple[Script, ...]
    features: frozenset[str] = frozenset()
    max_tokens: int | None = None

    def script(self, address: str) -> Script:
        """Returns the script at an address such as `root#0/1.2`: call 2 of turn 1."""
        first, *places = address.removeprefix("root#").split("/")
        script = self.scripts[int(first)]
        for place in places:
            turn, index = map(int, place.split("."))
            inner = script.turns[turn][index].inner
            assert inner is not None
            script = inner
        return script


@dataclass(frozen=True)
class Shape:
    """What the generator may draw: `tools`, and each of the `features` with an even chance.

    `always` lists, by level from the root, the calls that each script contains. `certain` features
    are part of every tree. `levels` limits how deep runs nest.
    """

    tools: tuple[str, ...]
    features: tuple[str, ...] = ()
    always: tuple[tuple[str, ...], ...] = ((),)
    certain: tuple[str, ...] = ()
    levels: int = 3
    most_turns: int = 3


def draw(rng: Random, shape: Shape) -> Tree:
    """Draws a tree; `rng` may come from Hypothesis."""
    features = {feature for feature in shape.features if rng.random() < 0.5} | {*shape.certain}
    payments = iter(range(100, 1000))

    def step(tool: str, level: int) -> Step:
        if tool == "delegate":
            return Step(tool, rng.randrange(12), script(level + 1))
        return Step(tool, next(payments) if tool in ("pay", "mcp_append") else rng.randrange(12))

    def script(level: int) -> Script:
        always = shape.always[level] if level < len(shape.always) else ()
        deepest = level + 1 >= shape.levels
        tools = [tool for tool in shape.tools if tool != "delegate" or not deepest]
        if level:
            tools = [tool for tool in tools if not tool.startswith("mcp_")]
        turns = [
            [step(rng.choice(tools), level) for _ in range(rng.randint(1, 4 - level))]
            for _ in range(rng.randint(1, max(shape.most_turns - level, 1)))
        ]
        for tool in always:
            turn = rng.choice(turns)
            turn.insert(rng.randint(0, len(turn)), step(tool, level))
        wrong = list[str]()
        for feature, answer in (("repair", "wrong"), ("accept", "rejected")):
            if feature in features:
                wrong += [answer] * rng.randint(0 if level else 1, 2)
        if level:  # a nested run that ends with an error has no answer that lists its effects
            wrong = wrong[:2]
        if wrong and rng.random() < 0.5:
            wrong.insert(1, "asks")
        fails = {"failure", "fallback"} & features and rng.random() < (0.3 if level else 0.7)
        fails_at = rng.randint(0, len(turns)) if fails else None
        return Script(tuple(map(tuple, turns)), (*wrong, "right"), fails_at)

    count = rng.randint(2, 3) if "chat" in features else 1
    scripts = tuple([script(0) for _ in range(count)])
    max_tokens = rng.randint(100, 2000) if "budget" in features else None
    return Tree(scripts, frozenset(features), max_tokens)


def seeded(shape: Shape, seed: int) -> Tree:
    """Draws the tree with this number, which is always the same."""
    return draw(Random(seed), shape)  # noqa: S311 - reproducible randomness


def trees(shape: Shape) -> st.SearchStrategy[Tree]:
    """Returns a strategy for trees of this shape."""
    return st.builds(draw, st.randoms(use_true_random=False), st.just(shape))


# ---------------------------------------------------------------------------- outside of a process


@dataclass
class Outside:
    """Everything that outlives a process: files, facts and the requests to the provider.

    The fact file in `folder` is never rolled back. `asked` has the place in the tree of each
    request that was answered, `spent` the tokens before each of them, `used` the total. `moments`
    counts the beginnings and ends of requests and tool calls; the process is interrupted at moment
    `interrupt_at`.
    """

    folder: Path
    content: MemoryContentStore = field(default_factory=MemoryContentStore)
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    asked: list[str] = field(default_factory=list[str])
    spent: list[int] = field(default_factory=list[int])
    used: TokenUsage = field(default_factory=TokenUsage)
    moments: list[str] = field(default_factory=list[str])
    interrupt_at: int = 0
    suspensions: int = 0

    def copied(self, folder: Path) -> "Outside":
        """Returns a copy with the same facts, whose fact file is in another folder."""
        copytree(self.folder, folder)
        return replace(
            self,
            folder=folder,
            files=dict(self.files),
            asked=[*self.asked],
            spent=[*self.spent],
            moments=[*self.moments],
        )

    @property
    def facts(self) -> list[str]:
        """Returns the payments in order, including those of MCP tools."""
        paths = [self.folder / "paid", self.folder / "calls"]
        return [line for path in paths if path.exists() for line in path.read_text().splitlines()]

    def pay(self, number: int) -> None:
        with (self.folder / "paid").open("a") as file:
            file.write(f"paid {number}\n")

    def pass_moment(self, name: str) -> None:
        """Raises `KeyboardInterrupt` if this is the moment for it."""
        self.moments.append(name)
        if len(self.moments) == self.interrupt_at:
            raise KeyboardInterrupt


@contextmanager
def outside() -> Generator[Outside]:
    with TemporaryDirectory() as folder:
        yield Outside(Path(folder))


# ------------------------------------------------------------------------------------------- model

_TURN = re.compile(r":(\d+)\.\d+\b")
_DONE = re.compile(r"\b(?:noted|wrote|paid|asked|showed|kept) \d+")
OPEN = "The drawer is open."
PICTURE = Image.from_bytes(b"GIF89a")


def done_calls(messages: Sequence[Message]) -> list[str]:
    """Returns the effects of answered calls, including nested ones, such as `noted 3`."""
    answers = [item for item in messages if isinstance(item, ToolMessage) and item.success]
    return [text for answer in answers for text in _DONE.findall(answer.content)]


def _place(messages: Sequence[Message]) -> tuple[str, list[Message]]:
    """Returns the address of the script that the model is playing, and the messages since then."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if isinstance(message, UserMessage) and not message.repair:
            return message.text.split()[0], list(messages[index + 1 :])
    raise AssertionError("no message of a user")


def _turn(tree: Tree, script: Script, first: str, later: Sequence[Message]) -> int:
    """Returns the next turn; after a restart, the turn after the one that opened a section.

    The model's answers are numbered as turns after those of the script.
    """
    said = [message for message in later if isinstance(message, AssistantMessage)]
    turns = [int(match[1]) for message in said for match in _TURN.finditer(_marks(message))]
    if not turns and OPEN in first and "repeats" not in tree.features:
        turns = [
            number
            for number, turn in enumerate(script.turns)
            if any(step.tool == "open" for step in turn)
        ]
    return max(turns, default=-1) + 1


def _marks(message: AssistantMessage) -> str:
    """Returns the texts that identify a message's turn: the call ids, or the answer."""
    return " ".join([message.text, *[call.call_id for call in message.tool_calls]])


def _unknown_calls(later: Sequence[Message]) -> list[ToolCall]:
    """Returns the last calls whose outcome is unknown, unless the model has repeated them."""
    calls = [
        call for item in later if isinstance(item, AssistantMessage) for call in item.tool_calls
    ]
    unknown = [item.call_id for item in later if isinstance(item, ToolMessage) and item.unknown]
    ids = [call.call_id for call in calls]
    return [call for call in calls if call.call_id in unknown and ids.count(call.call_id) == 1]


_ARGUMENTS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "read": ("read_section", {"section_key": "page"}),
    "read_skill": ("read_section", {"section_key": "pdf"}),
    "open": ("open_sections", {"section_keys": ["drawer"], "reason": "needed"}),
    "inject": ("read_section", {"section_key": "drawer"}),
    "close": ("close_section", {"section_key": "drawer"}),
    "mcp_echo": ("plain_echo", {"text": "hello"}),
}


def _call(step: Step, address: str, turn: int, index: int, *, injects: bool) -> ToolCall:
    tool = "inject" if step.tool == "open" and injects else step.tool
    name, arguments = _ARGUMENTS.get(tool, (tool, {"number": step.number}))
    if step.tool == "delegate":
        arguments = {"number": step.number, "to": f"{address}/{turn}.{index}"}
    elif step.tool == "mcp_append":
        name, arguments = "plain_append", {"text": str(step.number)}
    return ToolCall(f"{address}:{turn}.{index}", name, json.dumps(arguments))


def reply(tree: Tree, out: Outside, seen: SeenRequest, *, provider: str) -> Any:
    """Returns the model's answer to a request, or the provider's failure."""
    first = seen.messages[0].text
    usage = TokenUsage(40 * len(seen.messages), 5)
    address, later = _place(seen.messages)
    out.pass_moment(f"request of {address}")
    if first.endswith("Summarize."):
        answer, place = AssistantMessage(text=f"{len(first)} characters.", usage=usage), "summary"
    else:
        script = tree.script(address)
        turn = _turn(tree, script, first, later)
        place = f"{address}:{turn}"
        if turn == script.fails_at and provider == "first":
            return PromptEvaluationError("down", phase="request", code="server_error")
        if calls := _unknown_calls(later):
            answer, place = _calling(calls, usage), f"{place} again"
        elif turn < len(script.turns):
            injects = "restart" not in tree.features
            steps = enumerate(script.turns[turn])
            calls = [_call(step, address, turn, n, injects=injects) for n, step in steps]
            answer = _calling(calls, usage)
        else:
            kind = script.answers[min(turn - len(script.turns), len(script.answers) - 1)]
            answer = _answer(kind, place, usage, done_calls(later), as_json=uses_json(tree))
    out.pass_moment(f"request of {address}")
    out.asked.append(place)
    out.spent.append(out.used.total_tokens)
    out.used += usage
    return replace(answer, model=provider)


def uses_json(tree: Tree) -> bool:
    """Returns whether the prompt asks for a typed output."""
    return bool({"repair", "accept"} & tree.features)


def _calling(calls: Sequence[ToolCall], usage: TokenUsage) -> AssistantMessage:
    return AssistantMessage(tool_calls=tuple(calls), finish="tool_calls", usage=usage)


def _answer(
    kind: str, place: str, usage: TokenUsage, done: Sequence[str], *, as_json: bool
) -> AssistantMessage:
    """Returns an answer that lists the effects of the calls."""
    if kind == "asks":
        return _calling([ToolCall(f"{place}.0", "ask", '{"number": 40}')], usage)
    text = f"{kind} {place}.0: {'; '.join(done)}"
    if as_json and kind != "wrong":
        text = json.dumps({"text": text})
    return AssistantMessage(text=text, usage=usage)
