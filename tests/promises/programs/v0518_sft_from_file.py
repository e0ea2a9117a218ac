"""Supervised training from a file of examples: always say the word that was named last.

python v0518_sft_from_file.py [EPOCHS]
"""

import asyncio
import json
import sys
from itertools import permutations
from pathlib import Path

import art
from art.local import LocalBackend
from art.utils.sft import get_file_row_count, train_sft_from_file

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 10
DATA = Path("data/train.jsonl")
VERBS = ["respond", "just respond", "answer", "just answer"]


def examples() -> list[tuple[str, str]]:
    found = []
    for verb in VERBS:
        for words in permutations(["yes", "no", "maybe"]):
            found.append((f"{verb} with {words[0]}, {words[1]} or {words[2]}", words[2]))
    return found


def write_data() -> None:
    DATA.parent.mkdir(exist_ok=True)
    with DATA.open("w") as file:
        for question, answer in examples():
            messages = [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
            file.write(json.dumps({"messages": messages}) + "\n")


async def correct(model: art.TrainableModel) -> int:
    client = model.openai_client()

    async def ask(question: str) -> str:
        completion = await client.chat.completions.create(
            model=model.get_inference_name(),
            messages=[{"role": "user", "content": question}],
            max_tokens=4,
            temperature=0,
        )
        return completion.choices[0].message.content or ""

    said = await asyncio.gather(*(ask(question) for question, _ in examples()))
    return sum(wanted == text for (_, wanted), text in zip(examples(), said, strict=True))


async def main() -> None:
    write_data()
    print(f"{get_file_row_count(str(DATA))} examples")
    backend = LocalBackend()
    model = art.TrainableModel(name="last-word-001", project="words", base_model="art/nano-games")
    await model.register(backend)
    print(f"before: {await correct(model)} of {len(examples())}")
    await train_sft_from_file(
        model=model,
        file_path=str(DATA),
        epochs=EPOCHS,
        batch_size=4,
        peak_lr=3e-3,
        schedule_type="cosine",
        warmup_ratio=0.1,
        verbose=True,
    )
    print(f"after step {await model.get_step()}: {await correct(model)} of {len(examples())}")
    await backend.close()


if __name__ == "__main__":
    asyncio.run(main())
