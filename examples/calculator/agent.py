"""An agent that answers arithmetic questions with a calculator.

A normal tool loop over Chat Completions, on the standard library alone. It knows nothing of training: it is given a URL, a key,
a question and the right answer, and says at the end how well it did.

    AGL_OPENAI_BASE_URL   base URL of an OpenAI-compatible API (any: a vLLM server works as well)
    AGL_EVENT_URL         where the reward is posted; without it the reward is only printed
    AGL_KEY               API key for both; may be empty
    QUESTION, ANSWER      the task
"""

import ast
import http.client
import json
import operator
import os
import re
import sys
import time
from urllib.parse import urlsplit

MAX_TURNS = 4
MAX_TOKENS = 48
MAX_TRIES = 20
TIMEOUT_SECONDS = 60
RETRIED = (429, 502, 503)

SYSTEM = "Answer with a number."
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}
OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.USub: operator.neg,
}


class ApiError(Exception):
    """The API did not answer as hoped."""


def post(url, body):
    """POST JSON and give the answer's text, with patience: a gateway that is busy or paused says when to come back."""
    parts = urlsplit(url)
    connection_class = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    headers = {"Content-Type": "application/json"}
    if os.environ.get("AGL_KEY"):
        headers["Authorization"] = "Bearer " + os.environ["AGL_KEY"]
    path = parts.path + ("?" + parts.query if parts.query else "")
    problem = "no answer"
    for attempt in range(MAX_TRIES):
        connection = connection_class(parts.netloc, timeout=TIMEOUT_SECONDS)
        try:
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise ApiError("cannot reach %s: %s: %s" % (url, type(error).__name__, error)) from error
        finally:
            connection.close()
        if response.status < 400:
            return text
        problem = "HTTP %d: %s" % (response.status, text[:500])
        if response.status not in RETRIED:
            break
        if attempt + 1 < MAX_TRIES:
            time.sleep(retry_delay(response.getheader("Retry-After")))
    raise ApiError("%s answered %s" % (url, problem))


def retry_delay(retry_after):
    """Seconds to wait, as the server asks, within reason."""
    try:
        return min(max(float(retry_after), 0.05), 30.0)
    except (TypeError, ValueError):
        return 1.0


def calculate(expression):
    """The value of +, - and * over whole numbers. Never `eval`: the expression is the model's."""

    def value(node):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            return OPERATIONS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATIONS:
            return OPERATIONS[type(node.op)](value(node.operand))
        raise ValueError(expression)

    if len(expression) > 100:
        raise ValueError("too long")
    return value(ast.parse(expression.strip(), mode="eval").body)


def run_tool(call):
    """The result of a tool call as text; a mistake is told to the model, which may try again."""
    try:
        if call["function"]["name"] != "calculator":
            return "error: no such tool"
        return str(calculate(json.loads(call["function"]["arguments"])["expression"]))
    except (ValueError, KeyError, TypeError, SyntaxError, AttributeError, RecursionError, MemoryError):
        return "error"


def complete(url, body):
    """The message of a chat completion."""
    text = post(url, body)
    try:
        return dict(json.loads(text)["choices"][0]["message"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ApiError("%s answered no chat completion: %s" % (url, text[:500])) from error


def answer_question(base_url, question):
    """Asks, runs the tools the model wants, and gives its last words."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    for _ in range(MAX_TURNS):
        body = {"model": "policy", "messages": messages, "tools": [CALCULATOR], "max_tokens": MAX_TOKENS}
        message = complete(base_url.rstrip("/") + "/chat/completions", body)
        calls = message.get("tool_calls") or []
        if not calls:
            return message.get("content") or ""
        messages.append({"role": "assistant", "content": message.get("content"), "tool_calls": calls})
        for call in calls:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": run_tool(call)})
    return ""


def score(text, answer):
    """1 if the last number in the text is the answer, else 0."""
    numbers = re.findall(r"-?\d+", text)
    return 1.0 if numbers and numbers[-1] == answer else 0.0


def setting(name):
    """An environment variable that the agent can't do without."""
    if name not in os.environ:
        sys.exit("agent: the environment variable %s is not set" % name)
    return os.environ[name]


def main():
    base_url, question, answer = setting("AGL_OPENAI_BASE_URL"), setting("QUESTION"), setting("ANSWER")
    text = answer_question(base_url, question)
    reward = score(text, answer)
    print("%s -> %r, reward %g" % (question, text, reward))
    if os.environ.get("AGL_EVENT_URL"):
        post(os.environ["AGL_EVENT_URL"], {"event_type": "reward", "data": {"value": reward, "source": "agent"}})


if __name__ == "__main__":
    try:
        main()
    except ApiError as error:
        sys.exit("agent: %s" % error)
