"""Which names of a trace may leave the house: an allow-list, and placeholders for all others.

What is not known to be harmless is replaced. One text has one placeholder throughout a file, so that what was
equal stays equal.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from traces.phases import step_of
from traces.profile import UNKNOWN, Entry
from traces.scalars import is_kept, kept

MOST_NAME = 4096  # characters

# Kernels are named by compilers; a path, an address or a mail's sender in one came from somewhere else.
_PRIVATE = re.compile(
    r"\w/[\w.]|^[~.]?/\w|[\s\"'(,=:]/\w|\\|://|\w@\w|(?:\d{1,3}\.){3}\d{1,3}"
    r"|\.(?:py|so|cu|cc|cpp|hip|h|hpp|json|safetensors|gguf)\b"
)
_PRINTABLE = re.compile(r"[ -~]*")
# Operations as the dispatcher registers them, autograd's nodes, Inductor's kernels, what torch.compile says.
_OPERATION = re.compile(
    r"[A-Za-z_]\w*(?:::[A-Za-z_]\w*)+(?:\.\w+)?"
    r"|(?:autograd::engine::evaluate_function: )?[A-Z]\w*Backward\d*"
    r"|triton_(?:poi|red|per|tem|for|mm)_fused_\w+"
    r"|record_param_comms|detach_?|Torch-Compiled Region: \d+/\d+|TorchDynamo Cache Lookup|Pregraph bytecode"
    r"|AOTDispatcher Runtime Wrapper Prologue",
    re.ASCII,
)
# Annotations that are operations of a library which everyone has.
_PUBLIC = re.compile(
    r"(?:aten|prim|c10d|torch|torchvision|quantized|nccl|cub|thrust|cudnn|cublas|triton|flash_attn|flashinfer"
    r"|vllm|_C|_C_cache_ops|_moe_C|_vllm_fa\d_C|sgl_kernel|sglang|aiter|trtllm|xformers)"
    r"::[A-Za-z_]\w*(?:\.\w+)?"
    r"|(?:nccl|gloo|mpi):_?(?:all|reduce|gather|scatter|broadcast|send|recv|to|barrier|base|into|tensor"
    r"|coalesced|single|start|end|_)+"
    r"|ProfilerStep(?:#\d+)?",
    re.ASCII,
)
# The words of engines' step annotations (traces/phases.py); whatever else stands in one goes. Possessive: a
# text is walked through once, however it is made of words.
_STEP_WORDS = re.compile(
    r"(?:execute|context|generation|new|cached|step|EXTEND|SPLIT_PREFILL|DLLM_EXTEND|DECODE|TARGET_VERIFY"
    r"|DRAFT_EXTEND_V2|DRAFT_EXTEND|MIXED|IDLE|Executor|_forward_step|prefill|eager_decode|decode|draft"
    r"|Prefill|Decode|PREFILL|ctx|gen|reqs|tokens|toks|tok|bs|sqsq|sqsk|sq|sk|[cgd](?=[=_])|\d|\.{3}"
    r"|[\[\]()=,:/_ ])*+",
    re.ASCII,
)
# Types as torch's profiler names them (dtypes of C++, kinds of other arguments), and as people write them.
_DTYPE = re.compile(
    r"c10::[A-Za-z]\w{0,30}|c10::complex<\w{1,20}>"
    r"|(?:unsigned |signed )?(?:char|short|int|long|long int|long long)"
    r"|(?:torch\.)?(?:b?float\d{0,3}|bf16|half|double|bool|u?int\d{0,3}|fp\d{1,2}|float8_e\dm\d[a-z]{0,4}|byte)"
    r"|Scalar|ScalarList|Tensor|TensorList|GenericList|GenericDict|OptionalTensorList|Tuple|None|Bool|Int|Double"
    r"|String|Device|Generator|Object|SymInt|SymFloat|SymBool|Storage|Stream|Enum|Future|Layout|MemoryFormat",
    re.ASCII,
)
_CALL = re.compile(r"(?:cuda|cu|hip|hsa_)[A-Za-z0-9_]{1,60}", re.ASCII)
_HARDWARE = re.compile(r"(?:NVIDIA|AMD|Tesla|GeForce|Quadro|Instinct|Intel)[\w .+()/-]{0,60}", re.ASCII)
_IDENTIFIER = r"[A-Za-z_]\w{0,120}"
_MODULE = re.compile(r"nn\.Module: (.*?)(?:_\d+)?", re.DOTALL)
_FRAME = re.compile(rf".*\(\d+\): ({_IDENTIFIER}|<[a-z]+>)", re.ASCII | re.DOTALL)
_FUNCTION = re.compile(rf"{_IDENTIFIER}|<[a-z]+>", re.ASCII)
_BUILT_IN = re.compile(rf"(<built-in (?:method|function) {_IDENTIFIER})(?: of .*)?>", re.ASCII | re.DOTALL)


@dataclass(slots=True)
class Names:
    """The names of one file: what has become of each, and how many were replaced."""

    found: dict[tuple[str, str], str] = field(default_factory=dict)  # by kind and old name
    numbers: Counter[str] = field(default_factory=Counter)  # placeholders of each kind
    ids: dict[str, dict[Any, int]] = field(default_factory=dict)
    removed: Counter[str] = field(default_factory=Counter)  # by what it was

    def kernel(self, text: str) -> str:
        """A kernel's name: needed, so kept, unless something private shows in it."""
        return self._kept("kernel", text, text if _is_plain(text) else None)

    def operator(self, text: str) -> str:
        """An operation's name."""
        return self._kept("operation", text, text if _OPERATION.fullmatch(text) and _is_plain(text) else None)

    def call(self, text: str) -> str:
        """A call of CUDA's or HIP's interface."""
        return self._kept("call", text, text if _CALL.fullmatch(text) else None)

    def annotation(self, text: str) -> str:
        """A range: a step of an engine or a library's operation, else a placeholder.

        Raises ValueError if it is a step that cannot be told without its private part.
        """
        if (key := ("range", text)) in self.found:
            return self._kept(*key, None)
        if (step := step_of((text,))) is None:
            return self._kept(*key, text if _PUBLIC.fullmatch(text) else None)
        clean = next((cut for cut in _cuts(text) if step_of((cut,)) == step), None)
        if clean is None:
            raise ValueError("the annotation of a step holds more than the step, and cannot be cut")
        return self._kept(*key, clean)

    def frame(self, text: str) -> str:
        """A function or module of Python: without file, line and address."""
        if found := _MODULE.fullmatch(text):
            return f"nn.Module: {self._class(found[1])}_0"
        if found := _FRAME.fullmatch(text):
            return self._kept("Python frame", text, found[1])
        if found := _BUILT_IN.fullmatch(text):
            return self._kept("Python frame", text, f"{found[1]}>")
        return self._kept("Python frame", text, text if _FUNCTION.fullmatch(text) else None)

    def module(self, text: str) -> str:
        """What a profile says of a frame: its name, or the name of a module's class."""
        kinds = ("module", "Python frame")
        known = (self.found.get((kind, text)) for kind in kinds)
        return next((name for name in known if name is not None), None) or self.frame(text)

    def shapes(self, value: Any) -> Any:
        """Dimensions: lists of integers, in lists. Raises ValueError for anything else."""
        if isinstance(value, list):
            return [self.shapes(one) for one in value]
        if type(value) is int:
            return value
        raise ValueError("shapes that are no integers")

    def dtypes(self, value: Any) -> list[Any]:
        """Names of types; what is none is emptied."""
        if not isinstance(value, list):
            raise ValueError("types that are no list")
        return [self._dtype(one) for one in value]

    def scalars(self, value: Any) -> str:
        """Scalar arguments as JSON: numbers and truth values, which are all that ingestion keeps."""
        if not isinstance(value, list):
            return UNKNOWN
        self.drop("texts of arguments", sum(bool(one) and not is_kept(one) for one in value))
        return kept(value)

    def hardware(self, text: str) -> str:
        """A device's name, as its vendor gives it."""
        kept = text if _HARDWARE.fullmatch(text) or re.fullmatch(r"gfx[0-9a-f]{3,5}", text) else None
        return self._kept("device", text, kept)

    def number(self, kind: str, old: Any) -> int:
        """A number in the place of an id; 0 and negative ones that fit say that there is none, and stay."""
        if type(old) is int and -(1 << 62) < old <= 0:
            return old
        known = self.ids.setdefault(kind, {})
        return known.setdefault(old, len(known) + 1)

    def drop(self, what: str, count: int = 1) -> None:
        """Note that something was left out."""
        if count:
            self.removed[what] += count

    def entry(self, entry: Entry) -> dict[str, Any]:
        """The fields of an entry of a profile, as they must be after scrubbing."""
        return entry.model_dump() | {
            "kernel": self.kernel(entry.kernel),
            "operator": self.operator(entry.operator) if entry.operator else UNKNOWN,
            "stack": tuple(self.operator(name) for name in entry.stack),
            "module": self.module(entry.module) if entry.module else UNKNOWN,
            "dtypes": self._json(entry.dtypes),
            "annotations": tuple(self.annotation(text) for text in entry.annotations),
        }

    def _class(self, text: str) -> str:
        """A module's class. (A placeholder ends without a number of its own: readers cut that off.)"""
        if re.fullmatch(_IDENTIFIER, text, re.ASCII):
            return self._kept("module", text, text)
        return self._kept("module", text, f"Module{1 + sum(kind == 'module' for kind, _ in self.found)}")

    def _dtype(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._dtype(one) for one in value]
        if isinstance(value, str) and (not value or _DTYPE.fullmatch(value)):
            return value
        self.drop("names of types that are none")
        return UNKNOWN

    def _json(self, text: str) -> str:
        return json.dumps(self.dtypes(json.loads(text)), separators=(",", ":")) if text else UNKNOWN

    def _kept(self, kind: str, old: str, new: str | None) -> str:
        """The new name of an old one, the same each time; a placeholder if none is given."""
        if (known := self.found.get((kind, old))) is None:
            if new is None:
                self.numbers[kind] += 1
                new = f"{kind.replace(' ', '_').lower()}_{self.numbers[kind]}"
            self.found[kind, old] = known = new
        if known != old:
            self.removed[f"{kind} names"] += 1
        return known


def _is_plain(text: str) -> bool:
    return len(text) <= MOST_NAME and bool(_PRINTABLE.fullmatch(text)) and not _PRIVATE.search(text)


def _cuts(text: str) -> Iterator[str]:
    """What is left of a step's annotation without all that is not an engine's own words."""
    found = _STEP_WORDS.match(text)
    yield found[0] if found else ""
    words = []
    for word in text[:MOST_NAME].split(" "):
        end = "]" if word.endswith("]") else ""
        words.append(word if _STEP_WORDS.fullmatch(word) else end)
    yield " ".join(words)
