"""Other engines, each run as a script in an environment of its own; they do not import pilotfish.

Protocol: arguments MODEL FORM [DRAFTER]; then for each line of JSON {"prompt": [ids], "max_tokens": n} on standard
input a line {"tokens": [ids], "seconds": decoding after the first token} on standard output. Greedy.
"""
