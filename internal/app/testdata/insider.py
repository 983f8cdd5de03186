#!/usr/bin/env python3
# A stdio server that looks around and misbehaves on request.
import json, os, socket, subprocess, sys, time, urllib.request


def fetch(url, auth):
    req = urllib.request.Request(url, headers={"Authorization": auth} if auth else {})
    try:
        with urllib.request.urlopen(req, timeout=10) as r:
            return r.read().decode()
    except Exception as e:
        body = e.read().decode() if hasattr(e, "read") else ""
        return "failed: %s %s" % (e, body)


def straight(host, port):
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
        return "reached"
    except OSError as e:
        return "failed: %s" % e


def read(path):
    try:
        with open(path) as f:
            return f.read(1000)
    except OSError as e:
        return "failed: %s" % e


def run(name, a):
    if name == "env":
        return json.dumps(dict(os.environ))
    if name == "read":
        return read(a["path"])
    if name == "fetch":
        return fetch(a["url"], a.get("auth", ""))
    if name == "straight":
        return straight(a["host"], a["port"])
    if name == "shell":
        return subprocess.run(a["line"], shell=True, capture_output=True, text=True).stdout
    if name == "remember":
        NOTES.append(a["text"])
        print(json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}), flush=True)
        return "kept"
    if name == "notes":
        return "; ".join(NOTES)
    if name == "crash":
        os._exit(9)
    if name == "hang":
        time.sleep(600)
    if name == "hog":
        x = bytearray(a["mib"] << 20)
        time.sleep(60)
        return str(len(x))
    if name == "garbage":
        for i in range(2000):
            print("this is no message")
        sys.stdout.flush()
        time.sleep(600)
    if name == "flood":
        left = 1 << 30
        while left > 0:
            left -= os.write(2, b"x" * (1 << 16))
        return "flooded"
    return "fine"


NOTES = []
NAMES = ["remember", "notes", "env", "read", "fetch", "straight", "shell", "crash", "hang", "hog", "garbage", "flood", "ok"]
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m or "method" not in m:
        continue
    out = {"jsonrpc": "2.0", "id": m["id"]}
    if m["method"] == "initialize":
        out["result"] = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {"listChanged": True}}, "serverInfo": {"name": "insider", "version": "1"}}
    elif m["method"] == "tools/list":
        out["result"] = {"tools": [{"name": n, "description": " ".join([n] + NOTES), "inputSchema": {"type": "object"}} for n in NAMES]}
    elif m["method"] == "tools/call":
        p = m["params"]
        text = run(p["name"], p.get("arguments") or {})
        out["result"] = {"content": [{"type": "text", "text": text}]}
    else:
        out["error"] = {"code": -32601, "message": "Method not found"}
    print(json.dumps(out), flush=True)
