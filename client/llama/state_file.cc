#include "client/llama/state_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "client/llama/snapshot.h"
#include "client/llama/state_tensors.h"

namespace prefixd::llama {
namespace {

using interop::LlamaContext;
using interop::LlamaStateMap;

constexpr uint64_t kMostKeptBytes = uint64_t{256} << 20;  // of files to be written again

absl::Status ToAbsl(const Status& status) {
  return status.ok() ? absl::OkStatus() : absl::FailedPreconditionError(status.message);
}

// A layer with K and V for all tokens, in the order of the space.
struct Layer {
  int number = 0;
  uint32_t heads = 0;
  StateTensor keys, values;
};

std::vector<Layer> LayersOf(const LlamaStateMap& map, const SpaceSpec& spec, std::byte* state) {
  std::vector<Layer> layers;
  const StateTensors tensors = TensorsOf(map.context.caches[0], map.caches[0], state);
  for (size_t i = 0; i < tensors.keys.size(); ++i) {
    layers.push_back({.number = static_cast<int>(i),
                      .heads = spec.layers[i].kv_heads,
                      .keys = tensors.keys[i],
                      .values = tensors.values[i]});
  }
  return layers;
}

// Rows of tokens as the client takes and gives them.
template <typename View, typename Pointer>
View Dense(const StateTensor& tensor, uint32_t heads, Pointer rows) {
  View view;
  view.codes = rows;
  view.codes_head_stride = tensor.token_bytes / heads;
  view.codes_token_stride = tensor.token_bytes;
  return view;
}

// Returns tokens [begin, begin + count) of a saved tensor, copied to `scratch` where they do not
// stand one behind the other.
PackedView RowsOf(const Layer& layer, const StateTensor& tensor, const Cells& cells, uint32_t begin,
                  uint32_t count, std::vector<std::byte>* scratch) {
  const std::byte* rows = tensor.rows + begin * tensor.token_bytes;
  if (tensor.element != 0 || !cells.in_order()) {
    scratch->resize(count * tensor.token_bytes);
    CopyRowsOut(tensor, cells, begin, count, scratch->data());
    rows = scratch->data();
  }
  return Dense<PackedView>(tensor, layer.heads, rows);
}

absl::Status WriteRun(const Layer& layer, const Cells& cells, const TokenRun& run, Plan* plan) {
  std::vector<std::byte> key_scratch, value_scratch;
  const uint32_t count = run.end - run.begin;
  const PackedView keys = RowsOf(layer, layer.keys, cells, run.begin, count, &key_scratch);
  const PackedView values = RowsOf(layer, layer.values, cells, run.begin, count, &value_scratch);
  return ToAbsl(plan->WritePacked(layer.number, run.begin, count, keys, values));
}

// Returns the size of the snapshots of a space; 0 if it has none.
uint64_t SnapshotBytesOf(const SpaceSpec& spec) {
  const LayerSpec& last = spec.layers.back();
  return last.kind == LayerKind::kState ? last.state_bytes : 0;
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
  std::vector<std::byte> snapshot(SnapshotBytesOf(spec));
  if (!snapshot.empty()) {
    PREFIXD_RETURN_IF_ERROR(
        ToAbsl(lease.GetState(static_cast<int>(spec.layers.size()) - 1, snapshot)));
  }
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<uint32_t> first,
                           FirstTokens(context, snapshot.size(), length));
  const LlamaStateMap map = interop::LayOutLlamaState(context, tokens, length, first);
  PREFIXD_ASSIGN_OR_RETURN(StateFile file, folder->Create(map.bytes));
  std::byte* const state = file.bytes().data();
  interop::WriteLlamaHeads(map, file.bytes());
  std::vector<std::byte> scratch;
  for (const Layer& layer : LayersOf(map, spec, state)) {
    std::byte* value_rows = layer.values.rows;
    if (layer.values.element != 0) {
      scratch.resize(length * layer.values.token_bytes);
      value_rows = scratch.data();
    }
    PREFIXD_RETURN_IF_ERROR(ToAbsl(lease.Gather(
        layer.number, 0, length, Dense<MutablePackedView>(layer.keys, layer.heads, layer.keys.rows),
        Dense<MutablePackedView>(layer.values, layer.heads, value_rows))));
    if (layer.values.element != 0) CopyRowsIn(layer.values, 0, length, scratch.data());
  }
  RestoreSnapshot(map, snapshot, state);
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
  std::vector<std::byte> snapshot(SnapshotBytesOf(spec));
  const bool has_snapshot = !snapshot.empty() && TakeSnapshot(map, file.bytes().data(), snapshot);
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
  if (has_snapshot) {
    // An error means that the cache has this state.
    plan.PutState(static_cast<int>(spec.layers.size()) - 1, map.length, snapshot);
  }
  const std::vector<Layer> layers = LayersOf(map, spec, file.bytes().data());
  const Cells cells(map.caches[0]);
  for (const TokenRun run : std::vector<TokenRun>(plan.missing().begin(), plan.missing().end())) {
    for (const Layer& layer : layers) {
      PREFIXD_RETURN_IF_ERROR(WriteRun(layer, cells, run, &plan));
    }
    if (run.end < tokens.size()) PREFIXD_RETURN_IF_ERROR(commit(run.end, false));
  }
  PREFIXD_RETURN_IF_ERROR(commit(map.length, true));
  return all;
}

}  // namespace prefixd::llama
