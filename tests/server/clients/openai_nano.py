"""openai-python with nano: chat, completions, responses, errors."""

import sys
from typing import Annotated

import openai
import pydantic

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="x", max_retries=0)
hello = [{"role": "user", "content": "hello"}]
options = {"model": "nano", "messages": hello, "max_tokens": 8, "seed": 3, "temperature": 1.0}
whole = client.chat.completions.create(**options)
stream = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices) == whole.choices[0].message.content
assert stream[-1].usage.completion_tokens == whole.usage.completion_tokens
off = client.chat.completions.create(**options, extra_body={"draft_num_predict": 0})
assert off.choices[0].message.content == whole.choices[0].message.content
assert client.completions.create(model="nano", prompt="x", max_tokens=2).usage.completion_tokens <= 2
several = client.chat.completions.create(**options, n=3, logprobs=True, top_logprobs=2)
assert [c.index for c in several.choices] == [0, 1, 2]
assert several.choices[0].message.content == whole.choices[0].message.content
assert len(several.choices[2].logprobs.content[0].top_logprobs) == 2
scored = client.completions.create(model="nano", prompt="def f():", echo=True, logprobs=1, max_tokens=0).choices[0]
assert scored.text == "def f():"
assert scored.logprobs.token_logprobs[0] is None
assert all(v <= 0 for v in scored.logprobs.token_logprobs[1:])
assert any(m.id == "nano:latest" for m in client.models.list())
assert client.models.retrieve("nano").id == "nano"
with client.responses.stream(model="nano", input="hello", max_output_tokens=6) as events:
    found = list(events)
assert found[0].type == "response.created"
assert found[-1].response.status in ("completed", "incomplete")  # it is cut by its budget, or ends before


class Person(pydantic.BaseModel):
    """A value with a schema."""

    name: Annotated[str, pydantic.Field(max_length=8)]
    age: Annotated[int, pydantic.Field(ge=0, le=99)]


for seed in range(20):
    parsed = client.chat.completions.parse(
        model="nano", messages=hello, response_format=Person, seed=seed, temperature=1
    )
    assert isinstance(parsed.choices[0].message.parsed, Person)
for change, kind in (({"model": "nope"}, openai.NotFoundError), ({"temperature": -1}, openai.BadRequestError)):
    try:
        client.chat.completions.create(**{**options, **change})
    except kind:
        continue
    raise AssertionError(change)
try:
    client.chat.completions.create(**{**options, "messages": [{"role": "user", "content": "word " * 9000}]})
except openai.BadRequestError as error:
    assert error.code == "context_length_exceeded"
else:
    raise AssertionError("overflow was not refused")
print('"ok"')
