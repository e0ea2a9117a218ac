"""The APIs of agents beside chat completions: OpenAI's Responses, Anthropic's messages."""
