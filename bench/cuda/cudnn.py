"""Attention of PyTorch's cuDNN and flash backends on bf16 tensors, as prefixd-bench-cuda's prefill
line has it: 512 rows at the end of 32,768 tokens, 32 query heads, 8 kv heads, head dim 128."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention as sdpa

ROWS, TOKENS, HEADS, KV_HEADS, DIM = 512, 32768, 32, 8, 128


def microseconds(call, samples: int = 15) -> float:
    for _ in range(3):
        call()
    times = []
    for _ in range(samples):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2] * 1e3


def main() -> None:
    torch.manual_seed(1)
    shape = {"device": "cuda", "dtype": torch.bfloat16}
    q = torch.randn(1, HEADS, ROWS, DIM, **shape)
    k, v = (torch.randn(1, KV_HEADS, TOKENS, DIM, **shape) for _ in range(2))
    wide = [one.repeat_interleave(HEADS // KV_HEADS, 1) for one in (k, v)]
    folded = q.view(1, KV_HEADS, HEADS // KV_HEADS * ROWS, DIM)
    calls = {
        "not causal, grouped": lambda: sdpa(q, k, v, enable_gqa=True),
        "not causal, folded": lambda: sdpa(folded, k, v),
        "not causal, expanded": lambda: sdpa(q, *wide),
        "causal, lower right": lambda: sdpa(
            q, *wide, attn_mask=causal_lower_right(ROWS, TOKENS)
        ),
    }
    for name, backend in (
        ("cuDNN", SDPBackend.CUDNN_ATTENTION),
        ("flash", SDPBackend.FLASH_ATTENTION),
    ):
        for how, call in calls.items():
            try:
                with sdpa_kernel(backend):
                    us = microseconds(call)
                rate = 4 * ROWS * TOKENS * HEADS * DIM / us / 1e6
                print(f"{name} bf16 {ROWS} x {TOKENS} {how}: {us:.0f} us, {rate:.0f} TFLOP/s")
            except RuntimeError as error:
                print(f"{name} {how}: {str(error).splitlines()[0][:80]}")


if __name__ == "__main__":
    main()
