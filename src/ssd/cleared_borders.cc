#include "ssd/cleared_borders.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "rocksdb/env.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/status.h"
#include "ssd/segment_store.h"
#include "ssd/store_directory.h"
#include "ssd/table_db.h"

namespace prefixd::ssd {
namespace {

constexpr uint32_t kMagic = 0x31424b56;  // "VKB1"
constexpr uint32_t kVersion = 1;
constexpr std::array<const char*, 2> kNames = {kBordersName, kSecondBordersName};

rocksdb::Env* EnvOf(const FileLayer* files) {
  return files != nullptr ? files->env.get() : rocksdb::Env::Default();
}

absl::Status Later(const char* what, uint32_t version, uint32_t ours) {
  return absl::FailedPreconditionError(absl::StrCat("segment store: ", what, " has format version ",
                                                    version, ", this prefixd reads version ",
                                                    ours));
}

}  // namespace

bool ClearedBorders::Cover(const block::SpaceId& space, uint64_t sequence) const {
  if (sequence <= all) return true;
  const auto border = spaces.find(space);
  return border != spaces.end() && sequence <= border->second;
}

void ClearedBorders::Merge(const ClearedBorders& more) {
  all = std::max(all, more.all);
  for (const auto& [space, border] : more.spaces) {
    uint64_t& mine = spaces[space];
    mine = std::max(mine, border);
  }
}

uint64_t ClearedBorders::Last() const {
  uint64_t last = all;
  for (const auto& [space, border] : spaces) last = std::max(last, border);
  return last;
}

std::string BorderFiles::Encode(const Content& content) {
  base::ByteWriter writer;
  writer.Fixed(kMagic);
  writer.Fixed(kVersion);
  writer.Fixed(kStoreFormatVersion);
  writer.Fixed(content.generation);
  writer.Fixed(content.epoch);
  writer.Fixed(content.borders.all);
  writer.Fixed(static_cast<uint32_t>(content.borders.spaces.size()));
  for (const auto& [space, border] : content.borders.spaces) {
    writer.Raw(space);
    writer.Fixed(border);
  }
  writer.Fixed(base::Xxh3(base::AsBytes(writer.bytes())));
  return writer.Take();
}

// DataLoss if it is damaged, FailedPrecondition if a later prefixd wrote it.
absl::StatusOr<BorderFiles::Content> BorderFiles::Decode(const std::string& text) {
  const absl::Status damaged = absl::DataLossError("borders: the file is damaged");
  if (text.size() < sizeof(uint64_t)) return damaged;
  const std::span<const std::byte> bytes = base::AsBytes(text);
  const auto checked = bytes.first(bytes.size() - sizeof(uint64_t));
  base::ByteReader sum(bytes.subspan(checked.size()));
  if (sum.Fixed<uint64_t>() != base::Xxh3(checked)) return damaged;
  base::ByteReader reader(checked);
  if (reader.Fixed<uint32_t>() != kMagic) return damaged;
  const auto version = reader.Fixed<uint32_t>();
  const auto store_version = reader.Fixed<uint32_t>();
  if (version > kVersion) return Later(kBordersName, version, kVersion);
  if (store_version > kStoreFormatVersion) {
    return Later("the directory", store_version, kStoreFormatVersion);
  }
  Content content;
  content.generation = reader.Fixed<uint64_t>();
  content.epoch = reader.Fixed<uint64_t>();
  content.borders.all = reader.Fixed<uint64_t>();
  const auto count = reader.Fixed<uint32_t>();
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    block::SpaceId space{};
    const std::span<const std::byte> id = reader.Raw(space.size());
    std::copy(id.begin(), id.end(), space.begin());
    content.borders.spaces[space] = reader.Fixed<uint64_t>();
  }
  if (!reader.ok() || reader.remaining() > 0) return damaged;
  return content;
}

absl::StatusOr<BorderFiles::Found> BorderFiles::Load() {
  std::optional<Content> newest;
  size_t missing = 0, damaged = 0;
  absl::Status unreadable;
  for (const char* const name : kNames) {
    std::string text;
    const std::string path = absl::StrCat(directory_, "/", name);
    const rocksdb::Status read = rocksdb::ReadFileToString(EnvOf(files_), path, &text);
    if (read.IsNotFound() || read.IsPathNotFound()) {
      ++missing;
      continue;
    }
    if (!read.ok()) unreadable = FromRocks(read, absl::StrCat("cannot read ", path));
    absl::StatusOr<Content> content = Decode(text);
    if (absl::IsFailedPrecondition(content.status())) return content.status();
    if (!content.ok()) {
      ++damaged;
    } else if (!newest.has_value() || newest->generation < content->generation) {
      newest = *std::move(content);
    }
  }
  if (!newest.has_value() && !unreadable.ok()) return unreadable;
  if (!newest.has_value()) return missing == kNames.size() ? Found::kNone : Found::kLost;
  base::MutexLock lock(mutex_);
  content_ = *std::move(newest);
  return missing + damaged > 0 ? Found::kOneDamaged : Found::kWhole;
}

ClearedBorders BorderFiles::borders() const {
  base::MutexLock lock(mutex_);
  return content_.borders;
}

uint64_t BorderFiles::epoch() const {
  base::MutexLock lock(mutex_);
  return content_.epoch;
}

void BorderFiles::Add(const ClearedBorders& more, uint64_t oldest_sequence) {
  base::MutexLock lock(mutex_);
  ClearedBorders& borders = content_.borders;
  borders.Merge(more);
  const uint64_t least = std::max(oldest_sequence, borders.all + 1);
  std::erase_if(borders.spaces, [&](const auto& entry) { return entry.second < least; });
  ++changes_;
}

void BorderFiles::NoteEpoch(uint64_t epoch) {
  base::MutexLock lock(mutex_);
  content_.epoch = std::max(content_.epoch, epoch);
  ++changes_;
}

absl::Status BorderFiles::Write(const std::string& name, const std::string& text) const {
  rocksdb::Env* const env = EnvOf(files_);
  const std::string written = absl::StrCat(directory_, "/", kIncomingName, "/", name);
  const std::string path = absl::StrCat(directory_, "/", name);
  rocksdb::Status status = rocksdb::WriteStringToFile(env, text, written, /*should_sync=*/true);
  if (status.ok()) status = env->RenameFile(written, path);
  std::unique_ptr<rocksdb::Directory> folder;
  if (status.ok()) status = env->NewDirectory(directory_, &folder);
  if (status.ok()) status = folder->Fsync();
  return FromRocks(status, absl::StrCat("cannot write ", path));
}

absl::Status BorderFiles::Save() {
  base::MutexLock writing(write_mutex_);
  Content content;
  uint64_t changes = 0;
  {
    base::MutexLock lock(mutex_);
    ++content_.generation;
    content = content_;
    changes = changes_;
  }
  const std::string text = Encode(content);
  for (const char* const name : kNames) PREFIXD_RETURN_IF_ERROR(Write(name, text));
  base::MutexLock lock(mutex_);
  saved_changes_ = changes;
  return absl::OkStatus();
}

bool BorderFiles::saved() const {
  base::MutexLock lock(mutex_);
  return saved_changes_ == changes_;
}

}  // namespace prefixd::ssd
