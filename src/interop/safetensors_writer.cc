#include "interop/safetensors_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status.h"

namespace prefixd::interop {
namespace {

using Json = nlohmann::json;

absl::Status CheckSize(const Tensor& tensor) {
  uint64_t wanted = BitsOf(tensor.dtype);
  for (uint64_t size : tensor.shape) wanted *= size;
  wanted = (wanted + 7) / 8;
  if (wanted == tensor.bytes.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("safetensors: tensor ", tensor.name, " has ",
                                                 tensor.bytes.size(), " bytes, its shape wants ",
                                                 wanted));
}

struct CloseFile {
  void operator()(FILE* file) const { std::fclose(file); }
};

bool Write(FILE* file, const void* bytes, size_t count) {
  return count == 0 || std::fwrite(bytes, 1, count, file) == count;
}

absl::Status WriteFile(const std::string& path, const std::string& header,
                       std::span<const Tensor* const> tensors) {
  errno = 0;
  std::unique_ptr<FILE, CloseFile> file(std::fopen(path.c_str(), "wbe"));
  if (file == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat("safetensors: ", path));
  const uint64_t length = header.size();
  bool written =
      Write(file.get(), &length, sizeof(length)) && Write(file.get(), header.data(), header.size());
  for (const Tensor* tensor : tensors) {
    written = written && Write(file.get(), tensor->bytes.data(), tensor->bytes.size());
  }
  written = std::fclose(file.release()) == 0 && written;
  if (written) return absl::OkStatus();
  return absl::ErrnoToStatus(errno == 0 ? EIO : errno, absl::StrCat("safetensors: ", path));
}

}  // namespace

absl::Status WriteSafetensors(const std::string& path, std::span<const Tensor> tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::vector<const Tensor*> order;
  for (const Tensor& tensor : tensors) {
    PREFIXD_RETURN_IF_ERROR(CheckSize(tensor));
    order.push_back(&tensor);
  }
  std::stable_sort(order.begin(), order.end(), [](const Tensor* a, const Tensor* b) {
    return BitsOf(a->dtype) > BitsOf(b->dtype);
  });
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t at = 0;
  for (const Tensor* tensor : order) {
    header[tensor->name] = {{"dtype", ToString(tensor->dtype)},
                            {"shape", tensor->shape},
                            {"data_offsets", {at, at + tensor->bytes.size()}}};
    at += tensor->bytes.size();
  }
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::string part = absl::StrCat(path, ".part");
  absl::Status status = WriteFile(part, text, order);
  if (status.ok() && std::rename(part.c_str(), path.c_str()) != 0) {
    status = absl::ErrnoToStatus(errno, absl::StrCat("safetensors: ", path));
  }
  if (!status.ok()) std::remove(part.c_str());
  return status;
}

}  // namespace prefixd::interop
