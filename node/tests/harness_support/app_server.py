"""A stand-in for `codex app-server` that misbehaves when the prompt says so. Speaks JSON lines on stdin and stdout."""

import json
import os
import sys
import time


def tell(**frame):
    sys.stdout.write(json.dumps(frame) + "\n")
    sys.stdout.flush()


def notify(method, **params):
    tell(method=method, params={"threadId": "th", **params})


def end(status="completed", text="", error=None):
    if text:
        notify("item/completed", turnId="t", item={"type": "agentMessage", "id": "m", "text": text})
    notify("turn/completed", turn={"id": "t", "status": status, "error": error})


def turn(prompt, waiting):
    notify("turn/started", turn={"id": "t"})
    word = prompt.split()[0]
    if word == "pid":
        end(text=str(os.getpid()))
    elif word == "noise":
        sys.stdout.write("no JSON\n\n[1,2\n{\"half\":\n\xff\n")
        sys.stdout.flush()
        end(text="fine")
    elif word == "flood":
        sys.stdout.write("x" * (17 * 1024 * 1024))
        sys.stdout.flush()
    elif word == "quit":
        sys.stderr.write("out of luck\n")
        sys.exit(0)
    elif word == "strange":
        tell(id="s", method="item/rocket/requestApproval", params={"threadId": "th", "reason": "launch"})
        waiting["s"] = lambda answer: end(text=json.dumps(answer.get("result")))
    elif word == "deaf":
        # Neither an interrupt nor SIGTERM stops this one.
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        notify("item/agentMessage/delta", turnId="t", itemId="m", delta="deaf")
        time.sleep(600)
    elif word == "hold":
        notify("item/agentMessage/delta", turnId="t", itemId="m", delta="holding")


def main():
    waiting = {}
    sys.stdout.reconfigure(encoding="latin-1", errors="replace")
    for line in sys.stdin:
        frame = json.loads(line)
        method = frame.get("method")
        if method is None:
            waiting.pop(frame["id"], lambda answer: None)(frame)
        elif method in ("thread/start", "thread/resume"):
            tell(id=frame["id"], result={"thread": {"id": "th"}, "model": "m"})
        elif method == "turn/start":
            tell(id=frame["id"], result={"turn": {"id": "t"}})
            turn(frame["params"]["input"][0]["text"], waiting)
        elif method == "turn/interrupt":
            tell(id=frame["id"], result={})
            end(status="interrupted")
        elif "id" in frame:
            tell(id=frame["id"], result={})


main()
