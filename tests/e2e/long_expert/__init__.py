"""A longer recorded expert: naive, fused, vectorised and tuned kernels, with what goes wrong on the way.

    ModelServer(long_expert.answer)   # the script of a tests.models.server.ModelServer

Which answer comes depends on the question alone. Every file says in its first line which one it is, so the
file that a question shows tells how far the expert has come.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.e2e.expert import FENCE, question, turns
from tests.models.server import Answer, Received
from tests.models.wire import Text

HERE = Path(__file__).parent
NOTHING_MORE = "I know nothing better."
TUNABLES = '{"lanes": [16, 32, 64, 128], "split": ["serial", "threads"]}'
HYPOTHESES = {
    "naive": "one kernel in place of eight spares seven trips through memory",
    "cheat": "the kernel of PyTorch is well tuned and can be called after mine",
    "fused": "a row stays in the cache between its sum and its result, and needs no copy",
    "wrong": "eps is too small to matter, and eight running sums fill a vector",
    "odd": "eight running sums fill a vector, and rows are multiples of eight",
    "vectorised": "eight running sums fill a vector, the rest of a row is added at the end",
    "tuned": "how many running sums hide the latency of an addition is the processor's affair",
}
NEXT = {
    "eager": "naive",
    "naive": "cheat",
    "cheat": "fused",
    "fused": "wrong",
    "wrong": "odd",
    "odd": "vectorised",
    "vectorised": "tuned",
}
"""What comes after the file that the question shows; what a gate rejected is mended."""
_TITLE = re.compile(r'^"""(?:Baseline `|RMSNorm, )(\w+)', re.MULTILINE)


def source(name: str) -> str:
    """A file of the expert's."""
    return (HERE / f"{name}.py").read_text(encoding="utf-8")


def whole(name: str, again: int) -> str:
    """The answer with a whole file; `again` times it has been answered before, each time in vain."""
    head = f"HYPOTHESIS: {HYPOTHESES[name]}\nTECHNIQUE: {name}\nGAIN: 1.4\n"
    head += f"TUNABLES: {TUNABLES}\n" if name == "tuned" else ""
    file = source(name) + (f"\n# measured again: {again}\n" if again else "")
    return f"{head}\n{FENCE}python\n{file}{FENCE}\n"


def malformed(text: str) -> str:
    """The same without the fence's end."""
    return text.rstrip().removesuffix(FENCE)


def answer(request: Received) -> Answer:
    """The expert's next answer: the first and the last of its files come malformed first."""
    conversation = turns(request)
    shown = _TITLE.search(conversation[0])
    if shown is None or shown[1] == "tuned":
        return Text(NOTHING_MORE, input=3000, output=10)
    name = NEXT[shown[1]]
    if name == "cheat" and HYPOTHESES["cheat"] in conversation[0]:  # it was rejected some steps ago
        name = "fused"
    if name == "wrong" and HYPOTHESES["wrong"] in conversation[0]:
        name = "vectorised"
    text = whole(name, conversation[0].count(f"{HYPOTHESES[name]}: "))
    repaired = "cannot be used" in question(request)
    return Text(
        malformed(text) if name in ("naive", "tuned") and not repaired else text, input=3000, output=900
    )
