# %% [markdown]
# # A LangGraph agent
#
# The model inside a compiled LangGraph graph is trained; the graph stays as it is. Install with `pip
# install "agent-reinforcement-trainer[local,langgraph]"`. The agent finds a name in an inbox: it
# searches, reads a mail and answers.

# %%
import random

import matplotlib.pyplot as plt
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

import art
from art.langgraph import init_chat_model, wrap_rollout
from art.tasks import mail

STEPS = 15
INBOX = mail.scenario(0, 0).inbox
print(f"{len(INBOX)} mails; the first one: {mail.read(INBOX, INBOX[0].id)}")


# %%
@tool
def search(keyword: str) -> str:
    """List up to five mails whose subject contains every word of the keyword."""
    return mail.search(INBOX, keyword)


@tool
def read(id: str) -> str:
    """Read the mail with this id."""
    return mail.read(INBOX, id)


@tool
def answer(text: str) -> str:
    """Give the answer to the question; this ends the conversation."""
    return text


# %% [markdown]
# `init_chat_model` returns LangChain's `ChatOpenAI`. It asks the model of the rollout in which it is
# called, so one compiled graph serves all rollouts at once.

# %%
chat = init_chat_model(max_tokens=48).bind_tools([search, read, answer])


async def think(state: MessagesState) -> dict:
    return {"messages": [await chat.ainvoke(state["messages"])]}


builder = StateGraph(MessagesState)
builder.add_node("think", think)
builder.add_node("tools", ToolNode([search, read, answer]))
builder.add_edge(START, "think")
builder.add_conditional_edges("think", tools_condition)
builder.add_conditional_edges(
    "tools", lambda state: END if state["messages"][-1].name == "answer" else "think", ["think", END]
)
graph = builder.compile()

# %% [markdown]
# A rollout is one run of the graph. ART records its messages and tool calls; the function returns the
# reward.


# %%
async def play(wanted: mail.Mail) -> art.Trajectory:
    question = f"Who is the {wanted.role} of {wanted.project}?"
    state = await graph.ainvoke({"messages": [("system", mail.SYSTEM_PROMPT), ("user", question)]})
    return art.Trajectory(reward=float(state["messages"][-1].content == wanted.name))


model = art.TrainableModel(name="graph", project="notebooks", base_model="art/nano-tools")
backend = art.LocalBackend()
await model.register(backend)
rollout = wrap_rollout(model, play)

# %%
rewards = []
for step in range(await model.get_step(), STEPS):
    chosen = random.Random(step).sample(INBOX, 8)
    groups = await art.gather_trajectory_groups(
        (art.TrajectoryGroup(rollout(wanted) for _ in range(8)) for wanted in chosen),
        pbar_desc=None,
        max_exceptions=0.1,
    )
    await model.train(groups, config=art.TrainConfig(learning_rate=2e-3))
    given = [trajectory.reward for group in groups for trajectory in group]
    rewards.append(sum(given) / len(given))

# %%
plt.figure(figsize=(6, 3))
plt.plot(range(1, len(rewards) + 1), rewards)
plt.xlabel("training step")
plt.ylabel("mean reward")
plt.ylim(0, 1.05)
plt.show()

# %%
trajectory = await rollout(INBOX[0])
print(mail.show(trajectory.messages()))
await backend.close()
