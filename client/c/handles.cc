#include "handles.h"

#include <cstdio>

namespace prefixd::c {
namespace {

constexpr size_t kMostTokens = size_t{1} << 31;

// No destructor: a thread may end after everything else.
thread_local char last_error[512] = "";
thread_local prefixd_status last_status = PREFIXD_OK;

static_assert(static_cast<int>(StatusCode::kInternal) == PREFIXD_INTERNAL);
static_assert(static_cast<int>(StatusCode::kInvalidArgument) == PREFIXD_INVALID_ARGUMENT);
static_assert(static_cast<int>(StatusCode::kUnavailable) == PREFIXD_UNAVAILABLE);
static_assert(static_cast<int>(StatusCode::kFailedPrecondition) == PREFIXD_FAILED_PRECONDITION);
static_assert(static_cast<int>(Codec::kNvFp4) == PREFIXD_NVFP4);
static_assert(static_cast<int>(Dtype::kBf16) == PREFIXD_BF16);
static_assert(static_cast<int>(MatchKind::kNone) == PREFIXD_NONE);

}  // namespace

void SetError(prefixd_status status, const char* sentence) noexcept {
  last_status = status;
  std::snprintf(last_error, sizeof(last_error), "%s", sentence);
}

const char* LastError() noexcept { return last_error; }
prefixd_status LastStatus() noexcept { return last_status; }

prefixd_status Tell(const Status& status) noexcept {
  SetError(static_cast<prefixd_status>(status.code), status.message.c_str());
  return last_status;
}

prefixd_status Refuse(const char* sentence) noexcept {
  SetError(PREFIXD_INVALID_ARGUMENT, sentence);
  return PREFIXD_INVALID_ARGUMENT;
}

bool CheckSize(const void* from, size_t size, size_t known) noexcept {
  const char* const why = base::WhyNotReadable(from, size, known);
  if (why == nullptr) return true;
  char sentence[128];
  std::snprintf(sentence, sizeof(sentence), "prefixd: %s", why);
  Refuse(sentence);
  return false;
}

bool CheckTokens(const uint32_t* tokens, size_t count) noexcept {
  if (count <= kMostTokens && (tokens != nullptr || count == 0)) return true;
  Refuse(count > kMostTokens ? "prefixd: more than 2^31 tokens" : "prefixd: no tokens given");
  return false;
}

TensorFormat FormatOf(const prefixd_tensor_format& format) {
  const auto codec = static_cast<Codec>(format.codec);
  TensorFormat to;
  if (codec == Codec::kRaw) {
    to = Raw(static_cast<Dtype>(format.dtype)).key;
  } else if (codec == Codec::kMlxAffine) {
    to = MlxAffine(format.bits, format.group_size, static_cast<Dtype>(format.dtype)).key;
  } else if (codec >= Codec::kMxFp4) {
    to = BlockFloat(codec, codec).key;
  } else {
    to = Ggml(codec, codec).key;
  }
  // The codec implies these. If they are given all the same, they must be right.
  if (format.bits != 0) to.bits = format.bits;
  if (format.group_size != 0) to.group_size = format.group_size;
  if (format.dtype != 0) to.dtype = static_cast<Dtype>(format.dtype);
  if (format.layout != 0) to.layout = static_cast<Layout>(format.layout);
  return to;
}

KvFormat FormatOf(const prefixd_format& format) {
  return {.key = FormatOf(format.key), .value = FormatOf(format.value)};
}

std::vector<Content> ContentOf(const prefixd_content* content, uint32_t count) {
  std::vector<Content> items;
  for (uint32_t i = 0; content != nullptr && i < count; ++i) {
    Content& item = items.emplace_back();
    item.start = content[i].start;
    item.length = content[i].length;
    item.item_offset = content[i].item_offset;
    std::memcpy(item.digest.data(), content[i].digest, item.digest.size());
  }
  return items;
}

}  // namespace prefixd::c

extern "C" {

uint32_t prefixd_abi_version(void) { return PREFIXD_ABI_VERSION; }
const char* prefixd_last_error(void) { return prefixd::c::LastError(); }
prefixd_status prefixd_last_status(void) { return prefixd::c::LastStatus(); }

}  // extern "C"
