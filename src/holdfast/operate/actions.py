"""Actions of operators on streams and tasks, each declared once, as a function.

The JSON API derives an endpoint from an action (``console/api/operations.py``), the console a form
(``console/pages/acting.py``), and the command line a command (``cli/actions.py``). The docstring of the
function is the page of help. Its input is a struct: each field is a field of the request's body, an option
of the command and an input of the form. ``Meta`` of a field has its ``description``, and as ``title`` its
label in the form; a field without a title isn't in the form.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from holdfast.wiring.services import Services

HIDDEN = ("body", "body_base64", "messages", "commands")
"""Fields whose values aren't in the audit log: they may hold what only the receiver should see."""

AnswerT = TypeVar("AnswerT")
SubjectT = TypeVar("SubjectT")


class NoFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters, or an empty body."""


class Done(NamedTuple, Generic[AnswerT]):
    """The outcome of an action: the answer of the API, and the same in words for everything else. The command
    line prints ``record`` with ``--json`` if there is one, else the answer."""

    answer: AnswerT
    text: str
    record: Any = None


class Field(NamedTuple):
    """A field of an action's input. ``type`` has no metadata; ``label`` is empty if no form has the field."""

    name: str
    type: Any
    default: Any
    required: bool
    label: str
    description: str

    @property
    def kind(self) -> Literal["list", "flag", "text", "number"]:
        """The kind of value that the field takes."""
        if get_origin(self.type) is list:
            return "list"
        return "flag" if self.type is bool else "text" if self.type is str else "number"


@dataclass(frozen=True)
class Action(Generic[SubjectT]):
    """An action on a stream or a task.

    Attributes:
        act: does it to a subject, which ``str`` names for the audit log. The types of its input and of its
            answer are those in its signature.
        name: its name in the description of the API, such as ``pauseStream``.
        title: the text on the button of its form.
        audit: its name in the audit log, if not the verb.
        confirm: the label of the box to tick before a form does it; "" if none is needed.
        warning: why it must be confirmed, as part of a sentence.
        unavailable: why it may be unavailable, for the button of the form.
        form: values that the form sends in addition to its inputs.
        status: the HTTP status of a success.
    """

    act: Callable[[Services, SubjectT, Any], Awaitable[Done[Any]]]
    _: KW_ONLY
    name: str
    title: str
    audit: str = ""
    confirm: str = ""
    warning: str = ""
    unavailable: str = ""
    form: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200

    @cached_property
    def verb(self) -> str:
        """The name of its command, and the last part of its URLs."""
        return self.act.__name__.replace("_", "-")

    @cached_property
    def help(self) -> str:
        """Its page of help."""
        return inspect.getdoc(self.act) or ""

    @cached_property
    def summary(self) -> str:
        """The first paragraph of its page of help."""
        return " ".join(self.help.partition("\n\n")[0].split())

    @cached_property
    def input(self) -> type[msgspec.Struct]:
        """The struct of what callers choose."""
        kind: type[msgspec.Struct] = [*get_type_hints(self.act, include_extras=True).values()][2]
        return kind

    @cached_property
    def answer(self) -> Any:
        """The type of the answer."""
        return get_args(get_type_hints(self.act, include_extras=True)["return"])[0]

    @cached_property
    def fields(self) -> list[Field]:
        """The fields of the input."""
        return [_field(each) for each in msgspec.structs.fields(self.input)]

    @cached_property
    def inputs(self) -> list[Field]:
        """The fields of the form."""
        return [each for each in self.fields if each.label]

    @property
    def folded(self) -> bool:
        """Return True if its form is too large to stand open."""
        return bool(self.confirm) or len(self.inputs) > 1


def _field(info: msgspec.structs.FieldInfo) -> Field:
    kind, *metadata = get_args(info.type) if get_origin(info.type) is Annotated else (info.type,)
    meta = next((each for each in metadata if isinstance(each, msgspec.Meta)), msgspec.Meta())
    default = info.default if info.default_factory is msgspec.NODEFAULT else info.default_factory()
    return Field(info.name, kind, default, info.required, meta.title or "", meta.description or "")


def audited_fields(chosen: msgspec.Struct) -> dict[str, object]:
    """Return what the audit log keeps of a request: the fields that were given, without contents."""
    given: dict[str, object] = {}
    for info in msgspec.structs.fields(chosen):
        value, known = getattr(chosen, info.name), _field(info)
        if info.name not in HIDDEN and (known.required or value != known.default):
            given[info.encode_name] = _listed(value) if isinstance(value, list) else value
    return given


def _listed(values: list[Any]) -> str:
    """Return the number of values and their names; of tasks that follow, the types."""
    names = (
        getattr(value, "task_type", "") if isinstance(value, msgspec.Struct) else str(value)
        for value in values
    )
    return f"{len(values)}: {', '.join(filter(None, names))}"
