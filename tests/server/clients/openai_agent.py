"""openai-python with tools, reasoning and replayed responses."""

import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="x", max_retries=0)
tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
messages = [{"role": "user", "content": "weather"}]
with client.chat.completions.stream(
    model="scripted", messages=messages, tools=[tool], reasoning_effort="none"
) as stream:
    for _ in stream:
        pass
    choice = stream.get_final_completion().choices[0]
assert choice.finish_reason == "tool_calls"
(call,) = choice.message.tool_calls
assert json.loads(call.function.arguments)["city"] == "Paris"
messages += [choice.message.model_dump(exclude_none=True, exclude={"parsed"}),
             {"role": "tool", "tool_call_id": call.id, "content": "rain"}]  # fmt: skip
for message in messages:
    for entry in message.get("tool_calls", []):
        entry["function"].pop("parsed_arguments", None)
final = client.chat.completions.create(model="scripted", messages=messages, tools=[tool])
assert final.choices[0].message.content == "get_weather says: rain."
assert final.choices[0].message.reasoning_content == "Let me read.\n"

tools = [
    {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}, "strict": False}
]
with client.responses.stream(model="scripted", input="weather", tools=tools) as events:
    for _ in events:
        pass
    response = events.get_final_response()
assert [i.type for i in response.output] == ["reasoning", "message", "function_call"]
replay = [{"role": "user", "content": "weather"}, *[i.model_dump(exclude_none=True) for i in response.output]]
for item in replay:
    item.pop("parsed_arguments", None)
replay.append({"type": "function_call_output", "call_id": response.output[2].call_id, "output": "snow"})
again = client.responses.create(model="scripted", input=replay, tools=tools, reasoning={"effort": "none"})
assert again.output_text == "get_weather says: snow.", again.output_text
ping = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}
for choice in ("required", {"type": "function", "function": {"name": "ping"}}):
    forced = client.chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "hi"}], tools=[ping], tool_choice=choice,
        parallel_tool_calls=False,
    ).choices[0]  # fmt: skip
    assert (forced.finish_reason, forced.message.tool_calls[0].function.name) == ("tool_calls", "ping")
print('"ok"')
