"""What pydantic finds, told in one line: the field, the rule, and the value where it is what is wrong."""

from __future__ import annotations

import pytest
from pydantic import Field, SecretStr, ValidationError, model_validator

from art.wire.records import Strict, first_flaw, flaws, flaws_without_values


class Inner(Strict):
    size: int = Field(default=1, ge=1)


class Outer(Strict):
    key: SecretStr = Field(default=SecretStr("k" * 16), min_length=16)
    inner: list[Inner] = Field(default_factory=list)
    low: int = 0
    high: int = 1

    @model_validator(mode="after")
    def _ordered(self) -> Outer:
        if self.low > self.high:
            raise ValueError(f"low {self.low!r} is above high {self.high!r}")
        return self


def error_of(**given: object) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(given)
    return caught.value


def test_the_path_the_rule_and_the_value() -> None:
    flaw = first_flaw(error_of(inner=[{"size": 1}, {"size": 0}]))
    assert flaw.field == "inner.1.size" and flaw.kind == "greater_than_equal"
    assert str(flaw) == "inner.1.size: Input should be greater than or equal to 1, not 0"


def test_a_rule_about_the_record_names_no_field_and_repeats_no_record() -> None:
    assert str(first_flaw(error_of(low=3, high=2))) == "low 3 is above high 2"


def test_a_field_that_has_no_place_is_named() -> None:
    assert str(first_flaw(error_of(depth=3))) == "depth: Extra inputs are not permitted"
    assert str(first_flaw(error_of(**{"x" * 100_000: 3}))) == f"{'x' * 200}: Extra inputs are not permitted"


def test_without_values_a_key_stays_secret() -> None:
    told = flaws_without_values(error_of(key="short-secret", low="many"))
    assert told.startswith("key: ") and "; low: " in told
    assert "short-secret" not in told and "many" not in told


def test_all_are_found_in_their_order() -> None:
    assert [flaw.field for flaw in flaws(error_of(low="x", high="y"))] == ["low", "high"]
