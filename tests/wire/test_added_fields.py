"""Records that grow: a program with them still speaks to a server of an earlier release."""

from __future__ import annotations

from typing import Any

import pytest

from art.wire.algorithm import AdvantageSpec, Algorithm, CriticSpec, EntropySpec, KlSpec
from art.wire.records import GrownRecord
from art.wire.rollout_record import RolloutNotes


@pytest.mark.parametrize(
    ("record", "more"),
    [
        (Algorithm(), {"entropy": EntropySpec(coefficient=0.1), "top_entropy": 0.2}),
        (KlSpec(coefficient=1.0, reference="step", lag=1), {"lag": None, "every": 3}),
        (KlSpec(coefficient=1.0), {"reference": "average", "mixup": 0.5, "every": 3}),
        (AdvantageSpec(kind="gae"), {"credit": "rest", "whiten": False}),
        (RolloutNotes(scenario="s-1"), {"turn_reasons": {"s1": "It looked first."}}),
        (CriticSpec(clip=None), {"kind": "adapter", "rank": 4, "alpha": 8.0, "warmup_steps": 3}),
    ],
)
def test_fields_that_earlier_servers_refuse_are_left_out_unless_they_say_something(
    record: GrownRecord, more: dict[str, Any]
) -> None:
    kind = type(record)
    assert not {*kind.LATER} & record.model_dump().keys()
    assert kind.model_validate_json(record.model_dump_json()) == record
    said = record.model_copy(update=more)
    assert more.keys() <= said.model_dump().keys()
    assert kind.model_validate_json(said.model_dump_json()) == said
