#!/usr/bin/env bash
# Streams one answer with curl. Usage: curl_chat.sh [ENDPOINT [PROMPT]]
set -euo pipefail
curl --fail-with-body -sSN "http://${1:-127.0.0.1:8000}/v1/chat/completions" \
  -H 'Content-Type: application/json' \
  -d '{"messages": [{"role": "user", "content": "'"${2:-What is a river?}"'"}], "max_tokens": 64, "stream": true}'
