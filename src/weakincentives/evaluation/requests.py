"""`ProviderRequests`: sends the requests of one evaluation and publishes how each ended."""

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
from .run_limits import RunLimits
from .run_log import RunLog

__all__ = ["ProviderRequests"]

_NO_ANSWER = AssistantMessage()
_NO_USAGE = TokenUsage()


class ProviderRequests:
    """The requests that the inner loop of one evaluation sends over a connection."""

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
        self._arrived = _NO_ANSWER  # of an answer that failed or was stopped
        self._is_taken = False  # whether the answer is counted, with what others have cost

    def send(self, request: ProviderRequest) -> Effects[AssistantMessage]:
        """Asks for a message, by another provider as long as the connection falls back to one.

        The message is in the log before anybody hears of it. Its usage includes discarded answers,
        and an error's notes the earlier failures.
        """
        spent = _NO_USAGE
        notes: list[str] = []
        while True:
            self._arrived, self._is_taken = _NO_ANSWER, False
            try:
                answer, void = yield from self._send_once(request, spent)
                if void is None or not self._fall_back(void, notes):
                    return self._take(answer, spent) if void else answer
                self._note_failure(void, fell_back=True)
                spent += answer.usage
            except PromptEvaluationError as error:
                spent += self._arrived.usage
                if isinstance(error, LimitError) or not self._fall_back(error, notes):
                    for note in notes:
                        error.add_note(note)
                    cost = self._limits.count(spent)
                    if not isinstance(error, LimitError):  # which a later run may not reach
                        arrived = self._arrived if self._arrived.text.strip() else None
                        if arrived is not None:
                            self._loop.transcript.append(arrived)
                        self._note_failure(error, usage=spent, arrived=arrived, cost=cost)
                    raise
                self._note_failure(error, fell_back=True)
            except BaseException as stop:  # an interrupt, and the end of a stream
                cost = None
                usage = _NO_USAGE if self._is_taken else spent + self._arrived.usage
                if usage != _NO_USAGE:
                    cost = self._limits.count(usage)
                if self._arrived.text.strip():  # which somebody may have read
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

    def _take(self, answer: AssistantMessage, spent: TokenUsage) -> AssistantMessage:
        """Counts an answer, with what discarded ones have `spent`, and adds it to the log."""
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
        """Appends to the log that a request has failed."""
        failure = replace(
            ProviderFailure.of(error), usage=usage, arrived=arrived, fell_back=fell_back
        )
        self._log.add_answer(Answered(failure, cost))

    def _fall_back(self, error: PromptEvaluationError, notes: list[str]) -> bool:
        """Lets the connection turn to its next provider, if it has one, and notes the failure."""
        provider, _ = self._target()
        if not self._connection.fall_back(error):
            return False
        notes.append(f"{provider} failed before: {error}")
        return True

    def _target(self) -> tuple[str, str]:
        """Returns the adapter and the model that are asked now."""
        provider, model = self._connection.target()
        return provider or self._operation.provider, model or self._operation.model

    def _send_once(
        self, request: ProviderRequest, spent: TokenUsage
    ) -> Effects[tuple[AssistantMessage, PromptEvaluationError | None]]:
        """Asks the provider, and publishes `ProviderCalled` in any case.

        Takes a whole answer before that; another one comes with the error that tells why it is not.
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
            ask = Ask(self._connection, request, operation.streamed, shown)
            answer = self._check_answer(request, *(yield ask))
            set_result(answer)
            if (void := unfinished_error(answer)) is None:
                taken = self._take(answer, spent)
        except BaseException as raised:  # an interrupt, and the end of a stream, too
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
                        model=answer.model or model,
                        cost=prices(answer.usage, answer.model or model)
                        if prices and (failure is None or answer.usage.total_tokens)
                        else None,
                        session_id=self._operation.session_id,
                        run_id=self._log.run_id,
                        run_path=self._log.path,
                    )
                )
            finally:  # an interrupt of an event's handler is none of the request
                part.__exit__(None if failure is None else type(failure), failure, None)
                del failure  # as in `_check_answer`
        return taken or answer, void

    def _check_answer(
        self,
        request: ProviderRequest,
        answer: AssistantMessage | None,
        failure: BaseException | None,
    ) -> AssistantMessage:
        """Returns the answer or raises the failure, as `DeadlineExceededError` if too late."""
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
                del failure  # else the exception's traceback would refer to the exception
        if answer is None:
            name = type(self._connection).__name__
            raise TypeError(f"the stream of {name} must end with a complete AssistantMessage")
        is_ascii = answer.text.isascii()
        for call in answer.tool_calls:
            texts = call.call_id, call.name, call.arguments
            is_ascii = is_ascii and "".join(texts).isascii()
        return answer if is_ascii else without_surrogates(answer)
