"""`art atif`, on a model whose rollouts a real server sampled."""

import json

import pytest
from typer.testing import CliRunner

import art
from art.cli.main import app
from art_extensions.atif.documents import from_atif


async def play(model: art.TrainableModel) -> art.Trajectory:
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": "respond with yes or no"}])
    client = model.openai_client()
    for _ in range(2):
        completion = await client.chat.completions.create(
            model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=4
        )
        trajectory.messages_and_choices += [completion.choices[0], {"role": "user", "content": "once more"}]
    trajectory.reward = 0.5
    return trajectory


def run_art(*arguments: object):
    return CliRunner().invoke(app, [str(one) for one in arguments])


@pytest.mark.slow
async def test_logged_rollouts_are_written_with_their_sampled_tokens(tmp_path):
    data, output, rows = tmp_path / "data", tmp_path / "documents", tmp_path / "rows.jsonl"
    model = art.TrainableModel(
        name="player", project="words", base_model="art/nano-games", base_path=str(data)
    )
    sampled = {}
    async with art.LocalBackend(path=data) as backend:
        await model.register(backend)
        group = await art.TrajectoryGroup(play(model) for _ in range(2))
        await model.log([group])
        client = model.openai_client()
        for trajectory in group:
            for item in trajectory.messages_and_choices[1::2]:
                sampled[item.sample_id] = await client.get(f"/samples/{item.sample_id}", cast_to=object)
    done = run_art("atif", "export", "words/player", "--output", output, "--data-dir", data)
    assert done.exit_code == 0, done.output
    files = sorted(output.glob("*/*.json"))
    assert [str(path.relative_to(output)) for path in files] == ["val-0000/0-0.json", "val-0000/0-1.json"]
    assert len(sampled) == 4
    for path, trajectory in zip(files, group, strict=True):
        document = json.loads(path.read_text())
        assert document["agent"]["model_name"] == "words/player"
        acted = [step for step in document["steps"] if step["source"] == "agent"]
        for step, choice in zip(acted, trajectory.messages_and_choices[1::2], strict=True):
            known = sampled[choice.sample_id]
            assert step["metrics"]["prompt_token_ids"] == known["prompt_ids"]
            assert step["metrics"]["completion_token_ids"] == known["completion_ids"]
            assert step["metrics"]["logprobs"] == known["completion_logprobs"]
        total = sum(len(one["metrics"]["completion_token_ids"]) for one in acted)
        assert document["final_metrics"]["total_completion_tokens"] == total
        read = from_atif(document)
        assert read.messages() == trajectory.messages() and read.reward == 0.5
    done = run_art("atif", "import", *files, "--output", rows)
    assert done.exit_code == 0, done.output
    written = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [row["messages"] for row in written] == [one.messages() for one in group]


def test_a_file_that_is_no_document_is_named_and_nothing_is_written(tmp_path):
    broken, rows = tmp_path / "broken.json", tmp_path / "rows.jsonl"
    broken.write_text('{"schema_version": "ATIF-v1.7", "agent": {}, "steps": []}')
    done = run_art("atif", "import", broken, "--output", rows)
    assert done.exit_code == 2 and f"{broken}.steps" in done.stderr and not rows.exists()
    broken.write_text('{"schema_version": ')
    done = run_art("atif", "import", broken, "--output", rows)
    assert done.exit_code == 2 and str(broken) in done.stderr and not rows.exists()


def test_a_step_that_is_not_logged_is_refused_with_those_that_are(tmp_path):
    (tmp_path / "words" / "models" / "player" / "trajectories" / "train").mkdir(parents=True)
    done = run_art("atif", "export", "words/player", "--output", tmp_path / "out", "--data-dir", tmp_path)
    assert done.exit_code == 2 and "none (`model.log` writes them)" in done.stderr
