#include "direct_channel.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "os/wake.h"
#include "wire/send_buffer.h"

namespace prefixd::client {
namespace {

uint32_t MillisUntil(base::Deadline deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<uint32_t>(
      std::clamp<int64_t>(left.count(), 0, std::numeric_limits<uint32_t>::max()));
}

}  // namespace

DirectChannel::DirectChannel(base::Descriptor socket)
    : process_(getpid()),
      socket_(std::move(socket)),
      reader_(wire::kMaxDirectMessageBytes, /*most_files=*/0) {
  wire::EnlargeSendBuffer(socket_.get());
}

DirectChannel::~DirectChannel() {
  if (getpid() != process_) socket_.Release();  // CloseInChildren has closed it
}

std::optional<absl::Status> DirectChannel::Call(wire::DirectVerb verb,
                                                const google::protobuf::MessageLite& request,
                                                base::Deadline deadline,
                                                google::protobuf::MessageLite* reply) {
  if (request.ByteSizeLong() > wire::kMaxDirectMessageBytes - sizeof(wire::DirectRequest))
    return std::nullopt;
  if (getpid() != process_ || !mutex_.try_lock()) return std::nullopt;
  const std::optional<absl::Status> status = CallAlone(verb, request, deadline, reply);
  mutex_.unlock();
  return status;
}

std::optional<absl::Status> DirectChannel::CallAlone(wire::DirectVerb verb,
                                                     const google::protobuf::MessageLite& request,
                                                     base::Deadline deadline,
                                                     google::protobuf::MessageLite* reply) {
  if (broken_ || Receive(base::Deadline()) != Got::kAnswer) return std::nullopt;  // a late answer
  if (!Send(verb, request, deadline)) return std::nullopt;
  const Got got = Receive(deadline);
  if (got == Got::kTimeout) return absl::DeadlineExceededError("client: the daemon did not answer");
  if (got == Got::kEnd) return absl::UnavailableError("client: the daemon hung up");
  if (head_.code == wire::kCallByGrpc) return std::nullopt;
  if (head_.code != 0) return absl::Status(static_cast<absl::StatusCode>(head_.code), answer_);
  if (!reply->ParseFromString(answer_))
    return absl::InternalError("client: the daemon's answer cannot be read");
  heard_ = calls_;
  return absl::OkStatus();
}

bool DirectChannel::Send(wire::DirectVerb verb, const google::protobuf::MessageLite& request,
                         base::Deadline deadline) {
  const uint32_t left = MillisUntil(deadline);
  if (left == 0) return false;
  const wire::DirectRequest head{
      .call = calls_ + 1, .heard = heard_, .verb = verb, .patience_ms = left};
  request_.assign(wire::BytesOf(head));
  if (!request.AppendToString(&request_) || !os::SendMessage(socket_.get(), request_, {})) {
    broken_ = true;
    return false;
  }
  calls_ = head.call;
  waits_ = true;
  has_head_ = false;
  answer_.clear();
  return true;
}

DirectChannel::Got DirectChannel::Receive(base::Deadline deadline) {
  while (waits_) {
    const os::MessageReader::Got got = reader_.Read(socket_.get());
    if (got == os::MessageReader::Got::kMore) {
      const auto left = deadline - std::chrono::steady_clock::now();
      if (left.count() <= 0) return Got::kTimeout;
      pollfd polled{.fd = socket_.get(), .events = POLLIN, .revents = 0};
      os::PollFor({&polled, 1}, left);
      continue;
    }
    if (got == os::MessageReader::Got::kEnd || !Take(reader_.bytes())) {
      broken_ = true;
      return Got::kEnd;
    }
    reader_.Next();
  }
  return Got::kAnswer;
}

bool DirectChannel::Take(std::string_view message) {
  if (!has_head_ && (!wire::TakeHead(&message, &head_) || head_.call != calls_)) return false;
  has_head_ = true;
  answer_.append(message);
  waits_ = answer_.size() < head_.bytes;
  return answer_.size() <= head_.bytes;
}

}  // namespace prefixd::client
