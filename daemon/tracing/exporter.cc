#include "daemon/tracing/exporter.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "spdlog/spdlog.h"

#include "base/random.h"
#include "base/status.h"
#include "base/utf8.h"
#include "os/process.h"

namespace prefixd::daemon {
namespace {

using std::chrono::milliseconds;

constexpr int kOk = 200, kMultipleChoices = 300;
constexpr size_t kMostReasonBytes = 200;

// The answers after which OTLP has a client try again.
bool IsForLater(int status) {
  return status == 429 || status == 502 || status == 503 || status == 504;
}

}  // namespace

Exporter::Exporter(ExporterOptions options)
    : options_(std::move(options)), queue_(options_.queue_calls), thread_([this] { Run(); }) {}

Exporter::~Exporter() { Stop(); }

void Exporter::Take(Spans spans) {
  const size_t count = spans.size();
  if (stop_.set() || !queue_.TryPush(std::move(spans))) {
    dropped_ += count;
    return;
  }
  if (queue_.size() < options_.queue_calls / 2 || woken_.exchange(true)) return;
  wake_.Set();
}

void Exporter::Stop() {
  if (!thread_.joinable()) return;
  stop_.Set(std::chrono::steady_clock::now() + options_.stop_patience);
  thread_.join();
}

Exporter::Totals Exporter::totals() const {
  return {.exported = exported_, .dropped = dropped_, .failures = failures_};
}

void Exporter::Run() {
  os::NameThisThread("prefixd traces");
  while (!stop_.set()) {
    WaitForSpans();
    for (Spans batch = NextBatch(); !batch.empty(); batch = NextBatch()) Send(batch);
  }
  for (Spans batch = NextBatch(); !batch.empty(); batch = NextBatch()) Send(batch);
}

void Exporter::WaitForSpans() {
  std::array<pollfd, 2> polled{{{stop_.fd(), POLLIN, 0}, {wake_.fd(), POLLIN, 0}}};
  ::poll(polled.data(), polled.size(), static_cast<int>(options_.interval.count()));
  wake_.Clear();
  woken_ = false;
}

void Exporter::Pause(milliseconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  while (!stop_.set() && std::chrono::steady_clock::now() < until) {
    const auto left = std::chrono::ceil<milliseconds>(until - std::chrono::steady_clock::now());
    pollfd stopped{stop_.fd(), POLLIN, 0};
    ::poll(&stopped, 1, static_cast<int>(left.count()));
  }
}

Spans Exporter::NextBatch() {
  Spans batch, call;
  while (batch.size() < options_.batch_spans && queue_.TryPop(&call)) {
    std::ranges::move(call, std::back_inserter(batch));
  }
  return batch;
}

void Exporter::Send(const Spans& batch) {
  const std::string message = ToOtlp(options_.resource, batch);
  milliseconds pause = options_.first_pause;
  for (int tries = 1; !stop_.over(); ++tries) {
    milliseconds wait = WithJitter(pause);
    const Result result = Try(batch, message, &wait);
    if (result == Result::kTaken) return;
    if (result == Result::kRefused || tries >= options_.tries || stop_.set()) break;
    Pause(wait);
    pause = std::min(2 * pause, options_.longest_pause);
  }
  dropped_ += batch.size();
}

// Makes `wait` as long as the collector asks.
Exporter::Result Exporter::Try(const Spans& batch, const std::string& message, milliseconds* wait) {
  const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
  const absl::StatusOr<HttpReply> reply =
      PostProtobuf(options_.collector, message, deadline, stop_);
  if (reply.ok() && reply->status >= kOk && reply->status < kMultipleChoices) {
    const PartialSuccess partial = FromOtlp(reply->body);
    const uint64_t rejected = std::min<uint64_t>(partial.rejected, batch.size());
    dropped_ += rejected;
    exported_ += batch.size() - rejected;
    Note(rejected == 0 ? "" : absl::StrCat("it rejects spans: ", partial.why));
    return Result::kTaken;
  }
  ++failures_;
  if (!reply.ok()) {
    Note(std::string(reply.status().message()));
    return Result::kLater;
  }
  Note(absl::StrCat("it answers ", reply->status));
  const std::chrono::seconds asked(reply->retry_after_s.value_or(0));
  *wait = std::max(*wait, std::min<milliseconds>(asked, options_.longest_pause));
  return IsForLater(reply->status) ? Result::kLater : Result::kRefused;
}

void Exporter::Note(const std::string& why_not) {
  const bool failing = !why_not.empty();
  if (std::exchange(failing_, failing) == failing) return;
  const std::string url = ToString(options_.collector.address);
  if (failing) {
    spdlog::warn("tracing: {} does not take spans, which are dropped meanwhile: {}", url,
                 base::Printable(why_not.substr(0, kMostReasonBytes)));
  } else {
    spdlog::info("tracing: {} takes spans again", url);
  }
}

// Half of the pause and a random part of the other half: many daemons do not come back at once.
milliseconds Exporter::WithJitter(milliseconds pause) {
  const auto half = static_cast<uint64_t>(pause.count()) / 2;
  return milliseconds(half + base::RandomWord() % (half + 1));
}

}  // namespace prefixd::daemon
