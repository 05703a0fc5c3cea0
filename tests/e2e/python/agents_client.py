"""OpenAI's Agents SDK over chat completions, unchanged: agents_client.py ENDPOINT

An agent whose first turn has to call a tool, and whose second answers. The model knows nothing of tools, so the choice is forced. Prints
one line a check and ends with 0 when all of them hold.
"""

import asyncio
import sys
import typing

import agents
import openai

from checks import run

checks = []


def check(function):
    checks.append(function)
    return function


class Desk:
    """An agent with a tool that notes how it was called."""

    def __init__(self, client, **settings):
        self.calls = []

        @agents.function_tool
        def book_table(city: typing.Literal["Paris", "Rome"], guests: typing.Literal[2, 4]) -> str:
            """Books a table in a city."""
            self.calls.append((city, guests))
            return "It is booked."

        self.agent = agents.Agent(
            name="desk", instructions="You book tables.", tools=[book_table],
            model=agents.OpenAIChatCompletionsModel(model="tiny", openai_client=client),
            model_settings=agents.ModelSettings(**{"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 150,
                                                   "temperature": 0} | settings))

    def called_validly(self):
        return len(self.calls) == 1 and self.calls[0][0] in ("Paris", "Rome") and self.calls[0][1] in (2, 4)


@check
async def an_agent_calls_its_tool_and_answers(client):
    desk = Desk(client)
    result = await agents.Runner.run(desk.agent, "A table, please.", max_turns=3)
    assert desk.called_validly(), desk.calls
    assert isinstance(result.final_output, str) and result.final_output
    kinds = [item.type for item in result.new_items]
    assert kinds[:2] == ["tool_call_item", "tool_call_output_item"] and kinds[-1] == "message_output_item", kinds


@check
async def an_agent_streams(client):
    desk = Desk(client)
    result = agents.Runner.run_streamed(desk.agent, "A table, please.", max_turns=3)
    seen = [event async for event in result.stream_events()]
    assert desk.called_validly(), desk.calls
    assert result.final_output and any(event.type == "raw_response_event" for event in seen)
    names = [event.name for event in seen if event.type == "run_item_stream_event"]
    assert "tool_called" in names and "tool_output" in names and "message_output_created" in names, names


@check
async def a_named_tool_is_called(client):
    desk = Desk(client, tool_choice="book_table", temperature=1, extra_body={"seed": 4})
    await agents.Runner.run(desk.agent, "A table, please.", max_turns=3)
    assert desk.called_validly(), desk.calls


def main():
    agents.set_tracing_disabled(True)
    return run([in_a_loop(function) for function in checks], None)


def in_a_loop(function):
    """A check of its own event loop, to which its client belongs."""
    async def call():
        async with openai.AsyncOpenAI(base_url=f"http://{sys.argv[1]}/v1", api_key="none", max_retries=0) as client:
            await function(client)

    def check_it(_):
        asyncio.run(call())
    check_it.__name__ = function.__name__
    return check_it


if __name__ == "__main__":
    sys.exit(main())
