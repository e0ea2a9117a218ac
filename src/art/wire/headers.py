"""Names that travel beside an OpenAI request or reply."""

ROLLOUT_HEADER = "x-art-rollout"
"""Request header: the rollout a completion belongs to. Without it conversations are matched by their text."""

SAMPLE_FIELD = "sample_id"
STEP_FIELD = "step"
TOKENS_FIELD = "completion_tokens"
"""Extra fields of each `Choice` of a reply; the tokens only of a choice that is complete."""
