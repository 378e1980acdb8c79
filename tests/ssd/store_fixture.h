// A store in a directory of its own that is removed afterwards, and made-up pages for it.
#pragma once
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "base/bytes.h"
#include "block/page_check.h"
#include "ssd/segment_store.h"
#include "tests/support/direct_reads.h"

namespace prefixd::ssd {

class StoreTest : public testing::Test {
 protected:
  static constexpr const char* kParentVariable = "PREFIXD_SSD_TEST_PARENT";

  struct Page {
    block::PageHeader header;
    std::vector<std::byte> bytes;
  };

  StoreTest() {
    // The child of a death test works where its parent looks afterwards.
    if (const char* parent = std::getenv(kParentVariable)) {
      parent_ = parent;
    } else {
      std::string path = std::filesystem::temp_directory_path().string() + "/prefixd_ssd_XXXXXX";
      if (mkdtemp(path.data()) == nullptr) std::abort();
      parent_ = path;
      setenv(kParentVariable, parent_.c_str(), 1);
    }
    directory_ = parent_ + "/store";
  }
  ~StoreTest() override {
    store_.reset();
    unsetenv(kParentVariable);
    std::error_code ignored;
    std::filesystem::remove_all(parent_, ignored);
  }

  SegmentStore& Open() {
    store_.reset();
    absl::StatusOr<std::unique_ptr<SegmentStore>> store =
        SegmentStore::Open({.directory = directory_,
                            .files = files_,
                            .on_unknown_format = [this](const std::string&) { ++unknown_formats_; },
                            .reads_directly = TestsReadDirectly()});
    if (!store.ok()) {
      ADD_FAILURE() << store.status();
      std::abort();
    }
    store_ = *std::move(store);
    return *store_;
  }

  Page MakePage(size_t page_bytes) {
    Page page{.header = {}, .bytes = std::vector<std::byte>(page_bytes)};
    for (size_t i = 0; i < page_bytes; i += 8) {
      const uint64_t word = random_();
      std::memcpy(&page.bytes[i], &word, std::min<size_t>(8, page_bytes - i));
    }
    block::PageName name{.group = static_cast<uint16_t>(random_() % 28), .tokens = 64};
    name.block[0] = static_cast<std::byte>(random_());
    page.header = block::MakePageHeader(name, page.bytes, block::PageCheck(name, page.bytes));
    return page;
  }

  static std::unique_ptr<SegmentWriter> NewSegment(SegmentStore& store) {
    absl::StatusOr<std::unique_ptr<SegmentWriter>> writer = store.NewSegment();
    if (!writer.ok()) {
      ADD_FAILURE() << writer.status();
      std::abort();
    }
    return *std::move(writer);
  }

  // One segment of `pages` with one record after each, which holds the page's sequence.
  static SegmentInfo WriteSegment(SegmentStore& store, const std::vector<Page>& pages,
                                  std::vector<uint64_t>* sequences) {
    std::unique_ptr<SegmentWriter> writer = NewSegment(store);
    for (const Page& page : pages) {
      sequences->push_back(writer->AddPage(page.header, page.bytes).value());
      EXPECT_TRUE(writer->AddRecord(RecordOf(sequences->back())).ok());
    }
    return writer->Finish().value();
  }
  static std::string RecordOf(uint64_t sequence) {
    return "record of page " + std::to_string(sequence) + std::string(300, '.');
  }

  static absl::Status Read(const SegmentStore& store, uint64_t sequence, const Page& expected) {
    Page page{.header = {}, .bytes = std::vector<std::byte>(expected.bytes.size())};
    const absl::Status status = store.ReadPage(sequence, &page.header, page.bytes);
    if (!status.ok()) return status;
    EXPECT_EQ(std::memcmp(&page.header, &expected.header, sizeof(page.header)), 0);
    EXPECT_EQ(page.bytes, expected.bytes);
    return status;
  }

  static std::vector<std::string> Records(const SegmentStore& store, uint64_t* unreadable) {
    std::vector<std::string> records;
    uint64_t last = 0;
    const absl::Status status = store.ForEachRecord(
        [&](uint64_t sequence, std::span<const std::byte> record) {
          EXPECT_GT(sequence, last);
          last = sequence;
          records.emplace_back(base::AsText(record));
          return absl::OkStatus();
        },
        unreadable);
    EXPECT_TRUE(status.ok()) << status;
    return records;
  }

  static bool SameSegments(const std::vector<SegmentInfo>& a, const std::vector<SegmentInfo>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const SegmentInfo& x, const SegmentInfo& y) {
                        return x.first_sequence == y.first_sequence &&
                               x.last_sequence == y.last_sequence && x.file_bytes == y.file_bytes;
                      });
  }

  std::string parent_, directory_;
  std::mt19937_64 random_{20261121};
  std::shared_ptr<FileLayer> files_;  // what the next Open goes through
  std::atomic<int> unknown_formats_{0};
  std::unique_ptr<SegmentStore> store_;
};

}  // namespace prefixd::ssd
