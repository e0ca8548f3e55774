"""Examples of complete tasks, with the objective, the tool calls and the outcome."""

from collections.abc import Callable, Sequence
from copy import copy
from itertools import count
from typing import NamedTuple, Self, Unpack

from .. import serde
from ..errors import SerdeError
from ..record_types import is_instance, is_record
from ..visibility import SectionPath
from .errors import PromptValidationError
from .sections import Section, SectionArguments
from .tool import AnyTool

__all__ = ["TaskExample", "TaskExamplesSection", "TaskStep"]


class TaskStep(NamedTuple):
    """One tool call in an example: the tool's name, its params, and its result as text."""

    tool: str
    input: object
    result: str


class TaskExample(NamedTuple):
    """One task from objective to outcome; a dataclass outcome is shown as JSON."""

    objective: str
    steps: tuple[TaskStep, ...] = ()
    outcome: object = ""


class TaskExamplesSection(Section[None]):
    """A section that shows `examples` in order.

    Raises `PromptValidationError` for values that cannot be converted to JSON.
    """

    def __init__(
        self,
        *,
        examples: Sequence[TaskExample],
        title: str = "Examples",
        **others: Unpack[SectionArguments[None]],
    ) -> None:
        self.examples = tuple(examples)
        super().__init__(title=title, **others)

    def render_body(self, params: None, *, path: SectionPath) -> str:
        """Renders every example as a numbered item."""
        return "\n\n".join(f"{number}. {text}" for number, text in enumerate(self._texts, start=1))

    def example_texts(self) -> tuple[str, ...]:
        return self._texts

    def with_example_texts(self, texts: tuple[str, ...]) -> Self:
        changed = copy(self)
        changed._texts = texts  # noqa: SLF001 - its own class
        return changed

    def check_tools(self, tool: Callable[[str], AnyTool | None], path: SectionPath) -> None:
        for index, example in enumerate(self.examples):
            for step in example.steps:
                called = tool(step.tool)
                if called is None:
                    problem = "no section has a tool of that name"
                elif not is_instance(step.input, called.params_type):
                    problem = f"pass {called.params_type.__name__}"
                else:
                    continue
                raise PromptValidationError(
                    f"task example {index} calls {step.tool!r} with "
                    f"{type(step.input).__name__}: {problem}",
                    section_path=path,
                )

    def _compile(self) -> None:
        super()._compile()
        self.examples = tuple(self.examples)
        self._texts = tuple(map(self._render, count(), self.examples))

    def _render(self, index: int, example: TaskExample) -> str:
        if not isinstance(example, TaskExample):
            raise self._refusal(f"examples must contain TaskExample objects, got {example!r}")
        lines = [example.objective]
        outcome = example.outcome
        try:
            lines += [
                f"   - `{step.tool}` `{serde.dump_json(step.input)}`: {step.result}"
                for step in example.steps
            ]
            text = serde.dump_json(outcome) if is_record(outcome) else str(outcome)
        except SerdeError as error:
            raise self._refusal(f"task example {index} is invalid: {error}") from error
        if text:
            lines.append(f"   - Outcome: {text}")
        return "\n".join(lines)
