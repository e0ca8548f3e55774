"""`PartialAnswer` derives the `OutputDelta` events of a stream from its other events."""

from .. import serde
from ..errors import SerdeError
from ..prompt.output import StructuredOutputConfig
from ..prompt.partial_output import PartialOutput
from ..serde.json_types import comparable
from .response import AnswerRejected, OutputDelta, Restarted, TextDelta, ToolCallStarted

__all__ = ["PartialAnswer", "partial_answer"]


def partial_answer(
    config: StructuredOutputConfig[object] | None, *, streamed: bool
) -> "PartialAnswer | None":
    """Returns a new partial answer; `None` if nobody reads it or the output is the text."""
    return PartialAnswer(config) if streamed and config and config.container != "text" else None


class PartialAnswer:
    """The typed answer that a stream's text contains so far."""

    def __init__(self, config: StructuredOutputConfig[object]) -> None:
        self._config = config
        self._reads = True
        self._last: OutputDelta | None = None
        self.restart()

    def restart(self) -> None:
        """Forgets the text, because the model answers again."""
        self._output = PartialOutput(self._config)
        self._last = None

    def read(self, event: object) -> OutputDelta | None:
        """Returns the event that follows another one, if that changes the answer."""
        match event:
            case TextDelta(text) if self._reads and self._output.feed(text):
                assert self._output.value is not None  # it has changed
                self._last = OutputDelta(self._output.value)
                return self._last
            case OutputDelta():  # an adapter with its own loop reads its own text
                self._reads, self._last = False, event
            case AnswerRejected() | Restarted() | ToolCallStarted():
                self.restart()
            case _:
                pass
        return None

    def end(self, output: object) -> OutputDelta | None:
        """Returns the last event, unless the one before already equals the output."""
        try:
            dumped = serde.dump(output)
        except SerdeError:  # it was parsed from JSON that cannot be written again
            return None
        last = self._last
        if last is not None and comparable(last.partial) == comparable(dumped):
            return None
        return OutputDelta(dumped)
