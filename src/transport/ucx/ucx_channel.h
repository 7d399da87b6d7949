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
// UCX queues without bound: no more is handed to it while the copies it holds of ours are above a
// limit. What is copied goes through buffers of the worker's pool (ucx_pool.h), and frames that
// follow each other at once (Frame::more) share one (ucx_packing.h): one active message, of type
// kUcxPacked, whose number is the only one that they have.
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

// Where the answers to a get go. Asked with the worker's lock held, by any thread: it looks at
// nothing that changes.
class UcxSink {
 public:
  virtual ~UcxSink() = default;
  // Null: nowhere.
  virtual uint8_t* place_of(uint32_t block, uint64_t offset, uint64_t size) const = 0;
};

// A user buffer that UCX has in flight, until it is over.
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
  // Of messages in UCX's hands, without the buffers, of which there are so many; what is above
  // stays with the requests.
  static constexpr uint64_t kMostOutstanding = 1 << 20;

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
  // Sends a header as large as the largest small message's there and back. The other side has
  // connected before.
  Status probe(Deadline deadline);

  size_t max_payload() const override { return kMaxPayload; }
  size_t part_of(uint64_t) const override { return kMaxPayload; }
  size_t max_inline() const override { return max_inline_; }
  bool push(const Frame& frame) override;
  // Frames with `more` are pushed between the two only. No more than so many buffers are filled;
  // what is packed has gone to UCX afterwards, and a channel that waited for a buffer and did not
  // ask again leaves the queue.
  void begin_turn(size_t buffers);
  void end_turn();
  // For `buffers`: what one call of progress may fill.
  size_t depth() const { return worker_->pool().limits().depth; }
  // Nothing that needs a buffer waits any more.
  void leave_line();
  // Payload of the next frame of `left` bytes, so that it fills a buffer and is in one.
  size_t part_of_list(uint64_t left) const;
  // Frames that were packed so far; how often something had to wait for room.
  struct Counts {
    uint64_t packed = 0;
    uint64_t deferred = 0;
  };
  const Counts& counts() const { return counts_; }
  // Sends the payload from where it is; until the flight is over it must stay there unchanged.
  // Null when there is no room now. One that is over well at once is not kept.
  std::shared_ptr<Flight> lend(const Frame& frame);
  // So much of a message of `size` bytes is lent at once: parts are alike, so that the other side
  // copies one while the next is sent.
  uint64_t lent_part(uint64_t size) const;

  // Received frames, in order, by the worker's progress. ready(): any thread.
  bool ready() const { return waiting_.load(std::memory_order_acquire) > 0; }
  // The first of them, until pop(); ready() has said that there is one.
  Status peek(Frame* frame);
  void pop();
  // Fetches the payload of the first frame, where that is still at the sender (Frame::remote).
  std::shared_ptr<Flight> fetch(const Frame& frame, uint8_t* to);
  // From now on what comes in parts (kData) of bytes [begin, begin + size) of that message goes
  // straight to `to`, until forbid(), of these or of all: afterwards nothing is written there.
  void expect(uint64_t op, uint8_t* to, uint64_t begin, uint64_t size);
  void forbid(uint64_t op, std::optional<uint64_t> begin = {});
  // The same for a message that comes early, whole or in parts: the one with this number of its tag
  // goes straight to `to`, if it fits. False: that number is expected already, or all is over.
  struct Expected {
    uint32_t number;
    uint32_t epoch;
    uint8_t* to;
    uint64_t capacity;
    bool has_come;
  };
  bool expect_early(uint64_t tag, const Expected& message);
  // Takes that back. False: it has come, and is ready; it is only forgotten once it is `taken`.
  bool forbid_early(uint64_t tag, uint32_t number, bool taken);
  // For puts into a region of ours, once one of them was checked, until hide(), of it or of all.
  struct Region {
    uint32_t index;
    uint64_t version;
    uint8_t* base;
    uint64_t length;
  };
  void show(const Region& region);
  void hide(uint64_t version);
  // And for what answers a get, until take_back().
  void await_answers(uint64_t op, const UcxSink* sink);
  void take_back(uint64_t op);
  // From now on nothing that comes goes anywhere but into the inbox, whatever is expected later.
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
  bool uses(ucx::Endpoint endpoint) const { return endpoint_ == endpoint; }
  // UCX has given the link up.
  void failed(ucx::Code code);

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
    bool passed_by = false;  // bytes of a put that wait here
  };
  // The put that is arriving, as far as all of it was placed.
  struct Landing {
    uint64_t version = 0;  // of its region; 0: none
    uint64_t op = 0;
    uint8_t* to = nullptr;
    uint64_t length = 0;
    uint64_t received = 0;
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
    uint64_t size;  // with what UCX keeps for it
    Bytes bytes;
  };

  UcxHead next_head(FrameType type, uint8_t flags);
  size_t write_head(uint8_t* to, const Frame& frame, bool is_short);
  bool push_alone(const Frame& frame);
  bool take_buffer(PooledBuffer* buffer);
  void pack(const Frame& frame);
  void send_pack();
  void let_go_of_pack();
  void leave();
  bool defer();
  Note* take_note();
  void release(Note* note, ucx::StatusPointer pointer);
  struct Sending {
    const void* header;
    size_t header_size;
    ByteView payload = {};
    bool asked = false;            // its receiver has asked for it
    void* registration = nullptr;  // of the payload's memory with UCX
  };
  ucx::StatusPointer send(const Sending& what, void (*done)(void*, ucx::Code, void*),
                          void* context);
  void send_note(Note* note, size_t header_size, size_t payload_size);
  bool place(const FrameBody& body, const void* data, size_t size);
  bool place_early(const FrameBody& body, const void* data, size_t size);
  void deliver(const Arrival& arrival, ByteView payload);
  bool take_turn(const UcxHead& head, const Arrival& arrival, ByteView payload);
  void enter(Arrival arrival, ByteView payload) OH_REQUIRES(inbox_lock_);
  void enter_pack(ByteView bytes) OH_REQUIRES(inbox_lock_);
  bool land(Arrival* arrival, const void* data, size_t size);
  bool land_put(const FrameBody& body, const void* data, size_t size);
  bool land_part(const FrameBody& body, const void* data, size_t size);
  bool land_answer(const FrameBody& body, const void* data, size_t size);
  void send_probe(FrameType type, size_t size);
  static std::shared_ptr<Flight> begin(std::shared_ptr<Flight> flight, ucx::StatusPointer pointer);
  void break_off(const std::string& why);
  static void on_note_sent(void* request, ucx::Code code, void* context);
  static void on_flight_over(void* request, ucx::Code code, void* context);
  static void on_fetched(void* request, ucx::Code code, size_t size, void* context);
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
  PooledBuffer pack_;  // that frames are copied into; without data: none
  size_t pack_size_ = 0;
  size_t turn_left_ = SIZE_MAX;       // buffers that may be filled in this turn
  std::atomic<bool> in_line_{false};  // for a buffer; written with the worker's lock held, relaxed
  bool asked_ = false;                // in this turn
  bool deferring_ = false;            // something waits for room
  Counts counts_;
  std::shared_ptr<Flight> spare_;  // of the last message, which was over at once

  // Guarded by the worker's lock.
  std::vector<std::unique_ptr<Note>> notes_;
  std::vector<Note*> free_notes_;
  uint64_t outstanding_ = 0;  // bytes that UCX holds for us, without the buffers
  uint32_t messages_ = 0;     // sent so far
  size_t buffers_ = 0;        // of the pool that we have
  uint32_t next_sequence_ = 0;
  std::map<uint32_t, Stashed> stash_;  // came before their turn
  uint64_t stashed_ = 0;               // bytes of them
  bool all_forbidden_ = false;
  std::vector<Place> places_;  // few
  TagTable<ExpectedTag> expected_;
  size_t tidy_at_ = kTidyAt;  // tags at which idle ones are forgotten
  std::vector<Region> shown_;
  std::vector<std::pair<uint64_t, const UcxSink*>> answers_;
  Landing landing_;
  bool has_heard_ = false;  // a message of the other side has arrived
  size_t probe_answer_ = 0;
  std::string why_broken_;

  SpinLock inbox_lock_;  // taken last
  Batch inbox_ OH_GUARDED_BY(inbox_lock_);
  std::atomic<size_t> waiting_{0};    // frames between deliver() and pop()
  std::atomic<size_t> passed_by_{0};  // of them, with bytes of puts; they come before later ones
  std::atomic<bool> is_broken_{false};
};

}  // namespace oh
