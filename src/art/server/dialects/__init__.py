"""The languages that clients speak to the server; today OpenAI's chat completions."""
