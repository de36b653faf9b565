"""The conversation that aider's `whole` edit format makes of an exercise, and the files that an answer holds.

Order and roles are aider's (system rules, a worked example, the files, the task with the rules again); the words are
ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pilotfish.text.template import Message

RULES = """When you change a file, give the whole file, like this:

name/of/the/file.ext
```
all lines of the file, those that stay the same as well
```

The line before the fence holds the file's name and nothing else. Never shorten a file or leave parts out. A new file is
given in the same way."""

SYSTEM = f"""You are an expert software developer who writes complete, correct code.
Work on the files that the user shows. Ask if a request is unclear; otherwise explain briefly and then give every file
that you change.

{RULES}"""

EXAMPLE: list[Message] = [
    {"role": "user", "content": "Let the program greet its user by name."},
    {
        "role": "assistant",
        "content": "The greeting takes a name now:\n\ngreet.py\n```\nimport sys\n\n\ndef greet(name):\n"
        '    print(f"Hello, {name}!")\n\n\nif __name__ == "__main__":\n    greet(sys.argv[1])\n```\n',
    },
    {"role": "user", "content": "From now on we work on another project. Forget the files above."},
    {"role": "assistant", "content": "Understood."},
]


def messages(instructions: str, files: Mapping[str, str]) -> list[Message]:
    """The conversation of a first attempt; the user's last turn ends it."""
    shown = "\n\n".join(f"{name}\n{fenced(content)}" for name, content in files.items())
    names = ", ".join(files)
    task = (
        f"{instructions.rstrip()}\n\n####\n\nFollow these instructions by changing the files {names}. Keep the names "
        "of functions and classes, for other code calls them. Use standard libraries only.\n\n" + RULES
    )
    return [
        {"role": "system", "content": SYSTEM},
        *EXAMPLE,
        {"role": "user", "content": f"These files are in the chat now; change them as needed:\n\n{shown}"},
        {"role": "assistant", "content": "I will change only these files."},
        {"role": "user", "content": task},
    ]


def fenced(content: str) -> str:
    """`content` between fences that do not occur in it."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall(r"`{3,}", content))])
    return f"{fence}\n{content.rstrip()}\n{fence}"


_FILE = re.compile(r"^[ \t*#`]*([\w./ -]+?)[ \t*:`]*\n(`{3,})[^\n]*\n(.*?)^\2[ \t]*$", re.MULTILINE | re.DOTALL)


def answered_files(answer: str, names: Mapping[str, str]) -> dict[str, str]:
    """The files among `names` that an answer gives whole; the last version of each counts."""
    by_name = {name: name for name in names} | {name.rsplit("/", 1)[-1]: name for name in names}
    found = {}
    for match in _FILE.finditer(answer):
        name = by_name.get(match.group(1).strip())
        if name is not None:
            found[name] = match.group(3)
    return found
