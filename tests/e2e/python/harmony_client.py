"""OpenAI's client, unchanged, and a model that writes gpt-oss's notation of channels: harmony_client.py ENDPOINT MODEL

The model knows nothing of the notation, so its grammar leads it. A bias ends its messages soon. What it writes is sampled, so checks that
want answers of several kinds ask with one seed after another until each kind was seen. Prints one line a check and ends with 0 when all of
them hold.
"""

import collections
import json
import pathlib
import sys

import jsonschema
import openai

from checks import run

MARKERS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>")
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER = {"type": "object",
           "properties": {"unit": {"enum": ["celsius", "fahrenheit"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
           "required": ["unit", "days"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather", "parameters": WEATHER}},
         {"type": "function", "function": {"name": "stop"}}]
SEEDS = range(24)
VOCABULARY = json.loads((pathlib.Path(sys.argv[2]) / "tokenizer.json").read_text())["model"]["vocab"]


def bias_to(biases):
    """Of a special token, and for a word of all tokens with which it may begin."""
    bias = {}
    for word, value in biases.items():
        beginnings = [word] if word.startswith("<|") else [word[:length] for length in range(1, 5)]
        bias |= {str(VOCABULARY[begin]): value for begin in beginnings if begin in VOCABULARY}
    return bias


BIAS = bias_to({"<|end|>": 6, "commentary": 4})  # calls are more likely than further reasoning
MOST_SEEDS = 400
checks = []


def check(function):
    checks.append(function)
    return function


def ask(client, **more):
    more = {"model": "tiny", "messages": QUESTION, "temperature": 1, "max_tokens": 400, "tools": TOOLS,
            "logit_bias": BIAS} | more
    return client.chat.completions.create(**more)


Answer = collections.namedtuple("Answer", ["reasoning", "content", "call", "reason"])


def whole(client, **more):
    choice = ask(client, **more).choices[0]
    message = choice.message
    call = None
    if message.tool_calls:
        (only,) = message.tool_calls  # a message has one call
        call = (only.function.name, only.function.arguments)
    return Answer(getattr(message, "reasoning_content", None) or "", message.content or "", call, choice.finish_reason)


def streamed(client, **more):
    reasoning, content, name, arguments, reason = "", "", None, "", None
    for chunk in ask(client, stream=True, **more):
        for choice in chunk.choices:
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            content += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                assert call.index == 0
                name = call.function.name or name
                arguments += call.function.arguments or ""
            reason = choice.finish_reason or reason
    return Answer(reasoning, content, name and (name, arguments), reason)


def check_answer(answer):
    assert "<|end|>" not in answer.reasoning, answer  # of the others, a model of another family may write any
    for text in (answer.content, answer.call[1] if answer.call else ""):
        assert not any(marker in text for marker in MARKERS), answer
    if answer.call and answer.reason == "tool_calls":
        jsonschema.validate(json.loads(answer.call[1]), WEATHER if answer.call[0] == "get_weather" else {"maxProperties": 0})
    return answer


def answers_with(kinds, client, **more):
    """Answers of further seeds, until there is one of each kind."""
    answers, missing = [], dict(kinds)
    for seed in range(MOST_SEEDS):
        answers.append(check_answer(whole(client, seed=seed, **more)))
        missing = {name: holds for name, holds in missing.items() if not holds(answers[-1])}
        if not missing:
            return answers
    raise AssertionError(f"none of {MOST_SEEDS} answers is {', '.join(missing)}")


@check
def required_calls_are_valid_behind_reasoning(client):
    kinds = {"a call behind reasoning": lambda answer: answer.reason == "tool_calls" and answer.reasoning,
             "a call at once": lambda answer: answer.reason == "tool_calls" and not answer.reasoning}
    answers = answers_with(kinds, client, tool_choice="required", logit_bias=bias_to({"<|end|>": 6, "commentary": 1}))
    assert all(not answer.content for answer in answers), answers


@check
def a_model_chooses_between_calls_and_content(client):
    kinds = {"a call": lambda answer: answer.reason == "tool_calls",
             "content alone": lambda answer: answer.content and not answer.call,
             "reasoning and an end": lambda answer: answer.reasoning and answer.reason == "stop"}
    answers_with(kinds, client, logit_bias=bias_to({"<|return|>": 9, "<|end|>": 6, "final": 5}))


@check
def streams_have_the_same_answers(client):
    for choice in ("auto", "required"):
        for seed in SEEDS:
            both = [answer(client, tool_choice=choice, seed=seed) for answer in (whole, streamed)]
            assert both[0] == both[1], (choice, seed, both)


@check
def a_schema_is_kept_behind_reasoning(client):
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER}}
    bias = bias_to({"<|end|>": 6, "final": 5})
    kinds = {"whole, behind reasoning": lambda answer: answer.reason == "stop" and answer.reasoning}
    for answer in answers_with(kinds, client, tools=openai.NOT_GIVEN, response_format=form, logit_bias=bias):
        if answer.reason == "stop":
            jsonschema.validate(json.loads(answer.content), WEATHER)


@check
def a_turn_with_a_result_goes_on(client):
    for seed in range(MOST_SEEDS):
        message = ask(client, tool_choice="required", seed=seed).choices[0]
        if message.finish_reason == "tool_calls":
            break
    first = message.message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "It is sunny."}
    kinds = {"something": lambda answer: answer.reasoning or answer.content or answer.call}  # most answers; some end at once
    answers_with(kinds, client, messages=QUESTION + [first.model_dump(exclude_none=True), result])


@check
def several_calls_in_a_message_are_refused(client):
    calls = [{"id": f"call_{i}", "type": "function", "function": {"name": "stop", "arguments": "{}"}} for i in range(2)]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "done"} for call in calls]
    try:
        ask(client, messages=QUESTION + [{"role": "assistant", "tool_calls": calls}] + results)
    except openai.BadRequestError as error:
        assert "has 2 calls; the chat template of" in str(error), error
    else:
        raise AssertionError("two calls in a message were taken")


if __name__ == "__main__":
    sys.exit(run(checks, openai.OpenAI(base_url=f"http://{sys.argv[1]}/v1", api_key="none", max_retries=0)))
