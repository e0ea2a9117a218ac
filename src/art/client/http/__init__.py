"""The ways to a server: connections, the OpenAI client, a watch over one that is frozen."""
