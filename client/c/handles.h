// The handles of prefixd.h, and the helpers by which its functions keep their promises: no
// exception leaves a function, and structs are read as far as caller and library both know them.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/sized_struct.h"
#include "prefixd.h"
#include "prefixd/client.h"

// Every handle keeps its client, so the session ends with the last of them. Members are destroyed
// from the last to the first.
struct prefixd_client {
  std::shared_ptr<prefixd::Client> client;
};
struct prefixd_space {
  std::shared_ptr<prefixd::Client> client;
  prefixd::Space space;
  uint32_t layer_count = 0;
};
struct prefixd_lease {
  std::shared_ptr<prefixd::Client> client;
  prefixd::Lease lease;
  std::map<uint32_t, std::vector<prefixd_block>> tables{};  // of prefixd_table(), by layer
};
struct prefixd_plan {
  std::shared_ptr<prefixd::Client> client;
  prefixd::Plan plan;
};

namespace prefixd::c {

// Sets this thread's last error: the sentence, cut to its buffer, and the code.
void SetError(prefixd_status status, const char* sentence) noexcept;
const char* LastError() noexcept;
prefixd_status LastStatus() noexcept;
// Sets the last error to `status` and returns its code.
prefixd_status Tell(const Status& status) noexcept;
// Sets the last error to `sentence` and returns PREFIXD_INVALID_ARGUMENT.
prefixd_status Refuse(const char* sentence) noexcept;

// Clears the last error and calls `call`. If that throws, sets the last error and returns
// `otherwise`.
template <typename Answer, typename Call>
Answer Guarded(Answer otherwise, Call call) noexcept {
  SetError(PREFIXD_OK, "");
  try {
    return call();
  } catch (const std::bad_alloc&) {
    SetError(PREFIXD_EXHAUSTED, "prefixd: out of memory");
  } catch (const std::exception& error) {
    SetError(PREFIXD_INTERNAL, error.what());
  } catch (...) {
    SetError(PREFIXD_INTERNAL, "prefixd: unknown exception");
  }
  return otherwise;
}
template <typename Call>
void Guarded(Call call) noexcept {
  Guarded(0, [&] {
    call();
    return 0;
  });
}
// Calls `call`, which frees a handle, and leaves the last error as it is: a garbage collector frees
// handles between any two calls.
template <typename Call>
void Freeing(Call call) noexcept {
  try {
    call();
  } catch (...) {  // the handle is gone all the same
  }
}

// Returns true if the struct may be read (base::WhyNotReadable). Otherwise sets the last error.
bool CheckSize(const void* from, size_t size, size_t known) noexcept;

// Copies the members of `from` that caller and library both know; the others get their defaults.
// Returns false as CheckSize().
template <typename Struct>
bool Take(const Struct* from, Struct* to) noexcept {
  const bool readable = CheckSize(from, from == nullptr ? 0 : from->size, sizeof(Struct));
  base::CopyKnown(readable ? from : nullptr, to);
  return readable;
}
using base::Give;

// Returns entry `i` of an array whose entries all have the `size` of the first; null if there is no
// array.
template <typename Struct>
Struct* EntryOf(Struct* first, size_t i) noexcept {
  if (first == nullptr) return nullptr;
  using Byte = std::conditional_t<std::is_const_v<Struct>, const std::byte, std::byte>;
  return reinterpret_cast<Struct*>(reinterpret_cast<Byte*>(first) + i * first->size);
}

inline std::chrono::milliseconds Millis(uint32_t given, uint32_t otherwise) {
  return std::chrono::milliseconds(given != 0 ? given : otherwise);
}
inline std::string Text(const char* text) { return text == nullptr ? "" : text; }

inline int LayerOf(uint32_t layer) {  // -1 if no space has so many layers
  return layer > uint32_t{1} << 30 ? -1 : static_cast<int>(layer);
}
// View: PackedView or MutablePackedView.
template <typename View>
bool TakePlanes(const prefixd_planes* from, View* to) noexcept {
  prefixd_planes planes;
  if (!Take(from, &planes)) return false;
  *to = {.codes = planes.codes,
         .scales = planes.scales,
         .biases = planes.biases,
         .codes_head_stride = planes.codes_head_stride,
         .codes_token_stride = planes.codes_token_stride,
         .scales_head_stride = planes.scales_head_stride,
         .scales_token_stride = planes.scales_token_stride};
  return true;
}

// View: TensorView or MutableTensorView. Its strides count elements.
template <typename View>
bool TakeRows(const prefixd_rows* from, View* to) noexcept {
  prefixd_rows rows;
  if (!Take(from, &rows)) return false;
  const size_t element = rows.dtype == PREFIXD_F32 ? 4 : 2;
  if ((rows.head_stride | rows.token_stride) % element != 0) {
    Refuse("rows: a stride is no multiple of an element's size");
    return false;
  }
  *to = {.data = rows.data,
         .dtype = static_cast<Dtype>(std::min<uint32_t>(rows.dtype, UINT8_MAX)),
         .head_stride = rows.head_stride / element,
         .token_stride = rows.token_stride / element};
  return true;
}

// Returns false and sets the last error if this is no list of tokens.
bool CheckTokens(const uint32_t* tokens, size_t count) noexcept;
TensorFormat FormatOf(const prefixd_tensor_format& format);
KvFormat FormatOf(const prefixd_format& format);
std::vector<Content> ContentOf(const prefixd_content* content, uint32_t count);

}  // namespace prefixd::c
