"""The agent against a scripted server: `python3 -m unittest test_agent`."""

import http.server
import json
import os
import subprocess
import sys
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import agent  # noqa: E402
import make_data  # noqa: E402


def says(content=None, calls=()):
    """A completion of this message."""
    tool_calls = [
        {"id": "call-%d" % i, "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(calls)
    ]
    return 200, {}, {"choices": [{"message": {"role": "assistant", "content": content, "tool_calls": tool_calls}}]}


def asks(expression):
    return says(calls=[("calculator", json.dumps({"expression": expression}))])


class Server:
    """Answers requests from a script, and keeps what it was sent."""

    def __init__(self, script):
        self.script, self.seen = list(script), []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.seen.append((self.path, dict(self.headers), body))
                status, headers, answer = outer.script.pop(0) if outer.script else (500, {}, {"error": "script is over"})
                data = json.dumps(answer).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), "Connection": "close", **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d" % self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class AgentTest(unittest.TestCase):
    def run_agent(self, script, **environment):
        server = Server(script)
        try:
            env = {
                "AGL_OPENAI_BASE_URL": server.url + "/v1",
                "AGL_EVENT_URL": server.url + "/events",
                "AGL_KEY": "s3cret",
                "QUESTION": "What is 67 + 81?",
                "ANSWER": "148",
                "PATH": os.environ.get("PATH", ""),
            }
            env.update(environment)
            command = [sys.executable, os.path.join(HERE, "agent.py")]
            done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        finally:
            server.close()
        return done, server.seen

    def test_tool_loop(self):
        done, seen = self.run_agent([asks("67 + 81"), says("148"), (200, {}, {})])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([path for path, _, _ in seen], ["/v1/chat/completions"] * 2 + ["/events"])
        self.assertEqual(seen[0][2]["tools"][0]["function"]["name"], "calculator")
        self.assertEqual(seen[1][2]["messages"][-1], {"role": "tool", "tool_call_id": "call-0", "content": "148"})
        self.assertEqual(seen[2][2], {"event_type": "reward", "data": {"value": 1.0, "source": "agent"}})
        for _, headers, _ in seen:
            self.assertEqual(headers["Authorization"], "Bearer s3cret")

    def test_guess_without_a_tool(self):
        done, seen = self.run_agent([says("about 150"), (200, {}, {})])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(seen[-1][2]["data"]["value"], 0.0)

    def test_malformed_calls_are_told_to_the_model(self):
        for name, arguments in [
            ("calculator", "{not json"),
            ("calculator", '{"expression": "__import__(\'os\')"}'),
            ("calculator", '{"expression": 5}'),
            ("calculator", "[]"),
            ("search", "{}"),
        ]:
            done, seen = self.run_agent([says(calls=[(name, arguments)]), says("148"), (200, {}, {})])
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(seen[1][2]["messages"][-1]["content"].startswith("error"), arguments)

    def test_turns_are_bounded(self):
        done, seen = self.run_agent([asks("1 + 1")] * agent.MAX_TURNS + [(200, {}, {})])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(seen), agent.MAX_TURNS + 1)
        self.assertEqual(seen[-1][2]["data"]["value"], 0.0)

    def test_a_paused_gateway_is_asked_again(self):
        paused = (429, {"Retry-After": "0"}, {"error": "gateway paused"})
        done, seen = self.run_agent([paused, paused, says("148"), (200, {}, {})])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(seen), 4)

    def test_an_error_is_told_and_exits_with_1(self):
        done, _ = self.run_agent([(400, {}, {"error": {"message": "no such model"}})])
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"no such model", done.stderr)

    def test_a_server_that_is_gone(self):
        done, _ = self.run_agent([], AGL_OPENAI_BASE_URL="http://127.0.0.1:1/v1")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"cannot reach", done.stderr)

    def test_an_answer_that_is_no_completion_is_shown(self):
        for answer in [{}, [], {"choices": []}, {"choices": [{"message": None}]}, {"detail": "not this path"}]:
            done, seen = self.run_agent([(200, {}, answer)])
            self.assertEqual((done.returncode, len(seen)), (1, 1), done.stderr)
            self.assertIn(b"answered no chat completion: " + json.dumps(answer).encode(), done.stderr)
            self.assertNotIn(b"Traceback", done.stderr)

    def test_an_answer_that_breaks_off(self):
        done, _ = self.run_agent([(200, {"Content-Length": "999"}, {})])
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"cannot reach", done.stderr)
        self.assertNotIn(b"Traceback", done.stderr)

    def test_a_reward_that_cannot_be_posted(self):
        done, _ = self.run_agent([says("148"), (404, {}, {"detail": "Rollout not found"})])
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"Rollout not found", done.stderr)

    def test_a_missing_variable_is_named(self):
        whole = {"AGL_OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "QUESTION": "?", "ANSWER": "1", "PATH": os.environ.get("PATH", "")}
        for name in ["AGL_OPENAI_BASE_URL", "QUESTION", "ANSWER"]:
            env = {key: value for key, value in whole.items() if key != name}
            done = subprocess.run([sys.executable, os.path.join(HERE, "agent.py")], env=env, stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"the environment variable %s is not set" % name.encode(), done.stderr)


class ScoreTest(unittest.TestCase):
    def test_the_last_number_counts(self):
        for text, answer, reward in [("148", "148", 1), ("It is 7, no, 148.", "148", 1), ("1480", "148", 0), ("", "148", 0), ("-3", "-3", 1)]:
            self.assertEqual(agent.score(text, answer), reward, text)

    def test_only_arithmetic_is_calculated(self):
        self.assertEqual(agent.calculate("12 * 3 - 40"), -4)
        for expression in ["2 ** 9", "1 / 0", "a", "True + 1", "1.5 + 1", "", "1" * 101, "(" * 99]:
            with self.assertRaises((ValueError, SyntaxError, MemoryError, RecursionError)):
                agent.calculate(expression)


class DataTest(unittest.TestCase):
    def read(self, name):
        with open(os.path.join(HERE, name), encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    def test_the_files_are_what_the_script_writes_and_share_no_question(self):
        train, val = self.read("train.jsonl"), self.read("val.jsonl")
        self.assertEqual((len(train), len(val)), (make_data.TRAIN, make_data.VALIDATION))
        source = make_data.questions()
        self.assertEqual(train + val, [next(source) for _ in range(len(train) + len(val))])
        self.assertEqual(len({task["question"] for task in train + val}), len(train) + len(val))

    def test_the_calculator_gives_the_answers(self):
        for task in self.read("val.jsonl"):
            expression = task["question"][len("What is ") : -1]
            self.assertEqual(str(agent.calculate(expression)), task["answer"])


if __name__ == "__main__":
    unittest.main()
