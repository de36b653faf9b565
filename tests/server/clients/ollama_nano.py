"""ollama-python with nano: chat, generate, residency, the library."""

import re

import ollama

client = ollama.Client()
hello = [{"role": "user", "content": "hello"}]
options = {"seed": 7, "temperature": 1.0, "num_predict": 12}
whole = client.chat("nano", hello, options=options)
chunks = list(client.chat("nano", hello, options=options, stream=True))
assert "".join(c.message.content for c in chunks) == whole.message.content
last = chunks[-1]
assert last.done
assert last.eval_count == whole.eval_count
assert last.total_duration > 0
assert last.load_duration >= 0
assert client.generate("nano", "").done_reason == "load"
(loaded,) = client.ps().models
assert loaded.size_vram == loaded.size
client.generate("nano", "", keep_alive=0)
assert client.ps().models == []
assert any(m.model == "nano:latest" for m in client.list().models)
assert client.show("nano").modelinfo["gemma4.context_length"] == 8192
client.copy("nano", "claude-3-5-sonnet")
assert client.chat("claude-3-5-sonnet", hello, options={"num_predict": 2}).eval_count == 2
client.delete("claude-3-5-sonnet")
for call in (client.show, client.delete, lambda name: client.chat(name, hello)):
    try:
        call("claude-3-5-sonnet")
    except ollama.ResponseError as error:
        assert error.status_code == 404
        assert "claude-3-5-sonnet" in error.error
    else:
        raise AssertionError("a missing model was found")
assert client.pull("nano").status == "success"
try:
    client.pull("no-such-model-anywhere")
except ollama.ResponseError as error:
    assert "not known" in error.error
else:
    raise AssertionError("a missing model was pulled")
client.create("polite", from_="nano", system="Be polite.", parameters={"num_predict": 3})
assert client.chat("polite", hello).eval_count <= 3
assert re.fullmatch("[0-9a-f]{64}", client.list().models[0].digest)
on, off = (
    client.generate("nano", "def f(", raw=True, options={**options, "draft_num_predict": n}).response for n in (4, 0)
)
assert on == off
print('"ok"')
