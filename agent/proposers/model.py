"""A language model as an author of kernels: a context becomes a question, and the answer a proposal."""

from __future__ import annotations

import math

from agent.context import Context
from agent.events import AUTHORED, Missed, Proposal
from agent.funds import Funds
from agent.models.records import Message, Model, Reply, Request, Sampling, Stop
from agent.prompts import answer, room
from agent.prompts.answer import Answer, MalformedAnswer
from agent.prompts.situation import situation
from agent.prompts.statement import Brief, statement, system
from atrex.candidate import Candidate, detect_dsl
from atrex.errors import AtrexError
from atrex.spending import Spending

CONTEXT_TOKENS = 24_000
"""Of the changing part of a prompt."""
_QUOTED = 2000  # characters of an unreadable answer that its repair repeats
_STOPS = {
    Stop.LENGTH: "the answer ended at the output limit; write less, or edits instead of a whole file",
    Stop.REFUSED: "the model declined",
    Stop.TOOL: "the model asked for a tool, and there are none",
    Stop.EMPTY: "the answer is empty",
    Stop.CUT: "the answer is longer than is read",
}


class Asking:
    """Implements `Author` with a model: one question an answer, and one repair of what cannot be read."""

    def __init__(
        self,
        model: Model,
        brief: Brief,
        *,
        sampling: Sampling | None = None,
        max_output_tokens: int | None = None,
        context_tokens: int = CONTEXT_TOKENS,
        funds: Funds | None = None,
    ) -> None:
        """`context_tokens` bounds the part of a prompt that changes, `funds` what is asked at all."""
        self._model = model
        self._sampling = sampling or Sampling()
        self._most = max_output_tokens
        self._room = context_tokens
        self._funds = funds or Funds()
        self._dims = frozenset(
            name for case in brief.cases for name, extent in case.input.items() if type(extent) is int
        )
        self._system = f"{system()}\n{statement(brief)}"

    def request(self, context: Context) -> Request:
        """The question in this context; the same context gives the same one."""
        return Request(
            system=self._system,
            messages=(Message(role="user", text=situation(context, self._room)),),
            max_output_tokens=self._most,
            sampling=self._sampling,
            sample=context.step,
        )

    def write(self, context: Context) -> Proposal | Missed | None:
        """The model's answer; None when no more is to be asked. Raises AtrexError where there is none."""
        if not self._funds.allow(context.spent):
            return None
        request, spent = self.request(context), Spending()
        base = context.repair.candidate if context.repair else context.base
        for last in (False, True):
            reply = self._reply(request)
            if reply is None:
                late = Missed(reason="the time was up before its second answer", spent=spent)
                return late if last else None
            spent += spending(request, reply)
            try:
                return _proposal(context, base, self._read(reply, base), spent)
            except MalformedAnswer as error:
                said = answer.hypothesis_of(reply.text)
                if last or reply.stop is Stop.REFUSED or not self._funds.allow(context.spent + spent):
                    return Missed(reason=str(error), because=said, spent=spent)
                request = _again(request, reply, str(error))
        raise AssertionError("unreachable")

    def _reply(self, request: Request) -> Reply | None:
        """The model's reply within the time that is left; None if that has run out meanwhile."""
        try:
            left = self._funds.left()
            return self._model.complete(request, seconds=left if math.isfinite(left) else None)
        except AtrexError:
            if self._funds.left() <= 0:
                return None
            raise

    def _read(self, reply: Reply, base: Candidate) -> Answer:
        if reply.stop in _STOPS:
            raise MalformedAnswer(_STOPS[reply.stop])
        return answer.parse(reply.text, base.source, self._dims)


def _again(request: Request, reply: Reply, why: str) -> Request:
    """The same question with the answer and what is wrong with it: a model need not start afresh."""
    shown = reply.text.strip()
    if len(shown) > _QUOTED:
        shown = f"{shown[:_QUOTED]}\n[…]"
    turns = (
        *request.messages,
        Message(role="assistant", text=shown or "(empty)"),
        Message(
            role="user",
            text=f"That answer cannot be used: {why}. Answer again, whole, in the form asked for.",
        ),
    )
    return request.model_copy(update={"messages": turns})


def _proposal(context: Context, base: Candidate, read: Answer, spent: Spending) -> Proposal | Missed:
    candidate = Candidate(
        context.operator, detect_dsl(read.source), read.source, parent=base.id, note=read.hypothesis
    )
    if candidate.id in context.ids:
        return Missed(reason="the file has been tried before", because=read.hypothesis, spent=spent)
    return Proposal(
        origin="model",
        candidate=candidate,
        base=base.id,
        kernel=f"{AUTHORED}{candidate.id[:12]}",
        tunables=read.tunables,
        predicted=read.gain,
        because=read.hypothesis,
        technique=read.technique,
        spent=spent,
    )


def spending(request: Request, reply: Reply) -> Spending:
    """What one reply cost; where the server did not count, bytes are counted."""
    usage = reply.usage
    asked = request.system + "".join(message.text for message in request.messages)
    return Spending(
        calls=1,
        input_tokens=usage.input_tokens if usage else room.tokens(asked),
        output_tokens=usage.output_tokens if usage else room.tokens(reply.text),
        cached_tokens=usage.cached_tokens if usage else 0,
        dollars=reply.cost,
        seconds=reply.seconds,
        estimated=usage is None,
    )
