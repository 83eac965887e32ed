"""The results of a protocol's stages as plain arrays: what a checkpoint holds of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures.methods.protocol import Stage, StageResults
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics


class Stages(StageResults):
    """Results of the finished stages, in the order in which they ended."""

    def __init__(
        self,
        classes: Sequence[type],
        counter: Any,
        *,
        kept: bool = False,
        begun: dict[str, tuple[Any, list[np.ndarray]]] | None = None,
        ended: Callable[[], Any] = lambda: None,
    ):
        """Results hold instances of `classes`; `counter.counts` is what was sent so far.

        `kept`: whether they stay here for a checkpoint, which takes memory. `begun`: those of the
        run that is gone on with. `ended` is called after each new stage.
        """
        self.classes = {one.__name__: one for one in (Mixture, Statistics, *classes)}
        self.counter, self.kept, self.ended = counter, kept, ended
        self.before = {} if begun is None else begun
        self.done: dict[str, tuple[Any, list[np.ndarray]]] = {}
        self.readers: dict[str, Callable[[], Mixture]] = {}
        """Of the stages that mixtures can be read from, in the order in which they ended."""

    def known(self, stage: Stage) -> bool:
        """Whether the run that is gone on with had finished it."""
        return stage.name in self.before

    def result_of(self, stage: Stage) -> Any:
        """What that run had found; requests are counted as if they had been made again."""
        form, arrays = self.before.pop(stage.name)
        self._note(stage, (form, arrays))
        result, self.counter.counts = put_together(form, arrays, self.classes)
        self._reads(stage, result)
        return result

    def keep(self, stage: Stage, result: Any) -> Any:
        """Take the result apart and put it together: the same bits go on as after a checkpoint."""
        if stage.name in self.done:
            raise ValueError(
                f"a protocol has two stages named {stage.name!r}. Give each a name of its own."
            )
        parts = taken_apart((result, self.counter.counts), self.classes)
        self._note(stage, parts if self.kept else None)
        result, _ = put_together(*parts, self.classes)
        self._reads(stage, result)
        self.ended()
        return result

    def _note(self, stage: Stage, parts: tuple[Any, list[Any]] | None) -> None:
        form, arrays = parts or (None, [])
        self.done[stage.name] = form, [np.asarray(array) for array in arrays]

    def _reads(self, stage: Stage, result: Any) -> None:
        read = stage.mixtures
        if read is not None and self.kept:
            self.readers[stage.name] = lambda: read(result)


def taken_apart(value: Any, classes: dict[str, type]) -> tuple[Any, list[Any]]:
    """What a value is made of, for JSON, and its arrays; NumPy's in C order, each once."""
    arrays, place = [], {}

    def form(value: Any) -> Any:
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return array(value)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, dict):
            return {"map": {name: form(part) for name, part in value.items()}}
        if isinstance(value, list):
            return [form(part) for part in value]
        if type(value) is tuple:
            return {"tuple": [form(part) for part in value]}
        name = type(value).__name__
        if classes.get(name) is not type(value):
            raise TypeError(
                f"a stage found a {name}, which its protocol does not name. Add it to `keeps`."
            )
        return {"class": name, "parts": {n: form(getattr(value, n)) for n in _fields(type(value))}}

    def array(value: Any) -> dict[str, Any]:
        device = isinstance(value, jax.Array)
        if id(value) not in place:
            place[id(value)] = len(arrays), value  # held, so that no other gets its number
            arrays.append(value if device else np.ascontiguousarray(value).reshape(value.shape))
        return {"array": place[id(value)][0], "device": device}

    return form(value), arrays


def put_together(form: Any, arrays: Sequence[Any], classes: dict[str, type]) -> Any:
    """The value that was taken apart."""
    if isinstance(form, list):
        return [put_together(part, arrays, classes) for part in form]
    if not isinstance(form, dict):
        return form
    if "array" in form:
        found = arrays[form["array"]]
        return jnp.asarray(found) if form["device"] else found
    parts = lambda of: {name: put_together(part, arrays, classes) for name, part in of.items()}
    if "map" in form:
        return parts(form["map"])
    if "tuple" in form:
        return tuple(put_together(part, arrays, classes) for part in form["tuple"])
    kind, found = classes[form["class"]], parts(form["parts"])
    if issubclass(kind, tuple):
        return kind(**found)
    made = object.__new__(kind)  # as pytrees are: a mixture that is none stays as it is
    for name, part in found.items():
        object.__setattr__(made, name, part)
    return made


def _fields(kind: type) -> tuple[str, ...]:
    if issubclass(kind, tuple):
        return kind._fields  # pyright: ignore[reportAttributeAccessIssue]
    return tuple(field.name for field in dataclasses.fields(kind))
