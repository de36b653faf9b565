"""ollama-python with tools and thinking."""

import ollama

client = ollama.Client()


def get_weather(city: str, days: int = 1) -> str:
    """Weather of a city.

    Args:
        city: where
        days: how many
    """
    return f"{city}: sunny"


for ids in (True, False):
    messages = [{"role": "user", "content": "weather both"}]
    answer = client.chat("scripted", messages, tools=[get_weather], think=False)
    first, second = answer.message.tool_calls
    assert dict(first.function.arguments) == {"city": "Paris", "days": 2, "units": {"metric": True}}
    assert second.function.arguments["city"] == 'Rome {x}, "y"'
    assert answer.message.content == "Looking."
    messages.append(answer.message)
    for call in (first, second):
        result = {"role": "tool", "content": get_weather(call.function.arguments["city"])}
        messages.append(result | ({"tool_name": call.function.name} if ids else {}))
    final = client.chat("scripted", messages, tools=[get_weather], think=False)
    assert final.message.content == 'get_weather says: Rome {x}, "y": sunny.', final.message.content

chunks = list(client.chat("scripted", [{"role": "user", "content": "hello"}], think=True, stream=True))
assert "".join(c.message.thinking or "" for c in chunks) == "Let me greet.\n"
assert "".join(c.message.content or "" for c in chunks) == "Hello from the script."
assert not any(c.message.thinking and c.message.content for c in chunks)
assert client.show("scripted").capabilities is not None
print('"ok"')
