#include "sizing/lines.h"

#include <zstd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace prefixd::sizing {
namespace {

constexpr size_t kPieceBytes = size_t{256} << 10;
constexpr std::string_view kZstd = "\x28\xb5\x2f\xfd", kGzip = "\x1f\x8b", kXz = "\xfd\x37\x7a";

}  // namespace

struct LineReader::Unpacker {
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context{ZSTD_createDCtx(), ZSTD_freeDCtx};
  std::string packed = std::string(kPieceBytes, '\0');
  ZSTD_inBuffer in{nullptr, 0, 0};
  size_t wants = 0;  // 0: between frames
};

LineReader::LineReader(std::string path, std::ifstream file, size_t most_line_bytes)
    : path_(std::move(path)), file_(std::move(file)), most_line_bytes_(most_line_bytes) {}
LineReader::LineReader(LineReader&&) = default;
LineReader::~LineReader() = default;

absl::StatusOr<LineReader> LineReader::Open(const std::string& path, size_t most_line_bytes) {
  std::ifstream file(path, std::ios::binary);
  if (!file || file.peek() == std::ifstream::traits_type::eof()) {
    if (file.is_open() && file.eof() && !file.bad()) {
      return absl::InvalidArgumentError(absl::StrCat("trace: ", path, " is empty"));
    }
    return absl::NotFoundError(absl::StrCat("trace: ", path, " cannot be read"));
  }
  std::string begin(4, '\0');
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<size_t>(file.gcount()));
  file.clear();
  if (begin.starts_with(kGzip) || begin.starts_with(kXz)) {
    return absl::InvalidArgumentError(
        absl::StrCat("trace: ", path, " is packed by gzip or xz: unpack it, or pack it by zstd"));
  }
  LineReader reader(path, std::move(file), most_line_bytes);
  if (begin == kZstd) {
    reader.unpacker_ = std::make_unique<Unpacker>();
    std::copy(begin.begin(), begin.end(), reader.unpacker_->packed.begin());
    reader.unpacker_->in = {reader.unpacker_->packed.data(), begin.size(), 0};
  } else {
    reader.text_ = std::move(begin);
  }
  return reader;
}

bool LineReader::Unpack() {
  Unpacker& unpacker = *unpacker_;
  while (text_.empty()) {
    if (unpacker.in.pos == unpacker.in.size) {
      file_.read(unpacker.packed.data(), static_cast<std::streamsize>(unpacker.packed.size()));
      unpacker.in = {unpacker.packed.data(), static_cast<size_t>(file_.gcount()), 0};
      if (unpacker.in.size == 0) {
        if (unpacker.wants != 0) {
          status_ = absl::InvalidArgumentError(absl::StrCat("trace: ", path_, " is cut off"));
        }
        return false;
      }
    }
    text_.resize(kPieceBytes);
    ZSTD_outBuffer out{text_.data(), text_.size(), 0};
    unpacker.wants = ZSTD_decompressStream(unpacker.context.get(), &out, &unpacker.in);
    text_.resize(out.pos);
    if (ZSTD_isError(unpacker.wants) != 0) {
      text_.clear();
      status_ = absl::InvalidArgumentError(
          absl::StrCat("trace: ", path_, " is damaged zstd: ", ZSTD_getErrorName(unpacker.wants)));
      return false;
    }
  }
  return true;
}

bool LineReader::Fill() {
  text_.clear();
  at_ = 0;
  if (unpacker_ != nullptr) return Unpack();
  text_.resize(kPieceBytes);
  file_.read(text_.data(), static_cast<std::streamsize>(text_.size()));
  text_.resize(static_cast<size_t>(file_.gcount()));
  if (file_.bad()) {
    status_ = absl::UnavailableError(absl::StrCat("trace: ", path_, " cannot be read on"));
  }
  return !text_.empty();
}

void LineReader::Take(std::string_view bytes) {
  const size_t room = most_line_bytes_ - std::min(most_line_bytes_, line_.size());
  if (bytes.size() > room) cut_ = true;
  line_.append(bytes.substr(0, room));
}

bool LineReader::Next(std::string_view* line) {
  if (!status_.ok()) return false;
  line_.clear();
  cut_ = false;
  bool any = false;
  while (at_ < text_.size() || Fill()) {
    any = true;
    const std::string_view rest = std::string_view(text_).substr(at_);
    const size_t end = rest.find('\n');
    Take(rest.substr(0, end));
    at_ += std::min(rest.size(), end == std::string_view::npos ? end : end + 1);
    if (end != std::string_view::npos) break;
  }
  if (!status_.ok() || !any) return false;
  ++number_;
  *line = line_;
  return true;
}

}  // namespace prefixd::sizing
