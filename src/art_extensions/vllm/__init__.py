"""vLLM as an engine: its server is started or attached to, and spoken to through its stock HTTP routes."""
