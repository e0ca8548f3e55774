"""The results of runs, and the events that `stream` yields."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..citations import Citation
from ..displays import code_block, code_span, markdown, one_line
from ..generics import Parametrized
from ..limits import TokenUsage
from ..protocols import SessionProtocol
from ..runtime.events import AnswerRejected, Compacted
from ..serde.json_types import Json
from ..serde.partial_value import Operation, PartialValue
from .approval import Preview
from .conversation import Conversation
from .messages import AssistantMessage, Message, ToolCall, ToolMessage, ToolsAdded, ToolsRemoved

__all__ = [
    "AnswerRejected",
    "ApprovalRequested",
    "Completed",
    "Delta",
    "Execution",
    "Expansion",
    "OutputDelta",
    "Progress",
    "PromptResponse",
    "ReasoningDelta",
    "Restarted",
    "StreamEvent",
    "TextDelta",
    "ToolCallFinished",
    "ToolCallStarted",
]


def _new_session() -> SessionProtocol:
    from ..runtime.session import Session

    return Session()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptResponse[Out](Parametrized):
    """The result of an evaluation: the final `text`, and the typed `output` if it is declared.

    `text` is the model's own text, or the JSON from which `output` was parsed. `output` is `None`
    for a prompt without an output type. `turns` is the number of provider requests. To continue,
    pass `conversation` to a later evaluation; it is `None` if the adapter does not return one.
    """

    prompt_name: str
    text: str
    output: Out
    usage: TokenUsage
    turns: int
    conversation: Conversation | None = field(default=None, repr=False)
    session: SessionProtocol = field(default_factory=_new_session, repr=False, compare=False)
    """The session of the run, in which tools and later runs find its state."""

    def __repr__(self) -> str:
        output = one_line(type(self.output).__name__)
        return (
            f"<PromptResponse {one_line(self.prompt_name)} output={output} "
            f"characters={len(self.text)} turns={self.turns} tokens={self.usage.total_tokens}>"
        )

    def __str__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        """Renders the answer as Markdown for notebooks."""
        turns = f"{self.turns} turn{'s' * (self.turns != 1)}"
        spent = f"{turns}, {self.usage.total_tokens} tokens"
        return f"**Answer** of {code_span(self.prompt_name)}\n\n{code_block(self.text)}\n\n{spent}"

    @property
    def transcript(self) -> Sequence[Message]:
        """The messages of the conversation."""
        return () if self.conversation is None else self.conversation.messages

    @property
    def model(self) -> str:
        """The name of the model that wrote the final answer, or empty if it is unknown."""
        return next((it.model or it.requested_model for it in self._answers()[-1:]), "")

    @property
    def reasoning(self) -> str:
        """The reasoning that the provider shows for the final answer."""
        return "\n\n".join(filter(None, [answer.reasoning for answer in self._answers()]))

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The sources that the final answer cites; the passages are in the model's own text."""
        citations: list[Citation] = []
        offset = 0
        for answer in self._answers():
            citations += [citation.moved(offset) for citation in answer.citations]
            offset += len(answer.text)
        return tuple(citations)

    def _answers(self) -> list[AssistantMessage]:
        """Returns the final answer, preceded by its parts before pauses."""
        answers: list[AssistantMessage] = []
        for message in reversed(self.transcript):
            if not isinstance(message, AssistantMessage) or (answers and message.finish != "pause"):
                break
            answers.insert(0, message)
        return answers


@dataclass(frozen=True, slots=True)
class Expansion:
    """Sections that a new evaluation opened, and the model's reason."""

    section_keys: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution[Out]:
    """The final response, the sections opened during the run, and the run's total token usage."""

    response: PromptResponse[Out]
    expansions: tuple[Expansion, ...]
    usage: TokenUsage

    def __repr__(self) -> str:
        tokens = self.usage.total_tokens
        return f"<Execution restarts={self.restarts} tokens={tokens} response={self.response!r}>"

    def __str__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        """Renders the final answer as Markdown for notebooks."""
        return markdown(self.response)

    @property
    def restarts(self) -> int:
        """The number of evaluations after the first."""
        return len(self.expansions)

    @property
    def output(self) -> Out:
        """The typed answer in the final response."""
        return self.response.output

    @property
    def text(self) -> str:
        """The text of the final response."""
        return self.response.text

    @property
    def model(self) -> str:
        """The name of the model that wrote the final answer, or empty if it is unknown."""
        return self.response.model

    @property
    def reasoning(self) -> str:
        """The reasoning that the provider shows for the final answer."""
        return self.response.reasoning

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The sources that the final answer cites."""
        return self.response.citations

    @property
    def conversation(self) -> Conversation | None:
        """The conversation, which a later run can continue."""
        return self.response.conversation

    @property
    def session(self) -> SessionProtocol:
        """The session of the run."""
        return self.response.session

    @property
    def whole_response(self) -> PromptResponse[Out]:
        """The final response with the run's total token usage."""
        return replace(self.response, usage=self.usage)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A chunk of the text that the model is writing."""

    text: str


class OutputDelta:
    """The typed answer has grown; the last one equals the run's output, dumped as JSON.

    A prompt with an output type other than `str` yields one after each `TextDelta` that changes the
    answer. Until the answer is complete, nothing has been checked: no validator has run, and the
    model may still be asked to correct it. After `AnswerRejected` and `Restarted`, and if the model
    calls tools instead, the next one starts from scratch.
    """

    __slots__ = ("source",)
    __match_args__ = ("partial",)

    source: PartialValue
    """The answer at this moment, from which `partial` is read."""

    def __init__(self, partial: Json | PartialValue) -> None:
        if not isinstance(partial, PartialValue):
            partial = PartialValue.complete(partial)
        self.source = partial

    @property
    def partial(self) -> Json:
        """The answer so far: the fields that have arrived, in the order of arrival.

        Strings grow. Numbers, literals, dates and other scalars appear once they are complete, and
        missing fields and defaults appear only in the last event. An answer that is wrapped in an
        object with `items` or `value` is shown without it.

        Events are cheap, however long the answer is. The first access creates the value, at any
        time, in time proportional to the objects and arrays that were not complete yet. Complete
        ones are shared by all events, so copy the value before you change it.
        """
        return self.source.read()

    def patch(self, earlier: "OutputDelta | None" = None, path: str = "") -> list[Operation]:
        """Returns the JSON patch (RFC 6902) from an earlier event's `partial` to this one's.

        Without `earlier`, the patch replaces the value. `path` is a JSON pointer to the place of
        the value in the patched document. A string that has grown is replaced as a whole.
        """
        return self.source.patch(None if earlier is None else earlier.source, path)

    def is_due_after(self, earlier: "OutputDelta | None") -> bool:
        """Whether so much text has arrived since `earlier` that a patch is worth sending.

        Patches that are sent only then have a total size linear in the answer's, even though each
        repeats the path and the whole of a growing string.
        """
        return earlier is None or self.source.is_due_after(earlier.source)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputDelta) and self.partial == other.partial

    def __hash__(self) -> int:
        return hash(OutputDelta)  # equal events have equal hashes; JSON itself has none

    def __reduce__(self) -> tuple[type["OutputDelta"], tuple[Json]]:
        return OutputDelta, (self.partial,)

    def __repr__(self) -> str:
        return f"OutputDelta({self.partial!r})"


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A chunk of the reasoning that the provider shows; never empty.

    The chunks of one answer add up to its message's `reasoning`.
    """

    text: str


type Delta = TextDelta | ReasoningDelta
"""A chunk of an answer."""


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """A tool call is about to run; parallel calls are all announced before the first one ends."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolCallFinished:
    """A tool call has finished; `message` is its answer to the model."""

    call: ToolCall
    message: ToolMessage


@dataclass(frozen=True, slots=True)
class ApprovalRequested:
    """A tool call is waiting for a decision on `preview`."""

    call: ToolCall
    preview: Preview


@dataclass(frozen=True, slots=True)
class Restarted:
    """The run starts again with more sections open; discard all text so far."""

    section_keys: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Completed[Out](Parametrized):
    """The last event: the response, as returned by `evaluate`."""

    response: PromptResponse[Out]


type Progress = (
    TextDelta
    | ReasoningDelta
    | OutputDelta
    | ToolCallStarted
    | ToolCallFinished
    | ApprovalRequested
    | ToolsAdded
    | ToolsRemoved
    | AnswerRejected
    | Restarted
    | Compacted
)
"""The events of a stream, except the last one."""

type StreamEvent[Out] = Progress | Completed[Out]
"""Everything that `stream` can yield."""
