"""OpenAI's Agents SDK, unchanged, over the Responses API, which is its default, and over chat completions: agents_client.py ENDPOINT

An agent whose first turn has to call a tool, and whose second answers. The model knows nothing of tools, so the choice is forced. Prints
one line a check and ends with 0 when all of them hold.
"""

import asyncio
import sys
import typing

import agents
import openai
import pydantic

from checks import run

checks = []


def check(function):
    checks.append(function)
    return function


class Booking(pydantic.BaseModel):
    city: typing.Literal["Paris", "Rome"]
    guests: typing.Literal[2, 4]


class Desk:
    """An agent with a tool that notes how it was called."""

    def __init__(self, **settings):
        self.calls = []

        @agents.function_tool
        def book_table(city: typing.Literal["Paris", "Rome"], guests: typing.Literal[2, 4]) -> str:
            """Books a table in a city."""
            self.calls.append((city, guests))
            return "It is booked."

        self.agent = agents.Agent(
            name="desk", instructions="You book tables.", tools=[book_table], model="tiny",
            model_settings=agents.ModelSettings(**{"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 1000,
                                                   "temperature": 0} | settings))

    def called_validly(self):
        return len(self.calls) == 1 and self.calls[0][0] in ("Paris", "Rome") and self.calls[0][1] in (2, 4)


@check
async def an_agent_calls_its_tool_and_answers(config):
    desk = Desk()
    result = await agents.Runner.run(desk.agent, "A table, please.", max_turns=3, run_config=config)
    assert desk.called_validly(), desk.calls
    assert isinstance(result.final_output, str) and result.final_output
    kinds = [item.type for item in result.new_items]
    assert kinds[:2] == ["tool_call_item", "tool_call_output_item"] and kinds[-1] == "message_output_item", kinds


@check
async def an_agent_streams(config):
    desk = Desk()
    result = agents.Runner.run_streamed(desk.agent, "A table, please.", max_turns=3, run_config=config)
    seen = [event async for event in result.stream_events()]
    assert desk.called_validly(), desk.calls
    assert result.final_output and any(event.type == "raw_response_event" for event in seen)
    names = [event.name for event in seen if event.type == "run_item_stream_event"]
    assert "tool_called" in names and "tool_output" in names and "message_output_created" in names, names


@check
async def a_named_tool_is_called(config):
    desk = Desk(tool_choice="book_table", temperature=1, extra_body={"seed": 4})
    await agents.Runner.run(desk.agent, "A table, please.", max_turns=3, run_config=config)
    assert desk.called_validly(), desk.calls


@check
async def an_agent_gives_a_model(config):
    agent = agents.Agent(name="clerk", instructions="You book tables.", model="tiny", output_type=Booking,
                         model_settings=agents.ModelSettings(max_tokens=200, temperature=1, extra_body={"seed": 4}))
    result = await agents.Runner.run(agent, "A table, please.", max_turns=1, run_config=config)
    assert isinstance(result.final_output, Booking), result.final_output


@check
async def a_conversation_goes_on(config):
    desk = Desk()
    first = await agents.Runner.run(desk.agent, "A table, please.", max_turns=3, run_config=config)
    second = await agents.Runner.run(desk.agent, first.to_input_list() + [{"role": "user", "content": "Another one."}], max_turns=3,
                                     run_config=config)
    assert len(desk.calls) == 2 and second.final_output


def main():
    agents.set_tracing_disabled(True)
    return run([in_a_loop(function, api) for api in ("responses", "chat") for function in checks], None)


def in_a_loop(function, api):
    """A check of its own event loop, to which its client belongs."""
    async def call():
        async with openai.AsyncOpenAI(base_url=f"http://{sys.argv[1]}/v1", api_key="none", max_retries=0) as client:
            provider = agents.OpenAIProvider(openai_client=client, **({"use_responses": False} if api == "chat" else {}))
            await function(agents.RunConfig(model_provider=provider))

    def check_it(_):
        asyncio.run(call())
    check_it.__name__ = f"{function.__name__}_over_{api}"
    return check_it


if __name__ == "__main__":
    sys.exit(main())
