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

// A layer with K and V: in the space, and in which cache of a state.
struct Layer {
  int number = 0;  // in the space
  size_t cache = 0;
  Tensor keys, values;
};

// Returns the layers of a state, in the order of the space.
std::vector<Layer> LayersOf(const LlamaStateMap& map, const SpaceSpec& spec, std::byte* state) {
  std::vector<Layer> layers;
  for (size_t i = 0; i < map.caches.size(); ++i) {
    const interop::LlamaCache& cache = map.context.caches[i];
    for (size_t j = 0; j < cache.keys.size(); ++j) {
      const uint32_t heads = spec.layers[layers.size()].kv_heads;
      Layer layer{.number = static_cast<int>(layers.size()), .cache = i, .keys = {}, .values = {}};
      layer.keys = {.heads = heads,
                    .token_bytes = cache.keys[j].token_bytes,
                    .element = 0,
                    .rows = state + map.caches[i].keys[j]};
      layer.values = {
          .heads = heads,
          .token_bytes = cache.values[j].token_bytes,
          .element = cache.values_transposed ? quant::DtypeBytes(cache.values[j].format.dtype) : 0,
          .rows = state + map.caches[i].values[j]};
      layers.push_back(layer);
    }
  }
  return layers;
}

// Moves the elements of `count` dense rows, from token `begin` of the cache on, to or from a tensor
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

// Where each token of a saved cache stands; tokens count from the cache's first.
class Cells {
 public:
  explicit Cells(const interop::LlamaCacheMap& map) : cell_of_(map.order.size()) {
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

// Writes the tokens of a run that the layer's cache has, in whole blocks: of a sliding layer the
// earlier ones are gone.
absl::Status WriteRun(const LlamaStateMap& map, const Layer& layer, const Cells& cells,
                      const TokenRun& run, uint32_t block_tokens, Plan* plan) {
  const interop::LlamaCacheMap& cache = map.caches[layer.cache];
  const uint32_t whole = (cache.first + block_tokens - 1) / block_tokens * block_tokens;
  const uint32_t begin = std::max(run.begin, whole);
  if (begin >= run.end) return absl::OkStatus();
  std::vector<std::byte> key_scratch, value_scratch;
  const uint32_t count = run.end - begin, from = begin - cache.first;
  const PackedView keys = RowsOf(layer.keys, cache.cells, cells, from, count, &key_scratch);
  const PackedView values = RowsOf(layer.values, cache.cells, cells, from, count, &value_scratch);
  return ToAbsl(plan->WritePacked(layer.number, begin, count, keys, values));
}

// Returns the first token of each cache of a state of `length` tokens: 0, or where the lease's last
// run of the sliding layers begins, which is in front of their window.
absl::StatusOr<std::vector<uint32_t>> FirstTokens(const LlamaContext& context,
                                                  const SpaceSpec& spec, uint32_t length,
                                                  Lease& lease) {
  std::vector<uint32_t> first;
  int number = 0;
  for (const interop::LlamaCache& cache : context.caches) {
    first.push_back(0);
    for (size_t i = 0; i < cache.keys.size(); ++i, ++number) {
      const LayerSpec& layer = spec.layers[static_cast<size_t>(number)];
      if (layer.kind != LayerKind::kSliding) continue;
      const std::vector<TokenRun> runs = lease.runs(number);
      if (runs.empty() || runs.back().end < length) {
        return absl::FailedPreconditionError("a sliding layer's window is not all there");
      }
      first.back() = std::max(first.back(), runs.back().begin);
    }
  }
  return first;
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
  const auto length = static_cast<uint32_t>(tokens.size());
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<uint32_t> first,
                           FirstTokens(context, spec, length, lease));
  const LlamaStateMap map = interop::LayOutLlamaState(context, tokens, length, first);
  PREFIXD_ASSIGN_OR_RETURN(StateFile file, folder->Create(map.bytes));
  interop::WriteLlamaHeads(map, file.bytes());
  std::vector<std::byte> scratch;
  const std::vector<Layer> layers = LayersOf(map, spec, file.bytes().data());
  for (const Layer& layer : layers) {
    const uint32_t begin = map.caches[layer.cache].first, count = map.caches[layer.cache].cells;
    std::byte* value_rows = layer.values.rows;
    if (layer.values.element != 0) {
      scratch.resize(count * layer.values.token_bytes);
      value_rows = scratch.data();
    }
    PREFIXD_RETURN_IF_ERROR(ToAbsl(lease.Gather(
        layer.number, begin, count, Dense<MutablePackedView>(layer.keys, layer.keys.rows),
        Dense<MutablePackedView>(layer.values, value_rows))));
    if (layer.values.element == 0) continue;
    ForEachElement(
        layer.values, count, 0, count, [](uint32_t token) { return token; },
        [&](std::byte* in_state, size_t in_rows) {
          std::memcpy(in_state, scratch.data() + in_rows, layer.values.element);
        });
  }
  if (context.recurrent_bytes != 0) {
    PREFIXD_RETURN_IF_ERROR(
        ToAbsl(lease.GetState(static_cast<int>(layers.size()),
                              file.bytes().subspan(map.recurrent, context.recurrent_bytes))));
  }
  return file;
}

absl::StatusOr<CommitInfo> StoreState(const LlamaContext& context, const SpaceSpec& spec,
                                      const StateFile& file, const LlamaStateMap& map,
                                      std::span<const uint32_t> turn_ends, Space& space) {
  if (map.context != context) {
    return absl::FailedPreconditionError("the saved state is of another context of llama.cpp");
  }
  if (map.tokens.size() < map.length) {
    return absl::FailedPreconditionError(
        absl::StrCat("the saved state has ", map.tokens.size(), " tokens for ", map.length));
  }
  const std::span<const uint32_t> tokens(map.tokens.data(), map.length);
  Plan plan = space.Reserve(tokens, {.turn_ends = turn_ends});
  PREFIXD_RETURN_IF_ERROR(ToAbsl(plan.status()));
  CommitInfo all;
  const auto commit = [&](uint32_t end, bool last) {
    const Result<CommitInfo> done = plan.Commit(end, {.sequence_end = last});
    if (done.ok()) {
      all.stored_tokens += done.value().stored_tokens;
      all.duplicate_tokens += done.value().duplicate_tokens;
    }
    return ToAbsl(done.status);
  };
  const std::vector<Layer> layers = LayersOf(map, spec, file.bytes().data());
  if (context.recurrent_bytes != 0) {
    // An error means that the cache has this state.
    plan.PutState(static_cast<int>(layers.size()), map.length,
                  file.bytes().subspan(map.recurrent, context.recurrent_bytes));
  }
  std::vector<Cells> cells(map.caches.begin(), map.caches.end());
  for (const TokenRun run : std::vector<TokenRun>(plan.missing().begin(), plan.missing().end())) {
    for (const Layer& layer : layers) {
      PREFIXD_RETURN_IF_ERROR(
          WriteRun(map, layer, cells[layer.cache], run, space.block_tokens(), &plan));
    }
    if (run.end < tokens.size()) PREFIXD_RETURN_IF_ERROR(commit(run.end, false));
  }
  PREFIXD_RETURN_IF_ERROR(commit(map.length, true));
  return all;
}

}  // namespace prefixd::llama
