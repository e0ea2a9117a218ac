"""Examples of several turns of which the last one is learned, in a run with a name of its own.

python v0521_sft_last_turn.py
"""

import asyncio

import art
from art.local import LocalBackend


def conversation(last: str) -> art.Trajectory:
    return art.Trajectory(
        messages_and_choices=[
            {"role": "user", "content": "answer with yes, no or maybe"},
            {"role": "assistant", "content": "no"},
            {"role": "user", "content": "just answer with maybe, no or yes"},
            {"role": "assistant", "content": last},
        ],
        metadata={"source": {"file": "talks.jsonl", "line": 3}},
    )


async def main() -> None:
    backend = LocalBackend()
    model = art.TrainableModel(
        name="taught",
        run_name="taught-001",
        project="sft",
        base_model="art/nano-games",
        lora_config={"rank": 8},
    )
    await model.register(backend)
    config = art.TrainSFTConfig(learning_rate=2e-3, batch_size=4, assistant_turns="last")
    first = await model.train_sft([conversation("maybe") for _ in range(24)], config)
    second = await model.train_sft([conversation("maybe") for _ in range(24)], config, log_metrics=False)
    print(f"step {second.step}, loss {first.metrics['loss/train']:.3f} -> {second.metrics['loss/train']:.3f}")
    await backend.close()


if __name__ == "__main__":
    asyncio.run(main())
