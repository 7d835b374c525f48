"""A few pages of what coding agents read and write; the small presets' tokenizer learns its pieces from it."""

# ruff: noqa: E501

CORPUS = r'''
The function returns the number of tokens that were read from the file. If the file does not exist, an error is
raised with the name of the file and the reason. You can run the tests with the following command, and then check
that the output is the same as before. This change makes the server faster when there are many requests, because
the scheduler no longer waits for the slowest one. Please look at the code in the repository and explain what it
does, step by step, before you make any changes. I will start by reading the main module, then I will look for the
place where the value is set. The problem is that the list is modified while it is being iterated over, which means
that some of the elements are skipped. To fix this, we should first make a copy of the list and then remove the
elements that are not needed. Let me check whether the tests pass now. All of the tests pass, so the fix works as
expected. There is one more thing to consider: the same mistake is made in another function in this module.

What would you like me to do next? I would like you to add a new option to the command line, so that a user can
choose the format of the report. The default should be the same as it is today. Thank you, that is exactly what I
had in mind. Could you also write a short description of the option in the documentation? Yes, I have added a
section about it, with an example of how it is used and what the result looks like.

When a request arrives, it is placed at the end of the queue. The engine takes requests from the queue as long as
there is room in the cache, and computes the next token for each of them in one step. A token that has been
computed is sent to the client at once. When the last token of a request has been sent, its blocks are returned to
the pool. If a client closes the connection, the request is cancelled and its blocks are returned as well.

def read_lines(path: str, encoding: str = "utf-8") -> list[str]:
    """Return the lines of a file without their line ends."""
    with open(path, encoding=encoding) as file:
        return [line.rstrip("\n") for line in file]


class Counter:
    """Counts how often each value was seen."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}

    def add(self, value: str, count: int = 1) -> None:
        self.values[value] = self.values.get(value, 0) + count

    def most_common(self, limit: int | None = None) -> list[tuple[str, int]]:
        items = sorted(self.values.items(), key=lambda item: (-item[1], item[0]))
        return items if limit is None else items[:limit]


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        print("usage: count FILE", file=sys.stderr)
        return 2
    counter = Counter()
    for line in read_lines(argv[1]):
        for word in line.split():
            counter.add(word.lower())
    for word, count in counter.most_common(10):
        print(f"{count:6d} {word}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))

import json
import os
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    name: str
    size: int = 16
    values: list[float] = field(default_factory=list)

    def validate(self) -> None:
        if self.size <= 0:
            raise ValueError(f"size must be positive, got {self.size}")


class Attention(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.query = nn.Linear(hidden_size, hidden_size, bias=False)
        self.key = nn.Linear(hidden_size, hidden_size, bias=False)
        self.value = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        query, key, value = self.query(x), self.key(x), self.value(x)
        scores = torch.matmul(query, key.transpose(-1, -2)) / self.head_dim**0.5
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return torch.matmul(torch.softmax(scores, dim=-1), value)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 16, 32, 64, 100, 128, 256, 512, 1024])
def test_round_trip(tmp_path: Path, size: int) -> None:
    path = tmp_path / "data.json"
    data = {"size": size, "items": list(range(size)), "name": "test", "enabled": True, "parent": None}
    path.write_text(json.dumps(data, indent=2))
    assert json.loads(path.read_text()) == data
    with pytest.raises(ValueError, match="must be positive"):
        Config("test", size=0).validate()

async function fetchItems(url, options = {}) {
  const response = await fetch(url, { method: "GET", headers: { "Content-Type": "application/json" }, ...options });
  if (!response.ok) {
    throw new Error(`request failed with status ${response.status}`);
  }
  const body = await response.json();
  return body.items.filter((item) => item.enabled).map((item) => ({ id: item.id, name: item.name }));
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        printf("%d: %s\n", i, argv[i]);
    }
    return 0;
}

$ git status
On branch main
Changes not staged for commit:
  (use "git add <file>..." to update what will be committed)
	modified:   src/server/app.py
	modified:   tests/test_app.py

$ git diff --stat
 src/server/app.py | 12 ++++++------
 tests/test_app.py |  8 ++++++++
 2 files changed, 14 insertions(+), 6 deletions(-)

$ python -m pytest tests -q
........................................................................ [ 62%]
............................................                             [100%]
116 passed in 3.27s

$ ls -la src
total 48
drwxr-xr-x  4 user user 4096 Jan 12 10:31 .
drwxr-xr-x 11 user user 4096 Jan 12 10:29 ..
-rw-r--r--  1 user user 1834 Jan 12 10:31 __init__.py
-rw-r--r--  1 user user 9210 Jan 12 10:31 app.py

Traceback (most recent call last):
  File "/home/user/project/src/server/app.py", line 87, in handle_request
    result = self.engine.submit(request)
  File "/home/user/project/src/server/engine.py", line 142, in submit
    raise ValueError("the request is longer than the context")
ValueError: the request is longer than the context

{"name": "read_file", "description": "Read a file from the workspace", "parameters": {"type": "object", "properties": {"path": {"type": "string", "description": "The path of the file"}, "start": {"type": "integer"}, "end": {"type": "integer"}}, "required": ["path"]}}
{"name": "run_command", "description": "Run a shell command and return its output", "parameters": {"type": "object", "properties": {"command": {"type": "string", "description": "The command to run"}, "timeout": {"type": "number"}}, "required": ["command"]}}
{"name": "search", "description": "Search the workspace for a pattern", "parameters": {"type": "object", "properties": {"pattern": {"type": "string"}, "glob": {"type": "string"}, "limit": {"type": "integer"}}, "required": ["pattern"]}}

<tool_result>The file has been updated.</tool_result>
<tool_result>No matches were found.</tool_result>
Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)
## Tools
You have access to a set of tools to help answer the user's question. You can invoke tools by writing a block
like the following. String and other arguments should be written as they are, while lists and objects should be
written as JSON.
### Available Tool Schemas
invoke name="run_command" parameter name="command" string="true" parameter name="path" string="true"

# Installation

1. Install the package and its dependencies with `pip install -e .` in a virtual environment.
2. Start the server with `python -m server --port 8000 --model ./model` and open the page in a browser.
3. To stop the server, press Ctrl-C; requests that are running are completed first.

| option | default | meaning |
| --- | --- | --- |
| `--host` | `127.0.0.1` | the address the server listens on |
| `--port` | `8000` | the port the server listens on |
| `--log-level` | `info` | one of `debug`, `info`, `warning` and `error` |

- [x] Read the configuration from a file
- [ ] Write the results to a table
- [ ] Compare the results of two runs

SELECT name, count(*) AS requests, avg(latency_ms) AS mean_ms
FROM requests WHERE status = 200 AND started_at >= '2024-01-01' GROUP BY name ORDER BY requests DESC LIMIT 20;

<html><head><title>Report</title></head><body><div class="content"><h1>Results</h1><p>There are no results.</p></div></body></html>

export PATH="$HOME/.local/bin:$PATH"
for name in $(ls *.json); do echo "$name"; grep -c '"error"' "$name" || true; done
curl -s http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' -d '{"messages": [{"role": "user", "content": "Hello"}]}'

0.1 0.25 0.5 0.75 1.0 1.5 2.0 10 20 30 40 50 60 70 80 90 100 200 300 400 500 1000 2000 2023 2024 2025 4096 8192 16384
Hello, world! How are you today? I am fine, thank you. And you? It's a nice day, isn't it? That's right; we'll see.
'''
