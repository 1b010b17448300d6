"""From the words of a command line to a proposer: `search`, a model, or the answers of an earlier run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, ValidationError

from agent.events import AnyEvent
from agent.funds import Funds, no_limit
from agent.lab import Knowledge, Proposer
from agent.models import choose, prices
from agent.models.cache import Cached
from agent.models.choose import Api, open_model
from agent.models.prices import Price
from agent.models.records import Limits, Model, Sampling
from agent.prompts.statement import Brief
from agent.proposers.author import AuthorProposer, Recorded
from agent.proposers.model import Asking
from agent.proposers.search import SearchProposer
from agent.proposers.tool import SHARE_OF_TIME, Assignment, ToolAuthor
from agent.task import Task
from agent.workspace import tools
from atrex.commands.options import AgentName
from atrex.errors import UsageError
from atrex.records import Record, Scalar
from atrex.runs import METADATA, Run

MODELS: tuple[AgentName, ...] = ("claude", "gpt")
_OF_ALL = {"agent", "knowledge"}
_LIMITS = {"tokens", "dollars"}
_OF_TOOLS = _OF_ALL | {"model", "tokens", "dollars", "replay"}


def keep(option: str, given: object, kept: object, usual: object = None) -> None:
    """Raises UsageError if an option of a resumed run is neither what it was nor left at its `usual`."""
    if given not in (usual, kept):
        shown = "unset" if kept in (None, "", ()) else kept
        raise UsageError(f"{option} {given}: a run that is resumed keeps its own ({shown}); start a new one")


def _option(name: str) -> str:
    return name.replace("_", "-")


class AgentOptions(Record):
    """Which agent, and what it may use; kept in the run's run.json."""

    agent: AgentName = "search"
    model: str = ""
    base_url: str = ""
    api: Api | None = None
    replay: str = ""
    """Name or path of a run whose answers are given again."""
    tokens: int | None = None
    dollars: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    temperature: float | None = None
    effort: str | None = None
    max_output_tokens: int | None = None
    knowledge: bool = True
    """Whether reference kernels and notes are used."""

    def scalars(self) -> dict[str, Scalar]:
        """The fields as run.json keeps them."""
        return dict(self.model_dump(mode="json"))

    def checked(self, called: str = "") -> AgentOptions:
        """Itself. Raises UsageError for words that do not fit together.

        `called` is what the agent was called if it makes no search.
        """
        if self.agent not in MODELS:
            given = self.model_dump(
                exclude_defaults=True, exclude=_OF_ALL if self.agent == "search" else _OF_TOOLS
            )
            if given:
                raise UsageError(
                    f"--{_option(next(iter(given)))} means nothing to --agent {called or self.agent}"
                )
        elif self.dollars is not None and not self.replay and self._price() is None:
            name = self._model_name
            raise UsageError(f"--dollars needs a price, and none is known for {name}; use --tokens instead")
        return self

    def resumed(self, given: AgentOptions) -> AgentOptions:
        """These with the limits that a later session names. Raises UsageError if it changes anything else."""
        named = given.model_dump(exclude_defaults=True)
        for name in named.keys() - _LIMITS:
            keep(f"--{_option(name)}", named[name], getattr(self, name))
        return self.model_copy(update={name: named[name] for name in named.keys() & _LIMITS})

    @property
    def _model_name(self) -> str:
        return self.model or (choose.DEFAULTS[self.agent] if self.agent in ("claude", "gpt") else "")

    def _price(self) -> Price | None:
        if self.agent == "gpt" and self.base_url:
            return None
        return prices.find("anthropic" if self.agent == "claude" else "openai", self._model_name)


class NoKnowledge:
    """Implements `agent.lab.Retrieve`: nothing is known. For agents that start from a blank page."""

    notices: tuple[str, ...] = ()

    def __call__(self, diagnoses: object, /) -> Knowledge:
        """No kernels and no passages."""
        return Knowledge()

    def knowledge(self) -> Knowledge:
        """The same."""
        return Knowledge()


@dataclass(frozen=True, slots=True)
class Opened:
    """An agent that is ready: its key is there, its server's address is sound."""

    options: AgentOptions
    model: Model | None = None
    answers: tuple[AnyEvent, ...] = ()

    def proposer(
        self,
        brief: Brief,
        run: Run,
        task: Task,
        say: Callable[[str], object],
        left: Callable[[], float] = no_limit,
    ) -> Proposer:
        """The proposer for one operator; what is paid for is kept in the run.

        `say` takes a line; `left` gives the seconds that the search still has.
        """
        tuner = SearchProposer()
        options = self.options
        if options.agent == "search":
            return tuner
        if options.replay:
            return AuthorProposer(options.agent, Recorded(self.answers), tuner)
        if options.agent in ("claude-code", "codex"):
            seconds = SHARE_OF_TIME * task.seconds
            work = Assignment(options.agent, options.model, seconds, task.tokens, task.dollars, left=left)
            return AuthorProposer(options.agent, ToolAuthor(run, brief, work, say), tuner)
        assert self.model is not None
        sampling = Sampling(temperature=options.temperature, effort=options.effort)
        model = Cached(self.model, run.replies)
        funds = Funds(task.tokens, task.dollars, left)
        most = options.max_output_tokens
        asking = Asking(model, brief, sampling=sampling, max_output_tokens=most, funds=funds)
        return AuthorProposer(options.agent, asking, tuner)


def open_agent(options: AgentOptions, seconds: float, answers: tuple[AnyEvent, ...] = ()) -> Opened:
    """An agent that may take `seconds` for one answer. `answers`: events of the run that is replayed.

    Raises EnvironmentProblem without the key or the SDK, UsageError for words that do not fit.
    """
    if options.agent == "search":
        return Opened(options)
    if options.replay:
        return Opened(options, answers=answers)
    if options.agent == "claude-code" or options.agent == "codex":
        tools.locate(options.agent)
        tools.key_of(options.agent)
        return Opened(options)
    model = open_model(
        options.agent,
        model=options.model,
        base_url=options.base_url,
        api=options.api,
        limits=Limits(deadline_s=min(Limits().deadline_s, max(1.0, seconds))),
    )
    return Opened(options, model)


def agent_of(run: Run) -> AgentOptions:
    """Who proposes in a run. Raises UsageError where its run.json does not say."""
    try:
        return AgentOptions.model_validate(run.meta.agent)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise UsageError(f"{run.path / METADATA}: field agent.{where}: not readable") from None
