"""The official Anthropic client, unchanged, against a router and its workers: anthropic_client.py ENDPOINT

Prints one line a check and ends with 0 when all of them hold.
"""

import json
import sys

import anthropic

from checks import run

MODEL = "tiny"
SYSTEM = "The river runs down from the hill to the sea, and the old trees stand beside it. " * 8
MESSAGES = [{"role": "user", "content": "What is a river?"}]
checks = []


def check(function):
    checks.append(function)
    return function


GREEDY = {"temperature": 0}  # which this version of the client has no argument for


def ask(client, **more):
    return client.messages.create(**{"model": MODEL, "max_tokens": 16, "messages": MESSAGES, "extra_body": GREEDY} | more)


def refused(error, **more):
    def attempt(client):
        try:
            ask(client, **more)
        except error as caught:
            return caught
        raise AssertionError(f"{more} was taken")
    return attempt


@check
def a_schema(client):
    schema = {"type": "object", "properties": {"wet": {"type": "boolean"}}, "required": ["wet"], "additionalProperties": False}
    config = {"format": {"type": "json_schema", "schema": schema}}
    answer = ask(client, max_tokens=200, output_config=config)
    assert answer.stop_reason == "end_turn" and json.loads(answer.content[0].text)["wet"] in (True, False)
    error = refused(anthropic.BadRequestError, output_config={"format": {"type": "json_schema", "schema": {"not": {}}}})(client)
    assert "output_config.format.schema" in str(error) and "`not`" in str(error), error


@check
def message(client):
    answer = ask(client)
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", MODEL)
    assert len(answer.content) == 1 and answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens") and answer.stop_sequence is None
    assert 1 <= answer.usage.output_tokens <= 16
    assert answer._request_id.startswith("req-")


@check
def stream_is_the_same_text(client):
    whole = ask(client, max_tokens=40)
    with client.messages.stream(model=MODEL, max_tokens=40, messages=MESSAGES, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == whole.content[0].text == last.content[0].text
    assert (last.stop_reason, last.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


@check
def counted_tokens_are_those_of_the_answer(client):
    for more in ({}, {"system": SYSTEM}, {"system": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]}):
        counted = client.messages.count_tokens(model=MODEL, messages=MESSAGES, **more).input_tokens
        usage = ask(client, **more).usage
        assert counted == usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens, (more, counted, usage)


@check
def a_breakpoint_is_written_then_read(client):
    system = [{"type": "text", "text": "Only here. " + SYSTEM, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    first, second = (ask(client, system=system).usage for _ in range(2))
    assert first.cache_creation_input_tokens > 0, first
    assert first.cache_creation.ephemeral_1h_input_tokens == first.cache_creation_input_tokens, first
    assert second.cache_read_input_tokens >= first.cache_creation_input_tokens, (first, second)
    with client.messages.stream(model=MODEL, max_tokens=4, messages=MESSAGES, system=system) as stream:
        start = next(event for event in stream if event.type == "message_start")
        stream.until_done()
    assert start.message.usage.cache_read_input_tokens == second.cache_read_input_tokens


@check
def conversation(client):
    turns = MESSAGES + [{"role": "assistant", "content": [{"type": "text", "text": "Water."}]},
                        {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "text", "text": " a lake?"}]}]
    joined = turns[:2] + [{"role": "user", "content": "And a lake?"}]
    assert ask(client, messages=turns).content[0].text == ask(client, messages=joined).content[0].text


@check
def stop_sequence(client):
    text = ask(client, max_tokens=40).content[0].text
    word = text.split()[2]
    answer = ask(client, max_tokens=40, stop_sequences=[word])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", word)
    assert answer.content[0].text == text[:text.index(word)]


@check
def errors(client):
    tools = [{"name": "f", "description": "", "input_schema": {"type": "object"}}]
    assert "tools are not supported by tiny: the chat template" in str(refused(anthropic.BadRequestError, tools=tools)(client))
    assert "temperature" in str(refused(anthropic.BadRequestError, extra_body={"temperature": 7})(client))
    assert "stop_sequences[0]" in str(refused(anthropic.BadRequestError, stop_sequences=[""])(client))
    assert "available: tiny" in str(refused(anthropic.NotFoundError, model="other")(client))
    long = [{"role": "user", "content": "river " * 5000}]
    assert "tokens" in str(refused(anthropic.BadRequestError, messages=long)(client))


def main():
    return run(checks, anthropic.Anthropic(base_url=f"http://{sys.argv[1]}", api_key="none", max_retries=2))


if __name__ == "__main__":
    sys.exit(main())
