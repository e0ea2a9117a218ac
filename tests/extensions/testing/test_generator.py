"""The generator with prepared answers, one endpoint that is judge and generator, and the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import pytest

from art_extensions.testing import LlmServer, ScriptedGenerator, TruthfulJudge, either
from art_extensions.testing.__main__ import main
from starting import StartedProgram


def asks(text: str, **properties: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
    if properties:
        schema = {"name": "a", "schema": {"properties": properties}}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body


def test_a_list_gives_the_next_entries_and_begins_again() -> None:
    generator = ScriptedGenerator(inputs=["a", "b", "c"])
    assert generator(asks("Write exactly 2 inputs.", inputs={})) == {"inputs": ["a", "b"]}
    assert generator(asks("", inputs={"maxItems": 2})) == {"inputs": ["c", "a"]}


def test_texts_and_functions() -> None:
    generator = ScriptedGenerator(
        rubric="Short.", inputs=lambda body, count: [body["messages"][0]["content"]] * count
    )
    assert generator(asks("", rubric={})) == {"rubric": "Short."}
    assert generator(asks("hi", inputs={"maxItems": 2})) == {"inputs": ["hi", "hi"]}


def test_without_a_schema_the_prompts_words_decide() -> None:
    generator = ScriptedGenerator(rubric="Short.", inputs=["a"])
    assert generator(asks('Answer {"rubric": ...}')) == {"rubric": "Short."}
    with pytest.raises(ValueError, match="rubric, inputs"):
        generator(asks("Anything?"))


def test_one_endpoint_judges_what_shows_trajectories_and_generates_else() -> None:
    answer = either(judge=TruthfulJudge(lambda messages: 0.5), generator=ScriptedGenerator(rubric="Short."))
    assert answer(asks("", rubric={})) == {"rubric": "Short."}
    shown = '<trajectory id="aaaaaa">\n[]\n</trajectory>'
    assert answer(asks(shown))["scores"][0]["score"] == 0.5


@pytest.mark.slow
def test_the_command_line_serves_a_judge_and_says_where(tmp_path: Path) -> None:
    answers = tmp_path / "answers.json"
    answers.write_text(json.dumps({"rubric": "Short."}))
    command = [
        sys.executable,
        "-m",
        "art_extensions.testing",
        "--quality",
        "mail",
        "--answers",
        str(answers),
        "--key",
        "k1",
    ]
    with StartedProgram(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            base_url, _, key = process.stdout.readline().split()
            with openai.OpenAI(base_url=base_url, api_key=key) as client:
                body: Any = asks("", rubric={})
                reply = client.chat.completions.create(model="any", **body)
        finally:
            process.terminate()
    assert key == "k1" and reply.choices[0].message.content == '{"rubric": "Short."}'


def test_the_command_line_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2 and "--quality" in capsys.readouterr().err
    assert main(["--quality", "chess"]) == 2 and "tic-tac-toe, mail" in capsys.readouterr().err
    assert main(["--quality", "art_extensions.testing:nothing"]) == 2 and "nothing" in capsys.readouterr().err
    assert main(["--quality", "mail", "--mischief", "7"]) == 2 and "at most 1" in capsys.readouterr().err


async def test_a_generator_over_http_says_what_it_cannot_answer() -> None:
    async with LlmServer(ScriptedGenerator(rubric="Short.")) as server:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key=server.key) as client:
            body: Any = asks("Anything?")
            with pytest.raises(openai.BadRequestError, match="rubric"):
                await client.chat.completions.create(model="any", **body)
