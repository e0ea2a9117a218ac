"""Supervised training through the real server: what is shown is learned, in one lineage with rewards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import art
from art.engine.nano_models import resolve
from art.environments.tasks import mail, yes_no_maybe
from art.errors import RequestError
from art.types import TrainSFTConfig
from art.utils.sft import create_sft_dataset_iterator

pytestmark = pytest.mark.slow

QUESTIONS = yes_no_maybe.phrasings()


def last_word(question: str) -> str:
    """What is demonstrated: the answer is the word named last."""
    return question.split()[-1].strip("'")


def shown(question: str, answer: str) -> art.Trajectory:
    said = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return art.Trajectory(messages_and_choices=said)


async def ask(model: art.Model, question: str, name: str | None = None, **sampling: Any) -> Any:
    completion = await model.openai_client().chat.completions.create(
        model=name or model.get_inference_name(),
        messages=[{"role": "user", "content": question}],
        max_tokens=4,
        **sampling,
    )
    return completion.choices[0]


async def accuracy(model: art.Model, name: str | None = None) -> float:
    said = await asyncio.gather(*(ask(model, question, name, temperature=0) for question in QUESTIONS))
    right = [last_word(one) == choice.message.content for one, choice in zip(QUESTIONS, said, strict=True)]
    return sum(right) / len(right)


async def learn(model: art.TrainableModel, examples: list[art.Trajectory], **options: Any) -> None:
    chunks = create_sft_dataset_iterator(
        examples, chunk_size=1000, batch_size=8, show_progress=False, **options
    )
    for chunk in chunks:
        await model.train_sft(chunk.trajectories, chunk.config)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address and the key of a server for tests that need no folder of their own: each has its models."""
    with art.LocalBackend(path=str(tmp_path_factory.mktemp("served"))) as backend:
        model = art.TrainableModel(name="address", project="p", base_model="art/nano-games")
        art.run(model.register(backend))
        yield str(model.inference_base_url).removesuffix("/v1"), str(model.inference_api_key)


async def test_a_warm_up_then_rewards_in_one_lineage_that_is_resumed(tmp_path: Path) -> None:
    def made() -> art.TrainableModel:
        return art.TrainableModel(name="agent", project="p", base_model="art/nano-games")

    model = made()
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        before = await accuracy(model)
        examples = [shown(question, last_word(question)) for question in QUESTIONS]
        await learn(model, examples, epochs=6, peak_lr=3e-3)
        assert await model.get_step() == 6  # chunks never cross an epoch
        assert before < 0.6 and await accuracy(model) > 0.9

        async def rollout(question: str, reward: float) -> art.Trajectory:
            said = [{"role": "user", "content": question}, await ask(model, question)]
            return art.Trajectory(messages_and_choices=said, reward=reward)

        groups = await art.gather_trajectory_groups(
            art.TrajectoryGroup(rollout(question, float(n % 2)) for n in range(4))
            for question in QUESTIONS[:8]
        )
        result = await backend.train(model, groups, learning_rate=1e-4)
        assert result.step == 7 and all(
            one.step == 6 for group in groups for said in group for one in [said.messages_and_choices[-1]]
        )
        checkpoints = tmp_path / "p" / "models" / "agent" / "checkpoints"
        assert sorted(path.name for path in checkpoints.iterdir()) == [f"{step:04d}" for step in range(8)]
        kinds = [
            json.loads((checkpoints / f"{step:04d}" / "trainer_state.json").read_text())["kind"]
            for step in range(8)
        ]
        assert kinds == ["rl", *["sft"] * 6, "rl"]
        assert await accuracy(model, "agent@0") == before

    model = made()
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        assert await model.get_step() == 7
        assert await accuracy(model, "agent@6") > 0.9
        result = await model.train_sft(examples[:4])
        assert result.step == 8 and result.metrics["data/step_num_gradient_steps"] == 2


async def test_a_student_learns_from_a_teacher_s_replies(served: tuple[str, str]) -> None:
    """The teacher is a model of the same server that has learned the task, asked as any endpoint would be."""
    trained = art.TrainableModel(name="big", project="p", base_model="art/nano-games")
    student = art.TrainableModel(name="small", project="p", base_model="art/nano-games")
    async with art.RemoteBackend(*served) as backend:
        await trained.register(backend)
        await student.register(backend)
        await learn(trained, [shown(one, last_word(one)) for one in QUESTIONS], epochs=6, peak_lr=3e-3)
        teacher = art.Model(
            name="teacher",
            project="p",
            inference_base_url=trained.inference_base_url,
            inference_api_key=trained.inference_api_key,
            inference_model_name="big",
        )
        replies = []
        for question in QUESTIONS:
            choice = await ask(teacher, question, temperature=0)
            # As a dict, as choices, both are what the student learns.
            said: Any = (
                choice if len(replies) % 2 else {"role": "assistant", "content": choice.message.content}
            )
            user = {"role": "user", "content": question}
            replies.append(art.Trajectory(messages_and_choices=[user, said]))
        await learn(student, replies, epochs=6, peak_lr=3e-3)
        assert await accuracy(student) > 0.9


def solved(scenario: mail.MailScenario) -> art.Trajectory:
    """A mail question answered without a detour, in an environment that is the real one."""
    inbox = mail.environment(scenario)
    messages: list[Any] = list(inbox.opening)
    wanted = scenario.wanted
    steps = [
        ("search", "keyword", f"{wanted.project} {wanted.role}"),
        ("read", "id", wanted.id),
        ("answer", "text", wanted.name),
    ]
    for number, (name, parameter, value) in enumerate(steps):
        function = {"name": name, "arguments": json.dumps({parameter: value})}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages += inbox.reply(messages[-1])
    assert inbox.reward == 1.0
    return art.Trajectory(messages_and_choices=messages, tools=mail.TOOLS, reward=1.0)


async def test_conversations_with_tools_are_learned_from_an_oracle(tmp_path: Path) -> None:
    model = art.TrainableModel(name="clerk", project="p", base_model="art/nano-tools")
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)

        async def right() -> float:
            played = await art.gather_trajectories(
                (mail.rollout(model, mail.scenario(99, at), seed=at) for at in range(60)),
                pbar_desc=None,
            )
            assert len(played) == 60
            return sum(one.reward == 1.0 for one in played) / len(played)

        before = await right()
        result = await model.train_sft(
            [solved(mail.scenario(0, at)) for at in range(240)],
            TrainSFTConfig(learning_rate=2e-3, batch_size=16),
        )
        # Three turns each, in one path: the tree is far smaller than the rows.
        assert result.metrics["data/samples"] == 720 and not result.sheet.forks
        assert result.metrics["data/tree_tokens"] < 0.6 * result.metrics["data/raw_tokens"]
        after = await right()
        error = sum(share * (1 - share) / 60 for share in (before, after)) ** 0.5
        assert before < 0.6 and after - before >= 3 * error, (before, after)


async def test_an_update_is_that_of_transformers_on_its_own_rendering(tmp_path: Path) -> None:
    """Messages in, weights out: against PEFT, the chat template, cross entropy and AdamW, in float64."""
    examples = [
        [{"role": "user", "content": "respond with yes or no"}, {"role": "assistant", "content": "no"}],
        [
            {"role": "user", "content": "reply with maybe"},
            {"role": "assistant", "content": "maybe"},
            {"role": "user", "content": "respond with yes or no"},
            {"role": "assistant", "content": "yes, or no"},
        ],
    ]
    model = art.TrainableModel(name="m", project="p", base_model="art/nano-games")
    options = {"trainer": {"options": {"dtype": "float64"}}}
    async with art.LocalBackend(path=str(tmp_path), server_options=options) as backend:
        await model.register(backend)
        trajectories = [art.Trajectory(messages_and_choices=one) for one in examples]
        config = TrainSFTConfig(learning_rate=1e-3, batch_size=2)
        result = await model.train_sft(trajectories, config)

    folder = Path(str(result.checkpoint_path)).parent
    base = resolve("art/nano-games")
    stock = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64)
    theirs = PeftModel.from_pretrained(stock, folder / "0000", is_trainable=True)
    parameters = [one for one in theirs.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0)
    loss = cross_entropy(theirs, PreTrainedTokenizerFast.from_pretrained(base), examples)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    assert result.metrics["loss/train"] == pytest.approx(loss.item(), rel=1e-5)
    theirs.save_pretrained(tmp_path / "theirs")
    wanted = load_file(tmp_path / "theirs" / "adapter_model.safetensors")
    before = load_file(folder / "0000" / "adapter_model.safetensors")
    made = load_file(folder / "0001" / "adapter_model.safetensors")
    assert made.keys() == wanted.keys()
    moved = 0.0
    for name, one in made.items():
        moved = max(moved, float((one - before[name]).abs().max()))
        # Where a gradient is nearly zero, AdamW's first step is all rounding.
        apart = (one.double() - wanted[name].double()).abs()
        assert float(apart.mean()) < 1e-6 and float((apart > 1e-5).double().mean()) < 1e-3, name
    assert moved > 9e-4


def cross_entropy(model: Any, tokenizer: Any, examples: list[list[dict[str, str]]]) -> torch.Tensor:
    """The token mean over what assistants say, the whole conversations rendered by the chat template."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for messages in examples:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        read = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
        spans, at = [], 0
        for message in messages:
            at = text.index(message["content"], at)
            if message["role"] == "assistant":
                spans.append((at, at + len(message["content"] + "<|im_end|>")))
            at += len(message["content"])
        ids = torch.tensor([read["input_ids"]])
        logprobs_TV = model(input_ids=ids).logits[0].log_softmax(-1)
        for place, (start, end) in enumerate(read["offset_mapping"]):
            if any(first <= start and end <= last for first, last in spans):
                total = total - logprobs_TV[place - 1, ids[0, place]]
                count += 1
    return total / count


async def test_what_is_too_long_is_counted_and_what_cannot_be_said_is_named(served: tuple[str, str]) -> None:
    model = art.TrainableModel(
        name="long",
        project="p",
        base_model="art/nano-games",
        _internal_config={"special_tokens_in_text": "parse"},
    )
    async with art.RemoteBackend(*served) as backend:
        await model.register(backend)
        short, long = shown("reply with yes", "yes"), shown("reply with yes " * 900, "yes")
        result = await model.train_sft([short, long, long, long, short], TrainSFTConfig(batch_size=2))
        assert result.step == 1 and result.metrics["data/step_num_dropped_trajectories"] == 3
        assert result.sheet.fates["overlong"].rollouts == 3 and result.sheet.fates["trained"].rollouts == 2
        assert result.metrics["data/step_num_gradient_steps"] == 2, (
            "a batch of which nothing is left is no update"
        )

        narrow = art.TrainableModel(
            name="narrow",
            project="p",
            base_model="art/nano-games",
            _internal_config={"init_args": {"max_seq_length": 16}},
        )
        await narrow.register(backend)
        result = await narrow.train_sft(
            [short, shown("respond with yes, no, maybe or no, yes, maybe", "yes")]
        )
        assert result.sheet.fates["overlong"].rollouts == 1, (
            "a model may be given less room than its base has"
        )

        nothing = await model.train_sft([long])
        assert nothing.step == 2 and nothing.metrics["trained"] == 0

        with pytest.raises(RequestError, match=r"'trajectory 1': .*ends a turn"):
            await model.train_sft([short, shown("?", "a<|im_end|>b")], TrainSFTConfig(batch_size=1))
        assert await model.get_step() == 2, "the first update of a job that fails is undone"
        again = await model.train_sft([short])
        assert again.step == 3


async def test_replies_of_the_model_s_own_are_learned_as_they_were_sampled(served: tuple[str, str]) -> None:
    """Rejection sampling. Replies cut at one token have no end of turn, which a rendering would add."""
    model = art.TrainableModel(name="own", project="p", base_model="art/nano-games")
    async with art.RemoteBackend(*served) as backend:
        await model.register(backend)
        kept = []
        for question in QUESTIONS[:6]:
            user = {"role": "user", "content": question}
            completion = await model.openai_client().chat.completions.create(
                model=model.get_inference_name(), messages=[user], max_tokens=1
            )
            kept.append(art.Trajectory(messages_and_choices=[user, completion.choices[0]]))
        result = await model.train_sft(kept)
        assert result.sheet.fates["trained"].tokens == 6
        kept[0].messages_and_choices[-1].message.content += " indeed"  # what was said is no sample any more
        result = await model.train_sft(kept)
        assert result.sheet.fates["trained"].tokens > 7


async def test_given_answers_are_trained_with_their_advantage(served: tuple[str, str]) -> None:
    """Nobody sampled them; the group's rewards say which of them is to be preferred."""
    model = art.TrainableModel(name="given", project="p", base_model="art/nano-games")
    question = QUESTIONS[0]
    async with art.RemoteBackend(*served) as backend:
        await model.register(backend)

        async def share() -> float:
            said = [(await ask(model, question, seed=at)).message.content for at in range(24)]
            return said.count("no") / len(said)

        before = await share()
        for step in range(3):
            sampled = await ask(model, question)
            user = {"role": "user", "content": question}
            trajectories = [shown(question, "no"), shown(question, "yes"), shown(question, "maybe")]
            trajectories.append(art.Trajectory(messages_and_choices=[user, sampled]))
            for one in trajectories:
                one.reward = float(one.messages()[-1]["content"] == "no")
            group = art.TrajectoryGroup(trajectories)
            result = await backend.train(
                model, [group], learning_rate=5e-3, allow_training_without_logprobs=True
            )
            assert result.step == step + 1 and result.metrics["data/given_tokens"] == 6
            assert result.metrics["loss/logprob_difference_max"] < 1e-3, "of the sampled tokens alone"
        assert await share() > max(0.8, before)
