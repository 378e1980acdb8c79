// Writes results past the caches: a unit is built in memory of its own, small enough for the caches
// next to the core, and leaves it in whole cache lines while the next unit is built. Internal to
// kernels/.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/quantize.h"
#include "quant/unit.h"

namespace prefixd::kernels {

// Bytes that are still to be sent.
struct PendingLines {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t bytes = 0;
};

// Sends all of `lines`: past the caches if both ends are aligned to lines, asking for as many bytes
// at `next` (if any) meanwhile; else through them. Visible to other threads after FinishStream().
void Send(PendingLines* lines, const std::byte* next = nullptr);
void FinishStream();

// What memory does while a unit is built: it takes lines of the last unit and brings lines of the
// next one, evenly between the pieces of work, as many a piece as the unit before had time for.
struct LinesBeside {
  PendingLines* sent = nullptr;
  const std::byte* asked = nullptr;  // null: none
  size_t pieces = 0;                 // so far
  size_t lines_a_piece = 1;

  void StartUnit(PendingLines* to_send, const std::byte* to_ask);
};

// Where the units of one run are built.
class UnitOutput {
 public:
  // Streams when `run` asks for it and covers its units.
  UnitOutput(const quant::UnitShape& shape, const UnitRun& run);
  // Sends what is pending.
  ~UnitOutput();
  UnitOutput(const UnitOutput&) = delete;
  UnitOutput& operator=(const UnitOutput&) = delete;

  // Returns where to write the unit that belongs at `unit`.
  std::byte* Begin(std::byte* unit) const { return building_ == nullptr ? unit : building_; }
  void End(std::byte* unit);
  // The last unit that ended. The builder of the next unit may send lines of it in between
  // (WriteLine of stream_line-inl.h); End() of the next unit sends the rest.
  PendingLines* pending() { return &pending_; }

 private:
  const size_t unit_bytes_;
  std::unique_ptr<std::byte[]> memory_;
  std::byte* building_ = nullptr;  // in memory_; null: units are written where they belong
  std::byte* leaving_ = nullptr;
  PendingLines pending_;
};

}  // namespace prefixd::kernels
