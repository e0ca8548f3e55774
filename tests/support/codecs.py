"""A codec's side of a conversation, without a loop or a server."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from weakincentives.adapters.codec import Codec, decode_reply
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.inner_loop import ProviderRequest
from weakincentives.evaluation.messages import AssistantMessage, Message, ToolMessage, UserMessage
from weakincentives.evaluation.schemas import OutputSpec, ToolSpec

# Any throughout: JSON payloads, which tests index into.


def encoded(body: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy of the current `body` as the SDK writes it: no NaN, no lone surrogates."""
    text = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    copied: dict[str, Any] = json.loads(text)
    return copied


class Talk:
    """A transcript, and the codec that encodes it."""

    def __init__(
        self, codec: Codec, text: str, *tools: ToolSpec, output: OutputSpec | None = None
    ) -> None:
        self.codec = codec
        self.transcript: list[Message] = [UserMessage(text)]
        self._tools = tools
        self._output = output
        self._turn = 0

    def request(self) -> dict[str, Any]:
        """Returns the body of the next request."""
        self._turn += 1
        return self.codec.encode(
            ProviderRequest(self._turn, self.transcript, self._tools, self._output, None)
        )

    def hear(self, reply: object) -> AssistantMessage:
        """Adds a reply to the conversation, without changing the reply's own objects."""
        answer = decode_reply(self.codec, deepcopy(reply))
        self.transcript.append(answer)
        return answer

    def say(self, *messages: Message) -> None:
        self.transcript.extend(messages)


def read_and_send_back(codec: Codec, reply: object) -> None:
    """Checks that `reply` is malformed, or a plain message that the next request sends back."""
    talk = Talk(codec, "Go.")
    talk.request()
    try:
        answer = talk.hear(reply)
    except PromptEvaluationError as error:
        assert error.phase == "response"  # noqa: PT017 - both outcomes are valid
        return
    assert isinstance(answer.text, str)
    for call in answer.tool_calls:
        assert isinstance(call.arguments, str)
        assert isinstance(call.name, str)
        talk.say(ToolMessage(call.call_id, "ok"))
    talk.say(UserMessage("Go on."))
    encoded(talk.request())


# including lone surrogates, which JSON can spell but `st.text()` omits
ANY_TEXT = st.text(st.characters())
ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def broken(draw: st.DrawFn, whole: dict[str, Any]) -> Any:
    """Returns `whole` with one to three of its parts removed or replaced by any JSON."""
    value: Any = deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        holder: Any = value
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            inside = holder[key]
            if isinstance(inside, dict | list) and inside and draw(st.integers(0, 3)):
                holder = inside
                continue
            if isinstance(holder, dict) and draw(st.booleans()):
                del holder[key]
            else:
                holder[key] = draw(ANY_JSON)
            break
    return value


@dataclass(frozen=True)
class Step:
    """One turn's additions to a request: objects in its list, and their bytes."""

    objects: int
    size: int


@dataclass
class Growth:
    """Measures what each turn adds to a conversation with one call per turn."""

    codec: Codec
    tool: ToolSpec
    reply: Callable[[int], dict[str, Any]]
    key: str
    steps: list[Step] = field(default_factory=list[Step])

    def __post_init__(self) -> None:
        self._talk = Talk(self.codec, "Go.", self.tool)
        self._items: list[Any] = self._talk.request()[self.key]

    def at(self, turn: int) -> Step:
        """Returns the step of that turn; checks that earlier items stay the same objects."""
        while len(self.steps) < turn:
            before = list(self._items)
            answer = self._talk.hear(self.reply(len(self.steps)))
            self._talk.say(*[ToolMessage(call.call_id, "ok") for call in answer.tool_calls])
            items = self._talk.request()[self.key]
            assert items is self._items
            assert all(old is new for old, new in zip(before, items, strict=False))
            added = items[len(before) :]
            self.steps.append(Step(len(added), len(json.dumps(added))))
        return self.steps[turn - 1]
