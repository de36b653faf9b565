"""litellm over Ollama's, OpenAI's and Anthropic's routes."""

import sys

import litellm

url = sys.argv[1]
hello = [{"role": "user", "content": "hello"}]
ollama = {"model": "ollama_chat/scripted", "api_base": url}
openai = {"model": "openai/scripted", "api_base": url + "/v1", "api_key": "x"}
anthropic = {"model": "anthropic/scripted", "api_base": url, "api_key": "x"}
for route in (ollama, openai, anthropic):
    whole = litellm.completion(**route, messages=hello, max_tokens=200)
    assert whole.choices[0].message.content == "Hello from the script.", (route, whole)
    assert whole.usage.completion_tokens > 0, route
    chunks = list(litellm.completion(**route, messages=hello, max_tokens=200, stream=True))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "Hello from the script.", (route, text)
try:
    litellm.completion(**openai, messages=[{"role": "user", "content": "word " * 5000}])
except litellm.ContextWindowExceededError:
    pass
else:
    raise AssertionError("overflow was not refused")
print('"ok"')
