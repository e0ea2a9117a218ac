"""What a field may hold is said once: the check takes exactly what the JSON schema says."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from art.errors import RequestError
from art.server.chat.chat_request import CHAT
from art.server.chat.request_fields import OTHER_FIELDS, RequestSchema
from art.server.dialects.completions_request import COMPLETIONS
from art.wire.request_values import ByHand, Idle, Number, Values, Whole
from art_extensions.agent_apis.anthropic_request import MESSAGES
from art_extensions.agent_apis.responses_request import RESPONSES

VALUES: tuple[Any, ...] = (
    *(-3, -1, 0, 1, 2, 5, 20, 21, 100, 101, 2**31, 2**31 + 1, 2**63, -(2**63) - 1),
    *(-2.5, 0.5, 1.5, 1000.5, True, False, "", "x", "none", "xhigh"),
    *([], ["x"], [""], [1], [-1], [True], [2**31], ["x"] * 17, [1] * 1025),
    *({}, {"a": "b"}, {"a": 1}, {"5": 1}, {"5": 101}, {"5": True}, {str(n): "x" for n in range(17)}),
)


def takes(values: Values, value: Any) -> bool:
    try:
        values.read("field", value)
    except RequestError as refused:
        assert refused.param == "field" and "field" in str(refused)
        return False
    return True


@pytest.mark.parametrize("schema", [CHAT, COMPLETIONS, RESPONSES, MESSAGES], ids=lambda one: one.required[1])
def test_a_field_takes_what_the_document_says(schema: RequestSchema) -> None:
    for name, field in schema.fields.items():
        if isinstance(field.values, ByHand | Idle) or "items" in str(field.values._schema):
            continue  # their readers look further than the schema
        allowed = jsonschema.Draft202012Validator(field.values.schema)
        for value in VALUES:
            assert takes(field.values, value) == allowed.is_valid(value), (name, value)


@pytest.mark.slow
def test_a_field_that_does_not_act_takes_what_the_document_says() -> None:
    for name, idle in OTHER_FIELDS.items():
        allowed = jsonschema.Draft202012Validator(idle.schema)
        for value in (*VALUES, *(idle.accepted or ())):
            assert takes(idle, value) or not allowed.is_valid(value), (name, value)


def test_a_number_comes_as_a_float_and_what_is_unset_as_nothing() -> None:
    assert isinstance(Number(0, 2).read("temperature", 1), float)
    top_k = Whole(0, 5, unset=-1)
    assert [top_k.read("top_k", value) for value in (-1, 0, 5)] == [None, 0, 5]
    with pytest.raises(RequestError, match="top_k must be a whole number from 0 to 5, not -2"):
        top_k.read("top_k", -2)


def test_a_refusal_repeats_as_much_of_the_value_as_it_may() -> None:
    for told, ending in ((0, "from 1 to 5"), (3, "from 1 to 5, not 'ab"), (99, "from 1 to 5, not 'abcd'")):
        with pytest.raises(RequestError) as refused:
            Whole(1, 5).read("n", "abcd", quoted=told)
        assert str(refused.value).endswith(ending)
