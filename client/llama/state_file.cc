#include "client/llama/state_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"

namespace prefixd::llama {
namespace {

using interop::LlamaContext;
using interop::LlamaStateMap;

constexpr uint64_t kMostKeptBytes = uint64_t{256} << 20;  // of files to be written again

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

StateFolder::StateFolder(std::string path) : path_(std::move(path)) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path_, error)) {
    const std::string name = entry.path().filename().string();
    int process = 0;
    if (std::sscanf(name.c_str(), "prefixd-%d-", &process) != 1 || process <= 0) continue;
    if (process == getpid() || (kill(process, 0) != 0 && errno == ESRCH)) {
      std::filesystem::remove(entry.path(), error);
    }
  }
}

StateFolder::~StateFolder() {
  base::MutexLock lock(mutex_);
  for (const Mapped& file : kept_) Remove(file);
}

std::string StateFolder::NewName() {
  return absl::StrCat("prefixd-", getpid(), "-", ++names_, ".bin");
}

void StateFolder::Remove(const Mapped& file) const {
  if (file.data != nullptr) munmap(file.data, file.mapped);
  if (file.file >= 0) close(file.file);
  unlink(absl::StrCat(path_, "/", file.name).c_str());
}

absl::Status StateFolder::Resize(uint64_t bytes, Mapped* file) const {
  const std::string where = absl::StrCat(path_, "/", file->name);
  // Backed at once: a write through the mapping to a full file system would kill this process.
  if (const int error = posix_fallocate(file->file, 0, static_cast<off_t>(bytes)); error != 0) {
    return absl::ErrnoToStatus(error, absl::StrCat(where, ": ", bytes, " bytes"));
  }
  if (ftruncate(file->file, static_cast<off_t>(bytes)) != 0) {
    return absl::ErrnoToStatus(errno, where);
  }
  if (bytes > file->mapped) {
    if (file->data != nullptr) munmap(file->data, file->mapped);
    void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file->file, 0);
    file->data = data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
    file->mapped = data == MAP_FAILED ? 0 : bytes;
    if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, where);
  }
  file->bytes = bytes;
  return absl::OkStatus();
}

absl::StatusOr<StateFile> StateFolder::Open(const std::string& name) {
  Mapped mapped{.name = name};
  mapped.file = open(absl::StrCat(path_, "/", name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  StateFile file(this, std::move(mapped));  // which removes it, whatever follows
  struct stat facts;
  if (file.file_.file < 0 || fstat(file.file_.file, &facts) != 0) {
    return absl::ErrnoToStatus(errno, name);
  }
  if (facts.st_size == 0) return absl::DataLossError(absl::StrCat(name, " is empty"));
  const auto bytes = static_cast<size_t>(facts.st_size);
  void* const data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.file_.file, 0);
  if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, name);
  file.file_.data = static_cast<std::byte*>(data);
  file.file_.bytes = file.file_.mapped = bytes;
  return file;
}

absl::StatusOr<StateFile> StateFolder::Create(uint64_t bytes) {
  Mapped mapped;
  {
    base::MutexLock lock(mutex_);
    if (!kept_.empty()) {
      mapped = std::move(kept_.back());
      kept_.pop_back();
    }
  }
  if (mapped.file < 0) {
    mapped.name = NewName();
    mapped.written_here = true;
    mapped.file = open(absl::StrCat(path_, "/", mapped.name).c_str(),
                       O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (mapped.file < 0) return absl::ErrnoToStatus(errno, mapped.name);
  }
  if (const absl::Status status = Resize(bytes, &mapped); !status.ok()) {
    Remove(mapped);
    return status;
  }
  return StateFile(this, std::move(mapped));
}

void StateFolder::GiveBack(Mapped file) {
  if (file.written_here) {
    base::MutexLock lock(mutex_);
    uint64_t bytes = file.bytes;
    for (const Mapped& each : kept_) bytes += each.bytes;
    if (bytes <= kMostKeptBytes) {
      kept_.push_back(std::move(file));
      return;
    }
  }
  Remove(file);
}

StateFile::StateFile(StateFile&& other) noexcept
    : folder_(std::exchange(other.folder_, nullptr)), file_(std::move(other.file_)) {}

StateFile::~StateFile() {
  if (folder_ != nullptr) folder_->GiveBack(std::move(file_));
}

absl::StatusOr<StateFile> WriteState(const LlamaContext& context, const SpaceSpec& spec,
                                     std::span<const uint32_t> tokens, Lease& lease,
                                     StateFolder* folder) {
  const auto count = static_cast<uint32_t>(tokens.size());
  const LlamaStateMap map = interop::LayOutLlamaState(context, tokens, count);
  PREFIXD_ASSIGN_OR_RETURN(StateFile file, folder->Create(map.bytes));
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
