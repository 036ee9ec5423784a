"""Engine without a model: vectors from the characters of a text, with a configurable delay."""

import os
import subprocess
import sys
import time


class Engine:
    def __init__(self, model, task, settings):
        if settings.get("fails"):
            raise RuntimeError(f"cannot read {model}")
        print("a library that prints", flush=True)  # must not mix with responses
        self.child = None
        if settings.get("has_child"):
            self.child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        self.settings = {**settings, "threads": 3, "model": model, "task": task, "pid": os.getpid()}
        self.settings["child"] = None if self.child is None else self.child.pid

    def run(self, task, inputs):
        if self.settings.get("refuses") == task:
            raise ValueError(f"does not {task}")
        if self.settings.get("dies"):
            print("out of memory", file=sys.stderr, flush=True)
            os._exit(9)
        time.sleep(self.settings.get("delay", 0.0))
        texts = inputs["documents"] if isinstance(inputs, dict) else inputs
        offset = self.settings.get("offset", 0.0)
        return [[len(text) + offset, text.count("e") + 1, 1.0] for text in texts]

    def to_rows(self, task, outputs):
        return outputs
