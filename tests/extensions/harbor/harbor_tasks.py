"""A task folder of Harbor, made for a test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

TEST = """\
#!/bin/bash
reward=0.25
if [ "$(cat /app/hello.txt 2>/dev/null)" = hello ]; then reward=1; fi
echo $reward > /logs/verifier/reward.txt
"""
FILES: Mapping[str, str] = {
    "task.toml": """\
schema_version = "1.1"
[task]
name = "art/hello"
[verifier]
timeout_sec = 20.0
[agent]
timeout_sec = 20.0
[environment]
build_timeout_sec = 60.0
""",
    "instruction.md": "Write the word hello to the file hello.txt in the current folder.\n",
    "environment/Dockerfile": """\
FROM ubuntu:24.04
WORKDIR /app
ENV GREETING=hello
COPY data.txt .
RUN wc -c < data.txt \\
    > size.txt
""",
    "environment/data.txt": "some",
    "tests/test.sh": TEST,
    "solution/solve.sh": "#!/bin/bash\necho $GREETING > hello.txt\n",
}


def make_task(folder: Path, changes: Mapping[str, str | None] | None = None) -> Path:
    """Writes a task folder. changes: other contents of files; None leaves a file out."""
    for name, text in {**FILES, **(changes or {})}.items():
        if text is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return folder
