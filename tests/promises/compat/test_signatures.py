"""The public surface of older releases, kept as data in `signatures.json`, against ours: names, order, kinds,
defaults and results.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from collections.abc import Callable
from typing import Any, get_overloads, get_type_hints

import pytest
from make_signatures import SOURCE, TABLE, as_json, table

import art
from art.compat.finder import Unbuilt
from art.compat.import_paths import PATHS
from art.errors import NotBuiltError

SURFACE: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
FUNCTIONS: dict[str, str] = SURFACE["functions"]
UNBUILT: list[str] = SURFACE["unbuilt"]
MISSING: dict[str, str] = SURFACE["absent"]
DIFFERENT: dict[str, dict[str, str]] = SURFACE["different"]
ANY = ...
NONE = inspect.Parameter.empty
BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def find(path: str) -> Any:
    """The object at a dotted path. A function wins over a module of its name."""
    parts = path.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        try:
            for part in parts[cut:]:
                value = getattr(value, part)
        except AttributeError:
            break
        return value
    return importlib.import_module(path)


def expected(text: str) -> tuple[bool, inspect.Signature]:
    """Whether it is awaited, and the signature that a line of the data describes."""
    awaited, text = text.startswith("async "), text.removeprefix("async ")
    function = ast.parse(f"def f{text}: pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    given = function.args
    places = [*given.posonlyargs, *given.args]
    missing = [NONE] * (len(places) - len(given.defaults))
    defaults = [*missing, *(ast.literal_eval(value) for value in given.defaults)]
    parameters = []
    for place, (argument, default) in enumerate(zip(places, defaults, strict=True)):
        kind = BY_PLACE[0] if place < len(given.posonlyargs) else BY_PLACE[1]
        parameters.append(inspect.Parameter(argument.arg, kind, default=default))
    for argument, value in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        default = NONE if value is None else ast.literal_eval(value)
        parameters.append(inspect.Parameter(argument.arg, inspect.Parameter.KEYWORD_ONLY, default=default))
    result = NONE if function.returns is None else ast.unparse(function.returns)
    return awaited, inspect.Signature(parameters, return_annotation=result)


Shape = str | frozenset[Any] | tuple[Any, ...]
"""A type without its modules: a name, the members of a union, or a generic and its arguments."""


def shape(annotation: str | ast.expr) -> Shape:
    """What an annotation says, however it is written."""
    node = ast.parse(annotation, mode="eval").body if isinstance(annotation, str) else annotation
    match node:
        case ast.Constant(value=str(quoted)):
            return shape(quoted)
        case ast.Constant(value=value):
            return repr(value)
        case ast.BinOp(left=left, right=right):
            return frozenset(members(shape(left)) | members(shape(right)))
        case ast.Subscript(value=base, slice=given):
            name = "Iterator" if shape(base) == "Generator" else shape(base)
            arguments = given.elts if isinstance(given, ast.Tuple) else [given]
            # What is sent into a generator, and what it returns, is None.
            return (name, *map(shape, arguments[:1] if name == "Iterator" else arguments))
    return ast.unparse(node).rpartition(".")[2]


def members(one: Shape) -> set[Any]:
    return set(one) if isinstance(one, frozenset) else {one}


def serves(known: Shape, ours: Shape) -> bool:
    """Whether what reads a result of type `known` can read ours. One that was None is read by nobody."""
    if known in ("None", ours) or (isinstance(known, str) and isinstance(ours, tuple) and known == ours[0]):
        return True
    if isinstance(known, frozenset) and isinstance(ours, frozenset):
        pairs = [[serves(one, other) for other in ours] for one in known]
        return len(known) == len(ours) and all(map(any, pairs)) and all(map(any, zip(*pairs, strict=True)))
    if isinstance(known, tuple) and isinstance(ours, tuple):
        return len(known) == len(ours) and all(map(serves, known, ours))
    return False


def result_of(value: Any, ours: inspect.Signature) -> str:
    """The declared result, that of every overload where there are some."""
    function = inspect.unwrap(value)
    overloads = get_overloads(function) if inspect.isfunction(function) else []
    found = [inspect.signature(one).return_annotation for one in overloads] or [ours.return_annotation]
    return " | ".join(one if isinstance(one, str) else inspect.formatannotation(one) for one in found)


def wrong_result(known: inspect.Signature, value: Any, ours: inspect.Signature) -> list[str]:
    if known.return_annotation is NONE:
        return []
    if ours.return_annotation is NONE:
        return ["the result is not declared"]
    result = result_of(value, ours)
    fits = serves(shape(known.return_annotation), shape(result))
    return [] if fits else [f"the result is {result}, not {known.return_annotation}"]


def differences(known: inspect.Signature, ours: inspect.Signature, excused: set[str]) -> list[str]:
    """What of `known` a call could not do with `ours`."""
    wanted = [parameter for parameter in known.parameters.values() if parameter.kind in BY_PLACE]
    places = [parameter for parameter in ours.parameters.values() if parameter.kind in BY_PLACE]
    found = [complaint for complaint in map(by_place(places, excused), enumerate(wanted)) if complaint]
    named = [p for p in known.parameters.values() if p.name not in excused and p.kind is not BY_PLACE[0]]
    found += [complaint for parameter in named if (complaint := by_name(parameter, ours))]
    used = {*(p.name for p in places[: len(wanted)]), *(p.name for p in named), *excused}
    return found + [
        f"{name} is new and has no default"
        for name, mine in ours.parameters.items()
        if name not in used
        and mine.default is NONE
        and mine.kind not in (mine.VAR_KEYWORD, mine.VAR_POSITIONAL)
    ]


def by_place(places: list[inspect.Parameter], excused: set[str]) -> Callable[[Any], str | None]:
    def complaint(numbered: tuple[int, inspect.Parameter]) -> str | None:
        place, parameter = numbered
        here = places[place].name if place < len(places) else "nothing"
        fits = here != "nothing" if parameter.kind is BY_PLACE[0] else here == parameter.name
        return None if fits or parameter.name in excused else f"place {place} is {here}, not {parameter.name}"

    return complaint


def by_name(parameter: inspect.Parameter, ours: inspect.Signature) -> str | None:
    mine = ours.parameters.get(parameter.name)
    if mine is None:
        return f"no parameter {parameter.name}"
    if mine.kind is BY_PLACE[0]:
        return f"{parameter.name} cannot be given by its name"
    if parameter.default is NONE:
        return None  # ours may have a default, too
    if mine.default is NONE:
        return f"{parameter.name} has no default"
    if parameter.default is not ANY and mine.default != parameter.default:
        return f"{parameter.name}={mine.default!r}, not {parameter.default!r}"
    return None


BUILT = sorted(set(FUNCTIONS) - set(UNBUILT) - set(MISSING))


@pytest.mark.slow
@pytest.mark.parametrize("path", BUILT)
def test_a_call_for_older_releases_fits(path: str) -> None:
    awaited, known = expected(FUNCTIONS[path])
    excused = DIFFERENT.get(path, {})
    if "whole" in excused:
        pytest.skip(excused["whole"])
    value = find(path)
    assert callable(value)
    # Bound methods (class methods of the data) have no `self` left.
    ours = inspect.signature(value)
    found = differences(known, ours, set(excused))
    if "returns" not in excused:
        found += wrong_result(known, value, ours)
    if awaited and not inspect.iscoroutinefunction(inspect.unwrap(value)):
        found.append("cannot be awaited")
    assert not found, f"{path}{ours}: {'; '.join(found)}"


@pytest.mark.parametrize("path", UNBUILT)
def test_what_is_not_built_says_so(path: str) -> None:
    with pytest.raises(NotBuiltError, match="is not built yet"):
        find(path)()


def stand_ins() -> set[str]:
    """The names without code behind them, by what they call themselves."""
    found = set()
    for module in map(importlib.import_module, PATHS):
        known = [getattr(module, name) for name in dir(module)]
        found |= {repr(value).split(":")[0][1:] for value in known if isinstance(value, Unbuilt)}
    return found


def test_every_stand_in_is_listed() -> None:
    assert {"art.tinker.TinkerBackend", "art.loss.loss_fn"} <= stand_ins() <= set(UNBUILT)


@pytest.mark.parametrize("path", MISSING)
def test_what_is_left_out_is_not_there(path: str) -> None:
    with pytest.raises((ImportError, AttributeError)):
        find(path)


@pytest.mark.parametrize("path", [path for path in SURFACE["names"] if path not in MISSING])
def test_a_name_exists(path: str) -> None:
    assert find(path) is not None


@pytest.mark.parametrize("path", SURFACE["constants"])
def test_a_constant_has_its_value(path: str) -> None:
    assert find(path) == SURFACE["constants"][path]


TAKE_ANY_KEY = {"art.dev.EngineArgs", "art.dev.TrainerArgs"}
"""The list of their names is another library's, and changes with it."""


@pytest.mark.parametrize("path", SURFACE["typed_dicts"])
def test_a_dictionary_has_its_keys(path: str) -> None:
    kind = find(path)
    if path not in TAKE_ANY_KEY:
        assert set(SURFACE["typed_dicts"][path].split()) <= set(get_type_hints(kind))
    assert kind(**{"some_key_of_tomorrow": 1}) == {"some_key_of_tomorrow": 1}


@pytest.mark.parametrize("path", SURFACE["attributes"])
def test_a_class_has_its_members(path: str) -> None:
    kind = find(path)
    known = {*dir(kind), *getattr(kind, "model_fields", ()), *getattr(kind, "__annotations__", ())}
    if not getattr(kind, "_is_protocol", False):
        known |= set(inspect.signature(kind).parameters)
    assert set(SURFACE["attributes"][path].split()) <= known


def test_every_reason_belongs_to_something() -> None:
    for path, reasons in DIFFERENT.items():
        assert path in FUNCTIONS, path
        names = {*expected(FUNCTIONS[path])[1].parameters, "returns", "whole"}
        assert set(reasons) <= names and all(len(reason) > 20 for reason in reasons.values()), path


def test_the_table_is_what_the_published_text_says() -> None:
    made = as_json(table(SOURCE.read_text(encoding="utf-8")))
    assert TABLE.read_text(encoding="utf-8") == made, "run python tests/promises/compat/make_signatures.py"


@pytest.mark.parametrize("path", SURFACE["modules"])
def test_a_module_can_be_imported(path: str) -> None:
    assert importlib.import_module(path).__doc__


def test_what_the_root_says_is_in_the_data() -> None:
    surface = [*FUNCTIONS, *SURFACE["names"], *SURFACE["modules"]]
    ours_alone = {
        "Algorithm",
        "RemoteBackend",
        "Unscored",
        "History",
        "overlapped",
        "rollout",
        "run",
        "export_model",
        "train_environment",
        # of releases after the published text
        "LoRAConfig",
        "PipelineRuntimeConfig",
        "current_trajectory",
        "no_capture",
        "tensorize",
        "tokenize",
        "trajectory",
        "trajectory_group",
    }
    assert {f"art.{name}" for name in set(art.__all__) - ours_alone} <= set(surface)


def test_the_comparison_sees_what_it_is_for() -> None:
    known = expected("async (a, b, /, c=1, *, d=..., e=None)")[1]

    def fits(a: int, other: int, c: int = 1, *, d: int = 7, e: None = None, more: int = 0) -> None: ...

    def fits_not(a: int, c: int = 2, *, d: int, f: int) -> None: ...

    assert differences(known, inspect.signature(fits), set()) == []
    assert differences(known, inspect.signature(fits_not), set()) == [
        "place 2 is nothing, not c",
        "c=2, not 1",
        "d has no default",
        "no parameter e",
        "f is new and has no default",
    ]
    assert "no parameter e" not in differences(known, inspect.signature(fits_not), {"e"})


@pytest.mark.parametrize(
    ("known", "ours", "fits"),
    [
        ("list[Trajectory]", "list[art.Trajectory]", True),
        ("list[list[Trajectory]]", "list[Trajectory]", False),
        ("dict | None", "None | dict[str, Any]", True),
        ("dict | None", "dict[str, Any]", False),
        ("None", "list[int]", True),
        ("Generator[SFTChunk]", "Iterator[SFTChunk]", True),
        ("Generator[DatasetBatch]", "Generator[DatasetBatch[T], None, None]", True),
        ("str", "'str'", True),
        ("float", "int", False),
    ],
)
def test_the_comparison_of_results_sees_what_it_is_for(known: str, ours: str, fits: bool) -> None:
    assert serves(shape(known), shape(ours)) is fits


def test_a_name_that_cannot_be_given_is_seen() -> None:
    def by_place_alone(model_name: str, /) -> None: ...

    known = expected("(model_name)")[1]
    found = differences(known, inspect.signature(by_place_alone), set())
    assert found == ["model_name cannot be given by its name"]
