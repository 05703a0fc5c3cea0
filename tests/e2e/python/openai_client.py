"""The official OpenAI client, unchanged, against a router and its workers: openai_client.py ENDPOINT

Prints one line a check and ends with 0 when all of them hold.
"""

import asyncio
import enum
import json
import re
import sys
import threading
import time
import typing

import httpx2  # what this version of the client is built on
import openai
import pydantic

from checks import run

PROMPT = [{"role": "user", "content": "What is a river?"}]
MODEL = "tiny"
checks = []


def check(function):
    checks.append(function)
    return function


def ask(client, **more):
    more = {"model": MODEL, "messages": PROMPT, "seed": 7, "max_tokens": 16} | more
    return client.chat.completions.create(**more)


def text_of(stream):
    texts, reasons = {}, {}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
    return texts, reasons


@check
def chat(client):
    answer = ask(client)
    choice = answer.choices[0]
    assert answer.object == "chat.completion" and answer.model == MODEL
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens in range(1, 17)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0


@check
def stream_is_the_same_text(client):
    whole = ask(client, max_tokens=40).choices[0]
    texts, reasons = text_of(ask(client, max_tokens=40, stream=True))
    assert texts == {0: whole.message.content}, (texts, whole)
    assert reasons == {0: whole.finish_reason}


@check
def stream_with_usage(client):
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0
    assert len({chunk.id for chunk in chunks}) == 1


@check
def several_choices(client):
    whole = ask(client, n=3, temperature=1.0)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    texts, _ = text_of(ask(client, n=3, temperature=1.0, stream=True))
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert len(set(texts.values())) > 1


@check
def logprobs(client):
    answer = ask(client, logprobs=True, top_logprobs=3, temperature=0)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for token in content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token, "greedy takes the likeliest"
    joined = b"".join(bytes(token.bytes) for token in content).decode()
    assert joined.startswith(answer.choices[0].message.content)


@check
def stop_strings(client):
    free = ask(client, max_tokens=40, temperature=0).choices[0].message.content
    stop = free[len(free) // 2 : len(free) // 2 + 3]
    answer = ask(client, max_tokens=40, temperature=0, stop=[stop]).choices[0]
    assert answer.message.content == free[: free.index(stop)]
    assert answer.finish_reason == "stop"


@check
def an_echoed_prompt_has_the_logprobs_of_its_generation(client):
    text = "A river is"
    given = client.completions.create(model=MODEL, prompt=text, max_tokens=40, temperature=0, logprobs=2, echo=True,
                                      extra_body={"return_token_ids": True}).choices[0]
    ids = client.post("/tokenize", body={"prompt": text}, cast_to=object)["tokens"] + given.token_ids
    scored = client.completions.create(model=MODEL, prompt=ids, max_tokens=1, temperature=0, logprobs=2, echo=True).choices[0]
    assert given.text.startswith(text) and scored.text.startswith(given.text), (given.text, scored.text)
    count = len(given.logprobs.tokens)
    assert count == len(ids) and len(scored.logprobs.tokens) == count + 1
    for part in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert getattr(scored.logprobs, part)[:count] == getattr(given.logprobs, part), part
    assert scored.logprobs.token_logprobs[0] is None and scored.logprobs.top_logprobs[0] is None
    assert all(logprob <= 0 for logprob in scored.logprobs.token_logprobs[1:])
    stream = client.completions.create(model=MODEL, prompt=ids, max_tokens=1, temperature=0, logprobs=2, echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == scored.text


@check
def prompt_logprobs_are_those_of_an_echo(client):
    ids = client.post("/tokenize", body={"prompt": "A river is wide"}, cast_to=object)["tokens"]
    echo = client.completions.create(model=MODEL, prompt=ids, max_tokens=0, temperature=0, logprobs=2, echo=True).choices[0]
    assert echo.finish_reason == "length" and len(echo.logprobs.token_logprobs) == len(ids)
    asked = {"extra_body": {"prompt_logprobs": 2}}
    answer = client.completions.create(model=MODEL, prompt=ids, max_tokens=3, temperature=0, n=2, **asked)
    assert [len(choice.prompt_logprobs) for choice in answer.choices] == [len(ids)] * 2
    given = answer.choices[0].prompt_logprobs
    assert given[0] is None
    for token, entry, logprob in list(zip(ids, given, echo.logprobs.token_logprobs))[1:]:
        own = entry[str(token)]
        assert own["logprob"] == logprob and len(entry) in (2, 3)
        assert sorted(one["rank"] for one in entry.values()) == sorted({1, 2, own["rank"]})
        assert all(one["logprob"] >= logprob for one in entry.values() if one["rank"] < own["rank"])
    assert "".join(entry[str(token)]["decoded_token"] for token, entry in list(zip(ids, given))[1:]) in "A river is wide"
    chat = ask(client, max_tokens=2, temperature=0, **asked)
    assert chat.prompt_logprobs[0] is None and len(chat.prompt_logprobs) == chat.usage.prompt_tokens


@check
def the_best_of_several(client):
    arguments = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 12, "seed": 5, "logprobs": 0}
    all_of_them = client.completions.create(**arguments, n=6).choices
    best = client.completions.create(**arguments, best_of=6, n=2)

    def mean(choice):
        return sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)

    ordered = sorted(all_of_them, key=mean, reverse=True)
    assert [choice.text for choice in best.choices] == [choice.text for choice in ordered[:2]]
    assert best.usage.completion_tokens == sum(len(choice.logprobs.tokens) for choice in all_of_them)


@check
def a_beam_search_finds_a_better_answer(client):
    arguments = {"model": MODEL, "prompt": "The old man", "max_tokens": 16, "logprobs": 0, "temperature": 0}
    greedy = client.completions.create(**arguments).choices[0]
    found = client.completions.create(**arguments, n=2, best_of=4, extra_body={"use_beam_search": True, "length_penalty": 0})

    def total(choice):
        return sum(choice.logprobs.token_logprobs)

    assert total(found.choices[0]) >= total(found.choices[1]) and found.choices[0].text != found.choices[1].text
    assert total(found.choices[0]) >= total(greedy)
    try:
        client.completions.create(**arguments, best_of=9, extra_body={"use_beam_search": True})
    except openai.BadRequestError as error:
        assert error.param == "best_of" and "[n, 8]" in error.message, error
    else:
        raise AssertionError("nine beams were not refused")


@check
def completions_and_token_ids(client):
    text = client.completions.create(
        model=MODEL, prompt="Once upon a time", max_tokens=8, seed=1, logprobs=2, extra_body={"ignore_eos": True}
    )
    assert text.object == "text_completion" and len(text.choices[0].logprobs.tokens) == 8
    several = client.completions.create(model=MODEL, prompt=["One", "Two"], max_tokens=4, n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    ids = client.post("/tokenize", body={"prompt": "Once upon a time"}, cast_to=object)["tokens"]
    again = client.completions.create(model=MODEL, prompt=ids, max_tokens=8, seed=1, extra_body={"ignore_eos": True})
    assert again.choices[0].text == text.choices[0].text
    back = client.post("/detokenize", body={"tokens": ids}, cast_to=object)["prompt"]
    assert back.endswith("Once upon a time"), back


@check
def models(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


@check
def errors_are_the_client_s_own(client):
    for arguments, kind, param in [
        ({"temperature": 3}, openai.BadRequestError, "temperature"),
        ({"model": "other"}, openai.NotFoundError, "model"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"extra_body": {"kv_transfer_params": {"a": 1}}}, openai.BadRequestError,
         "kv_transfer_params"),
    ]:
        try:
            ask(client, **arguments)
        except kind as error:
            assert error.param == param, (arguments, error.param)
            assert error.response.headers["x-should-retry"] == "false"
        else:
            raise AssertionError(f"{arguments} was not refused")


@check
def a_timeout_ends_the_request(client):
    hurried = client.with_options(timeout=0.05, max_retries=0)
    try:
        ask(hurried, max_tokens=400, n=8, extra_body={"ignore_eos": True})
    except openai.APITimeoutError:
        pass
    else:
        raise AssertionError("it did not time out")
    ask(client)  # and the server goes on


@check
def a_closed_stream_ends_the_request(client):
    stream = ask(client, max_tokens=400, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    ask(client)


@check
def cancelled_tasks(client):
    async def run():
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key="none") as asynchronous:
            task = asyncio.create_task(
                ask(asynchronous, max_tokens=400, n=8, extra_body={"ignore_eos": True}))
            await asyncio.sleep(0.1)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass
            answers = await asyncio.gather(*(ask(asynchronous) for _ in range(16)))
            assert len({answer.choices[0].message.content for answer in answers}) == 1

    asyncio.run(run())


class Flaky(httpx2.HTTPTransport):
    """Fails the first two requests as a router does that is full."""

    seen = 0

    def handle_request(self, request):
        Flaky.seen += 1
        if Flaky.seen <= 2:
            headers = {"retry-after-ms": "20", "x-should-retry": "true"}
            body = {"error": {"message": "full", "type": "unavailable_error", "code": "overloaded"}}
            return httpx2.Response(503, headers=headers, json=body)
        return super().handle_request(request)


@check
def retries(client):
    http = httpx2.Client(transport=Flaky())
    patient = openai.OpenAI(base_url=client.base_url, api_key="none", http_client=http)
    begin = time.monotonic()
    assert ask(patient).choices and Flaky.seen == 3
    assert time.monotonic() - begin < 30, "retry-after-ms is what it waits for"


@check
def many_at_once(client):
    expected = ask(client, temperature=0).choices[0].message.content
    answers = []
    def one():
        answers.append(text_of(ask(client, temperature=0, stream=True))[0][0])
    threads = [threading.Thread(target=one) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [expected] * 24


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Part(pydantic.BaseModel):
    colour: Colour
    share: int = pydantic.Field(ge=0, le=100)


class Thing(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    known: bool
    parts: list[Part] = pydantic.Field(max_length=2)
    nearest: typing.Literal["river", "tree"] | None


@check
def parse_gives_a_model(client):
    for seed in range(6):
        answer = client.chat.completions.parse(model=MODEL, messages=PROMPT, seed=seed, max_tokens=1200, response_format=Thing)
        assert answer.choices[0].finish_reason == "stop"
        assert isinstance(answer.choices[0].message.parsed, Thing) and answer.choices[0].message.refusal is None
    with client.chat.completions.stream(model=MODEL, messages=PROMPT, seed=1, max_tokens=1200, response_format=Thing) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Thing)


@check
def an_answer_that_is_cut_is_no_model(client):
    try:
        client.chat.completions.parse(model=MODEL, messages=PROMPT, max_tokens=3, response_format=Thing)
    except openai.LengthFinishReasonError:
        return
    raise AssertionError("three tokens are no Thing")


@check
def constraints_of_every_dialect(client):
    def text(**more):
        choice = ask(client, **{"max_tokens": 400} | more).choices[0]
        assert choice.finish_reason == "stop", choice
        return choice.message.content

    for seed in range(2, 26):  # some objects have no end for long: which ones depends on the machine
        free = ask(client, response_format={"type": "json_object"}, seed=seed, max_tokens=2000).choices[0]
        if free.finish_reason == "stop":
            break
    assert free.finish_reason == "stop" and isinstance(json.loads(free.message.content), dict), free
    assert text(extra_body={"guided_choice": ["yes", "no"]}) in ("yes", "no")
    assert text(extra_body={"structured_outputs": {"choice": ["left", "right"]}}) in ("left", "right")
    assert re.fullmatch(r"[A-Z]{3}-\d{2,4}", text(extra_body={"regex": r"[A-Z]{3}-\d{2,4}"}))
    assert re.fullmatch(r"\d(\+\d){2}", text(extra_body={"ebnf": 'root ::= [0-9] ("+" [0-9]){2}'}))
    schema = {"type": "array", "items": {"type": "integer", "minimum": 5, "maximum": 7}, "minItems": 2, "maxItems": 2}
    values = json.loads(text(extra_body={"guided_json": schema, "disable_any_whitespace": True}))
    assert len(values) == 2 and set(values) <= {5, 6, 7}


@check
def choices_and_log_probabilities_of_a_schema(client):
    schema = {"type": "json_schema", "json_schema": {"name": "size", "schema": {"enum": ["small", "middle", "large"]}}}
    answer = ask(client, n=4, max_tokens=20, response_format=schema, logprobs=True, top_logprobs=2)
    for choice in answer.choices:
        assert json.loads(choice.message.content) in ("small", "middle", "large"), choice
        assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in choice.logprobs.content)


@check
def a_schema_that_would_not_be_enforced_is_refused(client):
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    try:
        ask(client, response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}})
    except openai.BadRequestError as error:
        assert error.param == "response_format.json_schema.schema", error.param
        assert "/properties/a: has the keyword `uniqueItems`" in error.message, error.message
        return
    raise AssertionError("it was taken")


@check
def a_grammar_without_an_answer_is_refused(client):
    try:
        ask(client, extra_body={"ebnf": 'root ::= root "a"'})
    except openai.BadRequestError as error:
        assert error.param == "ebnf" and "no answer satisfies" in error.message, error.message
        return
    raise AssertionError("it was taken")


def main():
    client = openai.OpenAI(base_url=f"http://{sys.argv[1]}/v1", api_key="none", max_retries=2)
    # The client's own paths start with /v1; /tokenize is there as well.
    return run(checks, client)


if __name__ == "__main__":
    sys.exit(main())
