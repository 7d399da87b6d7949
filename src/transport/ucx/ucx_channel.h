// SPDX-License-Identifier: Apache-2.0
//
// UcxChannel: the channel over UCX. A frame is one active message. Its header is
//
//   link 4 | sequence 4 | key 4, type 1, flags 1, 2 | FrameBody 56      and then, if it is small,
//   link 4 | sequence 4 | key 4, type 1, flags 1, 2 | tag 8             the payload
//
// the second form being that of a small message (kShort). Other payloads are the message's data:
// from a buffer of ours (push), or straight from the user's memory (lend). UCX delivers in any
// order, so frames are numbered. The key, which the peers have told each other on the control
// socket, keeps strangers out.
//
// UCX queues without bound: no more is handed to it while the bytes it holds of ours are above a
// limit.
//
// Threading: as Channel, guarded by the peer's lock; what UCX calls is guarded by the worker's.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/tag_table.h"
#include "transport/counted_credit.h"
#include "transport/ucx/ucx_worker.h"

namespace oh {

struct UcxHead {
  uint32_t link;
  uint32_t sequence;
  uint64_t word;  // cell_word() with the key
};
static_assert(sizeof(UcxHead) == 16);

// A buffer in UCX's hands that is not the channel's, until it is over.
struct Flight {
  Flight(UcxWorker& of, const char* by) : worker(of), call(by) {}
  bool is_over() const { return over.load(std::memory_order_acquire); }

  UcxWorker& worker;
  const char* call;               // of UCX
  std::atomic<bool> over{false};  // written once, after `code`
  ucx::Code code = ucx::kOk;
  uint8_t head[sizeof(UcxHead) + sizeof(FrameBody)];
  std::shared_ptr<Flight> self;  // while UCX has it
};

// Bytes one behind the other. A vector would write each of them twice.
class Buffer {
 public:
  size_t size() const { return size_; }
  const uint8_t* at(size_t offset) const { return bytes_.get() + offset; }
  void clear() { size_ = 0; }
  void append(ByteView bytes);

 private:
  std::unique_ptr<uint8_t[]> bytes_;
  size_t size_ = 0;
  size_t room_ = 0;
};

class UcxChannel final : public CountedCredit {
 public:
  static constexpr unsigned kAmId = 0x6f;
  // Of one frame whose payload is copied.
  static constexpr size_t kMaxPayload = 64 * 1024;

  // `most_lent`: bytes of a large message that are given to UCX at once; 0: what is best here.
  UcxChannel(std::shared_ptr<UcxWorker> worker, uint64_t peer_credit, uint32_t key,
             uint64_t most_lent);
  ~UcxChannel() override;

  // What the other side needs to reach us.
  struct Remote {
    Bytes address;
    uint32_t link = 0;
    uint32_t key = 0;
    uint64_t max_header = 0;
  };
  Result<Remote> own(bool network) const;
  // `asked_inline`: more would be granted than is of use.
  Status connect(const Remote& remote, uint64_t asked_inline);
  // Sends a header as large as the largest small message's there and back. Whoever is at the other
  // side has connected before.
  Status probe(Deadline deadline);

  size_t max_payload() const override { return kMaxPayload; }
  size_t part_of(uint64_t) const override { return kMaxPayload; }
  size_t max_inline() const override { return max_inline_; }
  bool push(const Frame& frame) override;
  // Sends the payload from where it is; until the flight is over it must stay there unchanged.
  // Null when there is no room now.
  std::shared_ptr<Flight> lend(const Frame& frame);
  // So much of a message of `size` bytes is lent at once: parts are alike, so that the other side
  // copies one while the next is sent.
  uint64_t lent_part(uint64_t size) const;

  // What has come, in order, by the worker's progress. ready(): any thread.
  bool ready() const { return waiting_.load(std::memory_order_acquire) > 0; }
  // The first of them, until pop(); ready() has said that there is one.
  Status peek(Frame* frame);
  void pop();
  // Lets the payload of the frame at hand come, where that is still at the sender (Frame::remote).
  std::shared_ptr<Flight> fetch(const Frame& frame, uint8_t* to);
  // From now on what comes in parts (kData) of bytes [begin, begin + size) of that message goes
  // straight to `to`, until forbid(), of these or of all: afterwards nothing is written there.
  void expect(uint64_t op, uint8_t* to, uint64_t begin, uint64_t size);
  void forbid(uint64_t op, std::optional<uint64_t> begin = {});
  // The same for a message that comes early, whole or in parts: the one with this number of its tag
  // goes straight to `to`, if it fits. Numbers of a tag are expected in their order.
  struct Expected {
    uint32_t number;
    uint32_t epoch;
    uint8_t* to;
    uint64_t capacity;
    bool has_come;
  };
  void expect_early(uint64_t tag, const Expected& message);
  // Takes that back. False: it has come, and is ready; it is only forgotten once it is `taken`.
  bool forbid_early(uint64_t tag, uint32_t number, bool taken);
  // Nothing that comes goes anywhere but into the inbox.
  void forbid_all();
  UcxWorker& worker() { return *worker_; }

  // Frames sent and received so far.
  uint64_t sent() const { return sent_; }
  uint64_t taken() const { return taken_; }
  // Not empty: UCX has given the link up.
  Status broken();
  // UCX has failed at it. That breaks the link: frames are numbered, so the other side awaits what
  // was not sent for ever, as it does for a part that is not fetched. Says why it is broken.
  Status broken_by(const Flight& flight);
  // Until everything that was sent has left. False at the deadline, or once `there` says that the
  // other side has gone, of which UCX may say nothing.
  bool flush(Deadline deadline, const std::function<bool()>& there);
  // The link is over. Flights end soon.
  void disconnect();

  // Called by the worker, with its lock held.
  ucx::Code arrived(const UcxHead& head, ByteView header, void* data, size_t size,
                    uint64_t attributes);

 private:
  friend class UcxRma;
  struct Note;
  // A frame that has come. Its payload is in `bytes` of the batch, or in `data`, or with its
  // sender.
  struct Arrival {
    uint64_t word = 0;
    FrameBody body{};
    size_t offset = 0;
    void* data = nullptr;
    bool rendezvous = false;
    bool placed = false;
  };
  // Where a message goes.
  struct Place {
    uint64_t op;
    uint8_t* to;
    uint64_t begin;
    uint64_t size;
  };
  struct ExpectedTag {
    uint64_t tag = 0;
    ExpectedTag* next_in_bucket = nullptr;
    std::deque<Expected> messages;  // by number
    void reset() {}
    bool idle() const { return messages.empty(); }
    std::deque<Expected>::iterator find(uint32_t number);
  };
  struct Batch {
    std::vector<Arrival> arrivals;
    Buffer bytes;
  };
  struct Stashed {
    Arrival arrival;
    Bytes bytes;
  };

  size_t write_head(uint8_t* to, const Frame& frame, bool is_short);
  Note* take_note();
  void release(Note* note, ucx::StatusPointer pointer);
  ucx::StatusPointer send(const void* header, size_t header_size, const Frame& frame,
                          void (*done)(void*, ucx::Code, void*), void* context);
  bool place(const FrameBody& body, const void* data, size_t size);
  bool place_early(const FrameBody& body, const void* data, size_t size);
  void deliver(const Arrival& arrival, ByteView payload);
  static void put_into(Batch& batch, Arrival arrival, ByteView payload);
  void send_probe(FrameType type, size_t size);
  static std::shared_ptr<Flight> begin(std::shared_ptr<Flight> flight, ucx::StatusPointer pointer);
  void break_off(const std::string& why);
  static void on_note_sent(void* request, ucx::Code code, void* context);
  static void on_flight_over(void* request, ucx::Code code, void* context);
  static void on_fetched(void* request, ucx::Code code, size_t size, void* context);
  static void on_error(void* context, ucx::Endpoint endpoint, ucx::Code code);
  bool wait_for(void* request, Deadline deadline, const std::function<bool()>& there);

  static constexpr size_t kTidyAt = 4096;

  std::shared_ptr<UcxWorker> worker_;
  uint32_t link_ = 0;
  uint32_t key_;
  Remote remote_;
  ucx::Endpoint endpoint_ = nullptr;
  size_t max_inline_ = 0;
  uint64_t most_lent_;
  uint64_t sent_ = 0;
  uint64_t taken_ = 0;
  Batch batch_;  // at hand
  size_t position_ = 0;

  // Guarded by the worker's lock.
  std::vector<std::unique_ptr<Note>> notes_;
  std::vector<Note*> free_notes_;
  uint64_t outstanding_ = 0;  // bytes of ours that UCX holds
  uint32_t next_sequence_ = 0;
  std::map<uint32_t, Stashed> stash_;  // came before their turn
  std::vector<Place> places_;          // few
  TagTable<ExpectedTag> expected_;
  size_t tidy_at_ = kTidyAt;  // tags at which idle ones are forgotten
  size_t probe_answer_ = 0;
  std::string why_broken_;

  SpinLock inbox_lock_;  // taken last
  Batch inbox_ OH_GUARDED_BY(inbox_lock_);
  std::atomic<size_t> waiting_{0};  // frames between deliver() and pop()
  std::atomic<bool> is_broken_{false};
};

}  // namespace oh
