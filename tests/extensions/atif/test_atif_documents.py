"""A trajectory as a document of ATIF, and back: neither loses anything, and Harbor's own models read it."""

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat.chat_completion import Choice

import art
from art.errors import ConfigurationError
from art.tracking.trajectory_rows import all_fields, from_text, to_text
from art_extensions.atif.documents import from_atif, sft_rows, to_atif
from art_extensions.atif.residue import add_residue, residue_of, same_json
from library_programs import needs
from waiting import DEADLINE_S

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-environments" / "bin" / "python"
READS = Path(__file__).parent / "programs" / "harbor_reads.py"
apart = needs(".venv-environments")

words = st.text(max_size=8)
numbers = st.one_of(st.integers(-5, 5), st.floats(-2, 2), st.booleans())
values = st.recursive(
    st.one_of(st.none(), numbers, words),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)
parts = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, words),
    st.builds(
        lambda end: {"type": "image_url", "image_url": {"url": f"https://example.org/{end}"}},
        st.sampled_from(["a.png", "b.jpg", "c.bmp", "d"]),
    ),
    st.just({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}),
)
contents = st.one_of(st.none(), words, st.lists(parts, max_size=2))
arguments = st.one_of(
    st.just('{"x": 1}'), st.just('{"x":1}'), st.sampled_from(["", "{bad", "[1]", "null"]), words
)
calls = st.builds(
    lambda name, function, given: {
        "id": name,
        "type": "function",
        "function": {"name": function, "arguments": given},
    },
    words,
    words,
    arguments,
)
messages = st.one_of(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["system", "user", "developer", "assistant"]),
        contents,
    ),
    st.builds(
        lambda call, content: {"role": "tool", "content": content, "tool_call_id": call}, words, contents
    ),
    st.builds(
        lambda call, content: {"role": "assistant", "content": content, "tool_calls": [call]}, calls, words
    ),
    st.just({"role": "assistant", "content": "", "tool_calls": [{"function": {}}]}),
)


def choice_of(content, tool_calls, sample):
    message = {"role": "assistant", "content": content, "tool_calls": tool_calls or None}
    reason = "tool_calls" if tool_calls else "stop"
    values = {"finish_reason": reason, "index": 0, "message": message, "sample_id": sample, "step": 3}
    return Choice.model_validate(values)


choices = st.builds(
    choice_of, st.none() | words, st.lists(calls, max_size=2), st.text(min_size=1, max_size=5)
)
conversations = st.lists(st.one_of(messages, choices), max_size=6)
tools = st.none() | st.just([{"type": "function", "function": {"name": "f", "parameters": {}}}])
trajectories = st.builds(
    lambda items, reward, metrics, metadata, others, tools: art.Trajectory(
        messages_and_choices=items,
        tools=tools,
        reward=reward,
        metrics=metrics,
        metadata=metadata,
        logs=["a line"],
        additional_histories=[art.History(messages_and_choices=one, tools=None) for one in others],
    ),
    conversations,
    st.floats(-1, 1) | st.builds(art.Unscored, words),
    st.dictionaries(words, st.floats(-1, 1), max_size=2),
    st.dictionaries(words.filter(lambda name: name != "atif"), values, max_size=2),
    st.lists(conversations, max_size=2),
    tools,
)

contents_of_theirs = st.one_of(
    words,
    st.lists(
        st.one_of(
            st.builds(lambda text: {"type": "text", "text": text}, words),
            st.just({"type": "image", "source": {"media_type": "image/png", "path": "images/1.png"}}),
        ),
        max_size=2,
    ),
)
metrics = st.fixed_dictionaries(
    {},
    optional={
        "prompt_tokens": st.integers(0, 9),
        "cost_usd": st.floats(0, 1),
        "completion_token_ids": st.lists(st.integers(0, 9), max_size=3),
        "logprobs": st.lists(st.floats(-2, 0), max_size=3),
        "extra": st.dictionaries(words, values, max_size=1),
    },
)


@st.composite
def agent_steps(draw):
    step = {"source": "agent", "message": draw(contents_of_theirs)}
    names = draw(st.lists(words, max_size=2, unique=True))
    if names:
        given = [draw(st.dictionaries(words, values, max_size=2)) for _ in names]
        step["tool_calls"] = [
            {"tool_call_id": name, "function_name": "f", "arguments": one}
            for name, one in zip(names, given, strict=True)
        ]
    if draw(st.booleans()):
        step["observation"] = {
            "results": draw(
                st.lists(
                    st.fixed_dictionaries(
                        {"content": st.none() | contents_of_theirs},
                        optional={"source_call_id": st.sampled_from(names)} if names else {},
                    ),
                    max_size=3,
                )
            )
        }
    further = {
        "metrics": metrics,
        "reasoning_content": words,
        "is_copied_context": st.booleans(),
        "llm_call_count": st.just(1),
        "model_name": words,
        "timestamp": st.just("2026-11-01T12:00:00Z"),
        "extra": st.dictionaries(words, values, max_size=2),
    }
    return step | {name: draw(one) for name, one in further.items() if draw(st.booleans())}


other_steps = st.builds(
    lambda source, content: {"source": source, "message": content},
    st.sampled_from(["system", "user"]),
    contents_of_theirs,
)


@st.composite
def documents(draw, depth=1):
    steps = draw(st.lists(st.one_of(other_steps, agent_steps()), min_size=1, max_size=5))
    document = {
        "schema_version": draw(st.sampled_from(["ATIF-v1.5", "ATIF-v1.7", "ATIF-v1.8"])),
        "agent": draw(
            st.fixed_dictionaries(
                {"name": words, "version": words},
                optional={"model_name": words, "tool_definitions": st.just([{"type": "function"}])},
            )
        ),
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
    }
    if draw(st.booleans()):
        document["notes"] = draw(words)
    if draw(st.booleans()):
        document["final_metrics"] = {"total_cost_usd": draw(st.floats(0, 1))}
    if depth and draw(st.booleans()):
        below = draw(st.lists(documents(depth=0), max_size=2))
        document["subagent_trajectories"] = [
            {**one, "trajectory_id": f"t{number}"} for number, one in enumerate(below)
        ]
    return document


@pytest.fixture(scope="module")
def harbor():
    """Asks Harbor's own models what they make of a document."""
    program = subprocess.Popen([PYTHON, READS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read(document):
        program.stdin.write(json.dumps(document) + "\n")
        program.stdin.flush()
        return json.loads(program.stdout.readline())

    yield read
    program.stdin.close()
    assert program.wait(DEADLINE_S) == 0


def plain(trajectory):
    return from_text(to_text(all_fields(trajectory)))


@given(trajectories)
@settings(max_examples=100, deadline=None)
def test_a_trajectory_that_is_written_and_read_is_the_first(trajectory):
    document = json.loads(json.dumps(to_atif(trajectory)))
    assert same_json(plain(from_atif(document)), plain(trajectory))


@given(documents())
@settings(max_examples=100, deadline=None)
def test_a_document_that_is_read_and_written_is_the_first(document):
    trajectory = from_atif(json.loads(json.dumps(document)))
    again = from_text(to_text(to_atif(trajectory)))
    assert same_json(again, document)


@apart
@pytest.mark.slow
@given(trajectories)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_harbor_reads_what_is_written(harbor, trajectory):
    document = to_atif(trajectory)
    found = harbor(document)
    assert "error" not in found, found
    # Harbor fills in null for what is missing: the trajectory is the same all the same.
    read = from_atif(found["document"])
    read.metadata.pop("atif", None)
    assert same_json(plain(read), plain(trajectory))


@apart
@pytest.mark.slow
@given(documents())
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_documents_of_these_tests_are_harbors(harbor, document):
    assert "error" not in harbor(document)


@given(values, values)
def test_a_residue_makes_one_value_of_another(made, wanted):
    residue = residue_of(made, wanted)
    assert same_json(add_residue(made, residue), wanted)
    assert (residue is None) == same_json(made, wanted)


def tool_use():
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    return [
        {"role": "user", "content": "1 + 1?"},
        choice_of(None, [call], "s1"),
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        choice_of("2", [], "s2"),
    ]


def test_the_result_of_a_tool_is_the_observation_of_its_step():
    document = to_atif(art.Trajectory(messages_and_choices=tool_use(), reward=1.0))
    assert [step["source"] for step in document["steps"]] == ["user", "agent", "agent"]
    assert document["steps"][1]["tool_calls"] == [
        {"tool_call_id": "c1", "function_name": "add", "arguments": {"a": 1}}
    ]
    assert document["steps"][1]["observation"] == {"results": [{"source_call_id": "c1", "content": "2"}]}
    assert document["extra"]["art"]["reward"] == 1.0


def test_a_trajectory_that_goes_on_keeps_what_the_document_said():
    document = {
        "schema_version": "ATIF-v1.6",
        "agent": {"name": "terminus", "version": "2"},
        "steps": [{"step_id": 1, "source": "user", "message": "go", "timestamp": "2026-11-01T12:00:00Z"}],
    }
    trajectory = from_atif(document)
    trajectory.messages_and_choices.append({"role": "assistant", "content": "done"})
    written = to_atif(trajectory)
    assert written["steps"] == [
        *document["steps"],
        {"step_id": 2, "source": "agent", "message": "done"},
    ]
    assert written["agent"]["name"] == "terminus"


def test_copied_steps_are_context_of_a_row():
    document = to_atif(art.Trajectory(messages_and_choices=tool_use()))
    document["steps"][1]["is_copied_context"] = True
    (row,) = sft_rows(document)
    assert [one.get("weight") for one in row["messages"]] == [None, 0, None, None]
    assert [one["role"] for one in row["messages"]] == ["user", "assistant", "tool", "assistant"]


def test_each_sub_agent_that_acts_is_a_row():
    trajectory = art.Trajectory(
        messages_and_choices=tool_use(),
        additional_histories=[
            art.History(messages_and_choices=[{"role": "user", "content": "no reply"}]),
            art.History(messages_and_choices=tool_use()[-1:]),
        ],
    )
    assert [len(row["messages"]) for row in sft_rows(to_atif(trajectory))] == [4, 1]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"schema_version": "ATIF-v2.0"}, "schema_version"),
        ({"schema_version": 7}, "schema_version"),
        ({"agent": None}, "agent"),
        ({"steps": []}, "steps"),
        ({"steps": [{"source": "environment", "message": ""}]}, "source"),
        ({"steps": [{"source": "agent", "message": None}]}, "message"),
        ({"steps": [{"source": "agent", "message": "", "tool_calls": [{"tool_call_id": 1}]}]}, "tool_calls"),
        ({"steps": [{"source": "agent", "message": "", "observation": {"results": ["x"]}}]}, "observation"),
        ({"steps": [{"source": "user", "message": [{"type": "image"}]}]}, "part"),
        ({"subagent_trajectories": [{}]}, r"subagent_trajectories\[0\]"),
        ({"subagent_trajectories": {"a": 1}}, "subagent_trajectories"),
    ],
)
def test_what_is_no_document_is_refused_by_its_place(change, named):
    with pytest.raises(ConfigurationError, match=named):
        from_atif({**to_atif(art.Trajectory(messages_and_choices=tool_use())), **change})


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_what_is_no_object_is_refused(document):
    with pytest.raises(ConfigurationError, match="an object"):
        from_atif(document)
