"""A planner and a writer over one policy, captured side by side; a critic outside of the capture; dumps.

python v0522_two_agents.py [STEPS]
"""

import asyncio
import json
import random
import sys
from pathlib import Path

from openai import AsyncOpenAI

import art
from art.local import LocalBackend
from art.trajectories import ChatCompletionsHistory, TokenFlag, compact_dump, compact_validate_json

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 2
REWARDS = {"yes": 0.5, "no": 0.75, "maybe": 1.0}


class Asker:
    """Asks the policy, or whoever has another name."""

    def __init__(self, model: art.TrainableModel) -> None:
        self.client = AsyncOpenAI(base_url=model.inference_base_url, api_key=model.inference_api_key)

    async def ask(self, name: str, messages: list) -> str:
        completion = await self.client.chat.completions.create(model=name, messages=messages, max_tokens=4)
        messages.append({"role": "assistant", "content": completion.choices[0].message.content or ""})
        return messages[-1]["content"].strip()


async def rollout(model: art.TrainableModel, words: list[str]) -> art.Trajectory:
    asker, policy = Asker(model), model.get_inference_name()
    with art.Trajectory(metadata={"task": {"words": words}}) as trajectory:
        plan = await asker.ask(policy, [{"role": "user", "content": f"respond with {', '.join(words)}"}])
        talk = [{"role": "user", "content": f"answer with {', '.join(reversed(words))}"}]
        await asker.ask(policy, talk)
        talk.append({"role": "user", "content": "just respond with yes, no or maybe"})
        answer = await asker.ask(policy, talk)
        with art.no_capture():
            critic = await asker.ask("art/nano-games", [{"role": "user", "content": "yes or no"}])
    trajectory.reward = (REWARDS.get(plan, 0.0) + REWARDS.get(answer, 0.0)) / 2
    trajectory.metrics["critic_agrees"] = critic == answer
    trajectory.log(f"planned {plan!r}, wrote {answer!r}")
    return trajectory


async def failing() -> art.Trajectory:
    raise ConnectionError("the sandbox is gone")


async def gather(model: art.TrainableModel, seed: int) -> list[art.TrajectoryGroup]:
    dice = random.Random(seed)
    groups = []
    for number in range(3):
        words = dice.sample(list(REWARDS), 3)
        attempts = [rollout(model, words) for _ in range(6)] + [failing()]
        groups.append(
            await art.trajectory_group(
                attempts,
                metadata={"number": number, "words": words},
                metrics={"asked": 3},
                logs=["two agents"],
                return_exceptions=True,
            )
        )
    return groups


def look(groups: list[art.TrajectoryGroup]) -> str:
    group = groups[0]
    first = group.trajectories[0]
    histories = first.histories()
    assert all(isinstance(one, ChatCompletionsHistory) for one in histories)
    turns = sorted(len(one.as_chat_completions_history().messages) for one in histories)
    assert len(first.chat_completions_histories(model=first.exchanges.chat_completions[0].model)) == 2
    tokenized = art.tokenize(group, multi_history=True)
    for one in tokenized.trajectories:
        masks = one.first_occurrence_masks(where=TokenFlag.SAMPLED | TokenFlag.EXACT)
        for history, mask in zip(one.histories, masks, strict=True):
            assert len(history.tokens) == len(history.logprobs) == len(history.flags) == len(mask)
            assert any(mask)
    again = first.tokenize(multi_history=True, base_model="art/nano-games")
    exact = sum(TokenFlag.EXACT in flag for one in again.histories for flag in one.flags)
    tensors = first.tensorize(multi_history=True, device="cpu")
    lengths = [len(one.tokens) for one in tokenized.trajectories[0].histories]
    assert [one.tokens.shape[0] for one in tensors.histories] == lengths
    assert first.model_copy(include_models=[first.exchanges.chat_completions[0].model]).histories()
    return f"histories of {turns} messages, {exact} ids exact after rendering, of {sum(lengths)}"


def keep(groups: list[art.TrajectoryGroup], path: Path) -> list[art.TrajectoryGroup]:
    path.write_text(json.dumps(compact_dump(groups)))
    return compact_validate_json(path.read_text())


async def main() -> None:
    backend = LocalBackend(enable_expert_replay=True)
    model = art.TrainableModel(
        name="agents",
        run_name="agents-001",
        project="two-agents",
        base_model="art/nano-games",
        lora_config=art.LoRAConfig(rank=8, alpha=16, dropout=0.0, use_rslora=False),
    )
    await model.register(backend)
    for step in range(await model.get_step(), STEPS):
        groups = await gather(model, step)
        print(f"step {step}: {await asyncio.to_thread(look, groups)}")
        kept = keep(groups, Path(f"groups-{step}.json"))
        assert [one.metadata for one in kept] == [one.metadata for one in groups]
        first, again = (some[0].trajectories[0].histories()[0] for some in (groups, kept))
        assert first.messages == again.messages
        result = await backend.train(
            model, kept, learning_rate=1e-3, loss_fn="cispo", final_training_step=STEPS
        )
        await model.log(groups, split="train", step=result.step, metrics=result.metrics)
    print(f"trained to step {await model.get_step()}")
    await backend.close()


if __name__ == "__main__":
    asyncio.run(main())
