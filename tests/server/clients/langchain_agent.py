"""langchain-ollama: a chat, a stream, a tool."""

import sys

from langchain_ollama import ChatOllama

chat = ChatOllama(model="scripted", base_url=sys.argv[1], reasoning=False)
assert chat.invoke("hello").content == "Hello from the script."
assert "".join(c.content for c in chat.stream("hello")) == "Hello from the script."
thinking = ChatOllama(model="scripted", base_url=sys.argv[1], reasoning=True).invoke("hello")
assert thinking.additional_kwargs["reasoning_content"] == "Let me greet.\n"


def get_weather(city: str) -> str:
    """Weather of a city."""
    return city


called = chat.bind_tools([get_weather]).invoke("weather")
assert called.tool_calls[0]["args"]["city"] == "Paris"
assert called.usage_metadata["output_tokens"] > 0
print('"ok"')
