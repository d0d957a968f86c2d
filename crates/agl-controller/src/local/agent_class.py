"""Runs `config.local.agent_class`: one argument, `pkg.mod.Class` or `pkg.mod:Class`; exit code 1 on an exception."""

import asyncio
import importlib
import inspect
import sys
import traceback


def load(path):
    module_name, class_name = path.split(":", 1) if ":" in path else path.rsplit(".", 1)
    found = getattr(importlib.import_module(module_name), class_name)
    if not isinstance(found, type):
        raise TypeError(f"{path} is not a class")
    return found


async def finish(awaitable):
    return await awaitable


try:
    result = load(sys.argv[1])().run()
    if inspect.isawaitable(result):
        asyncio.run(finish(result))
except Exception:
    traceback.print_exc()
    sys.exit(1)
