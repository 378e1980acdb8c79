// Needle: a passage is planted early in a text, its first bytes are repeated at the end, and the
// model is asked for the rest of it. A passage that the model has never seen is predicted like any
// text; one that stands in the context can be copied, if attention still finds it in the stored
// keys. What is measured is that difference: nats per byte of the passage's rest with the passage
// in the context, and with another passage in its place.
//
// How far back a model can do that is a matter of the model: the shipped one hardly beyond a few
// hundred bytes, in any format. It says what quantized keys and values cost the copying that this
// model does; nothing about models that answer questions.
#include <cstdio>

#include "bench/quality.h"

namespace prefixd::bench {
namespace {

constexpr size_t kPassage = 96;  // bytes
constexpr size_t kCue = 32;      // of them are repeated
constexpr size_t kBefore = 128;  // bytes before the passage

using Tokens = std::vector<uint32_t>;

struct Episode {
  Tokens planted;  // text, passage, text, passage
  Tokens control;  // text, another passage, text, passage
};

void Append(const Tokens& corpus, size_t begin, size_t count, Tokens* to) {
  const auto from = corpus.begin() + static_cast<ptrdiff_t>(begin % (corpus.size() - count));
  to->insert(to->end(), from, from + static_cast<ptrdiff_t>(count));
}

// Everything is cut from the held-out text; the passages from parts that the fillers do not touch.
Episode MakeEpisode(const Tokens& corpus, uint64_t number, size_t distance) {
  const size_t third = corpus.size() / 3;
  const size_t at = number * 977 % (third - distance - kBefore);
  const size_t passage = third + number * 1409 % (third - kPassage);
  const size_t other = 2 * third + number * 1811 % (third - kPassage);
  Episode episode;
  for (Tokens* tokens : {&episode.planted, &episode.control}) {
    Append(corpus, at, kBefore, tokens);
    tokens->push_back('\n');
    Append(corpus, tokens == &episode.planted ? passage : other, kPassage, tokens);
    tokens->push_back('\n');
    Append(corpus, at + kBefore, distance, tokens);
    tokens->push_back('\n');
    Append(corpus, passage, kPassage, tokens);
  }
  return episode;
}

struct Recall {
  double nats = 0;           // per byte
  double right_percent = 0;  // bytes that were the likeliest
};

Recall RecallOf(const Tokens& tokens, const Logits& logits) {
  Recall recall;
  const size_t count = kPassage - kCue;
  for (size_t i = tokens.size() - count; i < tokens.size(); ++i) {
    recall.nats += Nats(logits.row(i - 1), tokens[i]) / static_cast<double>(count);
    if (Best(logits.row(i - 1)) == tokens[i]) {
      recall.right_percent += 100 / static_cast<double>(count);
    }
  }
  return recall;
}

}  // namespace

void MeasureNeedle(const QualityJob& job) {
  Bench& bench = job.bench;
  const uint64_t episodes = bench.Parameter("needle_episodes", 1, 4, 24);
  std::vector<uint64_t> distances = {32, 128, 512};
  if (bench.smoke()) distances = {64};
  std::vector<std::string> table = {
      "| format | distance | planted, nats/byte | not planted | copied right | without |",
      "|---|---|---|---|---|---|"};
  for (const NamedFormat& format : job.formats) {
    auto reader = Reader::Open(job.checkpoint, {.formats = {format.format}});
    if (!bench.Check(reader.ok(), std::string(reader.status().message()))) return;
    for (const uint64_t distance : distances) {
      Recall planted, control;
      for (uint64_t e = 0; e < episodes; ++e) {
        ShowProgress("quality: needle, " + format.name + ", distance " + std::to_string(distance) +
                     ", episode " + std::to_string(e + 1) + " of " + std::to_string(episodes));
        const Episode episode = MakeEpisode(job.corpus, e + 1, distance);
        for (const auto& [tokens, sum] :
             {std::pair{&episode.planted, &planted}, std::pair{&episode.control, &control}}) {
          const absl::StatusOr<Logits> logits = (*reader)->Read(*tokens);
          if (!bench.Check(logits.ok(), std::string(logits.status().message()))) return;
          const Recall one = RecallOf(*tokens, *logits);
          sum->nats += one.nats / static_cast<double>(episodes);
          sum->right_percent += one.right_percent / static_cast<double>(episodes);
        }
      }
      ShowProgress("");
      bench.Add({"needle " + format.name + ", " + std::to_string(distance) + " bytes",
                 {{"planted_nats_per_byte", planted.nats},
                  {"control_nats_per_byte", control.nats},
                  {"planted_right_percent", planted.right_percent},
                  {"control_right_percent", control.right_percent}}});
      char line[160];
      std::snprintf(line, sizeof(line), "| %-16s | %4llu | %.3f | %.3f | %5.1f %% | %5.1f %% |",
                    format.name.c_str(), static_cast<unsigned long long>(distance), planted.nats,
                    control.nats, planted.right_percent, control.right_percent);
      table.push_back(line);
    }
  }
  for (const std::string& line : table) bench.Note(line);
}

}  // namespace prefixd::bench
