#include "interop/llama_state_format.h"

#include <algorithm>
#include <array>

namespace prefixd::interop::llama {
namespace {

struct Type {
  int32_t number = 0;  // ggml's number of the type
  quant::TensorFormat format;
};
const std::array<Type, 8>& Types() {
  using quant::Codec;
  using quant::Dtype;
  static const std::array<Type, 8> types = {{{0, quant::RawFormat(Dtype::kF32)},
                                             {1, quant::RawFormat(Dtype::kF16)},
                                             {30, quant::RawFormat(Dtype::kBf16)},
                                             {2, quant::GgmlFormat(Codec::kQ4_0)},
                                             {3, quant::GgmlFormat(Codec::kQ4_1)},
                                             {6, quant::GgmlFormat(Codec::kQ5_0)},
                                             {7, quant::GgmlFormat(Codec::kQ5_1)},
                                             {8, quant::GgmlFormat(Codec::kQ8_0)}}};
  return types;
}

}  // namespace

absl::StatusOr<quant::TensorFormat> FormatOf(int32_t number) {
  for (const Type& type : Types()) {
    if (type.number == number) return type.format;
  }
  return Bad("ggml type ", number,
             " is not known here, accepted: f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0");
}

int32_t NumberOf(const quant::TensorFormat& format) {
  const auto type = std::find_if(Types().begin(), Types().end(),
                                 [&](const Type& each) { return each.format == format; });
  return type == Types().end() ? -1 : type->number;
}

}  // namespace prefixd::interop::llama
