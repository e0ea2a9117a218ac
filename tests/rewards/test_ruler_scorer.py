"""RULER before judges that fail in every way: by id, asked again, split, and then unscored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from scripted_judges import (
    QUESTION,
    attempt,
    entries,
    group_of,
    reasons,
    rewards,
    ruler_at,
    scripted,
    shown,
    truth,
    user_text,
    wanted,
)

import art
from art.errors import BudgetExceededError, ConfigurationError
from art.rewards.judge_view import views_of
from art.rewards.llm import Budget
from art.rewards.ruler import Ruler
from art_extensions.testing import LlmServer, Mischief, TruthfulJudge

QUALITIES = (0.1, 0.9, 0.4, 0.7)


async def test_scores_go_to_the_ids_that_they_name() -> None:
    backwards = lambda scores: entries(dict(reversed(scores.items())))  # noqa: E731
    async with LlmServer(scripted(backwards)) as server:
        judged = await ruler_at(server).score_group(group_of(*QUALITIES))
    assert rewards(judged) == list(QUALITIES) and len(server.requests) == 1
    assert [t.metrics["ruler_score"] for t in judged] == list(QUALITIES)
    assert judged.trajectories[1].logs == ["RULER explanation: I give 0.9"]


async def test_what_is_missing_is_asked_for_by_its_ids_alone() -> None:
    def leaves_one_out(scores: dict[str, float]) -> Any:
        return entries({i: s for i, s in scores.items() if s != 0.4})

    async with LlmServer(scripted(leaves_one_out)) as server:
        judged = await ruler_at(server).score_group(group_of(*QUALITIES))

    assert rewards(judged) == list(QUALITIES)
    first, again = server.requests
    [asked] = wanted(again)
    assert shown(again) == shown(first) and shown(again)[asked][-1]["content"] == "0.4"
    known = user_text(again).split("<already_scored>\n")[1].split("\n</already_scored>")[0]
    assert sorted(entry["score"] for entry in json.loads(known)) == [0.1, 0.7, 0.9]


@pytest.mark.slow
@pytest.mark.parametrize("nonsense", [7, -1, "very good", None, True, [0.4], 80])
async def test_a_score_that_is_no_number_between_0_and_1_is_asked_for_again(nonsense: Any) -> None:
    def spoils_one(scores: dict[str, float]) -> Any:
        return entries({i: nonsense if s == 0.4 else s for i, s in scores.items()})

    async with LlmServer(scripted(spoils_one)) as server:
        judged = await ruler_at(server).score_group(group_of(*QUALITIES))
    assert rewards(judged) == list(QUALITIES) and len(server.requests) == 2
    assert '"problem": "its score ' in user_text(server.requests[1])


async def test_a_score_just_outside_is_clamped_with_a_note() -> None:
    async with LlmServer(
        scripted(lambda scores: entries({i: s + 0.15 for i, s in scores.items()}))
    ) as server:
        judged = await ruler_at(server).score_group(group_of(0.9, 0.5))
    assert rewards(judged) == [1.0, 0.65]
    assert judged.trajectories[0].logs[-1] == "the judge's score 1.05 counts as 1"


async def test_an_id_with_two_scores_is_asked_for_again() -> None:
    def twice(scores: dict[str, float]) -> Any:
        answer = entries(scores)
        answer["scores"].append({**answer["scores"][0], "score": 0.99})
        return answer

    async with LlmServer(scripted(twice)) as server:
        judged = await ruler_at(server).score_group(group_of(*QUALITIES))
    assert rewards(judged) == list(QUALITIES) and len(wanted(server.requests[1])) == 1


async def test_the_group_is_split_when_asking_again_does_not_help_and_the_ends_show_the_scale() -> None:
    never = {0.4, 0.7}

    def answer(body: Mapping[str, Any]) -> Any:
        scores = truth(body)
        whole = len(shown(body)) > 3
        return entries({i: s for i, s in scores.items() if not (whole and s in never)})

    async with LlmServer(answer) as server:
        judged = await ruler_at(server).score_group(group_of(0.1, 0.9, 0.4, 0.7, 0.5))

    assert rewards(judged) == [0.1, 0.9, 0.4, 0.7, 0.5]
    last = server.requests[-1]
    scale = {m[-1]["content"] for i, m in shown(last).items() if i not in wanted(last)}
    assert scale == {"0.1", "0.9"}


async def test_one_that_the_judge_never_scores_is_unscored_and_no_other() -> None:
    def answer(body: Mapping[str, Any]) -> Any:
        return entries({i: s for i, s in truth(body).items() if s != 0.4})

    async with LlmServer(answer) as server:
        judged = await ruler_at(server).score_group(group_of(*QUALITIES))
    assert rewards(judged) == [0.1, 0.9, None, 0.7]
    assert reasons(judged)[0].startswith("ruler: 'truth' was asked 2 times")
    assert "ruler_score" not in judged.trajectories[2].metrics


@pytest.mark.parametrize("kind", ["refusal", "wrong_ids"])
async def test_a_judge_that_always_fails_leaves_all_unscored_after_few_questions(kind: str) -> None:
    mischief = Mischief(**{kind: 1.0})
    async with LlmServer(TruthfulJudge(lambda _: 0.5), mischief=mischief) as server:
        judged = await ruler_at(server).score_group(group_of(*(i / 16 for i in range(16))))
    assert rewards(judged) == [None] * 16 and len(server.requests) <= 12


async def test_of_an_answer_that_is_cut_off_the_whole_part_is_kept() -> None:
    def half(scores: dict[str, float]) -> Any:
        text = json.dumps(entries(scores))
        return text[: len(text) * 2 // 3]

    async with LlmServer(scripted(half)) as server:
        judged = await ruler_at(server).score_group(group_of(*QUALITIES))
    assert rewards(judged) == list(QUALITIES)
    assert len(server.requests) == 2 and len(wanted(server.requests[1])) < 4


async def test_an_endpoint_that_is_gone_is_not_asked_again_in_pieces() -> None:
    async with LlmServer(TruthfulJudge(lambda _: 0.5), mischief=Mischief(fault=1.0)) as server:
        judged = await ruler_at(server, attempts=1).score_group(group_of(*QUALITIES))
    assert rewards(judged) == [None] * 4 and len(server.requests) == 1
    assert "HTTP 500" in reasons(judged)[0]


async def test_a_question_that_is_too_long_is_asked_in_parts() -> None:
    async with LlmServer(TruthfulJudge(lambda m: float(m[-1]["content"]))) as server:
        long = [attempt(f"{quality}" * 700, quality) for quality in QUALITIES]
        judged = await ruler_at(server, max_prompt_tokens=1500).score_group(art.TrajectoryGroup(long))
    assert rewards(judged) == list(QUALITIES)
    assert len(server.requests) > 1 and all(len(user_text(body)) <= 5250 for body in server.requests)


async def test_a_judge_that_says_too_long_is_believed_and_its_limit_is_remembered() -> None:
    def answer(body: Mapping[str, Any]) -> Any:
        if len(user_text(body)) > 5000:
            raise ValueError("This model's maximum context length is 1500 tokens")
        return entries(truth(body))

    async with LlmServer(answer) as server:
        ruler = ruler_at(server)
        for turn in range(2):
            group = art.TrajectoryGroup(attempt(f"{turn} {quality}" * 400, quality) for quality in QUALITIES)
            assert rewards(await ruler.score_group(group)) == list(QUALITIES)
            if turn == 0:
                refused = sum(len(user_text(body)) > 5000 for body in server.requests)
    assert refused and sum(len(user_text(body)) > 5000 for body in server.requests) == refused


async def test_tool_outputs_of_one_that_is_too_long_alone_are_digested_further() -> None:
    outputs = [{"role": "tool", "content": "y" * 3000} for _ in range(4)]
    long = art.Trajectory(messages_and_choices=[QUESTION, *outputs, {"role": "assistant", "content": "0.3"}])
    async with LlmServer(TruthfulJudge(lambda m: float(m[-1]["content"]))) as server:
        ruler = ruler_at(server, max_prompt_tokens=1500)
        judged = await ruler.score_group(art.TrajectoryGroup([long, attempt(0.6)]))
        hopeless = await ruler.score_group(art.TrajectoryGroup([attempt("z" * 9000, 0.5), attempt(0.6)]))
    assert rewards(judged) == [0.3, 0.6] and rewards(hopeless) == [None, 0.6]
    assert reasons(hopeless) == ["ruler: it is longer than the 5250 characters of a question"]


async def test_equal_attempts_are_shown_once_and_share_a_score() -> None:
    async with LlmServer(scripted()) as server:
        judged = await ruler_at(server).score_group(group_of(0.2, 0.8, 0.2, 0.8, 0.5))
    assert rewards(judged) == [0.2, 0.8, 0.2, 0.8, 0.5]
    assert len(shown(server.requests[0])) == 3


async def test_a_group_of_equal_attempts_is_scored_absolutely_and_the_log_says_so(caplog: Any) -> None:
    async with LlmServer(scripted()) as server:
        ruler = ruler_at(server)
        judged = await ruler.score_group(group_of(0.6, 0.6, 0.6))
        await ruler.score_group(group_of(0.7, 0.7, 0.7))
    assert rewards(judged) == [0.6] * 3
    [messages] = shown(server.requests[0]).values()
    assert messages[0] == QUESTION and "<context>" not in user_text(server.requests[0])
    assert [r.levelname for r in caplog.records if "all 3 trajectories are equal" in r.message] == ["WARNING"]


async def test_further_histories_are_judged() -> None:
    helper = art.History(messages_and_choices=[{"role": "assistant", "content": "sub-agent"}])
    with_help = attempt(0.7)
    with_help.additional_histories = [helper]

    def answer(body: Mapping[str, Any]) -> Any:
        helped = {i: isinstance(data, dict) and "sub-agent" in str(data) for i, data in shown(body).items()}
        return entries({i: 1.0 if found else 0.0 for i, found in helped.items()})

    async with LlmServer(answer) as server:
        judged = await ruler_at(server).score_group(art.TrajectoryGroup([attempt(0.7), with_help]))
    assert rewards(judged) == [0.0, 1.0]


async def test_explanations_speak_of_places_in_the_group() -> None:
    def compares(scores: dict[str, float]) -> Any:
        best = max(scores, key=scores.__getitem__)
        answer = entries(scores)
        for entry in answer["scores"]:
            entry["explanation"] = f"{best} is the best"
        return answer

    async with LlmServer(scripted(compares)) as server:
        judged = await ruler_at(server).score_group(group_of(*QUALITIES))
    assert {t.logs[-1] for t in judged} == {"RULER explanation: #2 is the best"}


async def test_the_second_opinion_is_another_question_in_another_order() -> None:
    async with LlmServer(scripted()) as server:
        ruler = ruler_at(server)
        for salt in ("", "second opinion"):
            await ruler.scorer.score(views_of(group_of(0.3, 0.6)), salt=salt)
    orders = [[messages[-1]["content"] for messages in shown(body).values()] for body in server.requests]
    assert orders[0] == orders[1][::-1]
    assert not set(shown(server.requests[0])) & set(shown(server.requests[1]))


async def test_a_spent_budget_stops_before_the_next_question() -> None:
    async with LlmServer(scripted()) as server:
        ruler = ruler_at(server, budget=Budget(calls=2))
        for quality in (0.1, 0.2):
            await ruler.score_group(group_of(quality, 0.9))
        with pytest.raises(BudgetExceededError):
            await ruler.score_group(group_of(0.3, 0.9))
    assert len(server.requests) == 2


async def test_a_budget_that_ends_within_a_group_keeps_what_was_scored() -> None:
    def leaves_one_out(scores: dict[str, float]) -> Any:
        return entries({i: s for i, s in scores.items() if s != 0.4})

    async with LlmServer(scripted(leaves_one_out)) as server:
        judged = await ruler_at(server, budget=Budget(calls=1)).score_group(group_of(*QUALITIES))
    assert rewards(judged) == [0.1, 0.9, None, 0.7] and "budget" in reasons(judged)[0].lower()


@pytest.mark.parametrize(
    "options",
    [
        {"rubric": ""},
        {"rubric": "  \n"},
        {"rubric": None},
        {"max_prompt_tokens": 0},
        {"judge_model": ""},
        {"judge_model": None},
        {"judge_model": 7},
        {"judge_model": "gpt-5"},
        {"judge_model": "nobody/gpt-5"},
        {"params": {"temprature": 1}, "base_url": "http://127.0.0.1:1/v1"},
        {"digest_chars": 0},
    ],
)
def test_options_that_cannot_act_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Ruler(**{"judge_model": "openai/o3", "api_key": "k", **options})


async def test_a_key_that_is_not_accepted_is_an_error_not_a_reward() -> None:
    async with LlmServer(scripted()) as server:
        wrong = Ruler("truth", base_url=server.base_url, api_key="wrong", cache=False)
        with pytest.raises(ConfigurationError, match="does not accept the key"):
            await wrong.score_group(group_of(0.1, 0.9))


async def test_a_question_that_is_refused_as_a_bad_request_costs_only_the_attempt_that_is_at_fault() -> None:
    def answer(body: Mapping[str, Any]) -> Any:
        if "0.66" in user_text(body):
            raise ValueError("I take no 0.66")
        return entries(truth(body))

    async with LlmServer(answer) as server:
        ruler = ruler_at(server)
        with pytest.raises(ConfigurationError, match=r"I take no 0\.66"):
            await ruler.score_group(group_of(0.66, 0.1))  # it never answered: the options may be wrong
        await ruler.score_group(group_of(0.1, 0.9))
        judged = await ruler.score_group(group_of(0.1, 0.66, 0.9, 0.4))
    assert rewards(judged) == [0.1, None, 0.9, 0.4] and "I take no 0.66" in reasons(judged)[0]


async def test_a_judge_that_refuses_group_after_group_is_an_error() -> None:
    async with LlmServer(scripted()) as server:
        ruler = ruler_at(server)
        await ruler.score_group(group_of(0.1, 0.9))
        server.key = "another"
        for _ in range(2):
            assert rewards(await ruler.score_group(group_of(0.2, 0.8))) == [None, None]
        with pytest.raises(ConfigurationError, match="does not accept the key"):
            await ruler.score_group(group_of(0.2, 0.8))


async def test_a_judge_that_finds_everything_too_long_is_given_up_and_keeps_its_limit() -> None:
    def answer(body: Mapping[str, Any]) -> Any:
        raise ValueError("This model's maximum context length is 0 tokens")

    async with LlmServer(answer) as server:
        ruler = ruler_at(server)
        limit = ruler.scorer.max_prompt_chars
        judged = await ruler.score_group(group_of(0.1, 0.9))
    assert rewards(judged) == [None, None] and ruler.scorer.max_prompt_chars == limit
    assert len(server.requests) == 3


async def test_a_reply_that_cannot_even_be_read_leaves_its_group_unscored() -> None:
    class Garbled:
        name = "garbled"

        async def complete(self, request: Any) -> Any:
            return json.loads("[" * 200_000)

    judged = await Ruler(Garbled()).score_group(group_of(*QUALITIES))
    assert len(reasons(judged)) == len(QUALITIES) and "RecursionError" in reasons(judged)[0]
