#include "client/llama/state_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"

namespace prefixd::llama {
namespace {

using interop::LlamaContext;
using interop::LlamaStateMap;

absl::Status ToAbsl(const Status& status) {
  return status.ok() ? absl::OkStatus() : absl::FailedPreconditionError(status.message);
}

// K or V of one layer in a state.
struct Tensor {
  uint32_t heads = 0;
  size_t token_bytes = 0;  // of all heads
  size_t element = 0;      // of transposed values, else 0
  std::byte* rows = nullptr;
  size_t head_bytes() const { return token_bytes / heads; }
};

Tensor KeysOf(const LlamaStateMap& map, const SpaceSpec& spec, size_t layer, std::byte* state) {
  return {.heads = spec.layers[layer].kv_heads,
          .token_bytes = map.context.keys[layer].token_bytes,
          .element = 0,
          .rows = state + map.keys[layer]};
}
Tensor ValuesOf(const LlamaStateMap& map, const SpaceSpec& spec, size_t layer, std::byte* state) {
  const interop::LlamaTensor& values = map.context.values[layer];
  return {.heads = spec.layers[layer].kv_heads,
          .token_bytes = values.token_bytes,
          .element = map.context.values_transposed ? quant::DtypeBytes(values.format.dtype) : 0,
          .rows = state + map.values[layer]};
}

// Moves the elements of `count` dense rows, from token `begin` on, to or from a tensor
// [head][channel][cell] of `cells` cells. cell_of(token) is the token's cell.
template <typename Copy, typename CellOf>
void ForEachElement(const Tensor& tensor, uint32_t cells, uint32_t begin, uint32_t count,
                    const CellOf& cell_of, const Copy& copy) {
  const size_t channels = tensor.token_bytes / tensor.element;  // of all heads
  for (size_t channel = 0; channel < channels; ++channel) {
    std::byte* const column = tensor.rows + channel * cells * tensor.element;
    for (uint32_t i = 0; i < count; ++i) {
      copy(column + cell_of(begin + i) * tensor.element,
           i * tensor.token_bytes + channel * tensor.element);
    }
  }
}

// Rows of tokens as the client takes and gives them.
template <typename View, typename Pointer>
View Dense(const Tensor& tensor, Pointer rows) {
  View view;
  view.codes = rows;
  view.codes_head_stride = tensor.head_bytes();
  view.codes_token_stride = tensor.token_bytes;
  return view;
}

// Where each token of a saved state stands.
class Cells {
 public:
  explicit Cells(const LlamaStateMap& map) : cell_of_(map.order.size()) {
    for (uint32_t cell = 0; cell < map.order.size(); ++cell) cell_of_[map.order[cell]] = cell;
  }
  bool in_order() const { return cell_of_.empty(); }
  uint32_t operator()(uint32_t token) const { return in_order() ? token : cell_of_[token]; }

 private:
  std::vector<uint32_t> cell_of_;
};

// Returns tokens [begin, begin + count) of a saved tensor, copied to `scratch` where they do not
// stand one behind the other.
PackedView RowsOf(const Tensor& tensor, uint32_t all_cells, const Cells& cells, uint32_t begin,
                  uint32_t count, std::vector<std::byte>* scratch) {
  if (tensor.element == 0 && cells.in_order()) {
    return Dense<PackedView>(tensor, tensor.rows + begin * tensor.token_bytes);
  }
  scratch->resize(count * tensor.token_bytes);
  if (tensor.element == 0) {
    for (uint32_t i = 0; i < count; ++i) {
      std::memcpy(scratch->data() + i * tensor.token_bytes,
                  tensor.rows + cells(begin + i) * tensor.token_bytes, tensor.token_bytes);
    }
  } else {
    ForEachElement(tensor, all_cells, begin, count, cells,
                   [&](const std::byte* in_state, size_t in_rows) {
                     std::memcpy(scratch->data() + in_rows, in_state, tensor.element);
                   });
  }
  return Dense<PackedView>(tensor, scratch->data());
}

}  // namespace

absl::StatusOr<StateFile> StateFile::Map(std::string path, int file, uint64_t bytes, bool write) {
  void* const data = bytes == 0 ? MAP_FAILED
                                : mmap(nullptr, bytes, write ? PROT_READ | PROT_WRITE : PROT_READ,
                                       MAP_SHARED, file, 0);
  const int error = bytes == 0 ? EINVAL : errno;
  close(file);
  if (data == MAP_FAILED) {
    unlink(path.c_str());
    return absl::ErrnoToStatus(error, absl::StrCat(path, ": cannot be mapped"));
  }
  return StateFile(std::move(path), {static_cast<std::byte*>(data), bytes});
}

absl::StatusOr<StateFile> StateFile::Open(std::string path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  struct stat facts;
  if (file < 0 || fstat(file, &facts) != 0) {
    const absl::Status error = absl::ErrnoToStatus(errno, path);
    if (file >= 0) close(file);
    return error;
  }
  return Map(std::move(path), file, static_cast<uint64_t>(facts.st_size), false);
}

absl::StatusOr<StateFile> StateFile::Create(std::string path, uint64_t bytes) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0640);
  if (file < 0) return absl::ErrnoToStatus(errno, path);
  // Backed at once: a write through the mapping to a full file system would kill this process.
  if (const int error = posix_fallocate(file, 0, static_cast<off_t>(bytes)); error != 0) {
    close(file);
    unlink(path.c_str());
    return absl::ErrnoToStatus(error, absl::StrCat(path, ": ", bytes, " bytes"));
  }
  return Map(std::move(path), file, bytes, true);
}

StateFile::StateFile(StateFile&& other) noexcept
    : path_(std::exchange(other.path_, "")), bytes_(std::exchange(other.bytes_, {})) {}

StateFile::~StateFile() {
  if (path_.empty()) return;
  munmap(bytes_.data(), bytes_.size());
  unlink(path_.c_str());
}

absl::StatusOr<StateFile> WriteState(const LlamaContext& context, const SpaceSpec& spec,
                                     std::span<const uint32_t> tokens, Lease& lease,
                                     const std::string& path) {
  const auto count = static_cast<uint32_t>(tokens.size());
  const LlamaStateMap map = interop::LayOutLlamaState(context, tokens, count);
  PREFIXD_ASSIGN_OR_RETURN(StateFile file, StateFile::Create(path, map.bytes));
  interop::WriteLlamaHeads(map, file.bytes());
  std::vector<std::byte> scratch;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const Tensor keys = KeysOf(map, spec, i, file.bytes().data());
    const Tensor values = ValuesOf(map, spec, i, file.bytes().data());
    std::byte* value_rows = values.rows;
    if (values.element != 0) {
      scratch.resize(count * values.token_bytes);
      value_rows = scratch.data();
    }
    PREFIXD_RETURN_IF_ERROR(ToAbsl(lease.Gather(static_cast<int>(i), 0, count,
                                                Dense<MutablePackedView>(keys, keys.rows),
                                                Dense<MutablePackedView>(values, value_rows))));
    if (values.element == 0) continue;
    ForEachElement(
        values, count, 0, count, [](uint32_t token) { return token; },
        [&](std::byte* in_state, size_t in_rows) {
          std::memcpy(in_state, scratch.data() + in_rows, values.element);
        });
  }
  return file;
}

absl::StatusOr<CommitInfo> StoreState(const LlamaContext& context, const SpaceSpec& spec,
                                      const StateFile& file, const LlamaStateMap& map,
                                      std::span<const uint32_t> turn_ends, Space& space) {
  if (map.context != context) {
    return absl::FailedPreconditionError("the saved state is of another context of llama.cpp");
  }
  if (map.tokens.size() < map.cells) {
    return absl::FailedPreconditionError(absl::StrCat("the saved state has ", map.tokens.size(),
                                                      " tokens and ", map.cells, " cells"));
  }
  const std::span<const uint32_t> tokens(map.tokens.data(), map.cells);
  Plan plan = space.Reserve(tokens, {.turn_ends = turn_ends});
  PREFIXD_RETURN_IF_ERROR(ToAbsl(plan.status()));
  const Cells cells(map);
  std::vector<std::byte> key_scratch, value_scratch;
  CommitInfo all;
  const auto commit = [&](uint32_t end, bool last) {
    const Result<CommitInfo> done = plan.Commit(end, {.sequence_end = last});
    if (done.ok()) {
      all.stored_tokens += done.value().stored_tokens;
      all.duplicate_tokens += done.value().duplicate_tokens;
    }
    return ToAbsl(done.status);
  };
  for (const TokenRun run : std::vector<TokenRun>(plan.missing().begin(), plan.missing().end())) {
    const uint32_t count = run.end - run.begin;
    for (size_t i = 0; i < spec.layers.size(); ++i) {
      const PackedView keys = RowsOf(KeysOf(map, spec, i, file.bytes().data()), map.cells, cells,
                                     run.begin, count, &key_scratch);
      const PackedView values = RowsOf(ValuesOf(map, spec, i, file.bytes().data()), map.cells,
                                       cells, run.begin, count, &value_scratch);
      PREFIXD_RETURN_IF_ERROR(
          ToAbsl(plan.WritePacked(static_cast<int>(i), run.begin, count, keys, values)));
    }
    if (run.end < tokens.size()) PREFIXD_RETURN_IF_ERROR(commit(run.end, false));
  }
  PREFIXD_RETURN_IF_ERROR(commit(static_cast<uint32_t>(tokens.size()), true));
  return all;
}

}  // namespace prefixd::llama
