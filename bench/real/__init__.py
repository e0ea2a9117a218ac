"""Speed at real size: SmolLM2-135M on the CPU, beside what a user would take instead and its limits."""
