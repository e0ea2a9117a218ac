from __future__ import annotations

import asyncio
import json
import time

import pytest
from openai.types.chat.chat_completion import Choice
from starlette.responses import Response
from wire_double import KEY, Double, error

import art
from art import errors
from art.client.requests.jobs import JobDeadlines
from art.client.requests.train_request import train_groups
from waiting import until


def choice(sample: str | None = None, **extra) -> Choice:
    extra = {"sample_id": sample, **extra} if sample else extra
    return Choice.construct(
        index=0, finish_reason="stop", message={"role": "assistant", "content": "x"}, **extra
    )


def trajectory(*samples: str, reward=1.0, **fields) -> art.Trajectory:
    turns = [{"role": "user", "content": "q"}, *(choice(sample) for sample in samples)]
    return art.Trajectory(messages_and_choices=turns, reward=reward, **fields)


def groups() -> list[art.TrajectoryGroup]:
    return [art.TrajectoryGroup([trajectory("s1", "s2"), trajectory("s3", reward=0.0), ValueError("x")])]


@pytest.fixture
async def registered(model, backend):
    await model.register(backend)
    yield model
    await backend.close()


# What is sent


async def test_register(registered, double: Double, server: str):
    assert double.registered[0]["lora"]["r"] == 16 and double.registered[0]["seed"] == 0
    assert registered.inference_base_url == f"{server}/v1"
    assert (registered.get_inference_name(), registered.get_inference_name(step=3)) == ("agent", "agent@3")
    assert registered.litellm_completion_params()["model"] == "hosted_vllm/agent"
    assert await registered.get_step() == 0


async def test_the_adapter_s_shape_and_the_optimizer_act(backend, model, double: Double):
    model._internal_config = {
        "peft_args": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "random_state": 5},
        "trainer_args": {"adam_beta1": 0.8, "weight_decay": 0.1, "max_grad_norm": 0.5},
    }
    await model.register(backend)
    asked = double.registered[0]
    assert (
        asked["lora"] | {"r": 4, "alpha": 8.0, "dropout": 0.0, "targets": ["q_proj"]} == asked["lora"]
        and asked["seed"] == 5
    )
    options = {"learning_rate": 1e-3, "adam_params": {"eps": 1e-6, "weight_decay": 0.2}, "epsilon": 0.3}
    await backend.train(model, groups(), loss_fn="ppo", scale_rewards=False, expected_step=0, **options)
    (job,) = double.jobs.values()
    assert job["algorithm"]["loss"] == {"name": "ppo", "params": {"epsilon": 0.3, "epsilon_high": 0.3}}
    assert job["optimizer"] == {
        "learning_rate": 1e-3,
        "betas": [0.8, 0.99],
        "eps": 1e-6,
        "weight_decay": 0.2,
        "max_grad_norm": 0.5,
        "warmup_steps": 0,
        "schedule": "constant",
        "total_steps": None,
    }
    assert job["algorithm"]["advantage"]["kind"] == "centered" and job["expected_step"] == 0


@pytest.mark.parametrize("full", [True, False])
async def test_all_weights_are_trained_on_request(backend, model, double: Double, full: bool):
    model._internal_config = {"init_args": {"full_finetuning": full}, "peft_args": {"random_state": 3}}
    await model.register(backend)
    assert double.registered[0]["seed"] == 3 and (double.registered[0]["lora"] is None) == full


@pytest.mark.parametrize(
    ("internal", "named"),
    [
        ({"engine_arg": {}}, "did you mean 'engine_args'"),
        ({"peft_args": {"rank": 8}}, r"\['peft_args'\]\['rank'\]: no such key; did you mean 'r'\?"),
        ({"lora_config": {"r": 8}}, "lora_config has no 'r', did you mean 'rank'"),
        ({"init_args": {"full_finetune": True}}, "full_finetuning"),
        ({"init_args": {"full_finetuning": "yes"}}, "True or False"),
        ({"init_args": {"full_finetuning": True}, "peft_args": {"r": 4}}, "leave one of both out"),
        ({"peft_args": {"rank": 4}}, "lora_alpha"),
        ({"trainer_args": {"adam_beta3": 1}}, "adam_beta"),
        ({"peft_args": {"r": 0}}, "r"),
        ({"trainer_args": {"max_grad_norm": -1}}, "max_grad_norm"),
    ],
)
async def test_unknown_internal_options_are_refused_at_registration(backend, model, double, internal, named):
    model._internal_config = internal
    with pytest.raises(errors.ConfigurationError, match=named):
        await model.register(backend)
    assert double.registered == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (
            {"lr": 1},
            r"train\(lr=1\): no such option; did you mean 'learning_rate'\? docs/\S+ lists the \d+ known",
        ),
        ({"clip_range": 0.2}, "did you mean 'epsilon'"),
        ({"zzz": 1}, "no such option; docs/reference/options.md lists the .* known ones"),
        ({"adam_params": {"beta2": 1}}, "no such key; did you mean 'betas'"),
        ({"kl_ref_adapter_path": "/x"}, "kl_penalty_coef"),
        ({"importance_sampling_level": "batch"}, "ratio: .* not 'batch'"),
        ({"algorithm": "gsp"}, "did you mean 'gspo'"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"adam_params": {"beta": 1}}, "betas"),
        ({"optimizer": "lion"}, "'adamw', 'adamw_8bit' or 'muon'"),
        (
            {"optimizer": "muon", "adam_params": {"eps": 1e-6}},
            r"adam_params\['eps'\] has no effect with optimizer='muon': leave it out. .*momentum",
        ),
        ({"adam_params": {"momentum": 0.9}}, "no effect with optimizer='adamw'.* betas and eps"),
    ],
)
async def test_options_that_would_not_act_are_refused(registered, backend, double, options, named):
    with pytest.raises(errors.ConfigurationError, match=named):
        await backend.train(registered, groups(), **options)
    assert double.jobs == {}


def test_rollouts_rewards_samples_and_failures_of_a_batch():
    history = art.History(messages_and_choices=[choice("s4")])
    batch = [
        art.TrajectoryGroup(
            [trajectory("s1", "s2", rollout_id="r"), trajectory("s3", reward=True, rollout_id="r")]
        ),
        art.TrajectoryGroup([trajectory("s5", additional_histories=[history]), ValueError("x")]),
        art.TrajectoryGroup([trajectory("s1", reward=art.Unscored("judge"))]),
    ]
    one, two, three = train_groups(batch)
    assert [(t.rollout, t.reward, t.samples) for t in one.trajectories] == [
        ("r", 1.0, ["s1", "s2"]),
        ("r.g0.t1", 1.0, ["s3"]),
    ]
    assert two.failed == 1 and two.trajectories[0].samples == ["s5", "s4"]
    assert two.trajectories[0].rollout == "g1.t0"
    assert (three.trajectories[0].reward, three.trajectories[0].unscored_reason) == (None, "judge")


def test_choices_dumped_to_dicts_still_name_their_samples():
    said = art.Trajectory()
    said.messages_and_choices.append(choice("s1").model_dump())
    assert train_groups([art.TrajectoryGroup([said])])[0].trajectories[0].samples == ["s1"]


@pytest.mark.parametrize(
    ("turns", "histories", "named"),
    [
        ([choice("s1"), choice()], [], "'g0.t0', turn 1: no 'sample_id'.*as a dict"),
        ([choice("s1"), choice("s1")], [], "sample 's1' is already there.*context, a dict"),
        ([choice("s1")], [[choice("s2"), choice("s1")]], "turn 1 of additional history 0: sample 's1'"),
    ],
)
async def test_choices_that_cannot_be_trained_are_refused_before_anything_is_sent(
    registered, backend, double, turns, histories, named
):
    bad = art.Trajectory(
        messages_and_choices=turns,
        additional_histories=[art.History(messages_and_choices=h) for h in histories],
    )
    with pytest.raises(errors.TokenMismatchError, match=named):
        await backend.train(registered, [art.TrajectoryGroup([bad])])
    assert double.jobs == {}


@pytest.mark.parametrize("reward", [float("nan"), float("-inf")])
def test_a_reward_that_is_not_finite_leaves_its_rollout_unscored_with_the_reason(reward, caplog):
    bad, fine = trajectory("s1"), trajectory("s2", reward=0.5)
    bad.reward = reward
    (group,) = train_groups([art.TrajectoryGroup([bad, fine])])
    assert [one.reward for one in group.trajectories] == [None, 0.5]
    reason = group.trajectories[0].unscored_reason
    assert reason is not None and reason.endswith("not a finite number") and group.trajectories[0].samples
    assert "1 rollouts are unscored, the first is rollout 'g0.t0': the reward is " in caplog.text


@pytest.mark.parametrize("reward", [None, "good", "0.5"])
def test_a_reward_that_is_no_number_is_refused(reward):
    bad = trajectory("s1")
    bad.reward = reward
    with pytest.raises(errors.ConfigurationError, match="Unscored"):
        train_groups([art.TrajectoryGroup([bad])])


async def test_a_metric_that_is_no_number_is_refused_before_the_step(registered, double: Double):
    bad = trajectory("s1")
    bad.metrics["verdict"] = "won"
    with pytest.raises(
        errors.ConfigurationError, match=r"metric 'verdict' of rollout 'g0.t0' is 'won', a str"
    ):
        await registered.train([art.TrajectoryGroup([bad])])
    assert double.jobs == {}, "the log would have refused it, after the step"


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
async def test_groups_whose_await_is_missing_are_told_so(registered, backend, double: Double):
    async def rollout() -> art.Trajectory:
        return art.Trajectory()

    for call, name in (
        (registered.train, "train"),
        (lambda given: backend.train(registered, given), "train"),
        (registered.log, "log"),
        (registered.train_sft, "train_sft"),
    ):
        unawaited = art.gather_trajectory_groups([art.TrajectoryGroup([rollout()])])
        with pytest.raises(TypeError) as told:
            await call(unawaited)
        assert str(told.value) == (
            f"{name}() was given a coroutine, gather_trajectory_groups(): write `await` before this call"
        )
    assert double.jobs == {}


async def test_a_step_without_any_group_is_refused(registered, backend, double: Double, caplog):
    for train in (registered.train([]), backend.train(registered, iter(()))):
        with pytest.raises(errors.ConfigurationError, match=r"train\(\) was given no groups.* skip the step"):
            await train
    assert double.jobs == {}
    await registered.train([None])
    assert len(double.jobs) == 1 and "its judge or rollout gave no group" in caplog.text


async def test_a_scenario_of_any_value_is_a_text_in_the_record(registered, double: Double) -> None:
    plain = groups()
    plain[0].metadata["scenario_id"] = {"rooms": [1, None]}
    plain[0].metadata["when"] = {object()}
    await registered.train(plain)
    (job,) = double.jobs.values()
    notes = [one["notes"]["scenario"] for one in job["groups"][0]["trajectories"]]
    assert set(notes) == {"{'rooms': [1, None]}"}


async def test_a_step_whose_rollouts_all_failed_raises_the_first_failure(registered, backend, double: Double):
    """As in a published loop: `max_exceptions=18`, and every one of them fails."""

    async def rollout() -> art.Trajectory:
        raise KeyError("no such field")

    failed = await art.gather_trajectory_groups(
        [art.TrajectoryGroup(rollout() for _ in range(3)) for _ in range(2)],
        max_exceptions=18,
        pbar_desc=None,
    )
    for train in (registered.train(failed), backend.train(registered, failed)):
        with pytest.raises(
            errors.RolloutsFailedError, match=r"each of the 6 rollouts failed.*KeyError.*no such field"
        ) as refused:
            await train
        assert "in rollout" in str(refused.value), "the traceback says where"
    assert not double.jobs and await registered.get_step() == 0
    await registered.train([*failed, *groups()])
    assert len(double.jobs) == 1, "one that gave a trajectory is enough"


async def test_groups_that_have_not_run_are_refused(registered):
    async def rollout() -> art.Trajectory:
        return art.Trajectory()

    pending = art.TrajectoryGroup([rollout()])
    with pytest.raises(TypeError, match="gather"):
        await registered.train([pending])
    pending.close_unstarted()


async def test_the_algorithm_and_a_rate_left_to_the_literature_are_sent(registered, backend, double: Double):
    await backend.train(registered, groups(), algorithm="gspo", learning_rate=None, kl_penalty_coef=0.1)
    await registered.train(groups(), config=art.TrainConfig(learning_rate=None, beta=0.2))
    await registered.train(groups(), config=art.TrainConfig(algorithm={"name": "dapo", "overlong": None}))
    one, two, three = double.jobs.values()
    assert three["algorithm"]["name"] == "dapo" and three["algorithm"]["overlong"] is None
    assert (one["algorithm"]["name"], one["algorithm"]["ratio"]) == ("gspo", "sequence")
    assert one["algorithm"]["kl"]["coefficient"] == 0.1 and two["algorithm"]["kl"]["coefficient"] == 0.2
    assert one["optimizer"]["learning_rate"] is two["optimizer"]["learning_rate"] is None


# What comes back


async def test_train_returns_step_metrics_and_sheet(registered, double: Double):
    result = await registered.train(groups(), config=art.TrainConfig(learning_rate=1e-4))
    assert (result.step, result.checkpoint_path) == (1, "/c")
    assert result.sheet.started.rollouts == 3 and result.sheet.fates["failed"].rollouts == 1
    assert result.metrics["loss/train"] == 0.5
    assert result.metrics["data/sheet/trained_rollouts"] == 2
    assert result.metrics["data/sheet/started_tokens"] == 7
    assert result.metrics["data/sheet/forks_template"] == 2
    (job,) = double.jobs.values()
    assert job["optimizer"]["learning_rate"] == 1e-4
    (row,) = [json.loads(line) for line in (registered._folder() / "history.jsonl").read_text().splitlines()]
    assert row["training_step"] == 1 and row["train/reward"] == 0.5 and row["loss/train"] == 0.5
    assert row["data/sheet/failed_rollouts"] == 1 and row["train/exception_rate"] == pytest.approx(1 / 3)


async def test_an_unbalanced_sheet_raises(registered, backend, double: Double):
    result = {"step": 1, "metrics": {}, "sheet": {"started": {"rollouts": 3, "tokens": 5}}}
    double.script = [{"number": 1, "type": "result", "result": result}]
    with pytest.raises(errors.UnbalancedSheetError, match="3 rollouts were sent"):
        await backend.train(registered, groups())


async def test_dropped_event_streams_are_taken_up_where_they_broke(registered, backend, double: Double):
    double.drop_after = [0, 1, 2, 0]
    result = await backend.train(registered, groups())
    assert result.step == 1
    assert double.events_after == [0, 0, 1, 3, 3]
    assert double.asked["/art/models/games/agent/train"] == 1


async def test_a_lost_reply_is_asked_for_again_with_the_same_job(registered, backend, double: Double):
    double.lose_replies = 2
    result = await backend.train(registered, groups())
    assert double.asked["/art/models/games/agent/train"] == 3
    assert len(double.jobs) == 1 and result.step == double.step == 1


async def test_a_full_queue_and_a_loading_server_are_waited_for(registered, double: Double):
    double.refusals = [
        error(429, "full", "overloaded", {"retry-after": "0.01"}),
        error(503, "loading", "loading", {"retry-after": "0.01"}),
    ]
    assert (await registered.train(groups())).step == 1


async def test_a_worker_that_comes_back_is_waited_for_one_that_does_not_is_reported(
    registered, double: Double
):
    def died():
        return error(503, "the engine died", "worker_died", {"retry-after": "1"})

    double.refusals = [died()]
    assert (await registered.train(groups())).step == 1
    double.refusals = [died() for _ in range(3)]
    with pytest.raises(errors.WorkerDiedError, match="the engine died"):
        await registered.train(groups())


async def test_lost_machines_are_no_reason_to_give_up(registered, double: Double):
    lost = error(503, "lost its node 10.0.0.7", "node_lost", {"retry-after": "0.01"})
    double.refusals = [lost for _ in range(5)]
    assert (await registered.train(groups())).step == 1


async def test_heartbeats_keep_a_silent_job_alive(model, server, double: Double):
    backend = art.RemoteBackend(server, KEY, deadlines=JobDeadlines(idle_s=3.0))
    await model.register(backend)
    double.heartbeats = 70
    assert (await backend.train(model, groups())).step == 1
    await backend.close()


async def test_what_this_program_slept_through_is_no_silence(model, server, double: Double):
    backend = art.RemoteBackend(server, KEY, deadlines=JobDeadlines(idle_s=3.0))
    await model.register(backend)
    double.heartbeats = 90
    training = asyncio.create_task(backend.train(model, groups()))
    await until(lambda: double.events_after)
    time.sleep(3.5)  # noqa: ASYNC251 - as a rollout that blocks its event loop
    assert (await training).step == 1
    await backend.close()


async def test_silence_has_a_deadline(model, server, double: Double):
    backend = art.RemoteBackend(server, KEY, deadlines=JobDeadlines(idle_s=0.2))
    await model.register(backend)
    double.silence_s = 60.0
    with pytest.raises(errors.DeadlineError, match=r"no event and no heartbeat for 0\.2 s"):
        await backend.train(model, groups())
    await backend.close()


async def test_the_whole_job_has_a_deadline(model, server, double: Double):
    backend = art.RemoteBackend(server, KEY, deadlines=JobDeadlines(total_s=0.3))
    await model.register(backend)
    double.heartbeats = 100
    with pytest.raises(errors.DeadlineError, match=r"took longer than 0\.3 s"):
        await backend.train(model, groups())
    await backend.close()


async def test_missing_events_are_noticed(registered, backend, double: Double):
    double.script = [{"number": 1, "type": "state"}, {"number": 3, "type": "state"}]
    with pytest.raises(errors.TrainingError, match="events 2 to 2 are missing"):
        await backend.train(registered, groups())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("WorkerDiedError", errors.WorkerDiedError),
        ("CanaryError", errors.CanaryError),
        ("TokenMismatchError", errors.TokenMismatchError),
        ("RequestError", errors.RequestError),
        ("step_conflict", errors.RequestError),
        ("sample_not_found", errors.NotFoundError),
        ("annotations", errors.RequestError),
        (None, errors.TrainingError),
    ],
)
async def test_a_failed_job_raises_its_own_error(registered, backend, double: Double, code, kind):
    double.script = [{"number": 1, "type": "error", "error": "the trainer is gone", "error_code": code}]
    with pytest.raises(kind, match="the trainer is gone") as caught:
        await backend.train(registered, groups())
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.RequestError),
        (403, errors.AuthenticationError),
        (404, errors.NotFoundError),
        (500, errors.ServerError),
    ],
)
async def test_errors_of_the_server(registered, backend, double: Double, status, kind):
    double.refusals = [error(status, "because", "a_code")]
    with pytest.raises(kind, match="because") as caught:
        await backend.train(registered, groups())
    assert (caught.value.status, caught.value.code) == (status, "a_code")
    assert str(caught.value) == "because", "which HTTP request it was is nothing that a user did"


async def test_a_refused_register_says_the_reason_alone(backend, double: Double):
    unfit = art.TrainableModel(name="unfit", project="games", base_model="art/nano")
    with pytest.raises(errors.RequestError) as caught:
        await unfit.register(backend)
    assert str(caught.value) == "this model cannot be served"


async def test_a_reply_of_something_else_at_the_address_names_the_request(
    registered, backend, double: Double
):
    double.refusals = [Response("<html>no such page</html>", status_code=404)]
    with pytest.raises(
        errors.NotFoundError, match=r"POST /art/models/games/agent/train: status 404: '<html>no"
    ):
        await backend.train(registered, groups())


async def test_a_closed_backend_takes_no_call(model, backend, double: Double):
    await model.register(backend)
    await backend.close()
    asked = double.asked.total()
    for call in (
        lambda: model.get_step(),
        lambda: model.train(groups()),
        lambda: model.register(backend),
        lambda: backend.train_sft(model, [trajectory("s1")]),
        lambda: backend.delete_checkpoints(model, []),
    ):
        with pytest.raises(errors.BackendClosedError, match="the backend is closed: make a new one"):
            await call()
    assert double.asked.total() == asked
    await backend.close()  # closing twice is no mistake


async def test_wrong_key_and_unknown_model(model, server):
    with pytest.raises(errors.AuthenticationError, match="wrong key"):
        await model.register(art.RemoteBackend(server, "nope"))
    with pytest.raises(errors.NotFoundError, match="agent"):
        await art.RemoteBackend(server, KEY).get_step(model)


async def test_nobody_there(model, unused_tcp_port_factory):
    backend = art.RemoteBackend(f"http://127.0.0.1:{unused_tcp_port_factory()}", KEY)
    from art.wire.models import ModelInfo

    with pytest.raises(errors.ServerUnreachableError, match="is the server running"):
        await backend._connection.call("GET", "/art/models/a/b", ModelInfo, deadline_s=0.2)


async def test_a_rollout_is_sampled_and_trained(registered, double: Double):
    async def rollout() -> art.Trajectory:
        said = art.Trajectory(messages_and_choices=[{"role": "user", "content": "x"}], reward=1.0)
        completion = await registered.openai_client().chat.completions.create(
            model=registered.get_inference_name(), messages=said.messages()
        )
        said.messages_and_choices.append(completion.choices[0])
        return said

    gathered = await art.gather_trajectory_groups(
        art.TrajectoryGroup(rollout() for _ in range(4)) for _ in range(2)
    )
    await registered.train(gathered)
    (job,) = double.jobs.values()
    sent = {t["rollout"]: t["samples"] for group in job["groups"] for t in group["trajectories"]}
    assert len(sent) == 8
    assert {rollout: [f"s{double.rollouts.index(rollout) + 1}"] for rollout in sent} == sent


async def test_delete_checkpoints_keeps_the_newest_and_the_best(registered, double: Double):
    double.step = 4
    for step, reward in ((1, 0.2), (2, 0.9), (3, 0.4)):
        await registered.log([art.Trajectory(reward=reward)], split="val", step=step)
    assert await registered.delete_checkpoints() == [0, 1, 3]


def test_one_backend_in_several_event_loops(model, backend):
    asyncio.run(model.register(backend))
    for expected in (1, 2):
        assert asyncio.run(model.train(groups())).step == expected


async def test_a_choice_that_was_edited_after_it_was_sampled_is_told_once_with_its_place(
    registered, backend, double: Double, caplog
):
    async def rollout(streamed: bool = False) -> art.Trajectory:
        said = art.Trajectory(messages_and_choices=[{"role": "user", "content": "x"}], reward=1.0)
        ask = {"model": registered.get_inference_name(), "messages": said.messages()}
        completion = await registered.openai_client().chat.completions.create(**ask)
        said.messages_and_choices.append(completion.choices[0])
        return said

    (group,) = await art.gather_trajectory_groups([art.TrajectoryGroup(rollout() for _ in range(4))])
    stored = art.Trajectory.model_validate_json(group.trajectories[0].model_dump_json())
    group.trajectories[1].messages_and_choices[-1].message.content += " \n"  # white space is no edit
    await registered.train([art.TrajectoryGroup([stored, *group.trajectories[1:]])])
    assert "was edited" not in caplog.text
    for edited in group.trajectories[2:]:
        edited.messages_and_choices[-1].message.content = "what I would have said"
    for _ in range(2):
        await registered.train([group])
    (line,) = [line for line in caplog.messages if "was edited" in line]
    assert "group 0, trajectory 2, turn 1 (and 1 more)" in line and "as a dict, which is context" in line
