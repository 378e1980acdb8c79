// Held-out nats per byte: every byte of some windows of the text is predicted from those before it
// in the window, with all K and V that attention sees stored in the format.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "bench/quality/quality.h"

namespace prefixd::bench {
namespace {

// Of one format, over all windows.
struct Reading {
  double nats = 0;          // per byte
  double extra = 0;         // per byte, over raw
  double extra_error = 0;   // standard error of it, from window to window
  double divergence = 0;    // from raw, per byte
  double same_percent = 0;  // positions whose likeliest byte is raw's
};

struct Window {
  std::vector<uint32_t> tokens;
  Logits raw;
};

std::vector<Window> Cut(const std::vector<uint32_t>& corpus, size_t count, size_t bytes) {
  std::vector<Window> windows(count);
  const size_t step = (corpus.size() - bytes) / std::max<size_t>(1, count - 1);
  for (size_t i = 0; i < count; ++i) {
    const auto begin = corpus.begin() + static_cast<ptrdiff_t>(i * step);
    windows[i].tokens.assign(begin, begin + static_cast<ptrdiff_t>(bytes));
  }
  return windows;
}

double SumNats(const Window& window, const Logits& logits) {
  double sum = 0;
  for (size_t i = 1; i < window.tokens.size(); ++i) {
    sum += Nats(logits.row(i - 1), window.tokens[i]);
  }
  return sum;
}

Reading Summarize(const std::vector<Window>& windows, const std::vector<Logits>& read) {
  Reading reading;
  std::vector<double> extra;  // of each window, per byte
  double positions = 0;
  for (size_t w = 0; w < windows.size(); ++w) {
    const Window& window = windows[w];
    const double count = static_cast<double>(window.tokens.size() - 1);
    const double nats = SumNats(window, read[w]);
    extra.push_back((nats - SumNats(window, window.raw)) / count);
    reading.nats += nats;
    positions += count;
    for (size_t i = 0; i + 1 < window.tokens.size(); ++i) {
      reading.divergence += Divergence(window.raw.row(i), read[w].row(i));
      reading.same_percent += Best(window.raw.row(i)) == Best(read[w].row(i)) ? 100 : 0;
    }
  }
  reading.nats /= positions;
  reading.divergence /= positions;
  reading.same_percent /= positions;
  const double n = static_cast<double>(extra.size());
  for (const double e : extra) reading.extra += e / n;
  double squares = 0;
  for (const double e : extra) squares += (e - reading.extra) * (e - reading.extra);
  reading.extra_error = n > 1 ? std::sqrt(squares / (n - 1) / n) : 0;
  return reading;
}

std::string TableLine(const std::string& name, uint64_t bytes, const Reading& r) {
  char text[160];
  std::snprintf(text, sizeof(text), "| %-16s | %5llu | %.4f | %+8.2f +- %4.2f | %8.3f | %6.2f %% |",
                name.c_str(), static_cast<unsigned long long>(bytes), r.nats, r.extra * 1e3,
                r.extra_error * 1e3, r.divergence * 1e3, r.same_percent);
  return text;
}

// And some with --attention fast, for what that costs.
std::vector<NamedFormat> WithFastModes(std::vector<NamedFormat> formats) {
  for (size_t i = 0, count = formats.size(); i < count; ++i) {
    const NamedFormat plain = formats[i];
    if (plain.name != "8/8" && plain.name != "8/4" && plain.name != "4/4") continue;
    const worker::AttentionModes fast{.prefill = AttendMode::kFastPrefill,
                                      .decode = AttendMode::kFast};
    formats.push_back({plain.name + " fast", plain.format, fast});
  }
  return formats;
}

}  // namespace

void MeasureText(const QualityJob& job) {
  Bench& bench = job.bench;
  const std::vector<NamedFormat> formats = WithFastModes(job.formats);
  const uint64_t count = bench.Parameter("text_windows", 2, 4, 12);
  const uint64_t bytes = bench.Parameter("text_window_tokens", 128, 2048, 2048);
  std::vector<Window> windows = Cut(job.corpus, count, bytes);
  std::vector<std::string> table = {
      "| format | B/token | nats/byte | over raw, millinats | KL, millinats | same best byte |",
      "|---|---|---|---|---|---|"};
  for (const NamedFormat& format : formats) {
    auto reader =
        Reader::Open(job.checkpoint, {.format = format.format, .attention = format.attention});
    if (!bench.Check(reader.ok(), std::string(reader.status().message()))) return;
    std::vector<Logits> read;
    for (size_t w = 0; w < windows.size(); ++w) {
      ShowProgress("quality: text, " + format.name + ", window " + std::to_string(w + 1) + " of " +
                   std::to_string(windows.size()));
      absl::StatusOr<Logits> logits = (*reader)->Read(windows[w].tokens);
      if (!bench.Check(logits.ok(), std::string(logits.status().message()))) return;
      read.push_back(*std::move(logits));
      if (&format == &formats[0]) windows[w].raw = read.back();
    }
    const Reading reading = Summarize(windows, read);
    const uint64_t stored = (*reader)->space().payload_bytes_per_token();
    ShowProgress("");
    bench.Add({"text " + format.name,
               {{"nats_per_byte", reading.nats},
                {"over_raw_millinats", reading.extra * 1e3},
                {"standard_error_millinats", reading.extra_error * 1e3},
                {"divergence_millinats", reading.divergence * 1e3},
                {"same_best_percent", reading.same_percent},
                {"stored_per_token", static_cast<double>(stored)}}});
    table.push_back(TableLine(format.name, stored, reading));
  }
  for (const std::string& line : table) bench.Note(line);
}

}  // namespace prefixd::bench
