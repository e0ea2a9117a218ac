# %% [markdown]
# # Supervised fine-tuning
#
# Supervised fine-tuning teaches a model the assistant messages of given conversations. Use it to show a
# model the form of your task, and continue with rewards from there.

# %%
from itertools import permutations

import matplotlib.pyplot as plt

import art
from art.utils.sft import create_sft_dataset_iterator

STEPS = 10

# %% [markdown]
# The data may have any of these formats: `messages`, `prompt` and `completion`, ShareGPT's
# `conversations`. A `datasets.Dataset` with such rows works too, and so do `.jsonl`, `.json` and
# `.parquet` files (`train_sft_from_file`). Here, the right answer is the word that is named last.

# %%
ORDERS = [(f"{a}, {b} or {c}", c) for a, b, c in permutations(("yes", "no", "maybe"))]
rows = []
for order, word in ORDERS:
    asked = f"respond with {order}"
    rows.append({"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": word}]})
    rows.append({"prompt": f"answer with {order}", "completion": word})
    talk = [{"from": "human", "value": f"reply with {order}"}, {"from": "gpt", "value": word}]
    rows.append({"conversations": talk})
print(len(rows), "rows, the first three:", *rows[:3], sep="\n")

# %% [markdown]
# Questions in other words measure what the model has learned.


# %%
async def count_right_answers(model: art.Model) -> int:
    right = 0
    for order, word in ORDERS:
        completion = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(),
            messages=[{"role": "user", "content": f"just respond with {order}"}],
            max_tokens=8,
            temperature=0,
        )
        right += completion.choices[0].message.content == word
    return right


model = art.TrainableModel(name="student", project="notebooks", base_model="art/nano-games")
backend = art.LocalBackend()
await model.register(backend)
print(f"before: {await count_right_answers(model)} of {len(ORDERS)} answers are right")

# %% [markdown]
# One call of `train_sft` makes one step. `create_sft_dataset_iterator` shuffles the rows for each epoch
# and plans the learning rates; here one epoch is one step.

# %%
losses = []
chunks = create_sft_dataset_iterator(
    rows, chunk_size=100, epochs=STEPS, batch_size=6, peak_lr=3e-3, show_progress=False
)
for chunk in chunks:
    result = await model.train_sft(chunk.trajectories, chunk.config)
    losses.append(result.metrics["loss/train"])

# %%
plt.figure(figsize=(6, 3))
plt.plot(range(1, len(losses) + 1), losses)
plt.xlabel("epoch")
plt.ylabel("loss")
plt.ylim(bottom=0)
plt.show()

# %%
print(f"after: {await count_right_answers(model)} of {len(ORDERS)} answers are right")
await backend.close()
