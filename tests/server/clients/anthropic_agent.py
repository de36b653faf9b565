"""anthropic-python: messages, streams with tools and thinking, counting."""

import sys

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="x", max_retries=0)
tool = {"name": "get_weather", "description": "w", "input_schema": {"type": "object", "properties": {}}}
ask = [{"role": "user", "content": "weather"}]
with client.messages.stream(model="scripted", max_tokens=300, messages=ask, tools=[tool],
                            thinking={"type": "enabled", "budget_tokens": 1024}) as stream:  # fmt: skip
    for _ in stream:
        pass
    message = stream.get_final_message()
assert message.stop_reason == "tool_use"
assert [b.type for b in message.content] == ["thinking", "text", "tool_use"]
use = message.content[-1]
assert use.input == {"city": "Paris", "days": 2, "units": {"metric": True}}
turns = [*ask, {"role": "assistant", "content": [b.model_dump() for b in message.content]}, {
    "role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "fog"}]}]  # fmt: skip
final = client.messages.create(model="scripted", max_tokens=100, messages=turns, tools=[tool])
assert final.content[0].text == "get_weather says: fog."
assert final.stop_reason == "end_turn"
counted = client.messages.count_tokens(model="scripted", messages=turns, tools=[tool]).input_tokens
assert counted == final.usage.input_tokens + final.usage.cache_read_input_tokens
cut = client.messages.create(model="scripted", max_tokens=3, messages=[{"role": "user", "content": "hello"}])
assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 3)
try:
    client.messages.create(model="nope", max_tokens=3, messages=ask)
except anthropic.NotFoundError:
    pass
else:
    raise AssertionError("a missing model answered")
ping = {"name": "ping", "input_schema": {"type": "object", "properties": {}}}
for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "ping"}):
    forced = client.messages.create(model="scripted", max_tokens=60, messages=[{"role": "user", "content": "hi"}],
                                    tools=[ping], tool_choice=choice)  # fmt: skip
    assert (forced.stop_reason, forced.content[0].name) == ("tool_use", "ping")
print('"ok"')
