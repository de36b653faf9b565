"""Ollama's routes as its clients use them, against a real server process."""

from __future__ import annotations

import re
import time

import httpx
import pytest

from tests.servers import Running, lines

HELLO = [{"role": "user", "content": "hello"}]
SEEDED = {"seed": 4, "temperature": 1.0, "num_predict": 12}


def test_the_root_and_the_version_say_what_clients_expect(server: Running):
    assert server.get("/").text == "Ollama is running"
    assert httpx.head(server.url + "/").status_code == 200
    version = server.get("/api/version").json()
    assert re.fullmatch(r"\d+\.\d+\.\d+", version["version"])
    assert version["pilotfish"]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_bodies_are_read_whatever_the_content_type(server: Running, path: str):
    body = b'{"model": "nano", "prompt": "hi", "messages": [{"role": "user", "content": "hi"}], "stream": false,' \
           b' "options": {"num_predict": 2}, "made_up": 1}'  # fmt: skip
    answer = httpx.post(server.url + path, content=body, timeout=60,
                        headers={"Content-Type": "application/x-www-form-urlencoded"})  # fmt: skip
    assert answer.status_code == 200
    assert answer.json()["eval_count"] == 2


def test_a_stream_says_what_the_whole_answer_says(server: Running):
    whole = server.post("/api/chat", {"model": "nano", "messages": HELLO, "stream": False, "options": SEEDED}).json()
    response = server.post("/api/chat", {"model": "nano", "messages": HELLO, "options": SEEDED})
    chunks = lines(response)

    assert response.headers["content-type"] == "application/x-ndjson"
    assert "".join(c["message"]["content"] for c in chunks) == whole["message"]["content"]
    assert [c["done"] for c in chunks] == [False] * (len(chunks) - 1) + [True]
    last = chunks[-1]
    assert last["message"] == {"role": "assistant", "content": ""}
    assert (last["done_reason"], last["eval_count"]) == ("length", 12)
    for name in ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_duration"):
        assert isinstance(last[name], int)
    assert last["total_duration"] >= last["eval_duration"] > 0
    assert last["pilotfish"]["mtp"]


def test_drafting_changes_no_text_and_can_be_turned_off(server: Running):
    def answer(**options: object) -> dict:
        body = {
            "model": "nano",
            "prompt": "def f(",
            "raw": True,
            "stream": False,
            "options": {**SEEDED, "num_predict": 80, **options},
        }
        return server.post("/api/generate", body).json()

    plain, drafted, most = answer(draft_num_predict=0), answer(), answer(draft_num_predict=1)

    assert plain["response"] == drafted["response"] == most["response"]
    assert plain["pilotfish"]["draft_tokens"] == 0 < drafted["pilotfish"]["draft_tokens"]
    assert plain["pilotfish"]["no_drafting"] == "it was turned off"
    assert len(most["pilotfish"]["accepted_by_position"]) <= 1


def test_an_empty_prompt_loads_and_unloads(server: Running):
    assert server.post("/api/generate", {"model": "nano"}).json()["done_reason"] == "load"
    (loaded,) = [m for m in server.get("/api/ps").json()["models"] if m["name"] == "nano:latest"]
    assert loaded["size_vram"] == loaded["size"] > 0
    unloaded = server.post("/api/chat", {"model": "nano", "messages": [], "keep_alive": 0}).json()
    assert (unloaded["done_reason"], unloaded["message"]["content"]) == ("unload", "")
    assert server.get("/api/ps").json()["models"] == []


def test_keep_alive_ends(server: Running):
    body = {"model": "nano", "prompt": "x", "stream": False, "options": {"num_predict": 1}, "keep_alive": "0.2s"}
    server.post("/api/generate", body)
    for _ in range(50):
        if not server.get("/api/ps").json()["models"]:
            return
        time.sleep(0.1)
    raise AssertionError("the model is still there")


def test_models_are_listed_shown_copied_and_deleted(server: Running):
    (nano,) = [m for m in server.get("/api/tags").json()["models"] if m["name"] == "nano:latest"]
    assert re.fullmatch("[0-9a-f]{64}", nano["digest"])
    shown = server.post("/api/show", {"name": "nano"}).json()
    assert shown["capabilities"] == ["completion"]
    assert shown["model_info"]["gemma4.context_length"] == 8192
    assert sum("context_length" in k for k in shown["model_info"]) == 1

    assert server.post("/api/copy", {"source": "NANO", "destination": "mine/copy:1"}).status_code == 200
    assert server.post("/api/show", {"model": "mine/copy:1"}).json()["details"]["family"] == "gemma4"
    chat = {"model": "mine/copy:1", "messages": HELLO, "stream": False, "options": {"num_predict": 1}}
    assert server.post("/api/chat", chat).json()["model"] == "mine/copy:1"
    gone = httpx.request("DELETE", server.url + "/api/delete", json={"model": "mine/copy:1"})
    assert gone.status_code == 200
    missing = server.post("/api/show", {"model": "mine/copy:1"})
    assert (missing.status_code, missing.json()) == (404, {"error": "model 'mine/copy:1' not found"})


def test_a_present_model_is_pulled_at_once(server: Running):
    assert [s["status"] for s in lines(server.post("/api/pull", {"model": "nano"}))] == ["pulling manifest", "success"]


def test_a_created_model_has_its_system_text_and_parameters(scripted: Running):
    body = {
        "model": "polite",
        "from": "scripted",
        "system": "Be polite.",
        "parameters": {"num_predict": 7, "stop": ["q"]},
    }
    assert lines(scripted.post("/api/create", body))[-1] == {"status": "success"}

    answer = scripted.post("/api/chat", {"model": "polite", "messages": [{"role": "user", "content": "system?"}],
                                         "stream": False, "options": {"num_predict": 200}}).json()  # fmt: skip
    assert "Be polite." in answer["message"]["content"]
    short = scripted.post("/api/chat", {"model": "polite", "messages": HELLO, "stream": False}).json()
    assert (short["eval_count"], short["done_reason"]) == (7, "length")
    shown = scripted.post("/api/show", {"model": "polite"}).json()
    assert shown["parameters"].splitlines() == [f"{'num_predict':<30} 7", f'{"stop":<30} "q"']
    assert "SYSTEM" in shown["modelfile"]


def test_thinking_is_on_where_a_model_can_and_can_be_turned_off(scripted: Running):
    body = {"model": "scripted", "messages": HELLO}
    chunks = lines(scripted.post("/api/chat", body))
    assert not any(c["message"].get("thinking") and c["message"]["content"] for c in chunks)
    assert not any(c["message"].get("thinking") == "" for c in chunks)
    assert "".join(c["message"].get("thinking", "") for c in chunks) == "Let me greet.\n"
    assert "".join(c["message"]["content"] for c in chunks) == "Hello from the script."
    off = scripted.post("/api/chat", {**body, "think": False, "stream": False}).json()["message"]
    assert off == {"role": "assistant", "content": "Hello from the script."}


def test_what_a_model_cannot_do_is_refused(server: Running):
    thinks = server.post("/api/chat", {"model": "nano", "messages": HELLO, "think": True})
    assert (thinks.status_code, thinks.json()) == (400, {"error": '"nano" does not support thinking'})
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    called = server.post("/api/chat", {"model": "nano", "messages": HELLO, "tools": tools})
    assert (called.status_code, called.json()) == (400, {"error": '"nano" does not support tools'})


def test_earlier_tokens_go_on(scripted: Running):
    first = scripted.post("/api/generate", {"model": "scripted", "prompt": "echo: one", "stream": False}).json()
    second = scripted.post("/api/generate", {"model": "scripted", "prompt": "echo: two", "stream": False,
                                             "context": first["context"]}).json()  # fmt: skip
    assert second["response"] == "two"
    assert second["prompt_eval_count"] > len(first["context"])


def test_a_template_is_rendered_without_decoding(scripted: Running):
    body = {"model": "scripted", "prompt": "hi", "_debug_render_only": True, "think": False}
    shown = scripted.post("/api/generate", body).json()["_debug_info"]["rendered_template"]
    assert shown == "<bos><|turn>user\nhi<turn|>\n<|turn>model\n"


BAD = [
    (b"", 400, "missing request body"),
    (b"{", 400, "not valid JSON"),
    (b'{"model": "nano", "messages": "x"}', 400, "messages"),
    (b'{"model": "../../etc/passwd", "messages": []}', 400, "invalid model name"),
    (b'{"messages": [{"role": "user", "content": "x"}]}', 400, "model is required"),
    (b'{"model": "nope", "messages": []}', 404, "model 'nope' not found"),
    (b'{"model": "nano", "messages": [{"role": "user", "content": "\\ud800"}]}', 400, "surrogate"),
    (b'\xff{"model": "nano"}', 400, "not UTF-8"),
    (b'{"model": "nano", "messages": [{"role": "user", "content": "x", "images": ["!"]}]}', 400, "images"),
    *[
        (b'{"model": "nano", "messages": [{"role": "user", "content": "x"}], "options": {%s}}' % option, 400, why)
        for option, why in [
            (b'"temperature": "hot"', "'temperature' must be a number"),
            (b'"temperature": -1', "temperature is -1"),
            (b'"num_predict": 1.5', "'num_predict' must be a whole number"),
            (b'"top_p": 7', "top_p is 7"),
            (b'"mirostat": 2', "mirostat is not supported"),
            (b'"repeat_penalty": 0', "repetition penalty is 0"),
            (b'"stop": 3', "stop must be"),
            (b'"draft_num_predict": 99', "max_depth is 99"),
        ]
    ],
    (b'{"model": "nano", "messages": [{"role": "user", "content": "x"}], "think": "much"}', 400, "think is 'much'"),
    (
        b'{"model": "nano", "messages": [{"role": "user", "content": "x"}], "format": "yaml"}',
        400,
        "format is 'yaml'",
    ),
    (b'{"model": "nano", "messages": [{"role": "user", "content": "x"}], "top_logprobs": 21}', 400, "between 0 and 20"),
    (b'{"model": "nano", "messages": [{"role": "user", "content": "x"}], "keep_alive": "soon"}', 400, "keep_alive"),
    (b'{"model": "nano", "messages": [{"role": "user", "content": "x"}], "template": "{{ .Prompt }}"}', 400, "jinja"),
]


@pytest.mark.parametrize(("body", "status", "why"), BAD, ids=[w for *_, w in BAD])
def test_bad_input_gets_a_status_and_a_reason(server: Running, body: bytes, status: int, why: str):
    answer = httpx.post(server.url + "/api/chat", content=body, timeout=60)

    assert answer.status_code == status
    assert why in answer.json()["error"]
    assert server.get("/health").json() == {"status": "ok"}


def test_large_numbers_and_neutral_options_pass(server: Running):
    options = {"num_ctx": 10**9, "repeat_penalty": 1.0, "num_gpu": 99, "nonsense": 1, "seed": -1, "top_k": None,
               "num_predict": 3.0}  # fmt: skip
    answer = server.post("/api/chat", {"model": "nano", "messages": HELLO, "stream": False, "options": options})
    assert answer.json()["eval_count"] == 3


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(server: Running):
    body = {"model": "nano", "prompt": "word " * 9000, "stream": False}
    answer = server.post("/api/generate", body)
    assert answer.status_code == 400
    assert "maximum context length is 8192 tokens" in answer.json()["error"]
    small = server.post("/api/generate", {"model": "nano", "prompt": "word " * 50, "options": {"num_ctx": 16}})
    assert "maximum context length is 16 tokens" in small.json()["error"]


def test_ten_megabytes_are_refused_at_once(server: Running):
    answer = server.post("/api/generate", {"model": "nano", "prompt": "word " * 2_000_000, "stream": False})
    assert answer.status_code == 400
    assert "maximum context length is 8192 tokens" in answer.json()["error"]


def test_a_stop_string_is_cut_exactly_and_the_next_turn_goes_on(scripted: Running):
    messages = [{"role": "user", "content": "echo: one STOP two"}]
    body = {"model": "scripted", "messages": messages, "think": False, "stream": False, "options": {"stop": ["e STO"]}}
    answer = scripted.post("/api/chat", body).json()
    assert (answer["message"]["content"], answer["done_reason"]) == ("on", "stop")
    messages += [answer["message"], {"role": "user", "content": "echo: three"}]
    assert scripted.post("/api/chat", body).json()["message"]["content"] == "three"


def test_an_error_inside_is_an_error_and_the_server_goes_on(scripted: Running):
    answer = scripted.post("/api/chat", {"model": "scripted", "messages": [{"role": "user", "content": "boom"}]})
    assert answer.status_code == 200  # the stream had begun
    assert "internal error" in lines(answer)[-1]["error"]
    assert scripted.post("/api/chat", {"model": "scripted", "messages": HELLO, "stream": False}).status_code == 200


def test_unknown_routes_and_methods(server: Running):
    assert server.post("/api/push", {}).status_code == 404
    assert "error" in server.post("/api/me", {}).json()
    assert server.get("/nothing").status_code == 404
    assert server.get("/v1/messages").status_code == 405
    assert server.post("/api/embed", {"model": "nano", "input": "x"}).status_code == 400


def test_a_second_turn_computes_only_what_is_new(server: Running):
    system = {"role": "system", "content": "You write short programs. " * 300}
    messages = [system, {"role": "user", "content": "Write a loop."}]
    options = {"num_predict": 20, "temperature": 0, "seed": 1}
    first = server.post(
        "/api/chat", {"model": "nano", "messages": messages, "stream": False, "options": options}
    ).json()
    messages += [first["message"], {"role": "user", "content": "Now another one."}]
    second = server.post(
        "/api/chat", {"model": "nano", "messages": messages, "stream": False, "options": options}
    ).json()

    cached = second["pilotfish"]["cached_prompt_tokens"]
    assert cached >= first["prompt_eval_count"] - 8
    assert second["prompt_eval_count"] > cached
    again = server.post("/api/chat", {"model": "nano", "messages": messages, "stream": False,
                                      "options": {**options, "num_ctx": 5000}}).json()  # fmt: skip
    assert again["message"] == second["message"]
    assert again["pilotfish"]["cached_prompt_tokens"] >= cached
