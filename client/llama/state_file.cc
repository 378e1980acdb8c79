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
#include "client/llama/cached_state.h"
#include "os/memory.h"

namespace prefixd::llama {
namespace {

using interop::LlamaContext;
using interop::LlamaStateMap;

constexpr uint64_t kMostKeptBytes = uint64_t{256} << 20;  // of files to be written again

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

absl::Status StateFolder::Grow(uint64_t bytes, Mapped* file) const {
  file->bytes = bytes;
  if (bytes <= file->mapped) return absl::OkStatus();
  const std::string where = absl::StrCat(path_, "/", file->name);
  // Backed at once: a write through the mapping to a full file system would kill this process.
  if (!os::AllocateAnywhere(file->file, 0, bytes)) {
    return absl::ErrnoToStatus(errno, absl::StrCat(where, ": ", bytes, " bytes"));
  }
  if (file->data != nullptr) munmap(file->data, file->mapped);
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file->file, 0);
  file->data = data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
  file->mapped = data == MAP_FAILED ? 0 : bytes;
  if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, where);
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

std::optional<StateFolder::Mapped> StateFolder::TakeKept(uint64_t bytes) {
  base::MutexLock lock(mutex_);
  if (kept_.empty()) return std::nullopt;
  const auto worse = [bytes](const Mapped& a, const Mapped& b) {
    const bool a_fits = a.mapped >= bytes, b_fits = b.mapped >= bytes;
    if (a_fits != b_fits) return b_fits;
    return a_fits ? a.mapped > b.mapped : a.mapped < b.mapped;
  };
  const auto best = std::max_element(kept_.begin(), kept_.end(), worse);
  Mapped file = std::move(*best);
  kept_.erase(best);
  return file;
}

absl::StatusOr<StateFile> StateFolder::Create(uint64_t bytes) {
  Mapped mapped = TakeKept(bytes).value_or(Mapped{});
  if (mapped.file < 0) {
    mapped.name = NewName();
    mapped.written_here = true;
    mapped.file = open(absl::StrCat(path_, "/", mapped.name).c_str(),
                       O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (mapped.file < 0) return absl::ErrnoToStatus(errno, mapped.name);
  }
  if (const absl::Status status = Grow(bytes, &mapped); !status.ok()) {
    Remove(mapped);
    return status;
  }
  return StateFile(this, std::move(mapped));
}

void StateFolder::GiveBack(Mapped file) {
  if (file.written_here) {
    base::MutexLock lock(mutex_);
    uint64_t bytes = file.mapped;
    for (const Mapped& each : kept_) bytes += each.mapped;
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
  PREFIXD_ASSIGN_OR_RETURN(
      const LlamaStateMap map,
      LayOutState(context, spec, tokens, static_cast<uint32_t>(tokens.size())));
  PREFIXD_ASSIGN_OR_RETURN(StateFile file, folder->Create(map.bytes));
  PREFIXD_RETURN_IF_ERROR(FillState(map, spec, lease, file.bytes()));
  return file;
}

}  // namespace prefixd::llama
