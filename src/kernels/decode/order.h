// In which order fast decode works on this machine. Internal to kernels/.
//
// Staged: the scores of a tile, its weights, its values, one after the other. Pipelined: the float
// work of one tile beside the products of another, for machines that read faster than they would
// compute else (pipeline-inl.h). Results are the same bits either way.
//
// Thread-safe.
#pragma once

namespace prefixd::kernels {

enum class DecodeOrder { kStaged, kPipelined };

// Chosen by the CPU's maker and family: pipelined on AMD from Zen 4 on, staged anywhere else. A
// measurement at start would choose differently from run to run on a busy host.
DecodeOrder OrderOfDecode();

// For tests and measurements: makes both orders the answer of OrderOfDecode, until ForgetOrder.
void ForceOrder(DecodeOrder order);
void ForgetOrder();

// "pipelined" or "staged"
const char* ToText(DecodeOrder order);

}  // namespace prefixd::kernels
