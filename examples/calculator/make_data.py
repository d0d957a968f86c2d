"""Writes train.jsonl and val.jsonl: two-digit arithmetic, no question of one in the other. The seed is fixed.

    python3 make_data.py
"""

import json
import pathlib
import random

SEED = 20261130
TRAIN, VALIDATION = 2000, 256
OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


def questions():
    """All questions, in an order that only the seed decides."""
    every = [(a, sign, b) for a in range(10, 100) for b in range(10, 100) for sign in OPERATIONS]
    random.Random(SEED).shuffle(every)
    for a, sign, b in every:
        yield {"question": "What is %d %s %d?" % (a, sign, b), "answer": str(OPERATIONS[sign](a, b))}


def main():
    folder = pathlib.Path(__file__).parent
    source = questions()
    for name, count in (("train.jsonl", TRAIN), ("val.jsonl", VALIDATION)):
        lines = [json.dumps(next(source)) for _ in range(count)]
        (folder / name).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
