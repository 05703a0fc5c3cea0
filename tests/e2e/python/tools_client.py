"""OpenAI's and Anthropic's clients, unchanged, call tools of a model whose template shows them: tools_client.py ENDPOINT

The model knows nothing of tools, so only calls that the request requires can be expected of it. Prints one line a check and ends with 0
when all of them hold.
"""

import json
import sys
import typing

import anthropic
import jsonschema
import openai
import pydantic

from checks import run

MODEL = "tiny"
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER = {"type": "object",
           "properties": {"unit": {"enum": ["celsius", "fahrenheit"]}, "city": {"type": "string", "maxLength": 12},
                          "days": {"type": "integer", "minimum": 1, "maximum": 9}},
           "required": ["unit", "city", "days"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather", "parameters": WEATHER}},
         {"type": "function", "function": {"name": "stop"}}]
checks = []


def check(function):
    checks.append(function)
    return function


def ask(client, **more):
    more = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 120, "tools": TOOLS,
            "parallel_tool_calls": False} | more
    return client.chat.completions.create(**more)


def named(name):
    return {"type": "function", "function": {"name": name}}


def valid(call):
    arguments = json.loads(call.function.arguments)
    jsonschema.validate(arguments, WEATHER if call.function.name == "get_weather" else {"maxProperties": 0})
    return arguments


@check
def a_required_call_is_valid(client):
    choice = ask(client, tool_choice="required").choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None, choice
    (call,) = choice.message.tool_calls
    assert call.type == "function" and call.id.startswith("call_") and len(call.id) == 29
    valid(call)


@check
def a_named_tool_is_called(client):
    for name in ("get_weather", "stop"):
        (call,) = ask(client, tool_choice=named(name)).choices[0].message.tool_calls
        assert call.function.name == name
        valid(call)
    assert list(valid(ask(client, tool_choice=named("get_weather")).choices[0].message.tool_calls[0])) == list(WEATHER["properties"])


@check
def only_allowed_tools_are_called(client):
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("stop")]}}
    (call,) = ask(client, tool_choice=choice).choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("stop", "{}")


@check
def seeds_and_choices_call_validly(client):
    answer = ask(client, tool_choice=named("get_weather"), n=4, temperature=1, seed=3)
    ids = {call.id for choice in answer.choices for call in choice.message.tool_calls if valid(call)}
    assert len(ids) == 4


@check
def several_calls_are_valid(client):
    answer = ask(client, tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("get_weather")]}},
                 parallel_tool_calls=True, max_tokens=300, temperature=1, seed=5)
    calls = answer.choices[0].message.tool_calls
    assert calls
    for call in calls if answer.choices[0].finish_reason == "tool_calls" else calls[:-1]:
        valid(call)


@check
def a_stream_has_the_same_call(client):
    whole = ask(client, tool_choice="required").choices[0].message.tool_calls[0]
    deltas, reasons = [], []
    for chunk in ask(client, tool_choice="required", stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            assert not choice.delta.content
            deltas += choice.delta.tool_calls or []
            reasons += [choice.finish_reason] if choice.finish_reason else []
    first, *rest = deltas
    assert (first.index, first.type, first.function.name, first.function.arguments) == (0, "function", whole.function.name, "")
    assert first.id and rest and all(d.id is None and d.function.name is None and d.index == 0 for d in rest)
    assert "".join(d.function.arguments for d in rest) == whole.function.arguments
    assert reasons == ["tool_calls"]


@check
def the_stream_helper_builds_the_call(client):
    with client.chat.completions.stream(model=MODEL, messages=QUESTION, temperature=0, max_tokens=120, tools=TOOLS,
                                        tool_choice=named("get_weather")) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        message = stream.get_final_completion().choices[0].message
    assert len(done) == 1 and message.tool_calls[0].function.arguments == done[0].arguments
    valid(message.tool_calls[0])


@check
def pydantic_tools_are_parsed(client):
    class GetWeather(pydantic.BaseModel):
        city: typing.Literal["Paris", "Rome"]
        days: int = pydantic.Field(ge=1, le=5)

    answer = client.chat.completions.parse(model=MODEL, messages=QUESTION, max_tokens=120, seed=1,
                                           tools=[openai.pydantic_function_tool(GetWeather)],
                                           tool_choice=named("GetWeather"))
    parsed = answer.choices[0].message.tool_calls[0].function.parsed_arguments
    assert isinstance(parsed, GetWeather) and parsed.city in ("Paris", "Rome")


@check
def a_turn_with_results_goes_on(client):
    first = ask(client, tool_choice=named("get_weather")).choices[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "It is sunny."}
    answer = ask(client, messages=QUESTION + [first, result])
    assert answer.choices[0].message.content and answer.choices[0].finish_reason in ("stop", "length")
    again = ask(client, messages=QUESTION + [first.model_dump(exclude_none=True), result])
    assert again.choices[0].message.content == answer.choices[0].message.content
    assert again.usage.prompt_tokens == answer.usage.prompt_tokens


@check
def none_is_text(client):
    choice = ask(client, tool_choice="none").choices[0]
    assert choice.message.content and choice.message.tool_calls is None


@check
def a_schema_beside_tools_is_kept(client):
    schema = {"type": "object", "properties": {"sunny": {"type": "boolean"}}, "required": ["sunny"], "additionalProperties": False}
    message = ask(client, response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}).choices[0].message
    if message.tool_calls:
        valid(message.tool_calls[0])
    else:
        jsonschema.validate(json.loads(message.content), schema)


@check
def what_cannot_be_kept_is_refused_by_name(client):
    schema = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
    for tools, choice, expected in [
            ([tool], "auto", "/properties/tags: has the keyword `uniqueItems`"),
            (TOOLS, named("other"), "tool_choice names `other`"),
            ([{"type": "web_search"}], "auto", "tools[0].type is `web_search`")]:
        try:
            ask(client, tools=tools, tool_choice=choice)
        except openai.BadRequestError as error:
            assert expected in str(error), error
        else:
            raise AssertionError(f"{tools} were taken")


@check
def reasoning_is_apart(client):
    def think(**more):
        return ask(client, tools=[], parallel_tool_calls=openai.NOT_GIVEN, max_tokens=20, **more)

    answer = think(reasoning_effort="high")
    message = answer.choices[0].message
    assert message.reasoning_content and message.reasoning == message.reasoning_content and not message.content, message
    assert answer.usage.completion_tokens_details.reasoning_tokens == answer.usage.completion_tokens
    deltas = [choice.delta for chunk in think(reasoning_effort="high", stream=True) for choice in chunk.choices]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == message.reasoning_content
    assert not any(delta.content for delta in deltas)
    hidden = think(reasoning_effort="high", extra_body={"include_reasoning": False}).choices[0].message
    assert not hidden.content and not hasattr(hidden, "reasoning_content")
    joined = think(reasoning_effort="high", extra_body={"separate_reasoning": False}).choices[0].message
    assert joined.content.strip() == message.reasoning_content
    for off in ({"reasoning_effort": "none"}, {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}):
        assert think(**off).choices[0].message.content


MESSAGE_TOOLS = [{"name": "get_weather", "description": "The weather", "input_schema": WEATHER},
                 {"name": "stop", "input_schema": {"type": "object", "properties": {}}}]
message_checks = []


def check_messages(function):
    message_checks.append(function)
    return function


def say(client, **more):
    more = {"model": MODEL, "messages": QUESTION, "max_tokens": 120, "tools": MESSAGE_TOOLS,
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "extra_body": {"temperature": 0}} | more
    return client.messages.create(**more)


def valid_use(block):
    assert block.type == "tool_use" and block.id.startswith("toolu_"), block
    jsonschema.validate(block.input, WEATHER if block.name == "get_weather" else {"maxProperties": 0})
    return block.input


@check_messages
def any_tool_is_used(client):
    answer = say(client)
    assert answer.stop_reason == "tool_use"
    (block,) = answer.content
    valid_use(block)


@check_messages
def a_named_tool_is_used(client):
    for name in ("get_weather", "stop"):
        (block,) = say(client, tool_choice={"type": "tool", "name": name}).content
        assert block.name == name
        valid_use(block)


@check_messages
def a_stream_of_messages_has_the_same_use(client):
    (whole,) = say(client).content
    with client.messages.stream(model=MODEL, messages=QUESTION, max_tokens=120, tools=MESSAGE_TOOLS,
                                tool_choice={"type": "any", "disable_parallel_tool_use": True},
                                extra_body={"temperature": 0}) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        message = stream.get_final_message()
    (block,) = message.content
    assert pieces and json.loads("".join(pieces)) == block.input == whole.input and block.name == whole.name
    assert message.stop_reason == "tool_use"


@check_messages
def a_turn_with_tool_results_goes_on(client):
    first = say(client, tool_choice={"type": "tool", "name": "get_weather"})
    result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "It is sunny."}
    turn = QUESTION + [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    answer = say(client, messages=turn, tool_choice={"type": "auto"})
    assert answer.content[0].type == "text" and answer.stop_reason in ("end_turn", "max_tokens")
    counted = client.messages.count_tokens(model=MODEL, messages=turn, tools=MESSAGE_TOOLS).input_tokens
    usage = answer.usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


@check_messages
def tools_are_pinned(client):
    tools = MESSAGE_TOOLS[:1] + [MESSAGE_TOOLS[1] | {"cache_control": {"type": "ephemeral"}}]
    usage = [say(client, tools=tools, messages=[{"role": "user", "content": text}]).usage for text in ("One?", "Two?")]
    assert usage[1].cache_read_input_tokens > 0, usage


@check_messages
def thinking_is_a_block(client):
    answer = say(client, tools=[], tool_choice=anthropic.NOT_GIVEN, max_tokens=20, thinking={"type": "adaptive"})
    assert [block.type for block in answer.content] == ["thinking"] and answer.content[0].thinking, answer
    answer = say(client, tools=[], tool_choice=anthropic.NOT_GIVEN, max_tokens=20, thinking={"type": "disabled"})
    assert [block.type for block in answer.content] == ["text"]


def main():
    client = openai.OpenAI(base_url=f"http://{sys.argv[1]}/v1", api_key="none", max_retries=0)
    messages = anthropic.Anthropic(base_url=f"http://{sys.argv[1]}", api_key="none", max_retries=0)
    of = {check: client for check in checks} | {check: messages for check in message_checks}
    return run([bound(check, of[check]) for check in of], None)


def bound(function, client):
    def call(_):
        function(client)
    call.__name__ = function.__name__
    return call


if __name__ == "__main__":
    sys.exit(main())
