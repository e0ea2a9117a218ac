"""Train mini-swe-agent on a folder of tasks: python coding_agent.py TASKS [STEPS]"""

import sys

import art

COMMAND = "```mswea_bash_command\\n[^`\\n]{1,40}\\n```"  # the form of a reply
AGENT = {"agent": "mini-swe-agent", "agent_config": "small-model", "max_turns": 1, "command_s": 5, "val": 4}
SIZES = {"groups_per_step": 4, "group_size": 8, "max_tokens": 48}
RATE = {"learning_rate": 5e-4, "warmup_steps": 2, "final_share": 0.1}


async def main(tasks: str, steps: str = "12") -> None:
    options = {**AGENT, "request": {"extra_body": {"guided_regex": COMMAND}}}
    report = await art.train_environment(
        f"harbor:{tasks}", "art/smollm2", environment_options=options, steps=int(steps), **SIZES, **RATE
    )
    for row in report.steps:
        if row.reward is not None:  # some rollout had a reward
            print(f"step {row.step:2} {row.reward:5.2f} {'#' * round(40 * row.reward)}")
    print("held-out tasks:", report.comparison.before.judged, "->", report.comparison.after.judged)


if __name__ == "__main__":
    art.run(main(*sys.argv[1:]))
