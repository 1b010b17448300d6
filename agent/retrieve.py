"""Retrieval for a search: diagnoses become a query, hits become plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from agent.context import BucketDiagnosis
from agent.lab import Knowledge, Passage, ReferenceKernel
from atrex.records import Device, Dsl
from knowledge.index import Index
from knowledge.item import Item

_PASSAGES = 5


class Retriever:
    """Implements `agent.lab.Retrieve` for one operator and dsl on this machine."""

    def __init__(self, operator: str, dsl: Dsl, device: Device) -> None:
        self.operator = operator
        self.dsl = dsl
        self.architecture = architecture(device)
        self.index = Index()
        self.notices = tuple(filter(None, [self.index.notice]))

    def __call__(self, diagnoses: Sequence[BucketDiagnosis], /) -> Knowledge:
        """Every reference kernel of the operator, and the notes that fit the symptoms best."""
        symptoms = dict.fromkeys(word for each in diagnoses for word in each.symptoms)
        return self.knowledge(" ".join((self.operator, *symptoms)))

    def knowledge(self, query: str = "") -> Knowledge:
        """Kernels in the order of the query, then those it did not find, by name."""
        found = self.index.search(
            query or self.operator,
            operator=self.operator,
            dsl=self.dsl,
            architecture=self.architecture,
            k=_PASSAGES + 8,
        )
        ranked = [hit.item for hit in found if hit.item.kind == "kernel"]
        missing = [item for item in self.index.kernels(self.operator, self.dsl) if item not in ranked]
        notes = [hit.item for hit in found if hit.item.kind == "note"][:_PASSAGES]
        return Knowledge(
            kernels=tuple(_kernel(item) for item in (*ranked, *missing)),
            passages=tuple(Passage(name=item.id, text=item.text) for item in notes),
        )


def architecture(device: Device) -> str:
    """What the knowledge base calls the processor: sm_90 …, x86-64 or aarch64."""
    if device == "cpu":
        import platform

        return {"x86_64": "x86-64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def _kernel(item: Item) -> ReferenceKernel:
    return ReferenceKernel(
        name=item.id,
        dsl=cast(Dsl, item.dsl[0]),
        source=item.source_code(),
        tunables={name: tuple(values) for name, values in item.tunables.items()},
        technique=item.technique,
        symptoms=item.symptoms,
    )
