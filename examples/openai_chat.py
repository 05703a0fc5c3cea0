#!/usr/bin/env python3
"""Streams one answer with OpenAI's client.
Usage: pip install openai; openai_chat.py [ENDPOINT [PROMPT]]"""

import sys

from openai import OpenAI

endpoint = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
prompt = sys.argv[2] if len(sys.argv) > 2 else "What is a river?"

client = OpenAI(base_url=f"http://{endpoint}/v1", api_key="none")
model = client.models.list().data[0].id
stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": prompt}],
    max_tokens=64,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    else:
        print(f"\n({chunk.usage.prompt_tokens_details.cached_tokens} of"
              f" {chunk.usage.prompt_tokens} prompt tokens were cached)")
