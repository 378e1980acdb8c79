#include "daemon/metrics/counter_rules.h"

namespace prefixd::daemon {
namespace {

constexpr auto kGauge = Kind::kGauge;
constexpr auto kCounter = Kind::kCounter;
constexpr auto kAlways = Shown::kAlways;
constexpr auto kWithSsd = Shown::kWithSsd;
constexpr auto kWithRemote = Shown::kWithRemote;
constexpr auto kOnceCounted = Shown::kOnceCounted;

constexpr const char* kStoredHelp = "Tokens that workers committed: stored, or there already.";
constexpr const char* kDeliveredHelp = "Tokens whose pages were copied to workers, by tier.";
constexpr const char* kLookupsHelp =
    "Lookups (Acquire) by how the request related to what is stored.";
constexpr const char* kEndedHelp = "Lookups by why the match ended where it did.";
constexpr const char* kShortenedHelp =
    "Lookups that got less than what matches the request, by reason.";
constexpr const char* kLostHelp = "Tokens that match but were not restorable, by reason.";
constexpr const char* kRefusedHelp = "Calls and parts of calls that were refused, by reason.";
constexpr const char* kWrittenHelp =
    "Bytes of pages written to the SSD: new ones, and those written again before their segment "
    "left.";
constexpr const char* kWrittenPagesHelp = "Pages written to the SSD.";
constexpr const char* kWorkerBytesHelp =
    "Bytes of pages that workers sent (received), that came through staging memory (staged), and "
    "that "
    "were copied to workers (delivered).";
constexpr const char* kSessionsHelp = "What happened to sessions of workers.";
constexpr const char* kDegradedHelp =
    "Sessions that got less than they asked for, by what is missing.";
constexpr const char* kSsdErrorsHelp = "Failures of the SSD tier's disk, by what failed.";
constexpr const char* kSsdEventsHelp = "What happened to the store on the SSD as a whole.";
constexpr const char* kHoldHelp =
    "The longest that a lock was held since the start: no hit waited longer for it.";
constexpr const char* kRemoteBytesHelp =
    "Bytes of pages read from and written to the shared store.";
constexpr const char* kRemoteNotWrittenHelp =
    "Blocks that were not written to the shared store, by reason.";
constexpr const char* kRemoteMissedHelp =
    "Blocks of the shared store that a request could not use, by reason.";
constexpr const char* kRemoteBadHelp =
    "Blocks of the shared store that were damaged, by what was wrong.";
constexpr const char* kRecoveredHelp = "Records of blocks that were read from the SSD at starts.";
constexpr const char* kAdoptedHelp = "Pages that an earlier daemon left in RAM.";
constexpr const char* kLogHelp =
    "Lines left out of the log: nobody took them, or there were too many.";
constexpr const char* kSpansHelp =
    "Spans of traced calls: those that the collector took, and those that nobody got.";
constexpr const char* kVerifyHelp = "Pages that prefixctl verify checked.";
constexpr const char* kDrainHelp = "Bytes that drains saved, or could not save.";
constexpr const char* kAdmissionHelp = "Blocks that the SSD's write limits kept out.";

constexpr CounterRule kRules[] = {
    // Shown elsewhere: tokens by space and tier (space_series.h), calls by verb and result.
    {"tokens.requested"},
    {"tokens.matched"},
    {"tokens.restorable"},
    {"tokens.restorable.ram"},
    {"tokens.restorable.ssd"},
    {"tokens.restorable.remote"},
    {"tokens.used"},
    {"tokens.used.ram"},
    {"tokens.used.ssd"},
    {"tokens.used.remote"},
    {"tokens.delivered"},
    {"rpc.*"},

    // Tokens.
    {"tokens.stored", "prefixd_tokens_committed_total", kCounter, kStoredHelp, "result", "stored"},
    {"tokens.duplicate", "prefixd_tokens_committed_total", kCounter, kStoredHelp, "result",
     "duplicate"},
    {"tokens.delivered.ram", "prefixd_tokens_delivered_total", kCounter, kDeliveredHelp, "tier",
     "ram"},
    {"tokens.delivered.ssd", "prefixd_tokens_delivered_total", kCounter, kDeliveredHelp, "tier",
     "ssd"},
    {"tokens.given_up", "prefixd_tokens_evicted_before_total", kCounter,
     "Requested tokens that had been stored and were evicted since."},
    {"match.*", "prefixd_lookups_total", kCounter, kLookupsHelp, "match"},
    {"tokens.restorable.*", "prefixd_lookups_restorable_tokens_total", kCounter,
     "Restorable tokens by how the request related to what is stored.", "match"},
    {"ended.*", "prefixd_lookups_ended_total", kCounter, kEndedHelp, "reason"},
    {"shortened.*", "prefixd_lookups_shortened_total", kCounter, kShortenedHelp, "reason"},
    {"tokens.lost.*", "prefixd_tokens_lost_total", kCounter, kLostHelp, "reason"},
    {"matches", "prefixd_matches_total", kCounter, "Lookups that took nothing (Match)."},
    {"acquires.sets", "prefixd_set_lookups_total", kCounter, "Lookups of several spaces at once."},
    {"waits.pending", "prefixd_lookups_waited_total", kCounter,
     "Lookups that waited for what another worker was storing."},
    {"commits", "prefixd_commits_total", kCounter, "Commits that stored something or found it."},
    {"commits.on_ssd", "prefixd_durable_commits_total", kCounter,
     "Commits that asked for the SSD, by whether it was written in time.", "result", "on_ssd"},
    {"commits.not_on_ssd", "prefixd_durable_commits_total", kCounter,
     "Commits that asked for the SSD, by whether it was written in time.", "result", "not_on_ssd"},
    {"prefetches", "prefixd_prefetches_total", kCounter, "Hints that a request will come."},
    {"prefetch.pages", "prefixd_prefetched_pages_total", kCounter,
     "Pages whose reads hints began."},
    {"prefetch.bytes", "prefixd_prefetched_bytes_total", kCounter, "Their bytes."},
    {"ends.refused", "prefixd_ends_refused_total", kCounter,
     "Ends of sequences whose block was evicted before the commit."},
    {"calls.direct", "prefixd_direct_calls_total", kCounter,
     "Calls that came over the side socket instead of gRPC."},
    {"requests.long", "prefixd_long_requests_total", kCounter,
     "Requests that were too long to be read on gRPC's own thread."},
    {"requests.slow", "prefixd_slow_requests_total", kCounter,
     "Lookups and commits that took longer than --slow-request."},

    // Refusals. The prefix catches reasons that have no line.
    {"refused.bad_request", "prefixd_refused_total", kCounter, kRefusedHelp, "reason",
     "bad_request"},
    {"refused.exhausted", "prefixd_refused_total", kCounter, kRefusedHelp, "reason", "exhausted"},
    {"refused.share", "prefixd_refused_total", kCounter, kRefusedHelp, "reason", "share"},
    {"refused.ram_full", "prefixd_refused_total", kCounter, kRefusedHelp, "reason", "ram_full"},
    {"refused.deadline", "prefixd_refused_total", kCounter, kRefusedHelp, "reason", "deadline"},
    {"refused.sessions", "prefixd_refused_total", kCounter, kRefusedHelp, "reason", "sessions"},
    {"refused.bad_page", "prefixd_refused_total", kCounter, kRefusedHelp, "reason", "bad_page"},
    {"refused.internal", "prefixd_refused_total", kCounter, kRefusedHelp, "reason", "internal"},
    {"refused.*", "prefixd_refused_total", kCounter, kRefusedHelp, "reason"},
    {"access.bad_file", "prefixd_access_bad_files_total", kCounter,
     "Changes of the access file that could not be used: the one before stays in force."},
    {"access.sessions_ended", "prefixd_access_sessions_ended_total", kCounter,
     "Sessions that ended because the access file no longer has their caller, or not in its "
     "tenant."},
    {"connections.cut", "prefixd_connections_cut_total", kCounter,
     "Connections that were cut because their unfinished messages kept too much memory."},
    {"streams.stalled", "prefixd_streams_stalled_total", kCounter,
     "Streams of pages that ended because the worker was silent."},
    {"handed_out.taken_back", "prefixd_handed_out_taken_back_total", kCounter,
     "Leases, reservations and pins whose caller was gone when they were ready."},

    // Sessions and what they hold.
    {"sessions.begun", "prefixd_session_events_total", kCounter, kSessionsHelp, "event", "begun"},
    {"sessions.ended", "prefixd_session_events_total", kCounter, kSessionsHelp, "event", "ended"},
    {"sessions.cut_off", "prefixd_session_events_total", kCounter, kSessionsHelp, "event",
     "cut_off"},
    {"sessions.reaped", "prefixd_session_events_total", kCounter, kSessionsHelp, "event", "reaped"},
    {"sessions.resumed", "prefixd_session_events_total", kCounter, kSessionsHelp, "event",
     "resumed"},
    {"sessions.resume_refused", "prefixd_session_events_total", kCounter, kSessionsHelp, "event",
     "resume_refused"},
    {"sessions.files_refused", "prefixd_session_events_total", kCounter, kSessionsHelp, "event",
     "files_refused"},
    {"sessions.without_slot", "prefixd_sessions_degraded_total", kCounter, kDegradedHelp, "missing",
     "slot"},
    {"sessions.without_staging", "prefixd_sessions_degraded_total", kCounter, kDegradedHelp,
     "missing", "staging"},
    {"sessions.kept", "prefixd_sessions_kept", kGauge,
     "Sessions that were cut off and whose process may still be reading."},
    {"staging.kept_bytes", "prefixd_staging_kept_bytes", kGauge, "Staging memory that these keep."},
    {"spaces.refused", "prefixd_models_not_shared", kGauge,
     "Models that attached workers serve without sharing their caches."},
    {"reservations.announced_tokens", "prefixd_announced_tokens", kGauge,
     "Tokens that workers announced to store."},
    {"reservations.idle_ended", "prefixd_reservations_idle_ended_total", kCounter,
     "Reservations that ended because nobody used them."},
    {"reservations.abandoned", "prefixd_reservations_abandoned_total", kCounter,
     "Reservations that their worker gave up."},
    {"puts.arriving_bytes", "prefixd_arriving_bytes", kGauge,
     "Bytes of pages that workers sent and did not commit yet."},
    {"pins.made", "prefixd_pins_made_total", kCounter, "Pins that were made."},
    {"pins.expired", "prefixd_pins_expired_total", kCounter, "Pins whose time was up."},

    // RAM.
    {"arena.shared", "prefixd_arena_shared", kGauge,
     "1 if workers on this host read the RAM tier in place, 0 if pages are copied."},
    {"arena.held_by_another", "prefixd_arena_held_by_another", kGauge,
     "1 while another process has the arena's file and private memory is used."},
    {"arena.extent_bytes", "prefixd_arena_extent_bytes", kGauge,
     "Bytes of the arena that pages take."},
    {"arena.slabs_in_service", "prefixd_arena_slabs", kGauge, "Slabs of the arena in service."},
    {"arena.device_pinned_bytes", "prefixd_device_pinned_bytes", kGauge,
     "Bytes of the arena that workers have pinned for GPUs."},
    {"arena.device_awaited_bytes", "prefixd_device_awaited_bytes", kGauge,
     "Of these, bytes that were asked back: they count as used until workers unpin them."},
    {"arena.device_kept_bytes", "prefixd_device_kept_bytes", kGauge,
     "Of these, bytes that were asked back in vain: memory beside the RAM budget."},
    {"arena.device_pins_late", "prefixd_device_pins_late_total", kCounter,
     "Times that a worker did not unpin in time what was asked back."},
    {"arena.replaced", "prefixd_arena_replaced_total", kCounter,
     "Arena files of an earlier daemon that could not be used."},
    {"arena.unusable", "prefixd_arena_unusable_total", kCounter,
     "Starts without the shared arena that was asked for."},
    {"arena.key_not_kept", "prefixd_arena_key_not_kept_total", kCounter,
     "Starts that could not write the key beside the arena: its pages do not survive a crash."},
    {"arena.taken_over", "prefixd_arena_taken_over_total", kCounter,
     "Times that the arena was taken over from another process."},
    {"adopted.pages", "prefixd_adopted_pages_total", kCounter, kAdoptedHelp, "result", "used"},
    {"adopted.dropped", "prefixd_adopted_pages_total", kCounter, kAdoptedHelp, "result", "dropped"},
    {"adopted.held", "prefixd_adopted_pages_total", kCounter, kAdoptedHelp, "result", "held"},
    {"adopted.bytes", "prefixd_adopted_bytes_total", kCounter,
     "Bytes of pages that an earlier daemon left in RAM and that are used."},
    {"pages.evicted", "prefixd_evicted_pages_total", kCounter,
     "Pages that RAM gave up for others."},
    {"bytes.evicted", "prefixd_evicted_bytes_total", kCounter, "Their bytes."},
    {"pages.dropped", "prefixd_dropped_pages_total", kCounter,
     "Of the evicted pages, those that were nowhere else and are gone."},
    {"pages.expired", "prefixd_expired_pages_total", kCounter,
     "Pages that a space's limits or its time to live ended."},
    {"pages.moved", "prefixd_moved_pages_total", kCounter,
     "Pages that were moved within RAM to empty a slab."},
    {"slabs.emptied", "prefixd_slabs_emptied_total", kCounter, "Slabs that were emptied."},
    {"admission.overdrawn", "prefixd_admission_overdrawn_total", kCounter,
     "Times that RAM was so full that the SSD's write limits did not count."},
    {"index.ghosts", "prefixd_index_ghosts", kGauge,
     "Evicted blocks that the index remembers by name."},
    {"index.trimmed", "prefixd_index_trimmed_total", kCounter,
     "Times that the index forgot old blocks to make room for new ones."},
    {"index.served_while_loading", "prefixd_starts_served_while_loading_total", kCounter,
     "Starts that served before the SSD's index was whole."},
    {"snapshots.evicted", "prefixd_snapshots_evicted_total", kCounter,
     "Snapshots of recurrent states that were given up for others."},
    {"snapshots.refused", "prefixd_snapshots_refused_total", kCounter,
     "Snapshots for which there was no room in their share."},
    {"bytes.received", "prefixd_worker_bytes_total", kCounter, kWorkerBytesHelp, "how", "received"},
    {"bytes.staged", "prefixd_worker_bytes_total", kCounter, kWorkerBytesHelp, "how", "staged"},
    {"bytes.delivered", "prefixd_worker_bytes_total", kCounter, kWorkerBytesHelp, "how",
     "delivered"},
    {"advice.coarser", "prefixd_advice_coarser", kGauge,
     "1 while workers are told to store new blocks in a coarser format."},
    {"advice.missed_permille", "prefixd_advice_missed_ratio", kGauge,
     "Share of the requested tokens that had been evicted, of late.", nullptr, nullptr, kAlways,
     1e-3},
    {"advice.times", "prefixd_advice_changes_total", kCounter, "Times that this advice began."},
    {"advice.coarser_pages", "prefixd_advice_coarser_pages_total", kCounter,
     "Pages that workers were told to store coarser."},
    {"spaces.cleared", "prefixd_spaces_cleared_total", kCounter, "Spaces that were cleared."},
    {"spaces.forgotten", "prefixd_spaces_forgotten_total", kCounter,
     "Empty spaces that were forgotten."},
    {"spaces.not_recorded", "prefixd_spaces_not_recorded_total", kCounter,
     "Spaces for which the arena's table had no place: their pages do not survive a crash."},

    // SSD.
    {"ssd.closed", "prefixd_ssd_closed", kGauge,
     "1 while the SSD tier is not open: its disk does not take it, or has no room.", nullptr,
     nullptr, kWithSsd},
    {"ssd.failing", "prefixd_ssd_failing", kGauge, "1 while writes to the SSD fail.", nullptr,
     nullptr, kWithSsd},
    {"ssd.border_waits", "prefixd_ssd_clear_waits", kGauge,
     "1 while the disk has not taken yet that spaces were cleared.", nullptr, nullptr, kWithSsd},
    {"ssd.may_write_bytes", "prefixd_ssd_may_write_bytes", kGauge,
     "Bytes that the SSD's write share allows now.", nullptr, nullptr, kOnceCounted},
    {"ssd.waiting_bytes", "prefixd_ssd_waiting_bytes", kGauge,
     "Bytes of files that nothing refers to, until their segment ages out.", nullptr, nullptr,
     kWithSsd},
    {"ssd.damaged_copies", "prefixd_ssd_damaged_copies", kGauge,
     "Damaged stores that were moved aside and are kept.", nullptr, nullptr, kWithSsd},
    {"ssd.damaged_bytes", "prefixd_ssd_damaged_bytes", kGauge, "Their bytes.", nullptr, nullptr,
     kWithSsd},
    {"bytes.spilled", "prefixd_ssd_written_bytes_total", kCounter, kWrittenHelp, "cause", "new",
     kWithSsd},
    {"bytes.rewritten", "prefixd_ssd_written_bytes_total", kCounter, kWrittenHelp, "cause",
     "rewritten", kWithSsd},
    {"pages.spilled", "prefixd_ssd_written_pages_total", kCounter, kWrittenPagesHelp, "cause",
     "new", kWithSsd},
    {"pages.rewritten", "prefixd_ssd_written_pages_total", kCounter, kWrittenPagesHelp, "cause",
     "rewritten", kWithSsd},
    {"bytes.promoted", "prefixd_ssd_read_bytes_total", kCounter,
     "Bytes of pages read from the SSD into RAM.", nullptr, nullptr, kWithSsd},
    {"pages.promoted", "prefixd_ssd_read_pages_total", kCounter,
     "Pages read from the SSD into RAM.", nullptr, nullptr, kWithSsd},
    {"promotions.*", "prefixd_ssd_reads_failed_total", kCounter,
     "Reads of pages that gave none, by reason.", "reason", nullptr, kOnceCounted},
    {"segments.written", "prefixd_ssd_segments_written_total", kCounter,
     "Segments written to the SSD.", nullptr, nullptr, kWithSsd},
    {"segments.dropped", "prefixd_ssd_segments_dropped_total", kCounter,
     "Segments that left the SSD.", nullptr, nullptr, kWithSsd},
    {"rewrites.given_up", "prefixd_ssd_rewrites_given_up_total", kCounter,
     "Blocks that were to be written again and were not in time.", nullptr, nullptr, kWithSsd},
    {"admission.refused_blocks", "prefixd_ssd_not_admitted_blocks_total", kCounter, kAdmissionHelp,
     nullptr, nullptr, kWithSsd},
    {"admission.refused_bytes", "prefixd_ssd_not_admitted_bytes_total", kCounter, "Their bytes.",
     nullptr, nullptr, kWithSsd},
    {"ssd.write_errors", "prefixd_ssd_errors_total", kCounter, kSsdErrorsHelp, "what", "write",
     kWithSsd},
    {"segments.drop_errors", "prefixd_ssd_errors_total", kCounter, kSsdErrorsHelp, "what", "remove",
     kWithSsd},
    {"rewrite.unreadable", "prefixd_ssd_errors_total", kCounter, kSsdErrorsHelp, "what",
     "read_to_rewrite", kWithSsd},
    {"ssd.border_errors", "prefixd_ssd_errors_total", kCounter, kSsdErrorsHelp, "what",
     "write_cleared", kWithSsd},
    {"ssd.read_errors", "prefixd_ssd_errors_total", kCounter, kSsdErrorsHelp, "what", "read",
     kWithSsd},
    {"ssd.open_failed", "prefixd_ssd_errors_total", kCounter, kSsdErrorsHelp, "what", "open",
     kWithSsd},
    {"ssd.self_test_failed", "prefixd_ssd_errors_total", kCounter, kSsdErrorsHelp, "what",
     "self_test", kWithSsd},
    {"recover.failed", "prefixd_ssd_errors_total", kCounter, kSsdErrorsHelp, "what", "recover",
     kWithSsd},
    {"ssd.full", "prefixd_ssd_full_total", kCounter,
     "Times that blocks were not saved because the SSD's budget had no room for them.", nullptr,
     nullptr, kWithSsd},
    {"ssd.*", "prefixd_ssd_events_total", kCounter, kSsdEventsHelp, "event", nullptr, kOnceCounted},
    {"recovered.records", "prefixd_recovered_records_total", kCounter, kRecoveredHelp, "result",
     "used", kWithSsd},
    {"recovered.*", "prefixd_recovered_records_total", kCounter, kRecoveredHelp, "result", nullptr,
     kOnceCounted},
    {"purge.segments", "prefixd_purged_segments_total", kCounter, "Segments that purges removed.",
     nullptr, nullptr, kWithSsd},
    {"purge.bytes", "prefixd_purged_bytes_total", kCounter, "Bytes of files that purges removed.",
     nullptr, nullptr, kWithSsd},
    {"flushes", "prefixd_flushes_total", kCounter, "Flushes that were asked for."},
    {"drain.saved_bytes", "prefixd_drained_bytes_total", kCounter, kDrainHelp, "result", "saved",
     kWithSsd},
    {"drain.unsaved_bytes", "prefixd_drained_bytes_total", kCounter, kDrainHelp, "result",
     "unsaved", kWithSsd},

    // Checks.
    {"check_failures", "prefixd_checksum_failures_total", kCounter,
     "Pages whose bytes did not match their checksum; they were dropped."},
    {"pages.verified", "prefixd_verified_in_place_pages_total", kCounter,
     "Pages of an earlier daemon that were checked where they stand."},
    {"bytes.verified", "prefixd_verified_in_place_bytes_total", kCounter, "Their bytes."},
    {"verified.everything", "prefixd_verified_everything", kGauge,
     "1 once every page that was left in RAM is checked.", nullptr, nullptr, kOnceCounted},
    {"verify.pages", "prefixd_verify_pages_total", kCounter, kVerifyHelp},
    {"verify.bytes", "prefixd_verify_bytes_total", kCounter, "Their bytes."},
    {"verify.*", "prefixd_verify_bad_pages_total", kCounter,
     "Pages that prefixctl verify dropped or could not read.", "result"},
    {"longest_hold_us.*", "prefixd_longest_lock_hold_seconds", kGauge, kHoldHelp, "lock", nullptr,
     kAlways, 1e-6},
    {"locks.waited", "prefixd_file_locks_waited_total", kCounter,
     "Waits for a file lock of a process that was ending."},

    // The store that hosts share.
    {"remote.lookups", "prefixd_remote_lookups_total", kCounter,
     "Requests that asked the shared store.", nullptr, nullptr, kWithRemote},
    {"remote.lookups_found", "prefixd_remote_lookups_found_total", kCounter,
     "Of these, those for which it had something.", nullptr, nullptr, kWithRemote},
    {"remote.tokens_found", "prefixd_remote_tokens_found_total", kCounter,
     "Tokens that the shared store had and that were asked for.", nullptr, nullptr, kWithRemote},
    {"remote.not_worth_it", "prefixd_remote_not_worth_it_total", kCounter,
     "Requests that left out what loads more slowly than the worker computes it.", nullptr, nullptr,
     kWithRemote},
    {"remote.pages_loaded", "prefixd_remote_read_pages_total", kCounter,
     "Pages read from the shared store.", nullptr, nullptr, kWithRemote},
    {"remote.bytes_loaded", "prefixd_remote_bytes_total", kCounter, kRemoteBytesHelp, "direction",
     "read", kWithRemote},
    {"remote.bytes_written", "prefixd_remote_bytes_total", kCounter, kRemoteBytesHelp, "direction",
     "written", kWithRemote},
    {"remote.blocks_written", "prefixd_remote_written_blocks_total", kCounter,
     "Blocks written to the shared store.", nullptr, nullptr, kWithRemote},
    {"remote.passed_over", "prefixd_remote_not_written_total", kCounter, kRemoteNotWrittenHelp,
     "reason", "queue", kWithRemote},
    {"remote.not_written.*", "prefixd_remote_not_written_total", kCounter, kRemoteNotWrittenHelp,
     "reason", nullptr, kOnceCounted},
    {"remote.gone", "prefixd_remote_missed_total", kCounter, kRemoteMissedHelp, "reason", "gone",
     kWithRemote},
    {"remote.late", "prefixd_remote_missed_total", kCounter, kRemoteMissedHelp, "reason", "late",
     kWithRemote},
    {"remote.failed", "prefixd_remote_missed_total", kCounter, kRemoteMissedHelp, "reason",
     "failed", kWithRemote},
    {"remote.no_room", "prefixd_remote_missed_total", kCounter, kRemoteMissedHelp, "reason",
     "no_room", kWithRemote},
    {"remote.bad.bytes", "prefixd_remote_bad_total", kCounter, kRemoteBadHelp, "what", "bytes",
     kWithRemote},
    {"remote.bad.seal", "prefixd_remote_bad_total", kCounter, kRemoteBadHelp, "what", "seal",
     kWithRemote},
    {"remote.bad.*", "prefixd_remote_bad_total", kCounter, kRemoteBadHelp, "what", nullptr,
     kOnceCounted},
    {"remote.*", "prefixd_remote_events_total", kCounter,
     "What else happened with the shared store.", "event", nullptr, kOnceCounted},

    {"log.dropped", "prefixd_log_lines_lost_total", kCounter, kLogHelp, "reason", "dropped"},
    {"log.limited", "prefixd_log_lines_lost_total", kCounter, kLogHelp, "reason", "limited"},
    {"trace.spans_exported", "prefixd_trace_spans_total", kCounter, kSpansHelp, "result",
     "exported", kOnceCounted},
    {"trace.spans_dropped", "prefixd_trace_spans_total", kCounter, kSpansHelp, "result", "dropped",
     kOnceCounted},
    {"trace.exports_failed", "prefixd_trace_exports_failed_total", kCounter,
     "Messages with spans that the collector did not take, each try.", nullptr, nullptr,
     kOnceCounted},
};

}  // namespace

std::span<const CounterRule> CounterRules() { return kRules; }

const CounterRule* RuleFor(std::string_view counter) {
  const CounterRule* best = nullptr;
  for (const CounterRule& rule : kRules) {
    if (!rule.is_prefix()) {
      if (rule.counter == counter) return &rule;
      continue;
    }
    const std::string_view start = rule.counter.substr(0, rule.counter.size() - 1);
    const bool says_more = best == nullptr || best->counter.size() < rule.counter.size();
    if (counter.starts_with(start) && says_more) best = &rule;
  }
  return best;
}

}  // namespace prefixd::daemon
