"""Models by name: manifests, Modelfiles, conversions."""

from __future__ import annotations

from pathlib import Path

import pytest

import pilotfish
from pilotfish.engine.drafters.gemma4_assistant import AssistantArgs, AssistantModel
from pilotfish.errors import ModelNotFoundError, OptionError
from pilotfish.store.create import create, put_blob
from pilotfish.store.describe import describe
from pilotfish.store.known import known
from pilotfish.store.library import Library, Manifest, canonical, now
from pilotfish.store.modelfile import Modelfile, as_modelfile, parse

CLASSES = (AssistantModel, AssistantArgs)


@pytest.mark.parametrize(("name", "key"), [
    ("gemma4", "gemma4:latest"), ("gemma4:31b", "gemma4:31b"), ("org/name", "org/name:latest"),
    ("hf.co/org/name:q4", "hf.co/org/name:q4"), ("registry.ollama.ai/library/gemma4", "gemma4:latest"),
])  # fmt: skip
def test_names_have_tags(name: str, key: str):
    assert canonical(name) == key


@pytest.mark.parametrize("name", ["", "../x", "a/../b", "/etc/passwd", "a b", "a:b:c", "a//b", ".hidden", "x" * 99,
                                  "a/b/c/d", "a\x00b", "name.", "a:../b", "~/x", "a\\b"])  # fmt: skip
def test_what_is_no_name_is_refused(name: str):
    with pytest.raises(OptionError, match="invalid model name"):
        canonical(name)


def test_manifests_are_found_in_any_case_newest_first(tmp_path: Path):
    library = Library(tmp_path)
    library.put(Manifest("Mine:latest", "nano", created="2026-01-01T00:00:00.000000Z"))
    library.put(Manifest("org/other:x", "nano", created=now()))

    assert library.get("mine").name == "Mine:latest"
    assert next(iter(library)).name == "org/other:x"
    assert "nano:latest" in [m.name for m in library]
    library.remove("MINE")
    with pytest.raises(ModelNotFoundError, match="model 'mine' not found"):
        library.get("mine")
    with pytest.raises(OptionError, match="ships with pilotfish"):
        library.remove("nano")
    assert len({m.digest for m in library}) == 2


def test_a_damaged_manifest_is_named(tmp_path: Path):
    library = Library(tmp_path)
    library.put(Manifest("mine:latest", "nano", created=now()))
    (file,) = library.folder.glob("*.json")
    file.write_text("{")
    with pytest.raises(OptionError, match="is damaged"):
        library.get("mine")


@pytest.mark.parametrize(("name", "target", "assistant"), [
    ("gemma4", "mlx-community/gemma-4-e4b-it-4bit", "google/gemma-4-E4B-it-assistant"),
    ("gemma4:31b", "mlx-community/gemma-4-31b-it-4bit", "google/gemma-4-31B-it-assistant"),
    ("gemma4:26b-8bit", "mlx-community/gemma-4-26b-a4b-it-8bit", "google/gemma-4-26B-A4B-it-assistant"),
    ("gemma4:e2b-it-bf16", "mlx-community/gemma-4-e2b-it-bf16", "google/gemma-4-E2B-it-assistant"),
])  # fmt: skip
def test_known_names_stand_for_both_repositories(name: str, target: str, assistant: str):
    assert known(name) == (target, assistant)


def test_other_names_are_not_known():
    assert known("gemma4:90b") is None
    assert known("llama3") is None


MODELFILE = '''# a comment
from nano
PARAMETER temperature 0.5
parameter stop "END \\"x\\""
PARAMETER stop two
PARAMETER num_predict 7
SYSTEM """You are
brief."""
MESSAGE user Hello there
MESSAGE assistant "Hi."
TEMPLATE {% for m in messages %}{{ m.content }}{% endfor %}
LICENSE MIT
'''


def test_a_modelfile_is_read_and_written():
    found = parse(MODELFILE)
    assert found == Modelfile(
        "nano", "", "You are\nbrief.", "{% for m in messages %}{{ m.content }}{% endfor %}", "MIT",
        {"temperature": 0.5, "stop": ['END "x"', "two"], "num_predict": 7},
        [{"role": "user", "content": "Hello there"}, {"role": "assistant", "content": "Hi."}],
    )  # fmt: skip
    again = parse(as_modelfile(found.source, "auto", found.system, found.template, {"num_predict": 7}))
    assert (again.source, again.system, again.template) == (found.source, found.system, found.template)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no FROM line"),
        ("FROM x\nPARAMETER made_up 1", r"\(line 2\): PARAMETER made_up is not known"),
        ("FROM x\nPARAMETER top_k many", "must be a number"),
        ("FROM x\nTEMPLATE {{ .Prompt }}", "jinja"),
        ('FROM x\nSYSTEM """open', "never closed"),
        ("FROM x\nADAPTER y", "not supported"),
        ("FROM x\nJUMP", "command must be"),
        ("FROM x\nMESSAGE robot hi", "MESSAGE needs a role"),
    ],
)
def test_a_bad_modelfile_is_refused_by_line(text: str, why: str):
    with pytest.raises(OptionError, match=why):
        parse(text)


def test_a_model_is_made_of_another_one(tmp_path: Path):
    library = Library(tmp_path)
    create("mine", parse(MODELFILE), library, lambda s: None)
    create("again", Modelfile(source="mine", parameters={"top_k": 3}), library, lambda s: None)
    made = library.get("again")

    assert made.source == "nano"
    assert made.system == "You are\nbrief."
    assert made.parameters == {"temperature": 0.5, "stop": ['END "x"', "two"], "num_predict": 7, "top_k": 3}
    assert describe(made).parameter_size.endswith("M")
    for wanted, why in ((Modelfile(source="none"), "not found"), (Modelfile(), "neither 'from' or 'files'")):
        with pytest.raises((ModelNotFoundError, OptionError), match=why):
            create("x", wanted, library, lambda s: None)
    assert library.find("x") is None


def test_a_path_is_a_source_for_local_users_only(tiny: Path, tmp_path: Path):
    library = Library(tmp_path)
    with pytest.raises(OptionError, match="invalid model name"):
        create("x", Modelfile(source=str(tiny)), library, lambda s: None)
    create("x", Modelfile(source=str(tiny)), library, lambda s: None, local=True)
    assert library.get("x").source == str(tiny.resolve())


@pytest.mark.parametrize("to", ["nvfp4", "mxfp4", "affine8"])
def test_target_and_drafter_are_quantized_and_still_say_the_same(tiny: Path, tmp_path: Path, to: str):
    library, steps = Library(tmp_path), []
    made = create("q", Modelfile(source=str(tiny)), library, steps.append, quantize_to=to, quantize_draft_to=to,
                  assistant_classes=CLASSES, local=True)  # fmt: skip

    assert f"quantizing to {to}" in steps
    engine = pilotfish.load(made.source, draft=made.draft)
    plain = engine.generate("hello", max_tokens=16, temperature=0, depth=0)
    drafted = engine.generate("hello", max_tokens=16, temperature=0, depth=3)
    assert plain.tokens == drafted.tokens
    assert drafted.stats.drafted > 0
    assert not list(tmp_path.rglob("*.partial"))
    assert describe(made).quantization == ("8bit" if to == "affine8" else to)
    with pytest.raises(OptionError, match="quantized already"):
        create("qq", Modelfile(source="q"), library, steps.append, quantize_to="affine4")
    with pytest.raises(OptionError, match="'q9' is not known"):
        create("qq", Modelfile(source=str(tiny)), library, steps.append, quantize_to="q9", local=True)


def test_uploaded_files_make_a_model(tiny: Path, tmp_path: Path):
    import hashlib
    import shutil

    library, files = Library(tmp_path), {}
    for file in (f for f in tiny.iterdir() if f.is_file()):
        digest = f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
        (tmp_path / "up").mkdir(exist_ok=True)
        assert put_blob(library, digest, Path(shutil.copy(file, tmp_path / "up" / file.name)))
        files[file.name] = digest
    made = create("up", Modelfile(), library, lambda s: None, files=files)
    assert pilotfish.load(made.source, draft=None).generate("x", max_tokens=3, temperature=0).stats.tokens == 3

    with pytest.raises(OptionError, match="digest mismatch"):
        put_blob(library, "sha256:" + "0" * 64, Path(shutil.copy(tiny / "config.json", tmp_path / "up" / "c")))
    for bad in ("../evil.json", "/tmp/evil.json", "weights.bin", "model.pkl"):
        with pytest.raises(OptionError, match="invalid file name"):
            create("bad", Modelfile(), library, lambda s: None, files={bad: files["config.json"]})
    with pytest.raises(OptionError, match="was not uploaded"):
        create("bad", Modelfile(), library, lambda s: None, files={"a.json": "sha256:" + "1" * 64})
