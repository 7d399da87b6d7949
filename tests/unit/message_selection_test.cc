// SPDX-License-Identifier: Apache-2.0
//
// The decisions about messages, over all combinations of their inputs.
#include "path/message_selection.h"

#include "path/selection.h"
#include "unit/fake_link.h"
#include "unit/support.h"

namespace message_selection_test {
namespace {

using namespace oh;

constexpr MemoryKind kKinds[] = {MemoryKind::kHost, MemoryKind::kShared, MemoryKind::kPinned,
                                 MemoryKind::kDevice, MemoryKind::kDevicePrivate};
constexpr uint64_t kSizes[] = {0, 1, 400, 401, 16384, 16385, 65536, 65537, UINT64_MAX};

// Returns the link that the bits describe.
LinkFacts link_of(unsigned bits) {
  LinkFacts facts;
  facts.segment = bits & 1;
  facts.ucx = !facts.segment && (bits & 2);
  facts.same_process = facts.segment && (bits & 2);
  facts.we_reach_them = facts.segment && (bits & 4);
  facts.they_reach_us = facts.segment && (bits & 8);
  facts.our_gpu = bits & 16;
  facts.their_gpu = bits & 32;
  facts.same_gpu = facts.our_gpu && facts.their_gpu && (bits & 64);
  if (bits & 128) facts.why_no_peer_access = "no peer access";
  facts.maps_devices = facts.same_process || !(bits & 128);
  facts.granted_inline = 400;
  facts.eager_max = facts.their_eager_max = 16384;
  facts.eager_credit = 262144;
  facts.worker_max = facts.our_gpu && (bits & 256) ? 65536 : 0;
  return facts;
}
constexpr unsigned kLinks = 512;

// All copies between devices: the first rule that applies decides the first step.
TEST(MessageSelectionTest, TheClaimerDecidesByTheFirstRuleThatApplies) {
  constexpr Reach kReaches[] = {Reach::kUnknown, Reach::kYes, Reach::kNo, Reach::kLater};
  for (unsigned bits = 0; bits < 64; ++bits) {
    for (Reach theirs : kReaches) {
      for (Reach slab : kReaches) {
        const DeviceCopy copy{bool(bits & 1),  bool(bits & 2),  bool(bits & 4), bool(bits & 8),
                              bool(bits & 16), bool(bits & 32), theirs,         slab};
        const CopyStep step = copy_step(copy);
        SCOPED_TRACE(bits);
        if (!copy.both) {
          EXPECT_EQ(step, copy.pending && !copy.source ? CopyStep::kAwaitEvent : CopyStep::kRelay);
          continue;
        }
        const bool theirs_to_copy = copy.by_owner && copy.open && !copy.pending;
        EXPECT_EQ(step == CopyStep::kClaimer,
                  !theirs_to_copy && !copy.their_pending && theirs == Reach::kYes);
        // An engine of the owner requires an open buffer without pending work.
        if (step == CopyStep::kOwner) {
          EXPECT_TRUE(copy.open && !copy.pending);
        }
        if (step == CopyStep::kStaged) {
          EXPECT_TRUE(!copy.open && slab == Reach::kYes);
        }
        // A copy that waits for earlier local work waits for nothing else.
        if (step == CopyStep::kAwaitEvent) {
          EXPECT_TRUE(copy.pending);
        }
        // No query is repeated.
        if (step == CopyStep::kReachTheirs) {
          EXPECT_EQ(theirs, Reach::kUnknown);
        }
        if (step == CopyStep::kReachSlab) {
          EXPECT_EQ(slab, Reach::kUnknown);
        }
      }
    }
  }
}

TEST(MessageSelectionTest, SmallHostMessagesAreEager) {
  for (unsigned bits = 0; bits < kLinks; ++bits) {
    const MessageSelection selection(link_of(bits));
    for (uint64_t size : kSizes) {
      EXPECT_EQ(selection.may_be_eager(false, size), size <= 16384);
      EXPECT_EQ(selection.may_be_eager(true, size), size == 0);
      for (bool device : {false, true}) {
        EXPECT_EQ(selection.uses_rtr(device, size),
                  size > 0 && !selection.may_be_eager(device, size));
      }
    }
  }
}

TEST(MessageSelectionTest, SlotsAreNamedWhereTheyAreOfUse) {
  for (unsigned bits = 0; bits < kLinks; ++bits) {
    const LinkFacts facts = link_of(bits);
    const MessageSelection selection(facts);
    SCOPED_TRACE(bits);
    for (uint64_t size : kSizes) {
      const SlotUse host = selection.offered(false, size);
      const SlotUse device = selection.offered(true, size);
      const bool any = facts.segment && size > 0;
      EXPECT_EQ(device, any ? SlotUse::kRequired : SlotUse::kNone);
      EXPECT_EQ(host, !any                                     ? SlotUse::kNone
                      : facts.their_gpu || facts.they_reach_us ? SlotUse::kIfFree
                                                               : SlotUse::kIfShared);
      // A receive is announced only to a sender that would use it.
      for (bool to_device : {false, true}) {
        const SlotUse use = selection.ready_to_receive(to_device, size);
        if (!facts.segment) {
          const bool in_place = facts.ucx && !to_device && size > 400;
          EXPECT_EQ(use, in_place ? SlotUse::kInPlace : SlotUse::kNone);
        } else if (size == 0 || (!to_device && size <= 16384)) {
          EXPECT_EQ(use, SlotUse::kNone);
        } else {
          EXPECT_EQ(use, to_device || facts.they_reach_us ? SlotUse::kIfFree : SlotUse::kIfShared);
        }
      }
      EXPECT_EQ(selection.is_staged(true, size), !facts.segment && size > 0);
      EXPECT_FALSE(selection.is_staged(false, size));
    }
  }
}

TEST(MessageSelectionTest, HostCopiesGiveWayToTheRingWhileBothSidesWait) {
  for (unsigned bits = 0; bits < kLinks; ++bits) {
    const LinkFacts facts = link_of(bits);
    const MessageSelection selection(facts);
    for (bool attended : {false, true}) {
      const bool always = facts.we_reach_them && (facts.same_process || !attended);
      EXPECT_EQ(selection.copies_host(attended), !facts.segment ? HostCopy::kNever
                                                 : always       ? HostCopy::kAlways
                                                                : HostCopy::kIfMapped);
    }
  }
}

// The bytes take the same path whichever side claims the slot.
TEST(MessageSelectionTest, BothClaimersDecideTheSame) {
  constexpr CopySide kCopiers[] = {CopySide::kSource, CopySide::kUs, CopySide::kThem};
  for (unsigned choice = 0; choice < 3 * kLinks; ++choice) {
    const unsigned bits = choice % kLinks;
    LinkFacts facts = link_of(bits | 1 | 16 | 32);
    facts.copy_side = kCopiers[choice / kLinks];
    const MessageSelection selection(facts);
    auto reaches = [&](MemoryKind kind) {
      if (!on_device(kind)) return kind == MemoryKind::kShared;
      return facts.same_process ? kind == MemoryKind::kDevice || facts.same_gpu
                                : kind == MemoryKind::kDevice && facts.maps_devices;
    };
    auto end_of = [&](MemoryKind kind) {
      return TransferEnd{.device = on_device(kind),
                         .open = on_device(kind) ? selection.is_open(kind, facts.same_gpu)
                                                 : kind == MemoryKind::kShared,
                         .pinned = kind == MemoryKind::kPinned};
    };
    for (MemoryKind source : kKinds) {
      for (MemoryKind target : kKinds) {
        if (!on_device(source) && !on_device(target)) continue;
        DeviceCopy copy = selection.device_copy(end_of(source), end_of(target), /*source=*/true);
        copy.theirs = reaches(target) ? Reach::kYes : Reach::kNo;
        if (copy.slab == Reach::kUnknown) {
          copy.slab = selection.has_slabs() ? Reach::kYes : Reach::kNo;
        }
        const CopyStep step = copy_step(copy);
        const Route by_sender = step == CopyStep::kClaimer  ? Route::kSourceEngine
                                : step == CopyStep::kOwner  ? Route::kTargetEngine
                                : step == CopyStep::kStaged ? Route::kSlab
                                                            : Route::kRelay;
        EXPECT_EQ(by_sender, selection.device_route(source, target, /*pending=*/false)) << bits;
      }
    }
  }
}

// Two processes on one GPU: the same one copies in both directions, whichever claims.
TEST(MessageSelectionTest, OneSideCopiesAllWhereProcessesShareAGpu) {
  using enum MemoryKind;
  LinkFacts facts = link_of(1 | 16 | 32 | 64);
  facts.copy_side = CopySide::kUs;
  const MessageSelection ours(facts);
  EXPECT_EQ(ours.device_route(kDevice, kDevice, /*pending=*/false), Route::kSourceEngine);
  EXPECT_FALSE(ours.peer_copies_all());
  facts.copy_side = CopySide::kThem;
  const MessageSelection theirs(facts);
  EXPECT_EQ(theirs.device_route(kDevice, kDevice, /*pending=*/false), Route::kTargetEngine);
  EXPECT_TRUE(theirs.peer_copies_all());
  // If the peer's engine may not access the source yet, this side copies.
  EXPECT_EQ(theirs.device_route(kDevice, kDevice, /*pending=*/true), Route::kSourceEngine);
  EXPECT_EQ(theirs.device_route(kDevicePrivate, kDevice, /*pending=*/false), Route::kSourceEngine);
}

// The explanation matches the decisions.
TEST(MessageSelectionTest, TheExplanationFollowsTheRoute) {
  for (unsigned bits = 0; bits < kLinks; ++bits) {
    const LinkFacts facts = link_of(bits);
    const MessageSelection selection(facts);
    for (MemoryKind source : kKinds) {
      for (MemoryKind target : kKinds) {
        if ((on_device(source) && !facts.our_gpu) || (on_device(target) && !facts.their_gpu)) {
          continue;
        }
        for (uint64_t size : kSizes) {
          const Choice choice = choose_message(facts, source, target, size);
          switch (selection.route(source, target, size, /*pending=*/false)) {
            case Route::kEmpty:
              EXPECT_EQ(choice.path, OH_PATH_INLINE);
              break;
            case Route::kEager:
              EXPECT_EQ(choice.path, selection.framed_path(size, /*eager=*/true));
              EXPECT_TRUE(selection.may_be_eager(on_device(source), size));
              break;
            case Route::kFrames:
            case Route::kHostCopy:
            case Route::kStaging:
              EXPECT_EQ(choice.path, selection.framed_path(size, /*eager=*/false));
              break;
            case Route::kSourceEngine:
              EXPECT_EQ(choice.path, selection.route_by_worker(source, target, size)
                                         ? OH_PATH_WORKER
                                         : selection.engine_path());
              break;
            case Route::kTargetEngine:
              EXPECT_EQ(choice.path, selection.engine_path());
              break;
            case Route::kSlab:
              EXPECT_EQ(choice.path, OH_PATH_STAGED);
              break;
            case Route::kRelay:
              EXPECT_EQ(choice.path, OH_PATH_RELAY);
              break;
            case Route::kNone:
              EXPECT_EQ(choice.path, OH_PATH_NONE);
              break;
          }
        }
      }
    }
  }
}

// The target's engine does not wait for work on the source's GPU.
TEST(MessageSelectionTest, PendingSourcesAreNotReadByTheTargetsEngine) {
  for (unsigned bits = 0; bits < kLinks; ++bits) {
    const MessageSelection selection(link_of(bits | 1 | 16 | 32));
    for (MemoryKind source : {MemoryKind::kDevice, MemoryKind::kDevicePrivate}) {
      for (MemoryKind target : {MemoryKind::kDevice, MemoryKind::kDevicePrivate}) {
        EXPECT_NE(selection.route(source, target, 1, /*pending=*/true), Route::kTargetEngine);
      }
    }
  }
}

// Device memory is rejected exactly where the explanation has no path, with its reason.
TEST(MessageSelectionTest, DeviceMemoryIsRefusedWhereItHasNoPath) {
  for (unsigned bits = 0; bits < 2 * kLinks; ++bits) {
    SCOPED_TRACE(bits);
    LinkFacts facts = link_of(bits % kLinks);
    unit::FakeLink fakes;
    if (bits >= kLinks && facts.segment && facts.our_gpu) {
      fakes.link.why_no_device = error(OH_ERR_DEVICE, "not pinned");
      facts.why_no_device = fakes.link.why_no_device.text();
    }
    const MessageSelection selection(facts);
    fakes.link.selection = &selection;
    const Status admitted = admit_device_memory(fakes.link);
    for (MemoryKind target : {MemoryKind::kHost, MemoryKind::kDevice}) {
      const Choice choice = choose_message(facts, MemoryKind::kDevice, target, 1);
      EXPECT_EQ(admitted.ok(), choice.path != OH_PATH_NONE);
      if (!admitted.ok()) {
        EXPECT_NE(admitted.text().find(choice.why), std::string::npos);
      }
    }
    const Route route = selection.route(MemoryKind::kDevice, MemoryKind::kHost, 1, false);
    EXPECT_EQ(fakes.owner.serves, route == Route::kStaging ? 1 : 0) << "who makes its progress";
  }
}

TEST(MessageSelectionTest, AShortMessageIsExplainedAsEager) {
  for (unsigned bits = 0; bits < kLinks; ++bits) {
    LinkFacts facts = link_of(bits);
    for (uint64_t single_frame : {uint64_t{0}, uint64_t{400}, uint64_t{65536}}) {
      facts.single_frame = single_frame;
      const MessageSelection selection(facts);
      for (uint64_t size : kSizes) {
        if (!selection.is_short(size)) continue;
        EXPECT_LE(size, single_frame);
        const Choice choice = choose_message(facts, MemoryKind::kHost, MemoryKind::kHost, size);
        EXPECT_EQ(choice.path, selection.framed_path(size, /*eager=*/true));
        EXPECT_TRUE(choice.method == Method::kInline || choice.method == Method::kEager);
      }
    }
  }
}

}  // namespace
}  // namespace message_selection_test
