"""A recorded expert: what a good engineer answers, step by step, with what goes wrong on the way.

    ModelServer(expert.answer)        # the script of a tests.models.server.ModelServer

Which answer comes depends on the question alone, so that a run that is killed and resumed gets the same.
"""

from __future__ import annotations

from pathlib import Path

from tests.models.server import Answer, Received
from tests.models.wire import Text

HERE = Path(__file__).parent
FENCE = "```"


def source(name: str) -> str:
    """A file of the expert's."""
    return (HERE / f"{name}.py").read_text(encoding="utf-8")


def whole(name: str, hypothesis: str, technique: str, gain: float) -> str:
    """An answer with a whole file."""
    head = f"HYPOTHESIS: {hypothesis}\nTECHNIQUE: {technique}\nGAIN: {gain}\n\n"
    return f"{head}{FENCE}python\n{source(name)}{FENCE}\n"


CHEAT = whole("cheat", "PyTorch's own kernel is well tuned", "library", 3.0)
WITHOUT_FENCES = CHEAT.replace(FENCE, "")
WRONG = whole("wrong", "the addition of eps can be left out", "less work", 1.5)
VECTORISED = whole("vectorised", "the loops keep one running sum and a strided weight", "vector lanes", 4.0)
NOTHING_MORE = "I know nothing better."


def turns(request: Received) -> list[str]:
    """The texts of the conversation, without the system's."""
    contents = [turn["content"] for turn in request.body["messages"] if turn["role"] != "system"]
    return [each if isinstance(each, str) else each[-1]["text"] for each in contents]


def question(request: Received) -> str:
    """The changing part of a prompt: the last message that is the user's."""
    return turns(request)[-1]


def answer(request: Received) -> Answer:
    """The expert's next answer, from what the question says has been tried."""
    asked = question(request)
    if "lanes[j]" in "".join(turns(request)):  # the best is the file to improve
        return Text(NOTHING_MORE, input=3000, output=10)
    if "cannot be used" in asked:
        return Text(CHEAT, input=3000, output=900)
    if tries := asked.count("one running sum and a strided weight"):  # noise hid its gain: the same again
        return Text(
            VECTORISED.replace("import torch\n", f"import torch  # {tries}\n", 1), input=3200, output=1000
        )
    if "eps can be left out" in asked:  # rejected just now, and shown with its witness
        return Text(VECTORISED, input=3200, output=1000)
    if "PyTorch's own kernel is well tuned" in asked:
        return Text(WRONG, input=3100, output=900)
    return Text(WITHOUT_FENCES, input=2900, output=900)
