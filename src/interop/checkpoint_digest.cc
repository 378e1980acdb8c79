#include "interop/checkpoint_digest.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/status.h"
#include "interop/safetensors.h"
#include "os/files.h"

namespace prefixd::interop {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSettleMicros = 2'000'000;
constexpr size_t kMaxRemembered = 64;  // checkpoints; the oldest lines go first
constexpr size_t kMaxMemoryBytes = 64 * 1024;

int64_t Micros(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000 + time.tv_nsec / 1000;
}

// What stat() says of the files.
struct Sighting {
  // SHA-256 of the kind of digest and of every file's path, device, inode, size and times.
  base::Digest256 key{};
  int64_t newest_change_us = 0;
};

std::optional<Sighting> Look(const std::string& kind, const std::vector<std::string>& files) {
  base::ByteWriter out;
  if (!kind.empty()) out.Framed(kind);
  Sighting sighting;
  for (const std::string& file : files) {
    struct stat facts;
    if (stat(file.c_str(), &facts) != 0) return std::nullopt;
    std::error_code ignored;
    out.Framed(fs::absolute(file, ignored).string());
    out.Fixed(static_cast<uint64_t>(facts.st_dev));
    out.Fixed(static_cast<uint64_t>(facts.st_ino));
    out.Fixed(static_cast<uint64_t>(facts.st_size));
    for (const timespec& time : {os::WrittenAt(facts), os::ChangedAt(facts)}) {
      out.Fixed(int64_t{time.tv_sec});
      out.Fixed(int64_t{time.tv_nsec});
      sighting.newest_change_us = std::max(sighting.newest_change_us, Micros(time));
    }
  }
  sighting.key = base::Sha256(base::AsBytes(out.bytes()));
  return sighting;
}

// Returns lines of "<key> <digest>", both 64 hexadecimal digits, newest last. Returns "" if the
// file does not exist, is not a plain file of this user, is writable by others, or is longer than
// any that Remember writes.
std::string ReadMemory(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return "";
  std::string text;
  struct stat facts;
  if (fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_uid == geteuid() &&
      (facts.st_mode & 022) == 0 && static_cast<size_t>(facts.st_size) <= kMaxMemoryBytes) {
    text.resize(static_cast<size_t>(facts.st_size));
    const ssize_t got = read(file, text.data(), text.size());
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  }
  close(file);
  return text;
}

std::optional<base::Digest256> Recall(const std::string& path, const base::Digest256& key) {
  std::istringstream lines(ReadMemory(path));
  const std::string wanted = base::ToHex(key);
  std::string seen, hex;
  std::optional<base::Digest256> found;
  while (lines >> seen >> hex) {
    base::Digest256 digest;
    if (seen == wanted && base::FromHex(hex, digest)) found = digest;
  }
  return found;
}

void MakePrivateDirectory(const fs::path& directory) {
  if (directory.empty() || mkdir(directory.c_str(), 0700) == 0 || errno != ENOENT) return;
  MakePrivateDirectory(directory.parent_path());
  mkdir(directory.c_str(), 0700);
}

// Writes a new file and renames it, so that readers see the old lines or the new ones. Two writers
// at once may lose a line, which costs one computation.
void Remember(const std::string& path, const base::Digest256& key, const base::Digest256& digest) {
  MakePrivateDirectory(fs::path(path).parent_path());
  std::vector<std::string> kept;
  std::istringstream lines(ReadMemory(path));
  const std::string key_hex = base::ToHex(key);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, key_hex.size(), key_hex) != 0) kept.push_back(line);
  }
  kept.push_back(absl::StrCat(key_hex, " ", base::ToHex(digest)));
  std::string text;
  for (size_t i = kept.size() - std::min(kept.size(), kMaxRemembered); i < kept.size(); ++i) {
    absl::StrAppend(&text, kept[i], "\n");
  }
  std::string beside = path + ".XXXXXX";
  const int file = mkostemp(beside.data(), O_CLOEXEC);  // mode 0600
  if (file < 0) return;
  const bool written = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (close(file) != 0 || !written || rename(beside.c_str(), path.c_str()) != 0) {
    unlink(beside.c_str());
  }
}

// Tells how much of all tensors was read.
class Reading {
 public:
  Reading(const std::vector<Tensor>& tensors, const OnRead& on_read) : on_read_(on_read) {
    for (const Tensor& tensor : tensors) whole_ += tensor.bytes.size();
  }

  base::Digest256 Sha256(std::span<const std::byte> bytes) {
    constexpr size_t kPiece = size_t{64} << 20;
    base::Sha256Stream sha;
    while (!bytes.empty()) {
      const auto piece = bytes.first(std::min(kPiece, bytes.size()));
      sha.Update(piece);
      bytes = bytes.subspan(piece.size());
      read_ += piece.size();
      if (on_read_) on_read_(read_, whole_);
    }
    return sha.Finish();
  }

 private:
  const OnRead& on_read_;
  uint64_t read_ = 0, whole_ = 0;
};

base::Digest256 DigestTensors(const std::vector<Tensor>& tensors, const OnRead& on_read) {
  Reading reading(tensors, on_read);
  base::ByteWriter out;
  out.Framed("prefixd/1/weights");
  out.Fixed(uint64_t{tensors.size()});
  for (const Tensor& tensor : tensors) {
    out.Framed(tensor.name);
    out.Framed(ToString(tensor.dtype));
    out.Fixed(static_cast<uint32_t>(tensor.shape.size()));
    for (uint64_t size : tensor.shape) out.Fixed(size);
    out.Raw(reading.Sha256(tensor.bytes));
  }
  return base::Sha256(base::AsBytes(out.bytes()));
}

std::string DefaultMemoryFile() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') {
    return absl::StrCat(cache, "/prefixd/checkpoint_digests");
  }
  const char* const home = std::getenv("HOME");
  if (home == nullptr || home[0] != '/') return "";
  return absl::StrCat(home, "/.cache/prefixd/checkpoint_digests");
}

// Returns what `compute` returns, or what it returned earlier for the same files.
template <typename Compute>
absl::StatusOr<base::Digest256> Remembered(const std::string& kind,
                                           const std::vector<std::string>& files,
                                           const DigestMemory& memory, const Compute& compute) {
  const std::optional<Sighting> before = Look(kind, files);
  if (before && !memory.file.empty()) {
    if (const std::optional<base::Digest256> known = Recall(memory.file, before->key)) {
      return *known;
    }
  }
  PREFIXD_ASSIGN_OR_RETURN(const base::Digest256 digest, compute());
  const std::optional<Sighting> after = Look(kind, files);
  const bool settled = before && after && before->key == after->key &&
                       memory.clock->UnixMicros() - after->newest_change_us > kSettleMicros;
  if (settled && !memory.file.empty()) Remember(memory.file, after->key, digest);
  return digest;
}

absl::StatusOr<base::Digest256> Sha256OfFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  base::Sha256Stream sha;
  std::array<char, 65536> chunk;
  while (file) {
    file.read(chunk.data(), chunk.size());
    sha.Update(base::AsBytes(chunk.data(), static_cast<size_t>(file.gcount())));
  }
  if (file.eof()) return sha.Finish();  // else opening or reading failed
  return absl::NotFoundError(absl::StrCat("digest: cannot read ", path));
}

}  // namespace

absl::StatusOr<base::Digest256> DigestCheckpoint(const std::string& directory,
                                                 const DigestMemory& memory) {
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<std::string> files, Checkpoint::FilesOf(directory));
  return Remembered("", files, memory, [&]() -> absl::StatusOr<base::Digest256> {
    PREFIXD_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(directory));
    return DigestTensors(checkpoint.tensors(), memory.on_read);
  });
}

absl::StatusOr<base::Digest256> DigestCheckpoint(const std::string& directory,
                                                 const OnRead& on_read) {
  return DigestCheckpoint(directory, DigestMemory{.file = DefaultMemoryFile(), .on_read = on_read});
}

absl::StatusOr<base::Digest256> DigestWholeFile(const std::string& path,
                                                const DigestMemory& memory) {
  return Remembered("file", {path}, memory, [&] { return Sha256OfFile(path); });
}

absl::StatusOr<base::Digest256> DigestWholeFile(const std::string& path) {
  return DigestWholeFile(path, {.file = DefaultMemoryFile()});
}

}  // namespace prefixd::interop
