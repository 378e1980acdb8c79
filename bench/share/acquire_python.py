"""The Python side of `prefixd-bench share --only python`: acquires when it is told to, and says how
long that took. acquire_python.py PACKAGE LIBRARY ADDRESS, driven by bench/share/python.cc.

In: a line of JSON that names the space and the tokens, then "array" or "list", a line a lookup.
Out, in JSON: "ready" or what is wrong, then microseconds, from the tokens to knowing that all can
be read, or what is wrong.
"""

import json
import sys
import time


def main() -> None:
    package, library, address = sys.argv[1:]
    sys.path.insert(0, package)
    import numpy as np
    import prefixd

    def say(what: object) -> None:
        print(json.dumps(what), flush=True)

    asked = json.loads(sys.stdin.readline())
    client = prefixd.connect(address, name="share-python", library=library)
    if not client.wait_attached(20_000):
        return say(client.error)
    layer = prefixd.FullLayer(
        asked["kv_heads"], asked["dim"], asked["dim"], [prefixd.mlx_affine(8, 64, "float16")]
    )
    space = client.open_space(
        model=asked["model"],
        weights=bytes([1]) + bytes(31),
        layers=[layer] * asked["layers"],
    )
    if space.id != asked["space"]:
        return say(f"another space: {space.id}, {space.error}")
    say("ready")
    forms = {"list": asked["tokens"], "array": np.array(asked["tokens"], np.uint32)}
    for line in sys.stdin:
        tokens = forms[line.strip()]
        time.sleep(0.001)  # as an engine computes between its calls: bench/share_acquire.cc
        start = time.perf_counter_ns()
        lease = space.acquire(tokens, deadline_ms=20_000)
        found = lease.wait_all()
        took_us = (time.perf_counter_ns() - start) / 1000
        lease.release()
        say(took_us if found == len(tokens) else f"{found} tokens: {lease.match}")


if __name__ == "__main__":
    main()
