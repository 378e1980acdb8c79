"""Measures PyTorch's attention by cuDNN and flash on bf16 tensors, in the shapes of
prefixd-bench-cuda: 32 query heads, 8 kv heads, head dim 128.

    prefixd-bench-cuda decode prefill --json | python3 bench/cuda/cudnn.py --targets

With the JSON of prefixd-bench-cuda it says how many times as fast prefixd's kernels are as cuDNN."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention as sdpa

HEADS, KV_HEADS, DIM = 32, 8, 128
GROUP = HEADS // KV_HEADS
DECODE = ((8, 131072), (1, 131072), (8, 32768), (1, 32768))
PREFILL = (512, 32768)
CUDNN = ("cuDNN", SDPBackend.CUDNN_ATTENTION)
FLASH = ("flash", SDPBackend.FLASH_ATTENTION)

# C1 and C2: prefixd is at least so many times as fast as cuDNN. Names are prefixd-bench-cuda's.
TARGETS = {
    ("decode", "8 x 131072 K8/V4 rows"): 2.2,
    ("decode", "8 x 131072 K8/V4 tiled"): 2.2,
    ("decode", "1 x 131072 K8/V4 rows"): 2.0,
    ("decode", "1 x 131072 K8/V4 tiled"): 2.0,
    ("decode", "1 x 32768 K8/V4 rows"): 1.7,
    ("decode", "1 x 32768 K8/V4 tiled"): 1.7,
    ("decode", "8 x 131072 K4/V4 rows"): 3.1,
    ("decode", "8 x 131072 K4/V4 tiled"): 3.1,
    ("prefill", "512 x 32768 K8/V4 rows (C2)"): 0.7,
}
EXPANDED = "32768 tokens of K8/V4 rows to bf16"  # what "dequantize, then cuDNN" does first


def microseconds(call: Callable[[], object], samples: int = 15, calls: int = 8) -> float:
    """Returns the time of one call within a CUDA graph of `calls`, as prefixd-bench-cuda measures:
    the CPU's part does not count."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            call()
    times = []
    for at in range(samples + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if at >= 2:
            times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2] / calls * 1e3


def best_of(
    what: str, backend: tuple[str, SDPBackend], calls: dict[str, Callable[[], Tensor]]
) -> float:
    """Prints the time of each call, and returns the least; infinity if none can be made."""
    name, kind = backend
    least = float("inf")
    for how, call in calls.items():
        try:
            with sdpa_kernel(kind):
                us = microseconds(call)
        except RuntimeError as error:
            print(f"{what}, {name} {how}: {str(error).splitlines()[0][:80]}")
            continue
        print(f"{what}, {name} bf16 {how}: {us:.1f} us")
        least = min(least, us)
    return least


def tensors(batch: int, rows: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    shape = {"device": "cuda", "dtype": torch.bfloat16}
    q = torch.randn(batch, HEADS, rows, DIM, **shape)
    k, v = (torch.randn(batch, KV_HEADS, tokens, DIM, **shape) for _ in range(2))
    return q, k, v


def decode(batch: int, tokens: int) -> float:
    q, k, v = tensors(batch, 1, tokens)
    folded = q.view(batch, KV_HEADS, GROUP, DIM)
    calls = {
        "grouped": lambda: sdpa(q, k, v, enable_gqa=True),
        "folded": lambda: sdpa(folded, k, v),
    }
    return best_of(f"decode {batch} x {tokens}", CUDNN, calls)


def prefill(rows: int, tokens: int) -> float:
    """Returns cuDNN's best without a mask, which is faster than any call that has it."""
    q, k, v = tensors(1, rows, tokens)
    wide = [one.repeat_interleave(GROUP, 1) for one in (k, v)]
    folded = q.view(1, KV_HEADS, GROUP * rows, DIM)
    calls = {
        "not causal, grouped": lambda: sdpa(q, k, v, enable_gqa=True),
        "not causal, folded": lambda: sdpa(folded, k, v),
        "not causal, expanded": lambda: sdpa(q, *wide),
    }
    mask = causal_lower_right(rows, tokens)
    causal = {"causal, lower right": lambda: sdpa(q, *wide, attn_mask=mask)}
    what = f"prefill {rows} x {tokens}"
    least = best_of(what, CUDNN, calls)
    for backend, some in ((CUDNN, causal), (FLASH, {**calls, **causal})):
        best_of(what, backend, some)
    return least


def ratios(
    ours: dict[tuple[str, str], float], cudnn: dict[tuple[str, str], float]
) -> Iterator[tuple[str, float, float]]:
    """Yields each line that has a target: what, times as fast, target."""
    for (workload, name), target in TARGETS.items():
        us = ours.get((workload, name))
        if us is None:
            continue
        shape = " ".join(name.split()[:3])
        yield f"{workload} {name}, times as fast as cuDNN", cudnn[workload, shape] / us, target
    both = [ours.get(("prefill", EXPANDED)), ours.get(("prefill", "512 x 32768 K8/V4 rows (C2)"))]
    if None not in both:
        expand, us = both
        then = cudnn["prefill", "512 x 32768"] + expand
        yield "prefill (C2), times as fast as dequantizing, then cuDNN", then / us, 1.0


def figures_of_prefixd(path: str | None) -> dict[tuple[str, str], float]:
    """Returns the figures in the file, or in what is piped in; none at a terminal."""
    if path is not None:
        text = Path(path).read_text()
    else:
        text = "" if sys.stdin.isatty() else sys.stdin.read()
    figures = json.loads(text)["figures"] if text.strip() else []
    return {(one["workload"], one["name"]): one["value"] for one in figures}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", action="store_true", help="exit with 1 if a line misses one")
    parser.add_argument("file", nargs="?", help="JSON of prefixd-bench-cuda; default: a pipe")
    given = parser.parse_args()
    ours = figures_of_prefixd(given.file)
    torch.manual_seed(1)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    cudnn = {("decode", f"{batch} x {tokens}"): decode(batch, tokens) for batch, tokens in DECODE}
    cudnn["prefill", "%d x %d" % PREFILL] = prefill(*PREFILL)
    missed = False
    for what, ratio, target in ratios(ours, cudnn):
        missed = missed or ratio < target
        print(f"{what}: {ratio:.2f}, at least {target}{', missed' if ratio < target else ''}")
    return 1 if missed and given.targets else 0


if __name__ == "__main__":
    sys.exit(main())
