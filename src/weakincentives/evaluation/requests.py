"""`ProviderRequests` sends an evaluation's requests and publishes how each one ended."""

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

from ..limits import TokenUsage
from ..runtime.events import Operation, ProviderCalled
from .adapter import Connection
from .effects import Ask, Effects
from .errors import DeadlineExceededError, LimitError, PromptEvaluationError
from .inner_loop import InnerLoop, ProviderRequest, unfinished_error
from .logged_run import Answered, ProviderFailure
from .messages import AssistantMessage, without_surrogates
from .partial_answer import PartialAnswer, partial_answer
from .response import OutputDelta
from .run_limits import RunLimits
from .run_log import RunLog

__all__ = ["ProviderRequests"]

_NO_ANSWER = AssistantMessage()
_NO_USAGE = TokenUsage()


class ProviderRequests:
    """Sends the requests of one evaluation's inner loop over a connection."""

    def __init__(
        self,
        connection: Connection,
        loop: InnerLoop,
        limits: RunLimits,
        operation: Operation,
        publish: Callable[[object], None],
        *,
        log: RunLog,
    ) -> None:
        self._connection = connection
        self._loop = loop
        self._limits = limits
        self._operation = operation
        self._publish = publish
        self._log = log
        self._arrived = _NO_ANSWER  # the part received of an answer that failed or was stopped
        self._is_taken = False  # whether the usage of the answer and of discarded ones is counted
        self._partial: PartialAnswer | None = None  # of the last request

    def send(self, request: ProviderRequest) -> Effects[AssistantMessage]:
        """Requests a message, from other providers if the connection falls back to them.

        The message is logged before any event reports it. Its usage includes discarded answers. If
        all providers fail, the error's notes list the earlier failures.
        """
        spent = _NO_USAGE
        notes: list[str] = []
        while True:
            self._arrived, self._is_taken = _NO_ANSWER, False
            try:
                answer, problem = yield from self._send_once(request, spent)
                if problem is None or not self._fall_back(problem, notes):
                    return self._take(answer, spent) if problem else answer
                self._note_failure(problem, fell_back=True)
                spent += answer.usage
            except PromptEvaluationError as error:
                spent += self._arrived.usage
                if isinstance(error, LimitError) or not self._fall_back(error, notes):
                    for note in notes:
                        error.add_note(note)
                    cost = self._limits.count(spent)
                    if not isinstance(error, LimitError):  # a later run may have higher limits
                        arrived = self._arrived if self._arrived.text.strip() else None
                        if arrived is not None:
                            self._loop.transcript.append(arrived)
                        self._note_failure(error, usage=spent, arrived=arrived, cost=cost)
                    raise
                self._note_failure(error, fell_back=True)
            except BaseException as stop:  # including interrupts and closed streams
                cost = None
                usage = _NO_USAGE if self._is_taken else spent + self._arrived.usage
                if usage != _NO_USAGE:
                    cost = self._limits.count(usage)
                if self._arrived.text.strip():  # the stream's reader may have seen this text
                    self._loop.transcript.append(self._arrived)
                    failure = ProviderFailure(
                        message=f"stopped by {type(stop).__name__}",
                        phase="request",
                        code="stopped",
                        usage=usage,
                        arrived=self._arrived,
                    )
                    self._log.add_answer(Answered(failure, cost))
                raise
            self._limits.check_again(request.turn - 1, spent)

    def last_delta(self, output: object) -> OutputDelta | None:
        """Returns the event with the complete output, unless the stream has already shown it."""
        partial = self._partial or self._new_partial()
        return None if partial is None else partial.end(output)

    def _new_partial(self) -> PartialAnswer | None:
        return partial_answer(self._loop.structured_output, streamed=self._operation.streamed)

    def _take(self, answer: AssistantMessage, spent: TokenUsage) -> AssistantMessage:
        """Logs an answer and counts its usage, plus the tokens `spent` on discarded answers."""
        if spent is not _NO_USAGE:
            answer = replace(answer, usage=answer.usage + spent)
        self._is_taken = True
        cost = self._limits.count(answer.usage, answer.model)
        self._log.add_answer(Answered(answer, cost))
        return answer

    def _note_failure(
        self,
        error: PromptEvaluationError,
        *,
        usage: TokenUsage = _NO_USAGE,
        arrived: AssistantMessage | None = None,
        cost: float | None = 0.0,
        fell_back: bool = False,
    ) -> None:
        """Logs a failed request."""
        failure = replace(
            ProviderFailure.of(error), usage=usage, arrived=arrived, fell_back=fell_back
        )
        self._log.add_answer(Answered(failure, cost))

    def _fall_back(self, error: PromptEvaluationError, notes: list[str]) -> bool:
        """Switches the connection to its next provider, if it has one, and notes the failure."""
        provider, _ = self._target()
        if not self._connection.fall_back(error):
            return False
        notes.append(f"{provider} failed before: {error}")
        return True

    def _target(self) -> tuple[str, str]:
        """Returns the adapter and the model for the current request."""
        provider, model = self._connection.target()
        return provider or self._operation.provider, model or self._operation.model

    def _send_once(
        self, request: ProviderRequest, spent: TokenUsage
    ) -> Effects[tuple[AssistantMessage, PromptEvaluationError | None]]:
        """Asks the provider, and always publishes `ProviderCalled`.

        A complete answer is logged and counted before that event. An incomplete answer is returned
        with an error that explains why it is incomplete.
        """
        operation = self._operation
        provider, model = self._target()
        prices = self._loop.config.prices
        started, answer = perf_counter(), _NO_ANSWER
        taken: AssistantMessage | None = None
        shown: list[str] = []
        failure: BaseException | None = None
        part = operation.part("request", model, streamed=operation.streamed)
        set_result = part.__enter__()
        try:
            was_paused = isinstance(request.transcript[-1], AssistantMessage)
            if self._partial is None or not was_paused:
                self._partial = self._new_partial()
            ask = Ask(self._connection, request, operation.streamed, shown, self._partial)
            answer = self._check_answer(request, *(yield ask))
            set_result(answer)
            if (problem := unfinished_error(answer)) is None:
                taken = self._take(answer, spent)
        except BaseException as raised:  # including interrupts and closed streams
            failure = raised
            answer = self._connection.arrived() or _NO_ANSWER
            if shown and not answer.text:
                answer = AssistantMessage(text="".join(shown), finish="error")
            self._arrived = answer
            raise
        finally:
            try:
                self._publish(
                    ProviderCalled(
                        adapter=provider,
                        turn=request.turn,
                        seconds=perf_counter() - started,
                        usage=answer.usage,
                        finish=answer.finish if failure is None else "",
                        tool_calls=len(answer.tool_calls),
                        error=None if failure is None else f"{type(failure).__name__}: {failure}",
                        text=answer.text,
                        reasoning=answer.reasoning,
                        citations=answer.citations,
                        model=answer.model or model,
                        cost=prices(answer.usage, answer.model or model)
                        if prices and (failure is None or answer.usage.total_tokens)
                        else None,
                        session_id=self._operation.session_id,
                        run_id=self._log.run_id,
                        run_path=self._log.path,
                    )
                )
            finally:  # an interrupt in an event handler does not mean that the request failed
                part.__exit__(None if failure is None else type(failure), failure, None)
                del failure  # as in `_check_answer`
        return taken or answer, problem

    def _check_answer(
        self,
        request: ProviderRequest,
        answer: AssistantMessage | None,
        failure: BaseException | None,
    ) -> AssistantMessage:
        """Returns the answer or raises the failure; `DeadlineExceededError` if it came too late."""
        deadline = request.deadline
        if (
            isinstance(failure, Exception)
            and deadline
            and deadline.has_passed(self._limits.clock())
        ):
            raise DeadlineExceededError(
                "the deadline passed during a request",
                phase="limit",
                code="deadline",
                provider=self._operation.provider,
            ) from failure
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # otherwise, the exception's traceback would refer to the exception
        if answer is None:
            name = type(self._connection).__name__
            raise TypeError(f"the stream of {name} must end with a complete AssistantMessage")
        is_ascii = not answer.citations and (answer.text + answer.reasoning).isascii()
        for call in answer.tool_calls:
            texts = call.call_id, call.name, call.arguments
            is_ascii = is_ascii and "".join(texts).isascii()
        return answer if is_ascii else without_surrogates(answer)
