"""OpenAI's client, unchanged, over the Responses API, with a model whose template shows tools and reasoning: responses_client.py ENDPOINT

Chat completions over the same prompt are the oracle. Prints one line a check and ends with 0 when all of them hold.
"""

import json
import sys
import typing

import jsonschema
import openai
import pydantic

from checks import run

MODEL = "tiny"
QUESTION = "What is the weather in Paris?"
WEATHER = {"type": "object",
           "properties": {"unit": {"enum": ["celsius", "fahrenheit"]}, "city": {"type": "string", "maxLength": 12},
                          "days": {"type": "integer", "minimum": 1, "maximum": 9}},
           "required": ["unit", "city", "days"], "additionalProperties": False}
TOOLS = [{"type": "function", "name": "get_weather", "description": "The weather", "parameters": WEATHER, "strict": True},
         {"type": "function", "name": "stop", "parameters": None, "strict": None}]
NAMED = {"type": "function", "name": "get_weather"}
checks = []


def check(function):
    checks.append(function)
    return function


def ask(client, **more):
    more = {"model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 120} | more
    return client.responses.create(**more)


def chat(client, messages, **more):
    more = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 120} | more
    return client.chat.completions.create(**more)


def user(text):
    return {"role": "user", "content": text}


def refused(client, param, **more):
    try:
        ask(client, **more)
    except openai.BadRequestError as error:
        assert error.param == param, (more, error.param)
        return error.message
    raise AssertionError(f"{more} was not refused")


@check
def the_answer_is_that_of_a_chat(client):
    answer = ask(client, instructions="Be brief.", metadata={"a": "b"}, store=True, user="u")
    oracle = chat(client, [{"role": "system", "content": "Be brief."}, user(QUESTION)])
    assert answer.output_text == oracle.choices[0].message.content
    assert answer.id.startswith("resp_") and answer.object == "response" and answer.model == MODEL
    (message,) = answer.output
    assert message.type == "message" and message.role == "assistant" and message.id.startswith("msg_")
    assert message.content[0].annotations == []
    cut = oracle.choices[0].finish_reason == "length"
    assert answer.status == message.status == ("incomplete" if cut else "completed")
    assert (answer.incomplete_details.reason == "max_output_tokens") if cut else answer.incomplete_details is None
    assert answer.usage.input_tokens == oracle.usage.prompt_tokens
    assert answer.usage.output_tokens == oracle.usage.completion_tokens
    assert answer.usage.total_tokens == oracle.usage.total_tokens
    assert answer.usage.input_tokens_details.cached_tokens >= 0
    assert answer.usage.output_tokens_details.reasoning_tokens == 0
    assert answer.error is None and answer.metadata == {"a": "b"} and answer.instructions == "Be brief."
    assert not answer.model_extra["store"], "nothing is stored"


@check
def a_conversation_is_that_of_a_chat(client):
    first = ask(client)
    items = [user(QUESTION), *first.output, user("And tomorrow?")]
    answer = ask(client, input=items)
    oracle = chat(client, [user(QUESTION), {"role": "assistant", "content": first.output_text}, user("And tomorrow?")])
    assert answer.output_text == oracle.choices[0].message.content
    assert answer.usage.input_tokens == oracle.usage.prompt_tokens
    again = ask(client, input=[item if isinstance(item, dict) else item.model_dump() for item in items])
    assert again.output_text == answer.output_text


@check
def an_answer_that_is_cut_is_incomplete(client):
    answer = ask(client, max_output_tokens=2)
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[-1].status == "incomplete" and answer.usage.output_tokens == 2
    events = list(ask(client, max_output_tokens=2, stream=True))
    assert events[-1].type == "response.incomplete" and events[-1].response.output_text == answer.output_text


@check
def a_stream_is_the_same_answer(client):
    whole = ask(client, instructions="Be brief.")
    events = list(ask(client, instructions="Be brief.", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
    assert kinds[4:-4] == ["response.output_text.delta"] * len(deltas)
    assert kinds[-4:-1] == ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    assert "".join(event.delta for event in deltas) == events[-4].text == whole.output_text
    last = events[-1].response
    assert last.status == whole.status and last.output_text == whole.output_text
    assert last.usage.output_tokens == whole.usage.output_tokens and last.usage.input_tokens == whole.usage.input_tokens
    assert events[0].response.id == last.id and events[0].response.usage is None


@check
def the_stream_helper_gives_the_response(client):
    with client.responses.stream(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=150, tools=TOOLS,
                                 tool_choice=NAMED) as stream:
        kinds = [event.type for event in stream]
        response = stream.get_final_response()
    assert kinds[-1] == "response.completed" and "response.function_call_arguments.delta" in kinds
    (call,) = response.output
    jsonschema.validate(json.loads(call.arguments), WEATHER)


class City(pydantic.BaseModel):
    name: typing.Literal["Paris", "Rome"]
    days: int = pydantic.Field(ge=1, le=5)
    known: bool


@check
def parse_gives_a_model(client):
    for seed in range(4):
        answer = client.responses.parse(model=MODEL, input=QUESTION, temperature=1, max_output_tokens=300, text_format=City,
                                        extra_body={"seed": seed})
        assert answer.status == "completed" and isinstance(answer.output_parsed, City)
    with client.responses.stream(model=MODEL, input=QUESTION, max_output_tokens=300, text_format=City) as stream:
        assert isinstance(stream.get_final_response().output_parsed, City)
    for seed in range(5, 29):  # some objects have no end for long: which ones depends on the machine
        free = ask(client, text={"format": {"type": "json_object"}}, temperature=1, max_output_tokens=400, extra_body={"seed": seed})
        if free.status == "completed":
            break
    assert free.status == "completed" and isinstance(json.loads(free.output_text), dict)


@check
def a_required_call_is_valid(client):
    answer = ask(client, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_output_tokens=150)
    (call,) = answer.output
    assert answer.status == call.status == "completed"
    assert call.type == "function_call" and call.call_id.startswith("call_") and call.id.startswith("fc_")
    jsonschema.validate(json.loads(call.arguments), WEATHER if call.name == "get_weather" else {"maxProperties": 0})
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "stop"}]}
    (call,) = ask(client, tools=TOOLS, tool_choice=allowed, parallel_tool_calls=False).output
    assert (call.name, call.arguments) == ("stop", "{}")


@check
def pydantic_tools_are_parsed(client):
    answer = client.responses.parse(model=MODEL, input=QUESTION, max_output_tokens=150, tools=[openai.pydantic_function_tool(City)
                                    ["function"] | {"type": "function"}], tool_choice="required", parallel_tool_calls=False)
    assert json.loads(answer.output[0].arguments)["name"] in ("Paris", "Rome")


@check
def a_stream_has_the_same_call(client):
    whole = ask(client, tools=TOOLS, tool_choice=NAMED, max_output_tokens=150).output[0]
    events = list(ask(client, tools=TOOLS, tool_choice=NAMED, max_output_tokens=150, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert kinds[2:] == ["response.output_item.added"] + ["response.function_call_arguments.delta"] * len(deltas) + [
        "response.function_call_arguments.done", "response.output_item.done", "response.completed"]
    assert events[2].item.arguments == "" and events[2].item.name == "get_weather"
    assert "".join(deltas) == events[-3].arguments == whole.arguments


@check
def a_turn_with_results_is_that_of_a_chat(client):
    (call,) = ask(client, tools=TOOLS, tool_choice=NAMED, max_output_tokens=150).output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "It is sunny."}
    answer = ask(client, input=[user(QUESTION), call, result], tools=TOOLS, tool_choice="none")
    nested = [{"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}} for tool in TOOLS]
    oracle = chat(client, [user(QUESTION),
                           {"role": "assistant", "content": None, "tool_calls": [
                               {"type": "function", "id": call.call_id, "function": {"name": call.name, "arguments": call.arguments}}]},
                           {"role": "tool", "tool_call_id": call.call_id, "content": "It is sunny."}], tools=nested, tool_choice="none")
    assert answer.output_text and answer.output_text == oracle.choices[0].message.content
    assert answer.usage.input_tokens == oracle.usage.prompt_tokens


@check
def reasoning_is_an_item(client):
    arguments = {"reasoning": {"effort": "low", "summary": "auto"}, "include": ["reasoning.encrypted_content"], "max_output_tokens": 40}
    answer = ask(client, **arguments)
    oracle = chat(client, [user(QUESTION)], reasoning_effort="low", max_tokens=40)
    thought = answer.output[0]
    assert thought.type == "reasoning" and thought.summary == []
    assert thought.content[0].text == oracle.choices[0].message.reasoning_content
    assert answer.usage.output_tokens_details.reasoning_tokens == oracle.usage.completion_tokens_details.reasoning_tokens > 0
    events = list(ask(client, stream=True, **arguments))
    kinds = [event.type for event in events]
    assert kinds[2:4] == ["response.output_item.added", "response.content_part.added"]
    deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(deltas) == thought.content[0].text
    after = kinds[4 + len(deltas):]
    assert after[:3] == ["response.reasoning_text.done", "response.content_part.done", "response.output_item.done"], after
    ask(client, input=[user(QUESTION), thought, {"role": "assistant", "content": "Sunny."}, user("Sure?")])


@check
def what_needs_state_or_tools_of_the_server_is_refused_by_name(client):
    for param in ("previous_response_id", "conversation"):
        assert "stored state" in refused(client, param, **{param: "id_1"})
    assert "stored state" in refused(client, "background", background=True)
    assert "`web_search`" in refused(client, "tools[0].type", tools=[{"type": "web_search"}])
    refused(client, "prompt", prompt={"id": "pmpt_1"})
    refused(client, "input[0].type", input=[{"type": "item_reference", "id": "msg_1"}])
    refused(client, "tool_choice", tools=TOOLS, tool_choice={"type": "function", "name": "other"})
    refused(client, "reasoning.effort", reasoning={"effort": "odd"})
    schema = {"type": "array", "uniqueItems": True}
    refused(client, "text.format.schema", text={"format": {"type": "json_schema", "name": "n", "schema": schema}})
    try:
        client.responses.retrieve("resp_1")
    except openai.NotFoundError:
        return
    raise AssertionError("nothing is stored")


@check
def an_input_that_does_not_fit_is_refused(client):
    for truncation in ("auto", "disabled"):
        assert "context" in refused(client, "input", input="river " * 40000, truncation=truncation)


def main():
    client = openai.OpenAI(base_url=f"http://{sys.argv[1]}/v1", api_key="none", max_retries=0)
    return run(checks, client)


if __name__ == "__main__":
    sys.exit(main())
