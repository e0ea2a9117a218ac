# %% [markdown]
# # RULER: rewards from a judge
#
# Describe in a sentence what a good rollout is. A judge model compares the rollouts of a group, and its
# scores are the rewards. You write no reward function.
#
# This notebook runs offline: `art.testing` starts a judge on this machine that knows the right scores.
# In your own program, leave out `base_url` and `api_key`, and set `OPENAI_API_KEY`.

# %%
from itertools import permutations

import matplotlib.pyplot as plt

import art
from art.rewards import Ruler
from art.testing import LlmServer, TruthfulJudge

STEPS = 15


# %%
def quality(messages: list) -> float:
    """What the offline judge goes by: the answers from best to worst are maybe, no, yes."""
    return {"maybe": 0.9, "no": 0.5, "yes": 0.2}.get(messages[-1]["content"].strip().lower(), 0.0)


judge = LlmServer(TruthfulJudge(quality))
await judge.__aenter__()
reward = Ruler(
    "openai/o3",
    rubric="- An answer that admits that one cannot know is better than a definite one.",
    base_url=judge.base_url,
    api_key=judge.key,
)

# %%
QUESTIONS = [f"respond with {a}, {b} or {c}" for a, b, c in permutations(("yes", "no", "maybe"))]


async def rollout(model: art.Model, question: str) -> art.Trajectory:
    asked = {"role": "user", "content": question}
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=[asked], max_tokens=8
    )
    return art.Trajectory(messages_and_choices=[asked, completion.choices[0]])


model = art.TrainableModel(name="judged", project="notebooks", base_model="art/nano-games")
backend = art.LocalBackend()
await model.register(backend)

# %% [markdown]
# `after_each` scores each group as soon as it is complete, while others are still sampled. Here is one
# group with the judge's scores:

# %%
group = await art.TrajectoryGroup(rollout(model, QUESTIONS[0]) for _ in range(6))
scored = await reward.score_group(group)
for trajectory in scored:
    print(trajectory.messages()[-1]["content"], trajectory.reward, *trajectory.logs)

# %%
scores = []
for _ in range(await model.get_step(), STEPS):
    groups = await art.gather_trajectory_groups(
        (art.TrajectoryGroup(rollout(model, question) for _ in range(8)) for question in QUESTIONS),
        after_each=reward.score_group,
        pbar_desc=None,
    )
    await model.train(groups, config=art.TrainConfig(learning_rate=5e-4))
    given = [trajectory.reward for group in groups for trajectory in group]
    scores.append(sum(given) / len(given))

# %%
plt.figure(figsize=(6, 3))
plt.plot(range(1, len(scores) + 1), scores)
plt.xlabel("training step")
plt.ylabel("mean score of the judge")
plt.ylim(0, 1)
plt.show()

# %% [markdown]
# What the judge costs: one request per group. Answers that the judge gave before come from a cache.

# %%
print(f"requests to the judge: {reward.channel.totals.calls}")
await judge.__aexit__(None, None, None)
await backend.close()
